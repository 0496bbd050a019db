"""Bulk operations that outlast a request: counted, begun, shown while they are carried out, stopped and continued.

The set is stored when it is counted: nothing is done to what matches later. A thread of the process that was asked
works it off. When that process dies, no process continues by itself: whoever looks sees how far it came, and continues
it in any process. What was done without a record then is not done again, and counts as done: a trigger finds the run
that it started, anything else the schedule's event that names the action.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from rqsched.api.bulk import BATCH, Bulk, carry_out
from rqsched.chain.backfill import pause_between_chunks
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import DELETED, PAUSED, RESUMED, SKIPS_SET, CommandContext
from rqsched.core.ids import is_uid, iso_utc, new_uid
from rqsched.core.policy import CatchUp, OverlapPolicy
from rqsched.core.results import BulkRow
from rqsched.errors import ConflictError, NotFoundError
from rqsched.store import event_queries, metadata
from rqsched.store.database import Connection
from rqsched.store.schedule_queries import Filters

_log = logging.getLogger(__name__)
KEPT = timedelta(hours=12)
"""How long it is known after it was counted: half as long as the idempotency keys of its triggers."""
MOST_KEPT: Mapping[str, int] = {"counted": 20, "stopped": 20, "done": 100}
"""How many are kept that were counted and not begun, that were stopped or interrupted, and that are done."""
MOST_STOPS = 100
"""How many stops are kept for the audit."""
SILENT = timedelta(seconds=15)
"""After so long without progress the process that carries it out counts as gone."""
_NAMED = 50
"""The most skipped schedules that are named with their reason; the others are counted."""
AT_ONCE = 4
"""How many one process carries out."""
SLOTS = threading.BoundedSemaphore(AT_ONCE)
"""Those of this process."""
_STATE, _SET = "bulk:", "bulkset:"
"""The names of what is stored: how far it is, and the ids of its schedules by uid until it is done."""
_STOPS = "bulkstops"
"""The name of the stops."""
_TOLD = {
    "pause": (PAUSED, "paused"),
    "resume": (RESUMED, "resumed"),
    "restart": (RESUMED, "restarted"),
    "delete": (DELETED, "deleted"),
    "skip_next": (SKIPS_SET, "skips_next"),
}
"""The event that tells of each operation, and the outcome of it; a trigger has a key instead."""
_EVENTS, _LAST = 1_000, 2**62
"""Among so many newest events of a schedule, up to this sequence, it is looked for."""


@dataclass(frozen=True, slots=True)
class BulkAction:
    """One bulk operation as its row has it."""

    uid: str
    """Names it."""
    namespace: str
    """Whose schedules."""
    operation: str
    """What `Bulk.operation` has."""
    asked: dict[str, str]
    """How the caller names the filters that the schedules match."""
    total: int
    """How many matched when they were counted."""
    created_at: datetime
    """When that was."""
    updated_at: datetime
    """When it was begun or continued last, or made progress last."""
    status: str = "counted"
    """`counted`, `running`, `stopped` or `done`."""
    stopped_by: str | None = None
    """Who asked to stop it since it was begun or continued last."""
    context: dict[str, Any] = field(default_factory=dict)
    """Who began or continued it last, and why it was begun, as `CommandContext.to_json`."""
    choices: dict[str, str] = field(default_factory=dict)
    """`catch_up`, `overlap` where they are not each schedule's own; `until` of a pause, `count` of what is skipped."""
    worker: str = ""
    """Names who carries it out; whoever continues it draws another name."""
    begun_at: datetime | None = None
    """When it was begun or continued last."""
    begun_from: int = 0
    """Behind how many of the set that was."""
    position: int = 0
    """How many of the set are behind it."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many had each outcome."""
    skipped: list[list[str]] = field(default_factory=list)
    """The first that were skipped: id and reason."""

    def is_interrupted(self, now: datetime) -> bool:
        """Return whether it should be carried out and nobody does."""
        return self.status == "running" and now - self.updated_at > SILENT

    def ends_at(self, now: datetime) -> datetime | None:
        """Estimate when it ends, by its pace since it was begun; None when nothing tells."""
        done = self.position - self.begun_from
        if self.begun_at is None or done <= 0:
            return None
        return now + (self.updated_at - self.begun_at) * (self.total - self.position) / done

    def after(self, rows: Sequence[BulkRow], now: datetime) -> BulkAction:
        """Return it with some more of the set behind it."""
        skipped = [[row.schedule_id, row.reason or ""] for row in rows if row.outcome == "skipped"]
        return replace(
            self,
            position=self.position + len(rows),
            counts=dict(Counter(self.counts) + Counter(row.outcome for row in rows)),
            skipped=[*self.skipped, *skipped][:_NAMED],
            updated_at=now,
        )

    def dumps(self) -> str:
        """Return it as its row has it."""
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def loads(cls, text: str) -> BulkAction:
        """Read it from its row; what a newer release added is ignored."""
        stored = json.loads(text)
        known = {one.name: stored[one.name] for one in fields(cls) if one.name in stored}
        times = ("created_at", "updated_at", "begun_at")
        return cls(**known | {name: datetime.fromisoformat(stored[name]) for name in times if stored[name]})


def count(
    runtime: Runtime, operation: str, namespace: str, fixed: Mapping[str, str], asked: dict[str, str]
) -> BulkAction:
    """Store a set that was fixed (`bulk.fix`); nothing is done yet. Old ones are forgotten."""
    now = runtime.now()
    action = BulkAction(new_uid(now), namespace, operation, asked, len(fixed), created_at=now, updated_at=now)

    def write(connection: Connection) -> None:
        known = _known(connection)
        old = {one.uid for one in known if _is_old(one, now)}
        for status, most in MOST_KEPT.items():
            alike = [one.uid for one in known if status == ("stopped" if one.is_interrupted(now) else one.status)]
            old |= {*alike[most - (status == "counted") :]}
        metadata.remove_values(connection, sorted(name + uid for uid in old for name in (_STATE, _SET)))
        metadata.set_value(connection, _SET + action.uid, json.dumps(dict(fixed)))
        _save(connection, action)

    runtime.database.transact(write)
    return action


def _known(connection: Connection) -> list[BulkAction]:
    """Read all, the newest first."""
    found = metadata.values_under(connection, _STATE)
    return [BulkAction.loads(found[name]) for name in sorted(found, reverse=True)]


def _is_old(action: BulkAction, now: datetime) -> bool:
    return action.created_at < now - KEPT


def unfinished(connection: Connection, namespace: str, now: datetime) -> list[BulkAction]:
    """Read those of a namespace that were begun and have not reached their end, the newest first."""
    is_meant = {"running", "stopped"}
    return [
        one
        for one in _known(connection)
        if one.namespace == namespace and one.status in is_meant and not _is_old(one, now)
    ]


def find(runtime: Runtime, namespace: str, uid: str) -> BulkAction:
    """Read one; raises NotFoundError."""
    look = partial(metadata.find_value, name=_STATE + uid)
    return _require(runtime.database.read(look) if is_uid(uid) else None, namespace, runtime.now())


def _require(text: str | None, namespace: str, now: datetime) -> BulkAction:
    action = None if text is None else BulkAction.loads(text)
    if action is None or action.namespace != namespace or _is_old(action, now):
        raise NotFoundError(
            "this bulk action is not known, or was forgotten after 12 hours; make a new count in the list of schedules."
        )
    return action


def _lock(connection: Connection, known: BulkAction, clock: Callable[[], datetime]) -> tuple[BulkAction, datetime]:
    """Read it as it is now, and when that is; others do not change it until the transaction ends.

    Raises NotFoundError.
    """
    text = metadata.lock_value(connection, _STATE + known.uid)
    now = clock()
    return _require(text, known.namespace, now), now


def begin(runtime: Runtime, known: BulkAction, filters: Filters, bulk: Bulk) -> BulkAction:
    """Carry it out from where it is, in a thread of this process; one that somebody carries out is left alone.

    `filters` are those of `asked`; `bulk` says who asks and, the first time, why and with which choices. Raises
    NotFoundError, and ConflictError when this process carries out as many as it may.
    """
    context = bulk.context or CommandContext()
    worker = secrets.token_hex(8)

    def decide(connection: Connection) -> BulkAction:
        held, now = _lock(connection, known, runtime.now)
        is_carried_out = held.status == "running" and not held.is_interrupted(now)
        if is_carried_out or held.status == "done":
            return held
        if held.begun_at is None:
            chosen = {"catch_up": bulk.catch_up, "overlap": bulk.overlap}
            choices = {name: one.value for name, one in chosen.items() if one is not None}
            choices |= {} if bulk.until is None else {"until": iso_utc(bulk.until)}
            choices |= {"count": str(bulk.skips)} if bulk.operation == "skip_next" else {}
            held = replace(held, context=context.to_json(), choices=choices)
        else:
            held = replace(held, context=replace(context, reason=held.context.get("reason")).to_json())
        held = replace(held, status="running", worker=worker, stopped_by=None)
        return _save(connection, replace(held, begun_at=now, begun_from=held.position, updated_at=now))

    if not SLOTS.acquire(blocking=False):
        raise ConflictError(f"this process carries out {AT_ONCE} bulk actions; begin when one of them has ended.")
    with ExitStack() as slot:
        slot.callback(SLOTS.release)
        action = runtime.database.transact(decide)
        if action.worker == worker:
            slot.pop_all()
            name = f"bulk-{action.uid}"
            threading.Thread(target=_carry_out, args=(runtime, action, filters), name=name, daemon=True).start()
    return action


class BulkStop(NamedTuple):
    """That somebody stopped one: kept when it is forgotten itself."""

    namespace: str
    """Whose schedules."""
    operation: str
    """What `Bulk.operation` has."""
    total: int
    """How many schedules it was about."""
    position: int
    """Behind how many of them it was then."""
    begun_by: str | None
    """Who began or continued it last; None when nobody's name was recorded."""
    by: str
    """Who stopped it."""
    at: datetime
    """When."""


def stop(runtime: Runtime, known: BulkAction, by: str) -> None:
    """Have it stop behind the batch that is being done; what is done stays done. Raises NotFoundError."""

    def decide(connection: Connection) -> None:
        held, now = _lock(connection, known, runtime.now)
        if held.status != "running" or held.stopped_by is not None:
            return
        _save(connection, replace(held, stopped_by=by))
        metadata.claim_value(connection, _STOPS, "[]")
        begun_by = held.context.get("principal")
        made = BulkStop(held.namespace, held.operation, held.total, held.position, begun_by, by, now)
        kept = [made, *_read_stops(metadata.lock_value(connection, _STOPS))][:MOST_STOPS]
        metadata.set_value(connection, _STOPS, json.dumps(kept, default=datetime.isoformat))

    runtime.database.transact(decide)


def stops(connection: Connection, namespace: str) -> list[BulkStop]:
    """Read the stops in a namespace that are kept, the newest first."""
    return [one for one in _read_stops(metadata.find_value(connection, _STOPS)) if one.namespace == namespace]


def forget(connection: Connection, namespace: str) -> None:
    """Delete the actions of a namespace, and that somebody stopped some."""
    uids = (
        name.removeprefix(_STATE)
        for name, text in metadata.values_under(connection, _STATE).items()
        if json.loads(text)["namespace"] == namespace
    )
    metadata.remove_values(connection, sorted(name + uid for uid in uids for name in (_STATE, _SET)))
    if (text := metadata.lock_value(connection, _STOPS)) is not None:
        kept = [one for one in _read_stops(text) if one.namespace != namespace]
        metadata.set_value(connection, _STOPS, json.dumps(kept, default=datetime.isoformat))


def _read_stops(text: str | None) -> list[BulkStop]:
    found = (BulkStop._make(row) for row in json.loads(text or "[]"))
    return [one._replace(at=datetime.fromisoformat(str(one.at))) for one in found]


def _save(connection: Connection, action: BulkAction) -> BulkAction:
    metadata.set_value(connection, _STATE + action.uid, action.dumps())
    return action


def _carry_out(runtime: Runtime, action: BulkAction, filters: Filters) -> None:
    """Work off what is left, batch by batch, until it ends, is stopped, or somebody else continues it."""
    try:
        text = runtime.database.read(partial(metadata.find_value, name=_SET + action.uid)) or "{}"
        left = dict(islice(json.loads(text).items(), action.position, None))
        rows = carry_out(runtime, _bulk(action), left, filters)
        is_first = True
        while batch := list(islice(rows, BATCH)):
            if is_first:
                batch, is_first = _with_unrecorded(runtime, action, batch, [*left]), False
            moved = action.after(batch, runtime.now())
            action = runtime.database.transact(partial(_record, runtime, moved=moved))
            if action.status != "running" or action.worker != moved.worker:
                return
            pause_between_chunks()
    except Exception:  # noqa: BLE001 - a thread's boundary
        _log.exception("bulk action %s is interrupted", action.uid, extra={"action": "bulk_interrupted"})
    finally:
        SLOTS.release()


def _with_unrecorded(
    runtime: Runtime, action: BulkAction, batch: Sequence[BulkRow], uids: Sequence[str]
) -> list[BulkRow]:
    """Return the first batch with what a process that died had done of it, and not recorded, as done."""
    if action.operation not in _TOLD:
        return [*batch]
    event_type, outcome = _TOLD[action.operation]

    def has_done(connection: Connection, uid: str) -> bool:
        found = event_queries.newest_of_types(connection, uid, [event_type], _LAST, _EVENTS)
        context = {} if found is None else found.payload.get("command_context") or {}
        return (context.get("context") or {}).get("bulk_action") == action.uid

    def read(connection: Connection) -> list[BulkRow]:
        return [
            BulkRow(row.schedule_id, outcome) if row.outcome == "skipped" and has_done(connection, uid) else row
            for row, uid in zip(batch, uids, strict=False)
        ]

    return runtime.database.read(read)


def _bulk(action: BulkAction) -> Bulk:
    """Return what is done to each. Triggers have its uid as their key: none starts twice, whoever continues it.

    What else is done names it in the event of each schedule.
    """
    catch_up, overlap, until = (action.choices.get(name) for name in ("catch_up", "overlap", "until"))
    return Bulk(
        action.operation,
        reason=action.context.get("reason"),
        catch_up=CatchUp.of(catch_up) if catch_up else None,
        until=datetime.fromisoformat(until) if until else None,
        overlap=OverlapPolicy.of(overlap) if overlap else None,
        idempotency_key=f"bulk-{action.uid}",
        context=replace(CommandContext.from_json(action.context), context={"bulk_action": action.uid}),
        force=True,
        skips=int(action.choices.get("count", 1)),
    )


def _record(runtime: Runtime, connection: Connection, moved: BulkAction) -> BulkAction:
    """Write the progress, however often; returns what is stored when somebody else carries it out now."""
    held, now = _lock(connection, moved, runtime.now)
    if held.worker != moved.worker:
        return held
    moved = replace(moved, updated_at=now)
    if moved.position < moved.total:
        status = "stopped" if held.stopped_by else "running"
        return _save(connection, replace(moved, status=status, stopped_by=held.stopped_by))
    metadata.remove_values(connection, [_SET + moved.uid])
    return _save(connection, replace(moved, status="done"))
