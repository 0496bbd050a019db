"""The story of each schedule, from the rows of a real database, and the occurrences it should have had.

The expected occurrences are reconstructed from the audit events alone, so that a bug in the code that plans
occurrences cannot hide itself.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import NamedTuple

import sqlalchemy as sa

from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import AuditRecord
from rqsched.kernel.decide.model import Run, RunKind, Schedule, ScheduleStatus
from rqsched.kernel.store.rows import RUN_COLUMNS, SCHEDULE_COLUMNS, to_run, to_schedule
from rqsched.kernel.store.tables import audit_events, calendars, runs, schedules
from rqsched.when.calendars import Calendar
from rqsched.when.members import After, Once
from rqsched.when.spec import Spec

TICK = timedelta(microseconds=1)
_NEVER = datetime.min.replace(tzinfo=UTC)
CLOSING = {
    audit.PAUSED: ScheduleStatus.PAUSED,
    audit.DELETED: ScheduleStatus.DELETED,
    audit.COMPLETED: ScheduleStatus.DONE,
    audit.DIED: ScheduleStatus.DEAD,
}
"""The events that end a schedule's active time, and the status they bring."""


@dataclass
class Window:
    """Time in which a schedule was active with one spec: occurrences in (opened_at, closed_at] need an outcome."""

    spec: Spec
    opened_at: datetime
    closed_at: datetime | None = None


@dataclass(frozen=True)
class Story:
    """One incarnation: its row, its runs in order, its audit events in order."""

    schedule: Schedule
    runs: list[Run]
    events: list[AuditRecord]
    skew: timedelta = timedelta(0)
    """How far the clocks of the actors may have been apart."""
    pruned_to: datetime | None = None
    """Up to which occurrence runs were pruned."""
    calendars: dict[str, list[tuple[datetime, Calendar]]] = field(default_factory=dict)
    """The contents of each calendar of its namespace, with the instant of each change, oldest first, by name."""

    @property
    def name(self) -> str:
        return f"{self.schedule.namespace}/{self.schedule.schedule_id} ({self.schedule.uid})"

    @property
    def is_of_an_edge(self) -> bool:
        """Whether it comes after another one, or another one after it."""
        return self.schedule.upstream_id is not None or self.schedule.followed_at is not None

    @property
    def kept_from(self) -> datetime | None:
        """When the first kept event was recorded, if a pruning took those before it; None when all are there."""
        is_pruned = bool(self.events) and self.events[0].sequence > 1
        return self.events[0].recorded_at if is_pruned else None

    @property
    def has_moved(self) -> bool:
        """Whether a timing of it moved what was excluded; no event tells to where."""
        return any("on_excluded" in event.payload.get("spec", {}) for event in self.events)

    @property
    def has_all_events(self) -> bool:
        """Whether no event was pruned."""
        return len(self.events) == self.schedule.event_sequence

    @property
    def has_all_runs(self) -> bool:
        """Whether no run was pruned."""
        return len(self.runs) == self.schedule.run_number

    @cached_property
    def status_before(self) -> ScheduleStatus:
        """The status before the first kept event, as the next event that changes it tells."""
        if self.kept_from is None:
            return ScheduleStatus.PAUSED
        changing = (event.event_type for event in self.events if event.event_type in {*CLOSING, audit.RESUMED})
        first = next(changing, None)
        if first is None:
            return self.schedule.status
        return ScheduleStatus.PAUSED if first == audit.RESUMED else ScheduleStatus.ACTIVE

    @cached_property
    def by_uid(self) -> dict[str, Run]:
        return {run.uid: run for run in self.runs}

    @cached_property
    def since_restart(self) -> list[AuditRecord]:
        """The events since the counters were set to zero last."""
        starts = [index for index, event in enumerate(self.events) if event.payload.get("reason") == "restart"]
        return self.events[starts[-1] + 1 :] if starts else self.events

    def spec_of(self, event: AuditRecord) -> Spec:
        """The timing that an event tells, with its calendars as they were then."""
        return self.as_of(Spec.from_json(event.payload["spec"]), event.recorded_at)

    def as_of(self, spec: Spec, instant: datetime) -> Spec:
        """A timing with its calendars as they were at an instant; one that is deleted held nothing."""
        return spec.with_calendars(
            next((one for since, one in reversed(self.calendars.get(name, [])) if since <= instant), Calendar(name, ()))
            for name in spec.calendars
        )

    def knows(self, spec: Spec, since: datetime) -> bool:
        """Whether the contents of its calendars since an instant are known. A deleted calendar leaves no contents."""
        held = [self.calendars.get(name) for name in spec.calendars]
        return all(one is not None and one[0][0] <= since + self.skew for one in held)

    def changes_of(self, spec: Spec) -> set[datetime]:
        """When its calendars were created and changed."""
        return {since for name in spec.calendars for since, _ in self.calendars.get(name, [])}

    @cached_property
    def settled(self) -> list[tuple[datetime, datetime]]:
        """Up to which instants every occurrence has its outcome, and when that was recorded."""
        return [(upto, event.recorded_at) for event in self.events if (upto := _settles(event)) is not None]

    def allowed(self, spec: Spec, start: datetime, end: datetime) -> tuple[set[datetime], set[datetime]]:
        """Return the instants in [start, end) that no calendar excludes, and those that maybe none excludes.

        A fire may notice a change only after the next one. The change then also holds for occurrences between them, and
        for earlier due occurrences without an outcome if the calendar's earlier content is lost.
        """
        if not spec.calendars:
            found = set(spec.between(start, end))
            return found, found
        if not self.knows(spec, start):
            return set(), set()
        bare = replace(spec, exclude=spec.exclude).with_calendars(Calendar(name, ()) for name in spec.calendars)
        excluded = {at: [*self._may_exclude(spec, at)] for at in bare.between(start, end)}
        surely = {at for at, found in excluded.items() if not any(True in one for one in found)}
        return surely, {at for at, found in excluded.items() if all(False in one for one in found)}

    def was_excluded(self, spec: Spec, at: datetime) -> bool:
        """Whether the calendars excluded an instant as they were then."""
        return self.as_of(spec, at).excluded_by(at) is not None

    def _may_exclude(self, spec: Spec, at: datetime) -> Iterator[set[bool]]:
        """Yield for each calendar whether it excludes an instant: with its content then, and after each later change.

        Changes after the outcome of the instant do not count.
        """
        until = min((recorded_at for upto, recorded_at in self.settled if upto >= at), default=None)
        for name in spec.calendars:
            held = self.calendars[name]
            before = [index for index, (since, _) in enumerate(held) if since <= at - self.skew]
            then, *later = held[before[-1] if before else 0 :]
            possible = [then, *(one for one in later if until is None or one[0] <= until + self.skew)]
            others = [Calendar(other, ()) for other in spec.calendars if other != name]
            yield {spec.with_calendars([one, *others]).excluded_by(at) is not None for _, one in possible}

    def lines(self) -> str:
        """Return the whole story, for a failure's message."""
        rows = [f"  {event.sequence}. {event.recorded_at} {event.event_type} {event.payload}" for event in self.events]
        rows += [
            f"  run {run.number} {run.kind.value} {run.occurrence_at} {run.status.value} attempt {run.attempt} "
            f"delivery {run.delivery} started {run.started_at} ended {run.ended_at} {run.error or ''}"
            for run in self.runs
        ]
        schedule = self.schedule
        state = f"{schedule.status.value} n={schedule.n} next={schedule.next_run_at} due={schedule.due_at}"
        return "\n".join([f"{self.name} {state} evaluated_to={schedule.evaluated_to}", *rows])


def _settles(event: AuditRecord) -> datetime | None:
    """Return up to which instant every occurrence has its outcome with an event; None for one that settles none."""
    if event.event_type in CLOSING or "spec" in event.payload.get("changed_fields", ()):
        return event.recorded_at
    if event.event_type in {audit.MISSED, audit.EXCLUDED}:
        at = event.payload["last"]
    elif event.event_type in {audit.TRIGGERED, audit.BUFFERED, audit.SKIPPED}:
        is_other = {":manual:", ":after:", ":backfill:"} & {*re.findall(":[a-z]+:", event.workflow_instance_id or "")}
        at = None if is_other or event.payload.get("upstream_run_id") else event.payload.get("occurrence_time")
    else:
        return None
    instant = None if at is None else datetime.fromisoformat(at)
    return None if instant == event.recorded_at and event.event_type == audit.SKIPPED else instant


def read_stories(runtime: Runtime, skew: timedelta = timedelta(0)) -> list[Story]:
    """Read every schedule with its runs and events on one snapshot."""

    def read(connection: sa.Connection) -> list[Story]:
        ordered_runs = connection.execute(sa.select(*RUN_COLUMNS).order_by(runs.c.schedule_uid, runs.c.number))
        by_schedule: dict[str, list[Run]] = defaultdict(list)
        for row in ordered_runs:
            run = to_run(row)
            by_schedule[run.schedule_uid].append(run)
        rows = connection.execute(sa.select(*SCHEDULE_COLUMNS, schedules.c.pruned_to).order_by(schedules.c.uid))
        found = [(to_schedule(connection, row[:-1]), row[-1]) for row in rows.all()]
        events, held = _events(connection), _calendars(connection)
        return [
            Story(s, by_schedule[s.uid], events[s.uid], skew, pruned_to, held["*"] | held[s.namespace])
            for s, pruned_to in found
        ]

    return runtime.database.read(read)


def _calendars(connection: sa.Connection) -> dict[str, dict[str, list[tuple[datetime, Calendar]]]]:
    """Read what each calendar held from when on, by namespace and name, from the record of its changes."""
    found: dict[str, dict[str, list[tuple[datetime, Calendar]]]] = defaultdict(dict)
    for row in connection.execute(sa.select(calendars)):
        held, since = set[str](), list[tuple[datetime, Calendar]]()
        for change in json.loads(row.changes):
            held = (held | {*change["added"]}) - {*change["removed"]}
            since.append((datetime.fromisoformat(change["at"]), Calendar(row.name, tuple(sorted(held)))))
        assert tuple(sorted(held)) == tuple(json.loads(row.exclude)), f"{row.name} is not what its changes made"
        found[row.namespace][row.name] = since
    return found


def _events(connection: sa.Connection) -> dict[str, list[AuditRecord]]:
    """Read every audit event, by schedule and in order."""
    found: dict[str, list[AuditRecord]] = defaultdict(list)
    ordered = sa.select(audit_events).order_by(audit_events.c.schedule_uid, audit_events.c.sequence)
    for row in connection.execute(ordered):
        record = AuditRecord(
            row.schedule_uid,
            row.sequence,
            row.event_type,
            json.loads(row.payload),
            row.workflow_instance_id,
            row.workflow_run_id,
            row.recorded_at,
        )
        found[row.schedule_uid].append(record)
    return found


@dataclass
class _Walk:
    """The windows of a story while its events are read."""

    spec: Spec | None = None
    windows: list[Window] = field(default_factory=list)
    extra: set[datetime] = field(default_factory=set)
    """Occurrences a `resume(on_resume="once")` brought back, where the timing tells which."""
    timed_at: datetime = _NEVER
    """Since when the timing holds: an actor whose clock is behind does not reach back before it.

    Where clocks differ, how far another one has evaluated: what fired by a clock that is ahead does not fire again.
    """
    is_other_timing: bool = False
    """The timing changed since the last window closed."""

    @property
    def current(self) -> Window | None:
        return self.windows[-1] if self.windows and self.windows[-1].closed_at is None else None

    def open(self, at: datetime) -> None:
        assert self.spec is not None
        self.is_other_timing = False
        self.windows.append(Window(self.spec, max(at, self.timed_at)))

    def close(self, at: datetime) -> None:
        if self.current is not None:
            self.current.closed_at = at

    def cut(self, at: datetime) -> None:
        """A clock that is behind ended it: what one ahead had found due already was not due yet."""
        for window in self.windows:
            window.closed_at = min(window.closed_at or at, at)


def active_windows(story: Story) -> tuple[list[Window], set[datetime]]:
    """Reconstruct from the audit events when the schedule was active, and with which spec."""
    walk = _Walk()
    _begin(walk, story)
    for event in story.events:
        at = event.recorded_at
        if story.skew:
            walk.timed_at = max(walk.timed_at, at)
        if event.event_type == audit.CREATED:
            walk.spec, walk.timed_at = story.spec_of(event), max(walk.timed_at, at)
            if event.payload.get("next_fire_at") is not None or walk.spec.after is not None:
                walk.open(at)
        elif event.event_type == audit.UPDATED and "spec" in event.payload["changed_fields"]:
            _respecify(walk, story, event)
        elif event.event_type == audit.RESUMED:
            _reopen(walk, story, event)
        elif event.event_type in CLOSING:
            walk.close(at)
            if story.skew:
                walk.cut(at)
    if walk.current is not None:
        walk.current.spec = story.schedule.spec
    return walk.windows, walk.extra


def _begin(walk: _Walk, story: Story) -> None:
    """Begin at the first kept event where the ones before it were pruned and the kept ones tell the timing."""
    changes_timing = any(
        "spec" in event.payload.get("changed_fields", ()) or event.payload.get("reason") == "from_now"
        for event in story.events
    )
    if story.kept_from is None or changes_timing:
        return
    walk.spec = story.schedule.spec
    first = next((e.event_type for e in story.events if e.event_type in {*CLOSING, audit.RESUMED}), None)
    if first == audit.PAUSED or (first is None and story.schedule.is_active):
        walk.open(story.kept_from)


def _respecify(walk: _Walk, story: Story, event: AuditRecord) -> None:
    old = None if walk.spec is None else story.as_of(walk.spec, event.recorded_at)
    new = story.spec_of(event)
    walk.spec, walk.timed_at = new, max(walk.timed_at, event.recorded_at)
    if walk.current is None:
        walk.is_other_timing = True
        return
    at, next_fire = event.recorded_at, event.payload.get("next_fire_at")
    kept = None if next_fire is None or old is None else datetime.fromisoformat(next_fire)
    is_kept = kept is not None and old is not None and kept == old.next_after(at) and kept != new.next_after(at)
    edge = kept if is_kept and kept is not None else at
    walk.close(edge)
    walk.open(edge)


def _reopen(walk: _Walk, story: Story, event: AuditRecord) -> None:
    next_fire, until = event.payload.get("next_fire_at"), event.payload.get("until")
    at = event.recorded_at if until is None else datetime.fromisoformat(until)
    if walk.spec is None:  # pruned, and the timing changes later
        return
    spec = story.as_of(walk.spec, event.recorded_at)
    if event.payload.get("reason") == "from_now":
        walk.spec, walk.timed_at = _reanchored(spec, at), max(walk.timed_at, at)
    is_at_once = next_fire is not None and datetime.fromisoformat(next_fire) == event.recorded_at
    since = (walk.windows[-1].closed_at if walk.windows else None) or at
    is_other_timing = walk.is_other_timing or any(since < one <= at for one in story.changes_of(spec))
    if is_at_once and walk.windows and not spec.is_from_completion and not is_other_timing:
        before = story.as_of(walk.windows[-1].spec, event.recorded_at)
        walk.extra |= set(spec.last_between(since, at, 1)) or set(before.last_between(since, at, 1))
    walk.open(at)


def _reanchored(spec: Spec, at: datetime) -> Spec:
    members = [m if isinstance(m, Once | After) or m.anchor is None else replace(m, anchor=at) for m in spec.members]
    return replace(spec, members=tuple(members)).with_calendars(spec.contents)


class Expected(NamedTuple):
    """The occurrences of the active time until now."""

    surely: set[datetime]
    """Occurrences that must have an outcome."""
    perhaps: set[datetime]
    """The same, and occurrences that may have been excluded by a calendar that changed meanwhile."""
    is_exact: bool
    """Whether these are all. Moves, a clock ahead, and a deleted calendar leave occurrences unknown."""


def expected_occurrences(story: Story) -> Expected:
    """Enumerate the occurrences of the active time that must have an outcome by now, and those that may have one."""
    if story.has_moved:
        return Expected(set(), set(), is_exact=False)
    windows, extra = active_windows(story)
    evaluated_to = story.schedule.evaluated_to
    ahead = {story.schedule.next_run_at, *(at for at in story.schedule.skipped_at if at > evaluated_to)}
    surely = set() if story.skew else extra  # a clock behind may still replace occurrences that one ahead brought back
    perhaps = {*surely}
    upcoming = story.schedule.next_run_at if story.schedule.is_active else None
    until = upcoming - TICK if upcoming is not None else story.schedule.evaluated_to
    if story.schedule.has_old_plan:  # a fire or a pass finds occurrences that a calendar's change allowed
        until = min(until, evaluated_to)
    # Occurrences that were due when a calendar changed had their outcome then, even if the oldest is still to fire.
    until = max(until, story.schedule.timing_changed_at)
    for window in windows:
        end = window.closed_at or until
        if end > window.opened_at and not window.spec.is_from_completion:
            allowed, found = story.allowed(window.spec, window.opened_at + TICK, end + TICK)
            surely |= allowed
            perhaps |= found
    is_known = all(story.knows(window.spec, window.opened_at) for window in windows)
    return Expected(surely - ahead, perhaps - ahead, is_exact=is_known and not story.skew)


def live_outcomes(story: Story, expected: Expected) -> tuple[dict[datetime, list[str]], list[str]]:
    """Read each occurrence's live outcomes from runs and events; also report wrong counts of missed occurrences."""
    outcomes: dict[datetime, list[str]] = defaultdict(list)
    wrong: list[str] = []
    for event in story.events:
        run = story.by_uid.get(event.workflow_run_id or "")
        at = event.payload.get("occurrence_time")
        is_first = event.event_type == audit.BUFFERED or event.payload.get("outcome") == "triggered"
        if event.event_type in {audit.TRIGGERED, audit.BUFFERED} and is_first:
            if run is not None and run.kind is RunKind.SCHEDULED:
                outcomes[run.occurrence_at].append(f"run {run.number} (event {event.sequence})")
            elif run is None and at is not None and datetime.fromisoformat(at) in expected.surely:
                outcomes[datetime.fromisoformat(at)].append(f"a pruned run (event {event.sequence})")
        elif event.payload.get("upstream_run_id") is not None:
            continue  # the end of another schedule's run, see `each_end_once`
        elif event.event_type == audit.SKIPPED and at is not None and event.payload["reason"] != "dst_skip":
            instant = datetime.fromisoformat(at)
            # In the other case triggers were refused, maybe several at once.
            if instant != event.recorded_at or instant in expected.surely:
                outcomes[instant].append(f"skipped {event.payload['reason']} (event {event.sequence})")
        elif event.event_type == audit.MISSED:
            wrong += _miss(story, event, expected, outcomes)
    return outcomes, wrong


def _miss(story: Story, event: AuditRecord, expected: Expected, outcomes: dict[datetime, list[str]]) -> Iterator[str]:
    first, last = (datetime.fromisoformat(event.payload[name]) for name in ("first", "last"))
    fired = {datetime.fromisoformat(text) for text in event.payload.get("fired") or []}

    def without_outcome(found: set[datetime]) -> set[datetime]:
        in_range = {at for at in found if first <= at <= last} | {first}
        return {at for at in in_range if at not in fired and not outcomes.get(at)}

    covered = without_outcome(expected.surely)
    backfilled = {run.occurrence_at for run in story.runs if run.kind is RunKind.BACKFILL}
    count, least, most = event.payload["count"], len(covered - backfilled), len(without_outcome(expected.perhaps))
    is_capped = bool(event.payload.get("count_capped"))
    # A clock that was ahead counts beyond the window of one that is behind; what was pruned is not there to compare.
    is_exact = expected.is_exact and (story.kept_from is None or first > story.kept_from)
    if is_exact and not (least <= count <= most or (is_capped and count <= most)):
        yield f"I1: event {event.sequence} counts {count} missed in [{first}, {last}], there are {least}..{most}"
    for at in covered:
        outcomes[at].append(f"missed (event {event.sequence})")
