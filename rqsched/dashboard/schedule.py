"""The page of one schedule: its definition, history, reasons and operations; and the page of one of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice, pairwise
from math import ceil
from typing import Any, NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched.api import backfills
from rqsched.api import events as event_queries
from rqsched.api import hours as run_hours
from rqsched.api import runs as run_queries
from rqsched.api import upstreams as upstream_ends
from rqsched.api.backfills import Backfill
from rqsched.api.build_description import iter_upcoming
from rqsched.api.cursors import bind_cursor, unbind_cursor
from rqsched.api.database import Connection, find_freezes
from rqsched.api.hours import A_DAY, Columns, HourKey, day_of, hour_of
from rqsched.api.limits import told_of_line, told_of_targets
from rqsched.api.run_handle import RunHandle
from rqsched.api.runs import RunOutline, Streak
from rqsched.api.states import ENDED_IN_VAIN, OPEN
from rqsched.api.values import RunJobId, is_uid, iso_utc
from rqsched.config import LOGS_FIELD
from rqsched.dashboard import charts
from rqsched.dashboard.actions import equivalent_of_run, offered
from rqsched.dashboard.editor import overwritten_by
from rqsched.dashboard.rendering import Omission, exact, gap_of, under_freezes
from rqsched.dashboard.visit import Visit
from rqsched.dashboard.waits import waits_of
from rqsched.errors import InvalidInputError, InvalidSpecError
from rqsched.types import Answer, AuditRecord, Freeze, Page, Run, Schedule
from rqsched.when.spec import Spec
from rqsched.when.steps import answered

WAITING = ("pending", "buffered", "retrying")
"""The statuses of a run whose next attempt has not begun."""
RUNS = 20
"""How many runs the page shows."""
EVENTS = 20
"""How many audit events the page shows."""
NEWEST = "newest"
"""A word that may stand for an instant: it means the newest occurrence up to now."""
_CHARTED = 60
_YEAR = timedelta(days=53 * 7)
_SPREAD_DAYS, _LEAST_DAYS, _SPREAD_HOURS, _ENOUGH_DAYS = 60, 14, 48, 3
"""Durations are shown for 14 to 60 days. If the schedule has run on fewer than three days, they are shown for 48 hours.
"""
_BACKFILL_COLUMNS = 120
_UPCOMING = 5
_SEARCHED = 2_000
_REASONS = 6
_BACKFILLS = 3
MOST_OF_BACKFILL = 20_000
"""Runs of one backfill are counted up to this number."""
_ENOUGH = 10
"""How many runs must have ended before a rate is computed."""
_RUN_EVENTS = 100
_FAILED_TARGETS = 50
_MOST_DOWNSTREAM = 20
_TICK = timedelta(microseconds=1)
_AROUND = timedelta(minutes=1)
"""How much earlier and later than a run its logs are searched, because clocks differ."""
_LOOKED_BACK = timedelta(days=366)
"""How far back the page searches for the previous occurrence."""
_EXPECTED = frozenset({Answer.RAN, Answer.WAITS, Answer.FIRES, Answer.SKIPPED, Answer.MISSED})
"""Answers that other parts of the page show already. They are given only if the viewer asks."""


class StateBox(NamedTuple):
    """A state, with the position of its box in the diagram."""

    name: str
    """Its name."""
    x: int
    """Its left edge."""
    y: int
    """Its upper edge."""
    steps: tuple[tuple[str, str], ...]
    """The transitions from this state: the label and the next state of each."""


class Arrow(NamedTuple):
    """A transition from one state to another."""

    line: str
    """The SVG path of its line. The line ends at the arrow's head."""
    label: str
    """Its text; empty if the label stands at another arrow."""
    x: int
    """The left edge of its label."""
    y: int
    """The base line of its label."""


BOX = (76, 26)
"""The width and height of a state's box."""
_DELETE = ("delete", "deleted")
_ENDS = (("nothing more to start", "done"), ("a run failed for good", "dead"), _DELETE)
STATES = (
    StateBox("active", 14, 12, (("pause", "paused"), *_ENDS)),
    StateBox("paused", 14, 80, (("resume", "active"), *_ENDS)),
    StateBox("done", 222, 12, (("restart", "active"), _DELETE)),
    StateBox("dead", 222, 80, (("restart", "active"), _DELETE)),
    StateBox("deleted", 112, 150, ()),
)
"""Every state. Schedules in the states of the left frame fire now or later."""
ARROWS = (
    Arrow("M28 38V77", "pause", 33, 62),
    Arrow("M68 80V41", "resume", 73, 62),
    Arrow("M120 19H219", "no more runs", 140, 14),
    Arrow("M222 31H93", "restart", 158, 44),
    Arrow("M222 86L93 36", "", 0, 0),
    Arrow("M120 99H219", "failed for good", 134, 112),
    Arrow("M2 126H298M150 126V147", "delete", 156, 141),
)
"""The transitions to a state. Each begins at a state, or at a frame: then all states of the frame have it."""


def show(visit: Visit) -> Response:
    """Show one schedule."""
    handle = visit.schedule()
    schedule, zone = handle.state, visit.zone
    own_zone = ZoneInfo(schedule.spec.timezone)
    upcoming = list(islice(iter_upcoming(schedule, visit.now), _UPCOMING))
    found = visit.read(lambda connection: _read(connection, visit, schedule))
    text = visit.query("at")
    asked_in = zone if visit.query("zone") == zone.key else own_zone
    asked_at = None if text in {"", NEWEST} else visit.instant("at", text, asked_in)
    told = handle.why(asked_at)
    interval = min((later - earlier for earlier, later in pairwise(upcoming)), default=None)
    workflow = visit.scheduler.runtime.imports.find(schedule.definition.workflow)
    return visit.page(
        "schedule.html", schedule=schedule, about=handle.describe(), upcoming=upcoming,
        run_status=visit.query("run_status"), states=STATES, arrows=ARROWS, box=BOX,
        steps=next(state.steps for state in STATES if state.name == schedule.status.value),
        ui_zone=own_zone, actions=offered(visit, schedule), runs=found.runs,
        machine=() if workflow is None else workflow.steps,  # set for a state machine whose class this process knows
        events=found.events[:EVENTS],
        older_events=found.events[EVENTS - 1].sequence if len(found.events) > EVENTS else None,
        asked_at=asked_at, asked_in=asked_in, around=_neighbours(schedule.spec, told.occurrence_at or asked_at),
        stop=told if asked_at is None or schedule.is_active else handle.why(),
        answer=told if text or told.answer not in _EXPECTED else None,
        why=[under_freezes(gap, found.freezes, own_zone) for gap in found.gaps], backfills=found.backfills,
        chart=charts.durations(found.outlines, interval), spread=found.spread,
        days=charts.year(found.counts, visit.now.astimezone(zone).date(), zone),
        cells=charts.grid(found.counts, visit.now.astimezone(own_zone).date(), own_zone), grid_days=charts.GRID_DAYS,
        one_day=timedelta(days=1), stacks_of=charts.stacks_of,
        waits=waits_of(visit, found.runs.items), downstream=found.downstream,
        streak=found.streak, declared=overwritten_by(visit, schedule),
    )  # fmt: skip


def _neighbours(spec: Spec, at: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Return the occurrence before and the occurrence after an instant; None if it is not known."""
    if at is None or not spec.is_known or spec.is_from_completion or spec.after is not None:
        return None, None
    try:
        before = answered(lambda: spec.last_between(at - _LOOKED_BACK, at - _TICK, 1), otherwise=[])
        return next(iter(before), None), answered(spec.next_after, at, otherwise=None)
    except InvalidSpecError:  # a calendar of the spec was deleted
        return None, None


class BackfillRuns(NamedTuple):
    """A backfill with the progress of its runs."""

    row: Backfill
    """The backfill: its request, and how many of its occurrences have fired."""
    ended: int
    """How many runs have ended, with any outcome."""
    failed: int
    """How many of the ended runs failed or were lost."""
    running: int
    """How many runs execute."""
    waiting: int
    """How many runs wait for an attempt to begin."""
    left: timedelta | None
    """The estimated time until all runs have ended. None if too few runs have ended, or if all have."""
    stacks: list[charts.Stack]
    """A chart of its runs, each at its occurrence."""
    told: str
    """How many runs have each status, in words."""

    @property
    def is_open(self) -> bool:
        """Whether the backfill still fires occurrences, or was not stopped and has runs that have not ended."""
        return self.row.status == "running" or (self.row.status == "done" and bool(self.running + self.waiting))

    @property
    def stop(self) -> str:
        """The text of the button that stops the backfill, for its present state; empty if all runs have ended."""
        stops = self.row.status == "running"
        if self.ended + self.running + self.waiting >= MOST_OF_BACKFILL:
            return "Stop and cancel what waits" if stops else "Cancel what waits"
        if self.waiting:
            waiting = "1 run that waits" if self.waiting == 1 else f"{self.waiting} runs that wait"
            return f"Stop and cancel {waiting}" if stops else f"Cancel {waiting}"
        running = "1 run that executes" if self.running == 1 else f"{self.running} runs that execute"
        return "Stop" if stops else f"Cancel {running}" if self.running else ""


def _describe(connection: Connection, visit: Visit, backfill: Backfill, counts: Mapping[str, int]) -> BackfillRuns:
    now = visit.now
    running, waiting = counts.get("running", 0), sum(counts.get(name, 0) for name in WAITING)
    ended = sum(counts.values()) - running - waiting
    left = None
    if ended >= _ENOUGH and running + waiting:
        left = (now - backfill.created_at) / ended * (running + waiting)
    failed = counts.get("failed", 0) + counts.get("lost", 0)
    axis = charts.Axis(backfill.start_at, max(backfill.end_at, backfill.start_at + timedelta(seconds=1)))
    width = axis.span.total_seconds() / _BACKFILL_COLUMNS
    apart = (backfill.cursor - backfill.start_at).total_seconds() / max(backfill.attempted, 1)
    # Columns that are a little narrower than the time between occurrences leave a gap as if a run were missing.
    step = ceil(apart if width < apart < 2 * width else width)
    columns = Columns(int(axis.start.timestamp()), step, _BACKFILL_COLUMNS)
    lots = run_hours.of_backfill(connection, backfill.uid, columns, now, MOST_OF_BACKFILL) if counts else []
    stacks = charts.Grid(axis, columns.start, step, visit.zone).stacks(lots, 1)
    return BackfillRuns(backfill, ended, failed, running, waiting, left, stacks, charts.in_words(lots))


class _Found(NamedTuple):
    """The page's data about a schedule."""

    runs: Page[Run]
    events: list[AuditRecord]
    """The newest events. One more than is shown is read, to know whether there are older events."""
    gaps: list[Omission]
    """The newest skips and misses. Those from before a restart are included, although it sets the counters to zero."""
    freezes: list[Freeze]
    """The known freezes, the newest first; empty if no occurrence was missed."""
    backfills: list[BackfillRuns]
    """The newest backfills of schedules with this id."""
    outlines: list[RunOutline]
    counts: Counter[HourKey]
    """How many live runs of a year ended in each hour, by outcome."""
    spread: charts.Spread | None
    """The durations of runs over time; None if there are none."""
    downstream: list[str]
    """The ids of its first few downstream schedules."""
    streak: Streak | None
    """Its newest failures in a row; None if the newest run did not fail."""


def _read(connection: Connection, visit: Visit, schedule: Schedule) -> _Found:
    uid, id_, status = schedule.uid, schedule.schedule_id, visit.query("run_status")
    of, statuses = ("runs", uid), (status,) if status else ()
    cursor = unbind_cursor(visit.query("cursor") or None, *of)
    newest = backfills.page(connection, schedule.namespace, schedule_id=id_, status=None, limit=_BACKFILLS, cursor=None)
    counted = run_queries.count_backfilled(connection, [one.uid for one in newest.items], MOST_OF_BACKFILL)
    backfill = text if is_uid(text := visit.query("backfill")) else None
    skips = event_queries.newest_skips(connection, uid, _SEARCHED, _REASONS)
    gaps = [gap for event in skips if (gap := gap_of(event)) is not None]
    has_missed = any(gap.is_missed for gap in gaps)
    runs = run_queries.list_runs(
        connection, uid, limit=RUNS, cursor=cursor, statuses=statuses, backfill_uid=backfill, is_live=not backfill
    )
    return _Found(
        runs=replace(runs, next_cursor=bind_cursor(runs.next_cursor, *of)),
        events=event_queries.newest_events(connection, uid, _sequence(visit.query("before")), EVENTS + 1, _SEARCHED),
        gaps=gaps,
        freezes=find_freezes(connection, None, schedule.namespace) if has_missed else [],
        backfills=[_describe(connection, visit, one, counted.get(one.uid, {})) for one in newest.items],
        outlines=run_queries.newest_runs(connection, [uid], _CHARTED)[uid],
        counts=run_hours.counts(connection, uid, hour_of(visit.now - _YEAR), hour_of(visit.now)),
        spread=_spread(connection, uid, visit),
        downstream=[]
        if schedule.followed_at is None
        else upstream_ends.downstream_of(connection, schedule, _MOST_DOWNSTREAM),
        streak=run_queries.streaks(connection, [schedule]).get(uid),
    )


def _spread(connection: Connection, uid: str, visit: Visit) -> charts.Spread | None:
    """Read the durations of runs by days. If the schedule has run on few days, read them by hours."""
    last = hour_of(visit.now)
    first = day_of(last) - (_SPREAD_DAYS - 1) * A_DAY
    found = run_hours.read(connection, uid, first, last, in_days=True)
    days = {key.hour for key in found if not key.is_backfilled}
    if len(days) >= _ENOUGH_DAYS:
        count = max((day_of(last) - min(days)) // A_DAY + 1, _LEAST_DAYS)
        return charts.spread(found, day_of(last) - (count - 1) * A_DAY, count, A_DAY, visit.zone)
    first = last - _SPREAD_HOURS + 1
    return charts.spread(run_hours.read(connection, uid, first, last), first, _SPREAD_HOURS, 1, visit.zone)


def _sequence(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidInputError("before", "is malformed; go back to the newest events")
    return int(text)


def _waited(run: Run, now: datetime) -> timedelta | None:
    """Return how late the first attempt of a run began. If it has not begun yet, return how late it is so far."""
    if run.due_at is None or run.attempt > 1 or (run.started_at is None and run.ended_at is not None):
        return None
    return max((run.started_at or now) - run.due_at, timedelta(0))


def _job_id(run: Run) -> str | None:
    """Return the id of the RQ job of a run's current attempt; None if the attempt has no job, or none yet.

    A blocked run gets its next job when it is offered to the workers again.
    """
    has_place = run.limit_group is None or run.granted_at is not None or run.passed_at is not None
    if run.executor == "external" or run.queued_at is None or not has_place or run.is_blocked:
        return None
    return str(RunJobId(run.uid, run.attempt, run.delivery))


def _logs_url(template: str | None, run: Run, job_id: str | None, now: datetime) -> str | None:
    """Return the address of the run's logs by the setting `logs_url`; None without the setting.

    It is also None if the address needs the id of a job, and the run has none.
    """
    if template is None or (job_id is None and "{job}" in template):
        return None
    values = {"run": run.uid, "job": job_id or ""}
    # The end for an unfinished run is a full hour, so that the link stays the same while the page refreshes.
    next_hour = (now + timedelta(hours=1)).replace(minute=0, second=0)
    ended_at = next_hour if run.ended_at is None else run.ended_at + _AROUND
    for name, at in (("from", run.created_at - _AROUND), ("to", ended_at)):
        values[name] = iso_utc(at.replace(microsecond=0))
        values[f"{name}_ms"] = str(int(at.timestamp()) * 1000)
    return LOGS_FIELD.sub(lambda found: quote(values[found[1]], safe=""), template)


def show_run(visit: Visit) -> Response:
    """Show one run."""
    schedule, run = visit.run()

    def say(at: datetime) -> str:
        return exact(at, visit.zone).striptags()

    def read(connection: Connection) -> dict[str, Any]:
        earlier, later = run_queries.neighbours(connection, schedule.uid, run.number)
        progress, is_exact = run_queries.read_shown_progress(connection, run, visit.now)
        return {
            "events": event_queries.events_of_run(connection, schedule.uid, run.uid, _RUN_EVENTS),
            "earlier": earlier,
            "later": later,
            "waited": _waited(run, visit.now),
            "succeeded": run_queries.success_before(connection, schedule.uid, run.number),
            "line": told_of_line(connection, run, visit.now, say),
            "progress": progress,
            "is_exact": is_exact,
            "targets_in_line": told_of_targets(connection, run, visit.now, say),
            "came_after": upstream_ends.before(connection, run),
            "come_after": upstream_ends.after(connection, run),
            "copied": run.copied_from and run_queries.find_run_of(connection, schedule.uid, run.copied_from),
        }

    found = visit.read(read)
    handle, progress = RunHandle(visit.scheduler.runtime, run), found["progress"]
    statuses = [status for status in ("failed", "lost") if progress is not None and status in progress.counts]
    failed = [one for status in statuses for one in handle.targets(_FAILED_TARGETS, status=status).items]
    wait, job_id = waits_of(visit, [run]).get(run.uid), _job_id(run)
    logs = _logs_url(visit.scheduler.settings.logs_url, run, job_id, visit.now)
    return visit.page(
        "run.html", schedule=schedule, run=run, wait=wait, failed=failed, job_id=job_id, logs=logs,
        same=[equivalent_of_run(visit, one, schedule, run) for one in _offered(visit, schedule, run)], **found,
    )  # fmt: skip


def _offered(visit: Visit, schedule: Schedule, run: Run) -> list[str]:
    """Return the operations on a run that the page offers, without those on its targets."""
    if not visit.may("operate"):
        return []
    if run.status in OPEN:
        return ["cancel", "terminate"] if run.status == "running" and not run.dispatched_at else ["cancel"]
    is_retried = run.status in ENDED_IN_VAIN and visit.may_start and schedule.status.value != "deleted"
    return ["retry"] if is_retried else []
