"""Targets of a run of a group need places of it, in one line with runs; the run that waits for them has none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every, RetryPolicy
from rqsched.api.run_handle import RunHandle
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.features.fan_out import dispatch as fan_out
from rqsched.features.fan_out import execution as target_execution
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.limits.decide import GRANT_LIFE
from rqsched.kernel.decide.ids import TargetJobId, new_uid, parse_target_job_id
from rqsched.kernel.decide.model import TargetStatus
from rqsched.kernel.decide.results import LimitDescription
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.store.tables import targets
from rqsched.workflows import make_workflow
from tests.support.env import HOUR, MINUTE, ONCE, QUEUE, SECOND, Env, run_job_id
from tests.support.invariants import check_invariants
from tests.support.narrow import present

NAMES = ("c-1", "c-2", "c-3")
pytestmark = pytest.mark.every_database


class Shop:
    """A schedule that calls its workflow for three targets, and a record of the calls."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.named = list(NAMES)
        self.called: list[str] = []
        self.claimed: set[str] = set()
        self.failing = False
        env.registry.add(make_workflow("remind", self._remind))
        env.registry.add(make_workflow("due", lambda: self.named))

    def _remind(self, name: str) -> None:
        self.called.append(name)
        if self.failing:
            raise RuntimeError("mail is away")

    def create(self, schedule_id: str = "sweep", number: int | None = 1, **options: Any) -> ScheduleHandle:
        given = {"workflow": "remind", "targets": "due", "limit": "shop", "limit_running": number, "retry": ONCE}
        return self.env.create(schedule_id, **{"spec": Every("1h"), **given, **options})

    def note(self, schedule_id: str, **options: Any) -> ScheduleHandle:
        return self.env.create(schedule_id, spec=Every("1h"), limit="shop", retry=ONCE, **options)

    def dispatched(self, **options: Any) -> RunHandle:
        """A run that waits for its targets."""
        run = present(self.create(**options).trigger().run)
        self.env.perform(run_job_id(run))
        return run.refresh()

    def rows(self) -> list[tuple[str, bool]]:
        """The status of each target, and whether it has a place or had one."""
        found = sa.select(targets.c.status, targets.c.granted_at).order_by(targets.c.number)
        return self.env.runtime.database.read(lambda c: [(row[0], row[1] is not None) for row in c.execute(found)])

    def statuses(self) -> list[str]:
        return [status for status, _ in self.rows()]

    def places(self) -> list[bool]:
        return [has_place for _, has_place in self.rows()]

    def group(self) -> LimitDescription:
        (found,) = self.env.scheduler.limits.list().items
        return found

    def counts(self) -> tuple[int, int, int]:
        found = self.group()
        return found.running, found.starting, found.waiting

    def jobs(self, queue: str = QUEUE) -> list[TargetJobId]:
        """The jobs of targets that are on their queue and that nobody has claimed."""
        found = [one for name in self.env.queued(queue) if isinstance(one := parse_target_job_id(name), TargetJobId)]
        return [one for one in found if one.uid not in self.claimed]

    def claim(self) -> Claimed:
        """A process with the next target of the queue."""
        claimed = Claimed(self.env, self.jobs()[0])
        self.claimed.add(claimed.target.uid)
        return claimed


class Claimed:
    def __init__(self, env: Env, job: TargetJobId) -> None:
        self.env, self.token = env, new_uid(env.clock.now())
        now = env.clock.now()
        found = env.runtime.database.transact(lambda c: fan_out_targets.claim(c, job, self.token, now))
        self.target = present(found).target

    def end(self, end: TargetEnd | None = None) -> None:
        done = end or TargetEnd(TargetStatus.SUCCEEDED)
        target_execution._finish(self.env.runtime, self.target, self.token, lambda *_: done)


@pytest.fixture
def shop(any_env: Env) -> Shop:
    return Shop(any_env)


def test_run_gives_its_place_to_its_targets_and_they_follow_one_another(shop: Shop) -> None:
    env = shop.env
    run = shop.dispatched()
    assert run.status == "running"
    assert shop.rows() == [("pending", True), ("pending", False), ("pending", False)]
    assert shop.counts() == (0, 1, 2)
    first = shop.claim()
    assert (shop.counts(), shop.jobs()) == ((1, 0, 2), [])
    env.recover()
    assert shop.places() == [True, False, False]
    check_invariants(env.runtime, with_redis=False)

    first.end()
    assert shop.statuses() == ["succeeded", "pending", "pending"]
    assert shop.counts() == (0, 1, 1)
    env.work()
    assert (run.refresh().status, run.target_counts) == ("succeeded", {"succeeded": 3})
    assert shop.called == ["c-2", "c-3"]
    check_invariants(env.runtime)


def test_all_targets_run_one_after_the_other_with_a_worker(shop: Shop) -> None:
    run = present(shop.create().trigger().run)
    shop.env.work()
    assert (run.refresh().status, shop.called) == ("succeeded", list(NAMES))
    assert shop.counts() == (0, 0, 0)
    check_invariants(shop.env.runtime)


def test_targets_and_runs_are_one_line(shop: Shop) -> None:
    env = shop.env
    run = shop.dispatched()
    env.advance(SECOND)
    other = present(shop.note("other").trigger().run)
    assert other.state.is_in_line
    shop.failing = True
    claimed = shop.claim()
    env.advance(SECOND)
    claimed.end()
    shop.claim().end()
    assert other.refresh().state.is_in_line, "the third target was ready before it"
    shop.claim().end()
    assert other.refresh().state.takes_place
    assert run.refresh().status == "succeeded"
    env.work()
    assert other.refresh().status == "succeeded"
    check_invariants(env.runtime)


def test_only_targets_within_max_parallel_join_the_line(shop: Shop) -> None:
    run = shop.dispatched(number=2, max_parallel=1)
    assert shop.rows() == [("pending", True), ("waiting", False), ("waiting", False)]
    assert shop.counts() == (0, 1, 0)
    shop.env.work()
    assert (run.refresh().status, shop.called) == ("succeeded", list(NAMES))
    check_invariants(shop.env.runtime)


def test_chunks_follow_into_the_line(shop: Shop) -> None:
    object.__setattr__(shop.env.runtime.settings, "target_chunk", 2)
    shop.named = [f"c-{number}" for number in range(7)]
    run = present(shop.create(number=2).trigger().run)
    shop.env.work()
    assert (run.refresh().status, sorted(shop.called)) == ("succeeded", shop.named)
    check_invariants(shop.env.runtime)


def test_retrying_target_holds_no_place_and_comes_back_where_it_was_in_line(shop: Shop) -> None:
    env = shop.env
    shop.dispatched(target_retry=RetryPolicy(2, base=MINUTE))
    first = shop.claim()
    first.end(TargetEnd(TargetStatus.RETRYING, "mail is away", env.clock.now() + MINUTE))
    assert shop.rows()[:2] == [("retrying", True), ("pending", True)]
    assert shop.counts() == (0, 1, 1)
    second = shop.claim()
    env.advance(MINUTE + SECOND)
    env.recover()
    assert shop.rows()[0] == ("pending", False)
    second.end()
    assert shop.places() == [True, True, False]
    env.work()
    assert shop.called == ["c-1", "c-3"]
    check_invariants(env.runtime)


def test_blocked_target_holds_no_place(shop: Shop) -> None:
    env = shop.env
    run = shop.dispatched()
    shop.claim().end(TargetEnd(TargetStatus.BLOCKED, "no code", env.clock.now() + MINUTE))
    assert shop.counts() == (0, 1, 1)
    env.work()
    assert shop.statuses() == ["blocked", "succeeded", "succeeded"]
    env.advance(MINUTE)
    env.recover()
    env.work()
    assert run.refresh().status == "succeeded"
    check_invariants(env.runtime)


def test_target_that_nobody_claims_is_passed_over_and_keeps_its_job(shop: Shop) -> None:
    env = shop.env
    shop.named = ["c-1"]
    run = shop.dispatched(queue="nobody")
    other = present(shop.note("other").trigger().run)
    env.advance(GRANT_LIFE - 2 * SECOND)
    env.recover()
    assert other.refresh().state.is_in_line
    env.advance(2 * SECOND)
    assert env.recover().granted == 1
    assert (shop.places(), other.refresh().state.takes_place) == ([False], True)
    assert len(shop.jobs("nobody")) == 1
    claim = env.claim(other)

    env.work("nobody")  # it asks, and is in line again
    assert (shop.rows(), shop.jobs("nobody")) == ([("pending", False)], [])
    env.recover()
    assert (shop.rows(), shop.jobs("nobody")) == ([("pending", False)], [])
    other.cancel()
    assert claim.run.uid == other.uid
    assert (shop.rows(), len(shop.jobs("nobody"))) == ([("pending", True)], 1)
    env.work("nobody")
    assert run.refresh().status == "succeeded"
    check_invariants(env.runtime)


def test_target_that_was_passed_over_goes_before_a_later_grant_that_nobody_has_claimed(shop: Shop) -> None:
    env = shop.env
    shop.named = ["c-1"]
    run = shop.dispatched(queue="nobody")
    env.advance(SECOND)
    other = present(shop.note("other").trigger().run)
    env.advance(GRANT_LIFE)
    env.recover()
    assert other.refresh().state.takes_place
    env.work("nobody")
    assert (run.refresh().status, shop.called) == ("succeeded", ["c-1"])
    env.work()
    assert other.refresh().status == "succeeded"
    check_invariants(env.runtime)


def test_lost_target_holds_its_place_until_that_is_found(shop: Shop) -> None:
    env = shop.env
    shop.dispatched(target_timeout=10)
    shop.claim()
    for _ in range(8):
        assert shop.places() == [True, False, False]
        env.advance(5 * MINUTE)
        env.recover()
        if shop.statuses()[0] == "lost":
            break
    assert shop.rows()[:2] == [("lost", True), ("pending", True)]
    check_invariants(env.runtime)


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_run_that_is_stopped_frees_the_places_of_its_targets(shop: Shop, how: str) -> None:
    env = shop.env
    run = shop.dispatched(number=2)
    claimed = shop.claim()
    others = list[RunHandle]()
    for name in ("a", "b"):
        env.advance(SECOND)
        others.append(present(shop.note(name).trigger().run))
    assert [one.refresh().state.is_in_line for one in others] == [True, True]
    getattr(run, how)()
    assert shop.statuses() == ["running", "cancelled", "cancelled"]
    assert [one.refresh().state.takes_place for one in others] == [True, False]
    claimed.end(TargetEnd(TargetStatus.CANCELLED))
    assert [one.refresh().state.takes_place for one in others] == [True, True]
    check_invariants(env.runtime, with_redis=False)


@pytest.mark.parametrize("everything", [True, False])
def test_targets_go_on_where_nothing_may_begin(shop: Shop, everything: bool) -> None:
    env = shop.env
    run = shop.dispatched()
    other = present(shop.note("other").trigger().run)
    env.scheduler.freeze(everything=everything)
    env.work()
    assert (run.refresh().status, shop.called) == ("succeeded", list(NAMES))
    env.advance(HOUR / 2)
    env.recover()
    assert not other.refresh().state.takes_place
    env.scheduler.thaw(everything=everything)
    env.recover()
    env.work()
    assert other.refresh().status == "succeeded"


def test_failed_targets_that_are_retried_need_places_again(shop: Shop) -> None:
    env = shop.env
    shop.failing = True
    run = present(shop.create().trigger().run)
    env.work()
    assert (run.refresh().status, shop.statuses()) == ("failed", ["failed"] * 3)
    shop.failing = False
    run.retry(failed_targets=True)
    env.perform(run_job_id(run.refresh()))
    assert shop.rows() == [("pending", True), ("pending", False), ("pending", False)]
    env.work()
    assert (run.refresh().status, shop.counts()) == ("succeeded", (0, 0, 0))
    check_invariants(env.runtime)


def test_grant_of_a_target_whose_process_died_before_its_job_was_put_on_its_queue_is_delivered(shop: Shop) -> None:
    env = shop.env
    run = shop.dispatched()
    env.redis.flushdb()
    env.advance(MINUTE / 6)
    env.recover()
    assert len(shop.jobs()) == 1
    env.work()
    assert run.refresh().status == "succeeded"
    check_invariants(env.runtime)


def test_number_that_is_lowered_lets_no_further_target_begin(shop: Shop) -> None:
    env = shop.env
    run = shop.dispatched(number=3)
    first, second = (shop.claim() for _ in range(2))
    env.scheduler.limits.set("shop", 1)
    assert shop.counts() == (2, 0, 1)
    first.end()
    assert shop.counts() == (1, 0, 1)
    second.end()
    assert shop.counts() == (0, 0, 1)
    env.work()  # the job of the third asks
    assert run.refresh().status == "succeeded"


def test_group_stays_while_targets_of_it_are_open(shop: Shop) -> None:
    env = shop.env
    run = shop.dispatched(number=1)
    env.scheduler.get("sweep").update(limit=None, limit_running=None)
    env.recover()
    assert shop.group().name == "shop"
    env.work()
    env.recover()
    assert (run.refresh().status, env.scheduler.limits.list().items) == ("succeeded", [])


def test_why_says_how_many_targets_wait_for_a_place(shop: Shop) -> None:
    env = shop.env
    (run,) = env.fire_all(shop.create())
    env.perform(run_job_id(run))
    claimed = shop.claim()
    text = env.scheduler.get("sweep").why(run.occurrence_at).text
    assert "2 of its targets wait for a place of limit shop: 1 of 1 running" in text
    claimed.end()
    env.work()
    assert "wait for a place" not in env.scheduler.get("sweep").why(run.occurrence_at).text


def test_targets_without_a_group_have_no_places(shop: Shop) -> None:
    run = present(shop.create(limit=None, number=None).trigger().run)
    shop.env.work()
    assert (run.refresh().status, shop.places()) == ("succeeded", [False] * 3)


@pytest.mark.parametrize(("was", "becomes"), [("shop", None), (None, "shop"), ("shop", "mail")])
def test_targets_of_an_attempt_in_another_group_or_in_none_wait_for_no_place_for_ever(
    shop: Shop, was: str | None, becomes: str | None
) -> None:
    env = shop.env
    shop.failing = True

    def name() -> Iterator[str]:
        yield "c-1"
        yield "c-2"
        if shop.failing:
            raise RuntimeError("the shop is away")
        yield "c-3"

    env.registry.add(make_workflow("name", name))
    object.__setattr__(env.runtime.settings, "target_chunk", 2)
    schedule = shop.create(targets="name", limit=was, number=None if was is None else 1)
    run = present(schedule.trigger().run)
    env.work()
    assert (run.refresh().status, shop.statuses()) == ("failed", ["waiting", "waiting"])
    object.__setattr__(env.runtime.settings, "target_chunk", 500)
    schedule.update(limit=becomes, limit_running=None if becomes is None else 1)
    shop.failing = False
    run.retry()
    env.work()
    assert (run.refresh().status, shop.called) == ("succeeded", list(NAMES))
    check_invariants(env.runtime)


def test_chunk_of_targets_with_a_group_and_without_one_goes_on(shop: Shop) -> None:
    env = shop.env
    run = present(shop.create().trigger().run)
    env.claim(run)
    batch = fan_out.batch_of(env.runtime, run.uid)
    named = [batch._replace(limit_group=None), batch, batch._replace(limit_group=None)]
    for number, (one, target) in enumerate(zip(named, NAMES, strict=True), 1):
        record = partial(fan_out_targets.record, batch=one, named=[target], first=number, now=env.clock.now())
        env.runtime.database.transact(record)
    fan_out.dispatch_first(env.runtime, run.uid)
    assert shop.rows() == [("pending", False)] * 3
    read = sa.select(targets.c.queued_at.is_not(None), targets.c.limit_at.is_not(None)).order_by(targets.c.number)
    found = env.runtime.database.read(lambda c: [tuple(row) for row in c.execute(read)])
    assert (found, len(shop.jobs())) == ([(True, False), (False, True), (True, False)], 2)


def test_failed_targets_that_are_retried_need_places_of_the_group_of_now(shop: Shop) -> None:
    env = shop.env
    shop.failing = True
    schedule = shop.create()
    run = present(schedule.trigger().run)
    env.work()
    assert run.refresh().status == "failed"
    schedule.update(limit=None, limit_running=None)
    run.retry(failed_targets=True)
    found = env.runtime.database.read(lambda c: set(c.execute(sa.select(targets.c.limit_group)).scalars()))
    assert found == {None}


def test_target_in_line_counts_as_none_that_waits_for_a_worker(shop: Shop) -> None:
    shop.dispatched()
    waiting = shop.env.runtime.database.read(lambda c: run_queries.waiting_by_queue(c, None, 100))
    assert [found.number for found in waiting] == [1]
