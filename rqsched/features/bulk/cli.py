"""The commands `bulk ...`: apply one operation to every schedule or run that matches, and show the outcome of each."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from rqsched.cli import arguments
from rqsched.cli.arguments import DryRun, IdempotencyKey, Matching, Note, Overlap, Until, WhereResumed, workflow_names
from rqsched.cli.command import CONFLICT, Session, command
from rqsched.cli.output import notice, progress_bar, show_outcomes
from rqsched.errors import InvalidInputError
from rqsched.features.bulk.api import DEFAULT_BOUND
from rqsched.kernel.decide.model import ScheduleStatus
from rqsched.kernel.decide.results import BulkProgress, BulkRow

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Change all schedules, or cancel or retry all runs, that match.",
    epilog="It does a hundred at a time. Ctrl-C stops it in between (exit code 130), and it says how to go "
    "on. Exit code 4 when one was skipped.",
)

_SCHEDULES = {"Schedule": "schedule_id", "Outcome": "outcome", "Reason": "reason"}
_RUNS = {"Schedule": "schedule_id", "Run": "run_uid", "Outcome": "outcome", "Reason": "reason"}


@dataclass(frozen=True)
class Chosen(Matching):
    """The options that choose the schedules, and bound the work."""

    status: Annotated[
        list[ScheduleStatus] | None,
        typer.Option("--status", metavar="STATUS", help="Of this status; default: active."),
    ] = None
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Of this workflow.", autocompletion=workflow_names)
    ] = None
    bound: Annotated[int, typer.Option("--bound", min=1, metavar="N", help="Refuse more schedules.")] = DEFAULT_BOUND
    page_token: Annotated[
        str | None, typer.Option("--page-token", metavar="TOKEN", help="Go on where a stop said.")
    ] = None
    dry_run: DryRun = False
    """Whether the schedules are only counted."""


@dataclass(frozen=True)
class ChosenRuns:
    """The options that choose the runs, and bound the work."""

    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="Only runs of this status; may be repeated.")
    ] = None
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="ID", help="Only of this schedule.")] = None
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Of this workflow.", autocompletion=workflow_names)
    ] = None
    limit: Annotated[str | None, typer.Option("--limit", metavar="NAME", help="Of this group of a limit.")] = None
    backfill: Annotated[str | None, typer.Option("--backfill", metavar="UID", help="Of this backfill.")] = None
    since: Annotated[
        str | None, typer.Option("--since", help="Created since then, or so long ago (1h); failed ones: ended.")
    ] = None
    until: Annotated[str | None, typer.Option("--until", help="Created, or ended, before this instant.")] = None
    error: Annotated[str | None, typer.Option("--error", metavar="TEXT", help="Whose error contains this.")] = None
    bound: Annotated[int, typer.Option("--bound", min=1, metavar="N", help="Refuse more runs.")] = DEFAULT_BOUND
    page_token: Annotated[
        str | None, typer.Option("--page-token", metavar="TOKEN", help="Go on where a stop said.")
    ] = None
    dry_run: DryRun = False
    """Whether the runs are only named."""

    def filters(self, now: datetime) -> dict[str, Any]:
        """Return the filters of the scheduler; raises InvalidInputError."""
        return {
            "status": self.status,
            "schedule_id": arguments.given_text("--schedule", self.schedule),
            "workflow": arguments.given_text("--workflow", self.workflow),
            "limit": arguments.given_text("--limit", self.limit),
            "backfill_uid": arguments.given_text("--backfill", self.backfill),
            "since": None if self.since is None else arguments.instant_or_age("--since", self.since, now),
            "until": None if self.until is None else arguments.instant("--until", self.until),
            "error": arguments.given_text("--error", self.error),
        }


@command(app)
def pause(
    session: Session,
    chosen: Chosen,
    note: Note = None,
    until: Until = None,
    on_resume: Annotated[
        str | None, typer.Option("--on-resume", metavar="WHERE", help="With --until: where they continue.")
    ] = None,
) -> None:
    """Stop the firing of every schedule that matches."""
    ends = None if until is None else arguments.instant_ahead("--until", until, session.scheduler.runtime.now())
    of_it = {"note": note, "reason": session.reason, "until": ends, "on_resume": on_resume}
    _do(session, session.scheduler.bulk.pause, chosen, **of_it)


@command(app)
def resume(session: Session, chosen: Chosen, note: Note = None, on_resume: WhereResumed = None) -> None:
    """Let every schedule that matches fire again."""
    _do(session, session.scheduler.bulk.resume, chosen, note=note, on_resume=on_resume)


@command(app)
def trigger(session: Session, chosen: Chosen, overlap: Overlap = None, idempotency_key: IdempotencyKey = None) -> None:
    """Start a run of every schedule that matches."""
    _do(session, session.scheduler.bulk.trigger, chosen, overlap=overlap, idempotency_key=idempotency_key)


@command(app)
def skip(
    session: Session,
    chosen: Chosen,
    count: Annotated[int, typer.Option("--count", metavar="N", help="How many of each; 0 takes it back.")] = 1,
) -> None:
    """Skip the next occurrences of every schedule that matches."""
    _do(session, session.scheduler.bulk.skip_next, chosen, count=count, reason=session.reason)


@command(app)
def cancel(session: Session, chosen: ChosenRuns) -> None:
    """Cancel every run that matches; without --status, every run that has not ended."""
    _do(session, session.scheduler.bulk.cancel_runs, chosen, reason=session.reason)


@command(app)
def retry(session: Session, chosen: ChosenRuns) -> None:
    """Retry every run that matches; without --status, the failed and lost ones."""
    _do(session, session.scheduler.bulk.retry_runs, chosen, reason=session.reason)


def _do(
    session: Session,
    operation: Callable[..., Iterator[BulkProgress]],
    chosen: Chosen | ChosenRuns,
    **arguments_of_it: Any,
) -> None:
    """Do the operation chunk by chunk, and show the outcomes.

    The exit code is 4 if a schedule or run was skipped, and 130 after Ctrl-C.
    """
    page_token, dry_run = arguments.given_text("--page-token", chosen.page_token), chosen.dry_run
    if isinstance(chosen, Chosen):
        noun, columns, filters = "schedules", _SCHEDULES, chosen.filters(chosen.status, chosen.workflow)
    else:
        noun, columns, filters = "runs", _RUNS, chosen.filters(session.scheduler.runtime.now())
    chunks = operation(
        dry_run=dry_run,
        bound=chosen.bound,
        cursor=page_token,
        context=session.context,
        namespace=session.namespace,
        **arguments_of_it,
        **filters,
    )
    rows, following, error = _drive(chunks, page_token, noun, dry_run=dry_run)
    done = "Done" if following is None else "Stopped" if error is None else "Interrupted"
    counts = show_outcomes(session.writer, done, rows, columns, noun=noun, dry_run=dry_run, following=following)
    if error is not None:
        raise error
    if following is not None:
        raise typer.Exit(130)
    if "skipped" in counts:
        raise typer.Exit(CONFLICT)


def _drive(
    chunks: Iterator[BulkProgress], cursor: str | None, noun: str, *, dry_run: bool
) -> tuple[list[BulkRow], str | None, BaseException | None]:
    """Do the chunks until the last one, Ctrl-C or an error; returns the rows, the cursor of the next chunk, the error.

    A second Ctrl-C is such an error: it ends the command at once. If there is no cursor to go on with, the error is
    raised.
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
                advance = advance or stack.enter_context(progress_bar(f"Changing {noun}", progress.matched))
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
