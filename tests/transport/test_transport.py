"""The transport: scripts that Redis forgot, named connections, and queues that take nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis import Redis
from redis.exceptions import RedisError

from rqsched import jobs
from rqsched.core.ids import LinkId, RetryLinkId, derived_uid
from rqsched.core.model import RunStatus
from rqsched.transport.transport import Arm, Transport
from tests.chain.conftest import MakeRig
from tests.support.rig import MINUTE, SECOND, Rig, link_id, newest, run_job_id
from tests.support.servers import ValkeyServer

LIST = "rqsched"


def arm(rig: Rig, n: int = 1, *, after: timedelta = MINUTE) -> Arm:
    """A link of some schedule, due so long after now."""
    now = rig.clock.now()
    return Arm(LinkId(derived_uid(now, "some schedule"), n), now + after)


def put(rig: Rig, *arms: Arm) -> int:
    return rig.transport.arm(arms, now=rig.clock.now())


def set_hash(rig: Rig, link: Arm, **fields: str) -> None:
    for name, value in fields.items():
        rig.redis.hset(f"rq:job:{link.id}", name, value)


def test_scripts_that_redis_forgot_are_sent_again(rig: Rig) -> None:
    put(rig, arm(rig, 1))
    assert rig.transport.lease(now=rig.clock.now(), lease=SECOND, limit=1) == []
    rig.redis.script_flush()

    assert put(rig, arm(rig, 2)) == 1
    rig.redis.script_flush()
    assert rig.transport.lease(now=rig.clock.now() + MINUTE, lease=SECOND, limit=1) == [str(arm(rig, 1).id)]


def test_scripts_work_after_a_restart_of_valkey(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
    rig = make_rig(redis_url=own_valkey.url)
    put(rig, arm(rig, 1))
    own_valkey.kill()
    with pytest.raises(RedisError):
        put(rig, arm(rig, 2))
    own_valkey.start()

    assert put(rig, arm(rig, 2)) == 1
    assert list(rig.armed()) == [str(arm(rig, 2).id)]


def test_scripts_reach_a_named_connection_that_never_saw_them(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
    rig = make_rig(connections={"eu": own_valkey.url})
    schedule = rig.create(connection="eu")

    run = rig.occur(schedule)

    with Redis.from_url(own_valkey.url) as eu:
        assert [entry.decode() for entry in eu.lrange("rq:queue:default", 0, -1)] == [run_job_id(run)]
        eu.script_flush()
        assert eu.exists("rq:scheduled:rqsched") == 0
    assert rig.queued() == [], "named connections carry run jobs only"
    assert rig.transport.live_deliveries([run.state], now=rig.clock.now()) == [True]
    assert link_id(schedule.refresh()) in rig.armed(), "and no links"


def test_a_named_connection_that_is_down_delays_no_other_queue(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
    rig = make_rig(connections={"eu": own_valkey.url})
    own_valkey.kill()
    there, here = rig.create("there", connection="eu"), rig.create("here")
    rig.advance()

    rig.fire(there, here)

    assert rig.queued() == [run_job_id(newest(here))]
    assert set(rig.armed()) >= {link_id(there.refresh()), link_id(here.refresh())}
    rig.redis.delete("rq:queue:default")
    rig.advance(6 * SECOND)
    assert rig.recover().deliveries == 1
    own_valkey.start()
    assert rig.recover().deliveries == 1
    rig.redis.flushall()
    with Redis.from_url(own_valkey.url) as eu:
        assert eu.llen("rq:queue:default") == 1


def test_a_run_on_an_unknown_connection_stays_pending_and_is_not_redelivered(rig: Rig, make_rig: MakeRig) -> None:
    with_eu = make_rig(connections={"eu": "redis://127.0.0.1:1/0"})
    with_eu.create(connection="eu")
    rig.advance(MINUTE)

    rig.dispatch()

    run = newest(rig.scheduler.get("report"))
    assert run.status == RunStatus.PENDING.value
    rig.advance(MINUTE)
    assert rig.recover().deliveries == 0


def test_a_queue_that_takes_no_job_delays_no_other_queue(rig: Rig) -> None:
    rig.redis.set("rq:queue:broken", "a foreign text")
    broken, sound = rig.create("broken", queue="broken"), rig.create("sound")
    rig.advance()

    assert [result.outcome for result in rig.fire(broken, sound)] == ["fired", "fired"]

    assert rig.queued() == [run_job_id(newest(sound))]
    assert broken.refresh().state.fire_failures == 0, "the fire was sound"
    rig.redis.delete("rq:queue:broken")
    rig.advance(6 * SECOND)
    assert rig.recover().deliveries == 1
    assert rig.queued("broken") == [run_job_id(newest(broken))]


def test_links_and_retry_links_share_the_control_queue(rig: Rig) -> None:
    now = rig.clock.now()
    retry = Arm(RetryLinkId(derived_uid(now, "x"), 3, 2), now + MINUTE)

    put(rig, retry)

    assert rig.job(retry.id).func is jobs.fire
    assert isinstance(rig.transport, Transport)
