"""The state of a schedule and of a run as plain frozen values, and `Change`: what one decision writes.

Every operation of rqsched (create, fire, trigger, settle, pause ...) is a pure function from state and `now` to a
Change. `kernel/chain/commit.py` writes Changes to SQL and publishes them to Redis. Fields and columns have the same
names. JSON fields hold canonical JSON text, so that a fire need not decode the values that it only copies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.limit_options import split_key
from rqsched.kernel.decide.notifications import Notifications
from rqsched.kernel.decide.payload import dumps as dumps
from rqsched.kernel.decide.policy import Policies
from rqsched.when.calendars import Calendar, stamp_of
from rqsched.when.spec import Spec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_State = TypeVar("_State", "Schedule", "Run", "Definition")


def changed(state: _State, **changes: Any) -> _State:
    """Copy a state with some fields changed. Every fire does this; `dataclasses.replace` takes ten times as long."""
    copy = object.__new__(type(state))
    copy.__dict__.update(state.__dict__, **changes)
    return copy


class ScheduleStatus(StrEnum):
    """The status of a schedule."""

    ACTIVE = "active"
    """It fires."""
    PAUSED = "paused"
    """It keeps its state and does not fire."""
    DONE = "done"
    """It has no further run: `max_runs` or `max_successes` is reached, or its spec has no further occurrence."""
    DEAD = "dead"
    """Its runs failed too often; `restart()` revives it."""
    DELETED = "deleted"
    """Only its history can be read; its id is free for a new schedule."""


EXPECTING = frozenset({ScheduleStatus.ACTIVE, ScheduleStatus.DEAD})
"""The statuses of schedules that can be overdue. `dead` is one of them, so that the owner gets an alarm."""


class RunStatus(StrEnum):
    """The status of a run."""

    PENDING = "pending"
    """It may start. It waits for a worker, or for a place in its group."""
    RUNNING = "running"
    """A process executes it."""
    RETRYING = "retrying"
    """An attempt failed; the next attempt is due at `retry_at`."""
    BUFFERED = "buffered"
    """It waits for the run ahead of it."""
    SUCCEEDED = "succeeded"
    """The workflow returned."""
    FAILED = "failed"
    """Every attempt failed."""
    CANCELLED = "cancelled"
    """It was cancelled before or while it ran; its result is not recorded."""
    TERMINATED = "terminated"
    """Its process was killed on request."""
    LOST = "lost"
    """Its process vanished and no attempt was left."""


TASK = "task"
"""The value of `managed_by` if Django's tasks framework created the schedule, for one run."""

BLOCKED = "blocked"
"""The status that is shown for a pending run if it waits for a worker that has the code of its workflow."""
EXPIRED = "expired"
"""The status that is shown for a cancelled run if it was not started within `start_within`."""
RUN_FILTERS = (
    RunStatus.PENDING.value,
    BLOCKED,
    *(one.value for one in RunStatus if one is not RunStatus.PENDING),
    EXPIRED,
)
"""The values that filter lists of runs."""


class TargetStatus(StrEnum):
    """The status of a target of a fan-out."""

    WAITING = "waiting"
    """It is recorded. Its job is put on the queue when workers have taken the targets ahead of it."""
    PENDING = "pending"
    """Its job waits on the queue."""
    RUNNING = "running"
    """A process handles it."""
    RETRYING = "retrying"
    """An attempt failed; the next attempt is due later."""
    BLOCKED = "blocked"
    """A worker took it but could not find its workflow. Later it is offered to the workers again."""
    SUCCEEDED = "succeeded"
    """It was handled."""
    IGNORED = "ignored"
    """Nothing was done for it: the state of its machine does not accept the event, or a guard refused."""
    FAILED = "failed"
    """Every attempt raised or took too long."""
    LOST = "lost"
    """Its process vanished and no attempt was left."""
    CANCELLED = "cancelled"
    """Its run ended while no process handled the target, or the target stopped at a checkpoint."""


OPEN_TARGETS = (
    TargetStatus.WAITING,
    TargetStatus.PENDING,
    TargetStatus.RUNNING,
    TargetStatus.RETRYING,
    TargetStatus.BLOCKED,
)
"""The statuses of targets that have not ended, in the order in which a target gets them."""


_TONES = {
    "active": "ok", "succeeded": "ok", "running": "info", "paused": "warn", "retrying": "warn", "blocked": "warn",
    "dead": "bad", "failed": "bad", "lost": "bad", "expired": "bad",
}  # fmt: skip


def tone_of(status: str) -> str:
    """Return the tone of a status, which sets its colour: `ok`, `info`, `warn`, `bad` or `idle`."""
    return _TONES.get(status, "idle")


UNFINISHED = frozenset({RunStatus.PENDING, RunStatus.RUNNING, RunStatus.RETRYING})
"""The statuses of runs that overlap policies see."""
OPEN = UNFINISHED | {RunStatus.BUFFERED}
"""The statuses of runs that have not ended."""


FAILURES = frozenset({RunStatus.FAILED, RunStatus.LOST})
"""The statuses of runs that ended because no attempt was left."""
ENDED_IN_VAIN = frozenset({RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TERMINATED, RunStatus.LOST})
"""The statuses of runs that ended without success. Their open targets are cancelled, and the runs can be retried."""


class LastOutcome(StrEnum):
    """How the newest run of a schedule ended. Cancelled and terminated runs do not count, but expired runs do."""

    SUCCEEDED = "succeeded"
    """Its workflow returned."""
    FAILED = "failed"
    """Every attempt failed."""
    LOST = "lost"
    """Its process vanished and no attempt was left."""
    EXPIRED = EXPIRED
    """It was not started within `start_within`."""


REPEATEDLY = 3
"""A schedule is shown as failing after this many failed runs in a row. An index in SQL contains the same number."""


class RunKind(StrEnum):
    """The origin of a run."""

    SCHEDULED = "scheduled"
    """A live occurrence."""
    MANUAL = "manual"
    """A trigger."""
    BACKFILL = "backfill"
    """A past occurrence, on request."""
    AFTER = "after"
    """The end of a run of the upstream schedule."""


@dataclass(frozen=True)
class Definition:
    """The declaration of a schedule by its owner; `upsert` compares these fields."""

    spec: str
    """Canonical JSON text of `Spec.to_json()`; see `dump_spec`."""
    workflow: str
    """The registered name or dotted path."""
    executor: str = "rq"
    """`rq`: a job on the run's queue; `external`: a worker of any language pulls it."""
    action: str = '{"args":[],"kwargs":{}}'
    """JSON: args and kwargs of the workflow, copied to each run."""
    queue: str | None = None
    """The queue of its runs; None means the queue of the workflow, or else of the settings."""
    connection: str | None = None
    """The name of a configured Redis for run jobs; None means the Redis of the workflow, or else of the settings."""
    timeout: int | None = None
    """How many seconds one attempt may take; None means the timeout of the workflow, or else of the settings."""
    defaults: str = "{}"
    """JSON: the queue, connection and timeout that the workflow had when the schedule was last written."""
    priority: int = 0
    """If this is above 0, run jobs go to the front of their queue."""
    jitter: timedelta = timedelta(0)
    """The longest random delay of a fire after its nominal time."""
    policies: str = Policies().dumps()
    """`Policies.dumps()` text."""
    max_runs: int | None = None
    """How many runs may start; None is unlimited."""
    labels: str = "{}"
    """JSON object of short texts, copied to each run."""
    memo: str = "{}"
    """JSON object, copied to each run."""
    search_attributes: str = "{}"
    """JSON object, copied to each run."""
    description: str | None = None
    """Free text for people."""
    owner: str | None = None
    """The owner of the schedule (Pipelit's `user_profile_id`)."""
    managed_by: str | None = None
    """The creator: `sync` (a sync deletes only such schedules), or `task` (Django's tasks framework)."""
    surface: str = "{}"
    """JSON: the request as another system's API received it, so that this API can return the same values."""
    notifications: str = "{}"
    """`Notifications.dumps()` text."""

    @property
    def parsed_spec(self) -> Spec:
        """The spec as an object; cached by its text."""
        return parse_spec(self.spec)

    @property
    def parsed_policies(self) -> Policies:
        """The policies as an object; cached by their text."""
        return Policies.loads(self.policies)

    @property
    def parsed_notifications(self) -> Notifications:
        """The notifications of the schedule and their destinations; cached by their text."""
        return Notifications.loads(self.notifications)

    @property
    def parsed_defaults(self) -> Mapping[str, Any]:
        """The workflow's defaults as an object; cached by their text."""
        return _parse_defaults(self.defaults)


DEFINITION = tuple(field.name for field in fields(Definition))
"""The names of the fields that an owner declares."""


@lru_cache(maxsize=16_384)
def dump_spec(spec: Spec) -> str:
    """Write the canonical text of a spec."""
    return dumps(spec.to_json())


@lru_cache(maxsize=16_384)
def parse_spec(text: str) -> Spec:
    """Read the canonical text of a spec; the same text gives the same object."""
    return Spec.from_stored(json.loads(text))


@lru_cache(maxsize=1024)
def _parse_defaults(text: str) -> Mapping[str, Any]:
    return MappingProxyType(json.loads(text))


class Occurrence(NamedTuple):
    """One instant of a spec, and when it fires."""

    nominal_at: datetime
    """The instant itself, which events record as `occurrence_time`."""
    due_at: datetime
    """The nominal time plus jitter and spread."""
    nominals: tuple[datetime, ...] = ()
    """The nominal instants that the occurrence stands for, if excluded instants were moved to it. Empty if it stands
    only for `nominal_at`."""


class Skips(NamedTuple):
    """Occurrences that somebody asked to skip."""

    occurrences: tuple[datetime, ...]
    """The nominal times of the occurrences."""
    asked_at: datetime
    """The time of the request."""
    by: str | None = None
    """The actor of the request; None if unknown."""
    reason: str | None = None
    """The reason of the request; None if none was given."""

    def after(self, instant: datetime) -> Skips:
        """Return these skips without the occurrences up to an instant."""
        return self._replace(occurrences=tuple(at for at in self.occurrences if at > instant))


def dump_skips(skips: Iterable[Skips]) -> str | None:
    """Return skips as the text for a row; None for no skips."""
    kept = [
        {**asked._asdict(), "occurrences": [*map(iso_utc, asked.occurrences)], "asked_at": iso_utc(asked.asked_at)}
        for asked in skips
        if asked.occurrences
    ]
    return dumps(kept) if kept else None


@lru_cache(maxsize=1024)
def _parse_skips(text: str) -> tuple[Skips, ...]:
    def read(one: dict[str, Any]) -> Skips:
        occurrences = tuple(map(datetime.fromisoformat, one["occurrences"]))
        return Skips(occurrences, datetime.fromisoformat(one["asked_at"]), one.get("by"), one.get("reason"))

    return tuple(map(read, json.loads(text)))


class Moves(NamedTuple):
    """The record, in a schedule's row, of nominal instants that were moved off excluded days.

    Usually an instant up to `evaluated_to` has its outcome, and a later instant has none. If the current timing moves a
    past instant to a time still ahead, the instant has no outcome yet. This record has the exceptions that cannot be
    computed from the timing.
    """

    nominals: tuple[datetime, ...] = ()
    """The instants that the next occurrence stands for; empty if it stands only for its own time."""
    early: tuple[datetime, ...] = ()
    """Instants after `evaluated_to` that have their outcome, because they were moved to an earlier time."""
    settled: tuple[datetime, ...] = ()
    """Instants that got their outcome under an earlier timing. The present timing leaves them out, because they would
    happen twice."""


def dump_moves(moves: Moves) -> str | None:
    """Return moves as the text for a row; None for no moves."""
    kept = {name: [*map(iso_utc, instants)] for name, instants in moves._asdict().items() if instants}
    return dumps(kept) if kept else None


@lru_cache(maxsize=1024)
def _parse_moves(text: str) -> Moves:
    read = {name: tuple(map(datetime.fromisoformat, instants)) for name, instants in json.loads(text).items()}
    return Moves(**{name: instants for name, instants in read.items() if name in Moves._fields})


def dump_instants(instants: Iterable[datetime]) -> str | None:
    """Return instants as a JSON list; None for no instants."""
    return dumps(written) if (written := [*map(iso_utc, instants)]) else None


def read_instants(text: str | None) -> tuple[datetime, ...]:
    """Read instants that `dump_instants` wrote."""
    return () if text is None else tuple(map(datetime.fromisoformat, json.loads(text)))


@lru_cache(maxsize=4096)
def _parse_with(spec: str, calendars: tuple[Calendar, ...]) -> Spec:
    return parse_spec(spec).with_calendars(calendars)


@lru_cache(maxsize=1024)
def _parse_settled(spec: str, moves: str, calendars: tuple[Calendar, ...]) -> Spec:
    whole, settled = _parse_with(spec, calendars), _parse_moves(moves).settled
    return whole.settled_at(settled) if settled else whole


@lru_cache(maxsize=1024)
def _parse_timeline(spec: str, skips: str, moves: str | None, calendars: tuple[Calendar, ...]) -> Spec:
    whole = _parse_with(spec, calendars) if moves is None else _parse_settled(spec, moves, calendars)
    return whole.without(at for asked in _parse_skips(skips) for at in asked.occurrences)


@dataclass(frozen=True)
class Schedule:
    """The row of one schedule. All instants are aware UTC."""

    uid: str
    """The incarnation: a ULID, new after delete and re-create."""
    namespace: str
    """The namespace of the schedule."""
    schedule_id: str
    """The id that its owner chose, unique among the schedules of its namespace that are not deleted."""
    definition: Definition
    """The declaration of its owner."""
    created_at: datetime
    """When this incarnation was created."""
    updated_at: datetime
    """When a decision last wrote the row."""
    timing_changed_at: datetime
    """When its timing changed last. Missed occurrences are counted from then on."""
    evaluated_to: datetime
    """Every occurrence up to this instant has its outcome."""
    status: ScheduleStatus = ScheduleStatus.ACTIVE
    """Whether it fires, and if not, why."""
    n: int = 0
    """The number of its current link (the delayed job that fires it). A link with another number is stale."""
    version: int = 1
    """A number that every change by a user increases; HTTP compares it with If-Match."""
    next_run_at: datetime | None = None
    """The nominal time of the next occurrence; None while the schedule is paused, has ended or waits for a run."""
    due_at: datetime | None = None
    """When the next occurrence fires: its nominal time plus jitter and spread, or later after a failed fire."""
    awaiting_run_uid: str | None = None
    """The run whose end a `from_completion` schedule waits for."""
    remaining: int | None = None
    """How many runs may still start; None is unlimited."""
    run_number: int = 0
    """The number of the newest run."""
    event_sequence: int = 0
    """The sequence of the newest audit event."""
    run_count: int = 0
    """The number of runs that started, of every kind."""
    success_count: int = 0
    """The number of runs that succeeded."""
    error_count: int = 0
    """The number of attempts that failed."""
    consecutive_failures: int = 0
    """The number of runs that failed in a row."""
    buffer_depth: int = 0
    """The number of runs that wait for the run ahead of them, without backfilled runs."""
    backfill_waiting: int = 0
    """The number of backfilled runs that wait for the run ahead of them."""
    backfill_unfinished: int = 0
    """The number of backfilled runs that are pending, running or retrying."""
    fire_failures: int = 0
    """The number of fires (not runs) that failed in a row."""
    skipped_count: int = 0
    """The number of occurrences and triggers that were skipped."""
    missed_count: int = 0
    """The number of occurrences that passed without a fire."""
    last_run_at: datetime | None = None
    """When the newest run was started."""
    last_success_at: datetime | None = None
    """When a run succeeded last; recorded only if the schedule has `expect_success_within`."""
    overdue_at: datetime | None = None
    """When the schedule becomes overdue unless a run succeeds; None without `expect_success_within`, or if the schedule
    was already reported as overdue."""
    overdue_since: datetime | None = None
    """When it became overdue. Set when this is reported; None before the report, and after the next success."""
    last_skip_reason: str | None = None
    """Why the newest skip happened; None before the first skip."""
    last_skipped_at: datetime | None = None
    """When the newest skip happened; None before the first skip."""
    last_error: str | None = None
    """The error of the newest failed attempt or fire; None if none failed."""
    last_outcome: str | None = None
    """The LastOutcome of its runs; None before a run has ended."""
    last_run_uid: str | None = None
    """The newest started run; None before the first."""
    last_instance_id: str | None = None
    """The instance id of the newest started run; None before the first."""
    note: str | None = None
    """The owner's note; None without a note."""
    status_reason: str | None = None
    """Why it is paused, done, dead or deleted."""
    paused_at: datetime | None = None
    """When it was paused; None unless paused."""
    paused_next_run_at: datetime | None = None
    """The `next_run_at` that the pause removed, for `on_resume="once"`. If `missed_run_uid` is set, the end of that run
    instead."""
    resume_at: datetime | None = None
    """When its pause ends by itself; None if a person has to end the pause, or if it is not paused."""
    resume_mode: str | None = None
    """The OnResume that applies at `resume_at`; None without `resume_at`."""
    traceparent: str | None = None
    """The span in which the schedule was created, as a W3C traceparent; None without a trace."""
    upstream_id: str | None = None
    """The id of its upstream schedule (`After` in its spec); None if it has times of its own."""
    followed_at: datetime | None = None
    """When this schedule became an upstream of other schedules. It is reset to None when a run ends and no schedule
    comes after this one any more."""
    missed_run_uid: str | None = None
    """The newest run of its upstream that ended during its pause, at `paused_next_run_at`; None without such a run."""
    skips: str | None = None
    """JSON list of `Skips`: occurrences that are skipped on request and have no outcome yet; None for none."""
    limit_group: str | None = None
    """The key (`kernel.decide.limit_options.key_of`) of the group that its runs belong to; None without `limit`."""
    moves: str | None = None
    """JSON of `Moves`; None without moved occurrences."""
    deleted_at: datetime | None = None
    """When it was deleted; None unless deleted."""
    tzdata: str = ""
    """The version of tzdata with which the next time was computed."""
    operation: str | None = None
    """The uid of the operation that wrote the row last. If the answer to a COMMIT is lost, this uid shows whether the
    COMMIT happened."""
    calendars: str | None = None
    """The versions of the calendars with which the next time was planned, as text of `stamp_of`; None without
    calendars."""
    contents: tuple[Calendar, ...] = field(default=(), compare=False, repr=False)
    """Not a column: the current calendars that its spec names. The store reads them with the row."""

    @property
    def spec(self) -> Spec:
        """The parsed spec with its calendars, without the moved occurrences that have their outcome already."""
        if not self.contents and self.moves is None:  # nearly all schedules
            return parse_spec(self.definition.spec)
        return self.declared if self.moves is None else _parse_settled(self.definition.spec, self.moves, self.contents)

    @property
    def declared(self) -> Spec:
        """The parsed spec with the contents of the calendars that it names."""
        return _parse_with(self.definition.spec, self.contents)

    @property
    def has_old_plan(self) -> bool:
        """Whether a calendar of its spec was changed after its next time was planned."""
        return bool(self.contents) and self.calendars != stamp_of(self.contents)

    @property
    def timeline(self) -> Spec:
        """The parsed spec without the occurrences that are skipped on request. It has the times that fire."""
        if self.skips is None:  # nearly all schedules
            return self.spec
        return _parse_timeline(self.definition.spec, self.skips, self.moves, self.contents)

    @property
    def parsed_moves(self) -> Moves:
        """The record of occurrences that were moved off excluded days."""
        return Moves() if self.moves is None else _parse_moves(self.moves)

    @property
    def moved_from(self) -> list[datetime]:
        """The excluded instants that its next occurrence was moved from, in order."""
        return [at for at in self.parsed_moves.nominals if at != self.next_run_at]

    @property
    def parsed_skips(self) -> tuple[Skips, ...]:
        """The occurrences to skip on request that have no outcome yet, grouped by call; each group is in order."""
        return () if self.skips is None else _parse_skips(self.skips)

    @property
    def skipped_at(self) -> list[datetime]:
        """The nominal times of all occurrences to skip on request, in order."""
        return sorted(at for asked in self.parsed_skips for at in asked.occurrences)

    def skips_over(self, instant: datetime) -> timedelta:
        """Return how long the skips on request delay the next fire after an instant."""
        first = self.spec.next_after(instant) if self.skips is not None and self.spec.is_known else None
        if first is None:
            return timedelta(0)
        return (self.timeline.next_after(instant) or max(first, self.skipped_at[-1])) - first

    @property
    def policies(self) -> Policies:
        """The parsed policies."""
        return Policies.loads(self.definition.policies)

    @property
    def limit(self) -> str | None:
        """The template for the group of its runs; None without a group. Policies without a limit are not parsed."""
        return self.policies.limit if '"limit":' in self.definition.policies else None

    @property
    def start_within(self) -> timedelta | None:
        """How long an attempt may wait to start; None is unlimited. Policies without this option are not parsed."""
        return self.policies.start_within if '"start_within"' in self.definition.policies else None

    @property
    def expect_success_within(self) -> timedelta | None:
        """How long the schedule may be without a success; None is unlimited."""
        stored = self.definition.notifications
        return None if stored == "{}" else self.definition.parsed_notifications.expect_success_within

    @property
    def expect_duration(self) -> timedelta | None:
        """How long a run may take before it is reported as long; None is unlimited."""
        stored = self.definition.notifications
        return None if stored == "{}" else self.definition.parsed_notifications.expect_duration

    @property
    def is_active(self) -> bool:
        """Whether it fires."""
        return self.status is ScheduleStatus.ACTIVE

    @property
    def buffered_count(self) -> int:
        """The number of runs that wait for the run ahead of them, including backfilled runs."""
        return self.buffer_depth + self.backfill_waiting

    @property
    def lets_waiting_start(self) -> bool:
        """Whether waiting runs may start: the schedule is active, or it was deleted and keeps its runs."""
        return self.is_active or (self.status is ScheduleStatus.DELETED and self.policies.keeps_runs)

    @property
    def has_ended(self) -> bool:
        """Whether it is done, dead or deleted."""
        return self.status not in {ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED}


@dataclass(frozen=True)
class Run:
    """The row of one run."""

    uid: str
    """Its identity: a ULID that is also a UUIDv7."""
    schedule_uid: str
    """The schedule's incarnation."""
    number: int
    """1, 2, 3 ... within the schedule."""
    instance_id: str
    """Its name, unique per incarnation: `schedule:{schedule_id}:...`."""
    kind: RunKind
    """The origin of the run."""
    occurrence_at: datetime
    """The nominal time; for a manual run the moment of the trigger; for a copy the time of the copied run."""
    status: RunStatus
    """The status of the run."""
    created_at: datetime
    """When the run was created."""
    workflow: str
    """The registered name or dotted path, resolved when it executes."""
    executor: str = "rq"
    """`rq` or `external`, copied from the schedule."""
    action: str = '{"args":[],"kwargs":{}}'
    """JSON: args and kwargs, copied from the schedule."""
    queue: str | None = None
    """The queue of its jobs; None means the queue of the settings."""
    connection: str | None = None
    """The named Redis of its jobs; None is the main one."""
    timeout: int | None = None
    """How many seconds one attempt may take; None means the timeout of the settings."""
    priority: int = 0
    """If this is above 0, its job goes to the front of the queue."""
    overlap: str = "skip"
    """The overlap policy that decided about it."""
    is_override: bool = False
    """Whether another policy than the schedule's, or a backfill, started it. Invariant I5 does not hold for it."""
    trigger_number: int | None = None
    """1 for the schedule's first run that started, 2 for the second, and so on; None until this run starts. A copy has
    the number of the copied run."""
    labels: str = "{}"
    """JSON object, copied from the schedule."""
    memo: str = "{}"
    """JSON object, copied from the schedule."""
    search_attributes: str = "{}"
    """JSON object, copied from the schedule."""
    lineage: str = "{}"
    """JSON: the ScheduleTriggered event, which connects the run to its schedule. A copy has that of the copied run,
    `copied_from`, and `upstream_run_uid` if the end of an upstream run started the copied run."""
    attempt: int = 1
    """The number of the current attempt, from 1."""
    delivery: int = 1
    """The number of the job that carries the current attempt. If the job is sent again, it gets the next number."""
    token: str | None = None
    """A random text of the process that started the attempt. A result is recorded only with this token."""
    worker: str | None = None
    """The name of the process that executes it; None before it starts."""
    due_at: datetime | None = None
    """The planned start. The lateness is `queued_at` minus this time."""
    queued_at: datetime | None = None
    """When it became pending; None while it is buffered."""
    started_at: datetime | None = None
    """When the current attempt began; None before."""
    ended_at: datetime | None = None
    """When the run ended; None while it is open."""
    retry_at: datetime | None = None
    """When the next attempt is due; None unless the run is retrying."""
    heartbeat_at: datetime | None = None
    """When an external worker last reported that it executes the run."""
    attempts: str = "[]"
    """JSON: one entry for each ended attempt, the newest 50."""
    result: str | None = None
    """JSON of the value that the workflow returned, of limited size."""
    error: str | None = None
    """The error of the newest failed attempt; None if no attempt failed."""
    idempotency_key: str | None = None
    """The key of the trigger that requested the run; None without a key."""
    backfill_uid: str | None = None
    """The backfill that requested the run; None for any other kind."""
    dispatched_at: datetime | None = None
    """When its workflow returned while targets were open; None without targets."""
    target_counts: str | None = None
    """JSON: how many of its targets ended in each status; None until the last target has ended."""
    asked_attempt: int | None = None
    """The last attempt that a person requested; no automatic retry follows it. None without a request. A copy has 1
    here: a person requested its first attempt, which automatic retries may follow."""

    blocked_at: datetime | None = None
    """When a worker first could not find the workflow of the run; None if the run is not blocked."""
    blocked_reason: str | None = None
    """The last worker that could not find its workflow, and the reason."""
    long_at: datetime | None = None
    """When the run was reported as long (see `expect_duration`); None if it was not."""
    start_by: datetime | None = None
    """The latest start of the current attempt; None without `start_within`."""
    expired_at: datetime | None = None
    """When it ended because it was not started by `start_by`; None otherwise."""
    limit_group: str | None = None
    """The key of the group whose limit applies to the run, even if the schedule's group changes; None without a
    limit."""
    limit_at: datetime | None = None
    """When the run was first queued, and so began to wait in the line of its group; None without a group."""
    granted_at: datetime | None = None
    """When its current attempt got a place in its group; None while it is in line."""
    passed_at: datetime | None = None
    """When its place was given to another run, because no worker had claimed this run. None after a worker asks for
    this run."""
    passed_count: int | None = None
    """How often a worker took its job after `passed_at` while the group was full. Each time, its next place is reserved
    for twice as long."""
    is_rated: bool = False
    """Whether its group had a rate when the run got its place. If so, its start is counted."""
    upstream_run_uid: str | None = None
    """The upstream run whose end started this run; None for every other kind."""
    nominals: str | None = None
    """JSON list of the nominal instants that it stands for, if excluded instants were moved to its occurrence; else
    None."""
    traceparent: str | None = None
    """The span of the fire, trigger or backfill that requested the run, as a W3C traceparent; None without a trace."""
    place_in_line: int | None = field(default=None, compare=False)
    """Not a column: its position in the line of its group, from 1. It is read only for display; None if not in line."""

    upstream_schedule_id: str | None = field(default=None, compare=False)
    """Not a column: the id of the schedule of `upstream_run_uid`. It is set in a new run, and if the run is
    displayed."""

    @property
    def limit(self) -> str | None:
        """The name of the group whose limit applies to the run; None without a limit."""
        return None if self.limit_group is None else split_key(self.limit_group)[1]

    @property
    def moved_from(self) -> list[datetime]:
        """The excluded instants that its occurrence was moved from, in order."""
        return [at for at in read_instants(self.nominals) if at != self.occurrence_at]

    @property
    def is_asked(self) -> bool:
        """Whether a person requested the current attempt."""
        return self.asked_attempt == self.attempt

    @property
    def copied_from(self) -> str | None:
        """The uid of the run that this run repeats on request; None if it is no copy."""
        return json.loads(self.lineage)["copied_from"] if '"copied_from":' in self.lineage else None

    @property
    def came_after(self) -> str | None:
        """The upstream run whose end started this run or, in a copy, the copied run; None if there is none."""
        if self.upstream_run_uid is None and '"upstream_run_uid":' in self.lineage:
            found: str = json.loads(self.lineage)["upstream_run_uid"]
            return found
        return self.upstream_run_uid

    @property
    def starts_downstream(self) -> bool:
        """Whether somebody asked for a copy whose end starts downstream runs."""
        return '"downstream":true' in self.lineage

    @property
    def args(self) -> list[Any]:
        """The positional arguments of its workflow."""
        args: list[Any] = json.loads(self.action)["args"]
        return args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of its workflow."""
        kwargs: dict[str, Any] = json.loads(self.action)["kwargs"]
        return kwargs

    @property
    def job_number(self) -> int:
        """The number of the job that carries this attempt."""
        return self.delivery

    def is_held_by(self, token: str | None) -> bool:
        """Return whether it runs under this token. Only the process with the token may continue or end the attempt."""
        return self.status is RunStatus.RUNNING and self.token == token

    @property
    def is_blocked(self) -> bool:
        """Whether it is pending and waits for a worker that can find its workflow."""
        return self.blocked_at is not None and self.status is RunStatus.PENDING

    def is_late(self, now: datetime) -> bool:
        """Return whether it is pending, but too late to start."""
        return self.start_by is not None and self.start_by <= now and self.status is RunStatus.PENDING

    @property
    def is_in_line(self) -> bool:
        """Whether it waits for a place in its group. It has no job until it gets the place."""
        is_waiting = self.limit_group is not None and self.granted_at is None and self.passed_at is None
        return is_waiting and self.status is RunStatus.PENDING

    @property
    def needs_grant(self) -> bool:
        """Whether it is pending and may not be claimed until its group has a place for it."""
        return self.limit_group is not None and self.granted_at is None and self.status is RunStatus.PENDING

    @property
    def takes_place(self) -> bool:
        """Whether it occupies a place of its group. While a run waits for its targets, only they occupy places."""
        is_claimed = (self.status is RunStatus.RUNNING and self.dispatched_at is None) or (
            self.status is RunStatus.PENDING and self.granted_at is not None
        )
        return self.limit_group is not None and is_claimed

    @property
    def has_named_targets(self) -> bool:
        """Whether an attempt has named all targets. Later attempts only handle the open targets."""
        return '"dispatched_at"' in self.attempts

    @property
    def shown_status(self) -> str:
        """The status for display: `blocked`, `expired`, or else its status."""
        return BLOCKED if self.is_blocked else EXPIRED if self.expired_at is not None else self.status.value

    @property
    def is_unfinished(self) -> bool:
        """Whether overlap policies see it."""
        return self.status in UNFINISHED


@dataclass(frozen=True, slots=True)
class Change:
    """The writes of one decision about one schedule. They go to SQL first; then Redis is updated to match."""

    before: Schedule | None
    """The schedule as it was read; None if it is new."""
    after: Schedule
    """The schedule with the changes."""
    new_runs: tuple[Run, ...] = ()
    """Runs to insert."""
    changed_runs: tuple[tuple[Run, Run], ...] = ()
    """Runs to update. Each pair is a run before and after the changes."""
    events: tuple[Event, ...] = ()
    """Audit events to append, in order. The sequence of the last event is `after.event_sequence`."""
    drops_buffer: bool = False
    """Whether every waiting run of the schedule is cancelled."""
    drops_retries: bool = False
    """Whether every retrying run of the schedule is cancelled."""
    dead_letters: tuple[str, ...] = ()
    """The uids of the failed runs that are kept among the dead letters."""
    owed_again: tuple[str, datetime] | None = None
    """The upstream run that ended during the schedule's pause, and the time of its end, if the resume starts a run for
    it; else None."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        if self.new_runs or self.changed_runs or self.events:
            return False
        return self.before is self.after or self.before == self.after  # `==` compares fifty fields


def fence_of(started_at: datetime) -> int:
    """Return the fencing token of an attempt, from the instant of its claim: microseconds since 1970."""
    return (started_at - _EPOCH) // timedelta(microseconds=1)


def unchanged(schedule: Schedule) -> Change:
    """Return a Change that writes nothing to SQL. Redis is still updated to match the row."""
    return Change(schedule, schedule)
