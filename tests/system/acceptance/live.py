"""A live environment: a database, a Redis, real time, and the processes a test starts and kills there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from redis import Redis

from rqsched import Every, RetryPolicy, Scheduler
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.kernel.transport import telemetry
from rqsched.run.vital_signs import ask_all
from rqsched.when.spec import SpecLike
from tests.support.invariants import check_invariants, i8_executions
from tests.support.narrow import present
from tests.support.processes import BIN, REPOSITORY, SOON, Process, Processes, is_gone, wait_until
from tests.support.stories import Story, read_stories
from tests.system.acceptance.chores import HOLD, NOTE, Execution, read_executions

LATER = RetryPolicy(max_retries=1, base=timedelta(hours=1))
"""A run that fails waits beyond the end of its test."""
RQ_KINDS = {
    "fork": ("worker", "-w", "rqsched.rq.Worker"),
    "simple": ("worker", "-w", "rqsched.rq.SimpleWorker"),
    "spawn": ("worker", "-w", "rqsched.rq.SpawnWorker"),
    "pool": ("worker-pool", "-n", "2", "-w", "rqsched.rq.Worker"),
}
"""RQ's own commands with each of our classes."""


@dataclass
class LiveEnv(Processes):
    """The shared environment of a test's processes. The test watches them with its own scheduler."""

    scheduler: Scheduler

    def note_every(self, schedule_id: str, spec: SpecLike, **options: Any) -> ScheduleHandle:
        """Have a schedule whose runs leave a line in the log."""
        return self.scheduler.create(schedule_id, NOTE, spec, kwargs={"log": str(self.log)}, **options)

    def run_now(self, schedule_id: str, workflow: str = NOTE, **options: Any) -> RunHandle:
        """Have a run of a schedule of every day; `kwargs` among the options are passed on beside the log."""
        kwargs = {"log": str(self.log), **options.pop("kwargs", {})}
        return present(
            self.scheduler.create(schedule_id, workflow, Every("24h"), kwargs=kwargs, **options).trigger().run
        )

    def hold_now(self, schedule_id: str = "hold", *, deaf: bool = False, **options: Any) -> RunHandle:
        """Have a run that is to execute until `open_gate`; deaf, beyond its timeout too."""
        return self.run_now(schedule_id, HOLD, kwargs={"gate": str(self.gate), "deaf": deaf}, **options)

    @cached_property
    def redis(self) -> Redis:
        """A connection to the Redis that the processes are told."""
        return Redis.from_url(self.environment["RQSCHED_REDIS_URL"])

    def start_runners(self, count: int, *words: str) -> Process:
        return self.start_worker("--concurrency", str(count), *words)

    def start_rq(self, *words: str, queues: Sequence[str] = ("rqsched", "default"), **differs: str) -> Process:
        """Start a command of RQ's, told its Redis by RQ's own option."""
        url = self.environment["RQSCHED_REDIS_URL"]
        return self.start([BIN / "rq", *words, "--url", url, *queues], cwd=REPOSITORY, **differs)

    def beside_rq(self, name: str) -> list[psutil.Process]:
        """The keepers or the dispatchers (`rqsched-keeper`, `rqsched-dispatcher`) beside workers of RQ's."""
        found = []
        for answer in ask_all(Path(self.environment["RQSCHED_RUN_DIR"]), 5):
            for child in (answer.state or {"children": []})["children"]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    dispatcher = psutil.Process(child["pid"])
                    found.append(dispatcher if name == "rqsched-dispatcher" else present(dispatcher.parent()))
        return [process for process in found if not is_gone(process)]

    def wait_beside_rq(self, name: str, *, other_than: int = 0, timeout: float = 60) -> psutil.Process:
        """Wait for one of them."""
        found = wait_until(
            lambda: [process for process in self.beside_rq(name) if process.pid != other_than],
            timeout=timeout,
            what=f"{name}, not {other_than}",
        )
        return found[0]

    @property
    def log(self) -> Path:
        return self.folder / "executions"

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def open_gate(self) -> None:
        self.gate.touch()

    def close(self) -> None:
        self.open_gate()
        super().close()
        self.scheduler.close()

    def executions(self) -> list[Execution]:
        return read_executions(self.log)

    def stories(self) -> list[Story]:
        return read_stories(self.scheduler.runtime)

    def wait_for_execution(self, run: RunHandle, *, timeout: float = SOON) -> Execution:
        """Wait until the body of a run has begun."""
        found = wait_until(
            lambda: [one for one in self.executions() if one.run_uid == run.uid],
            timeout=timeout,
            what=f"an execution of {run}",
        )
        return found[-1]

    def executor_of(self, run: RunHandle, *, timeout: float = SOON) -> psutil.Process:
        """Wait until the body of a run has begun; returns the process that executes it."""
        return psutil.Process(self.wait_for_execution(run, timeout=timeout).pid)

    def wait_for_status(self, run: RunHandle, *statuses: str, timeout: float = SOON) -> RunHandle:
        wait_until(lambda: run.refresh().status in statuses, timeout=timeout, what=f"{run} in {statuses}")
        return run

    def wait_for_fires(self, schedule: ScheduleHandle, *, more: int = 2, timeout: float = SOON) -> None:
        """Wait until it has come to fire so many times more than now; what overlap skips counts, too."""

        def count() -> int:
            return schedule.refresh().run_count + schedule.skipped_count

        fired = count()
        wait_until(lambda: count() >= fired + more, timeout=timeout, what=f"fires of {schedule}")

    def wait_for_successes(self, schedule: ScheduleHandle, *, more: int = 2, timeout: float = SOON) -> None:
        """Wait until so many more of its runs have succeeded than now."""
        ended = schedule.refresh().success_count
        wait_until(
            lambda: schedule.refresh().success_count >= ended + more, timeout=timeout, what=f"runs of {schedule}"
        )

    def wait_for_passes(self, count: int, *, timeout: float = SOON) -> None:
        """Wait until so many passes more have ended; each leaves a mark in Redis."""

        def passes() -> float:
            return telemetry.read_passes(self.redis, "rqsched").get(telemetry.PASSES, 0)

        known = passes()
        wait_until(lambda: passes() >= known + count, timeout=timeout, what=f"{count} passes")

    def check(self, *, with_redis: bool = False) -> None:
        """Assert the invariants, and that no attempt was executed twice."""
        check_invariants(self.scheduler.runtime, with_redis=with_redis)
        i8_executions(self.scheduler.runtime, self._executed())

    def check_each_ran_once(self) -> None:
        """Assert that every run succeeded, after a pause of the schedules and the end of all begun runs."""

        def statuses() -> set[str]:
            return {run.status for one in self.scheduler.iter() for run in one.runs(limit=500).items}

        for schedule in self.scheduler.iter():
            if schedule.status == "active":
                schedule.pause()
        wait_until(lambda: statuses() <= {"succeeded"}, timeout=SOON, what=lambda: f"successes alone, not {statuses()}")
        self.check()
        executed = self.executions()
        assert len(executed) == len({one.run_uid for one in executed})

    def _executed(self) -> Iterator[tuple[str, int]]:
        """Read the log when it is asked for the first time, not before: runs go on."""
        for one in self.executions():
            yield one.run_uid, one.attempt


MakeLive = Callable[..., LiveEnv]
