"""SQL goes back to an earlier commit while Redis stays, as after a restored backup: every link still fires in time."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Cron
from rqsched.chain.reconcile import iter_batches
from rqsched.transport.transport import LONGEST_RETRY
from tests.system.crash.caller_transaction import CALLER_TRANSACTION
from tests.system.crash.env import BETWEEN_PASSES, CrashEnv
from tests.system.crash.flows import FLOWS, START, Flow, made, of_report, overdue
from tests.system.crash.workflows import executed

pytestmark = [pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"), pytest.mark.timeout(300)]

ROUNDS = 3
"""How many occurrences in a row must fire after SQL went back."""
YEARLY = of_report(lambda handle: handle.update(spec=Cron("0 0 1 1 *")))
MOVED_FAR_AHEAD = [
    Flow("update to yearly", made(), YEARLY),
    Flow("update to yearly what is overdue", overdue(), YEARLY),
    Flow("update to yearly and pause", made(), lambda env: (YEARLY(env), of_report(lambda h: h.pause())(env))),
]
"""Redis then holds links that are due in a year, under positions that SQL will have again."""


@pytest.fixture
def env(sqlite_url: str, redis_url: str, tmp_path: Path) -> Iterator[CrashEnv]:
    with closing(CrashEnv(sqlite_url, redis_url, tmp_path, START)) as env:
        env.scheduler.recover()
        env.redis.set(env.runtime.transport.interval_key, 1)  # passes are made when the test says so
        yield env


@pytest.mark.parametrize("flow", [*MOVED_FAR_AHEAD, *CALLER_TRANSACTION, *FLOWS], ids=lambda flow: flow.name)
def test_every_link_fires_in_time_when_sql_goes_back_to_an_earlier_commit(
    flow: Flow, env: CrashEnv, tmp_path: Path
) -> None:
    flow.prepare(env)
    with copied_before_each_transaction(env, tmp_path) as copies:
        flow.act(env)
        env.dispatch_all()
        env.work()
    assert copies
    ahead = env.snapshot()
    for copy in copies:
        env.restore(ahead)
        go_back(env, copy)

        for number in range(ROUNDS):
            fire_in_time(env, f"{copy.name} of {len(copies)}, round {number}")

        twice_at_most = Counter(executed(env.log))
        assert [run for run, times in twice_at_most.items() if times > 2] == []


@contextmanager
def copied_before_each_transaction(env: CrashEnv, folder: Path) -> Iterator[list[Path]]:
    """Copy the database whenever a transaction begins: what it was after each commit."""
    copies: list[Path] = []
    seen: set[bytes] = set()

    def copy(_: Any) -> None:
        path = folder / f"commit {len(copies)}"
        with closing(sqlite3.connect(file_of(env))) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)
        if path.read_bytes() in seen:
            path.unlink()
        else:
            seen.add(path.read_bytes())
            copies.append(path)

    engine = env.runtime.database.engine
    sa.event.listen(engine, "begin", copy)
    yield copies
    sa.event.remove(engine, "begin", copy)


def file_of(env: CrashEnv) -> Path:
    return Path(str(env.runtime.database.engine.url.database))


def go_back(env: CrashEnv, copy: Path) -> None:
    """Put a copy in place of the database, as somebody does who restores a backup beside the same Redis."""
    env.runtime.database.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{file_of(env)}{suffix}").unlink(missing_ok=True)
    file_of(env).write_bytes(copy.read_bytes())


def fire_in_time(env: CrashEnv, name: str) -> None:
    """What is due next fires by its time, the longest put-off, the grace and one interval between two passes."""
    due = [story.schedule.due_at for story in env.stories() if story.schedule.due_at is not None]
    if not due:
        return
    env.clock.set(max(env.clock.now(), *due))
    settings = env.runtime.settings
    latest = LONGEST_RETRY + 2 * settings.grace + settings.reconcile_interval
    began = env.clock.now()
    while env.clock.now() <= began + latest:
        env.clock.advance(BETWEEN_PASSES)
        for _ in iter_batches(env.runtime):
            continue
        env.dispatch_all()
        env.work()
    silent = [
        f"{name}: nothing fired at {story.schedule.due_at}, and it is {env.clock.now()}\n{story.lines()}"
        for story in env.stories()
        if story.schedule.due_at is not None and story.schedule.due_at <= env.clock.now() - latest
    ]
    assert silent == []
