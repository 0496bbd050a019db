"""Reconcile: compare SQL with Redis and repair. `recover()` is one full pass (design §3).

Keyset batches, pipelined Redis work of constant size a row. A row that cannot be repaired now is logged and left
behind; it never starves the others. Any number of passes may run at once.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from redis.exceptions import RedisError
from sqlalchemy.engine import Connection

from rqsched.chain import backfill as backfills
from rqsched.chain import fanout
from rqsched.chain.execution import settle_run
from rqsched.chain.runtime import Runtime
from rqsched.core import lifecycle
from rqsched.core.change import ChangeBuilder
from rqsched.core.model import Change, Run, RunStatus, Schedule
from rqsched.core.settle import AttemptOutcome, AttemptResult, decide_drain
from rqsched.errors import BackendUnavailableError
from rqsched.spec.zones import tzdata_version
from rqsched.store import changes as store
from rqsched.store import metadata as facts
from rqsched.store import reconcile_queries as scans
from rqsched.transport import telemetry as tally
from rqsched.transport.transport import Arm, retry_of

_log = logging.getLogger(__name__)

BATCH = 500
SOON = timedelta(seconds=30)
"""Links due within this long must be in Redis by now."""
SIGHTINGS = 3
"""So many passes in a row must see the same beat before a run is lost."""
EXTERNAL_SILENCE = timedelta(minutes=10)
"""How long an external run stays active without a heartbeat (Open Job Spec)."""
_TZDATA = "tzdata"
_RELEASE = re.compile(r"(\d{4})(?:\.(\d+)|([a-z]))")
"""`2025b` of the system's files is `2025.2` of the package."""

Progress = Callable[[int], None]
"""Told how many rows were compared since the last call."""


@dataclass(slots=True)
class Recovered:
    """What a pass found and repaired, as counts."""

    checked: int = 0
    """Rows compared."""
    links: int = 0
    """Main links armed because none was live."""
    next_times: int = 0
    """Schedules that had no next time and got one, or were over."""
    retimed: int = 0
    """Next times recomputed for a new timezone database."""
    deliveries: int = 0
    """Pending runs enqueued again."""
    retries: int = 0
    """Retry links armed."""
    lost: int = 0
    """Runs without a sign of life, settled."""
    drained: int = 0
    """Waiting runs started because nothing was ahead of them."""
    backfills: int = 0
    """Interrupted backfills that were gone on with."""
    targets: int = 0
    """Jobs of fan-outs enqueued again, and targets failed whose process vanished."""
    failed: int = 0
    """Rows that could not be repaired now; the log says why."""

    @property
    def repaired(self) -> int:
        """Everything that was done."""
        return int(sum(asdict(self).values())) - self.checked - self.failed

    def add(self, other: Recovered) -> None:
        """Add another pass's counts."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def recover(runtime: Runtime, *, deep: bool = False, progress: Progress | None = None) -> Recovered:
    """Make one full pass. `deep` verifies the link of every active schedule, not only of those due soon."""
    total = Recovered()
    for batch in passes(runtime, deep=deep, rest=backfills.breathe):
        total.add(batch)
        if progress is not None:
            progress(batch.checked)
    if total.repaired:
        _log.info("recovered %s", asdict(total), extra={"action": "recovered"})
    return total


def reconcile_in_turn(runtime: Runtime) -> Recovered | None:
    """Make a pass if no worker made one within the interval; a Redis key spreads the turns.

    For the links of plain `rq worker`s, which also record here what their application registers. A pass that fails is
    logged: the link that gave the occasion has done its work.
    """
    if not take_turn(runtime):
        return None
    try:
        runtime.record_workflows()
        return recover(runtime)
    except Exception:  # noqa: BLE001
        _log.exception("not reconciled", extra={"action": "reconcile_failed"})
        return None


def take_turn(runtime: Runtime) -> bool:
    """Take the turn of this interval; True for one worker an interval. Redis down: nobody's."""
    milliseconds = int(runtime.settings.reconcile_interval.total_seconds() * 1000)
    try:
        return bool(runtime.transport.redis.set(runtime.transport.turn_key, 1, nx=True, px=milliseconds))
    except RedisError:
        return False


def passes(runtime: Runtime, *, deep: bool = False, rest: backfills.Rest = backfills.go_on) -> Iterator[Recovered]:
    """Yield the counts of one batch after the other, so that a dispatcher can fire in between.

    Whoever does not fire in between says how to `rest` between the chunks of a backfill, for those who do.

    A section that fails is logged and the next one is made: while Redis is away, what SQL alone needs is repaired.
    Raises BackendUnavailableError when SQL is away and ConfigError when Redis belongs to another database.
    """
    total, began = Recovered(), time.monotonic()
    for batch in _batches(runtime, deep=deep, rest=rest):
        total.add(batch)
        yield batch
    transport = runtime.transport
    tally.record(transport.redis, transport.control.name, asdict(total), time.monotonic() - began)


def _batches(runtime: Runtime, *, deep: bool, rest: backfills.Rest) -> Iterator[Recovered]:
    witness = _witness_of_flush(runtime)
    everything = deep or witness is not None
    sections = [
        _retime(runtime),
        _heal_nextless(runtime),
        _arm_links(runtime, everything=everything),
        _arm_retries(runtime, everything=everything),
        _redeliver(runtime, everything=everything),
        _settle_lost(runtime),
        _drain(runtime),
        _repair_targets(runtime, everything=everything),
    ]
    broken: list[BaseException] = []
    for section in sections:
        yield from _guarded(section, broken)
    if witness is not None and not broken:
        yield from _guarded(_remember(runtime, witness), broken)
    yield from _guarded(_resume_backfills(runtime, rest), broken)


def _witness_of_flush(runtime: Runtime) -> str | None:
    """Leave a witness in a Redis that was flushed; None when it was not, or when nothing can be written there now."""
    try:
        return runtime.begin_epoch()
    except RedisError as error:
        _log.warning("Redis does not answer: %s", error, extra={"action": "reconcile_without_redis"})
        return None


def _remember(runtime: Runtime, witness: str) -> Iterator[Recovered]:
    """Let Redis know its database, now that everything is armed again; if it was flushed meanwhile, the next pass is.

    A Redis that comes back from a copy older than some of what was armed keeps the witness: ordinary passes arm what it
    lost, when it is due soon or overdue.
    """
    if not runtime.mark_epoch(witness):
        _log.warning("Redis was flushed again: the next pass is a full one", extra={"action": "flushed_again"})
    yield Recovered()


def _guarded(section: Iterator[Recovered], broken: list[BaseException]) -> Iterator[Recovered]:
    try:
        yield from section
    except BackendUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001 - one section never starves the others
        _log.warning("a part of reconcile ended early: %s", error, exc_info=True, extra={"action": "section_failed"})
        broken.append(error)
        yield Recovered(failed=1)


# ---- links


def _arm_links(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Arm what is overdue beyond the grace, due soon, or (everything) any active schedule."""
    until = None if everything else runtime.now() + SOON
    for rows in _pages(runtime, lambda connection, after: scans.due_links(connection, until, after, BATCH)):
        now = runtime.now()
        fired_soon = now - runtime.settings.grace
        arms = [Arm(link, due_at) for link, due_at in rows if everything or due_at > now or due_at <= fired_soon]
        yield Recovered(checked=len(rows), links=runtime.transport.arm(arms, now=now))


def _arm_retries(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    until = None if everything else runtime.now() + SOON
    for rows in _pages(runtime, lambda connection, after: scans.retrying(connection, until, after, BATCH)):
        armed = runtime.transport.arm([retry_of(run) for run in rows], now=runtime.now())
        yield Recovered(checked=len(rows), retries=armed)


# ---- next times


def _heal_nextless(runtime: Runtime) -> Iterator[Recovered]:
    """Give active schedules without a next time one, unless they wait for a run or for their buffer to drain."""
    for uids in _pages(runtime, lambda connection, after: scans.nextless(connection, after, BATCH)):
        healed = [_repair(runtime, uid, _plan_again) for uid in uids]
        yield Recovered(len(uids), next_times=healed.count(True), failed=healed.count(None))


def _plan_again(connection: Connection, schedule: Schedule, now: datetime) -> Change:
    if not schedule.is_active or schedule.next_run_at is not None:
        return Change(schedule, schedule)
    if schedule.awaiting_run_uid is not None:
        awaited = store.find_run(connection, schedule.awaiting_run_uid)
        if awaited is not None and awaited.is_unfinished:
            return Change(schedule, schedule)
    builder = ChangeBuilder(schedule, now=now)
    builder.plan(max(schedule.evaluated_to, schedule.timing_changed_at))
    if builder.schedule.next_run_at is not None:
        builder.record("ScheduleRecovered", reason="no next time", next_fire_at=builder.schedule.due_at)
    return builder.build()


def _retime(runtime: Runtime) -> Iterator[Recovered]:
    """Recompute next times once after the timezone database changed (cron.md)."""
    current = tzdata_version()
    known = runtime.database.read(lambda connection: facts.fact(connection, _TZDATA))
    if known is not None and not _is_newer(current, known):  # older: a process that a deploy has not reached yet
        return
    for uids in _pages(runtime, lambda connection, after: scans.timed_otherwise(connection, current, after, BATCH)):
        moved = [_repair(runtime, uid, _retimed) for uid in uids]
        yield Recovered(len(uids), retimed=moved.count(True), failed=moved.count(None))
    runtime.database.transact(lambda connection: facts.set_fact(connection, _TZDATA, current))


def _is_newer(tzdata: str, known: str) -> bool:
    """Tell whether a release of the rules is to replace another; what names no release is only told apart."""
    releases = _RELEASE.search(tzdata), _RELEASE.search(known)
    if None in releases:
        return tzdata != known
    mine, theirs = ((int(r[1]), int(r[2]) if r[2] else ord(r[3]) - ord("a") + 1) for r in releases if r)
    return mine > theirs


def _retimed(connection: Connection, schedule: Schedule, now: datetime) -> Change:
    del connection
    return lifecycle.decide_retime(schedule, now=now, tzdata=tzdata_version())


def _repair(runtime: Runtime, uid: str, decide: Callable[[Connection, Schedule, datetime], Change]) -> bool | None:
    """Decide about one schedule under its lock; True when something changed, None when it failed."""

    def work(connection: Connection) -> Change | None:
        schedule = store.lock_one(connection, uid)
        if schedule is None:
            return None
        change = decide(connection, schedule, runtime.now())
        store.write(connection, [change])
        return change

    try:
        change = runtime.database.transact(work)
        if change is None or change.is_empty:
            return False
        runtime.publish([change])
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - one row never starves the others
        _log.exception("schedule %s cannot be repaired now", uid, extra={"action": "repair_failed"})
        return None
    return True


# ---- runs


def _redeliver(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Enqueue pending runs whose delivery is dead; the next delivery number is taken in SQL first."""
    now = runtime.now()
    before = now if everything else now - runtime.settings.grace
    for rows in _pages(runtime, lambda connection, after: scans.pending(connection, before, after, BATCH)):
        dead = _dead(runtime, rows)
        again = runtime.database.transact(partial(store.next_deliveries, dead=dead))
        runtime.transport.deliver(again, now=runtime.now())
        yield Recovered(checked=len(rows), deliveries=len(again))


def _dead(runtime: Runtime, rows: Sequence[Run]) -> list[Run]:
    live = runtime.transport.live_deliveries(rows, now=runtime.now())
    return [run for run, is_live in zip(rows, live, strict=True) if not is_live]


def _settle_lost(runtime: Runtime) -> Iterator[Recovered]:
    """Lose runs whose beat stood still for three sightings at least an interval apart, and silent external ones."""
    now = runtime.now()
    interval = runtime.settings.reconcile_interval
    runtime.database.transact(lambda connection: scans.sight(connection, now, now - interval))
    for runs in _pages(runtime, lambda connection, after: scans.lifeless(connection, SIGHTINGS, after, BATCH)):
        yield _lose(runtime, runs, "no sign of life from its worker")
    silent_since = now - EXTERNAL_SILENCE
    for runs in _pages(runtime, lambda connection, after: scans.silent(connection, silent_since, after, BATCH)):
        yield _lose(runtime, runs, "no heartbeat from its external worker")


def _lose(runtime: Runtime, runs: Sequence[tuple[Run, int]], reason: str) -> Recovered:
    counts = Recovered(checked=len(runs))
    for run, beat in runs:
        try:
            counts.lost += _lose_one(runtime, run, beat, reason)
        except BackendUnavailableError:
            raise
        except Exception:  # noqa: BLE001 - one row never starves the others
            _log.exception("run %s cannot be settled now", run.uid, extra={"action": "repair_failed"})
            counts.failed += 1
    return counts


def _lose_one(runtime: Runtime, run: Run, beat: int, reason: str) -> bool:
    def still_lifeless(current: Run) -> bool:
        is_same = current.token == run.token and current.attempt == run.attempt
        return is_same and current.status is RunStatus.RUNNING and current.heartbeat_at == run.heartbeat_at

    if runtime.database.read(lambda connection: store.beat_of(connection, run.uid)) != beat:
        return False
    lost = AttemptResult(AttemptOutcome.LOST, error=reason)
    return settle_run(runtime, run.uid, lost, fence=still_lifeless) is not None


def _drain(runtime: Runtime) -> Iterator[Recovered]:
    for uids in _pages(runtime, lambda connection, after: scans.waiting(connection, after, BATCH)):
        drained = [_repair(runtime, uid, _drained) for uid in uids]
        yield Recovered(len(uids), drained=drained.count(True), failed=drained.count(None))


def _drained(connection: Connection, schedule: Schedule, now: datetime) -> Change:
    return decide_drain(schedule, store.open_runs(connection, [schedule])[schedule.uid], now=now)


# ---- targets, backfills


def _repair_targets(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    for checked, repaired in fanout.repair(runtime, everything=everything):
        yield Recovered(checked=checked, targets=repaired)


def _resume_backfills(runtime: Runtime, rest: backfills.Rest) -> Iterator[Recovered]:
    """Go on with backfills whose process ended in the middle of them; each chunk is a batch of the pass."""
    before = runtime.now() - runtime.settings.grace
    for uids in _pages(runtime, lambda connection, after: backfills.interrupted(connection, before, after, BATCH)):
        for uid in uids:
            yield from _resume(runtime, uid, rest)


def _resume(runtime: Runtime, uid: str, rest: backfills.Rest) -> Iterator[Recovered]:
    try:
        yield Recovered(backfills=1)
        for _, rows in backfills.resume(runtime, uid, rest=rest):
            yield Recovered(checked=len(rows))
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - one row never starves the others
        _log.exception("backfill %s cannot be resumed now", uid, extra={"action": "repair_failed"})
        yield Recovered(failed=1)


# ---- pages


def _pages(runtime: Runtime, page: Callable[..., tuple[list[Any], Any]]) -> Iterator[list[Any]]:
    """Yield pages of rows; `page` reads the rows after a cursor and says where the next page starts."""
    cursor: Any = None
    while True:
        rows, cursor = runtime.database.read(partial(page, after=cursor))
        if rows:
            yield rows
        if cursor is None:
            return
