"""The command `forecast upcoming`: show the next fires as a table and on a time axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Annotated

import typer

from rqsched.api.build_description import iter_upcoming
from rqsched.cli.arguments import schedule_ids
from rqsched.cli.command import Session, command
from rqsched.cli.output import shown
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.when.duration import format_short
from rqsched.when.words import after_in_words

app = typer.Typer(add_completion=False)

FIRES = ("Fires At", "In", "Schedule ID", "Workflow Type")
WIDTH = 60
"""How many columns the time axis has."""
_MOST_LINES = 20
_LABEL = 24

Fire = tuple[datetime, str, str]
"""The instant of a fire, the id of its schedule, and the name of its workflow."""


@command(app)
def upcoming(
    session: Session,
    schedule_id: Annotated[
        str | None,
        typer.Argument(metavar="SCHEDULE_ID", help="Default: all active schedules.", autocompletion=schedule_ids),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-c", min=1, max=1_000, help="How many fires.")] = 10,
) -> None:
    """Show the next fires of one schedule, or of all.

    If a clock change before the last of these fires leaves out a local time, this time is listed, too.
    """
    now, writer = session.scheduler.runtime.now(), session.writer
    if schedule_id is None:  # the next `count` fires belong to the `count` schedules that fire first
        schedules = session.scheduler.runtime.database.read(lambda c: schedule_queries.soonest(c, session.named, count))
    else:
        schedules = [session.schedule(schedule_id).state]
    fires = list(islice(merge(*(_fires(schedule, now) for schedule in schedules)), count))
    rows = [{"fires_at": at, "schedule_id": name, "workflow": workflow} for at, name, workflow in fires]
    gaps_of = ((one.schedule_id, one.spec.gaps_between(now, fires[-1][0])) for one in schedules if fires)
    left_out = [(name, gap.reading) for name, found in gaps_of for gap in found]
    gaps = [{"schedule_id": name, "local_time": reading.isoformat()} for name, reading in left_out]
    if writer.for_programs(rows, {"now": now, "upcoming": rows, "left_out": gaps}):
        return
    if not fires:
        after = schedules[0].spec.after if schedule_id is not None else None
        writer.say("Nothing will fire." if after is None else f"It fires {after_in_words(after)}: no times ahead.")
        return
    writer.table(FIRES, [(at, until(now, at), name, workflow) for at, name, workflow in fires])
    for line in draw(fires, now):
        writer.say(line)
    for name, reading in left_out:
        writer.say(f"{name}: {reading:%H:%M:%S on %a %d %b %Y} is left out: the clocks go forward over it.")


def _fires(schedule: Schedule, now: datetime) -> Iterator[Fire]:
    for at in iter_upcoming(schedule, now):
        yield at, schedule.schedule_id, schedule.definition.workflow


def until(now: datetime, at: datetime) -> str:
    """Return the time from `now` until an instant: in seconds if it is less than a day, otherwise in days and hours."""
    if at <= now:
        return "due"
    left = timedelta(seconds=max(1, round((at - now).total_seconds())))
    hours = left.seconds // 3600
    return f"{left.days}d{f'{hours}h' if hours else ''}" if left.days else format_short(left)


def draw(fires: Sequence[Fire], now: datetime) -> list[str]:
    """Draw fires on a time axis from `now` to the last fire, with a line for each schedule.

    A digit says how many fires of a schedule share a column.
    """
    end = max(at for at, _, _ in fires)
    names = list(dict.fromkeys(name for _, name, _ in fires))
    label = min(max(len(name) for name in names), _LABEL)
    step = max(end - now, timedelta(seconds=1)) / (WIDTH - 1)
    left, right = f"now {now:%H:%M:%S}", f"{end:%Y-%m-%d %H:%M:%S} UTC"
    lines = ["", " " * (label + 1) + left + right.rjust(WIDTH - len(left))]
    for name in names[:_MOST_LINES]:
        cells = [max(0, int((at - now) / step)) for at, whose, _ in fires if whose == name]
        counts = [cells.count(cell) for cell in range(WIDTH)]
        line = "".join("·" if n == 0 else "●" if n == 1 else str(n) if n < 10 else "+" for n in counts)
        lines.append(f"{shown(name)[:label]:<{label}} {line}")
    more = len(names) - _MOST_LINES
    return lines + ([f"... and {more} more schedules"] if more > 0 else [])
