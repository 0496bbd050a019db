"""One Redis, one database: a control queue belongs to the database that used it first, and nobody mixes them up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rqsched.errors import ConfigError
from rqsched.kernel.chain.dispatcher import Dispatcher
from tests.support.env import MINUTE, SECOND, Env, MakeEnv, link_id, statuses
from tests.support.narrow import text


@pytest.fixture
def other(make_env: MakeEnv, tmp_path: Path) -> Env:
    """Another database over the same Redis: staging beside production."""
    return make_env(database_url=f"sqlite:///{tmp_path / 'other.db'}")


def test_the_first_pass_records_the_database_id(env: Env) -> None:
    assert not env.runtime.ownership.is_known_to_redis()

    env.recover()

    assert env.runtime.ownership.is_known_to_redis()
    assert text(env.redis.get("rqsched:epoch:rqsched")) == env.runtime.ownership.database_id()


def test_a_databases_id_is_drawn_once(make_env: MakeEnv) -> None:
    assert make_env().runtime.ownership.database_id() == make_env().runtime.ownership.database_id()


def test_a_second_database_is_refused(env: Env, other: Env) -> None:
    env.recover()

    with pytest.raises(ConfigError, match=r"belongs to another database .*RQSCHED_CONTROL_QUEUE"):
        other.recover()


def test_the_refusal_names_the_key_to_delete_when_the_first_database_is_gone(env: Env, other: Env) -> None:
    env.recover()
    with pytest.raises(ConfigError) as refusal:
        other.recover()
    key = str(refusal.value).split("'")[-2]

    env.redis.delete(key)

    other.recover()
    assert other.runtime.ownership.is_known_to_redis()


def test_two_databases_share_a_redis_under_queues_of_their_own(make_env: MakeEnv, tmp_path: Path) -> None:
    production = make_env()
    staging = make_env(database_url=f"sqlite:///{tmp_path / 'staging.db'}", control_queue="staging-links")
    ours, theirs = production.create(), staging.create()

    production.recover()
    staging.recover()

    assert list(production.armed()) == [link_id(ours)]
    assert list(staging.armed()) == [link_id(theirs)]


def test_a_dispatcher_of_another_database_reconciles_nothing_and_leaves_the_links(env: Env, other: Env) -> None:
    schedule = env.create()
    env.recover()
    env.redis.delete(env.transport.interval_key)
    env.advance(MINUTE)

    assert not Dispatcher(other.runtime).reconcile_some()
    Dispatcher(other.runtime).run_once()

    assert list(env.armed()) == [link_id(schedule)]
    assert statuses(schedule) == []


def test_a_link_leased_for_another_database_returns_to_its_owner(env: Env, other: Env) -> None:
    schedule = env.create()
    env.recover()
    env.advance(MINUTE)
    Dispatcher(other.runtime).run_once()

    env.advance(15 * SECOND)
    env.dispatch()

    assert statuses(schedule) == ["pending"]


@pytest.mark.parametrize("lose", ["flushall", "flushdb"])
def test_a_flushed_redis_is_claimed_again_by_its_database(env: Env, lose: str) -> None:
    env.recover()
    forget: Callable[[], object] = getattr(env.redis, lose)
    forget()

    assert not env.runtime.ownership.is_known_to_redis()
    env.recover()
    assert env.runtime.ownership.is_known_to_redis()


def test_runs_and_links_may_not_share_a_queue(make_env: MakeEnv) -> None:
    with pytest.raises(ConfigError, match="RQSCHED_DEFAULT_QUEUE and RQSCHED_CONTROL_QUEUE are the same"):
        make_env(control_queue="default")
