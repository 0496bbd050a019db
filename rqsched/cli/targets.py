"""The targets of a run: the command `targets`, and how far they are, which `run --follow` shows too."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from rqsched.api.run_handle import RunHandle
from rqsched.cli.arguments import Limit, PageToken, RunName, ScheduleOfRun
from rqsched.cli.command import Session, command
from rqsched.cli.output import first_line, progress_bar
from rqsched.core.ids import iso_utc
from rqsched.core.model import OPEN, TargetStatus
from rqsched.core.target_progress import TargetProgress

app = typer.Typer(add_completion=False)

COLUMNS = ("#", "Target", "Status", "Attempt", "Ended", "Error")
LOOK_SECONDS = 1.0
"""How often a run that is followed is looked at."""


@command(app)
def targets(
    session: Session,
    run: RunName,
    schedule: ScheduleOfRun = None,
    status: Annotated[TargetStatus | None, typer.Option("--status", help="Only targets of this status.")] = None,
    limit: Limit = 100,
    page_token: PageToken = None,
) -> None:
    """Show the targets of a run as they were named, and its progress."""
    found = session.run(run, schedule)
    page, progress = found.targets(limit, page_token, status=status and status.value), found.progress()
    writer, rows = session.writer, [target.to_dict() for target in page.items]
    plain = progress and progress.to_dict()
    document = {"run": found.uid, "progress": plain, "targets": rows, "next_page_token": page.next_cursor}
    if writer.for_programs(rows, document):
        return
    if progress is None:
        writer.say("No targets.")
        return
    cells = [(t.number, t.target_id, t.status, t.attempt, t.ended_at, first_line(t.error)) for t in page.items]
    writer.table(COLUMNS, cells)
    writer.say(in_words(progress))
    writer.say_next_page(page.next_cursor)


def in_words(progress: TargetProgress) -> str:
    """Say how far the targets of a run are."""
    counts = ", ".join(f"{count} {status}" for status, count in progress.counts.items())
    pace = "" if progress.per_second is None else f"; {progress.per_second:.1f} a second"
    end = "" if progress.ends_at is None else f", until about {iso_utc(progress.ends_at.replace(microsecond=0))}"
    return f"{progress.ended} of {progress.total} targets have ended: {counts}{pace}{end}."


def follow(run: RunHandle) -> None:
    """Refresh a run until it has ended, while a bar shows how far its targets are."""
    while run.refresh().state.status in OPEN and (progress := run.progress()) is None:
        time.sleep(LOOK_SECONDS)
    if run.state.status not in OPEN or progress is None:
        return
    with progress_bar(f"Targets of {run.instance_id}", progress.total) as advance:
        advance(done := progress.ended)
        while run.refresh().state.status in OPEN:
            time.sleep(LOOK_SECONDS)
            progress = run.progress() or progress
            advance(progress.ended - done)
            done = progress.ended
