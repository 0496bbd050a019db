"""The dispatcher leases due links, fires them in batches, gives back those that must wait and drops finished ones."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from redis import Redis

from rqsched.kernel.chain.dispatcher import (
    LATER_LOOK,
    LONGEST_WAIT,
    SQLITE_BATCH,
    Dispatcher,
    collecting_seldom,
    seconds_until,
)
from rqsched.kernel.chain.fire import fire
from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.ids import LinkId, derived_uid
from rqsched.kernel.decide.model import Change
from rqsched.kernel.transport.transport import Arm, NextLook
from rqsched.run.worker import dispatch
from tests.support.env import MINUTE, SECOND, Env, MakeEnv, link_id, newest, run_job_id, statuses
from tests.support.links import lease
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer


def test_run_once_fires_due_links_and_removes_them(any_env: Env) -> None:
    due = [any_env.create(f"due-{i}") for i in range(3)]
    later = any_env.create("later", spec=timedelta(hours=1))
    links = [link_id(schedule) for schedule in due]
    any_env.advance()

    assert any_env.dispatch() == 3

    assert [statuses(schedule) for schedule in due] == [["pending"]] * 3
    assert statuses(later) == []
    assert set(any_env.armed()) == {link_id(schedule.refresh()) for schedule in [*due, later]}
    assert not any(any_env.redis.exists(f"rq:job:{link}") for link in links)


def test_run_once_with_nothing_due_takes_nothing(env: Env) -> None:
    env.create()
    env.advance(MINUTE - timedelta(milliseconds=1))

    assert env.dispatch() == 0


def test_run_once_also_takes_late_links_from_the_list(env: Env) -> None:
    schedule = env.create()
    env.advance(10 * MINUTE)
    env.redis.flushall()
    env.recover()
    assert env.queued("rqsched") == [link_id(schedule)]

    assert env.dispatch() == 1

    assert env.queued("rqsched") == []
    assert statuses(schedule) == ["pending"]


def test_run_once_takes_at_most_one_batch(make_env: MakeEnv) -> None:
    env = make_env(fire_batch=2)
    for i in range(5):
        env.create(f"s{i}")
    env.advance()

    assert [env.dispatch() for _ in range(4)] == [2, 2, 1, 0]


def test_batches_on_sqlite_stay_small(make_env: MakeEnv) -> None:
    """SQLite has one writer, so a batch must not keep others waiting for long."""
    env = make_env(fire_batch=500)
    for i in range(SQLITE_BATCH + 1):
        env.create(f"s{i}")
    env.advance()

    assert [env.dispatch(), env.dispatch()] == [SQLITE_BATCH, 1]


def test_a_link_early_by_the_databases_clock_is_put_back_until_it_is_due(any_env: Env) -> None:
    """The clock that armed the link was behind, or the link was promoted by hand."""
    schedule = any_env.create()
    link = link_id(schedule)
    any_env.redis.zadd(any_env.transport.scheduled_key, {link: any_env.clock.now().timestamp()})

    assert any_env.dispatch() == 1

    assert any_env.armed() == {link: present(schedule.state.due_at).timestamp()}
    assert statuses(schedule) == []


def test_a_stale_link_is_dropped(env: Env) -> None:
    schedule = env.create()
    link = link_id(schedule)
    schedule.pause()
    env.advance()

    env.dispatch()

    assert env.armed() == {}
    assert not env.redis.exists(f"rq:job:{link}")


def test_a_link_of_another_database_stays_where_it_is(env: Env) -> None:
    stranger = Arm(LinkId(derived_uid(env.clock.now(), "elsewhere"), 1), env.clock.now() + SECOND)
    env.transport.arm([stranger], now=env.clock.now())
    env.advance()

    env.dispatch()

    assert env.armed() == {str(stranger.id): (env.clock.now() + 15 * SECOND).timestamp()}
    assert env.job(stranger.id).args == []


def test_a_link_without_its_hash_still_fires(env: Env) -> None:
    """Everything a link needs is in its id."""
    schedule = env.create()
    env.redis.delete(f"rq:job:{link_id(schedule)}")
    env.advance()

    env.dispatch()

    assert statuses(schedule) == ["pending"]


def test_a_leased_link_is_not_taken_by_another_dispatcher_until_the_lease_ends(env: Env) -> None:
    schedule = env.create()
    env.advance()
    assert lease(env) == [link_id(schedule)]

    assert lease(env) == []
    env.advance(2 * SECOND - timedelta(milliseconds=1))
    assert lease(env) == []
    env.advance(timedelta(milliseconds=1))
    assert lease(env) == [link_id(schedule)]


def test_the_links_of_a_dispatcher_that_died_return_by_themselves(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.advance()
    lease(any_env)

    assert any_env.dispatch() == 0
    any_env.advance(2 * SECOND)
    assert any_env.dispatch() == 1

    assert statuses(schedule) == ["pending"]


def test_the_link_of_a_dispatcher_that_died_after_its_commit_is_dropped_by_the_next(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.advance()
    taken = lease(any_env)
    fire(any_env.runtime, taken)  # it has committed and published, but not dropped the link
    any_env.advance(2 * SECOND)

    any_env.dispatch()

    assert statuses(schedule) == ["pending"]
    assert list(any_env.armed()) == [link_id(schedule.refresh())]


def test_a_leased_entry_of_the_list_returns_as_a_due_link(env: Env) -> None:
    """A popped link never leaves Redis. The lease puts it into the set, whether RQ or the dispatcher promoted it."""
    link = Arm(LinkId(derived_uid(env.clock.now(), "late"), 1), env.clock.now())
    env.transport.arm([link], now=env.clock.now())

    assert lease(env) == [str(link.id)]

    assert env.armed() == {str(link.id): (env.clock.now() + 2 * SECOND).timestamp()}
    assert env.transport.arm([link], now=env.clock.now()) == 0, "a leased link is live"


def test_a_lease_takes_list_entries_first_and_at_most_the_limit(env: Env) -> None:
    now = env.clock.now()
    links = [Arm(LinkId(derived_uid(now, "x"), n), now + timedelta(seconds=n - 3)) for n in range(6)]
    env.transport.arm(links, now=now)
    env.advance(MINUTE)

    taken = lease(env, limit=5)

    assert taken == [str(link.id) for link in links[:5]]
    assert lease(env, limit=5) == [str(links[5].id)]


def test_put_back_does_not_restore_a_dropped_link(env: Env) -> None:
    schedule = env.create()
    link = link_id(schedule)
    env.transport.drop([link])

    env.transport.put_back({link: env.clock.now()})

    assert env.armed() == {}


def test_two_dispatchers_share_what_is_due(make_env: MakeEnv, postgres_url: str) -> None:
    first = make_env(database_url=postgres_url, fire_batch=3)
    second = make_env(database_url=postgres_url, fire_batch=3)
    first.recover()  # Redis knows its database: no full pass arms links and enqueues runs beside them
    many = [first.create(f"s{i}") for i in range(30)]
    first.advance()
    taken: list[int] = []

    def turn(env: Env) -> None:
        dispatcher = Dispatcher(env.runtime)
        while count := dispatcher.run_once():
            taken.append(count)

    threads = [threading.Thread(target=turn, args=(env,)) for env in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(taken) == 30
    assert [statuses(schedule) for schedule in many] == [["pending"]] * 30
    assert len(first.queued()) == len(set(first.queued())) == 30


def test_a_dispatcher_beside_rqs_scheduler_fires_once(any_env: Env) -> None:
    """RQ's scheduler promotes the link that a dispatcher leases, so it is in the list and the set at the same time."""
    schedule = any_env.create()
    link = link_id(schedule)
    any_env.advance()
    any_env.redis.rpush("rq:queue:rqsched", link)

    any_env.dispatch()
    any_env.dispatch()

    assert statuses(schedule) == ["pending"]
    assert any_env.queued() == [run_job_id(newest(schedule))]


@contextmanager
def looping(dispatcher: Dispatcher) -> Iterator[None]:
    """The dispatcher's loop runs beside the block and ends with it."""
    thread = threading.Thread(target=dispatcher.run)
    thread.start()
    try:
        yield
    finally:
        dispatcher.stop()
        thread.join(60)
    assert not thread.is_alive()


def test_the_loop_fires_a_link_that_is_armed_while_it_waits(env: Env) -> None:
    with looping(Dispatcher(env.runtime)):
        schedule = env.create()
        env.advance()

        wait_until(lambda: statuses(schedule) == ["pending"])


def test_the_loop_reconciles_once_an_interval(env: Env) -> None:
    schedule = env.create()
    env.redis.flushall()

    with looping(Dispatcher(env.runtime)):
        wait_until(lambda: list(env.armed()) == [link_id(schedule)])


def test_the_loop_survives_an_outage_of_redis(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(redis_url=own_valkey.url)
    schedule = env.create()

    with looping(Dispatcher(env.runtime)):
        own_valkey.kill()
        env.advance()
        own_valkey.start()

        wait_until(lambda: statuses(schedule) == ["pending"])

    assert len(env.queued()) == 1


def test_a_loop_that_is_stopped_finishes_its_batch(env: Env) -> None:
    schedules = [env.create(f"due-{i}") for i in range(3)]
    dispatcher = Dispatcher(env.runtime)
    heard = threading.Event()

    def stop(change: Change, event: Event) -> None:
        dispatcher.stop()
        heard.set()

    env.runtime.subscribers.append(stop)
    env.advance()

    with looping(dispatcher):
        assert heard.wait(60)

    assert [statuses(schedule) for schedule in schedules] == [["pending"]] * 3
    assert sorted(env.armed()) == sorted(link_id(schedule.refresh()) for schedule in schedules)


def test_reconcile_happens_once_an_interval_among_all_dispatchers(make_env: MakeEnv) -> None:
    env = make_env(reconcile_interval=10 * MINUTE)
    first, second = Dispatcher(env.runtime), Dispatcher(env.runtime)

    assert first.reconcile_some()

    assert not second.reconcile_some()
    while first.reconcile_some():
        pass
    assert env.redis.exists(env.transport.database_id_key), "the first one's pass went to its end"


def test_one_batch_of_a_reconcile_pass_is_made_between_two_fire_batches(env: Env, redis: Redis) -> None:
    for i in range(3):
        env.create(f"s{i}")
    dispatcher = Dispatcher(env.runtime)

    pieces = 0
    while dispatcher.reconcile_some():
        pieces += 1

    assert pieces >= 1
    assert redis.exists(env.transport.interval_key)


def test_who_does_not_look_first_looks_a_fixed_moment_later() -> None:
    """This moment bounds a link's delay if the first dispatcher has died, hangs or never leases."""
    due_in = {0.05: 0.05, -3.0: 0.0, 60.0: LONGEST_WAIT}
    for seconds, expected in due_in.items():
        assert seconds_until(NextLook(100.0 + seconds, is_first=True), 100.0) == pytest.approx(expected)
        assert seconds_until(NextLook(100.0 + seconds, is_first=False), 100.0) == pytest.approx(expected + LATER_LOOK)
    assert seconds_until(NextLook(None, is_first=True), 100.0) == LONGEST_WAIT
    assert LATER_LOOK <= 0.02


def fire_beside_another(env: Env) -> None:
    """Let a dispatcher wait for a link that it was not told of, then let that be due."""
    schedule = env.create()
    env.redis.delete(env.transport.wake_key)
    assert env.transport.acquire_interval(MINUTE)
    assert env.transport.acquire_pruning(MINUTE)
    turns: list[None] = []

    with looping(Dispatcher(env.runtime, on_turn=lambda: turns.append(None))):
        wait_until(lambda: len(turns) > 2)  # there is nothing else to do: before each but the first it has waited
        env.advance()
        wait_until(lambda: statuses(schedule) == ["pending"])


def test_a_link_fires_although_the_dispatcher_that_looks_first_hangs(env: Env) -> None:
    env.redis.set(env.transport.first_look_key, "hangs")  # and never expires

    fire_beside_another(env)


def test_a_link_fires_although_the_dispatcher_that_looks_first_never_leases(env: Env) -> None:
    """Its database may be away: it asks repeatedly, and so stays the first to look."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.01):
            env.transport.next_look("broken")

    env.transport.next_look("broken")
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        fire_beside_another(env)
    finally:
        ended.set()
        asking.join()


@pytest.fixture
def garbage_thresholds() -> Iterator[None]:
    """Restore the thresholds of the garbage collector after the test."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("garbage_thresholds")
@pytest.mark.parametrize(
    ("given", "kept"), [(700, 10_000), (50_000, 50_000), (0, 0)], ids=["low", "higher", "turned off"]
)
def test_dispatcher_raises_a_low_threshold_of_the_garbage_collector_until_it_ends(given: int, kept: int) -> None:
    gc.set_threshold(given, 5, 7)

    with collecting_seldom():
        assert gc.get_threshold()[:2] == (kept, 5)

    assert gc.get_threshold()[:2] == (given, 5)


@pytest.mark.usefixtures("garbage_thresholds")
def test_process_of_a_dispatcher_collects_garbage_seldom(env: Env) -> None:
    gc.set_threshold(700, 10, 10)
    seen = []

    def turn() -> None:
        seen.append(gc.get_threshold()[0])
        signal.raise_signal(signal.SIGTERM)  # ends the loop

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        dispatch(env.runtime, recover=False, on_turn=turn)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    assert seen[0] == 10_000
    assert gc.get_threshold()[0] == 700
