"""The dispatcher: it leases what is due, fires it in batches, gives back what must wait and drops what is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from redis import Redis

from rqsched.chain.dispatcher import SQLITE_BATCH, Dispatcher
from rqsched.chain.firing import fire
from rqsched.core.audit import Event
from rqsched.core.ids import LinkId, derived_uid
from rqsched.core.model import Change
from rqsched.transport.transport import Arm
from tests.chain.conftest import MakeRig
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.rig import MINUTE, SECOND, Rig, link_id, newest, run_job_id, statuses
from tests.support.servers import ValkeyServer


def lease(rig: Rig, limit: int = 100) -> list[str]:
    return rig.transport.lease(now=rig.clock.now(), lease=2 * SECOND, limit=limit)


def test_run_once_fires_due_links_and_removes_them(any_rig: Rig) -> None:
    due = [any_rig.create(f"due-{i}") for i in range(3)]
    later = any_rig.create("later", spec=timedelta(hours=1))
    links = [link_id(schedule) for schedule in due]
    any_rig.advance()

    assert any_rig.dispatch() == 3

    assert [statuses(schedule) for schedule in due] == [["pending"]] * 3
    assert statuses(later) == []
    assert set(any_rig.armed()) == {link_id(schedule.refresh()) for schedule in [*due, later]}
    assert not any(any_rig.redis.exists(f"rq:job:{link}") for link in links)


def test_run_once_with_nothing_due_takes_nothing(rig: Rig) -> None:
    rig.create()
    rig.advance(MINUTE - timedelta(milliseconds=1))

    assert rig.dispatch() == 0


def test_run_once_also_takes_overdue_links_from_the_list(rig: Rig) -> None:
    schedule = rig.create()
    rig.advance(10 * MINUTE)
    rig.redis.flushall()
    rig.recover()
    assert rig.queued("rqsched") == [link_id(schedule)]

    assert rig.dispatch() == 1

    assert rig.queued("rqsched") == []
    assert statuses(schedule) == ["pending"]


def test_run_once_takes_at_most_one_batch(make_rig: MakeRig) -> None:
    rig = make_rig(fire_batch=2)
    for i in range(5):
        rig.create(f"s{i}")
    rig.advance()

    assert [rig.dispatch() for _ in range(4)] == [2, 2, 1, 0]


def test_batches_on_sqlite_stay_small(make_rig: MakeRig) -> None:
    """Its one writer must not be kept from others for long."""
    rig = make_rig(fire_batch=500)
    for i in range(SQLITE_BATCH + 1):
        rig.create(f"s{i}")
    rig.advance()

    assert [rig.dispatch(), rig.dispatch()] == [SQLITE_BATCH, 1]


def test_a_link_early_by_the_databases_clock_is_put_back_until_it_is_due(any_rig: Rig) -> None:
    """The clock that armed it was behind, or somebody promoted it by hand."""
    schedule = any_rig.create()
    link = link_id(schedule)
    any_rig.redis.zadd(any_rig.transport.scheduled_key, {link: any_rig.clock.now().timestamp()})

    assert any_rig.dispatch() == 1

    assert any_rig.armed() == {link: present(schedule.state.due_at).timestamp()}
    assert statuses(schedule) == []


def test_a_stale_link_is_dropped(rig: Rig) -> None:
    schedule = rig.create()
    link = link_id(schedule)
    schedule.pause()
    rig.advance()

    rig.dispatch()

    assert rig.armed() == {}
    assert not rig.redis.exists(f"rq:job:{link}")


def test_a_link_of_another_database_stays_where_it_is(rig: Rig) -> None:
    stranger = Arm(LinkId(derived_uid(rig.clock.now(), "elsewhere"), 1), rig.clock.now() + SECOND)
    rig.transport.arm([stranger], now=rig.clock.now())
    rig.advance()

    rig.dispatch()

    assert rig.armed() == {str(stranger.id): (rig.clock.now() + 15 * SECOND).timestamp()}
    assert rig.job(stranger.id).args == []


def test_a_link_without_its_hash_still_fires(rig: Rig) -> None:
    """Everything a link needs is in its id."""
    schedule = rig.create()
    rig.redis.delete(f"rq:job:{link_id(schedule)}")
    rig.advance()

    rig.dispatch()

    assert statuses(schedule) == ["pending"]


def test_a_leased_link_is_not_taken_by_another_dispatcher_until_the_lease_ends(rig: Rig) -> None:
    schedule = rig.create()
    rig.advance()
    assert lease(rig) == [link_id(schedule)]

    assert lease(rig) == []
    rig.advance(2 * SECOND - timedelta(milliseconds=1))
    assert lease(rig) == []
    rig.advance(timedelta(milliseconds=1))
    assert lease(rig) == [link_id(schedule)]


def test_the_links_of_a_dispatcher_that_died_return_by_themselves(any_rig: Rig) -> None:
    schedule = any_rig.create()
    any_rig.advance()
    lease(any_rig)

    assert any_rig.dispatch() == 0
    any_rig.advance(2 * SECOND)
    assert any_rig.dispatch() == 1

    assert statuses(schedule) == ["pending"]


def test_the_link_of_a_dispatcher_that_died_after_its_commit_is_dropped_by_the_next(any_rig: Rig) -> None:
    schedule = any_rig.create()
    any_rig.advance()
    taken = lease(any_rig)
    fire(any_rig.runtime, taken)  # committed and followed; dropping the link is what it did not come to
    any_rig.advance(2 * SECOND)

    any_rig.dispatch()

    assert statuses(schedule) == ["pending"]
    assert list(any_rig.armed()) == [link_id(schedule.refresh())]


def test_a_leased_entry_of_the_list_returns_as_a_due_link(rig: Rig) -> None:
    """Nothing that was popped is ever out of Redis: whoever promoted it, it is in the set while it is worked on."""
    link = Arm(LinkId(derived_uid(rig.clock.now(), "overdue"), 1), rig.clock.now())
    rig.transport.arm([link], now=rig.clock.now())

    assert lease(rig) == [str(link.id)]

    assert rig.armed() == {str(link.id): (rig.clock.now() + 2 * SECOND).timestamp()}
    assert rig.transport.arm([link], now=rig.clock.now()) == 0, "a leased link is live"


def test_a_lease_takes_list_entries_first_and_at_most_the_limit(rig: Rig) -> None:
    now = rig.clock.now()
    links = [Arm(LinkId(derived_uid(now, "x"), n), now + timedelta(seconds=n - 3)) for n in range(6)]
    rig.transport.arm(links, now=now)
    rig.advance(MINUTE)

    taken = lease(rig, limit=5)

    assert taken == [str(link.id) for link in links[:5]]
    assert lease(rig, limit=5) == [str(links[5].id)]


def test_put_back_does_not_restore_a_dropped_link(rig: Rig) -> None:
    schedule = rig.create()
    link = link_id(schedule)
    rig.transport.drop([link])

    rig.transport.put_back({link: rig.clock.now()})

    assert rig.armed() == {}


def test_two_dispatchers_share_what_is_due(make_rig: MakeRig, postgres_url: str) -> None:
    first = make_rig(database_url=postgres_url, fire_batch=3)
    second = make_rig(database_url=postgres_url, fire_batch=3)
    first.recover()  # Redis knows its database: no full pass arms links and enqueues runs beside them
    many = [first.create(f"s{i}") for i in range(30)]
    first.advance()
    taken: list[int] = []

    def turn(rig: Rig) -> None:
        dispatcher = Dispatcher(rig.runtime)
        while count := dispatcher.run_once():
            taken.append(count)

    threads = [threading.Thread(target=turn, args=(rig,)) for rig in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(taken) == 30
    assert [statuses(schedule) for schedule in many] == [["pending"]] * 30
    assert len(first.queued()) == len(set(first.queued())) == 30


def test_a_dispatcher_beside_rqs_scheduler_fires_once(any_rig: Rig) -> None:
    """RQ's scheduler has promoted the link that a dispatcher leases: it is on the list and in the set at once."""
    schedule = any_rig.create()
    link = link_id(schedule)
    any_rig.advance()
    any_rig.redis.rpush("rq:queue:rqsched", link)

    any_rig.dispatch()
    any_rig.dispatch()

    assert statuses(schedule) == ["pending"]
    assert any_rig.queued() == [run_job_id(newest(schedule))]


@contextmanager
def looping(dispatcher: Dispatcher) -> Iterator[None]:
    """The dispatcher's loop runs beside the block and ends with it."""
    thread = threading.Thread(target=dispatcher.run)
    thread.start()
    try:
        yield
    finally:
        dispatcher.stop()
        thread.join(10)
    assert not thread.is_alive()


def test_the_loop_fires_a_link_that_is_armed_while_it_waits(rig: Rig) -> None:
    with looping(Dispatcher(rig.runtime)):
        schedule = rig.create()
        rig.advance()

        wait_until(lambda: statuses(schedule) == ["pending"])


def test_the_loop_reconciles_once_an_interval(rig: Rig) -> None:
    schedule = rig.create()
    rig.redis.flushall()

    with looping(Dispatcher(rig.runtime)):
        wait_until(lambda: list(rig.armed()) == [link_id(schedule)])


def test_the_loop_survives_an_outage_of_redis(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
    rig = make_rig(redis_url=own_valkey.url)
    schedule = rig.create()

    with looping(Dispatcher(rig.runtime)):
        own_valkey.kill()
        rig.advance()
        own_valkey.start()

        wait_until(lambda: statuses(schedule) == ["pending"])

    assert len(rig.queued()) == 1


def test_a_loop_that_is_stopped_finishes_its_batch(rig: Rig) -> None:
    schedules = [rig.create(f"due-{i}") for i in range(3)]
    dispatcher = Dispatcher(rig.runtime)
    heard = threading.Event()

    def stop(change: Change, event: Event) -> None:
        dispatcher.stop()
        heard.set()

    rig.runtime.subscribers.append(stop)
    rig.advance()

    with looping(dispatcher):
        assert heard.wait(10)

    assert [statuses(schedule) for schedule in schedules] == [["pending"]] * 3
    assert sorted(rig.armed()) == sorted(link_id(schedule.refresh()) for schedule in schedules)


def test_reconcile_happens_once_an_interval_among_all_dispatchers(make_rig: MakeRig) -> None:
    rig = make_rig(reconcile_interval=10 * MINUTE)
    first, second = Dispatcher(rig.runtime), Dispatcher(rig.runtime)

    assert first.reconcile_some()

    assert not second.reconcile_some()
    while first.reconcile_some():
        pass
    assert rig.redis.exists(rig.transport.database_id_key), "the first one's pass went to its end"


def test_one_batch_of_a_reconcile_pass_is_made_between_two_fire_batches(rig: Rig, redis: Redis) -> None:
    for i in range(3):
        rig.create(f"s{i}")
    dispatcher = Dispatcher(rig.runtime)

    pieces = 0
    while dispatcher.reconcile_some():
        pieces += 1

    assert pieces >= 1
    assert redis.exists(rig.transport.interval_key)
