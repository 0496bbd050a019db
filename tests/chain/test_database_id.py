"""One Redis, one database: a control queue belongs to the database that used it first, and nobody mixes them up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rqsched.chain.dispatcher import Dispatcher
from rqsched.errors import ConfigError
from tests.chain.conftest import MakeRig
from tests.support.narrow import text
from tests.support.rig import MINUTE, SECOND, Rig, link_id, statuses


@pytest.fixture
def other(make_rig: MakeRig, tmp_path: Path) -> Rig:
    """Another database over the same Redis: staging beside production."""
    return make_rig(database_url=f"sqlite:///{tmp_path / 'other.db'}")


def test_the_first_pass_records_the_database_id(rig: Rig) -> None:
    assert not rig.runtime.is_known_to_redis()

    rig.recover()

    assert rig.runtime.is_known_to_redis()
    assert text(rig.redis.get("rqsched:epoch:rqsched")) == rig.runtime.database_id()


def test_a_databases_id_is_drawn_once(make_rig: MakeRig) -> None:
    assert make_rig().runtime.database_id() == make_rig().runtime.database_id()


def test_a_second_database_is_refused(rig: Rig, other: Rig) -> None:
    rig.recover()

    with pytest.raises(ConfigError, match=r"belongs to another database .*RQSCHED_CONTROL_QUEUE"):
        other.recover()


def test_the_refusal_names_the_key_to_delete_when_the_first_database_is_gone(rig: Rig, other: Rig) -> None:
    rig.recover()
    with pytest.raises(ConfigError) as refusal:
        other.recover()
    key = str(refusal.value).split("'")[-2]

    rig.redis.delete(key)

    other.recover()
    assert other.runtime.is_known_to_redis()


def test_two_databases_share_a_redis_under_queues_of_their_own(make_rig: MakeRig, tmp_path: Path) -> None:
    production = make_rig()
    staging = make_rig(database_url=f"sqlite:///{tmp_path / 'staging.db'}", control_queue="staging-links")
    ours, theirs = production.create(), staging.create()

    production.recover()
    staging.recover()

    assert list(production.armed()) == [link_id(ours)]
    assert list(staging.armed()) == [link_id(theirs)]


def test_a_dispatcher_of_another_database_reconciles_nothing_and_leaves_the_links(rig: Rig, other: Rig) -> None:
    schedule = rig.create()
    rig.recover()
    rig.redis.delete(rig.transport.interval_key)
    rig.advance(MINUTE)

    assert not Dispatcher(other.runtime).reconcile_some()
    Dispatcher(other.runtime).run_once()

    assert list(rig.armed()) == [link_id(schedule)]
    assert statuses(schedule) == []


def test_a_link_leased_for_another_database_returns_to_its_owner(rig: Rig, other: Rig) -> None:
    schedule = rig.create()
    rig.recover()
    rig.advance(MINUTE)
    Dispatcher(other.runtime).run_once()

    rig.advance(15 * SECOND)
    rig.dispatch()

    assert statuses(schedule) == ["pending"]


@pytest.mark.parametrize("lose", ["flushall", "flushdb"])
def test_a_flushed_redis_is_claimed_again_by_its_database(rig: Rig, lose: str) -> None:
    rig.recover()
    forget: Callable[[], object] = getattr(rig.redis, lose)
    forget()

    assert not rig.runtime.is_known_to_redis()
    rig.recover()
    assert rig.runtime.is_known_to_redis()


def test_runs_and_links_may_not_share_a_queue(make_rig: MakeRig) -> None:
    with pytest.raises(ConfigError, match="RQSCHED_DEFAULT_QUEUE and RQSCHED_CONTROL_QUEUE are the same"):
        make_rig(control_queue="default")
