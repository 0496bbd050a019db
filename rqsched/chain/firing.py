"""Firing: delivered links are decided about under the locks of their schedules, written, and followed in Redis.

One link or a batch, the same code (docs/architecture.md, Fire).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from redis.exceptions import RedisError

from rqsched.chain.fan_out import promote
from rqsched.chain.runtime import Runtime
from rqsched.core.fire_decision import FireContext, decide_fire, decide_fire_failed, decide_retry, is_stale
from rqsched.core.ids import LinkId, RetryLinkId, parse_link_id
from rqsched.core.model import Change, Run, RunStatus, Schedule
from rqsched.core.overlap import may_end_others
from rqsched.errors import BackendUnavailableError, ConfigError
from rqsched.store import changes, fan_out_targets
from rqsched.store.database import Connection
from rqsched.transport.transport import is_waiting, link_of

_log = logging.getLogger(__name__)

LOCKED_AGAIN = timedelta(milliseconds=50)
"""After how long a link is tried again whose schedule another process holds."""
FOREIGN_AGAIN = timedelta(seconds=15)
"""After how long a link is due again that may be another database's: it is left, and its owner must not wait long."""
UNREADABLE_AGAIN = timedelta(hours=1)
"""After how long something is looked at again that is not a link at all."""
FAILED_AGAIN = timedelta(seconds=5)
"""After how long a link is tried again that failed and has no schedule to keep its backoff."""
_MAX_ERROR = 2_000
_FOREIGN = {"action": "foreign_link"}


class Fired(NamedTuple):
    """What became of one delivered link."""

    id: str
    """The link's id as it was delivered."""
    outcome: str
    """`fired`, `stale`, `early`, `locked`, `foreign` or `failed`."""
    again_at: datetime | None = None
    """When the link is due again; None when it has done its work."""
    change: Change | None = None
    """What was committed, or what Redis was made to follow again; None when there was neither."""
    error: str | None = None
    """Why it failed; None when it did not."""
    sweep: str | None = None
    """The uid of the run whose targets it lets be tried again; None for every other link."""


class _Batch(NamedTuple):
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
            result
            for uid in batch.uids
            for result in _fire_alone(runtime, _only(batch, uid), skip_locked=skip_locked, must_follow=must_follow)
        ]
    if any(result.outcome == "foreign" for result in fired):
        fired = _disown(runtime, fired)
    return fired + unreadable


def _read(ids: Iterable[str], again_at: datetime) -> tuple[_Batch, list[Fired]]:
    batch, unreadable = _Batch({}, {}, []), []
    for text in dict.fromkeys(ids):
        link = parse_link_id(text)
        if link is None:
            _log.warning("%r is not a link of ours and is left", text, extra=_FOREIGN)
            unreadable.append(Fired(text, "foreign", again_at))
        elif isinstance(link, RetryLinkId):
            batch.retries.setdefault(link.uid, []).append(link)
        elif (other := batch.main.get(link.uid)) is None:
            batch.main[link.uid] = link
        else:
            older, batch.main[link.uid] = sorted((link, other), key=lambda one: one.n)
            batch.extra.append(older)
    return batch, unreadable


def _only(batch: _Batch, uid: str) -> _Batch:
    main = {uid: batch.main[uid]} if uid in batch.main else {}
    retries = {uid: batch.retries[uid]} if uid in batch.retries else {}
    return _Batch(main, retries, [link for link in batch.extra if link.uid == uid])


def _fire_together(runtime: Runtime, batch: _Batch, *, skip_locked: bool, must_follow: bool) -> list[Fired]:
    fired = runtime.database.transact(lambda connection: _decide(runtime, connection, batch, skip_locked=skip_locked))
    runtime.publish([result.change for result in fired if result.change is not None], must=must_follow)
    return [result if result.sweep is None else _promote(runtime, result, result.sweep) for result in fired]


def _promote(runtime: Runtime, fired: Fired, run_uid: str) -> Fired:
    """Let the targets of a run be tried again that are due; the link is due again with the next of them."""
    promote(runtime, run_uid)
    next_at = runtime.database.read(lambda connection: fan_out_targets.next_promotion(connection, run_uid))
    return fired._replace(again_at=next_at and max(next_at, runtime.now() + LOCKED_AGAIN))


def _decide(runtime: Runtime, connection: Connection, batch: _Batch, *, skip_locked: bool) -> list[Fired]:
    """Lock the schedules of a batch, decide what each link does, and write it."""
    locked = {schedule.uid: schedule for schedule in changes.lock(connection, batch.uids, skip_locked=skip_locked)}
    now = runtime.now()
    fired = [Fired(str(link), "stale") for link in batch.extra]
    if len(locked) < len(batch.uids):
        fired += _put_off_absent(connection, batch, locked, now)
    retries = [link for uid, links in batch.retries.items() if uid in locked for link in links]
    fired += [_fire_retry(connection, link, locked[link.uid], now) for link in retries]
    main = [(link, locked[uid]) for uid, link in batch.main.items() if uid in locked]
    fired += _fire_main(connection, main, now=now, env=runtime.settings.env, skip_locked=skip_locked)
    runtime.notifier.write(connection, [result.change for result in fired if result.change is not None])
    return fired


def _put_off_absent(
    connection: Connection, batch: _Batch, locked: Mapping[str, Schedule], now: datetime
) -> list[Fired]:
    """Tell links whose schedule another process holds from those whose schedule this database never had."""
    absent = [uid for uid in batch.uids if uid not in locked]
    known = changes.existing(connection, absent)
    fired = []
    for uid in absent:
        outcome, wait = ("locked", LOCKED_AGAIN) if uid in known else ("foreign", FOREIGN_AGAIN)
        links = [*batch.retries.get(uid, []), *([batch.main[uid]] if uid in batch.main else [])]
        fired += [Fired(str(link), outcome, now + wait) for link in links]
    return fired


def _fire_main(
    connection: Connection, links: Sequence[tuple[LinkId, Schedule]], *, now: datetime, env: str, skip_locked: bool
) -> list[Fired]:
    """Put aside what is stale or early, and decide about the others from their open runs."""
    fired: list[Fired] = []
    ready: list[tuple[LinkId, Schedule]] = []
    for link, schedule in links:
        if is_stale(schedule, link.n):
            fired.append(_heal(connection, link, schedule))
        elif schedule.due_at is not None and schedule.due_at > now:
            fired.append(Fired(str(link), "early", schedule.due_at))
        else:
            ready.append((link, schedule))
    runs = _open_runs(connection, [schedule for _, schedule in ready], skip_locked=skip_locked)
    since = {schedule.uid: schedule.next_run_at for _, schedule in ready if schedule.next_run_at is not None}
    ran = changes.occurrences_run(connection, since)
    for link, schedule in ready:
        if (open_runs := runs.get(schedule.uid)) is None:
            fired.append(Fired(str(link), "locked", now + LOCKED_AGAIN))
            continue
        context = FireContext(env, ran.get(schedule.uid, frozenset()))
        change = decide_fire(schedule, open_runs, now=now, context=context)
        fired.append(Fired(str(link), "fired", change=change))
    return fired


def _open_runs(connection: Connection, ready: Sequence[Schedule], *, skip_locked: bool) -> dict[str, list[Run]]:
    """Read the open runs of due schedules, and lock those that a fire may end; without the schedules it must wait for.

    Only such a fire needs the rows: a run that another process claims or keeps alive just now holds up no other.
    """
    found = changes.open_runs(connection, ready)
    runs = {schedule.uid: found[schedule.uid] for schedule in ready}
    ending = {schedule.uid: runs.pop(schedule.uid) for schedule in ready if may_end_others(schedule)}
    return runs | changes.lock_open_runs(connection, ending, skip_locked=skip_locked) if ending else runs


def _heal(connection: Connection, link: LinkId, schedule: Schedule) -> Fired:
    """Let Redis follow the schedule as it is now: a crash between commit and pipeline heals on the next delivery."""
    change = restate(connection, schedule)
    return Fired(str(link), "stale", change=change if change.changed_runs or link_of(schedule) else None)


def restate(connection: Connection, schedule: Schedule) -> Change:
    """Return a Change that writes nothing and lets Redis follow a schedule and its pending runs as they are now."""
    pending = changes.pending_runs(connection, schedule.uid)
    return Change(schedule, schedule, changed_runs=tuple((run, run) for run in pending))


def _fire_retry(connection: Connection, link: RetryLinkId, schedule: Schedule, now: datetime) -> Fired:
    """Fenced on (run, attempt, status) only: it survives the chain moving on, pause and `done`."""
    run = changes.find_run_by_number(connection, link.uid, link.number)
    if run is not None and run.status is RunStatus.RUNNING and run.dispatched_at is not None:
        return Fired(str(link), "fired", sweep=run.uid)
    if run is None or run.status is not RunStatus.RETRYING or run.attempt != link.attempt:
        if run is None or run.status is not RunStatus.PENDING:
            return Fired(str(link), "stale")
        if run.attempt == link.attempt and is_waiting(run, now):
            return Fired(str(link), "early", run.queued_at)
        # A blocked run is delivered so, and so is one whose retry was committed before its process died.
        return Fired(str(link), "stale", change=Change(schedule, schedule, changed_runs=((run, run),)))
    if run.retry_at is not None and run.retry_at > now:
        return Fired(str(link), "early", run.retry_at)
    return Fired(str(link), "fired", change=decide_retry(schedule, [run], run, now=now))


def _fire_alone(runtime: Runtime, batch: _Batch, *, skip_locked: bool, must_follow: bool) -> list[Fired]:
    """Fire one schedule's links; an error is recorded on the schedule, which is due again after a backoff."""
    try:
        return _fire_together(runtime, batch, skip_locked=skip_locked, must_follow=must_follow)
    except BackendUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001
        uid = batch.uids[0]
        _log.exception("schedule %s cannot be fired", uid, extra={"action": "fire_failed"})
        text = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
        change = _record_failure(runtime, batch.main.get(uid), text, skip_locked=skip_locked)
        again_at = runtime.now() + FAILED_AGAIN
        main = [Fired(str(link), "failed", None if change else again_at, change, text) for link in batch.main.values()]
        others = [*batch.extra, *(link for links in batch.retries.values() for link in links)]
        return main + [Fired(str(link), "failed", again_at, error=text) for link in others]


def _record_failure(runtime: Runtime, link: LinkId | None, error: str, *, skip_locked: bool) -> Change | None:
    if link is None:
        return None

    def work(connection: Connection) -> Change | None:
        schedule = changes.lock_one(connection, link.uid, skip_locked=skip_locked)
        if schedule is None or is_stale(schedule, link.n):
            return None
        change = decide_fire_failed(schedule, error, now=runtime.now())
        runtime.notifier.write(connection, [change])
        return change

    change = runtime.database.transact(work)
    runtime.publish([change] if change else [])
    return change


def _disown(runtime: Runtime, fired: list[Fired]) -> list[Fired]:
    """Drop links of schedules that were purged; leave them where another database may own the control queue."""
    foreign = [result.id for result in fired if result.outcome == "foreign"]
    try:
        is_ours = runtime.ownership.is_known_to_redis()
    except (ConfigError, RedisError):
        is_ours = False
    fate = "dropped" if is_ours else "left for another database"
    _log.warning("%d links of unknown schedules are %s: %s", len(foreign), fate, foreign[0], extra=_FOREIGN)
    if not is_ours:
        return fired
    return [one._replace(outcome="stale", again_at=None) if one.outcome == "foreign" else one for one in fired]
