"""Ticks: firing in this process, for set-ups where nothing else promotes links."""

from __future__ import annotations

from tests.chain.conftest import MakeRig
from tests.support.narrow import present
from tests.support.rig import MINUTE, Rig, link_id, newest, run_job_id, statuses
from tests.support.servers import ValkeyServer


def test_a_tick_fires_what_is_due_by_sql_alone(any_rig: Rig) -> None:
    """No link is needed: Redis may have forgotten all of them."""
    schedule = any_rig.create()
    any_rig.redis.flushall()
    any_rig.advance()

    (row,) = any_rig.scheduler.tick()

    assert (row["schedule_id"], row["outcome"]) == ("report", "triggered")
    assert any_rig.queued() == [run_job_id(newest(schedule))]


def test_a_tick_heals_a_flushed_redis(rig: Rig) -> None:
    later = rig.create(spec=60 * MINUTE)
    rig.redis.flushall()

    rig.scheduler.tick()

    assert list(rig.armed()) == [link_id(later)]


def test_a_tick_at_a_given_time_fires_without_reconciling(rig: Rig) -> None:
    later = rig.create("later", spec=60 * MINUTE)
    schedule = rig.create()
    rig.redis.flushall()

    rows = rig.scheduler.tick(now=rig.clock.now() + MINUTE)

    assert [row["outcome"] for row in rows] == ["triggered"]
    assert statuses(schedule) == ["pending"]
    assert link_id(later) not in rig.armed()


def test_a_tick_fires_while_redis_is_away(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
    rig = make_rig(redis_url=own_valkey.url)
    schedule = rig.create()
    rig.advance()
    own_valkey.kill()

    rows = rig.scheduler.tick()

    assert [row["outcome"] for row in rows] == ["triggered"]
    own_valkey.start()
    rig.recover()
    assert rig.queued() == [run_job_id(newest(schedule))]


def test_a_tick_fires_due_retry_links(rig: Rig) -> None:
    rig.register("fail", lambda: 1 / 0)
    schedule = rig.create(runs="fail", spec=60 * MINUTE)
    run = rig.turn(schedule, 60 * MINUTE)
    rig.clock.set(present(run.retry_at))

    rig.scheduler.tick()

    assert (run.refresh().status, run.attempt) == ("pending", 2)
