"""A fan-out is killed, cut off and left without an answer at every step.

Each target is dispatched once. It is handled once, unless its process died and its policy has it tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Once, RetryPolicy, jobs
from rqsched.errors import RunStateError
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.chain import repair_targets
from rqsched.features.fan_out.execution import lose
from rqsched.kernel.chain.runtime import using
from rqsched.kernel.decide.ids import BatchJobId, TargetJobId, new_uid, parse_target_job_id
from rqsched.kernel.decide.model import OPEN_TARGETS
from rqsched.kernel.store.tables import targets
from rqsched.machines import MachineScheduler, MachineStates
from tests.support.sizes import IS_NIGHTLY
from tests.system.crash.cases import run_in_child
from tests.system.crash.env import CrashEnv, Snapshot
from tests.system.crash.flows import FIRST, RETRIES, START, Flow, fire
from tests.system.crash.machines import NAMES, Door, Doors
from tests.system.crash.steps import FATES, Steps, tried_at_the_next

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.timeout(900),
]
WORKFLOW = "machine:CrashDoor:CLOSE"
PLAIN = "crash-close"
"""The workflow without a machine, whose targets a generator names."""


class FanOutEnv(CrashEnv):
    """An environment whose worker executes targets too, and that is not settled before they are."""

    def __init__(self, database_url: str, redis_url: str, folder: Path) -> None:
        super().__init__(database_url, redis_url, folder, START)
        Doors.log, Doors.executed = folder / "closed", self.log
        self.logs.append(Doors.log)

    def closed(self) -> Counter[str]:
        """How often each door was closed."""
        return Counter(Doors.log.read_text().split())

    def execute_next(self) -> bool:
        job = self.next_job()
        if job is not None:
            jobs.execute(job)
        return job is not None

    def count(self) -> Counter[str]:
        return Counter(MachineScheduler.count(self.scheduler, self._run_uid()))

    def _run_uid(self) -> str:
        return str(self.scheduler.get("doors").runs().items[0].uid)

    def is_anything_open(self) -> bool:
        return super().is_anything_open() or any(self.count()[name] for name in OPEN_TARGETS)

    def _deliver_again(self) -> None:
        super()._deliver_again()
        batches = [str(BatchJobId(self._run_uid(), number)) for number in range(1, len(NAMES) + 1)]
        for job in [*batches, *map(str, self._deliveries())]:
            jobs.execute(job)

    def _deliveries(self) -> list[TargetJobId]:
        """Every job that a target had before the one that waits now, which reconcile must have put on its queue."""
        found = sa.select(targets.c.uid, targets.c.delivery, targets.c.status)
        rows = self.runtime.database.read(lambda c: c.execute(found).all())
        had = {row.uid: row.delivery + (row.status != "pending") for row in rows}
        return [TargetJobId(uid, number) for uid, most in had.items() for number in range(1, most)]

    def snapshot(self) -> Snapshot:
        Doors.log.touch()
        self._lines_before = Doors.log.read_text()
        return super().snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        Doors.log.write_text(self._lines_before)


@pytest.fixture
def env(database_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FanOutEnv]:
    monkeypatch.setenv("RQSCHED_TARGET_CHUNK", "2")
    monkeypatch.setenv("RQSCHED_COMPLETION_OUTAGE", "1")
    env = FanOutEnv(database_url, redis_url, tmp_path)
    env.scheduler.recover()
    env.redis.set(env.runtime.transport.interval_key, 1)
    with using(env.runtime):
        yield env
    env.close()


TRIED_AGAIN = RetryPolicy(max_retries=3, base=timedelta(seconds=1))


def due(env: CrashEnv, workflow: str = WORKFLOW, **options: Any) -> None:
    """The run is pending, and a worker has taken its job."""
    MachineStates(env.scheduler, Door).put_all(dict.fromkeys(NAMES))
    env.scheduler.create("doors", workflow, Once(FIRST), retry=RETRIES, **options)
    fire(env, FIRST)
    env.job = env.next_job()


def after(jobs_done: int, **options: Any) -> Callable[[CrashEnv], None]:
    """So many jobs were executed, the run's first; a worker has taken the next one."""

    def prepare(env: CrashEnv) -> None:
        due(env, **options)
        for _ in range(jobs_done):
            act(env)
            env.job = env.next_job()

    return prepare


def failed(jobs_done: int = 1, **options: Any) -> Callable[[CrashEnv], None]:
    """The first target has failed and is due to be tried again."""

    def prepare(env: CrashEnv) -> None:
        after(jobs_done, target_retry=TRIED_AGAIN, **options)(env)
        fail(env)
        env.clock.advance(timedelta(seconds=2))

    return prepare


def due_plainly(env: CrashEnv) -> None:
    """The same for the workflow without a machine."""
    due(env, PLAIN)


def ended_with_failures(env: CrashEnv) -> None:
    """The first target has failed, the others are handled, and the run is over."""
    after(1, workflow=PLAIN, fan_out="never")(env)
    fail(env)
    while isinstance(env, FanOutEnv) and env.execute_next():
        pass


def retry_failed(env: CrashEnv) -> None:
    """A person asks that the failed targets be handled again."""
    env.scheduler.get("doors").runs().items[0].retry(failed_targets=True)


def flushed(env: CrashEnv) -> None:
    """Two targets were on their queue, one waits, and Redis is empty."""
    after(1)(env)
    env.redis.flushdb()
    env.clock.advance(timedelta(seconds=10))


def act(env: CrashEnv) -> None:
    """Execute the job a worker has taken."""
    jobs.execute(env.job)


def fail(env: CrashEnv) -> None:
    """Execute the job a worker has taken, of a door that is stuck."""
    Doors.are_stuck = True
    try:
        with suppress(RuntimeError):
            act(env)
    finally:
        Doors.are_stuck = False


def lack(env: CrashEnv) -> None:
    """Execute the job a worker has taken that does not have the machine."""
    known = env.runtime.workflows.get(WORKFLOW)
    env.runtime.workflows.remove(WORKFLOW)
    try:
        act(env)
    finally:
        if known is not None:
            env.runtime.workflows.add(known)


def see_die(env: CrashEnv) -> None:
    """A process claimed the target and died, and its worker saw that."""
    job = parse_target_job_id(str(env.job))
    assert isinstance(job, TargetJobId)
    now = env.clock.now()
    env.runtime.database.transact(lambda c: fan_out_targets.claim(c, job, new_uid(now), now))
    lose(env.runtime, job, "its work horse died")


def promote(env: CrashEnv) -> None:
    """A dispatcher fires the retry link of the run."""
    env.dispatch_all()


def repair(env: CrashEnv) -> None:
    """Do the part of a reconcile pass that looks at targets."""
    for _ in repair_targets(env.runtime, is_full=True):
        pass


GROUP: dict[str, Any] = {"limit": "shop", "limit_running": 1}


def unclaimed(env: CrashEnv) -> None:
    """The target with the place is unclaimed for half a minute; the others are in line."""
    after(2, **GROUP)(env)
    env.clock.advance(timedelta(seconds=31))


def recover(env: CrashEnv) -> None:
    """Do a whole reconcile pass."""
    env.scheduler.recover()


def passed_over(env: CrashEnv) -> None:
    """The first target was passed over, the second has the place, and a worker takes the job of the first."""
    unclaimed(env)
    env.scheduler.recover()


HANDLED = "a target is handled"
LAST = "the last target is handled and ends the run"
AGAIN = "a target is handled that may be tried again"
NEXT = "a target ends and the next takes its place"
FREED = "a target of a group ends and the next in line gets its place"
ASKED = "a target that was passed over gets a place"
LAST_OF_GROUP = "the last target of a group is handled and ends the run"
FAILED_ONES = "the failed targets are retried on request"
FLOWS = [
    Flow("the run records its targets chunk by chunk and dispatches the first", due, act, is_atomic=False),
    Flow("a generator's targets are recorded chunk by chunk", due_plainly, act, is_atomic=False),
    Flow(FAILED_ONES, ended_with_failures, retry_failed),
    Flow("the next chunk is dispatched", after(3), act, is_atomic=False),
    Flow("everything is put on the queue again", flushed, repair, is_atomic=False),
    Flow(HANDLED, after(1), act, is_atomic=False),
    Flow(LAST, after(4), act, is_atomic=False),
    Flow(AGAIN, after(1, target_retry=TRIED_AGAIN), act, is_atomic=False),
    Flow("a target fails and is to be tried again", after(1, target_retry=TRIED_AGAIN), fail, is_atomic=False),
    Flow("a target that failed is put on its queue again", failed(), promote, is_atomic=False),
    Flow("one that failed waits for a place again", failed(max_parallel=1), promote, is_atomic=False),
    Flow("a target is blocked", after(1), lack, is_atomic=False),
    Flow(NEXT, after(1, max_parallel=1), act, is_atomic=False),
    Flow("a horse dies and the next takes its place", after(1, max_parallel=1), see_die, is_atomic=False),
    Flow("a run of a group gives its place to its targets", partial(due, **GROUP), act, is_atomic=False),
    Flow("the next chunk joins the line", after(1, **GROUP), act, is_atomic=False),
    Flow(FREED, after(2, **GROUP), act, is_atomic=False),
    Flow(LAST_OF_GROUP, after(4, **GROUP), act, is_atomic=False),
    Flow("a target of a group that failed is in line again", failed(2, **GROUP), promote, is_atomic=False),
    Flow("a horse dies and the next in line gets its place", after(2, **GROUP), see_die, is_atomic=False),
    Flow("a grant of a target is passed on", unclaimed, recover, is_atomic=False),
    Flow(ASKED, passed_over, act, is_atomic=False),
]
MAY_LOSE_ONE = {
    *(HANDLED, LAST, NEXT, FREED, ASKED, LAST_OF_GROUP),
    *("a horse dies and the next takes its place", "a horse dies and the next in line gets its place"),
    "a target is blocked",
}
"""Flows that lose one target: without retries, a claimed target is lost with its process."""


def _case(kind: str, flow: Flow) -> Any:
    marks = [pytest.mark.postgres] if kind == "postgres" else []
    if kind == "postgres" and flow.name not in {HANDLED, LAST}:
        marks.append(pytest.mark.nightly)
    if kind == "sqlite" and flow.name in {HANDLED, LAST}:
        marks.append(pytest.mark.once)
    return pytest.param(kind, flow, id=f"{kind}-{flow.name}", marks=marks)


@pytest.mark.parametrize(
    ("database_kind", "flow"), [_case(kind, flow) for flow in FLOWS for kind in ("sqlite", "postgres")]
)
def test_a_fan_out_that_ends_at_any_step_handles_each_target_once(
    flow: Flow, env: FanOutEnv, database_kind: str
) -> None:
    flow.prepare(env)
    before = env.snapshot()
    run_in_child(env, flow, Steps())  # once more than counted: now Redis knows every script
    env.restore(before)
    steps = run_in_child(env, flow, Steps()).seen
    assert steps
    judged = set[str]()
    for at, step in enumerate(steps):
        twice = set() if IS_NIGHTLY else tried_at_the_next(steps, at)
        for fate in [fate for fate in FATES[step.kind] if fate not in twice]:
            env.restore(before)
            name = f"at step {at} of {len(steps)} ({step}), process {fate.value} on {database_kind}"
            ended = run_in_child(env, flow, Steps(at, fate))
            assert ended.error is None, f"{name}:\n{ended.error}"
            state = f"{env.state()} {env.closed()}"
            if state not in judged:
                judged.add(state)
                _settle(env, flow, name, has_died=ended.has_died)


def _ask_again(env: FanOutEnv) -> None:
    """Ask once more where nobody heard whether it was done: it is refused where it was."""
    before = env.count()
    with suppress(RunStateError):
        retry_failed(env)
        assert before["failed"], "there was nothing to retry"
    env.settle()


def _settle(env: FanOutEnv, flow: Flow, name: str, *, has_died: bool) -> None:
    """Let everything come to its end; every door was closed once, or its process died on the way to it."""
    try:
        env.settle()
        if flow.name == FAILED_ONES and has_died:
            _ask_again(env)
    except AssertionError as error:
        raise AssertionError(f"{name}:\n{error}") from error
    closed, counts = env.closed(), env.count()
    (story,) = env.stories()
    ends = [event.payload["targets"] for event in story.events if event.event_type == "FanOutEnded"]
    assert ends[-1] == counts, f"{name}: {ends}"
    assert len(ends) == 1 + (flow.name == FAILED_ONES), f"{name}: {ends}"
    assert [run.status.value for run in story.runs] == ["failed" if counts["lost"] else "succeeded"], name
    assert counts.total() == len(NAMES), name
    lost = flow.act is see_die or (has_died and flow.name in MAY_LOSE_ONE)
    assert counts["lost"] <= lost, f"{name}: {counts}"
    again = has_died and flow.name == AGAIN
    assert counts["succeeded"] + counts["lost"] + (counts["ignored"] if again else 0) == len(NAMES), f"{name}: {counts}"
    assert max(closed.values()) <= 1 + again, f"{name}: {closed}"
    assert len(closed) >= len(NAMES) - counts["lost"], f"{name}: {closed}"
