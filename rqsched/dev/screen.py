"""The screen of `rqsched dev`: schedules with their next times, runs with their outcomes, processes, next steps.

In a terminal each snapshot replaces the previous one. Otherwise changes are written as lines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rqsched.api.scheduler import Scheduler
from rqsched.kernel.decide.model import Run, RunKind, RunStatus, Schedule, tone_of
from rqsched.kernel.queries import runs as run_queries
from rqsched.run.supervisor import Child
from rqsched.when.duration import format_short
from rqsched.when.words import in_words

MOST_SCHEDULES = 12
"""The maximum number of schedules that are shown."""
MOST_RUNS = 40
"""The maximum number of runs that are read for one snapshot."""
_COLOURS = {"ok": "green", "info": "cyan", "warn": "yellow", "bad": "bold red", "idle": ""}
"""The colour of each tone."""
_ROLES = {"dispatcher": "fires links", "runs": "executes workflows", "web": "serves the dashboard"}
_FURNITURE = 7
"""The lines of a snapshot besides schedules, runs and next steps: titles, blank lines, and one spare line."""
_LEAST_RUNS = 3
"""How many runs are shown at least, even if some schedules then do not fit."""


@dataclass(frozen=True, slots=True)
class Location:
    """The files, the dashboard and the command line of this `rqsched dev`."""

    data_dir: Path
    """The folder of SQLite and the embedded Valkey."""
    log_path: Path
    """The file of the worker's log."""
    command: str
    """The command that calls `rqsched` from the working directory."""
    dashboard: str | None
    """The address of the dashboard; None if its extra is not installed."""
    environment: str
    """Assignments of variables to put before the command, with a blank at the end; empty for the default folder."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the screen shows at one moment."""

    now: datetime
    """When the snapshot was read, by the scheduler's clock."""
    schedules: Sequence[Schedule]
    """The first MOST_SCHEDULES schedules in the order of creation."""
    runs: Sequence[tuple[str, Run]]
    """The newest runs, the newest first, each with the id of its schedule."""
    children: Sequence[Child]
    """The processes of the worker."""
    is_ending: bool = False
    """Whether `rqsched dev` is ending, and waits for running jobs."""


def read_snapshot(scheduler: Scheduler, children: Sequence[Child], *, is_ending: bool) -> Snapshot:
    """Read a snapshot, in two short reads."""
    namespace = scheduler.settings.namespace
    handles = scheduler.list(limit=MOST_SCHEDULES).items
    runs = scheduler.runtime.database.read(lambda connection: run_queries.recent_runs(connection, namespace, MOST_RUNS))
    return Snapshot(scheduler.runtime.now(), [handle.state for handle in handles], runs, children, is_ending)


class Screen:
    """The live snapshot of a terminal, or plain lines of changes."""

    def __init__(self, location: Location, console: Console) -> None:
        self._location = location
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._log = EventLog(location)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot | None) -> None:
        """Show a snapshot; None keeps the previous one."""
        if snapshot is None:
            return
        if self._live is not None:
            self._live.update(
                draw(snapshot, self._location, width=self._console.width, height=self._console.height), refresh=True
            )
        else:
            for line in self._log.lines(snapshot):
                self._console.print(line, soft_wrap=True, markup=False, highlight=False, emoji=False)


def draw(snapshot: Snapshot, location: Location, *, width: int, height: int) -> RenderableType:
    """Draw a snapshot that fits a terminal with `width` columns and `height` lines."""
    ending = "waits for running jobs; Ctrl-C again kills them" if snapshot.is_ending else "Ctrl-C ends it"
    title = Text.assemble(("rqsched dev", "bold"), f"   {_clock(snapshot.now)} UTC   {ending}")
    steps = _next_steps(snapshot, location)
    room = height - _FURNITURE - sum(max(1, -(-step.cell_len // width)) for step in steps)
    schedules = snapshot.schedules[: max(room - _LEAST_RUNS, 1)]
    runs = [(name, run) for name, run in snapshot.runs if run.status is not RunStatus.BUFFERED]
    return Group(
        title,
        Text(),
        _schedules(snapshot, schedules, width),
        Text(),
        _runs(runs[: max(room - len(schedules), 1)], width),
        Text(),
        *steps,
    )


def _schedules(snapshot: Snapshot, schedules: Sequence[Schedule], width: int) -> Table:
    table = _table("SCHEDULE", "WHEN", "NEXT", "RUNS", last="LAST OUTCOME")
    for schedule in schedules:
        run = next((run for _, run in snapshot.runs if run.schedule_uid == schedule.uid), None)
        table.add_row(
            _plain(schedule.schedule_id, width // 4),
            _plain(in_words(schedule.spec), width * 3 // 10),
            _until(schedule, snapshot.now),
            str(schedule.run_count),
            _outcome(run, snapshot.now) if run else Text("-"),
        )
    return table


def _runs(runs: Sequence[tuple[str, Run]], width: int) -> Table:
    table = _table("FIRED", "SCHEDULE", "LATE", "ATTEMPT", "STATUS", "TOOK", last="RESULT")
    for name, run in runs:
        table.add_row(
            _clock(run.created_at),
            _plain(name, width // 5),
            _late(run),
            str(run.attempt),
            _coloured(run.shown_status),
            _took(run),
            _plain(_said(run), width),
        )
    return table


def _next_steps(snapshot: Snapshot, location: Location) -> list[Text]:
    children = []
    for child in snapshot.children:
        again = f", restarted {child.restarts}x" if child.restarts else ""
        children.append(Text(f"  kill -9 {child.pid:<12} # {child.role}: {_ROLES[child.role]}{again}; it comes back"))
    dashboard = [Text(f"The dashboard: {location.dashboard}", style="bold")] if location.dashboard else []
    return [
        *dashboard,
        Text("Try next, in a second terminal:", style="bold"),
        *(Text(f"  {command}") for command in _commands(snapshot, location)),
        *children,
        Text(f"  tail -f {location.log_path}", style="dim"),
    ]


def _commands(snapshot: Snapshot, location: Location) -> list[str]:
    """Return commands for the user to copy. If there is no schedule, the first command creates one."""
    call = f"{location.environment}{location.command}"
    if not snapshot.schedules:
        return [f"{call} create clock time.time --every 5s", f"{call} list"]
    return [f"{call} list", f"{call} describe {snapshot.schedules[0].schedule_id}"]


def _table(*columns: str, last: str) -> Table:
    """Return a table whose last column gets the remaining width."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for name in columns:
        table.add_column(name, no_wrap=True)
    table.add_column(last, no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _coloured(status: str) -> Text:
    return Text(status, style=_COLOURS[tone_of(status)])


def _next(schedule: Schedule, now: datetime) -> str:
    if schedule.due_at is None:
        return "after this run" if schedule.awaiting_run_uid else "-"
    return f"{_clock(schedule.due_at)} ({_in(schedule.due_at, now)})"


def _until(schedule: Schedule, now: datetime) -> Text:
    """Return the time until a schedule fires, or why it does not."""
    if schedule.due_at is not None:
        return Text(_in(schedule.due_at, now))
    return Text("after run") if schedule.awaiting_run_uid else _coloured(schedule.status.value)


def _in(instant: datetime, now: datetime) -> str:
    seconds = max((instant - now).total_seconds(), 0)
    return f"in {seconds:.0f} s" if seconds < 120 else f"in {format_short(timedelta(minutes=seconds // 60))}"


def _outcome(run: Run, now: datetime) -> Text:
    text = _coloured(run.shown_status)
    if run.status is RunStatus.RETRYING and run.retry_at is not None:
        text.append(f", attempt {run.attempt + 1} {_in(run.retry_at, now)}")
    elif run.attempt > 1:
        text.append(f" at attempt {run.attempt}")
    return text


def _late(run: Run) -> str:
    if run.kind is not RunKind.SCHEDULED:
        return run.kind.value
    return _span(run.created_at - (run.due_at or run.occurrence_at))


def _took(run: Run) -> str:
    return _span(run.ended_at - run.started_at) if run.started_at and run.ended_at else ""


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds * 1000:.0f} ms" if abs(seconds) < 1 else f"{seconds:.1f} s"


def _said(run: Run) -> str:
    if run.status is RunStatus.SUCCEEDED:
        return run.result or ""
    why = run.blocked_reason or run.error
    return why.splitlines()[0] if why else ""


def _clock(instant: datetime) -> str:
    return f"{instant:%H:%M:%S}"


def _plain(text: str, most: int) -> str:
    """Shorten a text, and remove characters that could move the cursor."""
    cut = text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return "".join(character if character.isprintable() else " " for character in cut)


class EventLog:
    """Changes since the previous snapshot, as lines."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._began_at: datetime | None = None
        self._known: dict[str, tuple[RunStatus, int]] = {}
        self._pids: dict[str, int] = {}
        self._is_ending = False

    def lines(self, snapshot: Snapshot) -> list[str]:
        """Return lines about the changes. The lines of the first snapshot show addresses and next steps."""
        lines = self._first(snapshot) if self._began_at is None else []
        for child in snapshot.children:
            if self._pids.get(child.role) != child.pid:
                came = "came back" if child.role in self._pids else "started"
                self._pids[child.role] = child.pid
                lines.append(f"{child.role} ({_ROLES[child.role]}) {came} with pid {child.pid}")
        lines += [line for name, run in reversed(snapshot.runs) for line in self._run(name, run, snapshot.now)]
        if snapshot.is_ending and not self._is_ending:
            self._is_ending = True
            lines.append("ending: waiting for running jobs")
        return lines

    def _first(self, snapshot: Snapshot) -> list[str]:
        self._began_at = snapshot.now
        self._known = {run.uid: (run.status, run.attempt) for _, run in snapshot.runs}
        schedules = [
            f"schedule {one.schedule_id}: {_plain(in_words(one.spec), 60)}, next {_next(one, snapshot.now)}"
            for one in snapshot.schedules
        ]
        commands = ", ".join(_commands(snapshot, self._location))
        hints = [f"try next, in a second terminal: {commands}, kill -9 a pid below"]
        dashboard = [f"dashboard: {self._location.dashboard}"] if self._location.dashboard else []
        return [f"rqsched dev (pid {os.getpid()}): data in {self._location.data_dir}", *dashboard, *schedules, *hints]

    def _run(self, name: str, run: Run, now: datetime) -> list[str]:
        state = run.status, run.attempt
        before = self._known.get(run.uid)
        if before == state:
            return []
        self._known[run.uid] = state
        how = f", late by {_late(run)}" if run.kind is RunKind.SCHEDULED else f" ({run.kind.value})"
        fired = [] if before else [f"{_clock(run.created_at)} {name} fired{how}"]
        is_attempted = run.status not in {RunStatus.PENDING, RunStatus.RUNNING}
        return fired + ([f"{_clock(run.ended_at or now)} {name} {_sentence(run)}"] if is_attempted else [])


def _sentence(run: Run) -> str:
    words = [f"attempt {run.attempt}: {run.status.value}"]
    if took := _took(run):
        words.append(f"after {took}")
    if run.status is RunStatus.RETRYING and run.retry_at is not None:
        words.append(f"again at {_clock(run.retry_at)}")
    said = _plain(_said(run), 120)
    return ", ".join(words) + (f": {said}" if said else "")
