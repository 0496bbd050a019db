"""Quotas of namespaces are checked before anything is written."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.aio import AsyncScheduler
from rqsched.errors import IdempotencyConflictError, QuotaExceededError, ScheduleExistsError, TransactionConflictError
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.decide.quota_options import Quota
from rqsched.kernel.store.database import make_engine
from tests.support.env import Env, MakeEnv

LARGE = {"kwargs": {"text": "é" * 1_000}}


@pytest.fixture
def limited(make_env: MakeEnv, database_url: str) -> MakeEnv:
    """Environments over each database in turn whose namespaces have these quotas; `every` is `*`."""

    def make(**quotas: Any) -> Env:
        given = {name.replace("every", "*"): quota for name, quota in quotas.items()}
        return make_env(database_url=database_url, quotas=given)

    return make


def counted(env: Env, namespace: str = "default") -> int:
    return len(list(env.scheduler.iter(namespace=namespace)))


def test_the_schedule_beyond_the_quota_is_refused_and_one_deleted_makes_room(limited: MakeEnv) -> None:
    env = limited(default={"schedules": 2})
    first, _ = env.create("a"), env.create("b")
    with pytest.raises(QuotaExceededError, match="holds 2 of at most 2 schedules, and 1 more"):
        env.create("c")
    with pytest.raises(QuotaExceededError):
        env.scheduler.upsert("c", "note", "@hourly")
    assert counted(env) == 2
    with pytest.raises(ScheduleExistsError):  # an error in the schedule itself is reported first
        env.create("a")
    first.delete()
    assert env.create("c").status == "active"


def test_each_namespace_has_its_own_quota_or_the_one_of_all(limited: MakeEnv) -> None:
    env = limited(every={"schedules": 1}, wide={"schedules": None})
    for namespace in ("one", "two"):
        env.create("a", namespace=namespace)
        with pytest.raises(QuotaExceededError, match=namespace):
            env.create("b", namespace=namespace)
    for schedule_id in ("a", "b", "c"):
        env.create(schedule_id, namespace="wide")
    assert [(one.namespace, one.schedules) for one in env.scheduler.namespaces.usages()] == [
        ("one", 1),
        ("two", 1),
    ]


def test_a_change_may_grow_up_to_the_quota_and_not_beyond(limited: MakeEnv) -> None:
    env = limited(default={"bytes": 3_000})
    schedule = env.create()
    with pytest.raises(QuotaExceededError, match="bytes of declarations") as refused:
        schedule.update(memo={"text": "x" * 3_000})
    assert (refused.value.resource, refused.value.limit) == ("bytes", 3_000)
    assert schedule.refresh().describe().memo == {}
    schedule.update(memo={"text": "x" * 1_500})
    env.scheduler.upsert("report", "note", "@hourly", memo={"text": "x" * 2_000})
    with pytest.raises(QuotaExceededError):
        env.scheduler.upsert("report", "note", "@hourly", memo={"text": "x" * 3_000})
    with pytest.raises(QuotaExceededError):
        env.create("another", memo={"text": "x" * 1_000})
    schedule.update(memo={})
    env.create("another", memo={"text": "x" * 1_000})


def test_what_is_counted_before_a_write_is_what_the_store_holds_after_it(limited: MakeEnv) -> None:
    env = limited(default={"bytes": 10**6})
    env.create(
        "a", description="größer", labels={"team": "é"}, notifications={"heartbeat": "https://h.test/x"}, **LARGE
    )
    used = env.scheduler.namespaces.usage().bytes
    env.create("b")
    added = env.scheduler.namespaces.usage().bytes - used
    env.scheduler.get("b").delete()

    tight = limited(default={"bytes": used + added})
    tight.create("b")
    assert tight.scheduler.namespaces.usage().bytes == used + added == tight.scheduler.namespaces.usage().limits.bytes
    with pytest.raises(QuotaExceededError) as refused:
        tight.scheduler.get("b").update(description="x")
    assert refused.value.wanted == 1


def test_a_lowered_quota_stops_growth_and_nothing_else(limited: MakeEnv) -> None:
    env = limited()
    schedules = [env.create(one, memo={"text": "x" * 100}) for one in ("a", "b", "c")]
    low = limited(default={"schedules": 1, "bytes": 10})
    first = low.scheduler.get("a")
    assert first.pause().resume().trigger().outcome == "triggered"
    first.update(memo={}, note="smaller")
    assert low.scheduler.upsert("b", "note", timedelta(minutes=1), memo={"text": "x" * 100})[1] == "unchanged"
    assert low.run_due() != []
    low.scheduler.get("c").delete()
    with pytest.raises(QuotaExceededError):
        low.create("c")
    assert schedules[0].refresh().note == "smaller"


def test_a_set_beyond_the_quota_is_refused_whole_also_in_its_preview(
    limited: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqsched.features.declarations.api.SYNC_BATCH", 2)
    env = limited(default={"schedules": 4})
    declared = [Declaration(f"s{number}", "note", Every("1h")) for number in range(5)]
    for dry_run in (False, True):
        with pytest.raises(QuotaExceededError, match="holds 0 of at most 4 schedules, and 5 more"):
            env.scheduler.sync(declared, dry_run=dry_run)
    assert counted(env) == 0
    assert len(env.scheduler.sync(declared[:4]).created) == 4
    assert len(env.scheduler.sync(declared[:4]).unchanged) == 4
    with pytest.raises(QuotaExceededError):  # schedules left out of the file are pruned after the rest was written
        env.scheduler.sync(declared[1:], delete_removed=True)
    assert env.scheduler.sync(declared[1:4], delete_removed=True).removed == ["s0"]


def test_a_create_is_repeated_under_its_key_in_a_full_namespace(limited: MakeEnv) -> None:
    env = limited(default={"schedules": 1})
    made = env.create(idempotency_key="k")
    assert env.create(idempotency_key="k").uid == made.uid
    with pytest.raises(QuotaExceededError):
        env.create("other", idempotency_key="k2")
    made.delete()
    env.create("third", idempotency_key="k2")  # the refused create left no key
    with pytest.raises(IdempotencyConflictError):
        env.create("other", idempotency_key="k2")


def test_in_the_callers_transaction_a_refusal_leaves_the_rest_of_it_as_it_was(limited: MakeEnv) -> None:
    env = limited(default={"schedules": 1})
    engine = make_engine(env.runtime.database.url)
    with engine.begin() as connection:
        env.scheduler.create("a", "note", Every("1h"), connection=connection)
        with pytest.raises(QuotaExceededError):
            env.scheduler.create("b", "note", Every("1h"), connection=connection)
    engine.dispose()
    assert [one.schedule_id for one in env.scheduler.iter()] == ["a"]


@pytest.mark.every_database
@pytest.mark.parametrize("database_kind", [pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_transaction_that_cannot_see_a_later_create_has_to_be_repeated(limited: MakeEnv) -> None:
    env = limited(default={"schedules": 1})
    engine = make_engine(env.runtime.database.url)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection, connection.begin():
        connection.execute(sa.text("SELECT 1 FROM rqsched_schedules"))
        env.create("other")
        with pytest.raises(TransactionConflictError):
            env.scheduler.create("mine", "note", Every("1h"), connection=connection)
    engine.dispose()
    assert counted(env) == 1


def test_the_usage_is_the_same_awaited_and_has_limits_only_where_they_are_set(limited: MakeEnv) -> None:
    env = limited(other={"schedules": 2})
    env.create()
    usage = env.scheduler.namespaces.usage()
    assert (usage.namespace, usage.schedules, usage.limits) == ("default", 1, Quota())
    assert usage.bytes > 0
    assert asyncio.run(AsyncScheduler(env.scheduler).namespaces.usage()) == usage
    assert env.scheduler.namespaces.usage(namespace="other").limits == Quota(schedules=2)
