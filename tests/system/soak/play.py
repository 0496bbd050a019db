"""Playing a soak: disasters strike while the schedules fire; then it calms down, and every occurrence counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import sqlalchemy as sa

from rqsched.api.scheduler import Scheduler
from rqsched.errors import ScheduleStateError
from rqsched.kernel.decide.model import UNFINISHED
from rqsched.kernel.store import tables
from tests.support.invariants import check_invariants
from tests.support.processes import wait_until
from tests.system.soak.disasters import Disasters
from tests.system.soak.report import Report, make_report
from tests.system.soak.workers import Workers, declare, workers

_TURN = 0.1
_CALM = 180.0
"""Seconds within which everything must be worked off once nothing strikes any more."""


@dataclass(frozen=True)
class Plan:
    """How long, how hard, and which disasters."""

    minutes: float
    kills: int
    schedules: int
    workers: int
    seed: int


def soak(plan: Plan, folder: Path, *, say: Callable[[str], None] = lambda text: None) -> Report:
    """Play a plan to its end and account for it; a broken invariant is among the report's problems."""
    random = Random(plan.seed)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with workers(folder, plan.workers) as running, Scheduler(settings=running.settings) as scheduler:
        declare(scheduler, plan.schedules, random)
        disasters = Disasters(running, random)
        wait_until(running.log_path.exists, timeout=_CALM, interval=_TURN, what="the first run")
        _strike(running, disasters, plan, random, say)
        disasters.thaw(everything=True)
        calm_down(running, scheduler)
        report = make_report(scheduler.runtime, running.log_path)
        try:
            check_invariants(scheduler.runtime)
        except AssertionError as broken:
            report.problems.append(str(broken))
    report.parameters, report.disasters = asdict(plan), disasters.counts
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _strike(running: Workers, disasters: Disasters, plan: Plan, random: Random, say: Callable[[str], None]) -> None:
    """Disasters strike at random moments, as many as planned in the time planned."""
    span = plan.minutes * 60
    moments = sorted(random.uniform(0, span) for _ in range(plan.kills))
    began, pause = time.monotonic(), threading.Event()
    for number, moment in enumerate(moments, 1):
        while (left := began + moment - time.monotonic()) > 0:
            running.start_missing()
            disasters.thaw()
            pause.wait(min(left, _TURN))
        name = disasters.strike()
        if number % 50 == 0 or plan.kills <= 50:
            say(f"{time.monotonic() - began:7.1f} s  {number:5} {name}")


def calm_down(running: Workers, scheduler: Scheduler) -> None:
    """Pause the schedules after every due occurrence has its outcome, and wait for the end of their runs."""
    wait_until(lambda: _all_fire(running, scheduler), timeout=_CALM, interval=0.3, what="every schedule to fire again")
    for handle in list(scheduler.iter()):
        try:
            handle.pause()
        except ScheduleStateError:
            assert handle.refresh().status == "paused", handle
    wait_until(lambda: _has_ended(running, scheduler), timeout=_CALM, interval=0.3, what="the end of every run")


def _all_fire(running: Workers, scheduler: Scheduler) -> bool:
    """Whether nothing is late: every schedule, also one whose link was lost, has been found and fired."""
    running.start_missing()
    now = scheduler.runtime.now()
    late = sa.select(sa.func.count()).where(tables.schedules.c.due_at < now)
    return scheduler.runtime.database.read(lambda connection: connection.execute(late).scalar_one()) == 0


def _has_ended(running: Workers, scheduler: Scheduler) -> bool:
    running.start_missing()
    status = tables.runs.c.status
    unfinished = sa.select(sa.func.count()).where(status.in_([each.value for each in UNFINISHED]))
    return scheduler.runtime.database.read(lambda connection: connection.execute(unfinished).scalar_one()) == 0
