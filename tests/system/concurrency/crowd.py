"""A crowd: processes that own, fire, run and repair the same few schedules as fast as they can."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import cast

from rqsched import RetryPolicy, current_run
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.clock import Clock, SystemClock
from rqsched.config import Settings
from rqsched.errors import BackendUnavailableError, RqschedError
from rqsched.kernel.chain import execution
from rqsched.kernel.chain import fire as firing
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.decide.ids import parse_run_job_id
from rqsched.testing import ManualClock
from rqsched.workflows import Registry, make_workflow

RUN_LIST = "rq:queue:default"


class FastClock(Clock):
    """The wall clock from a moment on, many times as fast: a minute's schedule fires every few seconds."""

    def __init__(self, start: datetime, speed: int) -> None:
        self._start = start
        self._speed = speed

    def now(self) -> datetime:
        return self._start + (SystemClock().now() - self._start) * self._speed


class Flaky(Exception):
    """The error of every seventh attempt."""


@dataclass(frozen=True)
class Crowd:
    """The shared configuration of the processes of a crowd."""

    settings: Settings
    clock: Clock
    log_path: Path
    """Where workflows write down that they ran: one line an attempt."""

    def scheduler(self, note: Callable[[], object] | None = None) -> Scheduler:
        """A scheduler of this process, with the workflow `note`: the crowd's own, or the one given."""
        registry = Registry()
        registry.add(make_workflow("note", note or self._note))
        patient = self.settings.model_copy(update={"redis_timeout": timedelta(0)})  # no breaker: many share the machine
        return Scheduler(settings=patient, clock=self.clock, workflows=registry)

    def _note(self) -> None:
        run = current_run()
        with self.log_path.open("ab", buffering=0) as log:
            log.write(f"{run.uid} {run.attempt}\n".encode())
        if (run.trigger_number or 0) % 7 == 0 and run.attempt == 1:
            raise Flaky(run.uid)

    def executed(self) -> list[tuple[str, int]]:
        """Each attempt whose workflow began."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return [(uid, int(attempt)) for uid, attempt in (line.split() for line in lines)]


LIMIT = {"limit": "crowd", "limit_running": 2}
DECLARATIONS: tuple[dict[str, object], ...] = (
    {"spec": timedelta(seconds=20), "overlap": "skip"},
    {"spec": timedelta(seconds=30), "overlap": "buffer_one", "jitter": timedelta(seconds=10), **LIMIT},
    {"spec": "* * * * *", "overlap": "buffer_all", "missed": "all", "missed_limit": 5},
    {"spec": timedelta(seconds=45), "overlap": "allow_all", "retry": RetryPolicy(0, then="continue"), **LIMIT},
    {"spec": timedelta(minutes=1), "overlap": "cancel_other"},
    {"spec": timedelta(minutes=1), "overlap": "terminate_other", "missed": "skip"},
)
RETRY = RetryPolicy(2, base=timedelta(seconds=5), then="continue")


def declare(scheduler: Scheduler, index: int) -> ScheduleHandle:
    """The schedule `s{index}` is there and as declared."""
    options = {"retry": RETRY, **DECLARATIONS[index]}
    spec = options.pop("spec")
    return scheduler.upsert(f"s{index}", "note", spec, **options)[0]  # type: ignore[arg-type]


@dataclass
class Member:
    """One process of the crowd."""

    scheduler: Scheduler
    random: Random
    done: Counter[str] = field(default_factory=Counter)
    links: list[str] = field(default_factory=list)
    """Links it has seen: delivered again later, when they are old."""

    def act(self, count: int) -> Counter[str]:
        """Do `count` random operations. Refusals and timeouts count; any other error fails the test."""
        self._dispatcher = Dispatcher(self.scheduler.runtime)
        for _ in range(count):
            act = self.random.choices(_ACTS, _WEIGHTS)[0]
            try:
                act(self)
                self.done[act.__name__] += 1
            except BackendUnavailableError:
                self.done["timeout"] += 1
            except RqschedError:
                self.done["refused"] += 1
        self.scheduler.close()
        return self.done

    def _any(self) -> ScheduleHandle:
        return self.scheduler.get(f"s{self.random.randrange(len(DECLARATIONS))}")

    def fire(self) -> None:
        self.done["links"] += self._dispatcher.run_once()

    def tick(self) -> None:
        self.scheduler.tick(limit=5)

    def recover(self) -> None:
        self.scheduler.recover(deep=self.random.random() < 0.2)

    def trigger(self) -> None:
        key = self.random.choice((None, None, f"key-{self.random.randrange(50)}"))
        self._any().trigger(self.random.choice((None, None, "allow_all", "buffer_all")), idempotency_key=key)

    def upsert(self) -> None:
        declare(self.scheduler, self.random.randrange(len(DECLARATIONS)))

    def update(self) -> None:
        seconds = self.random.choice((15, 20, 30, 60))
        self._any().update(spec=timedelta(seconds=seconds))

    def pause(self) -> None:
        self._any().pause()

    def resume(self) -> None:
        self._any().resume(self.random.choice((None, "once")))

    def recreate(self) -> None:
        index = self.random.randrange(len(DECLARATIONS))
        self.scheduler.get(f"s{index}").delete()
        declare(self.scheduler, index)

    def old_link(self) -> None:
        transport = self.scheduler.runtime.transport
        entries = cast("list[bytes]", transport.redis.zrange(transport.scheduled_key, 0, 5))
        armed = [entry.decode() for entry in entries]
        self.links = [*self.links, *armed][-60:]
        if self.links:
            firing.fire(
                self.scheduler.runtime, [self.random.choice(self.links)], skip_locked=self.random.random() < 0.5
            )

    def work(self) -> None:
        work_off(self.scheduler, limit=5)

    def cancel(self) -> None:
        found = self._any().runs(limit=3).items
        if found:
            self.random.choice(found).cancel()


def work_off(scheduler: Scheduler, limit: int = 100_000) -> int:
    """Execute the jobs of the run queue as a horse does, and return their number."""
    redis = scheduler.runtime.transport.redis
    for count in range(limit):
        entry = cast("bytes | None", redis.lpop(RUN_LIST))
        job = parse_run_job_id(entry.decode()) if entry else None
        if job is None:
            return count
        try:
            execution.execute(scheduler.runtime, job)
        except Flaky:
            continue
    return limit


def come_to_rest(scheduler: Scheduler, clock: ManualClock) -> None:
    """Finish the running work, make the reconcile passes, and work off the repaired jobs."""
    dispatcher = Dispatcher(scheduler.runtime)
    for _ in range(6):
        clock.advance(timedelta(seconds=16))
        scheduler.recover()
        while dispatcher.run_once() + work_off(scheduler):
            continue


def seed_of(index: int) -> int:
    """A seed that differs between the processes of one test, and is printed with a failure."""
    return int(os.environ.get("CROWD_SEED", "1")) * 1_000 + index


Act = Callable[[Member], None]
_CHANCES: dict[Act, int] = {
    Member.fire: 30,
    Member.tick: 6,
    Member.recover: 3,
    Member.trigger: 10,
    Member.upsert: 6,
    Member.update: 4,
    Member.pause: 6,
    Member.resume: 12,
    Member.recreate: 1,
    Member.old_link: 8,
    Member.work: 14,
    Member.cancel: 2,
}
_ACTS, _WEIGHTS = list(_CHANCES), list(_CHANCES.values())
