"""SQL goes back to each earlier commit of a flow while Redis stays, as after a restored backup or a failover.

Redis then holds links of commits that are gone. Ordinary passes repair this: every link fires in bounded time.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.pool import PoolProxiedConnection

from rqsched import Cron, RetryPolicy
from rqsched.kernel.decide.model import RunStatus
from rqsched.kernel.transport.transport import LONGEST_RETRY, Arm, link_of, retry_of
from tests.support.invariants import SOON, check_invariants
from tests.support.sizes import IS_NIGHTLY
from tests.system.crash.env import CrashEnv
from tests.system.crash.flows import (
    FIRST,
    START,
    Flow,
    execute,
    fire,
    late,
    made,
    missed_while_paused,
    of_report,
    owed,
    popped,
    report,
)
from tests.system.crash.test_every_step import ALL_FLOWS, ONE_OF_EACH_KIND
from tests.system.crash.workflows import executed, fenced

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
OBSERVED = timedelta(minutes=11)
"""How long everything goes on after a restore: two occurrences of most flows."""
EVERYDAY = 3
"""`make test-all` undoes so many of the last commits of a flow of OFTEN, and the last commit of each other flow.

`make nightly` goes back to the very first.
"""


YEARLY = of_report(lambda handle: handle.update(spec=Cron("0 0 1 1 *")))


def fire_and_move_to_next_year(env: CrashEnv) -> None:
    fire(env, FIRST)
    YEARLY(env)


def move_to_next_year_and_pause(env: CrashEnv) -> None:
    YEARLY(env)
    report(env).pause()


def fail_with_a_long_backoff(env: CrashEnv) -> None:
    """The retry link of the first attempt is armed far ahead."""
    report(env).update(retry=RetryPolicy(max_retries=2, base=timedelta(days=7), cap=timedelta(days=7)))
    execute(env)


def freeze_and_thaw(env: CrashEnv) -> None:
    env.scheduler.freeze()
    env.scheduler.recover()
    env.scheduler.thaw()
    env.work()


def resume_and_thaw(env: CrashEnv) -> None:
    env.scheduler.freeze()
    env.scheduler.get("later").resume("once")
    env.scheduler.thaw()
    env.work()


FAR_AHEAD = [
    Flow("update to yearly", made(), fire_and_move_to_next_year),
    Flow("update to yearly what is late", late(), YEARLY),
    Flow("update to yearly and pause", made(), move_to_next_year_and_pause),
    Flow("a retry is put off to next week", popped(fails=1), fail_with_a_long_backoff),
]
"""Redis then holds links that are due long after, under names that SQL will give again."""
OWING = [
    Flow("what was owed in a frozen namespace starts at the thaw", owed, freeze_and_thaw),
    Flow("what a resume fires in a frozen namespace starts at the thaw", missed_while_paused, resume_and_thaw),
]
"""SQL again owes the start that follows an end. The started run is gone, but Redis has its job."""
OFTEN = (*FAR_AHEAD, *OWING, *(flow for flow in ALL_FLOWS if flow.name in ONE_OF_EACH_KIND))
CASES = [flow for flow in [*FAR_AHEAD, *OWING, *ALL_FLOWS] if IS_NIGHTLY or not flow.is_long]


@pytest.fixture
def env(sqlite_url: str, redis_url: str, tmp_path: Path) -> Iterator[CrashEnv]:
    with closing(CrashEnv(sqlite_url, redis_url, tmp_path, START)) as env:
        env.scheduler.recover()
        # Passes of reconcile happen when a test says so, not when a dispatcher's turn has come in real time.
        env.redis.set(env.runtime.transport.interval_key, 1)
        yield env


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flow", CASES, ids=lambda flow: flow.name)
def test_every_link_fires_in_time_when_sql_goes_back_to_an_earlier_commit(
    flow: Flow, env: CrashEnv, sqlite_url: str, request: pytest.FixtureRequest
) -> None:
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    with commits_of(env, file) as copies:
        flow.prepare(env)
        flow.act(env)
    after = env.snapshot()
    most = len(copies) if IS_NIGHTLY else EVERYDAY if flow in OFTEN else 1
    undone = range(len(copies) - 1)[-most:]
    request.node.user_properties.append(("set back", len(undone)))  # for sums over a --junitxml report
    for number in undone:
        env.restore_beside_sql(after)
        put_back(env, file, copies[number])
        try:
            if env.scheduler.frozen():  # as it was then: somebody thaws it again
                env.scheduler.thaw()
            live_on(env)
        except AssertionError as error:
            raise AssertionError(f"flow {flow.name!r} at commit {number} of {len(copies)}:\n{error}") from error


@contextmanager
def commits_of(env: CrashEnv, file: Path) -> Iterator[list[bytes]]:
    """Copy the file of the database now and after each commit that this process makes and that changes it."""
    with env.runtime.database.engine.connect() as connection:
        copies = [_serialize(connection.connection)]
    dialect, pid = env.runtime.database.engine.dialect, os.getpid()
    commit = dialect.do_commit

    def commit_and_copy(dbapi_connection: PoolProxiedConnection) -> None:
        commit(dbapi_connection)
        if os.getpid() == pid and (copy := _serialize(dbapi_connection)) != copies[-1]:
            copies.append(copy)

    dialect.do_commit = commit_and_copy  # type: ignore[method-assign]
    yield copies
    dialect.do_commit = commit  # type: ignore[method-assign]


def _serialize(connection: PoolProxiedConnection) -> bytes:
    """Return the database as its file has it."""
    sqlite = connection.driver_connection
    assert isinstance(sqlite, sqlite3.Connection)
    return sqlite.serialize()


def put_back(env: CrashEnv, file: Path, copy: bytes) -> None:
    """Restore a backup: the file as it was, and nothing of its log."""
    env.runtime.database.close()
    for log in file.parent.glob(f"{file.name}-*"):
        log.unlink()
    file.write_bytes(copy)
    env.clock.set(env.clock.now() + timedelta(milliseconds=1))  # that took some time


def live_on(env: CrashEnv) -> None:
    """Let dispatcher, worker and passes of reconcile go on; nothing is later than it may be, or done a third time."""
    began, interval = env.clock.now(), env.runtime.settings.reconcile_interval
    bound = LONGEST_RETRY + 2 * env.runtime.settings.repair_grace + interval
    pass_at = began + interval
    while env.clock.now() < began + OBSERVED:
        now = env.clock.now()
        late = [arm for arm in arms(env) if now > max(arm.due_at, began) + bound]
        assert not late, f"at {now}, set back at {began}, there still waits {late}\n{_lines(env)}"
        if now >= pass_at:
            env.scheduler.recover()
            pass_at = now + interval
        env.dispatch_all()
        env.work()
        if not env.is_anything_open():
            pass_at = max(pass_at, min((arm.due_at - SOON for arm in arms(env)), default=now + OBSERVED))
        env.clock.set(min(pass_at, max(next_score(env), now + timedelta(milliseconds=1))))
    env.scheduler.recover()
    check_invariants(env.runtime)
    often = {attempt: times for attempt, times in Counter(executed(env.log)).items() if times > 2}
    assert not often, f"executed more than twice: {often}\n{_lines(env)}"
    fences: dict[str, list[int]] = {}
    for uid, _, fence in fenced(env.log):
        fences.setdefault(uid, []).append(fence)
    for uid, given in fences.items():
        assert given == sorted(set(given)), f"run {uid} was executed under the fences {given}\n{_lines(env)}"


def arms(env: CrashEnv) -> list[Arm]:
    """Return every link that SQL wants armed."""
    retrying = [run for story in env.stories() for run in story.runs if run.status is RunStatus.RETRYING]
    return [arm for story in env.stories() for arm in link_of(story.schedule)] + [retry_of(run) for run in retrying]


def next_score(env: CrashEnv) -> datetime:
    """Return when the next link in Redis is due."""
    first: Any = env.redis.zrange(env.runtime.transport.scheduled_key, 0, 0, withscores=True)
    return datetime.fromtimestamp(first[0][1], tz=START.tzinfo) if first else datetime.max.replace(tzinfo=START.tzinfo)


def _lines(env: CrashEnv) -> str:
    return "\n".join(story.lines() for story in env.stories())
