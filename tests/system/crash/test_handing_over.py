"""An import that hands rq-scheduler's jobs over is killed, cut off and left without an answer at each of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import rq_scheduler  # type: ignore[import-untyped]

from rqsched.features.declarations.schedule_file import declaration_of
from rqsched.importers.handing_over import HandingOver
from rqsched.importers.rq_scheduler import LOCK, SCHEDULED, RqScheduler
from rqsched.importers.source import Reading
from rqsched.kernel.transport import redis_keys
from tests.support.invariants import check_invariants
from tests.support.sizes import IS_NIGHTLY
from tests.system.crash.cases import run_in_child
from tests.system.crash.env import CrashEnv
from tests.system.crash.flows import START, Flow
from tests.system.crash.steps import FATES, Fate, Kind, Step, Steps, tried_at_the_next
from tests.system.crash.test_every_step import digest
from tests.system.crash.workflows import WORK

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*utc.*:DeprecationWarning"),
    pytest.mark.timeout(900),
]
MINUTE = timedelta(minutes=1)
BACKUP = redis_keys.disabled_entries("rq-scheduler")
JOBS = {"every", "late"}


def prepare(env: CrashEnv) -> None:
    """An interval, and an instant that rq-scheduler owes."""
    now = env.clock.now()
    given: dict[str, Any] = {"kwargs": {"log": str(env.log)}, "timeout": 60}
    theirs = rq_scheduler.Scheduler("default", connection=env.redis)
    theirs.schedule(now + 4 * MINUTE, WORK, interval=300, id="every", **given)
    theirs.schedule(now - MINUTE, WORK, id="late", **given)


def hand_over(env: CrashEnv) -> None:
    HandingOver(env.scheduler, RqScheduler(env.redis, Reading(is_trusted=True)), declaration_of).hand_over()


FLOW = Flow("an import hands over", prepare, hand_over, is_atomic=False)


@pytest.fixture
def env(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[CrashEnv]:
    with closing(CrashEnv(database_url, redis_url, tmp_path, START)) as env:
        env.scheduler.recover()
        env.redis.set(env.runtime.transport.interval_key, 1)
        env.runtime.freezes.look()  # what it answers counts for a second: all children ask as often
        yield env


@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_an_import_that_dies_after_a_commit_is_completed_by_another_one(env: CrashEnv, database_kind: str) -> None:
    steps, whole = undisturbed(env)
    commits = [at for at, step in enumerate(steps) if step.kind is Kind.COMMIT]
    assert len(commits) > 2

    complete(env, steps, whole, [(at, Fate.DIES_AFTER) for at in commits])


@pytest.mark.parametrize(
    "database_kind", ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.nightly])]
)
def test_an_import_that_ends_at_any_step_is_completed_by_another_one(env: CrashEnv, database_kind: str) -> None:
    steps, whole = undisturbed(env)

    complete(env, steps, whole, tried(steps))


def undisturbed(env: CrashEnv) -> tuple[list[Step], Counter[str]]:
    """Hand over in a child that nobody disturbs; returns its steps and the final state. The env is as before them."""
    prepare(env)
    before = env.snapshot()
    run_in_child(env, FLOW, Steps())
    env.restore(before)
    steps = run_in_child(env, FLOW, Steps()).seen
    whole = judge(env)
    assert whole["runs of rq-scheduler:late"] == 1
    env.restore(before)
    return steps, whole


def complete(env: CrashEnv, steps: list[Step], whole: Counter[str], crashes: Iterable[tuple[int, Fate]]) -> None:
    """Hand over in a child for each crash, and again here; the final state must be the same."""
    before = env.snapshot()
    for at, fate in crashes:
        env.restore(before)
        name = f"at step {at} of {len(steps)} ({steps[at]}), process {fate.value}"
        ended = run_in_child(env, FLOW, Steps(at, fate))
        assert ended.has_died == (fate in {Fate.DIES_BEFORE, Fate.DIES_AFTER}), name
        assert twice(env) == set(), name
        env.redis.delete(LOCK)  # it expires
        hand_over(env)
        assert twice(env) | nowhere(env) == set(), name
        assert judge(env) == whole, name
    check_invariants(env.runtime)


def tried(steps: list[Step]) -> Iterator[tuple[int, Fate]]:
    for at, step in enumerate(steps):
        twice = set() if IS_NIGHTLY else tried_at_the_next(steps, at)
        yield from ((at, fate) for fate in FATES[step.kind] if fate not in twice)


def at_source(env: CrashEnv) -> set[str]:
    return {name.decode() for name in cast("list[bytes]", env.redis.zrange(SCHEDULED, 0, -1))}


def active(env: CrashEnv) -> set[str]:
    return {one.schedule_id.removeprefix("rq-scheduler:") for one in env.scheduler.iter(status="active")}


def twice(env: CrashEnv) -> set[str]:
    """Return the jobs that fire in both schedulers."""
    return at_source(env) & active(env)


def nowhere(env: CrashEnv) -> set[str]:
    """Return the jobs that fire in neither scheduler, except the one-time job that has fired."""
    return JOBS - at_source(env) - active(env) - {"late"}


def judge(env: CrashEnv) -> Counter[str]:
    """Return the final state, which must not depend on the number of attempts."""
    found = Counter({f"runs of {one.schedule_id}": one.run_count for one in env.scheduler.iter()})
    found.update(f"{one.schedule_id} {one.status} next {one.next_run_at} {one.note}" for one in env.scheduler.iter())
    found.update(str(one) for one in cast("list[Any]", env.redis.zrange(BACKUP, 0, -1, withscores=True)))
    found.update(key for key in digest(env) if " run " in key)
    return found
