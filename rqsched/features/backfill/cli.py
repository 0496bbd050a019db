"""The command `backfill`: fire the occurrences of a past range, and show a row for each and the counts of outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.cli import arguments
from rqsched.cli.arguments import DryRun, Overlap, ScheduleId
from rqsched.cli.command import Session, command
from rqsched.cli.output import Writer, in_words, notice, progress_bar
from rqsched.features.backfill.chain import DEFAULT_BOUND, BackfillRange
from rqsched.kernel.decide.policy import OverlapPolicy, Rerun
from rqsched.kernel.decide.results import BackfillRow

app = typer.Typer(add_completion=False)

_OCCURRENCES = ("Occurrence", "Outcome", "Instance", "Reason")
_SHOWN = 20
"""The maximum number of rows in the table of a backfill; other output formats have all rows."""


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
            "--rerun", help="failed: also retry failed and lost runs; all: also fire occurrences with pruned history."
        ),
    ] = None,
    bound: Annotated[int, typer.Option("--bound", min=1, help="Refuse more occurrences than this.")] = DEFAULT_BOUND,
    dry_run: DryRun = False,
) -> None:
    """Fire the occurrences of a past range that have no run yet.

    To continue after an interruption, run the command again: it reports occurrences that have a run as already_run.
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
            session.writer.say(f"Calendars in their current state: {', '.join(one.name for one in calendars)}.")
    else:
        _show_backfill(session.writer, handle, _fired(handle, wanted), "backfill_started")


def _fired(handle: ScheduleHandle, wanted: BackfillRange) -> Iterator[BackfillRow]:
    """Fire the backfill and yield its rows, while a progress bar is shown."""
    total = handle.state.spec.count_between(wanted.start_at, wanted.end_at, cap=wanted.bound).total
    with progress_bar(f"Backfilling {handle.schedule_id}", total) as advance:
        for done in handle.backfill_in_chunks(wanted):
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
    writer.say(f"{done} of {handle.schedule_id}: {in_words(counts) or 'no occurrences'}.")
