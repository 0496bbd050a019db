"""Creates and upserts: schedules are created, or changed to what is declared; many upserts take one transaction."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple

from rqsched.chain.caller_transaction import despite_others, operate_in
from rqsched.chain.operations import open_runs
from rqsched.chain.quotas import quota_of, require_room_for
from rqsched.chain.runtime import Runtime
from rqsched.core import lifecycle
from rqsched.core.audit import CommandContext
from rqsched.core.change_builder import combined
from rqsched.core.ids import new_uid, new_uids
from rqsched.core.lifecycle import Identity
from rqsched.core.model import Change, Definition, Run, Schedule, ScheduleStatus, changed, unchanged
from rqsched.core.option_table import require_key
from rqsched.errors import RqschedError, ScheduleExistsError
from rqsched.spec.zones import tzdata_version
from rqsched.store import changes, idempotency, one_change
from rqsched.store.caller_transaction import CallerTransaction
from rqsched.store.database import Connection
from rqsched.store.idempotency import Key

_log = logging.getLogger(__name__)

RunsOf = Callable[[Schedule], Sequence[Run]]
"""Reads what a decision about a schedule must see."""
_Done = list[tuple[Change, str]]
"""What was decided of each schedule, and whether it was `created`, `updated` or is `unchanged`."""


class Named(NamedTuple):
    """Which schedule a caller means."""

    namespace: str
    """The namespace it lives in."""
    schedule_id: str
    """Its id there, unique among schedules that are not deleted."""


class Request(NamedTuple):
    """What `create` and `upsert` are asked to bring about."""

    named: Named
    """Which schedule."""
    definition: Definition
    """What its owner declares."""
    note: str | None = None
    """Text for people; None leaves a known schedule's note as it is."""
    paused: bool | None = None
    """None leaves a known schedule's status as it is, and creates an active one."""
    context: CommandContext | None = None
    """Who asks and why, for the audit event; None says nothing."""
    keep_next: bool = False
    """Keep the next time even when the timing changed (Waymark)."""
    must_have_future: bool = True
    """Refuse a new schedule that would never fire."""
    key: str | None = None
    """The idempotency key of a create: the same key with the same request returns the same schedule, for a day."""
    answer: Callable[[Schedule], str] | None = None
    """What a surface answers a create with a key: kept with the key, so that a repetition is answered alike."""
    shared: Definition | None = None
    """The definition without its arguments, where many requests share that very object; None when it is its own."""


def create(runtime: Runtime, request: Request, *, within: CallerTransaction | None = None) -> Schedule:
    """Write a new schedule; raises ScheduleExistsError when its id is taken.

    Under an idempotency key that created a schedule before, that one is returned, in whatever state it is now. Raises
    WrongDatabaseError, with nothing written, when Redis belongs to another database.
    """
    runtime.require_own_redis()
    uid = new_uid(runtime.now())
    if within is None and (made := _create_alone(runtime, request, uid)) is not None:
        return made
    key = _key_of(request)

    def work(connection: Connection) -> Change:
        namespace, schedule_id = request.named.namespace, request.named.schedule_id
        # The schedule first, then the key: both were committed together, so what sees the schedule sees its key.
        known = changes.lock_named(connection, namespace, [schedule_id]).get(schedule_id)
        made = key and idempotency.made_by(connection, key, runtime.now())
        if made and (earlier := changes.find(connection, made)) is not None:
            return unchanged(earlier)
        if known is not None and known.uid == uid:
            return Change(known, known)
        if known is not None:
            raise ScheduleExistsError(schedule_id, namespace)
        change = created(request, uid, runtime.now())
        require_room_for(runtime, connection, namespace, [change])
        if key is not None:
            answer = request.answer and request.answer(change.after)
            idempotency.hold(connection, key, uid, runtime.now(), answer)
        runtime.notifier.write(connection, [change])
        return change

    return operate_in(within, runtime, work, lambda change: [change], creates=1).after


def _create_alone(runtime: Runtime, request: Request, uid: str) -> Schedule | None:
    """Create a schedule by one statement where nothing but its id must be asked; returns None where it did not."""
    limits = quota_of(runtime, request.named.namespace)
    if request.key is not None or not limits.is_unlimited or not runtime.database.takes_single_statements:
        return None
    try:
        change = created(request, uid, runtime.now())
    except RqschedError:  # but that the id is taken is said first
        return None
    if runtime.notifier.owed([change]):
        return None
    if not runtime.database.transact_alone(lambda connection: one_change.create_alone(connection, change)):
        return None
    runtime.publish([change])
    return change.after


def _key_of(request: Request) -> Key | None:
    """Digest what the owner said, without what we add, to tell two requests under the same key apart."""
    if request.key is None:
        return None
    said = asdict(replace(request.definition, defaults="{}"))
    said["jitter"] = request.definition.jitter.total_seconds()
    if request.definition.notifications == "{}":
        del said["notifications"]  # the release before has no such field, and its keys live for a day
    digest = idempotency.digest_of(request.named.schedule_id, said, request.note, bool(request.paused))
    return Key(request.named.namespace, require_key(request.key), digest)


def created(request: Request, uid: str, now: datetime) -> Change:
    """Decide to create what a request asks for; raises InvalidSpecError for what never fires, where that matters."""
    if request.must_have_future:
        lifecycle.require_future(request.definition.parsed_spec, now)
    return lifecycle.decide_create(
        Identity(uid, request.named.namespace, request.named.schedule_id),
        request.definition,
        now=now,
        paused=bool(request.paused),
        note=request.note,
        tzdata=tzdata_version(),
        context=request.context,
        operation=uid,
    )


def upsert(runtime: Runtime, request: Request, *, within: CallerTransaction | None = None) -> tuple[Schedule, str]:
    """Create or change in place; returns the schedule and `created`, `updated` or `unchanged`.

    Raises WrongDatabaseError, with nothing written, when Redis belongs to another database.
    """
    work = _work(runtime, [request])
    [(change, outcome)] = operate_in(within, runtime, work, _changes, creates=1)
    return change.after, outcome


def upsert_batches(
    runtime: Runtime, batches: Iterable[Sequence[Request]], report: Callable[[Schedule, str], object]
) -> None:
    """Upsert distinct schedules of one namespace, each batch in a transaction of its own; reports each once committed.

    Redis follows one batch while the next is written, and then subscribers are told. Raises as `upsert` does; what was
    written before is followed and told all the same.
    """
    untold: deque[tuple[_Done, Callable[[], object]]] = deque()
    with ThreadPoolExecutor(1, "rqsched-follow") as threads:
        try:
            for batch in batches:
                done = despite_others(runtime, _work(runtime, batch), len(batch))
                untold.append((done, _start_following(threads, runtime, done)))
                for change, outcome in done:
                    report(change.after, outcome)
                _tell(runtime, untold, but=1)
        finally:
            _tell(runtime, untold)


def _start_following(threads: Executor, runtime: Runtime, done: _Done) -> Callable[[], object]:
    """Let Redis follow in a thread; returns what waits for it."""
    follow = partial(_follow, runtime, _changes(done))
    try:
        return threads.submit(copy_context().run, follow).result
    except RuntimeError:  # no thread can be started; one that starts later follows once more, which changes nothing
        return follow


def _follow(runtime: Runtime, changes: Sequence[Change]) -> None:
    """Let Redis follow what is committed; nothing is raised, for reconcile finds what is missing."""
    try:
        runtime.follow(changes)
    except Exception:  # noqa: BLE001 - the commit is made
        _log.exception("links and jobs follow later", extra={"action": "follow_failed"})


def _tell(runtime: Runtime, untold: deque[tuple[_Done, Callable[[], object]]], but: int = 0) -> None:
    """Tell subscribers of the first batches, `but` the last so many, each once Redis has followed."""
    while len(untold) > but:
        done, wait = untold[0]
        wait()
        untold.popleft()
        runtime.tell(_changes(done))


def _work(runtime: Runtime, requests: Sequence[Request]) -> Callable[[Connection], _Done]:
    """Return what upserts schedules of one namespace in one transaction; it returns what it did in the same order.

    Raises WrongDatabaseError when Redis belongs to another database.
    """
    runtime.require_own_redis()
    # In this order they are listed: they are created at one instant.
    uids = new_uids(runtime.now(), len(requests))

    def work(connection: Connection) -> _Done:
        known = _known(partial(changes.lock_named, connection), requests)
        done = _Upserting(partial(open_runs, connection), runtime.now()).upsert_each(known, requests, uids)
        require_room_for(runtime, connection, requests[0].named.namespace, _changes(done))
        # In one order for all, so that two who create the same set wait for each other one way only.
        runtime.notifier.write(connection, sorted(_changes(done), key=lambda change: change.after.schedule_id))
        return done

    return work


def _changes(done: _Done) -> list[Change]:
    return [change for change, _ in done]


class _Upserting:
    """Upserts of one transaction, at one instant: what is created alike is decided once."""

    def __init__(self, runs_of: RunsOf, now: datetime) -> None:
        self._runs_of = runs_of
        self._now = now
        self._made: dict[tuple[object, ...], Change] = {}

    def upsert_each(self, known: Mapping[str, Schedule], requests: Sequence[Request], uids: Sequence[str]) -> _Done:
        """Decide about each, of which those that are `known` by their id are there."""
        return [
            self.upsert(known.get(request.named.schedule_id), request, uid)
            for request, uid in zip(requests, uids, strict=True)
        ]

    def upsert(self, known: Schedule | None, request: Request, uid: str) -> tuple[Change, str]:
        """Decide about one, whose row is locked if its Change is to be written; returns that and what it does."""
        if known is None:
            return self._create(request, uid), "created"
        if known.operation == uid:  # committed before, and the answer was lost
            return Change(known, known), "created" if known.uid == uid else "updated"
        change = _changed(self._runs_of, known, request, uid, self._now)
        return change, "unchanged" if change.is_empty else "updated"

    def _create(self, request: Request, uid: str) -> Change:
        shared = request.shared or request.definition
        if not lifecycle.is_shared(shared):
            return created(request, uid, self._now)
        # The very same definition: to compare two of them would take as long as to decide.
        alike = id(shared), request.note, request.paused, id(request.context), request.must_have_future
        if (made := self._made.get(alike)) is None:
            made = self._made[alike] = created(request, uid, self._now)
            return made
        named = request.named
        identity = Identity(uid, named.namespace, named.schedule_id)
        return lifecycle.created_alike(made, identity, request.definition, uid)


def preview_upserts(runtime: Runtime, requests: Sequence[Request]) -> list[str]:
    """Say what `upsert_batches` would do now, by deciding it: `created`, `updated` or `unchanged`. Writes nothing."""
    uids = new_uids(runtime.now(), len(requests))

    def work(connection: Connection) -> list[str]:
        known = _known(partial(changes.find_all_named, connection), requests)
        upserting = _Upserting(lambda one: changes.open_runs(connection, [one])[one.uid], runtime.now())
        return [outcome for _, outcome in upserting.upsert_each(known, requests, uids)]

    return runtime.database.read(work)


def _known(
    read: Callable[[str, Sequence[str]], dict[str, Schedule]], requests: Sequence[Request]
) -> dict[str, Schedule]:
    """Read those that are there of the schedules that are asked for, by id; they are of one namespace."""
    return read(requests[0].named.namespace, [request.named.schedule_id for request in requests])


def _changed(runs_of: RunsOf, schedule: Schedule, request: Request, operation: str, now: datetime) -> Change:
    change = lifecycle.decide_update(
        schedule,
        _declared(schedule, request),
        now=now,
        note=request.note,
        tzdata=tzdata_version(),
        context=request.context,
        operation=operation,
        keep_next=request.keep_next,
    )
    if not request.keep_next and lifecycle.can_continue(change.after, now):  # Waymark's registration restarts instead
        runs = runs_of(schedule)
        continued = lifecycle.decide_continue(change.after, runs, now=now, context=request.context, operation=operation)
        change = combined(change, continued)
    return combined(change, _switched(runs_of, change.after, request, now, operation))


def _switched(runs_of: RunsOf, schedule: Schedule, request: Request, now: datetime, operation: str) -> Change:
    """Pause or resume as requested; Waymark's registration also makes active what was done or dead."""
    context = request.context
    if request.paused and schedule.is_active:
        return lifecycle.decide_pause(schedule, now=now, context=context, operation=operation)
    if request.paused is not False:
        return unchanged(schedule)
    runs = runs_of(schedule)
    if schedule.status is ScheduleStatus.PAUSED:
        keep = request.keep_next
        return lifecycle.decide_resume(schedule, runs, now=now, context=context, operation=operation, keep_next=keep)
    if request.keep_next and schedule.status in {ScheduleStatus.DONE, ScheduleStatus.DEAD}:
        return lifecycle.decide_restart(schedule, runs, now=now, context=context, operation=operation)
    return unchanged(schedule)


def _declared(known: Schedule, request: Request) -> Definition:
    """Return the requested options but keep who made the schedule: `sync` prunes only what a sync made."""
    return changed(request.definition, managed_by=known.definition.managed_by)
