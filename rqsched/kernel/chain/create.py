"""Create schedules, or change existing schedules to their declared definition. Many upserts share one transaction.

A plan around excluded days may take long to make. It is made before anything is locked, and used if nothing has changed
since.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias, TypeVar

from rqsched.errors import ScheduleExistsError, UnknownCalendarError
from rqsched.kernel.chain.change import change, commit
from rqsched.kernel.chain.commit import Decide, Decided, announce, follow
from rqsched.kernel.chain.operations import lock_declared, open_runs
from rqsched.kernel.chain.plans import CalendarsOf, Plan, outcome_of, read_ran, while_calendars_move
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.change_builder import combined
from rqsched.kernel.decide.ids import new_uid, new_uids
from rqsched.kernel.decide.lifecycle import Identity, RunsOf
from rqsched.kernel.decide.model import Change, Definition, Run, Schedule, ScheduleStatus, changed, unchanged
from rqsched.kernel.decide.moves import RanOf
from rqsched.kernel.decide.options import require_key
from rqsched.kernel.store import changes, idempotency, named_calendars
from rqsched.kernel.store.caller_transaction import CallerTransaction
from rqsched.kernel.store.database import Connection
from rqsched.kernel.store.idempotency import Key
from rqsched.when.calendars import Calendar
from rqsched.when.zones import tzdata_version

_log = logging.getLogger(__name__)

R = TypeVar("R")
_Outcomes = list[tuple[Schedule, str]]
"""Each schedule after the request, and whether it was `created`, `updated` or is `unchanged`."""


class Named(NamedTuple):
    """The identity of a schedule."""

    namespace: str
    """The namespace of the schedule."""
    schedule_id: str
    """The schedule's id, unique among the schedules of the namespace that are not deleted."""


class ScheduleRequest(NamedTuple):
    """A request to `create` or `upsert` a schedule."""

    named: Named
    """The schedule to create or change."""
    definition: Definition
    """The definition that the owner declares."""
    note: str | None = None
    """Text for people; None leaves a known schedule's note as it is."""
    paused: bool | None = None
    """None leaves a known schedule's status as it is, and makes a new schedule active."""
    context: CommandContext | None = None
    """The actor and the reason, for the audit event; None records neither."""
    keep_next: bool = False
    """Keep the next time even if the timing changed, as Waymark's registration of a schedule does."""
    must_have_future: bool = True
    """Refuse a new schedule that would never fire."""
    starts_past: bool = False
    """If a new schedule would never fire, start a run at once (Django's tasks use this)."""
    key: str | None = None
    """The idempotency key of a create: the same key with the same request returns the same schedule, for a day."""
    answer: Callable[[Schedule], str] | None = None
    """Returns the response to a create with a key. It is stored with the key, so a repeated create gets the same
    response."""
    shared: Definition | None = None
    """The definition without its arguments, if many requests share this one object; else None."""

    @property
    def upstream_id(self) -> str | None:
        """The id of the schedule's upstream; None for a schedule with times of its own."""
        after = self.definition.parsed_spec.after
        return None if after is None else after.schedule_id


def create(runtime: Runtime, request: ScheduleRequest, *, within: CallerTransaction | None = None) -> Schedule:
    """Write a new schedule; raises ScheduleExistsError if its id is taken.

    If the idempotency key created a schedule before, that schedule is returned in its present state. Raises
    WrongDatabaseError, before anything is written, if Redis belongs to another database.
    """
    if (tracing := runtime.tracing) is None:
        return _create_one(runtime, request, within)
    with tracing.asked("create", request.context) as asked:
        schedule = _create_one(runtime, request._replace(context=asked.context), within)
        asked.note(schedule, schedule.status.value)
        return schedule


def _create_one(runtime: Runtime, request: ScheduleRequest, within: CallerTransaction | None) -> Schedule:
    runtime.ownership.require_own_redis()
    uid = new_uid(runtime.now())

    def attempt() -> Schedule:
        plans = _plans_of(runtime, [request], [uid], within)
        return change(
            runtime,
            partial(_create, runtime, request, uid, _key_of(request), plans),
            within=within,
            creates=1,
        )

    return while_calendars_move(attempt)


def _create(
    runtime: Runtime,
    request: ScheduleRequest,
    uid: str,
    key: Key | None,
    plans: _Plans,
    connection: Connection,
    tried: Decided[Schedule] | None,
) -> Decided[Schedule]:
    namespace, schedule_id = request.named
    # Read the schedule before the key. Both are committed together, so the key is there if the schedule is there.
    known = lock_declared(connection, namespace, _wanted([request])).get(schedule_id)
    if tried is not None and tried.is_written(known):
        return tried
    made = key and idempotency.made_by(connection, key, runtime.now())
    if made and (earlier := changes.find(connection, made)) is not None:
        return Decided([unchanged(earlier)], earlier)
    if known is not None and known.uid == uid:  # a fire or another operation has written it since
        return Decided([unchanged(known)], known)
    if known is not None:
        raise ScheduleExistsError(schedule_id, namespace)
    calendars_of, now, plan = _calendars_of(connection, namespace), runtime.now(), plans.get(uid)
    calendars = calendars_of(request.definition.parsed_spec.calendars)
    new = (plan and plan.taken(None, calendars_of)) or created(request, uid, now, calendars)
    if key is None:
        return Decided([new], new.after)
    answer = request.answer and request.answer(new.after)
    hold = partial(idempotency.hold, key=key, schedule_uid=uid, now=now, answer=answer)
    return Decided([new], new.after, also=hold)


_Plans: TypeAlias = dict[str, Plan]
"""The decisions that were made without a lock, by the uids of their requests. Quick decisions are not among them."""


class _ReadsRunsError(Exception):
    """A decision depends on runs, so it must be made under a lock."""


def _plans_of(
    runtime: Runtime, requests: Sequence[ScheduleRequest], uids: Sequence[str], within: CallerTransaction | None
) -> _Plans:
    """Decide without a lock about the requests whose spec excludes something. All requests are of one namespace.

    Returns no plans in the caller's transaction, because that transaction has its locks already.
    """
    plans: _Plans = {}
    asked = [
        (request, uid) for request, uid in zip(requests, uids, strict=True) if request.definition.parsed_spec.exclude
    ]
    if not asked or within is not None:
        return plans
    now = runtime.now()

    def refuse_runs(_: Schedule) -> Sequence[Run]:
        raise _ReadsRunsError

    def read(connection: Connection) -> dict[str, tuple[Schedule | None, tuple[Calendar, ...]]]:
        known = changes.find_all_named(connection, *_names_of([request for request, _ in asked]))
        calendars_of = _calendars_of(connection, asked[0][0].named.namespace, locks=False)
        found = {}
        for request, uid in asked:
            with suppress(UnknownCalendarError):  # the decision under the lock raises this again
                calendars = calendars_of(request.definition.parsed_spec.calendars)
                found[uid] = known.get(request.named.schedule_id), calendars
        return found

    found = runtime.database.read(read)
    # Decide outside of a transaction, because the server ends a transaction that is idle for some seconds.
    for request, uid in asked:
        if uid in found:
            known, calendars = found[uid]
            decide = partial(
                _decide_one,
                known,
                request,
                uid,
                now,
                calendars=calendars,
                runs_of=refuse_runs,
                ran_of=partial(read_ran, runtime),
            )
            with suppress(_ReadsRunsError):  # the decision is made again under the lock
                plans[uid] = Plan(known, request.definition.parsed_spec.calendars, calendars, outcome_of(decide))
    return plans


def _key_of(request: ScheduleRequest) -> Key | None:
    """Return the idempotency key with a digest of the request, which shows whether a later request is the same."""
    if request.key is None:
        return None
    said = asdict(replace(request.definition, defaults="{}"))
    said["jitter"] = request.definition.jitter.total_seconds()
    digest = idempotency.digest_of(request.named.schedule_id, said, request.note, bool(request.paused))
    return Key(request.named.namespace, require_key(request.key), digest)


def _calendars_of(
    connection: Connection, namespace: str, *, locks: bool = True, declared: Sequence[Calendar] = ()
) -> CalendarsOf:
    """Return a function that reads the calendars that a spec names; schedules with the same calendars share one read.

    The `declared` calendars are not read, but used as declared.
    """
    given = {one.name: one for one in declared}

    @lru_cache
    def find(names: tuple[str, ...]) -> tuple[Calendar, ...]:
        rest = [name for name in names if name not in given]
        found = named_calendars.require(connection, namespace, rest, locks=locks) if rest else ()
        return (*found, *(given[name] for name in names if name in given))

    return find


def created(request: ScheduleRequest, uid: str, now: datetime, calendars: tuple[Calendar, ...] = ()) -> Change:
    """Decide to create the requested schedule, whose spec names these calendars.

    Raises InvalidSpecError if the schedule would never fire and `must_have_future` is set.
    """
    if request.must_have_future:
        lifecycle.require_future(request.definition.parsed_spec, request.named, now, calendars)
    return lifecycle.decide_create(
        Identity(uid, *request.named),
        request.definition,
        now=now,
        paused=bool(request.paused),
        note=request.note,
        tzdata=tzdata_version(),
        context=request.context,
        operation=uid,
        starts_past=request.starts_past,
        calendars=calendars,
    )


def upsert(
    runtime: Runtime, request: ScheduleRequest, *, within: CallerTransaction | None = None
) -> tuple[Schedule, str]:
    """Create a schedule or change it in place; returns the schedule and `created`, `updated` or `unchanged`.

    Raises WrongDatabaseError, before anything is written, if Redis belongs to another database.
    """
    if (tracing := runtime.tracing) is None:
        return _upsert_one(runtime, request, within)
    with tracing.asked("upsert", request.context) as asked:
        schedule, outcome = _upsert_one(runtime, request._replace(context=asked.context), within)
        asked.note(schedule, outcome)
        return schedule, outcome


def _upsert_one(runtime: Runtime, request: ScheduleRequest, within: CallerTransaction | None) -> tuple[Schedule, str]:
    [(schedule, outcome)] = _upserted(runtime, [request], partial(change, runtime, within=within, creates=1), within)
    return schedule, outcome


def _upserted(
    runtime: Runtime,
    requests: Sequence[ScheduleRequest],
    write: Callable[[Decide[_Outcomes]], R],
    within: CallerTransaction | None = None,
) -> R:
    """Decide about upserts and write them; raises CalendarBusyError if calendars change again and again."""
    return while_calendars_move(lambda: write(_upserting(runtime, requests, within)))


def upsert_batches(
    runtime: Runtime, batches: Iterable[Sequence[ScheduleRequest]], report: Callable[[Schedule, str], object]
) -> None:
    """Upsert distinct schedules of one namespace, one transaction for each batch; calls `report` after each commit.

    While a batch is written, a thread makes Redis follow the batch before. Then the subscribers of that batch are
    called. Raises the errors of `upsert`, but first Redis follows all written batches and their subscribers are called.
    """
    untold: deque[tuple[Sequence[Change], Callable[[], object]]] = deque()
    with ThreadPoolExecutor(1, "rqsched-follow") as threads:
        try:
            for batch in batches:
                done = _upserted(runtime, batch, partial(commit, runtime, creates=len(batch)))
                untold.append((done.changes, _start_following(threads, runtime, done.changes)))
                for schedule, outcome in done.result:
                    report(schedule, outcome)
                _tell(runtime, untold, but=1)
        finally:
            _tell(runtime, untold)


def _start_following(threads: Executor, runtime: Runtime, changes: Sequence[Change]) -> Callable[[], object]:
    """Make Redis follow the Changes in a thread; returns a function that waits for the thread."""
    following = partial(_follow, runtime, changes)
    try:
        return threads.submit(copy_context().run, following).result
    except RuntimeError:  # no thread can be started; a thread that starts later only repeats this
        return following


def _follow(runtime: Runtime, changes: Sequence[Change]) -> None:
    """Make Redis follow committed Changes; raises nothing, because reconcile finds what is missing."""
    try:
        follow(runtime, changes, runtime.features.involved_in(changes))
    except Exception:  # noqa: BLE001 - the commit is made
        _log.exception("links and jobs are not in Redis yet", extra={"action": "follow_failed"})


def _tell(runtime: Runtime, untold: deque[tuple[Sequence[Change], Callable[[], object]]], but: int = 0) -> None:
    """Announce the batches except the last `but` ones, each after Redis follows it."""
    while len(untold) > but:
        changes, wait = untold[0]
        wait()
        untold.popleft()
        announce(runtime, changes, runtime.features.involved_in(changes))


def _upserting(
    runtime: Runtime, requests: Sequence[ScheduleRequest], within: CallerTransaction | None
) -> Decide[_Outcomes]:
    """Return the function that decides about upserts of one namespace, in their order.

    Raises WrongDatabaseError if Redis belongs to another database.
    """
    runtime.ownership.require_own_redis()
    # If schedules were created at the same instant, lists show them in the order of their uids.
    uids = new_uids(runtime.now(), len(requests))
    plans = _plans_of(runtime, requests, uids, within)

    def decide(connection: Connection, tried: Decided[_Outcomes] | None) -> Decided[_Outcomes]:
        namespace = requests[0].named.namespace
        known = lock_declared(connection, namespace, _wanted(requests))
        if tried is not None and any(tried.is_written(schedule) for schedule in known.values()):
            return tried
        done = _decide_each(
            known,
            requests,
            uids,
            now=runtime.now(),
            runs_of=partial(open_runs, connection),
            calendars_of=_calendars_of(connection, namespace),
            ran_of=partial(changes.nominals_run, connection),
            plans=plans,
        )
        return Decided([one for one, _ in done], [(one.after, outcome) for one, outcome in done])

    return decide


def preview_upserts(
    runtime: Runtime, requests: Sequence[ScheduleRequest], calendars: Sequence[Calendar] = ()
) -> list[tuple[Change, str]]:
    """Return what `upsert_batches` would do now: each Change, and `created`, `updated` or `unchanged`. Writes nothing.

    `calendars` are calendars that would be set before the upserts.
    """
    uids = new_uids(runtime.now(), len(requests))

    def work(connection: Connection) -> list[tuple[Change, str]]:
        known = changes.find_all_named(connection, *_names_of(requests))
        return _decide_each(
            known,
            requests,
            uids,
            now=runtime.now(),
            runs_of=lambda one: changes.open_runs(connection, [one])[one.uid],
            calendars_of=_calendars_of(connection, requests[0].named.namespace, locks=False, declared=calendars),
            ran_of=partial(changes.nominals_run, connection),
        )

    return runtime.database.read(work)


def _wanted(requests: Sequence[ScheduleRequest]) -> dict[str, str | None]:
    return {request.named.schedule_id: request.upstream_id for request in requests}


def _names_of(requests: Sequence[ScheduleRequest]) -> tuple[str, list[str]]:
    """Return the common namespace of requests, and their ids."""
    return requests[0].named.namespace, [request.named.schedule_id for request in requests]


def _decide_each(
    known: Mapping[str, Schedule],
    requests: Sequence[ScheduleRequest],
    uids: Sequence[str],
    *,
    now: datetime,
    runs_of: RunsOf,
    calendars_of: CalendarsOf,
    ran_of: RanOf,
    plans: _Plans | None = None,
) -> list[tuple[Change, str]]:
    """Decide about each request; `known` holds the schedules that exist, by id.

    Returns the Change for each request, and whether the schedule is `created`, `updated` or `unchanged`.
    """
    made: dict[tuple[object, ...], Change] = {}
    done = []
    for request, uid in zip(requests, uids, strict=True):
        schedule = known.get(request.named.schedule_id)
        calendars = calendars_of(request.definition.parsed_spec.calendars)
        plan = plans.get(uid) if plans else None
        decided = plan and plan.taken(schedule, calendars_of)
        if schedule is None:
            done.append((decided or _created_alike(made, request, uid, now, calendars), "created"))
            continue
        decided = decided or _decide_one(
            schedule, request, uid, now, calendars=calendars, runs_of=runs_of, ran_of=ran_of
        )
        done.append((decided, "unchanged" if decided.is_empty else "updated"))
    return done


def _decide_one(
    schedule: Schedule | None,
    request: ScheduleRequest,
    uid: str,
    now: datetime,
    *,
    calendars: tuple[Calendar, ...],
    runs_of: RunsOf,
    ran_of: RanOf,
) -> Change:
    """Decide to create a schedule, or to change the one that exists."""
    if schedule is None:
        return created(request, uid, now, calendars)
    change = partial(_changed, (runs_of, ran_of), request=request, operation=uid, now=now, calendars=calendars)
    return lifecycle.planned_first(schedule, change, now=now, ran_of=ran_of)


def _created_alike(
    made: dict[tuple[object, ...], Change],
    request: ScheduleRequest,
    uid: str,
    now: datetime,
    calendars: tuple[Calendar, ...],
) -> Change:
    """Decide to create a schedule; requests that differ only in name and arguments share one decision.

    `made` has the first Change of each group of such requests.
    """
    shared = request.shared or request.definition
    if not lifecycle.is_shared(shared):
        return created(request, uid, now, calendars)
    # Compare definitions by identity, because a comparison of their values would take as long as a decision.
    alike = id(shared), request.note, request.paused, id(request.context), request.must_have_future
    if (first := made.get(alike)) is None:
        first = made[alike] = created(request, uid, now, calendars)
        return first
    return lifecycle.created_alike(first, Identity(uid, *request.named), request.definition, uid)


def _changed(
    reads: tuple[RunsOf, RanOf],
    schedule: Schedule,
    request: ScheduleRequest,
    operation: str,
    now: datetime,
    calendars: tuple[Calendar, ...],
) -> Change:
    runs_of, ran_of = reads
    # `managed_by` stays: `sync` prunes only schedules that a sync created.
    definition = changed(request.definition, managed_by=schedule.definition.managed_by)
    decided = lifecycle.decide_update(
        schedule,
        definition,
        now=now,
        note=request.note,
        tzdata=tzdata_version(),
        context=request.context,
        operation=operation,
        keep_next=request.keep_next,
        calendars=calendars,
        ran_of=ran_of,
    )
    if not request.keep_next and lifecycle.can_continue(decided.after, now):  # Waymark's registration restarts instead
        runs = runs_of(schedule)
        continued = lifecycle.decide_continue(
            decided.after, runs, now=now, context=request.context, operation=operation
        )
        decided = combined(decided, continued)
    return lifecycle.decide_switch(
        decided,
        runs_of,
        paused=request.paused,
        # Waymark's registration also activates a schedule that was done or dead.
        revives={ScheduleStatus.DONE, ScheduleStatus.DEAD} if request.keep_next else set(),
        now=now,
        context=request.context,
        operation=operation,
        keep_next=request.keep_next,
    )
