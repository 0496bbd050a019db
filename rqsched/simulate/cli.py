"""The group `forecast`, and its command `simulate`: simulate stored schedules or a file for a year or another span."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from math import ceil, isnan
from pathlib import Path
from typing import Annotated

import typer

from rqsched.cli import arguments
from rqsched.cli.command import Session, command
from rqsched.cli.output import Writer, notice, progress_bar
from rqsched.clock import SystemClock
from rqsched.errors import InvalidInputError
from rqsched.features.declarations import schedule_file
from rqsched.features.list import make_runtime
from rqsched.kernel.decide.options import require_id
from rqsched.kernel.decide.results import number_of
from rqsched.simulate import api as simulating
from rqsched.simulate import load_cli, upcoming_cli
from rqsched.simulate.api import Progress, Wanted, wanted_of
from rqsched.simulate.entries import Entry, declared, stored
from rqsched.simulate.page import page
from rqsched.simulate.report import Simulation, SimulationOutcome
from rqsched.simulate.text import (
    BEHIND,
    LIMIT,
    NIGHT,
    QUEUE,
    SCHEDULE,
    behind_rows,
    from_to,
    limit_row,
    makers,
    night_rows,
    outcome_in_words,
    queue_row,
    schedule_rows,
)

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show the next fires, the load, or a simulated year."
)
app.add_typer(upcoming_cli.app)
app.add_typer(load_cli.app)
_LINES, _WIDTH, _ROWS = 28, 40, 20
"""The maximum number of lines of the chart, the number of characters of its longest bar, and the maximum number of rows
of a table of schedules."""


@command(app)
def simulate(
    session: Session,
    file: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="A file of `rqsched sync`; default: the stored schedules."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="INSTANT", help="The start of the span; default now.")
    ] = None,
    until: Annotated[
        str, typer.Option("--until", metavar="INSTANT|SPAN", help="The end of the span, or its length.")
    ] = "365d",
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="QUEUE=N,...",
            help="How many attempts a queue executes at once; other queues: any number.",
        ),
    ] = None,
    duration: Annotated[
        list[str] | None,
        typer.Option(
            "--duration",
            metavar="[NAME=]SPAN",
            help="How long attempts take if they are not measured; with NAME, those of a schedule or workflow always.",
        ),
    ] = None,
    failure_rate: Annotated[
        str | None,
        typer.Option(
            "--failure-rate",
            metavar="RATE",
            help="The fraction of attempts that fail, such as 2%; default: as measured.",
        ),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option(
            "--measured", help="For a file: read the durations of schedules with the same ids from the database."
        ),
    ] = False,
    every: Annotated[bool, typer.Option("--all-namespaces", help="Simulate every namespace.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", dir_okay=False, help="Write the report with charts to an HTML file.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The seed of all random values.")] = 0,
) -> None:
    """Simulate a year or another span: show future fires, overlaps, waits for workers and clock changes."""
    folder = Path() if html is None else html.parent
    for is_wrong, option, said in (
        (every and (file is not None or session.namespace is not None), "--all-namespaces",
         "cannot be combined with a file or --namespace; give one of them"),
        (measured and file is None, "--measured", "needs a file; stored schedules are always measured; leave it out"),
        (not folder.is_dir(), "--html", f"{folder} is no folder; create it, or choose another"),
    ):  # fmt: skip
        if is_wrong:
            raise InvalidInputError(option, said)
    with ExitStack() as stack:
        if file is not None and not measured:  # this needs no database and no Redis
            unused = {"database_url": "sqlite://", "redis_url": "redis://unused:6379/0"}  # connects to nothing
            runtime = make_runtime(session.settings.model_copy(update=unused))
            stack.callback(runtime.close)
            runtime.imports.owe(None)
            runtime.imports.require()
            now = SystemClock().now()
        else:
            runtime = session.scheduler.runtime
            now = runtime.now()
        wanted = _wanted(now, start, until, workers, duration, failure_rate, seed)
        named = None if every else require_id(session.named, "namespace")
        if file is None:
            entries = stored(runtime, named)
        else:
            there, calendars = schedule_file.read(file)
            entries = declared(runtime, there, named or "", wanted.start, is_measured=measured, calendars=calendars)
    with _named_as_typed():
        found = _simulate(entries, wanted, now, session.settings.environment)
    if html is not None:
        _write(html, page(found, file.name if file is not None else named or "all namespaces"))
    _show(session.writer, found)


def _wanted(
    now: datetime,
    start: str | None,
    until: str,
    workers: str | None,
    duration: Sequence[str] | None,
    failure_rate: str | None,
    seed: int,
) -> Wanted:
    begins = now if start is None else arguments.instant("--from", start)
    usual, named = _durations(duration or ())
    with _named_as_typed():
        return wanted_of(
            now,
            start=begins,
            end=arguments.instant_ahead("--until", until, begins),
            workers=None if workers is None else _numbers("--workers", workers.split(","), "default=4,slow=1"),
            duration=usual,
            durations=named,
            failure_rate=None if failure_rate is None else _part("--failure-rate", failure_rate),
            seed=seed,
        )


_OPTIONS = {"start": "--from", "end": "--until", "durations": "--duration"}
"""The options that are not named after their Python arguments."""


@contextmanager
def _named_as_typed() -> Iterator[None]:
    """Make errors name the option of the command line instead of the Python argument."""
    try:
        yield
    except InvalidInputError as error:
        name, _, _ = error.field.partition(".")
        if name not in Wanted._fields:
            raise
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        raise type(error)(option, error.reason) from None


def _numbers(option: str, texts: Sequence[str], example: str) -> dict[str, int]:
    given = [part.strip() for part in texts if part.strip()]
    found = arguments.pairs(option, given)
    if len(found) < len(given):
        raise InvalidInputError(option, "has a name twice; give each name once")
    if not found:
        raise InvalidInputError(option, f"is blank; write {example}")
    for name, number in found.items():
        if not number.isascii() or not number.isdigit():
            raise InvalidInputError(option, f"{name}={number!r} is not a whole number; write {example}")
    return {name: int(number) for name, number in found.items()}


def _durations(texts: Iterable[str]) -> tuple[timedelta | None, dict[str, timedelta]]:
    usual, named = None, dict[str, timedelta]()
    for text in texts:
        name, is_named, value = text.rpartition("=")
        if name in named:
            raise InvalidInputError("--duration", f"is given twice for {name}; give one")
        if is_named:
            named[name] = arguments.span("--duration", value)
        elif usual is None:
            usual = arguments.span("--duration", value)
        else:
            raise InvalidInputError("--duration", "is given twice without a name; give one, and NAME=SPAN for others")
    return usual, named


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInputError("--html", f"{path} cannot be written ({error.strerror}); name another file") from None


def _part(option: str, text: str) -> float:
    try:
        part = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        if not isnan(part):
            return part
    except ValueError:
        pass
    raise InvalidInputError(option, f"{text!r} is not a fraction; write 2% or 0.02")


class _Bar(Progress):
    """A progress bar in a terminal."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def begin(self, fires: int) -> None:
        """Show the bar for a total number of fires."""
        self._advance = self._stack.enter_context(progress_bar("Simulating fires", fires))

    def advance(self, fires: int) -> None:
        """Advance the bar."""
        self._advance(fires)


def _simulate(entries: Sequence[Entry], wanted: Wanted, now: datetime, env: str) -> Simulation:
    with ExitStack() as stack:
        try:
            return simulating.simulate(entries, wanted, now=now, env=env, progress=_Bar(stack))
        except KeyboardInterrupt:
            stack.close()
            notice("Stopped; nothing was written.")
            raise typer.Exit(130) from None


def _show(writer: Writer, found: Simulation) -> None:
    plain = found.to_dict()
    if writer.for_programs([plain], plain):
        return
    most = max((day.peak_fires for day in found.days), default=0)
    fires = f"{number_of(found.fires, 'fire')} of {number_of(len(found.schedules), 'schedule')}"
    writer.say(f"{fires} from {from_to(found)}, at most {most} a minute.")
    if found.fires:
        writer.say("")
        writer.table(("From", "Fires", "Most a minute", ""), _bars(found))
        if found.peaks:
            writer.say("")
            writer.table(("Peak", "Fires", "Schedules"), ((one.at, one.fires, makers(one)) for one in found.peaks))
    _show_outcome(writer, found.outcome)
    if rows := night_rows(found):
        writer.say("")
        writer.table(NIGHT, rows[:_ROWS])
        _say_more(writer, rows)
    if found.not_simulated:
        writer.say("")
        writer.table(("Schedule", "Not simulated"), ((one.name, one.what) for one in found.not_simulated))
    writer.say("")
    for text in (*found.assumed, f"Seed {found.seed}."):
        writer.say(text)


def _bars(found: Simulation) -> Iterator[tuple[object, ...]]:
    """Yield a line for each day, or for several days together: start, fires, the most fires of a minute, and a bar."""
    step = ceil(len(found.days) / _LINES)
    parts = [found.days[place : place + step] for place in range(0, len(found.days), step)]
    most = max(sum(day.fires for day in part) for part in parts)
    for part in parts:
        fires = sum(day.fires for day in part)
        highest = max(day.peak_fires for day in part)
        yield part[0].start, fires, highest, "#" * ceil(fires * _WIDTH / most)


def _show_outcome(writer: Writer, outcome: SimulationOutcome) -> None:
    writer.say("")
    writer.say(f"{outcome_in_words(outcome.total)}.")
    writer.say("")
    writer.table(QUEUE, map(queue_row, outcome.queues))
    if outcome.limits:
        writer.say("")
        writer.table(LIMIT, map(limit_row, outcome.limits[:_ROWS]))
        _say_more(writer, outcome.limits)
    if behind := behind_rows(outcome):
        writer.say("")
        writer.table(BEHIND, behind)
    if told := schedule_rows(outcome):
        writer.say("")
        writer.table(SCHEDULE, told[:_ROWS])
        _say_more(writer, told)


def _say_more(writer: Writer, rows: Sequence[object]) -> None:
    if len(rows) > _ROWS:
        writer.say(f"and {len(rows) - _ROWS} more; -o json has all.")
