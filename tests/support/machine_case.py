"""The state machines of the tests: applications that expire, are reminded, and log their events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from statemachine import State, StateMachine

from rqsched.api.schedule_handle import RunHandle
from rqsched.machines import MachineScheduler, MachineStates, machine
from rqsched.testing import run_schedule
from tests.support.damage import pop
from tests.support.env import Env
from tests.support.narrow import present

EXPIRY, REMINDER = "machine:ApplicationMachine:CHECK_EXPIRY", "machine:ApplicationMachine:SEND_REMINDER"


@dataclass
class MachineCase:
    """An environment, the machine class registered there, and the log of its actions."""

    env: Env
    machine: Any
    log: list[str] = field(default_factory=list)

    @property
    def states(self) -> MachineStates:
        return MachineStates(self.env.scheduler, self.machine)

    def register(self, event: str = "CHECK_EXPIRY", **options: Any) -> Any:
        return MachineScheduler.register(self.machine, event, workflows=self.env.runtime.workflows, **options)

    def schedule(self, event: str = "CHECK_EXPIRY") -> str:
        """Have an ordinary schedule of an event, and give its id."""
        self.register(event).daily_at("00:10")
        self.env.scheduler.sync()
        return f"machine:ApplicationMachine:{event}"

    def run(self, event: str = "CHECK_EXPIRY") -> RunHandle:
        """Run an event's schedule to its end, targets included."""
        return run_schedule(self.env.scheduler, self.schedule(event))

    def start(self, event: str = "CHECK_EXPIRY") -> RunHandle:
        """Have a schedule of the event, and begin a run of it."""
        self.schedule(event)
        return self.begin(event)

    def begin(self, event: str = "CHECK_EXPIRY") -> RunHandle:
        """Trigger the event's schedule and execute the run alone: its targets wait on their queue."""
        run = present(self.env.scheduler.get(f"machine:ApplicationMachine:{event}").trigger().run)
        self.work_one()
        return run.refresh()

    def work_one(self) -> str:
        """Take the first job of the queue and execute it; returns its id."""
        job_id = pop(self.env)
        self.env.perform(job_id)
        return job_id

    def count(self, run: RunHandle) -> dict[str, int]:
        return MachineScheduler.count(self.env.scheduler, run.uid)


def open_case(
    env: Env,
    schedules: dict[Any, Any] | None = None,
    *,
    acts: Callable[[str], None] | None = None,
    is_old: Callable[[str], bool] = lambda instance_id: True,
    **options: Any,
) -> MachineCase:
    """A case whose machine declares `schedules`; `acts` is called with the id in each transition to expired."""
    log: list[str] = []
    timed = {"CHECK_EXPIRY": None, "SEND_REMINDER": None} if schedules is None else schedules

    class ApplicationMachine(StateMachine):
        waiting = State(initial=True)
        approved = State()
        expired = State(final=True)

        approve = waiting.to(approved)
        CHECK_EXPIRY = waiting.to(expired, cond="is_old") | approved.to(expired, cond="is_old")
        SEND_REMINDER = approved.to.itself()
        schedules = timed

        def is_old(self) -> bool:
            return is_old(self.model.id)

        def on_CHECK_EXPIRY(self) -> None:  # noqa: N802 - the event's name
            log.append(self.model.id)
            if acts is not None:
                acts(self.model.id)

        def on_SEND_REMINDER(self) -> None:  # noqa: N802 - the event's name
            log.append(f"reminded {self.model.id}")

    given = {"load": Application, "save": lambda instance_id, model: None, **options}
    made = machine(workflows=env.runtime.workflows, **given)(ApplicationMachine)
    return MachineCase(env, made, log)


def expiry_case(env: Env, count: int = 3, *, acts: Callable[[str], None] | None = None, **options: Any) -> MachineCase:
    """A case with the instances `a-1` to `a-{count}`, and a schedule with these options that expires them."""
    case = open_case(env, acts=acts)
    case.states.put_all(dict.fromkeys(f"a-{number}" for number in range(1, count + 1)))
    case.schedule()
    env.scheduler.get(EXPIRY).update(**options)
    return case


@dataclass
class Application:
    """A model without a database: its state is the one that rqsched keeps."""

    id: str
    state: Any = None
