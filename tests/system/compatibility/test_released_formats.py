"""This version upgrades, reads and fires the rows and jobs of each released version without a repair.

`schema_0005.json` holds rows and, as bytes, jobs; `record.py` made it. It may be made anew until 0.1 is released; a
released file never changes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from redis import Redis

from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.migrations import HEAD
from rqsched.kernel.store.schema_version import alembic_config
from rqsched.kernel.store.tables import metadata
from rqsched.testing import ManualClock
from rqsched.workflows import make_workflow
from tests.support.env import MINUTE, Env, MakeEnv, newest, statuses
from tests.support.invariants import check_invariants

FOLDER = Path(__file__).parent
FORMATS = ["0005"]


@dataclass(frozen=True)
class Recorded:
    """The recorded rows and jobs of one version."""

    revision: str
    """The schema it had."""
    at: datetime
    """When it was recorded."""
    tables: dict[str, list[dict[str, Any]]]
    """Rows by table."""
    keys: dict[str, Any]
    """Type and content by key of Redis."""

    def write(self, database: Database, redis: Redis) -> None:
        """Put everything where that version had it."""
        database.transact(lambda connection: command.upgrade(alembic_config(connection), self.revision))
        database.transact(self._insert)
        for name, (kind, content) in self.keys.items():
            _restore(redis, name, kind, content)

    def _insert(self, connection: sa.Connection) -> None:
        for table in metadata.sorted_tables:
            for row in self.tables.get(table.name, []):
                connection.execute(sa.insert(table).values({name: _decode(value) for name, value in row.items()}))


def read(revision: str) -> Recorded:
    found = json.loads((FOLDER / f"schema_{revision}.json").read_text())
    return Recorded(revision, datetime.fromisoformat(found["at"]), found["tables"], found["keys"])


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return datetime.fromisoformat(value["at"]) if "at" in value else timedelta(microseconds=value["microseconds"])


def _restore(redis: Redis, name: str, kind: str, content: Any) -> None:
    if kind == "hash":
        redis.hset(name, mapping={_bytes(field): _bytes(value) for field, value in content})
    elif kind == "zset":
        redis.zadd(name, {_bytes(entry): score for entry, score in content})
    elif kind == "list":
        redis.rpush(name, *map(_bytes, content))
    elif kind == "set":
        redis.sadd(name, *map(_bytes, content))
    else:
        redis.set(name, _bytes(content))


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


@pytest.fixture(params=FORMATS)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return read(request.param)


@pytest.fixture
def env(
    recorded: Recorded, make_env: MakeEnv, clock: ManualClock, empty_database: Database, redis: Redis
) -> Iterator[Env]:
    """This version over the upgraded rows and jobs of that one; the clock continues from then."""
    recorded.write(empty_database, redis)
    schema_version.upgrade(empty_database)
    assert schema_version.status(empty_database).current == HEAD
    url = empty_database.engine.url.render_as_string(hide_password=False)
    clock.set(recorded.at)
    env = make_env(database_url=url)
    env.register("fail", lambda: "this time")
    env.registry.add(replace(make_workflow("each", print), each=lambda target: bool(target)))
    with closing(env.scheduler):
        yield env


def test_every_schedule_is_read_as_it_was_declared(env: Env) -> None:
    cron = env.scheduler.get("cron")
    assert (cron.state.spec.timezone, cron.state.spec.describe()) == ("Europe/Berlin", cron.describe().timing)
    assert (cron.describe().labels, cron.describe().memo, cron.describe().max_runs) == (
        {"team": "billing"},
        {"a": [1]},
        9,
    )
    assert (cron.describe().note, cron.describe().overlap) == ("kept", "allow_all")
    assert {handle.schedule_id: handle.status for handle in env.scheduler.iter()} == {
        "retrying": "active",
        "waiting": "active",
        "cron": "active",
        "once": "active",
        "completion": "active",
        "paused": "paused",
    }
    assert env.scheduler.newest("deleted").status == "deleted"
    assert [len(list(handle.iter_history())) > 0 for handle in env.scheduler.iter()] == [True] * 6


def test_the_redis_is_this_databases(env: Env) -> None:
    assert env.runtime.ownership.is_known_to_redis()


def test_its_links_fire_without_a_repair(env: Env) -> None:
    env.advance(5 * MINUTE)
    while env.dispatch():
        pass
    for schedule_id in ("cron", "completion", "waiting"):
        schedule = env.scheduler.get(schedule_id)
        assert newest(schedule).kind == "scheduled", schedule_id
        assert newest(schedule).created_at == env.clock.now(), schedule_id
    check_invariants(env.runtime)


def test_a_link_is_fired_by_a_plain_rq_worker_from_its_bytes(env: Env) -> None:
    schedule = env.scheduler.get("cron")
    (link,) = [name for name in env.armed() if schedule.uid in name]
    env.advance(5 * MINUTE)
    env.redis.zrem(env.transport.scheduled_key, link)
    env.redis.rpush(env.transport.list_key, link)
    env.redis.hset(f"rq:job:{link}", "status", "queued")

    env.work("rqsched")

    assert statuses(schedule) == ["pending"]


def test_its_waiting_jobs_are_executed_from_their_bytes(env: Env) -> None:
    schedule = env.scheduler.get("waiting")
    assert statuses(schedule) == ["pending", "buffered"]

    env.work()

    assert statuses(schedule) == ["succeeded", "succeeded"], "and what waited behind it was started"
    assert env.calls == [((), {"region": "eu"})] * 2
    rows = env.runtime.database.read(lambda c: c.execute(sa.text("SELECT status FROM rqsched_targets")).all())
    assert [row.status for row in rows] == ["succeeded", "succeeded"]
    check_invariants(env.runtime)


def test_its_retry_links_fire(env: Env) -> None:
    run = newest(env.scheduler.get("retrying"))
    assert (run.status, run.attempt) == ("retrying", 1)
    env.advance(11 * MINUTE)
    while env.dispatch():
        pass

    env.work()

    assert (run.refresh().status, run.attempt, run.result) == ("succeeded", 2, "this time")


def test_its_schedules_can_be_operated(env: Env) -> None:
    assert env.scheduler.get("paused").resume().status == "active"
    assert env.scheduler.get("once").update(description="changed").describe().description == "changed"
    assert env.scheduler.get("waiting").pause().status == "paused"
    assert env.scheduler.get("cron").trigger().outcome == "triggered"
    env.recover(deep=True)
    check_invariants(env.runtime, with_redis=True)
