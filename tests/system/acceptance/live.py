"""A live environment: a database, a Redis, real time, and the processes a test starts and kills there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rqsched import Every, Scheduler
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.processes.vital_signs import ask_all
from rqsched.spec.spec import SpecLike
from tests.support.invariants import check_invariants, i8_executions
from tests.support.narrow import present
from tests.support.processes import Processes, is_gone, wait_until
from tests.support.stories import Story, read_stories
from tests.system.acceptance.chores import DEAFEN, FAIL, HOLD, HOLD_INTERPRETER, NOTE, Execution, read_executions


@dataclass
class LiveEnv(Processes):
    """Where the processes of one test meet; the test itself watches with a scheduler of its own."""

    scheduler: Scheduler

    def note_every(self, schedule_id: str, spec: SpecLike, **options: Any) -> ScheduleHandle:
        """Have a schedule whose runs leave a line in the log."""
        return self.scheduler.create(schedule_id, NOTE, spec, kwargs={"log": str(self.log)}, **options)

    def hold_now(self, schedule_id: str = "hold", *, deaf: bool = False, **options: Any) -> RunHandle:
        """Have a run that is to execute until `open_gate`; deaf, beyond its timeout too."""
        kwargs = {"log": str(self.log), "gate": str(self.gate), "deaf": deaf}
        schedule = self.scheduler.create(schedule_id, HOLD, Every("24h"), kwargs=kwargs, **options)
        run = schedule.trigger().run
        assert run is not None
        return run

    def hold_interpreter_now(self, schedule_id: str = "hold") -> RunHandle:
        """Have a run in whose process nothing else happens."""
        kwargs = {"log": str(self.log), "gate": str(self.gate)}
        run = self.scheduler.create(schedule_id, HOLD_INTERPRETER, Every("24h"), kwargs=kwargs).trigger().run
        assert run is not None
        return run

    def fail_now(self) -> None:
        """Have a run that fails."""
        self.scheduler.create("fail", FAIL, Every("24h"), kwargs={"log": str(self.log)}).trigger()

    def deafen_now(self) -> None:
        """Have a run that leaves its process deaf to SIGTERM."""
        self.scheduler.create("deafen", DEAFEN, Every("24h"), kwargs={"log": str(self.log)}).trigger()

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

    def wait_for_execution(self, run: RunHandle, *, timeout: float = 30) -> Execution:
        """Wait until the body of a run has begun."""
        found = wait_until(
            lambda: [one for one in self.executions() if one.run_uid == run.uid],
            timeout=timeout,
            what=f"an execution of {run}",
        )
        return found[-1]

    def wait_for_status(self, run: RunHandle, *statuses: str, timeout: float = 30) -> RunHandle:
        wait_until(lambda: run.refresh().status in statuses, timeout=timeout, what=f"{run} in {statuses}")
        return run

    def check(self, *, with_redis: bool = False) -> None:
        """Assert the invariants, and that no attempt was executed twice."""
        check_invariants(self.scheduler.runtime, with_redis=with_redis)
        i8_executions(self.scheduler.runtime, self._executed())

    def _executed(self) -> Iterator[tuple[str, int]]:
        """Read the log when it is asked for the first time, not before: runs go on."""
        for one in self.executions():
            yield one.run_uid, one.attempt


MakeLive = Callable[..., LiveEnv]
