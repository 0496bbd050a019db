"""Answers as values: the dataclasses of the in-process API where they are plain, and their like where not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

from rqsched.api.describe import Description
from rqsched.store.listing import AuditRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run, as `rqsched.core.model.Run` has it, its JSON read."""

    uid: str
    schedule_uid: str
    number: int
    instance_id: str
    kind: str
    occurrence_at: datetime
    status: str
    created_at: datetime
    workflow: str
    executor: str
    action: dict[str, Any]
    queue: str | None
    connection: str | None
    timeout: int | None
    priority: int
    overlap: str
    is_override: bool
    trigger_number: int | None
    labels: dict[str, Any]
    memo: dict[str, Any]
    search_attributes: dict[str, Any]
    lineage: dict[str, Any]
    attempt: int
    delivery: int
    worker: str | None
    due_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    retry_at: datetime | None
    heartbeat_at: datetime | None
    attempts: list[dict[str, Any]]
    result: Any
    error: str | None
    idempotency_key: str | None
    backfill_uid: str | None


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """A backfill and how far it is; ask `Client.backfill(uid)` again until `is_done`."""

    uid: str | None
    """None for a dry run."""
    status: str
    """`running`, `done`, `stopped` or `dry_run`."""
    start_at: datetime
    end_at: datetime
    attempted: int
    started: int
    buffered: int
    skipped: int
    already_run: int
    reason: str | None = None
    cursor: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    rows: list[dict[str, Any]] | None = None
    """One an occurrence, where it was done at once."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.status != "running"


def read(kind: Callable[..., T], facts: Mapping[str, Any]) -> T:
    """Build a dataclass from JSON: instants are read, what it does not know is left out."""
    known = {name: facts[name] for name in _names(kind) if name in facts}
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


def description(facts: Mapping[str, Any]) -> Description:
    """Read a schedule."""
    return read(Description, facts)


def run_facts(facts: Mapping[str, Any]) -> RunFacts:
    """Read a run."""
    return read(RunFacts, facts)


def event(facts: Mapping[str, Any]) -> AuditRecord:
    """Read an audit event."""
    return read(AuditRecord, facts)


def progress(facts: Mapping[str, Any]) -> BackfillProgress:
    """Read a backfill."""
    return read(BackfillProgress, facts)


def instants(facts: Mapping[str, Any]) -> list[datetime]:
    """Read a list of instants."""
    return [datetime.fromisoformat(text) for text in facts["items"]]
