"""Commands over many schedules, runs or occurrences: bulk, retry, backfill.

Each command shows a row per schedule, run or occurrence and the counts of outcomes. It ends with exit code 4 when one
was skipped; a backfill skips none.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated, Any

import typer

from rqsched.api.run_handle import RunHandle
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.cli import arguments
from rqsched.cli.arguments import DryRun, Matching, Note, Overlap, ScheduleId, Until, workflow_names
from rqsched.cli.command import CONFLICT, Session, command
from rqsched.cli.output import Writer, notice, progress_bar
from rqsched.errors import ConflictError, InvalidInputError
from rqsched.features.backfill.chain import DEFAULT_BOUND as MOST_OCCURRENCES
from rqsched.features.backfill.chain import BackfillRange
from rqsched.features.bulk.api import DEFAULT_BOUND as MOST_SCHEDULES
from rqsched.features.retry_on_request.chain import DEFAULT_BOUND as MOST_RUNS
from rqsched.kernel.decide.model import ScheduleStatus
from rqsched.kernel.decide.policy import OverlapPolicy, Rerun
from rqsched.kernel.decide.results import BackfillRow, BulkProgress, BulkRow, RetryRow

app = typer.Typer(add_completion=False)

_SCHEDULES = {"Schedule": "schedule_id", "Outcome": "outcome", "Reason": "reason"}
_RUNS = {"Schedule": "schedule_id", "Instance": "instance_id", "Outcome": "outcome", "Reason": "reason"}
_OCCURRENCES = ("Occurrence", "Outcome", "Instance", "Reason")
_SHOWN = 20
"""The most rows in the table of a backfill; the other forms have all."""


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
    catch_up: Annotated[
        str | None, typer.Option("--catch-up", help="With resume, or pause --until: where they continue.")
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
    bound: Annotated[int, typer.Option("--bound", min=1, help="Refuse more schedules than this.")] = MOST_SCHEDULES,
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
        catch_up=catch_up,
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
    rows, following = _drive(chunks, page_token)
    done = "Done" if following is None else "Stopped"
    _show_outcomes(session.writer, done, rows, _SCHEDULES, noun="schedules", dry_run=dry_run, following=following)


def _drive(chunks: Iterator[BulkProgress], cursor: str | None) -> tuple[list[BulkRow], str | None]:
    """Do the chunks until the last one or Ctrl-C; returns the rows, and the cursor of the next chunk.

    A second Ctrl-C ends the command at once. It, and the error of a chunk, are raised after saying how to go on.
    """
    rows, stops = list[BulkRow](), list[int]()

    def stop(number: int, _: object) -> None:
        stops.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
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
    finally:
        signal.signal(signal.SIGINT, before)
        if cursor is not None:
            notice(f"What is done stays done. To go on, run the same command with --page-token '{cursor}'.")
    return rows, cursor


@command(app)
def retry(
    session: Session,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Uids of runs; with --schedule their numbers or instance ids too."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All that failed or were lost since --since.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", help="With --failed: ended since this instant, or so long ago (1h).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="With --failed: ended before this instant.")] = None,
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="ID", help="Only of this schedule.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="With --failed: only of this workflow.")] = None,
    bound: Annotated[
        int, typer.Option("--bound", min=1, help="With --failed: refuse more runs than this.")
    ] = MOST_RUNS,
    failed_targets: Annotated[
        bool,
        typer.Option("--failed-targets", help="Retry the failed targets of each run, also of one that succeeded."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Run again what failed, was lost, cancelled or terminated.

    Each run gets one more attempt, which starts as the overlap policy of its schedule allows. Several runs of one
    schedule follow one another.
    """
    if failed == bool(runs):
        raise InvalidInputError("RUN", "name runs, or pass --failed --since 1h for all that failed since then")
    if not failed and (since or until or workflow):
        raise InvalidInputError("--since", "--since, --until and --workflow need --failed")
    if failed and failed_targets:
        raise InvalidInputError("--failed-targets", "needs the runs; --failed handles failed targets again in any case")
    if not failed:
        found = [session.run(name, schedule) for name in runs or ()]  # every run, before any is retried
        rows: Sequence[RetryRow] = [
            _retry_one(session, run, dry_run=dry_run, failed_targets=failed_targets) for run in found
        ]
    elif since is None:
        raise InvalidInputError("--since", "say since when, such as --since 1h or --since 2026-01-31T08:00:00Z")
    else:
        rows = session.scheduler.retry_failed(
            arguments.instant_or_age("--since", since, session.scheduler.runtime.now()),
            until=None if until is None else arguments.instant("--until", until),
            schedule_id=schedule,
            workflow=workflow,
            namespace=session.namespace,
            bound=bound,
            dry_run=dry_run,
            context=session.context,
        )
    _show_outcomes(session.writer, "Retried", rows, _RUNS, noun="runs", dry_run=dry_run)


def _retry_one(session: Session, run: RunHandle, *, dry_run: bool, failed_targets: bool) -> RetryRow:
    named = run.uid, str(run.lineage.get("schedule_id") or run.schedule_uid), run.instance_id
    try:
        if dry_run:
            run.require_retryable(failed_targets=failed_targets)
            return RetryRow(*named, "would_retry")
        run.retry(failed_targets=failed_targets, context=session.context)
    except ConflictError as error:
        return RetryRow(*named, "skipped", str(error))
    return RetryRow(*named, "buffered" if run.status == "buffered" else "started")


def _show_outcomes(
    writer: Writer,
    done: str,
    rows: Sequence[BulkRow | RetryRow],
    columns: dict[str, str],
    *,
    noun: str,
    dry_run: bool,
    following: str | None = None,
) -> None:
    """Show rows in the writer's form; a skipped row ends the command with exit code 4, a stop with 130.

    `done` is the operation ("Retried"), `noun` the kind of rows ("runs"), `columns` a table's titles and fields, and
    `following` where a stopped command goes on.
    """
    fields = [row.to_dict() for row in rows]
    counts = Counter(row.outcome for row in rows)
    document = {"outcome": "dry_run" if dry_run else done.lower(), "counts": counts, "results": fields}
    document |= {} if following is None else {"next_page_token": following}
    if not writer.for_programs(fields, document):
        if rows:
            writer.table(tuple(columns), [tuple(getattr(row, field) for field in columns.values()) for row in rows])
        writer.say(f"{'Dry run' if dry_run else done}: {_in_words(counts) or f'no {noun}'}.")
    if following is not None:
        raise typer.Exit(130)
    if "skipped" in counts:
        raise typer.Exit(CONFLICT)


@command(app)
def backfill(
    session: Session,
    schedule_id: ScheduleId,
    start: Annotated[str, typer.Option("--start", help="The first instant, inclusive.")],
    end: Annotated[str, typer.Option("--end", help="The end, exclusive; at most now.")],
    overlap: Overlap = None,
    rerun: Annotated[
        Rerun | None,
        typer.Option(
            "--rerun", help="failed: also retry runs that failed or were lost; all: also fire what was pruned."
        ),
    ] = None,
    bound: Annotated[int, typer.Option("--bound", min=1, help="Refuse more occurrences than this.")] = MOST_OCCURRENCES,
    dry_run: DryRun = False,
) -> None:
    """Fire the occurrences of a past range that have no run yet.

    Run it again after an interruption to continue: occurrences that have a run are reported as already_run.
    """
    wanted = BackfillRange(
        arguments.instant("--start", start),
        arguments.instant("--end", end),
        None if overlap is None else OverlapPolicy.of(overlap),
        bound,
        session.context,
        rerun,
    )
    handle = session.schedule(schedule_id)
    if dry_run:
        planned = handle.backfill(
            wanted.start_at, wanted.end_at, overlap=wanted.overlap, rerun=rerun, bound=bound, dry_run=True
        )
        _show_backfill(session.writer, handle, planned.rows, "dry_run")
        if calendars := handle.state.contents:
            session.writer.say(f"By the calendars as they are now: {', '.join(one.name for one in calendars)}.")
    else:
        _show_backfill(session.writer, handle, _fired(handle, wanted), "backfill_started")


def _fired(handle: ScheduleHandle, wanted: BackfillRange) -> Iterator[BackfillRow]:
    """Yield the backfill's rows, chunk by chunk, while a bar shows the progress."""
    total = handle.state.spec.count_between(wanted.start_at, wanted.end_at, cap=wanted.bound).total
    with progress_bar(f"Backfilling {handle.schedule_id}", total) as advance:
        for done in handle.iter_backfill(wanted):
            advance(len(done.rows))
            yield from done.rows
            if done.reason:
                notice(f"The backfill stopped: {done.reason}.")


def _show_backfill(writer: Writer, handle: ScheduleHandle, rows: Iterable[BackfillRow], outcome: str) -> None:
    if writer.is_lines:
        writer.lines(row.to_dict() for row in rows)
        return
    rows = list(rows)
    counts = Counter(row.outcome for row in rows)
    if not writer.is_table:
        document: dict[str, Any] = {"schedule_id": handle.schedule_id, "outcome": outcome, "fires_attempted": len(rows)}
        writer.json(document | {"counts": counts, "results": [row.to_dict() for row in rows]})
        return
    if rows:
        writer.table(_OCCURRENCES, [(r.occurrence_at, r.outcome, r.instance_id, r.reason) for r in rows[:_SHOWN]])
    if len(rows) > _SHOWN:
        writer.say(f"... and {len(rows) - _SHOWN} more; --output jsonl shows all.")
    done = "Dry run" if outcome == "dry_run" else "Backfill"
    writer.say(f"{done} of {handle.schedule_id}: {_in_words(counts) or 'no occurrences'}.")


def _in_words(counts: Counter[str]) -> str:
    """Return counts in words, such as "3 started, 1 skipped"."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())
