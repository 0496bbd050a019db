"""Responses as values: the dataclasses of the in-process API where they are plain, and equivalents where not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

import httpx

from rqsched.core.audit import AuditRecord
from rqsched.core.page import Page
from rqsched.core.quota import RESOURCES, Quota, Usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunDescription:
    """One run: the fields of `rqsched.core.model.Run`, with parsed JSON. Instants are aware UTC."""

    uid: str
    """The run's uid."""
    schedule_uid: str
    """The incarnation of its schedule."""
    number: int
    """1, 2, 3 ... within the schedule."""
    instance_id: str
    """The readable id, unique within the schedule."""
    kind: str
    """`scheduled`, `manual` or `backfill`."""
    occurrence_at: datetime
    """The nominal time of its occurrence."""
    status: str
    """`pending`, `running`, `retrying`, `buffered`, or how it ended."""
    created_at: datetime
    """When it was recorded."""
    workflow: str
    """The name of the workflow it executes."""
    executor: str
    """`rq` or `external`."""
    action: dict[str, Any]
    """Its `args` and `kwargs`."""
    queue: str | None
    """Its queue; None is the server's default."""
    connection: str | None
    """Its named Redis; None is the server's own."""
    timeout: int | None
    """Seconds one attempt may take; None is the server's default."""
    priority: int
    """Above 0, it goes to the front of its queue."""
    overlap: str
    """The overlap policy it was decided under."""
    is_override: bool
    """Whether that policy is not the schedule's own, or it comes from a backfill."""
    trigger_number: int | None
    """Which start of the schedule it was; None until it started."""
    labels: dict[str, Any]
    """The schedule's labels when it was recorded."""
    memo: dict[str, Any]
    """The schedule's memo when it was recorded."""
    search_attributes: dict[str, Any]
    """The schedule's search attributes when it was recorded."""
    lineage: dict[str, Any]
    """The audit event that ties it to its schedule."""
    attempt: int
    """The current attempt, from 1."""
    delivery: int
    """Which job carries this attempt; a re-delivery takes the next number."""
    worker: str | None
    """The worker of the current or last attempt; None before the first."""
    due_at: datetime | None
    """When it was to start."""
    queued_at: datetime | None
    """When it became pending; None while it waits."""
    started_at: datetime | None
    """When the current attempt began; None before."""
    ended_at: datetime | None
    """When it ended; None before that."""
    retry_at: datetime | None
    """When its next attempt is due; None unless it is retrying."""
    heartbeat_at: datetime | None
    """External runs: the last sign of life."""
    attempts: list[dict[str, Any]]
    """One entry for each ended attempt, the newest 50."""
    result: Any
    """What the workflow returned."""
    error: str | None
    """The error of the newest failed attempt; None when none failed."""
    idempotency_key: str | None
    """The key of the trigger that made it; None otherwise."""
    backfill_uid: str | None
    """The backfill that made it; None otherwise."""
    asked_attempt: int | None = None
    """The attempt that an operator asked for last; None without such a request."""
    dispatched_at: datetime | None = None
    """When its workflow returned and its targets were open; None unless it has targets."""
    target_counts: dict[str, int] | None = None
    """How many of its targets ended in each status; None until the last one has."""
    blocked_at: datetime | None = None
    """Since when no worker that took it could find its workflow; None unless it is blocked (and `pending`)."""
    blocked_reason: str | None = None
    """Which worker was the last of them, and what it lacked; None unless it is blocked."""

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a worker that can find its workflow; its status is `pending` then."""
        return self.blocked_at is not None and self.status == "pending"


@dataclass(frozen=True, slots=True)
class TriggerResult:
    """The outcome of a manual trigger."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    reason: str | None
    """Why no run was started; None otherwise."""
    instance_id: str | None
    """The instance id of the run; None when there is none."""
    run: RunDescription | None
    """The run; None when there is none."""
    buffer_depth: int | None
    """How many runs wait in the buffer; None unless this one does."""


@dataclass(frozen=True, slots=True)
class RetriedRun:
    """What a bulk retry did with one run."""

    run_uid: str
    """The run."""
    schedule_id: str
    """Its schedule."""
    instance_id: str
    """Its instance id."""
    outcome: str
    """`started`, `buffered`, `skipped`; `would_retry` in a dry run."""
    reason: str | None = None
    """Why it was skipped; None otherwise."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync did, as schedule ids."""

    created: list[str]
    """New ones."""
    updated: list[str]
    """Known ones that were declared differently."""
    unchanged: list[str]
    """Known ones that were declared as they are."""
    removed: list[str]
    """Deleted by `prune`."""

    @classmethod
    def joined(cls, parts: Iterable[Synced]) -> Synced:
        """Return what the parts of a set did, together."""
        listed = list(parts)
        return cls(*([id_ for one in listed for id_ in getattr(one, name)] for name in cls.__dataclass_fields__))

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield each declared id with its outcome."""
        for name in ("created", "updated", "unchanged"):
            yield from ((id_, name) for id_ in getattr(self, name))


@dataclass(frozen=True, slots=True)
class BulkRow:
    """What a bulk operation did with one schedule."""

    schedule_id: str
    """The schedule."""
    outcome: str
    """`paused`, `resumed`, `triggered`, `buffered`, `skipped`; `would_pause` and so on in a dry run."""
    reason: str | None = None
    """Why it was skipped; None otherwise."""


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """A backfill and its progress; read it again with `Client.backfill(uid)` until `is_done`."""

    uid: str | None
    """None for a dry run."""
    status: str
    """`running`, `done`, `stopped` or `dry_run`."""
    start_at: datetime
    """The first instant of the range, inclusive."""
    end_at: datetime
    """The end of the range, exclusive."""
    attempted: int
    """Occurrences handled so far."""
    started: int
    """Runs started."""
    buffered: int
    """Runs that wait in the buffer."""
    skipped: int
    """Occurrences skipped."""
    already_run: int
    """Occurrences that had a run before."""
    reason: str | None = None
    """Why it stopped; None otherwise."""
    cursor: datetime | None = None
    """The instant from which it continues; None for a dry run."""
    created_at: datetime | None = None
    """When it was requested; None for a dry run."""
    updated_at: datetime | None = None
    """When its progress was last recorded; None for a dry run."""
    rows: list[dict[str, Any]] | None = None
    """One per occurrence, when the backfill completed within the request; None otherwise."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.status != "running"


@dataclass(frozen=True, slots=True)
class EventRecord(AuditRecord):
    """An audit event with the id of its schedule and its place among all events."""

    schedule_id: str
    """The id of its schedule."""
    id: str
    """Its place among the events: `Client.events(after=...)` continues after it."""


def read(kind: Callable[..., T], json: Mapping[str, Any]) -> T:
    """Build a dataclass from JSON: instants are parsed, unknown fields are ignored."""
    known = {name: json[name] for name in _names(kind) if name in json}
    for name in _instants(kind):
        if known.get(name) is not None:
            known[name] = datetime.fromisoformat(known[name])
    return kind(**known)


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@lru_cache
def _instants(kind: Any) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in _names(kind) if hints[name] in (datetime, datetime | None))


def one(kind: Callable[..., T]) -> Callable[[httpx.Response], T]:
    """Return how a response is read that holds one."""
    return lambda response: read(kind, response.json())


def listed(kind: Callable[..., T]) -> Callable[[httpx.Response], list[T]]:
    """Return how a response is read that holds all of a list."""
    return lambda response: [read(kind, item) for item in response.json()["items"]]


def page(kind: Callable[..., T]) -> Callable[[httpx.Response], Page[T]]:
    """Return how a response is read that holds a page of a list."""
    return lambda response: Page(listed(kind)(response), response.json()["next_cursor"])


def nothing(response: httpx.Response) -> None:
    """Read a response whose status says all."""


def trigger_result(response: httpx.Response) -> TriggerResult:
    """Read the outcome of a manual trigger, and its run."""
    fields = response.json()
    return TriggerResult(**fields | {"run": fields["run"] and read(RunDescription, fields["run"])})


def usage(response: httpx.Response) -> Usage:
    """Read what a namespace holds, and its quota."""
    json = response.json()
    used, limits = ({name: json[name][part] for name in RESOURCES} for part in ("used", "limit"))
    return Usage(json["namespace"], **used, limits=Quota(**limits))
