"""Bulk operations that outlast a request: counted, begun, shown in progress, stopped and continued.

The set is stored when it is counted: schedules that match only later are not changed. A thread of the requested process
works it off. If that process dies, no other continues by itself: a user sees the progress, and continues the action in
any process. An operation that was done but not recorded is not repeated and counts as done: a trigger finds the run
that it started, any other operation the schedule's event that names the action.
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
"""How long an action is kept after it was counted: half as long as the idempotency keys of its triggers."""
MOST_KEPT: Mapping[str, int] = {"counted": 20, "stopped": 20, "done": 100}
"""How many actions are kept in each status; `stopped` includes interrupted ones."""
MOST_STOPS = 100
"""How many stops are kept for the audit."""
SILENT = timedelta(seconds=15)
"""The time without progress after which the process that carries out an action counts as dead."""
_NAMED = 50
"""The most skipped schedules that are named with their reason; the others are counted."""
AT_ONCE = 4
"""The most actions that one process carries out."""
SLOTS = threading.BoundedSemaphore(AT_ONCE)
"""The free places of this process."""
_STATE, _SET = "bulk:", "bulkset:"
"""The prefixes of stored values: the state of an action, and the ids of its schedules by uid until it is done."""
_STOPS = "bulkstops"
"""The name of the stored stops."""
_TOLD = {
    "pause": (PAUSED, "paused"),
    "resume": (RESUMED, "resumed"),
    "restart": (RESUMED, "restarted"),
    "delete": (DELETED, "deleted"),
    "skip_next": (SKIPS_SET, "skips_next"),
}
"""The event that records each operation, and its outcome; a trigger has a key instead."""
_EVENTS, _LAST = 1_000, 2**62
"""The newest events of a schedule that are searched for it, and the sequence to begin from."""


@dataclass(frozen=True, slots=True)
class BulkAction:
    """One bulk operation, as stored."""

    uid: str
    """Its identity."""
    namespace: str
    """The namespace of its schedules."""
    operation: str
    """The same as `Bulk.operation`."""
    asked: dict[str, str]
    """The filters of the schedules in the caller's words."""
    total: int
    """How many schedules matched when they were counted."""
    created_at: datetime
    """When they were counted."""
    updated_at: datetime
    """When it was last begun or continued, or last made progress."""
    status: str = "counted"
    """`counted`, `running`, `stopped` or `done`."""
    stopped_by: str | None = None
    """The principal that asked to stop it since it was last begun or continued."""
    context: dict[str, Any] = field(default_factory=dict)
    """The principal that last began or continued it, and its reason, as `CommandContext.to_json`."""
    choices: dict[str, str] = field(default_factory=dict)
    """The given `catch_up` and `overlap`, the `until` of a pause and the `count` of skips."""
    worker: str = ""
    """The random name of the thread that carries it out; continuing it draws another name."""
    begun_at: datetime | None = None
    """When it was begun or continued last."""
    begun_from: int = 0
    """The `position` at that time."""
    position: int = 0
    """How many schedules of the set are done."""
    counts: dict[str, int] = field(default_factory=dict)
    """How many had each outcome."""
    skipped: list[list[str]] = field(default_factory=list)
    """The first skipped schedules: id and reason."""

    def is_interrupted(self, now: datetime) -> bool:
        """Return whether it is running but its process is gone."""
        return self.status == "running" and now - self.updated_at > SILENT

    def ends_at(self, now: datetime) -> datetime | None:
        """Estimate when it ends, by its pace since it was begun; None without progress."""
        done = self.position - self.begun_from
        if self.begun_at is None or done <= 0:
            return None
        return now + (self.updated_at - self.begun_at) * (self.total - self.position) / done

    def after(self, rows: Sequence[BulkRow], now: datetime) -> BulkAction:
        """Return the action with more schedules done."""
        skipped = [[row.schedule_id, row.reason or ""] for row in rows if row.outcome == "skipped"]
        return replace(
            self,
            position=self.position + len(rows),
            counts=dict(Counter(self.counts) + Counter(row.outcome for row in rows)),
            skipped=[*self.skipped, *skipped][:_NAMED],
            updated_at=now,
        )

    def dumps(self) -> str:
        """Return the action as stored text."""
        return json.dumps(asdict(self), default=datetime.isoformat)

    @classmethod
    def loads(cls, text: str) -> BulkAction:
        """Read an action from stored text; fields of a newer release are ignored."""
        stored = json.loads(text)
        known = {one.name: stored[one.name] for one in fields(cls) if one.name in stored}
        times = ("created_at", "updated_at", "begun_at")
        return cls(**known | {name: datetime.fromisoformat(stored[name]) for name in times if stored[name]})


def count(
    runtime: Runtime, operation: str, namespace: str, fixed: Mapping[str, str], asked: dict[str, str]
) -> BulkAction:
    """Store a fixed set (`bulk.fix`) as an action that is not begun; forget old actions."""
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
    """Read all actions, the newest first."""
    found = metadata.values_under(connection, _STATE)
    return [BulkAction.loads(found[name]) for name in sorted(found, reverse=True)]


def _is_old(action: BulkAction, now: datetime) -> bool:
    return action.created_at < now - KEPT


def unfinished(connection: Connection, namespace: str, now: datetime) -> list[BulkAction]:
    """Read the actions of a namespace that were begun and are not done, the newest first."""
    is_meant = {"running", "stopped"}
    return [
        one
        for one in _known(connection)
        if one.namespace == namespace and one.status in is_meant and not _is_old(one, now)
    ]


def find(runtime: Runtime, namespace: str, uid: str) -> BulkAction:
    """Read one action; raises NotFoundError."""
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
    """Lock and read an action, and read the time.

    Raises NotFoundError.
    """
    text = metadata.lock_value(connection, _STATE + known.uid)
    now = clock()
    return _require(text, known.namespace, now), now


def begin(runtime: Runtime, known: BulkAction, filters: Filters, bulk: Bulk) -> BulkAction:
    """Carry out an action from its position, in a thread of this process, unless another thread does already.

    `filters` are those of `asked`. `bulk` has the caller and, the first time, the reason and the choices. Raises
    NotFoundError, and ConflictError when this process carries out `AT_ONCE` actions.
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
    """The stop of an action, which is kept longer than the action."""

    namespace: str
    """The namespace of its schedules."""
    operation: str
    """The same as `Bulk.operation`."""
    total: int
    """How many schedules the action had."""
    position: int
    """How many of them were done at the stop."""
    begun_by: str | None
    """The principal that last began or continued the action; None if not recorded."""
    by: str
    """The principal that stopped it."""
    at: datetime
    """When."""


def stop(runtime: Runtime, known: BulkAction, by: str) -> None:
    """Stop an action after its current batch; done operations stay done. Raises NotFoundError."""

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
    """Read the kept stops of a namespace, the newest first."""
    return [one for one in _read_stops(metadata.find_value(connection, _STOPS)) if one.namespace == namespace]


def forget(connection: Connection, namespace: str) -> None:
    """Delete the actions of a namespace, and their stops."""
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
    """Work off the rest, batch by batch, until it is done, is stopped, or is continued by another thread."""
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
    """Return the first batch, with operations that a dead process did but did not record marked as done."""
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
    """Return the operation on each schedule. The action's uid is the key of triggers, so that none starts twice.

    Other operations name the action in the event of each schedule.
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
    """Write the progress, idempotently; if another thread carries out the action now, return the stored state."""
    held, now = _lock(connection, moved, runtime.now)
    if held.worker != moved.worker:
        return held
    moved = replace(moved, updated_at=now)
    if moved.position < moved.total:
        status = "stopped" if held.stopped_by else "running"
        return _save(connection, replace(moved, status=status, stopped_by=held.stopped_by))
    metadata.remove_values(connection, [_SET + moved.uid])
    return _save(connection, replace(moved, status="done"))
