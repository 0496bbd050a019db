"""The command `upcoming`: what fires next, as a table and a timeline drawn in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Annotated

import typer

from rqsched.api.build_description import iter_upcoming
from rqsched.cli.command import command
from rqsched.cli.completion import schedule_ids
from rqsched.cli.output import shown
from rqsched.cli.session import Session
from rqsched.core.model import Schedule
from rqsched.spec.duration import format_short
from rqsched.store import listing

app = typer.Typer(add_completion=False)

Fire = tuple[datetime, str, str]
"""When it fires, its schedule, its workflow."""
COLUMNS = ("Fires At", "In", "Schedule ID", "Workflow Type")
WIDTH = 60
"""Columns of the timeline."""
_MOST_LINES = 20
_LABEL = 24


@command(app)
def upcoming(
    session: Session,
    schedule_id: Annotated[
        str | None,
        typer.Argument(metavar="SCHEDULE_ID", help="Default: all active schedules.", autocompletion=schedule_ids),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-c", min=1, max=1_000, help="How many fires.")] = 10,
) -> None:
    """Show the next fires of one schedule, or of all."""
    schedules = _schedules(session, schedule_id, count)
    now, writer = session.scheduler.runtime.now(), session.writer
    fires = list(islice(merge(*(_fires(schedule, now) for schedule in schedules)), count))
    rows = [{"fires_at": at, "schedule_id": name, "workflow": workflow} for at, name, workflow in fires]
    if writer.is_lines:
        writer.lines(rows)
    elif not writer.is_table:
        writer.json({"now": now, "upcoming": rows})
    elif not fires:
        writer.say("Nothing will fire.")
    else:
        writer.table(COLUMNS, [(at, until(now, at), name, workflow) for at, name, workflow in fires])
        for line in draw(fires, now):
            writer.say(line)


def _schedules(session: Session, schedule_id: str | None, count: int) -> list[Schedule]:
    """Read the schedules that can be among the next `count` fires: the first fire of each decides."""
    if schedule_id is not None:
        return [session.schedule(schedule_id).state]
    return session.scheduler.runtime.database.read(lambda c: listing.soonest(c, session.named, count))


def _fires(schedule: Schedule, now: datetime) -> Iterator[Fire]:
    for at in iter_upcoming(schedule, now):
        yield at, schedule.schedule_id, schedule.definition.workflow


def until(now: datetime, at: datetime) -> str:
    """Return how long it is from `now`: to the second within a day, to the hour beyond."""
    if at <= now:
        return "due"
    left = timedelta(seconds=max(1, round((at - now).total_seconds())))
    hours = left.seconds // 3600
    return f"{left.days}d{f'{hours}h' if hours else ''}" if left.days else format_short(left)


def draw(fires: Sequence[Fire], now: datetime) -> list[str]:
    """Draw fires over time from `now` to the last one: a line per schedule, a digit where several coincide."""
    end = max(at for at, _, _ in fires)
    names = list(dict.fromkeys(name for _, name, _ in fires))
    label = min(max(len(name) for name in names), _LABEL)
    step = max(end - now, timedelta(seconds=1)) / (WIDTH - 1)
    lines = ["", " " * (label + 1) + _axis(now, end)]
    for name in names[:_MOST_LINES]:
        cells = [max(0, int((at - now) / step)) for at, whose, _ in fires if whose == name]
        lines.append(f"{shown(name)[:label]:<{label}} {_line(cells)}")
    more = len(names) - _MOST_LINES
    return lines + ([f"... and {more} more schedules"] if more > 0 else [])


def _axis(now: datetime, end: datetime) -> str:
    left, right = f"now {now:%H:%M:%S}", f"{end:%Y-%m-%d %H:%M:%S} UTC"
    return left + right.rjust(WIDTH - len(left))


def _line(cells: Sequence[int]) -> str:
    counts = [cells.count(cell) for cell in range(WIDTH)]
    return "".join("·" if n == 0 else "●" if n == 1 else str(n) if n < 10 else "+" for n in counts)
