"""Every flow is killed, cut off and left without an answer at every one of its steps; I1-I8 hold afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.invariants import i7_redis_follows_sql
from tests.support.sizes import IS_NIGHTLY
from tests.system.crash.caller_transaction import CALLER_TRANSACTION
from tests.system.crash.cases import Ended, run_in_child
from tests.system.crash.env import CrashEnv
from tests.system.crash.flows import FLOWS, START, Flow
from tests.system.crash.steps import FATES, Fate, Kind, Step, Steps, tried_at_the_next

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.timeout(900),  # the longest flow has a hundred steps, and a busy machine takes minutes for them
]


@pytest.fixture
def env(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[CrashEnv]:
    with _opened(database_url, redis_url, tmp_path) as env:
        yield env


@pytest.fixture
def sqlite_env(sqlite_url: str, redis_url: str, tmp_path: Path) -> Iterator[CrashEnv]:
    """For flows about Redis alone."""
    with _opened(sqlite_url, redis_url, tmp_path) as env:
        yield env


@contextmanager
def _opened(database_url: str, redis_url: str, folder: Path) -> Iterator[CrashEnv]:
    with closing(CrashEnv(database_url, redis_url, folder, START)) as env:
        env.scheduler.recover()
        # Reconcile passes happen when a flow says so, not when a dispatcher's turn has come in real time.
        env.redis.set(env.runtime.transport.interval_key, 1)
        yield env


ONE_OF_EACH_KIND = {
    "pause",
    "a pause ends by itself",
    "change a calendar",
    "a run that nobody started expires",
    "trigger",
    "create, update and trigger in a caller's transaction",
    "sync and prune",
    "fire under a plain rq worker",
    "fire all of three, of which max_runs allows two",
    "retry",
    "retry on request",
    "a run succeeds",
    "a run succeeds for whose horse its worker writes",
    "a blocked run is offered again",
    "a run of a group ends and the next gets its place",
    "a run ends and the next is drained",
    "a run fails and somebody is told",
    "a notification is delivered",
    "create again what another comes after",
    "a run succeeds and one comes after it",
    "a pass starts what is owed",
    "update to come after another",
}
"""Flows that `make test` crashes on SQLite and `make test-all` on PostgreSQL. `make nightly` crashes all on both.

On PostgreSQL, `make test` crashes those of the map of promises.
"""


def _case(kind: str, flow: Flow) -> Any:
    marks = [pytest.mark.postgres] if kind == "postgres" else []
    if kind == "postgres" and flow.name not in ONE_OF_EACH_KIND:
        marks.append(pytest.mark.nightly)
    if flow.name in ONE_OF_EACH_KIND:
        marks.append(pytest.mark.once)
    return pytest.param(kind, flow, id=f"{kind}-{flow.name}", marks=marks)


ALL_FLOWS = [*CALLER_TRANSACTION, *FLOWS]
# The last flow takes longest: it is started first.
CASES = [_case(kind, flow) for flow in reversed(ALL_FLOWS) for kind in ("sqlite", "postgres")]


@pytest.mark.parametrize(("database_kind", "flow"), CASES)
def test_a_flow_that_ends_at_any_step_loses_and_doubles_nothing(
    flow: Flow, env: CrashEnv, database_kind: str, request: pytest.FixtureRequest
) -> None:
    flow.prepare(env)
    crashes = Crashes(env, flow, database_kind)
    before = crashes.judge("before it")
    crashes.run(Steps(), "undisturbed")  # once more than counted: now Redis knows every script
    steps = crashes.run(Steps(), "undisturbed").seen
    assert steps, f"{flow.name!r} took no step"
    after = crashes.judge("undisturbed")
    tried = [(at, step, fate) for at, step in enumerate(steps) for fate in fates(flow, steps, at, database_kind)]
    counts = {"steps": len(steps), "crashes": len(tried)}
    request.node.user_properties.extend(counts.items())  # for sums over a --junitxml report
    for at, step, fate in tried:
        name = f"at step {at} of {len(steps)} ({step}), process {fate.value}"
        ended = crashes.run(Steps(at, fate), name)
        found = crashes.judge(name)
        if not ended.has_died:
            assert found == after, crashes.named(f"{name}, did {found} in place of {after}")
        elif flow.is_atomic:
            assert found in (before, after), crashes.named(f"{name}, did {found}, which is a part of {after}")


@pytest.mark.parametrize("flow", [flow for flow in ALL_FLOWS if flow.is_whole], ids=lambda flow: flow.name)
def test_a_flow_that_nobody_disturbs_goes_on_without_a_reconcile_pass(flow: Flow, sqlite_env: CrashEnv) -> None:
    flow.prepare(sqlite_env)
    flow.act(sqlite_env)
    sqlite_env.go_on(lambda: None)


def fates(flow: Flow, steps: Sequence[Step], at: int, kind: str) -> list[Fate]:
    """Return the fates to try at a step of a flow, without those that another step tries.

    Without a side effect outside SQL and Redis between two steps, dying after one equals dying before the next. In a
    row of reads, or of the writes of a transaction, `make test` tries the last. The Redis steps of a long flow are
    tried with SQLite only, because they are the same with PostgreSQL.
    """
    if _is_tried_elsewhere(flow, steps[at], kind):
        return []
    twice = set()
    if _is_tried_next(flow, steps, at, kind):
        twice.add(Fate.DIES_AFTER)
        if not IS_NIGHTLY:
            twice |= tried_at_the_next(steps, at)
    return [fate for fate in FATES[steps[at].kind] if fate not in twice]


def _is_tried_next(flow: Flow, steps: Sequence[Step], at: int, kind: str) -> bool:
    """Tell whether dying after a step equals dying before the next one."""
    if at + 1 == len(steps):
        return False
    step, following = steps[at : at + 2]
    return step.logged == following.logged and not _is_tried_elsewhere(flow, following, kind)


def _is_tried_elsewhere(flow: Flow, step: Step, kind: str) -> bool:
    return flow.is_long and step.kind in {Kind.REDIS, Kind.ASK} and kind == "postgres"


class Crashes:
    """The crashes of one flow in one env, which is put back before each of them."""

    def __init__(self, env: CrashEnv, flow: Flow, kind: str) -> None:
        self._env = env
        self._flow = flow
        self._kind = kind
        self._before = env.snapshot()
        self._state_before = env.state()
        self._is_as_before = True
        self._judged: dict[str, Counter[str]] = {}

    def named(self, what: str) -> str:
        return f"flow {self._flow.name!r} on {self._kind}, {what}"

    def run(self, steps: Steps, name: str) -> Ended:
        """Put the env back and run the flow with its fate."""
        if not self._is_as_before:
            self._env.restore(self._before)
        ended = run_in_child(self._env, self._flow, steps)
        must_die = steps.at is not None and steps.fate in {Fate.DIES_BEFORE, Fate.DIES_AFTER}
        assert ended.error is None, self.named(f"{name}:\n{ended.error}")
        assert ended.has_died == must_die, self.named(f"{name}: exit code {ended.code}, {len(ended.seen)} steps")
        return ended

    def judge(self, name: str) -> Counter[str]:
        """Return the digest of the state, and let the env continue to its end if this state is new."""
        state = self._env.state()
        self._is_as_before = state == self._state_before and state in self._judged
        if state not in self._judged:
            self._judged[state] = digest(self._env)
            try:
                i7_redis_follows_sql(self._env.runtime, self._before.uids)
                self._env.settle(redeliver=not (self._flow.is_long and self._kind == "postgres"))
            except AssertionError as error:
                raise AssertionError(self.named(f"{name}:\n{error}")) from error
        return self._judged[state]


def digest(env: CrashEnv) -> Counter[str]:
    """Count the events and statuses in the env, without times and uids."""
    found: Counter[str] = Counter()
    for story in env.stories():
        name, schedule = story.schedule.schedule_id, story.schedule
        found[f"{name} {schedule.status.value} n={schedule.n} next={schedule.next_run_at}"] += 1
        found.update(f"{name} {event.event_type}" for event in story.events)
        found.update(f"{name} run {run.number} {run.kind.value} {run.status.value}" for run in story.runs)
    found.update(f"{row.kind} of {row.event_type} {row.status} {row.attempt}" for row in env.notifications())
    return found
