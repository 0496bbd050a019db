"""Deleting a namespace: all of it goes, in SQL and Redis, in steps that may be interrupted; nothing of others does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.aio import AsyncScheduler
from rqsched.errors import ConflictError, InvalidIdError
from rqsched.features.namespaces import store as namespaces
from rqsched.features.namespaces.api import delete_some
from rqsched.features.namespaces.store import LAST, OF_NAMESPACES, OF_NO_NAMESPACE, OF_SCHEDULES
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.store import metadata
from rqsched.kernel.store.tables import Instant, runs, schedules
from rqsched.kernel.store.tables import metadata as tables
from tests.support.env import HOUR, NOON, Env, MakeEnv
from tests.support.servers import ValkeyServer

OPERATOR = CommandContext(principal="ann", source="cli")
STATUSES = {"rqsched_backfills": "done", "rqsched_deliveries": "succeeded"}


def filled(env: Env, namespace: str, count: int = 3) -> None:
    """Give each table some rows of a namespace, those of its schedules among them."""
    for number in range(count):
        handle = env.create(f"s{number}", spec=Every(HOUR), namespace=namespace, overlap="allow_all")
        handle.trigger(idempotency_key="k")
        env.runtime.database.transact(partial(add_rows, uid=handle.uid, namespace=namespace))
    env.scheduler.calendars.set("days", ["2026-12-24"], namespace=namespace)


def add_rows(connection: sa.Connection, uid: str, namespace: str) -> None:
    drawn = f"{uid[:-1]}Z"
    for table in (*OF_SCHEDULES, *OF_NAMESPACES):
        if table.name == "rqsched_calendars":
            continue
        values = {column.name: sample(column, uid, drawn, namespace) for column in table.columns if is_needed(column)}
        connection.execute(
            sa.insert(table).values(**values | {"schedule_uid": uid} if "schedule_uid" in table.c else values)
        )


def is_needed(column: sa.Column[Any]) -> bool:
    return not column.nullable and column.server_default is None


def sample(column: sa.Column[Any], uid: str, drawn: str, namespace: str) -> Any:
    named = {
        "schedule_uid": uid, "namespace": namespace, "limit_group": f"{namespace}/{uid}", "outcome": "succeeded",
        "status": STATUSES.get(column.table.name, "succeeded"), "kind": "manual", "number": 99, "sequence": 99,
        "executor": "rq", "overlap": "skip", "occurrence_at": NOON - timedelta(days=1), "key": uid,
    }  # fmt: skip
    if column.name in named:
        return named[column.name]
    if isinstance(column.type, Instant):
        return NOON
    if isinstance(column.type, sa.Boolean):
        return False
    if isinstance(column.type, sa.Integer | sa.BigInteger):
        return 1
    return drawn


def contents(env: Env, namespace: str) -> dict[str, list[str]]:
    """Every row of a namespace by table, its named values too."""

    def read(connection: sa.Connection) -> dict[str, list[str]]:
        mine = sa.select(schedules.c.uid).where(schedules.c.namespace == namespace)
        found = {}
        for table in tables.sorted_tables:
            if table in OF_NO_NAMESPACE:
                continue
            if "namespace" in table.c:
                where = table.c.namespace == namespace
            elif "schedule_uid" in table.c:
                where = table.c.schedule_uid.in_(mine)
            else:
                where = table.c.limit_group.startswith(f"{namespace}/")
            found[table.name] = sorted(map(repr, connection.execute(sa.select(table).where(where))))
        return found

    return env.runtime.database.read(read)


def rows_of_schedules(env: Env) -> dict[str, int]:
    def read(connection: sa.Connection) -> dict[str, int]:
        return {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in OF_SCHEDULES
        }

    return env.runtime.database.read(read)


def test_every_table_says_whether_its_rows_go_with_a_namespace() -> None:
    named = [*OF_SCHEDULES, *OF_NAMESPACES, *LAST, *OF_NO_NAMESPACE, schedules]
    assert sorted(table.name for table in named) == sorted(tables.tables)
    of_somebody = {
        table for table in tables.sorted_tables if {"namespace", "schedule_uid", "limit_group"} & {*table.c.keys()}
    }
    assert of_somebody <= {*named} - {*OF_NO_NAMESPACE}


@pytest.mark.every_database
def test_all_of_a_namespace_is_deleted_and_nothing_of_others(any_env: Env) -> None:
    env = any_env
    for name in ("tenant", "tenant2", "other"):
        filled(env, name)
    others = {name: contents(env, name) for name in ("tenant2", "other")}
    alone = rows_of_schedules(env)
    found = env.scheduler.namespaces.preview_delete("tenant")
    assert (found.is_frozen, found.executing, found.is_over) == (False, 0, False)
    assert all(found.rows.values()), found.rows
    env.scheduler.freeze("it leaves", namespace="tenant")

    done = env.scheduler.namespaces.delete("tenant", "it leaves", context=OPERATOR)

    assert (done.is_over, done.is_frozen) == (True, False)
    assert done.rows == found.rows
    left = contents(env, "tenant")
    assert {name: rows for name, rows in left.items() if rows and name != "rqsched_namespace_facts"} == {}
    assert {name: count * 3 // 2 for name, count in rows_of_schedules(env).items()} == alone
    assert {name: contents(env, name) for name in others} == others
    assert env.scheduler.frozen() == []
    (line,) = env.runtime.database.read(lambda c: metadata.find_altered(c, "tenant"))
    assert (line.by, line.source, line.reason, line.at) == ("ann", "cli", "it leaves", env.clock.now())
    assert line.what.startswith("namespace tenant: deleted (")
    assert "3 schedules" in line.what
    assert len(left["rqsched_namespace_facts"]) == 1
    env.create("s0", namespace="tenant")  # the name is free again
    env.runtime.database.transact(remove_samples)


def remove_samples(connection: sa.Connection) -> None:
    """Delete the rows that no operation wrote, because the invariants would not know them."""
    for table in OF_SCHEDULES:
        connection.execute(sa.delete(table))


def test_a_namespace_that_is_not_frozen_or_whose_name_is_none_is_refused(env: Env) -> None:
    env.create()
    before = contents(env, "default")
    with pytest.raises(ConflictError, match=r"not frozen.*run `rqsched freeze default` first"):
        env.scheduler.namespaces.delete("default")
    with pytest.raises(InvalidIdError):
        env.scheduler.namespaces.delete("*")
    assert contents(env, "default") == before


def test_runs_that_execute_are_waited_for_or_terminated_when_that_is_asked(env: Env) -> None:
    run = env.create().trigger().run
    assert run is not None
    claim = env.claim(run)
    env.scheduler.freeze()
    with pytest.raises(ConflictError, match="namespace 'default' has 1 executing run; wait"):
        env.scheduler.namespaces.delete("default")
    assert env.scheduler.namespaces.preview_delete("default").executing == 1
    done = env.scheduler.namespaces.delete("default", terminate=True)
    assert (done.is_over, done.executing) == (True, 1)
    assert claim.run.uid == run.uid
    env.recover()
    assert env.scheduler.list().items == []


@pytest.mark.every_database
def test_a_deletion_that_is_interrupted_between_its_steps_continues_where_it_was(
    any_env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = any_env
    monkeypatch.setattr("rqsched.features.namespaces.chain.BATCH", 4)
    filled(env, "tenant")
    filled(env, "other")
    untouched = contents(env, "other")
    expected = env.scheduler.namespaces.preview_delete("tenant").rows
    env.scheduler.freeze(namespace="tenant")
    steps = 0
    while not (done := delete_some(env.runtime, "tenant", OPERATOR, terminates=False, steps=1)).is_over:
        steps += 1
        assert done.is_frozen
        assert [one.namespace for one in env.scheduler.frozen()] == ["tenant"]
        assert contents(env, "other") == untouched
    assert steps > 5
    assert done.rows == {name: count for name, count in expected.items() if count}
    with pytest.raises(ConflictError, match="not frozen"):
        env.scheduler.namespaces.delete("tenant")
    env.runtime.database.transact(remove_samples)


def test_nothing_of_a_deleted_namespace_stays_in_redis(env: Env) -> None:
    failed = env.create("failed", namespace="tenant", retry={"max_retries": 0})
    gone = env.fail_next(failed)
    waiting = env.create("gone", namespace="tenant", spec=Every(HOUR))
    queued = waiting.trigger().run
    kept = env.create("kept", namespace="other", spec=Every(HOUR)).trigger().run
    assert queued is not None
    assert kept is not None
    mine = {failed.uid, waiting.uid, gone.uid, queued.uid}
    assert {uid for uid in mine if any(uid in key for key in names_in_redis(env))} == mine
    env.scheduler.freeze(namespace="tenant")
    env.scheduler.namespaces.delete("tenant")
    assert [key for key in names_in_redis(env) if any(uid in key for uid in mine)] == []
    assert any(kept.uid in one for one in env.queued())


def text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def names_in_redis(env: Env) -> list[str]:
    """Every key, and what lists, sets and sorted sets hold."""
    found = list[str]()
    held: dict[str, Callable[[str], Any]] = {
        "list": lambda key: env.redis.lrange(key, 0, -1),
        "set": env.redis.smembers,
        "zset": lambda key: env.redis.zrange(key, 0, -1),
    }
    for name in map(text_of, env.redis.scan_iter()):
        read = held.get(text_of(env.redis.type(name)))
        found += [name, *map(text_of, read(name) if read is not None else ())]
    return found


def test_jobs_that_redis_could_not_be_told_of_do_nothing(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(redis_url=own_valkey.url)
    env.create("gone", namespace="tenant").trigger()
    env.scheduler.freeze(namespace="tenant")
    own_valkey.stop()
    assert env.scheduler.namespaces.delete("tenant").is_over
    own_valkey.start()
    env.recover()
    env.advance(HOUR)
    env.dispatch()
    env.work()
    env.work()
    assert env.calls == []
    assert (env.queued(), env.armed()) == ([], {})
    assert env.runtime.database.read(lambda c: c.execute(sa.select(runs)).all()) == []


def test_an_asynchronous_scheduler_deletes_a_namespace_too(env: Env) -> None:
    env.create(namespace="tenant")
    env.scheduler.freeze(namespace="tenant")

    async def delete() -> None:
        scheduler = AsyncScheduler(env.scheduler)
        assert (await scheduler.namespaces.preview_delete("tenant")).rows["schedules"] == 1
        assert (await scheduler.namespaces.delete("tenant")).is_over

    asyncio.run(delete())
    assert namespaces.noun(schedules) == "schedules"
