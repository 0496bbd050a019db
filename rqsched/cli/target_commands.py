"""What a run with targets shows: how far they are, and which failed. The command `targets`, and `run --follow`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from rqsched.api.run_handle import RunHandle
from rqsched.cli.command import command
from rqsched.cli.output import progress_bar
from rqsched.cli.session import Session
from rqsched.core.ids import iso_utc
from rqsched.core.model import OPEN, TargetStatus
from rqsched.core.page import MAX_PAGE
from rqsched.core.target_progress import TargetProgress

app = typer.Typer(add_completion=False)

COLUMNS = ("#", "Target", "Status", "Attempt", "Ended", "Error")
LOOK_SECONDS = 1.0
"""How often a run that is followed is looked at."""


def find_run(session: Session, run: str, schedule: str | None) -> RunHandle:
    """Find a run by its uid, or within a schedule by its number or instance id too."""
    if schedule:
        return session.newest(schedule).run(run)
    return session.scheduler.run(run, namespace=session.namespace)


@command(app)
def targets(
    session: Session,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its uid; with --schedule its number or instance id too.")],
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="ID", help="The schedule it is one of.")] = None,
    status: Annotated[TargetStatus | None, typer.Option("--status", help="Only targets of this status.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MAX_PAGE, help="The size of a page.")] = 100,
    page_token: Annotated[
        str | None, typer.Option("--page-token", help="The token of the next page, from the page before.")
    ] = None,
) -> None:
    """Show the targets of a run as they were named, and its progress."""
    found = find_run(session, run, schedule)
    page, progress = found.targets(limit, page_token, status=status and status.value), found.progress()
    writer, rows = session.writer, [target.to_dict() for target in page.items]
    if writer.is_lines:
        writer.lines(rows)
    elif not writer.is_table:
        plain = progress and progress.to_dict()
        writer.json({"run": found.uid, "progress": plain, "targets": rows, "next_page_token": page.next_cursor})
    elif progress is None:
        writer.say("No targets.")
    else:
        first = [(target.error or "").partition("\n")[0] for target in page.items]
        shown = zip(page.items, first, strict=True)
        writer.table(COLUMNS, [(t.number, t.target_id, t.status, t.attempt, t.ended_at, error) for t, error in shown])
        writer.say(in_words(progress))
        if page.next_cursor:
            writer.say(f"Next page token: {page.next_cursor}")


def in_words(progress: TargetProgress) -> str:
    """Say how far the targets of a run are."""
    counts = ", ".join(f"{count} {status}" for status, count in progress.counts.items())
    pace = "" if progress.per_second is None else f"; {progress.per_second:.1f} a second"
    end = "" if progress.ends_at is None else f", until about {iso_utc(progress.ends_at.replace(microsecond=0))}"
    return f"{progress.ended} of {progress.total} targets have ended: {counts}{pace}{end}."


def follow(run: RunHandle) -> RunHandle:
    """Look at a run until it has ended, while a bar shows how far its targets are; returns it as it is then."""
    while run.refresh().state.status in OPEN and (progress := run.progress()) is None:
        time.sleep(LOOK_SECONDS)
    if run.state.status not in OPEN or progress is None:
        return run
    with progress_bar(f"Targets of {run.instance_id}", progress.total) as advance:
        done = 0
        while True:
            advance(progress.ended - done)
            done = progress.ended
            if run.refresh().state.status not in OPEN:
                return run
            time.sleep(LOOK_SECONDS)
            progress = run.progress() or progress
