"""Firing links: the steps of design §3 around the pure decision. One link or a batch, the same code."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from redis.exceptions import RedisError
from sqlalchemy.engine import Connection

from rqsched.chain.runtime import Runtime
from rqsched.core.fire import FireContext, decide_fire, decide_fire_failed, decide_retry, is_stale
from rqsched.core.ids import LinkId, RetryLinkId, parse_link_id
from rqsched.core.model import Change, RunStatus, Schedule
from rqsched.errors import BackendUnavailableError, ConfigError
from rqsched.store import changes as store
from rqsched.transport.transport import link_of

_log = logging.getLogger(__name__)

LOCKED_AGAIN = timedelta(milliseconds=50)
"""When a link is tried again whose schedule somebody else holds."""
FOREIGN_AGAIN = timedelta(seconds=15)
"""When a link is due again that is perhaps another database's: it is left, and its owner shall not wait long."""
UNREADABLE_AGAIN = timedelta(hours=1)
"""When something is looked at again that is no link at all."""
FAILED_AGAIN = timedelta(seconds=5)
"""When a link is tried again that failed and has no schedule to keep its backoff."""
_SAFE_ERROR = 2_000
_FOREIGN = {"action": "foreign_link"}


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of one delivered link."""

    id: str
    outcome: str
    """`fired`, `stale`, `early`, `locked`, `foreign` or `failed`."""
    again_at: datetime | None = None
    """When it is to be looked at again; None when it has done its work."""
    change: Change | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """The links of one delivery, read from their ids."""

    main: dict[str, LinkId]
    """By schedule uid."""
    retries: dict[str, list[RetryLinkId]]
    """By schedule uid."""
    extra: list[LinkId]
    """Further positions of a schedule that is there already: at most one of them is not stale."""

    @property
    def uids(self) -> list[str]:
        return sorted({*self.main, *self.retries})


def fire(runtime: Runtime, ids: Sequence[str], *, skip_locked: bool = False, must_follow: bool = True) -> list[Fired]:
    """Fire delivered links: each is decided under its schedule's lock, committed, and only then followed in Redis.

    Delivering a link twice, late, early or after its schedule changed is harmless. A schedule whose evaluation raises
    is fired again by itself, and its failure recorded, so that it harms no other. Raises BackendUnavailableError when
    SQL does not answer, and with `must_follow` (for links that are delivered again) when Redis does not either.
    """
    batch, unreadable = _read(ids, runtime.now() + UNREADABLE_AGAIN)
    try:
        fired = _fire_together(runtime, batch, skip_locked=skip_locked, must_follow=must_follow)
    except BackendUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001
        _log.warning("a batch of %d is repeated one by one: %s", len(ids), error, extra={"action": "batch_split"})
        fired = [
            result for uid in batch.uids for result in _fire_alone(runtime, _only(batch, uid), must_follow=must_follow)
        ]
    return [*_disowned(runtime, fired), *unreadable]


def _disowned(runtime: Runtime, fired: list[Fired]) -> list[Fired]:
    """Drop links of schedules that were purged; leave them where another database may own the control queue."""
    foreign = [result.id for result in fired if result.outcome == "foreign"]
    if not foreign:
        return fired
    try:
        is_ours = runtime.is_known_to_redis()
    except (ConfigError, RedisError):
        is_ours = False
    fate = "dropped" if is_ours else "left for another database"
    _log.warning("%d links of unknown schedules are %s: %s", len(foreign), fate, foreign[0], extra=_FOREIGN)
    if not is_ours:
        return fired
    return [replace(one, outcome="stale", again_at=None) if one.outcome == "foreign" else one for one in fired]


def _read(ids: Iterable[str], again_at: datetime) -> tuple[_Batch, list[Fired]]:
    batch, unreadable = _Batch({}, {}, []), []
    for text in dict.fromkeys(ids):
        link = parse_link_id(text)
        if link is None:
            _log.warning("%r is no link of ours and is left", text, extra=_FOREIGN)
            unreadable.append(Fired(text, "foreign", again_at))
        elif isinstance(link, RetryLinkId):
            batch.retries.setdefault(link.uid, []).append(link)
        else:
            _keep_newest(batch, link)
    return batch, unreadable


def _keep_newest(batch: _Batch, link: LinkId) -> None:
    other = batch.main.get(link.uid)
    if other is None:
        batch.main[link.uid] = link
        return
    newest, older = (link, other) if link.n > other.n else (other, link)
    batch.main[link.uid] = newest
    batch.extra.append(older)


def _only(batch: _Batch, uid: str) -> _Batch:
    main = {uid: batch.main[uid]} if uid in batch.main else {}
    retries = {uid: batch.retries[uid]} if uid in batch.retries else {}
    return _Batch(main, retries, [link for link in batch.extra if link.uid == uid])


def _fire_together(runtime: Runtime, batch: _Batch, *, skip_locked: bool, must_follow: bool) -> list[Fired]:
    fired = runtime.database.transact(lambda connection: _decide(runtime, connection, batch, skip_locked=skip_locked))
    changes = [result.change for result in fired if result.change is not None]
    runtime.publish(changes, must=must_follow)
    return fired


def _fire_alone(runtime: Runtime, batch: _Batch, *, must_follow: bool) -> list[Fired]:
    """Fire one schedule's links; an error is recorded on the schedule, which is due again after a backoff."""
    try:
        return _fire_together(runtime, batch, skip_locked=False, must_follow=must_follow)
    except BackendUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001
        uid = batch.uids[0]
        _log.exception("schedule %s cannot be fired", uid, extra={"action": "fire_failed"})
        text = f"{type(error).__name__}: {error}"[:_SAFE_ERROR]
        change = _record_failure(runtime, batch.main.get(uid), text)
        again_at = runtime.now() + FAILED_AGAIN
        main = [Fired(str(link), "failed", None if change else again_at, change, text) for link in batch.main.values()]
        others = [*batch.extra, *(link for links in batch.retries.values() for link in links)]
        return main + [Fired(str(link), "failed", again_at, error=text) for link in others]


def _record_failure(runtime: Runtime, link: LinkId | None, error: str) -> Change | None:
    if link is None:
        return None

    def work(connection: Connection) -> Change | None:
        schedule = store.lock_one(connection, link.uid)
        if schedule is None or is_stale(schedule, link.n):
            return None
        change = decide_fire_failed(schedule, error, now=runtime.now())
        store.write(connection, [change])
        return change

    change = runtime.database.transact(work)
    runtime.publish([change] if change else [])
    return change


# ---- inside the transaction


def _decide(runtime: Runtime, connection: Connection, batch: _Batch, *, skip_locked: bool) -> list[Fired]:
    locked = {schedule.uid: schedule for schedule in store.lock(connection, batch.uids, skip_locked=skip_locked)}
    now = runtime.now()
    fired = [Fired(str(link), "stale") for link in batch.extra]
    fired += _missing(runtime, connection, batch, locked)
    fired += _retry(connection, batch, locked, now)
    fired += _fire_main(runtime, connection, [link for link in batch.main.values() if link.uid in locked], locked, now)
    store.write(connection, [result.change for result in fired if result.change is not None])
    return fired


def _missing(runtime: Runtime, connection: Connection, batch: _Batch, locked: Mapping[str, Schedule]) -> list[Fired]:
    """Tell links whose schedule somebody else holds from those whose schedule this database never had."""
    absent = [uid for uid in batch.uids if uid not in locked]
    known = store.existing(connection, absent)
    now = runtime.now()
    results = []
    for uid in absent:
        outcome, wait = ("locked", LOCKED_AGAIN) if uid in known else ("foreign", FOREIGN_AGAIN)
        links = [*batch.retries.get(uid, []), *([batch.main[uid]] if uid in batch.main else [])]
        results += [Fired(str(link), outcome, now + wait) for link in links]
    return results


def _fire_main(
    runtime: Runtime,
    connection: Connection,
    links: Sequence[LinkId],
    locked: Mapping[str, Schedule],
    now: datetime,
) -> list[Fired]:
    ready: list[tuple[LinkId, Schedule]] = []
    results: list[Fired] = []
    for link in links:
        schedule = locked[link.uid]
        if is_stale(schedule, link.n):
            results.append(_heal(connection, link, schedule))
        elif schedule.due_at is not None and schedule.due_at > now:
            results.append(Fired(str(link), "early", schedule.due_at))
        else:
            ready.append((link, schedule))
    return results + _fire_ready(runtime, connection, ready, now)


def _heal(connection: Connection, link: LinkId, schedule: Schedule) -> Fired:
    """Repeat step 4 for the schedule as it is now: a crash between commit and pipeline heals on the next delivery."""
    change = as_it_is(connection, schedule)
    return Fired(str(link), "stale", change=change if change.changed_runs or link_of(schedule) else None)


def as_it_is(connection: Connection, schedule: Schedule) -> Change:
    """Say what Redis should hold of a schedule as it is now; nothing is to be written."""
    pending = store.pending_runs(connection, schedule.uid)
    return Change(schedule, schedule, changed_runs=tuple((run, run) for run in pending))


def _fire_ready(
    runtime: Runtime, connection: Connection, ready: Sequence[tuple[LinkId, Schedule]], now: datetime
) -> list[Fired]:
    schedules = [schedule for _, schedule in ready]
    runs = store.open_runs(connection, schedules)
    ran = store.occurrences_run(connection, {s.uid: s.next_run_at for s in schedules if s.next_run_at is not None})
    env = runtime.settings.env
    return [
        Fired(
            str(link),
            "fired",
            change=decide_fire(
                schedule,
                runs.get(schedule.uid, []),
                now=now,
                context=FireContext(env, ran.get(schedule.uid, frozenset())),
            ),
        )
        for link, schedule in ready
    ]


def _retry(connection: Connection, batch: _Batch, locked: Mapping[str, Schedule], now: datetime) -> list[Fired]:
    links = [link for links in batch.retries.values() for link in links if link.uid in locked]
    return [_retry_one(connection, link, locked[link.uid], now) for link in links]


def _retry_one(connection: Connection, link: RetryLinkId, schedule: Schedule, now: datetime) -> Fired:
    """Fenced on (run, attempt, status) only: it survives the chain moving on, pause and `done`."""
    run = store.find_run_by_number(connection, link.uid, link.number)
    if run is None or run.status is not RunStatus.RETRYING or run.attempt != link.attempt:
        pending = run is not None and run.status is RunStatus.PENDING
        healed = Change(schedule, schedule, changed_runs=((run, run),)) if run is not None and pending else None
        return Fired(str(link), "stale", change=healed)
    if run.retry_at is not None and run.retry_at > now:
        return Fired(str(link), "early", run.retry_at)
    return Fired(str(link), "fired", change=decide_retry(schedule, [run], run, now=now))
