"""The command `bulk`: a row per schedule and the counts of outcomes; exit code 4 when one was skipped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated

import typer

from rqsched.cli import arguments
from rqsched.cli.arguments import DryRun, Matching, Note, Until, workflow_names
from rqsched.cli.command import CONFLICT, Session, command
from rqsched.cli.output import notice, progress_bar, show_outcomes
from rqsched.errors import InvalidInputError
from rqsched.features.bulk.api import DEFAULT_BOUND
from rqsched.kernel.decide.model import ScheduleStatus
from rqsched.kernel.decide.results import BulkProgress, BulkRow

app = typer.Typer(add_completion=False)

_SCHEDULES = {"Schedule": "schedule_id", "Outcome": "outcome", "Reason": "reason"}


class Operation(StrEnum):
    """The operation on each schedule."""

    PAUSE = "pause"
    """Stop firing."""
    RESUME = "resume"
    """Fire again."""
    TRIGGER = "trigger"
    """Start a run now."""
    SKIP = "skip"
    """Skip the next occurrences."""


@command(app)
def bulk(
    session: Session,
    operation: Annotated[Operation, typer.Argument(help="What is done to each.")],
    status: Annotated[
        list[ScheduleStatus] | None,
        typer.Option("--status", help="Only schedules of this status; default: active, for resume paused."),
    ] = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Only schedules of this workflow.", autocompletion=workflow_names)
    ] = None,
    *,
    matching: Matching,
    note: Note = None,
    on_resume: Annotated[
        str | None, typer.Option("--on-resume", help="With resume, or pause --until: where they continue.")
    ] = None,
    until: Until = None,
    overlap: Annotated[
        str | None, typer.Option("--overlap", help="With trigger: the overlap policy instead of their own.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="With trigger: the same key starts a run only once.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", help="With skip: how many of each, 1 to 100; 0 takes back what is skipped.")
    ] = 1,
    bound: Annotated[int, typer.Option("--bound", min=1, help="Refuse more schedules than this.")] = DEFAULT_BOUND,
    page_token: Annotated[
        str | None, typer.Option("--page-token", help="Where a stopped command goes on: the token that it shows.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Pause, resume, trigger or skip the next of every schedule that matches. Exit code 4 when one was skipped.

    It does a hundred schedules at a time. Ctrl-C stops it in between (exit code 130), and it says how to go on.
    """
    chunks = session.scheduler.bulk(
        "skip_next" if operation is Operation.SKIP else operation.value,
        reason=session.reason,
        note=note,
        on_resume=on_resume,
        until=None if until is None else arguments.instant_ahead("--until", until, session.scheduler.runtime.now()),
        overlap=overlap,
        idempotency_key=idempotency_key,
        count=count,
        dry_run=dry_run,
        bound=bound,
        cursor=arguments.given_text("--page-token", page_token),
        context=session.context,
        namespace=session.namespace,
        **matching.filters(status, workflow),
    )
    rows, following, error = _drive(chunks, page_token, dry_run=dry_run)
    done = "Done" if following is None else "Stopped" if error is None else "Interrupted"
    counts = show_outcomes(
        session.writer, done, rows, _SCHEDULES, noun="schedules", dry_run=dry_run, following=following
    )
    if error is not None:
        raise error
    if following is not None:
        raise typer.Exit(130)
    if "skipped" in counts:
        raise typer.Exit(CONFLICT)


def _drive(
    chunks: Iterator[BulkProgress], cursor: str | None, *, dry_run: bool
) -> tuple[list[BulkRow], str | None, BaseException | None]:
    """Do the chunks until the last one, Ctrl-C or an error; returns the rows, the cursor of the next chunk, the error.

    A second Ctrl-C is such an error: it ends the command at once. Raises the error of a command that cannot go on.
    """
    rows, stops, failed = list[BulkRow](), list[int](), None
    before = signal.getsignal(signal.SIGINT)
    takes_signal = threading.current_thread() is threading.main_thread() and before not in {signal.SIG_IGN, None}

    def stop(number: int, _: object) -> None:
        stops.append(number)
        signal.signal(signal.SIGINT, before)

    if takes_signal:
        signal.signal(signal.SIGINT, stop)
    try:
        with ExitStack() as stack:
            advance, shown = None, 0
            for progress in chunks:
                advance = advance or stack.enter_context(progress_bar("Changing schedules", progress.matched))
                advance(progress.done - shown)
                shown = progress.done
                rows += progress.items
                cursor = progress.next_cursor
                if cursor is None or stops:
                    break
    except (Exception, KeyboardInterrupt) as error:
        if cursor is None or (isinstance(error, InvalidInputError) and not rows):
            raise
        failed = error
    finally:
        if takes_signal:
            signal.signal(signal.SIGINT, before)
    if cursor is not None:
        kept = "" if dry_run else "What is done stays done. "
        notice(f"{kept}To go on, run the same command with --page-token '{cursor}'.")
    return rows, cursor, failed
