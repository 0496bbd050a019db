"""Repairs of schedules: arm missing links, plan missing or outdated next times, end pauses, start waiting runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

from rqsched.kernel.chain.reconcile.repair import SOON, pages, pages_unfrozen, repair_schedules
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.lifecycle import decide_end_pause
from rqsched.kernel.decide.model import Change, Schedule
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.decide.schedule_repair import decide_drain, decide_replan, decide_retime
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.store import changes, metadata
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport.transport import Arm
from rqsched.when.zones import tzdata_version

_TZDATA = "tzdata"
_RELEASE = re.compile(r"(\d{4})(?:\.(\d+)|([a-z]))")
"""A release of the timezone rules: `2025b` in the system's files is `2025.2` in the package."""


def arm_links(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Arm the links of schedules that are due soon, or late by more than the grace; with `everything`, all links."""
    until = None if everything else runtime.now() + SOON
    for rows in pages_unfrozen(runtime, partial(reconcile_queries.due_links, until=until)):
        now = runtime.now()
        fired_soon = now - runtime.settings.repair_grace
        arms = [Arm(link, due_at) for link, due_at in rows if everything or due_at > now or due_at <= fired_soon]
        yield Recovered(checked=len(rows), links=runtime.transport.arm(arms, now=now))


def end_pauses(runtime: Runtime) -> Iterator[Recovered]:
    """Resume each schedule whose pause has reached its end."""
    for uids in pages(runtime, partial(reconcile_queries.resuming, until=runtime.now())):
        resumed, failed = repair_schedules(runtime, uids, _end_pause)
        yield Recovered(len(uids), resumed=resumed, failed=failed)


def _end_pause(connection: Connection, schedule: Schedule, clock: Callable[[], datetime]) -> Change:
    return decide_end_pause(schedule, changes.open_runs_for_start(connection, [schedule])[schedule.uid], now=clock())


def set_next_times(runtime: Runtime) -> Iterator[Recovered]:
    """Plan active schedules that have no next time, unless they wait for a run or for their buffer to drain."""
    for uids in pages(runtime, reconcile_queries.without_next_time):
        planned, failed = repair_schedules(runtime, uids, _plan)
        yield Recovered(len(uids), next_times=planned, failed=failed)


def _plan(connection: Connection, schedule: Schedule, clock: Callable[[], datetime]) -> Change:
    uid = schedule.awaiting_run_uid
    awaited = None if uid is None else changes.find_run(connection, uid)
    return decide_replan(schedule, awaited, now=clock())


def drain(runtime: Runtime) -> Iterator[Recovered]:
    """Start the oldest waiting run of each schedule, if no run is ahead of it."""
    for uids in pages_unfrozen(runtime, reconcile_queries.waiting):
        drained, failed = repair_schedules(runtime, uids, _drain_one)
        yield Recovered(len(uids), drained=drained, failed=failed)


def _drain_one(connection: Connection, schedule: Schedule, clock: Callable[[], datetime]) -> Change:
    return decide_drain(schedule, changes.open_runs(connection, [schedule])[schedule.uid], now=clock())


def apply_new_tzdata(runtime: Runtime) -> Iterator[Recovered]:
    """Recompute next times once after the timezone database changed (docs/times.md)."""
    current = tzdata_version()
    known = runtime.database.read(lambda connection: metadata.find_value(connection, _TZDATA))
    if known is not None and not is_newer(current, known):  # ours is older: a deploy has not reached this process yet
        return
    left: list[str] = []

    def apply(_: Connection, schedule: Schedule, clock: Callable[[], datetime]) -> Change:
        if not schedule.spec.is_known:
            left.append(schedule.uid)
        return decide_retime(schedule, now=clock(), tzdata=current)

    for uids in pages(runtime, partial(reconcile_queries.with_old_tzdata, tzdata=current)):
        moved, failed = repair_schedules(runtime, uids, apply)
        yield Recovered(len(uids), retimed=moved, failed=failed)
    if not left:  # otherwise a later pass does this, in a process that knows the timing of these schedules
        runtime.database.transact(lambda connection: metadata.set_value(connection, _TZDATA, current))


def is_newer(tzdata: str, known: str) -> bool:
    """Return whether `tzdata` is a newer release than `known`.

    If one of the two texts is not a release, return whether they differ.
    """
    releases = _RELEASE.search(tzdata), _RELEASE.search(known)
    if None in releases:
        return tzdata != known
    mine, theirs = ((int(r[1]), int(r[2]) if r[2] else ord(r[3]) - ord("a") + 1) for r in releases if r)
    return mine > theirs
