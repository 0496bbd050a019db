"""The command `backfill`: a progress bar while it works, and a row for each occurrence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain.backfill import DEFAULT_BOUND, Range
from rqsched.cli import parsing
from rqsched.cli.arguments import Overlap, ScheduleId
from rqsched.cli.command import command
from rqsched.cli.outcomes import told
from rqsched.cli.output import notice, progress_bar
from rqsched.cli.session import Session
from rqsched.core.policy import OverlapPolicy, Rerun
from rqsched.core.start_on_request import BackfillRow

app = typer.Typer(add_completion=False)

COLUMNS = ("Occurrence", "Outcome", "Instance", "Reason")
_SHOWN = 20
"""How many rows a table has at most; the other forms have all."""


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
            "--rerun", help="failed: retry those whose run failed or was lost, too; all: and fire what was pruned."
        ),
    ] = None,
    bound: Annotated[int, typer.Option("--bound", min=1, help="Refuse more occurrences than this.")] = DEFAULT_BOUND,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be started; write nothing.")] = False,
) -> None:
    """Fire the occurrences of a past range that have no run yet.

    Run it again after an interruption to continue: occurrences that have a run are reported as already_run.
    """
    wanted = Range(
        parsing.instant("--start", start),
        parsing.instant("--end", end),
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
        _show(session, handle, planned.rows, "dry_run")
    else:
        _show(session, handle, _fired(handle, wanted), "backfill_started")


def _fired(handle: ScheduleHandle, wanted: Range) -> Iterator[BackfillRow]:
    """Yield what the backfill does, chunk by chunk, while a bar follows it."""
    total = handle.state.spec.count_between(wanted.start_at, wanted.end_at, cap=wanted.bound).total
    with progress_bar(f"Backfilling {handle.schedule_id}", total) as advance:
        for done, rows in handle.iter_backfill(wanted):
            advance(len(rows))
            yield from rows
            if done.reason:
                notice(f"The backfill stopped: {done.reason}.")


def _show(session: Session, handle: ScheduleHandle, rows: Iterable[BackfillRow], outcome: str) -> None:
    writer = session.writer
    if writer.is_lines:
        writer.lines(row.to_dict() for row in rows)
        return
    rows = list(rows)
    if not writer.is_table:
        writer.json(_report(handle, rows, outcome))
        return
    if rows:
        writer.table(COLUMNS, [(r.occurrence_at, r.outcome, r.instance_id, r.reason) for r in rows[:_SHOWN]])
    if len(rows) > _SHOWN:
        writer.say(f"... and {len(rows) - _SHOWN} more; --output jsonl shows all.")
    counts = told(Counter(row.outcome for row in rows)) or "no occurrences"
    writer.say(f"{'Dry run' if outcome == 'dry_run' else 'Backfill'} of {handle.schedule_id}: {counts}.")


def _report(handle: ScheduleHandle, rows: list[BackfillRow], outcome: str) -> dict[str, Any]:
    return {
        "schedule_id": handle.schedule_id,
        "outcome": outcome,
        "fires_attempted": len(rows),
        "counts": Counter(row.outcome for row in rows),
        "results": [row.to_dict() for row in rows],
    }
