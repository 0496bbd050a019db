"""A group's rate bounds the starts in any window of its length, and waiting runs are granted in time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import RetryPolicy
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.errors import InvalidInputError, InvalidPolicyError, LimitConflictError
from rqsched.features.external import chain as external_runs
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.limits import store as groups
from rqsched.features.limits.chain import grant
from rqsched.features.limits.decide import GRANT_LIFE
from rqsched.kernel.chain.blocked import block_run
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.fire import fire
from rqsched.kernel.decide.ids import RetryLinkId, TargetJobId, new_uid
from rqsched.kernel.decide.model import TargetStatus
from rqsched.kernel.store.tables import limit_starts, limits, runs, targets
from rqsched.testing import ManualClock
from tests.support.env import DAY, HOUR, MINUTE, NOON, SECOND, Env, job_id, run_job_id
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.sql import NO_PATIENCE, statements

GROUP = "default/api"
MICROSECOND = timedelta(microseconds=1)


def create(env: Env, schedule_id: str = "a", rate: str | None = "2/min", **options: Any) -> ScheduleHandle:
    given = {"spec": DAY, "limit": "api", "overlap": "allow_all", "limit_rate": rate}
    return env.create(schedule_id, **(given | options))


def make(schedule: ScheduleHandle, count: int) -> list[RunHandle]:
    return [present(schedule.trigger().run) for _ in range(count)]


def statuses(*made: RunHandle) -> list[str]:
    return [run.refresh().status for run in made]


def granted(*made: RunHandle) -> list[bool]:
    return [run.refresh().state.granted_at is not None for run in made]


def starts(env: Env) -> list[datetime]:
    with env.runtime.database.engine.connect() as connection:
        return [*connection.scalars(sa.select(limit_starts.c.started_at).order_by(limit_starts.c.started_at))]


def describe(env: Env) -> tuple[int | None, str | None, int | None]:
    (group,) = env.scheduler.limits.list().items
    return group.number, group.rate, group.started


@pytest.mark.every_database
def test_only_so_many_start_in_any_window_and_the_next_follow_when_a_start_leaves_it(any_env: Env) -> None:
    env = any_env
    made = make(create(env), 5)
    assert granted(*made) == [True, True, False, False, False]
    env.work()
    env.advance(20 * SECOND)
    assert env.dispatch() == 0
    assert statuses(*made) == ["succeeded"] * 2 + ["pending"] * 3
    check_invariants(env.runtime)

    env.advance(40 * SECOND - MICROSECOND)
    assert env.dispatch() == 0
    env.advance(MICROSECOND)
    assert env.dispatch() == 1
    assert granted(*made[2:]) == [True, True, False]
    env.work()
    env.advance(MINUTE)
    env.dispatch()
    env.work()

    assert statuses(*made) == ["succeeded"] * 5
    check_invariants(env.runtime)
    env.advance(10 * MINUTE)
    make(env.scheduler.get("a"), 1)
    env.work()
    assert starts(env) == [env.clock.now()], "what counts no more is removed"


@pytest.mark.every_database
def test_places_that_nobody_has_claimed_count(any_env: Env) -> None:
    """Granted runs may start at any moment, even at the end of the window of the started ones."""
    env = any_env
    made = make(create(env, rate="2/10s"), 4)
    env.advance(10 * SECOND)
    env.dispatch()
    env.recover()
    assert granted(*made) == [True, True, False, False]
    env.claim(made[0])
    env.advance(5 * SECOND)
    env.claim(made[1])
    for at in (5, 3, 2):
        env.advance(at * SECOND)
        env.dispatch()
        for run in made[2:]:
            if granted(run) == [True] and run.refresh().status == "pending":
                env.claim(run)
    first = starts(env)[0]
    assert [(at - first).total_seconds() for at in starts(env)] == [0, 5, 10, 15]
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_each_attempt_is_a_start(any_env: Env) -> None:
    env = any_env
    schedule = create(env, retry=RetryPolicy(3, base=SECOND, jitter=timedelta(0)))
    env.failing = True
    (run,) = make(schedule, 1)
    env.work()
    env.advance(SECOND)
    env.dispatch()
    env.work()
    env.failing = False
    assert (run.refresh().status, run.attempt, len(starts(env))) == ("retrying", 2, 2)
    env.advance(3 * SECOND)
    env.dispatch()

    assert (run.refresh().status, run.attempt, run.state.granted_at) == ("pending", 3, None)
    assert max(env.armed().values()) == (starts(env)[0] + MINUTE).timestamp() or len(env.armed()) == 2
    env.advance(MINUTE - 4 * SECOND)
    env.dispatch()
    env.work()
    assert run.refresh().status == "succeeded"
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_run_that_a_worker_without_its_code_gives_back_has_not_started(any_env: Env) -> None:
    """If it counted, the run would wait for its own start, and fail as blocked before that start leaves the window."""
    env = any_env
    (run,) = make(create(env, rate="1/day"), 1)
    claim = env.claim(run)
    assert len(starts(env)) == 1
    block_run(env.runtime, claim.run, "no code", patience=NO_PATIENCE)
    assert starts(env) == []
    env.advance(MINUTE)
    env.dispatch()
    env.work()
    assert (run.refresh().status, starts(env)) == ("succeeded", [env.clock.now()])
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_blocked_run_that_waits_for_the_rate_does_not_fail_as_blocked(any_env: Env) -> None:
    """No worker can take the run meanwhile, so a worker may have its code by now."""
    env = any_env
    made = make(create(env, rate="2/2h"), 3)
    env.execute(made[0])
    block_run(env.runtime, env.claim(made[1]).run, "no code", patience=NO_PATIENCE)
    env.execute(made[2])
    env.advance(HOUR + MINUTE)
    env.dispatch()
    env.recover()
    assert statuses(*made) == ["succeeded", "pending", "succeeded"]
    env.advance(HOUR - MINUTE)
    env.dispatch()
    env.work()
    assert statuses(*made) == ["succeeded"] * 3


@pytest.mark.every_database
@pytest.mark.parametrize("max_parallel", [None, 1])
def test_target_that_is_given_back_has_not_started(any_env: Env, max_parallel: int | None) -> None:
    env = any_env
    env.register("shop", lambda _: None, targets="names")
    env.register("names", lambda: ["a"])
    (run,) = make(create(env, workflow="shop", rate="2/day", max_parallel=max_parallel), 1)
    env.perform(run_job_id(run))
    token, now = new_uid(env.clock.now()), env.clock.now()
    find = sa.select(targets.c.uid, targets.c.delivery)
    job = TargetJobId(*present(env.runtime.database.read(lambda connection: connection.execute(find).first())))
    claimed = present(env.runtime.database.transact(lambda c: fan_out_targets.claim(c, job, token, now)))
    assert len(starts(env)) == 2
    blocked = TargetEnd(TargetStatus.BLOCKED, "no code", now + MINUTE)
    env.runtime.database.transact(lambda c: fan_out_targets.finish(c, claimed.target, token, blocked, now))
    assert starts(env) == [now]
    env.advance(MINUTE)
    env.recover()
    env.work()
    assert (run.refresh().status, len(starts(env))) == ("succeeded", 2)


@pytest.mark.every_database
def test_number_and_rate_hold_together(any_env: Env) -> None:
    env = any_env
    made = make(create(env, limit_running=1, rate="2/min"), 3)
    assert granted(*made) == [True, False, False]
    env.work()
    assert statuses(*made) == ["succeeded", "succeeded", "pending"]
    env.advance(MINUTE)
    env.dispatch()
    env.work()
    assert statuses(*made) == ["succeeded"] * 3
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_place_that_was_free_for_the_number_is_given_when_the_rate_has_one(any_env: Env) -> None:
    env = any_env
    made = make(create(env, limit_running=1, rate="1/min"), 2)
    claim = env.claim(made[0])
    env.advance(HOUR)
    env.dispatch()
    assert granted(made[1]) == [False], "the number is in the way, and no link"
    del claim
    made[0].cancel()
    assert granted(made[1]) == [True]


@pytest.mark.every_database
def test_external_workers_get_only_so_many(any_env: Env) -> None:
    env = any_env
    make(create(env, executor="external", queue="outside"), 3)

    def fetch() -> int:
        return len(external_runs.claim(env.runtime, ["outside"], "w", namespace="default", count=5))

    assert fetch() == 2
    assert fetch() == 0
    env.advance(MINUTE)
    env.dispatch()
    assert fetch() == 1
    assert len(starts(env)) == 3
    check_invariants(env.runtime, with_redis=False)


@pytest.mark.every_database
def test_rate_is_raised_lowered_and_taken_off(any_env: Env) -> None:
    env = any_env
    made = make(create(env), 6)
    env.work()

    raised = env.scheduler.limits.set("api", rate="3/minute")
    assert (raised.rate, raised.started, raised.starting) == ("3/min", 2, 1)
    env.work()
    env.scheduler.limits.set("api", rate="1/min")
    env.advance(MINUTE)
    env.dispatch()
    env.work()
    assert statuses(*made) == ["succeeded"] * 4 + ["pending"] * 2

    with pytest.raises(InvalidInputError, match="the rate is all that 'api' has"):
        env.scheduler.limits.set("api", unset=["rate"])
    env.scheduler.limits.set("api", 7, unset=["rate"])
    env.work()
    assert statuses(*made) == ["succeeded"] * 6
    assert (starts(env), describe(env)) == ([], (7, None, None))
    env.scheduler.limits.set("api", rate="5/30s")
    env.scheduler.limits.set("api", unset=["number"])
    assert describe(env) == (None, "5/30s", 0)


@pytest.mark.every_database
def test_rate_that_is_raised_brings_somebody_sooner(any_env: Env) -> None:
    env = any_env
    made = make(create(env, rate="1/h"), 3)
    env.work()
    env.scheduler.limits.set("api", rate="1/min")
    env.advance(MINUTE)
    env.dispatch()
    env.work()
    assert statuses(*made) == ["succeeded", "succeeded", "pending"]


@pytest.mark.every_database
def test_rate_of_a_group_that_had_none_counts_those_who_have_a_place(any_env: Env) -> None:
    env = any_env
    made = make(create(env, rate=None, limit_running=2), 4)
    env.scheduler.limits.set("api", rate="2/min")
    env.work()
    assert (statuses(*made), len(starts(env))) == (["succeeded"] * 2 + ["pending"] * 2, 2)
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_redis_that_was_emptied_is_told_again_when_to_look(any_env: Env) -> None:
    env = any_env
    made = make(create(env), 3)
    env.work()
    env.redis.flushall()
    env.advance(30 * SECOND)
    env.recover()
    env.advance(30 * SECOND)
    env.dispatch()
    env.work()
    assert statuses(*made) == ["succeeded"] * 3


@pytest.mark.every_database
@pytest.mark.parametrize("everything", [True, False])
def test_nothing_starts_while_it_is_frozen_and_the_pass_after_that_gives_places(any_env: Env, everything: bool) -> None:
    env = any_env
    made = make(create(env), 3)
    env.work()
    env.scheduler.freeze(everything=everything)
    env.advance(MINUTE)
    env.dispatch()
    assert granted(made[2]) == [False]
    env.scheduler.thaw(everything=everything)
    env.recover()
    env.work()
    assert statuses(*made) == ["succeeded"] * 3
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_one_link_looks_for_all_who_wait_in_line(any_env: Env) -> None:
    """Each retried run has its own link. Without this, all links would look at each start that leaves the window."""
    env = any_env
    made = make(create(env, rate="9/min", retry=RetryPolicy(1, base=SECOND, jitter=timedelta(0))), 5)
    env.failing = True
    env.work()
    env.failing = False
    env.scheduler.limits.set("api", rate="5/min")
    env.advance(SECOND)
    env.dispatch()
    env.dispatch()
    freed = starts(env)[0] + MINUTE
    assert granted(*made) == [False] * 5
    assert [*env.armed().values()].count(freed.timestamp()) == 1
    env.clock.set(freed)
    env.dispatch()
    env.work()
    assert statuses(*made) == ["succeeded"] * 5


@pytest.mark.every_database
def test_start_that_leaves_the_window_between_a_links_grant_and_its_look_ahead_is_not_forgotten(any_env: Env) -> None:
    """The link was armed before the preceding run started, so it comes a moment too early."""
    env = any_env
    made = make(create(env, rate="1/min"), 2)
    env.advance(MICROSECOND)
    env.claim(made[0])
    env.advance(MINUTE - MICROSECOND)

    def leave(_c: object, _u: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT count(*)") and limit_starts.name in statement:
            env.clock.set(starts_at + MINUTE)

    (starts_at,) = starts(env)
    sa.event.listen(env.runtime.database.engine, "after_cursor_execute", leave)
    env.dispatch()
    assert granted(made[1]) == [False]
    sa.event.remove(env.runtime.database.engine, "after_cursor_execute", leave)

    env.advance(SECOND)
    env.dispatch()
    assert granted(made[1]) == [True]


@pytest.mark.every_database
def test_start_within_goes_on_counting(any_env: Env) -> None:
    env = any_env
    made = make(create(env, start_within="30s"), 3)
    env.work()
    env.advance(30 * SECOND)
    env.recover()
    assert made[2].refresh().state.shown_status == "expired"


@pytest.mark.every_database
def test_first_in_line_that_is_cancelled_lets_the_next_follow_in_time(any_env: Env) -> None:
    env = any_env
    made = make(create(env), 4)
    env.work()
    made[2].cancel()
    env.advance(MINUTE)
    env.dispatch()
    assert granted(made[3]) == [True]


@pytest.mark.every_database
def test_rate_is_the_groups_when_it_is_made_again(any_env: Env) -> None:
    env = any_env
    create(env).trigger()
    env.work()
    env.scheduler.get("a").delete()
    env.recover()
    assert describe(env) == (None, "2/min", 1), "its start counts still"
    again = make(create(env, "b"), 2)
    assert granted(*again) == [True, False]
    env.work()
    again[1].cancel()
    env.scheduler.get("b").delete()
    env.advance(3 * MINUTE)
    env.recover()
    assert (env.scheduler.limits.list().items, starts(env)) == ([], [])


@pytest.mark.every_database
def test_claim_of_a_process_whose_clock_is_behind_starts_no_earlier_than_its_place(any_env: Env) -> None:
    env = any_env
    made = make(create(env, rate="1/min"), 2)
    env.claim(made[0])
    env.advance(MINUTE)
    env.dispatch()
    behind = ManualClock(env.clock.now() - 30 * SECOND)
    with Scheduler(settings=env.scheduler.settings, clock=behind, workflows=env.registry) as other:
        assert claim_run(other.runtime, job_id(made[1].refresh().state)) is not None
    assert made[1].refresh().state.started_at == env.clock.now()
    check_invariants(env.runtime)


@pytest.mark.postgres
@pytest.mark.parametrize(("rate", "is_looked"), [("2/min", False), ("10001/min", True)])
def test_end_frees_nothing_of_a_rate_and_looks_at_no_line(postgres_env: Env, rate: str, is_looked: bool) -> None:
    """Above 10 000 an end may look: no more runs hold a place at once, and a claim leaves the rest to the next look."""
    env = postgres_env
    first, *_ = make(create(env, rate=rate), 3)

    with statements(env.runtime) as found:
        env.execute(first)

    assert first.refresh().status == "succeeded"
    after_the_end = found[found.index("WITH") + 1 :]
    assert ("SELECT" in after_the_end) is is_looked


@pytest.mark.postgres
def test_what_starts_between_two_looks_of_a_grant_is_counted(postgres_env: Env) -> None:
    """The grant reads granted runs before starts. In the other order, a run claimed between the two reads is missed."""
    env = postgres_env
    made = make(create(env, rate="1/min"), 2)
    looks = 0

    def claim_between(word: str) -> None:
        nonlocal looks
        looks += word == "SELECT"
        if looks == 3:  # the group's row and its taken places are read; its starts are next
            looks += 100
            with other.begin() as connection:
                connection.execute(sa.update(runs).where(runs.c.uid == made[0].uid).values(status="running"))
                row = {"limit_group": GROUP, "started_at": env.clock.now(), "uid": made[0].uid}
                connection.execute(sa.insert(limit_starts).values(row))

    other = sa.create_engine(env.runtime.database.url)
    with statements(env.runtime, claim_between):
        env.runtime.database.transact(lambda connection: groups.grant(connection, [GROUP], env.clock.now))
    other.dispose()

    assert looks > 100
    assert granted(made[1]) == [False]


@pytest.mark.postgres
def test_who_waits_behind_one_that_is_claimed_just_now_is_looked_at_in_time(postgres_env: Env) -> None:
    env = postgres_env
    made = make(create(env, rate="1/h"), 2)
    env.advance(40 * SECOND)
    env.redis.flushall()
    other = sa.create_engine(env.runtime.database.url)
    with other.begin() as connection:
        connection.execute(sa.select(runs.c.uid).where(runs.c.uid == made[0].uid).with_for_update())
        grant(env.runtime, [GROUP])
    other.dispose()
    assert granted(*made) == [True, False]
    env.claim(made[0])
    env.advance(HOUR)
    env.dispatch()
    assert granted(made[1]) == [True]


@pytest.mark.every_database
def test_run_that_is_retried_without_its_group_starts_and_counts_nowhere(any_env: Env) -> None:
    env = any_env
    schedule = create(env, retry=RetryPolicy(0))
    env.failing = True
    (run,) = make(schedule, 1)
    env.work()
    env.failing = False
    schedule.update(limit=None, limit_rate=None)
    run.retry()
    env.work()
    assert (run.refresh().status, len(starts(env))) == ("succeeded", 1)


@pytest.mark.every_database
def test_targets_that_are_tried_again_without_their_group_start_and_count_nowhere(any_env: Env) -> None:
    env = any_env
    is_broken = True

    def shop(_: str) -> None:
        if is_broken:
            raise ValueError

    env.register("shop", shop, targets="names")
    env.register("names", lambda: ["a"])
    schedule = create(env, workflow="shop", rate="9/min")
    (run,) = make(schedule, 1)
    env.work()
    assert (run.refresh().status, len(starts(env))) == ("failed", 2)
    is_broken = False
    schedule.update(limit=None, limit_rate=None)
    run.retry()
    env.work()
    assert (run.refresh().status, len(starts(env))) == ("succeeded", 2)


@pytest.mark.every_database
def test_another_rate_is_refused_and_nothing_is_written(any_env: Env) -> None:
    env = any_env
    create(env, rate="60/60s", limit_running=3)
    with pytest.raises(LimitConflictError, match=r"3 may run at once and 60 may start in any minute; given is: 50 may"):
        create(env, "b", rate="50/min")
    assert env.scheduler.count() == 1
    create(env, "b", rate="60/minute")
    joined = create(env, "c", rate=None)
    with pytest.raises(LimitConflictError):
        joined.update(limit_rate="1/s")
    assert joined.refresh().state.policies.limit_rate is None
    with pytest.raises(LimitConflictError, match="give limit_running, limit_rate or both"):
        create(env, "d", rate=None, limit="new")


@pytest.mark.parametrize(
    "rate",
    ["", "5", "0/min", "5/", "/min", "5/year", "5/0s", "5/1500ms", "100001/s", "5/32d", "-5/s", "\u0665/s", 5, True],
)
def test_what_is_no_rate_is_refused(env: Env, rate: Any) -> None:
    with pytest.raises(InvalidPolicyError, match="limit_rate"):
        create(env, rate=rate)
    assert env.scheduler.count() == 0
    create(env)
    with pytest.raises(InvalidPolicyError, match="rate"):
        env.scheduler.limits.set("api", rate=rate)


def test_rate_without_a_group_and_what_says_two_things_are_refused(env: Env) -> None:
    with pytest.raises(InvalidPolicyError, match="is the rate of a group; name the group with limit"):
        env.create(limit_rate="1/s")
    create(env)
    for given, told in (
        ({}, "give one of them"),
        ({"rate": "1/s", "unset": ["rate"]}, "say one of both"),
        ({"unset": ["name"]}, "must be 'number' or 'rate', not 'name'"),
    ):
        with pytest.raises(InvalidInputError, match=told):
            env.scheduler.limits.set("api", **given)


@pytest.mark.every_database
def test_row_of_a_group_that_is_gone_is_made_again_with_its_rate(any_env: Env) -> None:
    env = any_env
    create(env)
    env.runtime.database.transact(lambda connection: connection.execute(sa.delete(limits)))
    (run,) = make(env.scheduler.get("a"), 1)
    env.recover()
    assert describe(env)[:2] == (None, "2/min")
    env.work()
    assert run.refresh().status == "succeeded"


@pytest.mark.every_database
def test_claim_without_a_rate_writes_no_start(any_env: Env) -> None:
    env = any_env
    make(create(env, rate=None, limit_running=5), 2)
    seen: list[str] = []
    with statements(env.runtime, seen.append):
        env.work()
    assert (seen.count("INSERT"), starts(env)) == (0, [])


@pytest.mark.every_database
def test_targets_are_starts_too(any_env: Env) -> None:
    env = any_env
    handled: list[datetime] = []
    env.register("shop", lambda _: handled.append(env.clock.now()), targets="names")
    env.register("names", lambda: list("abcd"))
    (run,) = make(create(env, workflow="shop", rate="2/min"), 1)
    for _ in range(6):
        env.work()
        env.advance(30 * SECOND)
        env.dispatch()
    assert run.refresh().status == "succeeded"
    assert handled == [NOON, NOON + MINUTE, NOON + MINUTE, NOON + 2 * MINUTE]
    check_invariants(env.runtime)


@pytest.mark.postgres
def test_process_that_dies_in_a_claim_leaves_a_start_with_its_row_or_neither(postgres_env: Env) -> None:
    env = postgres_env
    (run,) = make(create(env, rate="1/min"), 1)

    class Died(BaseException):
        """The process is killed."""

    def die(word: str) -> None:
        if word == "INSERT":
            raise Died

    with pytest.raises(Died), statements(env.runtime, die):
        claim_run(env.runtime, job_id(run.state))
    assert (run.refresh().status, starts(env)) == ("pending", [])
    env.work()
    assert (run.refresh().status, starts(env)) == ("succeeded", [env.clock.now()])


@pytest.mark.every_database
def test_link_does_not_come_again_where_only_a_queue_without_workers_waits(any_env: Env) -> None:
    """The rate lets the run start, but a pass gives its queue one place at a time. A link would return endlessly."""
    env = any_env
    schedule = create(env, queue="nobody")
    made = make(schedule, 4)
    env.advance(GRANT_LIFE)
    env.recover()
    assert granted(*made) == [False, False, True, False], "the first two places were passed over; one place is tried"

    [fired] = fire(env.runtime, [str(RetryLinkId(schedule.uid, made[3].number, 0))])
    assert (granted(made[3]), fired.again_at) == ([False], None)


def test_a_tick_at_a_given_time_counts_starts_in_real_time(env: Env) -> None:
    """A tick for tomorrow must neither forget today's starts nor date a grant tomorrow, which would keep a place."""
    schedule = create(env, rate="2/h")
    for run in make(schedule, 2):
        env.claim(run)
    before = starts(env)
    assert len(before) == 2

    env.scheduler.tick(now=env.clock.now() + timedelta(days=2))

    assert starts(env) == before
    waiting = [run.state.granted_at for run in schedule.runs().items if run.state.status == "pending"]
    assert waiting == [None]
