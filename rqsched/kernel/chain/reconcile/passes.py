"""Make all repairs in order, in batches, so that a dispatcher can fire in between. `recover` makes a full pass."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from redis.exceptions import RedisError

from rqsched.errors import BackendUnavailableError
from rqsched.kernel.chain import rollback_marks
from rqsched.kernel.chain.feature import Pass, Stage
from rqsched.kernel.chain.reconcile import lost_attempts, schedules
from rqsched.kernel.chain.reconcile.repair import unless_all_frozen
from rqsched.kernel.chain.rollback_marks import Told
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.transport import telemetry
from rqsched.kernel.transport.refusal import told

_log = logging.getLogger(__name__)
T = TypeVar("T")

Progress = Callable[[int], None]
"""Called with the number of rows compared since the last call."""


def recover(runtime: Runtime, *, deep: bool = False, progress: Progress | None = None) -> Recovered:
    """Make one full pass. `deep` verifies the links of all active schedules, not only of those that are due soon."""
    total = Recovered()
    for batch in iter_batches(runtime, deep=deep, fires_between=False):
        total.add(batch)
        if progress is not None:
            progress(batch.checked)
    if total.repaired:
        _log.info("recovered %s", asdict(total), extra={"action": "recovered"})
    return total


def reconcile_in_turn(runtime: Runtime) -> Recovered | None:
    """Make a pass if no worker made one within the interval. A key in Redis shows whether one did.

    Links in a plain `rq worker` call this. It also records the workflows that the worker's application registers. If
    the pass fails, this is only logged, because the link itself has done its work.
    """
    try:
        if not runtime.transport.acquire_interval(runtime.settings.reconcile_interval):
            return None
    except RedisError:  # while Redis is away, no process makes a pass
        return None
    try:
        runtime.record_workflows()
        return recover(runtime)
    except Exception:  # noqa: BLE001
        _log.exception("not reconciled", extra={"action": "reconcile_failed"})
        return None


def iter_batches(runtime: Runtime, *, deep: bool = False, fires_between: bool = True) -> Iterator[Recovered]:
    """Make a pass; yields the counts of each batch, so that a dispatcher can fire in between.

    Without `fires_between`, a backfill pauses between its chunks, so that other processes can fire.

    If a section fails, this is logged and the next section is made. So repairs that need only SQL are made while Redis
    is away. Raises BackendUnavailableError if SQL is away, and ConfigError if Redis belongs to another database.
    """
    total, began = Recovered(), time.monotonic()
    for batch in _iter_sections(runtime, deep=deep, fires_between=fires_between):
        total.add(batch)
        yield batch
    transport = runtime.transport
    telemetry.record_pass(transport.redis, transport.control.name, asdict(total), time.monotonic() - began)


def _iter_sections(runtime: Runtime, *, deep: bool, fires_between: bool) -> Iterator[Recovered]:
    runtime.refusals.look()
    flush_marker = _unless_redis_fails(runtime.ownership.leave_flush_marker, None, "no look for a flush of Redis: %s")
    _unless_redis_fails(runtime.ownership.claim_server, None, "the database server is not compared with Redis: %s")
    uncompared: list[Told] = _unless_redis_fails(
        partial(rollback_marks.leave_mark, runtime), [], "no mark is written: %s"
    )
    runtime.freezes.share()
    everything = deep or flush_marker is not None or bool(uncompared)
    handed_in = runtime.features.sections(Pass(everything, fires_between))
    sections = [
        schedules.apply_new_tzdata(runtime),
        *handed_in[Stage.TIMES],
        schedules.end_pauses(runtime),
        schedules.set_next_times(runtime),
        schedules.arm_links(runtime, everything=everything),
        lost_attempts.arm_retries(runtime, everything=everything),
        lost_attempts.expire(runtime),
        unless_all_frozen(runtime, lost_attempts.redeliver_runs(runtime, everything=everything)),
        lost_attempts.settle_lost(runtime),
        unless_all_frozen(runtime, lost_attempts.fail_blocked(runtime)),
        unless_all_frozen(runtime, schedules.drain(runtime)),
        *handed_in[Stage.RUNS],
    ]
    errors: list[BaseException] = []
    for section in sections:
        yield from _guarded(section, errors)
    if flush_marker is not None and not errors:
        yield from _guarded(_record_database_id(runtime, flush_marker), errors)
    if uncompared and not errors:
        rollback_marks.record_compared(runtime, uncompared)
    for section in handed_in[Stage.REST]:
        yield from _guarded(section, errors)


def _unless_redis_fails(call: Callable[[], T], otherwise: T, complaint: str) -> T:
    """Make a call; if Redis does not answer or refuses it, log the complaint with the error and return `otherwise`."""
    try:
        return call()
    except RedisError as error:
        _log.warning(complaint, told(error), extra={"action": "reconcile_without_redis"})
        return otherwise


def _record_database_id(runtime: Runtime, flush_marker: str) -> Iterator[Recovered]:
    """Record the database's id in Redis, now that everything is armed again, unless Redis was flushed meanwhile.

    If Redis has restarted from a copy meanwhile, the copy may have the flush marker but lack some links. The id is
    recorded in this case, too. Then ordinary passes arm the missing links when these are due soon or late.
    """
    if not runtime.ownership.record_database_id(flush_marker):
        _log.warning("Redis was flushed again: the next pass is a full one", extra={"action": "flushed_again"})
    yield Recovered()


def _guarded(section: Iterator[Recovered], errors: list[BaseException]) -> Iterator[Recovered]:
    try:
        yield from section
    except BackendUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001 - a section never stops the others
        _log.warning("a part of reconcile ended early: %s", error, exc_info=True, extra={"action": "section_failed"})
        errors.append(error)
        yield Recovered(failed=1)
