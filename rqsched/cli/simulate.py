"""Command simulate: a year, or any span, of what is stored or of a file, before it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from math import ceil, inf
from pathlib import Path
from typing import Annotated

import typer

from rqsched.api import simulating
from rqsched.api.simulating import Progress, Wanted, usable_processes, wanted_of
from rqsched.api.simulation_entries import Entry, declared, stored
from rqsched.chain.runtime import Runtime
from rqsched.cli import arguments, schedule_file
from rqsched.cli.command import DIFFERENT, Session, command
from rqsched.cli.output import Writer, notice, progress_bar
from rqsched.cli.simulation_page import page
from rqsched.cli.simulation_text import (
    BEHIND,
    LIMIT,
    NIGHT,
    QUEUE,
    SCHEDULE,
    WHY,
    behind_rows,
    from_to,
    limit_row,
    makers,
    night_rows,
    outcome_in_words,
    queue_row,
    schedule_rows,
    seconds,
)
from rqsched.clock import SystemClock
from rqsched.core.option_table import require_id
from rqsched.core.simulation_comparison import Comparison, LimitMoved, Moved, QueueMoved
from rqsched.core.simulation_comparison import compare as compared
from rqsched.core.simulation_report import Simulation, Stretch
from rqsched.errors import InvalidInputError

app = typer.Typer(add_completion=False)
_LINES, _WIDTH, _ROWS = 28, 40, 20
"""Lines of the picture at most, the characters of its longest bar, and the rows of a table of schedules."""

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[OLD] [FILE]",
        exists=True,
        dir_okay=False,
        help="A file of `rqsched sync`; default: what is stored. With --compare the one before it, too.",
    ),
]


@command(app)
def simulate(
    session: Session,
    files: Files = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="INSTANT", help="Where the span begins; default now.")
    ] = None,
    until: Annotated[
        str, typer.Option("--until", metavar="INSTANT|SPAN", help="Where it ends, or how long it is.")
    ] = "365d",
    workers: Annotated[
        str | None,
        typer.Option("--workers", metavar="QUEUE=N,...", help="So many attempts at once; other queues: any number."),
    ] = None,
    duration: Annotated[
        list[str] | None,
        typer.Option(
            "--duration",
            metavar="[NAME=]SPAN",
            help="How long attempts take of which nothing is measured; those of a schedule or workflow in any case.",
        ),
    ] = None,
    failure_rate: Annotated[
        str | None,
        typer.Option("--failure-rate", metavar="RATE", help="Such as 2% of all attempts; default what was measured."),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--targets",
            metavar="NAME=N",
            help="How many targets a run of a schedule or workflow has; default as lately.",
        ),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option("--measured", help="For a file: read from the database how long runs of the same ids took."),
    ] = False,
    every: Annotated[bool, typer.Option("--all-namespaces", help="Every namespace: queues carry all.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Say what FILE moves against OLD, or against what is stored.")
    ] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="WHAT",
            help="Exit code 6 when the change does this: `overlaps`, `behind`, `fires=20%`, `peak=20%`, `wait=60s`.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", dir_okay=False, help="Write a picture: one HTML file, also to print.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="What is drawn is a hash of it.")] = 0,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Default: as many as there are processors.")
    ] = None,
) -> None:
    """Simulate a year or any span: fires, overlaps, waits for workers and changes of clocks, before they happen."""
    folder = Path() if html is None else html.parent
    for is_wrong, option, said in (
        (every and (files or session.namespace is not None), "--all-namespaces",
         "goes with neither a file nor --namespace; give one of them"),
        (measured and not files, "--measured", "is for a file, and what is stored is always measured; leave it out"),
        (compare and not files, "--compare", "needs a file; name the new one, or the old one and the new one"),
        (fail_on and not compare, "--fail-on", "is for --compare; add that"),
        (len(files or ()) > 1 + compare, "FILE", "is one file; name one, or with --compare two"),
        (not folder.is_dir(), "--html", f"{folder} is no folder; make it, or name a file of another"),
    ):  # fmt: skip
        if is_wrong:
            raise InvalidInputError(option, said)
    limits = [_limit(text) for text in fail_on or ()]
    is_stored = not files or measured or (compare and len(files) == 1)
    with ExitStack() as stack:
        if not is_stored:  # no server is asked
            unused = {"database_url": "sqlite://", "redis_url": "redis://unused:6379/0"}  # none is started, either
            runtime = Runtime(session.settings.model_copy(update=unused))
            stack.callback(runtime.close)
            runtime.imports.owe(None)
            runtime.imports.require()
            now = SystemClock().now()
        else:
            runtime = session.scheduler.runtime
            now = runtime.now()
        wanted = _wanted(now, start, until, workers, duration, failure_rate, targets, seed, processes)
        named = None if every else require_id(session.named, "namespace")
        given = [
            declared(runtime, there, named or "", wanted.start, is_measured=is_stored, calendars=calendars)
            for there, calendars in map(schedule_file.read, files or ())
        ]
        given = given if len(given) == 1 + compare else [stored(runtime, named), *given]
    beside = [one for some in given for one in some]
    with _named_as_typed():
        *old, found = [_simulate(some, wanted, now, session.settings.env, beside) for some in given]
    if html is not None:
        name = files[-1].name if files else named or "all namespaces"
        _write(html, page(found, name))
    if not old:
        _show(session.writer, found)
        return
    comparison = compared(old[0], found)
    broken = [text for limit in limits if (text := limit(comparison))]
    _show_comparison(session.writer, comparison, found, broken)
    if broken:
        raise typer.Exit(DIFFERENT)


def _wanted(
    now: datetime,
    start: str | None,
    until: str,
    workers: str | None,
    duration: Sequence[str] | None,
    failure_rate: str | None,
    targets: Sequence[str] | None,
    seed: int,
    processes: int | None,
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
            targets=None if targets is None else _numbers("--targets", targets, "nightly=100"),
            seed=seed,
            processes=processes or usable_processes(),
        )


_OPTIONS = {"start": "--from", "end": "--until", "durations": "--duration"}
"""The options that Python calls otherwise."""


@contextmanager
def _named_as_typed() -> Iterator[None]:
    """Let an error name the option that was typed, and not the argument of Python."""
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
        raise InvalidInputError(option, "names one twice; give its number once")
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
        if 0 <= part < inf:  # a number that is none compares with nothing, so that --fail-on would never fail
            return part
    except ValueError:
        pass
    raise InvalidInputError(option, f"{text!r} is not a part; write 2% or 0.02")


def _limit(text: str) -> Callable[[Comparison], str | None]:
    """Read what a change may not do; returns what says how it does that."""
    kind, _, value = text.partition("=")
    if text == "overlaps":
        return lambda found: _names_of("runs overlap that did not", found.new_overlaps)
    if text == "behind":
        return lambda found: _names_of("no longer keeps up", found.falls_behind)
    if kind in {"fires", "peak"} and value:
        most = _part("--fail-on", value)
        return lambda found: _grown(kind, found.fires_a_day if kind == "fires" else found.highest_minute, most)
    if kind == "wait" and value:
        span = arguments.span("--fail-on", value).total_seconds()
        return lambda found: _waits(found, span)
    raise InvalidInputError("--fail-on", f"{text!r} is none; write overlaps, behind, fires=20%, peak=20% or wait=60s")


def _names_of(what: str, names: Sequence[str]) -> str | None:
    return f"{what}: {', '.join(names)}" if names else None


def _grown(kind: str, moved: Moved, most: float) -> str | None:
    what = "fires a day" if kind == "fires" else "the highest minute"
    return f"{what}: {_figures(moved)}, more than {most:.0%}" if moved.growth > most else None


def _waits(found: Comparison, span: float) -> str | None:
    longer = [
        name for name, one in found.lines() if one.wait_p95_seconds.after > max(span, one.wait_p95_seconds.before)
    ]
    return f"95 of 100 attempts wait longer than {seconds(span)} on {', '.join(longer)}" if longer else None


class _Bar(Progress):
    """A bar in a terminal."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def begin(self, fires: int) -> None:
        """Show how many there will be."""
        self._advance = self._stack.enter_context(progress_bar("Simulating fires", fires))

    def advance(self, fires: int) -> None:
        """Move it."""
        self._advance(fires)


def _simulate(entries: Sequence[Entry], wanted: Wanted, now: datetime, env: str, beside: Sequence[Entry]) -> Simulation:
    with ExitStack() as stack:
        try:
            return simulating.simulate(entries, wanted, now=now, env=env, progress=_Bar(stack), beside=beside)
        except KeyboardInterrupt:
            stack.close()
            notice("Stopped; nothing was written.")
            raise typer.Exit(130) from None


def _show(writer: Writer, found: Simulation) -> None:
    plain = found.to_dict()
    if writer.for_programs([plain], plain):
        return
    most = max((day.peak_fires for day in found.days), default=0)
    how = "each was decided" if found.is_decided else "they were counted"
    writer.say(
        f"{found.fires} fires of {len(found.schedules)} schedules from {from_to(found)}, "
        f"at most {most} a minute; {how}."
    )
    if found.fires:
        writer.say("")
        writer.table(("From", "Fires", "Most a minute", ""), _bars(found))
        if found.peaks:
            writer.say("")
            writer.table(("Peak", "Fires", "Schedules"), ((one.at, one.fires, makers(one)) for one in found.peaks))
    for stretch in found.stretches:
        _show_stretch(writer, stretch)
    _show_nights(writer, found)
    _show_basis(writer, found)


def _show_basis(writer: Writer, found: Simulation) -> None:
    """Write what a simulation leaves out and rests on."""
    if found.not_simulated:
        writer.say("")
        writer.table(("Schedule", "Not simulated"), ((one.name, one.what) for one in found.not_simulated))
    writer.say("")
    for text in (*found.assumed, f"Seed {found.seed}."):
        writer.say(text)


def _show_comparison(writer: Writer, found: Comparison, new: Simulation, broken: Sequence[str]) -> None:
    plain = found.to_dict() | {"broken": list(broken), "simulation": new.to_dict()}
    if writer.for_programs([plain], plain):
        return
    writer.say(f"Fires a day: {_figures(found.fires_a_day)}. Highest minute: {_figures(found.highest_minute)}.")
    if found.schedules:
        rows = (
            (one.name, one.outcome, ", ".join(one.fields), _figures(one.fires_a_day), _figures(one.overlapped))
            for one in found.schedules
        )
        writer.say("")
        writer.table(("Schedule", "Is", "Differs in", "Fires a day", "Overlaps"), rows)
    if found.new_overlaps:
        writer.say("")
        writer.say(f"Runs overlap that did not: {', '.join(found.new_overlaps)}.")
    for columns, lines in (
        (("Queue", *_MOVED), [(one.queue, *_moved_cells(one)) for one in found.queues]),
        (("Limit", *_MOVED, "Allows", "Rate waited for"), [_limit_cells(one) for one in found.limits]),
    ):
        if lines:
            writer.say("")
            writer.table(columns, lines)
    if not (found.schedules or found.queues or found.limits):
        writer.say("Nothing else moves.")
    _show_basis(writer, new)
    for text in broken:
        notice(f"Refused: {text}.")


_MOVED = ("Wait p95", "Before", "After")


def _moved_cells(one: QueueMoved | LimitMoved) -> tuple[str, str, str]:
    kept = {True: "keeps up", False: "falls behind"}
    waits = f"{seconds(one.wait_p95_seconds.before)} -> {seconds(one.wait_p95_seconds.after)}"
    return waits, kept[one.kept_up], kept[one.keeps_up]


def _limit_cells(one: LimitMoved) -> tuple[str, ...]:
    allows = one.allows or "-" if one.allows == one.allowed else f"{one.allowed or '-'} -> {one.allows or '-'}"
    held = f"{one.held_by_rate.before:.0%} -> {one.held_by_rate.after:.0%}"
    return one.limit, *_moved_cells(one), allows, held


def _figures(moved: Moved) -> str:
    if moved.before == moved.after:
        return f"{moved.after:g}"
    growth = f" ({moved.growth:+.0%})" if moved.before else ""
    return f"{moved.before:g} -> {moved.after:g}{growth}"


def _bars(found: Simulation) -> Iterator[tuple[object, ...]]:
    """Yield a line for each day, or for several: when it begins, its fires, its highest minute, and a bar."""
    step = ceil(len(found.days) / _LINES)
    parts = [found.days[place : place + step] for place in range(0, len(found.days), step)]
    most = max(sum(day.fires for day in part) for part in parts)
    for part in parts:
        fires = sum(day.fires for day in part)
        highest = max(day.peak_fires for day in part)
        yield part[0].start, fires, highest, "#" * ceil(fires * _WIDTH / most)


def _show_stretch(writer: Writer, stretch: Stretch) -> None:
    writer.say("")
    writer.say(f"{WHY[stretch.why]}, {from_to(stretch)}: {outcome_in_words(stretch.total)}.")
    writer.say("")
    writer.table(QUEUE, map(queue_row, stretch.queues))
    if stretch.limits:
        writer.say("")
        writer.table(LIMIT, map(limit_row, stretch.limits[:_ROWS]))
        _say_more(writer, stretch.limits)
    if behind := behind_rows(stretch):
        writer.say("")
        writer.table(BEHIND, behind)
    if told := schedule_rows(stretch):
        writer.say("")
        writer.table(SCHEDULE, told[:_ROWS])
        _say_more(writer, told)


def _show_nights(writer: Writer, found: Simulation) -> None:
    if rows := night_rows(found):
        writer.say("")
        writer.table(NIGHT, rows[:_ROWS])
        _say_more(writer, rows)


def _say_more(writer: Writer, rows: Sequence[object]) -> None:
    if len(rows) > _ROWS:
        writer.say(f"and {len(rows) - _ROWS} more; -o json has all.")
