"""The state of a schedule and of a run as plain frozen values, and `Change`: what one decision writes.

Every operation of rqsched (create, fire, trigger, settle, pause ...) is a pure function from state and `now` to a
Change. `kernel/chain/commit.py` writes Changes to SQL and publishes them. Columns are named as the
fields here; JSON fields hold canonical JSON text, so a fire never decodes what it only copies.
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
    """Copy a state with some fields changed, at a tenth of the cost of `dataclasses.replace`: every fire does this."""
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
    """All its runs are done, or the end of its spec is reached."""
    DEAD = "dead"
    """Its runs failed too often; `restart()` revives it."""
    DELETED = "deleted"
    """Gone for every operation but history; the id is free again."""


EXPECTING = frozenset({ScheduleStatus.ACTIVE, ScheduleStatus.DEAD})
"""The statuses of schedules that can be overdue. Dead ones are among them, so that their owner gets an alarm."""


class RunStatus(StrEnum):
    """The status of a run."""

    PENDING = "pending"
    """Decided; its job waits on a queue (surfaces may show it as queued)."""
    RUNNING = "running"
    """A process executes it."""
    RETRYING = "retrying"
    """An attempt failed; the next one waits for `retry_at`."""
    BUFFERED = "buffered"
    """It waits for the run ahead of it."""
    SUCCEEDED = "succeeded"
    """The workflow returned."""
    FAILED = "failed"
    """Every attempt failed."""
    CANCELLED = "cancelled"
    """Cancelled before or while it ran; its result is not recorded."""
    TERMINATED = "terminated"
    """Killed."""
    LOST = "lost"
    """Its process vanished and no attempt was left."""


TASK = "task"
"""`managed_by` of a schedule of one run that Django's tasks framework made."""

BLOCKED = "blocked"
"""The word for pending runs that wait for a worker which can find their workflow."""
EXPIRED = "expired"
"""The word for cancelled runs that were not started within `start_within`."""
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
    """Recorded; its job is put on the queue when the targets ahead of it were taken."""
    PENDING = "pending"
    """Its job waits on the queue."""
    RUNNING = "running"
    """A process handles it."""
    RETRYING = "retrying"
    """An attempt failed; the next one waits for its time."""
    BLOCKED = "blocked"
    """The worker that took it could not find its workflow; it is offered to the workers again."""
    SUCCEEDED = "succeeded"
    """It was handled."""
    IGNORED = "ignored"
    """There was nothing to do for it: a machine's state does not take the event, or its guards refuse."""
    FAILED = "failed"
    """Every attempt raised or took too long."""
    LOST = "lost"
    """Its process vanished and no attempt was left."""
    CANCELLED = "cancelled"
    """Its run ended before it began, or it stopped at a checkpoint."""


OPEN_TARGETS = (
    TargetStatus.WAITING,
    TargetStatus.PENDING,
    TargetStatus.RUNNING,
    TargetStatus.RETRYING,
    TargetStatus.BLOCKED,
)
"""The statuses of targets that have not ended, in the order of a target's life."""


_TONES = {
    "active": "ok", "succeeded": "ok", "running": "info", "paused": "warn", "retrying": "warn", "blocked": "warn",
    "dead": "bad", "failed": "bad", "lost": "bad", "expired": "bad",
}  # fmt: skip


def tone_of(status: str) -> str:
    """Return how good the status of a schedule, run or target is, for colours: `ok`, `info`, `warn`, `bad`, `idle`."""
    return _TONES.get(status, "idle")


UNFINISHED = frozenset({RunStatus.PENDING, RunStatus.RUNNING, RunStatus.RETRYING})
"""The statuses of runs that overlap policies see."""
OPEN = UNFINISHED | {RunStatus.BUFFERED}
"""The statuses of runs that have not ended."""


FAILURES = frozenset({RunStatus.FAILED, RunStatus.LOST})
"""How a run ended that had no attempt left."""
ENDED_IN_VAIN = frozenset({RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TERMINATED, RunStatus.LOST})
"""How a run ended without success: what is left of its targets is given up, and it can be run again."""


class LastOutcome(StrEnum):
    """How the newest run of a schedule ended; a run that was cancelled or killed leaves it as it was."""

    SUCCEEDED = "succeeded"
    """Its workflow returned."""
    FAILED = "failed"
    """Every attempt of it failed."""
    LOST = "lost"
    """Its process vanished and no attempt was left."""
    EXPIRED = EXPIRED
    """It was not started within `start_within`."""


REPEATEDLY = 3
"""From this many failed runs in a row on a schedule is shown as failing; an index of the tables has the same number."""


class RunKind(StrEnum):
    """The origin of a run."""

    SCHEDULED = "scheduled"
    """A live occurrence."""
    MANUAL = "manual"
    """A trigger."""
    BACKFILL = "backfill"
    """A past occurrence, on request."""
    AFTER = "after"
    """The end of a run of the schedule that its own comes after."""


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
    """The schedule's own queue; None falls back to the workflow's, then to the settings'."""
    connection: str | None = None
    """The name of a configured Redis for run jobs; None falls back likewise."""
    timeout: int | None = None
    """Seconds one attempt may take; None falls back likewise."""
    defaults: str = "{}"
    """JSON: queue, connection and timeout of the workflow when the schedule was last written."""
    priority: int = 0
    """Above 0, run jobs go to the front of their queue."""
    jitter: timedelta = timedelta(0)
    """The most that a fire is delayed after its nominal time."""
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
    """`sync` when a declared set made it: a sync prunes only those. `task` when Django's tasks framework did."""
    surface: str = "{}"
    """JSON: what a foreign surface was sent, verbatim, so that it can answer in kind."""
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
    """One instant the spec yields, and when it fires."""

    nominal_at: datetime
    """The instant itself: what `occurrence_time` names."""
    due_at: datetime
    """Nominal time plus jitter or spread."""
    nominals: tuple[datetime, ...] = ()
    """The nominal instants that it stands for, if excluded ones were moved to it; empty if only its own."""


class Skips(NamedTuple):
    """Occurrences that somebody asked to skip."""

    occurrences: tuple[datetime, ...]
    """Their nominal times."""
    asked_at: datetime
    """When that was."""
    by: str | None = None
    """Who it was; None when that was not said."""
    reason: str | None = None
    """Why; None when that was not said."""

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
    """The record in a row about occurrences that were moved off excluded days, by the nominal instants of their spec.

    Usually an instant up to `evaluated_to` has its outcome, unless the current timing moves it to a time that is still
    ahead. This record has the exceptions that do not follow from the timing.
    """

    nominals: tuple[datetime, ...] = ()
    """The instants that the next occurrence stands for; empty if it stands only for its own time."""
    early: tuple[datetime, ...] = ()
    """Instants after `evaluated_to` that have their outcome, because they were moved to an earlier time."""
    settled: tuple[datetime, ...] = ()
    """Instants that got their outcome under an earlier timing. The present timing would repeat them, so it leaves them
    out."""


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
    """One schedule as its row has it. All instants are aware UTC."""

    uid: str
    """The incarnation: a ULID, new after delete and re-create."""
    namespace: str
    """The namespace that holds it."""
    schedule_id: str
    """Unique among the not-deleted of its namespace."""
    definition: Definition
    """The declaration of its owner."""
    created_at: datetime
    """When this incarnation was created."""
    updated_at: datetime
    """When a decision last wrote the row."""
    timing_changed_at: datetime
    """Where counting of missed occurrences starts."""
    evaluated_to: datetime
    """Every occurrence up to here has its outcome."""
    status: ScheduleStatus = ScheduleStatus.ACTIVE
    """Whether it fires, and why not."""
    n: int = 0
    """The position in the chain; a link with another n is stale."""
    version: int = 1
    """Changes with every change a user makes; for If-Match."""
    next_run_at: datetime | None = None
    """The nominal time of the next occurrence; None while paused, ended or awaiting a run."""
    due_at: datetime | None = None
    """When it fires: nominal plus jitter or spread, or later after a failed fire."""
    awaiting_run_uid: str | None = None
    """The run whose end a `from_completion` schedule waits for."""
    remaining: int | None = None
    """Runs that may still start; None is unlimited."""
    run_number: int = 0
    """The number of the newest run."""
    event_sequence: int = 0
    """The sequence of the newest audit event."""
    run_count: int = 0
    """Runs started, of every kind."""
    success_count: int = 0
    """Runs that succeeded."""
    error_count: int = 0
    """Attempts that failed."""
    consecutive_failures: int = 0
    """Runs failed in a row."""
    buffer_depth: int = 0
    """Runs waiting for the run ahead of them, backfilled ones apart."""
    backfill_waiting: int = 0
    """Backfilled runs that wait their turn."""
    backfill_unfinished: int = 0
    """Backfilled runs that are pending, running or retrying."""
    fire_failures: int = 0
    """Fires that failed in a row (not runs)."""
    skipped_count: int = 0
    """Occurrences and triggers that were skipped."""
    missed_count: int = 0
    """Occurrences that passed without a fire."""
    last_run_at: datetime | None = None
    """When the newest run was started."""
    last_success_at: datetime | None = None
    """When a run succeeded last; kept only while the schedule expects successes."""
    overdue_at: datetime | None = None
    """When it is overdue unless a run succeeds; None when nothing is expected or it was told."""
    overdue_since: datetime | None = None
    """Since when no run succeeded for as long as allowed; None until that was told, and from the next success on."""
    last_skip_reason: str | None = None
    """Why the newest skip happened; None before the first."""
    last_skipped_at: datetime | None = None
    """When the newest skip happened; None before the first."""
    last_error: str | None = None
    """The error of the newest failed attempt or fire; None when there was none."""
    last_outcome: str | None = None
    """How the newest run ended that succeeded, failed, was lost or expired; None before the first."""
    last_run_uid: str | None = None
    """The newest started run; None before the first."""
    last_instance_id: str | None = None
    """That run's instance id."""
    note: str | None = None
    """The owner's note; None when there is none."""
    status_reason: str | None = None
    """Why it is paused, done, dead or deleted."""
    paused_at: datetime | None = None
    """When it was paused; None unless paused."""
    paused_next_run_at: datetime | None = None
    """The next time it had when it was paused, for `on_resume="once"`; when `missed_run_uid` ended."""
    resume_at: datetime | None = None
    """When its pause ends by itself; None for one that ends by hand, and unless paused."""
    resume_mode: str | None = None
    """The OnResume of this pause, how it continues then; None without `resume_at`."""
    traceparent: str | None = None
    """The span that created it, as a W3C traceparent; None when that was not traced."""
    upstream_id: str | None = None
    """The id of the schedule that it comes after; None for one with times of its own. Its spec says so, too."""
    followed_at: datetime | None = None
    """Since when others may come after it; None when none does."""
    missed_run_uid: str | None = None
    """The newest run of its upstream that ended while it is paused, at `paused_next_run_at`; None for none."""
    skips: str | None = None
    """JSON list of `Skips`: occurrences that are skipped on request and have no outcome yet; None for none."""
    limit_group: str | None = None
    """The group of its runs (`kernel.decide.limit_options.key_of`), by its current labels; None without `limit`."""
    moves: str | None = None
    """JSON of `Moves`; None where nothing was moved."""
    deleted_at: datetime | None = None
    """When it was deleted; None unless deleted."""
    tzdata: str = ""
    """The tzdata version the next time was computed with."""
    operation: str | None = None
    """The uid of the operation that wrote the row last: tells a lost COMMIT answer from a lost COMMIT."""
    calendars: str | None = None
    """The changes of the calendars that its next time was planned with, as `stamp_of` writes them; None without any."""
    contents: tuple[Calendar, ...] = field(default=(), compare=False, repr=False)
    """The calendars that its spec names, as they are now: no column, the store reads them with the row."""

    @property
    def spec(self) -> Spec:
        """The parsed spec with its calendars, without the moved occurrences that have their outcome already."""
        if not self.contents and self.moves is None:  # as in nearly all
            return parse_spec(self.definition.spec)
        return self.declared if self.moves is None else _parse_settled(self.definition.spec, self.moves, self.contents)

    @property
    def declared(self) -> Spec:
        """The parsed spec with the contents of the calendars that it names."""
        return _parse_with(self.definition.spec, self.contents)

    @property
    def has_old_plan(self) -> bool:
        """Whether a calendar that it names was changed after its next time was planned."""
        return bool(self.contents) and self.calendars != stamp_of(self.contents)

    @property
    def timeline(self) -> Spec:
        """The parsed spec without the occurrences that are skipped on request: when the schedule fires."""
        if self.skips is None:  # as in nearly all
            return self.spec
        return _parse_timeline(self.definition.spec, self.skips, self.moves, self.contents)

    @property
    def parsed_moves(self) -> Moves:
        """The record of occurrences moved off excluded days."""
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
        """Return how much later the next fire after an instant is because of occurrences skipped on request."""
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
        """The template of the group of its runs, or None. Policies that do not mention it need not be readable."""
        return self.policies.limit if '"limit":' in self.definition.policies else None

    @property
    def start_within(self) -> timedelta | None:
        """How long an attempt may wait to start; None is for ever. Policies that lack it need not be readable."""
        return self.policies.start_within if '"start_within"' in self.definition.policies else None

    @property
    def expect_success_within(self) -> timedelta | None:
        """How long it may be without a success; None expects nothing."""
        stored = self.definition.notifications
        return None if stored == "{}" else self.definition.parsed_notifications.expect_success_within

    @property
    def expect_duration(self) -> timedelta | None:
        """How long a run may take before that is told; None expects nothing."""
        stored = self.definition.notifications
        return None if stored == "{}" else self.definition.parsed_notifications.expect_duration

    @property
    def is_active(self) -> bool:
        """Whether it fires."""
        return self.status is ScheduleStatus.ACTIVE

    @property
    def buffered_count(self) -> int:
        """Runs that wait for the run ahead of them, those of backfills included."""
        return self.buffer_depth + self.backfill_waiting

    @property
    def lets_waiting_start(self) -> bool:
        """Whether runs that wait may start: it is active, or was deleted and keeps its runs."""
        return self.is_active or (self.status is ScheduleStatus.DELETED and self.policies.keeps_runs)

    @property
    def has_ended(self) -> bool:
        """Whether it is done, dead or deleted."""
        return self.status not in {ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED}


@dataclass(frozen=True)
class Run:
    """One run as its row has it."""

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
    """The nominal time; for a manual run the moment of the trigger."""
    status: RunStatus
    """The status of the run."""
    created_at: datetime
    """When it was decided."""
    workflow: str
    """The registered name or dotted path, resolved when it executes."""
    executor: str = "rq"
    """`rq` or `external`, copied from the schedule."""
    action: str = '{"args":[],"kwargs":{}}'
    """JSON: args and kwargs, copied from the schedule."""
    queue: str | None = None
    """The queue of its jobs; None falls back to the settings'."""
    connection: str | None = None
    """The named Redis of its jobs; None is the main one."""
    timeout: int | None = None
    """Seconds one attempt may take; None falls back to the settings'."""
    priority: int = 0
    """Above 0, its job goes to the front of the queue."""
    overlap: str = "skip"
    """The policy it was decided under."""
    is_override: bool = False
    """Started under another policy than the schedule's, or by a backfill: invariant I5 leaves it apart."""
    trigger_number: int | None = None
    """The number of its start, counted over the schedule; None until it started."""
    labels: str = "{}"
    """JSON object, copied from the schedule."""
    memo: str = "{}"
    """JSON object, copied from the schedule."""
    search_attributes: str = "{}"
    """JSON object, copied from the schedule."""
    lineage: str = "{}"
    """JSON: the ScheduleTriggered event that ties the run to its schedule."""
    attempt: int = 1
    """The current attempt, from 1: the fencing token."""
    delivery: int = 1
    """The number of the job that carries this attempt; a re-delivery takes the next number."""
    token: str | None = None
    """Drawn by the process that started the attempt; fences its result."""
    worker: str | None = None
    """The name of the process that executes it; None before it starts."""
    due_at: datetime | None = None
    """When it was to start; with `queued_at` its lateness."""
    queued_at: datetime | None = None
    """When it became pending; None while it waits."""
    started_at: datetime | None = None
    """When the current attempt began; None before."""
    ended_at: datetime | None = None
    """When it ended; None while it is open."""
    retry_at: datetime | None = None
    """When the next attempt is due; None unless retrying."""
    heartbeat_at: datetime | None = None
    """External runs: the last sign of life."""
    attempts: str = "[]"
    """JSON: one entry for each ended attempt, the newest 50."""
    result: str | None = None
    """JSON of what the workflow returned, size-capped."""
    error: str | None = None
    """The error of the newest failed attempt; None when there was none."""
    idempotency_key: str | None = None
    """The key of the trigger that asked for it; None when it had none."""
    backfill_uid: str | None = None
    """The backfill that asked for it; None for any other kind."""
    dispatched_at: datetime | None = None
    """When its workflow returned and targets were open; None unless it is or was a fan-out."""
    target_counts: str | None = None
    """JSON: how many of its targets ended in each status; None until the last one has."""
    asked_attempt: int | None = None
    """The attempt that an operator asked for last: no other follows it. None when nobody did."""

    blocked_at: datetime | None = None
    """Since when no worker that took it could find its workflow; None when it is not blocked."""
    blocked_reason: str | None = None
    """The last worker that could not find its workflow, and the reason."""
    long_at: datetime | None = None
    """When it was reported that it takes longer than its schedule expects; None when it was not."""
    start_by: datetime | None = None
    """When its current attempt may not start any more; None without `start_within`."""
    expired_at: datetime | None = None
    """When it ended because of that; None unless it did."""
    limit_group: str | None = None
    """The group whose number of places it needs one of, as it was when the run was made; None needs none."""
    limit_at: datetime | None = None
    """Since when it is in its group's line: when it was queued first. None without a group, and before that."""
    granted_at: datetime | None = None
    """When its current attempt got a place in its group; None while it is in line."""
    passed_at: datetime | None = None
    """When it was passed over, as nobody had claimed its place; None once a worker asks for it."""
    passed_count: int | None = None
    """How often a worker then came to it and its group was full: each time its next grant is kept twice as long."""
    is_rated: bool = False
    """Whether its group had a rate when it got its place: its start is counted."""
    upstream_run_uid: str | None = None
    """The run whose end started it; None for every other kind."""
    nominals: str | None = None
    """JSON list of the nominal instants that it stands for, as excluded ones were moved to it; None: its occurrence."""
    traceparent: str | None = None
    """The span of the fire, trigger or backfill that asked for it, as a W3C traceparent; None when that was not
    traced."""
    place_in_line: int | None = field(default=None, compare=False)
    """No column: its place in its group's line, from 1, if it was read to be shown; None unless it is in line."""

    upstream_schedule_id: str | None = field(default=None, compare=False)
    """No column: the id of the schedule of `upstream_run_uid`, where that was read to be shown, or starts it now."""

    @property
    def limit(self) -> str | None:
        """The name of the group whose number of places it needs one of; None needs none."""
        return None if self.limit_group is None else split_key(self.limit_group)[1]

    @property
    def moved_from(self) -> list[datetime]:
        """The excluded instants that its occurrence was moved from, in order."""
        return [at for at in read_instants(self.nominals) if at != self.occurrence_at]

    @property
    def is_asked(self) -> bool:
        """Whether an operator asked for the current attempt: it is the last one, whatever the retry policy says."""
        return self.asked_attempt == self.attempt

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
        """Return whether it runs under this token: only the process with the token may go on with it or end it."""
        return self.status is RunStatus.RUNNING and self.token == token

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a worker that can find its workflow; its status is `pending` then."""
        return self.blocked_at is not None and self.status is RunStatus.PENDING

    def is_late(self, now: datetime) -> bool:
        """Return whether it waits for a process, and may not start any more."""
        return self.start_by is not None and self.start_by <= now and self.status is RunStatus.PENDING

    @property
    def is_in_line(self) -> bool:
        """Whether it waits for a place in its group, and so has no job."""
        is_waiting = self.limit_group is not None and self.granted_at is None and self.passed_at is None
        return is_waiting and self.status is RunStatus.PENDING

    @property
    def needs_grant(self) -> bool:
        """Whether it is pending and nobody may claim it before its group has a place for it."""
        return self.limit_group is not None and self.granted_at is None and self.status is RunStatus.PENDING

    @property
    def takes_place(self) -> bool:
        """Whether it has one of its group's places. While it waits for its targets, the targets have the places."""
        is_claimed = (self.status is RunStatus.RUNNING and self.dispatched_at is None) or (
            self.status is RunStatus.PENDING and self.granted_at is not None
        )
        return self.limit_group is not None and is_claimed

    @property
    def has_named_targets(self) -> bool:
        """Whether an attempt has named all targets: later attempts handle the targets that are left, and name none."""
        return '"dispatched_at"' in self.attempts

    @property
    def shown_status(self) -> str:
        """The status as people see it: its status, or `blocked`, or `expired`."""
        return BLOCKED if self.is_blocked else EXPIRED if self.expired_at is not None else self.status.value

    @property
    def is_unfinished(self) -> bool:
        """Whether overlap policies see it."""
        return self.status in UNFINISHED


@dataclass(frozen=True, slots=True)
class Change:
    """The writes of one decision about one schedule: SQL takes them first, then Redis follows."""

    before: Schedule | None
    """None when the schedule is new."""
    after: Schedule
    """The schedule as it shall be."""
    new_runs: tuple[Run, ...] = ()
    """Runs to insert."""
    changed_runs: tuple[tuple[Run, Run], ...] = ()
    """(as read, as it shall be)."""
    events: tuple[Event, ...] = ()
    """Audit events to append, in order; the last one's sequence is `after.event_sequence`."""
    drops_buffer: bool = False
    """Every waiting run of the schedule is cancelled."""
    drops_retries: bool = False
    """Every retrying run of the schedule is cancelled."""
    dead_letters: tuple[str, ...] = ()
    """The uids of the failed runs that are kept among the dead letters."""
    owed_again: tuple[str, datetime] | None = None
    """The upstream run, and when it ended, that the schedule missed while it was paused and follows now; or None."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        if self.new_runs or self.changed_runs or self.events:
            return False
        return self.before is self.after or self.before == self.after  # the second compares fifty fields


def fence_of(started_at: datetime) -> int:
    """Return the fencing token of the attempt that was claimed at an instant: microseconds since 1970."""
    return (started_at - _EPOCH) // timedelta(microseconds=1)


def unchanged(schedule: Schedule) -> Change:
    """Return a Change that writes nothing; Redis is still made to follow the row."""
    return Change(schedule, schedule)
