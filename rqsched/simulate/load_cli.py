"""The command `forecast load`: show how many schedules fire in the coming hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from math import ceil
from typing import Annotated

import typer

from rqsched.cli.command import Session, command
from rqsched.kernel.decide.results import Load, number_of
from rqsched.kernel.queries.schedules import Filters
from rqsched.simulate.load import MOST_HOURS, read_load, window_of
from rqsched.simulate.text import makers

app = typer.Typer(add_completion=False)
_BARS, _WIDTH = 28, 40
"""The maximum number of lines of the chart, and the number of characters of its longest bar."""


@command(app)
def load(
    session: Session,
    hours: Annotated[int, typer.Option("--hours", min=1, max=MOST_HOURS, help="The next hours, this many.")] = 24,
    every: Annotated[bool, typer.Option("--all-namespaces", help="Count every namespace.")] = False,
) -> None:
    """Show how many schedules fire when: the peak minutes with their schedules, and the load of each queue."""
    scheduler = session.scheduler
    if every:
        found = read_load(scheduler.runtime, Filters(), window_of(scheduler.runtime.now(), hours))
    else:
        found = scheduler.load(hours, namespace=session.namespace)
    writer, plain = session.writer, asdict(found)
    if writer.for_programs([plain], plain):
        return
    fires = f"{number_of(found.fires, 'fire')} of {number_of(found.schedules, 'schedule')}"
    writer.say(f"{fires} in {number_of(hours, 'hour')}, at most {max(found.minutes)} a minute.")
    if found.fires:
        writer.say("")
        writer.table(("From", "Fires", "Most a minute", ""), _bars(found))
        writer.say("")
        if found.peaks:
            writer.table(("Peak", "Fires", "Schedules"), ((one.at, one.fires, makers(one)) for one in found.peaks))
        else:
            writer.say("No minute stands out.")
        writer.say("")
        rows = ((one.queue, one.fires, one.peak_fires, one.peak_at) for one in found.queues)
        writer.table(("Queue", "Fires", "Most a minute", "At"), rows)
        writer.say("")
    for text in found.assumed:
        writer.say(text)


def _bars(found: Load) -> Iterator[tuple[object, ...]]:
    """Yield a line for each hour, or for several hours together: start, fires, most fires of a minute, and a bar."""
    step = 60 * ceil(len(found.minutes) / 60 / _BARS)
    parts = [found.minutes[place : place + step] for place in range(0, len(found.minutes), step)]
    most = max(map(sum, parts))
    for place, part in enumerate(parts):
        begin = found.start + place * timedelta(minutes=step)
        yield begin, sum(part), max(part), "#" * ceil(sum(part) * _WIDTH / most)
