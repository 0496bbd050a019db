"""A limit bounds the running runs of a group across schedules. Waiting runs are in line."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every, RetryPolicy
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.errors import InvalidPolicyError, LimitConflictError, LimitNotFoundError
from rqsched.features.external import chain as external_runs
from rqsched.features.limits import store as groups
from rqsched.features.limits.chain import grant
from rqsched.features.limits.decide import GRANT_LIFE
from rqsched.kernel.chain.attempt import Claim
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.settle import settle_run
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store.tables import limits, runs
from tests.support.env import HOUR, MINUTE, NOON, SECOND, Env, block, job_id, newest, retry_link_id, run_job_id
from tests.support.invariants import check_invariants
from tests.support.sql import statements

GROUP = "default/tenant:42"


def create(env: Env, schedule_id: str, number: int | None = 1, **options: Any) -> ScheduleHandle:
    given: dict[str, Any] = {"spec": Every("1h"), "limit": "tenant:{labels.tenant}", "labels": {"tenant": "42"}}
    given |= {} if number is None else {"limit_running": number}
    return env.create(schedule_id, **(given | options))


def rows(env: Env) -> dict[str, int]:
    with env.runtime.database.engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(sa.select(limits.c.limit_group, limits.c.number))}


def end(env: Env, claim: Claim, outcome: AttemptOutcome = AttemptOutcome.SUCCEEDED) -> None:
    settle_run(env.runtime, claim.run.uid, AttemptResult(outcome), fence=lambda run: run.is_held_by(claim.token))


def granted(*made: RunHandle) -> list[bool]:
    return [run.refresh().state.granted_at is not None for run in made]


@pytest.mark.every_database
def test_only_so_many_run_and_the_next_in_line_follows_each_end(any_env: Env) -> None:
    env = any_env
    schedules = [create(env, name) for name in ("a", "b", "c")]
    first, second, third = env.fire_all(*schedules)
    assert env.queued() == [run_job_id(first)]

    claim = env.claim(first)
    assert claim_run(env.runtime, job_id(second.state)) is None
    assert env.queued() == []
    env.recover()
    assert env.queued() == []
    check_invariants(env.runtime)

    end(env, claim)
    assert env.queued() == [run_job_id(second)]
    env.work()
    assert [run.refresh().status for run in (first, second, third)] == ["succeeded"] * 3
    check_invariants(env.runtime)


def test_the_next_in_line_has_its_place_when_subscribers_hear_of_the_end(env: Env) -> None:
    """Subscribers are the application's code: a slow one must not keep a place of a group empty."""
    first, second = env.fire_all(create(env, "a", retry=RetryPolicy(0)), create(env, "b"))
    claim = env.claim(first)
    seen: list[list[bool]] = []
    env.scheduler.on("RunFailed", lambda _: seen.append(granted(second)))

    end(env, claim, AttemptOutcome.FAILED)

    assert seen == [[True]]


@pytest.mark.every_database
def test_groups_are_of_a_label_and_a_namespace(any_env: Env) -> None:
    env = any_env
    mine, yours = create(env, "a"), create(env, "b", labels={"tenant": "43"})
    elsewhere = create(env, "c", namespace="other")
    made = env.fire_all(mine, yours, elsewhere)
    assert granted(*made) == [True, True, True]
    assert rows(env) == {GROUP: 1, "default/tenant:43": 1, "other/tenant:42": 1}


@pytest.mark.every_database
def test_grant_that_nobody_claims_goes_to_the_next_and_the_run_keeps_its_place(any_env: Env) -> None:
    env = any_env
    idle, busy, later = create(env, "a", queue="nobody"), create(env, "b"), create(env, "c")
    first, second, third = env.fire_all(idle, busy, later)
    assert granted(first, second, third) == [True, False, False]

    env.advance(GRANT_LIFE - 2 * SECOND - SECOND)
    env.recover()
    assert granted(first, second, third) == [True, False, False]
    env.advance(2 * SECOND + SECOND)
    assert env.recover().granted == 1
    assert granted(first, second, third) == [False, True, False]
    assert env.queued("nobody") == [run_job_id(first)]

    env.work("nobody")  # its worker has come: the first in line goes before a grant that nobody has claimed
    assert first.refresh().status == "succeeded"
    env.work()
    assert [run.refresh().status for run in (second, third)] == ["succeeded"] * 2
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_queue_without_workers_keeps_its_group_waiting_once_however_many_wait_for_it(any_env: Env) -> None:
    env = any_env
    unserved = [create(env, f"u{at}", queue="nobody", limit_running=2) for at in range(6)]
    served = [create(env, f"s{at}", limit_running=2) for at in range(4)]
    first, others = (made := env.fire_all(*unserved, *served))[:6], made[6:]
    assert granted(*made) == [True, True] + [False] * 8

    env.advance(GRANT_LIFE)
    env.recover()
    assert granted(*made) == [False] * 6 + [True, True, False, False], "later ones go before the rest of that queue"
    env.work()
    assert [run.refresh().status for run in others] == ["succeeded"] * 4
    assert granted(*first) == [False, False, True, False, False, False], "nobody else waits; one place is tried"
    assert granted(env.fire_next(create(env, "more", limit_running=2), HOUR)) == [True], "the other one is free"

    env.work("nobody")  # its worker has come
    env.work()
    env.work("nobody")
    assert [run.refresh().status for run in first] == ["succeeded"] * 6
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_run_of_a_busy_queue_is_not_passed_over_for_ever_by_a_group_that_is_always_full(any_env: Env) -> None:
    env = any_env
    slow, quick = create(env, "slow", queue="busy"), [create(env, f"q{at}") for at in range(4)]
    first, *others = env.fire_all(slow, *quick)
    comes_after, held, rounds = 3 * GRANT_LIFE, list[Claim](), 0

    while first.refresh().state.granted_at is not None and others:
        env.advance(comes_after)  # the worker of its queue is busy for as long
        env.recover()
        if first.refresh().state.granted_at is not None:
            break
        held.append(env.claim(others.pop(0)))
        env.work("busy")
        assert (first.refresh().status, first.state.is_in_line) == ("pending", True), "its group is full"
        end(env, held.pop())
        rounds += 1

    env.work("busy")
    assert first.refresh().status == "succeeded"
    assert (rounds, first.state.passed_count) == (2, 2), "its place was kept for 30, 60 and 120 seconds"
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_run_that_was_passed_over_is_given_back_while_others_run(any_env: Env) -> None:
    env = any_env
    first, second = env.fire_all(create(env, "a", queue="nobody"), create(env, "b"))
    env.advance(GRANT_LIFE)
    env.recover()
    claim = env.claim(second)

    env.work("nobody")

    back = first.refresh().state
    assert (back.status, back.attempt, back.delivery, back.is_in_line) == ("pending", 1, 2, True)
    assert env.queued("nobody") == []
    end(env, claim)
    assert env.queued("nobody") == [run_job_id(first)]
    env.work("nobody")
    assert first.refresh().status == "succeeded"
    check_invariants(env.runtime)


@pytest.mark.every_database
@pytest.mark.parametrize("ended", ["cancel", "terminate"])
def test_place_is_free_when_a_run_is_stopped(any_env: Env, ended: str) -> None:
    first, second = any_env.fire_all(create(any_env, "a"), create(any_env, "b"))
    any_env.claim(first)
    getattr(first, ended)()
    assert granted(second) == [True]
    assert any_env.queued() == [run_job_id(second)]


def test_run_in_line_that_is_cancelled_gives_nobody_a_place(env: Env) -> None:
    first, second, third = env.fire_all(*(create(env, name) for name in "abc"))
    second.cancel()
    assert granted(third) == [False]
    env.work()
    assert [run.refresh().status for run in (first, second, third)] == ["succeeded", "cancelled", "succeeded"]


@pytest.mark.every_database
def test_place_of_a_lost_run_is_free_at_the_verdict(any_env: Env) -> None:
    env = any_env
    first, second = env.fire_all(create(env, "a", retry=RetryPolicy(0)), create(env, "b"))
    env.claim(first)
    for _ in range(5):
        assert granted(second) == [False]
        env.advance(MINUTE)
        env.recover()
        if first.refresh().status == "lost":
            break
    assert (first.status, granted(second)) == ("lost", [True])


@pytest.mark.every_database
def test_retrying_run_holds_no_place_and_comes_back_where_it_was_in_line(any_env: Env) -> None:
    env = any_env
    env.failing = True
    retried, other, last = (create(env, name, retry=RetryPolicy(3, base=MINUTE)) for name in "abc")
    (first,) = env.fire_all(retried)
    claim_of_first = env.claim(first)
    second, third = env.fire_next(other), env.fire_next(last)
    assert granted(first, second, third) == [True, False, False]
    end(env, claim_of_first, AttemptOutcome.FAILED)
    assert first.refresh().status == "retrying"
    assert granted(second, third) == [True, False]
    claim = env.claim(second)
    env.advance(MINUTE)
    env.deliver(retry_link_id(first))
    assert granted(first, third) == [False, False]
    end(env, claim)
    assert granted(first, third) == [True, False]


@pytest.mark.every_database
def test_blocked_run_holds_no_place(any_env: Env) -> None:
    env = any_env
    first, second = env.fire_all(create(env, "a"), create(env, "b"))
    block(env.runtime, first)
    assert granted(first, second) == [False, True]
    env.recover()
    assert granted(first) == [False]
    env.work()
    env.advance(MINUTE)
    env.deliver(retry_link_id(first))
    env.work()
    assert [run.refresh().status for run in (first, second)] == ["succeeded"] * 2
    check_invariants(env.runtime)


@pytest.mark.every_database
def test_start_within_goes_on_counting_in_line(any_env: Env) -> None:
    env = any_env
    first, second, third = env.fire_all(
        create(env, "a"), create(env, "b", start_within=timedelta(minutes=10)), create(env, "c")
    )
    claim = env.claim(first)
    env.advance(timedelta(minutes=10))
    env.recover()
    assert second.refresh().state.shown_status == "expired"
    end(env, claim)
    assert granted(third) == [True]


@pytest.mark.every_database
def test_external_worker_gets_only_so_many(any_env: Env) -> None:
    env = any_env
    options: dict[str, Any] = {"executor": "external", "queue": "outside"}
    first, second = env.fire_all(create(env, "a", **options), create(env, "b", **options))

    def fetch() -> list[str]:
        found = external_runs.claim(env.runtime, ["outside"], "w", namespace="default", count=5)
        return [one.run.uid for one in found]

    assert fetch() == [first.uid]
    assert fetch() == []
    first.cancel()
    env.advance(GRANT_LIFE)
    third = env.fire_all(create(env, "c"))[0]
    assert granted(second, third) == [False, True]  # nobody fetched it
    held = env.claim(third)
    assert fetch() == []
    assert second.refresh().state.is_in_line
    end(env, held)
    assert fetch() == [second.uid]
    check_invariants(env.runtime)


@pytest.mark.every_database
@pytest.mark.parametrize("kind", ["manual", "backfill"])
def test_runs_on_request_are_in_line_too(any_env: Env, kind: str) -> None:
    env = any_env
    schedule = create(env, "a", overlap="allow_all")
    env.advance(HOUR + MINUTE)
    if kind == "manual":
        made = [present_run(schedule), present_run(schedule)]
    else:
        schedule.backfill(NOON - HOUR - MINUTE, NOON + MINUTE)
        made = sorted(schedule.runs().items, key=lambda run: run.number)
        assert len(made) == 2, [run.occurrence_at for run in made]
    assert len(made) == 2
    assert granted(*made) == [True, False]
    env.work()
    assert [run.refresh().status for run in made] == ["succeeded"] * 2


def present_run(schedule: ScheduleHandle) -> RunHandle:
    run = schedule.trigger().run
    assert run is not None
    return run


def test_overlap_sees_a_run_in_line_as_unfinished(env: Env) -> None:
    first = create(env, "a")
    second = create(env, "b")
    env.fire_all(first, second)
    env.claim(newest(first))
    assert second.trigger().outcome == "skipped"


@pytest.mark.every_database
def test_number_that_is_lowered_ends_nothing_and_lets_nobody_else_start(any_env: Env) -> None:
    env = any_env
    made = env.fire_all(*(create(env, name, 3) for name in "abcd"))
    claims = [env.claim(run) for run in made[:2]]
    assert granted(*made) == [True, True, True, False]

    env.scheduler.limits.set("tenant:42", 1)

    assert [run.refresh().status for run in made] == ["running", "running", "pending", "pending"]
    assert granted(*made) == [True, True, False, False]
    env.work()  # the job of the third asks, and is given back
    assert made[2].refresh().state.is_in_line
    end(env, claims[0])
    assert granted(*made[2:]) == [False, False]
    end(env, claims[1])
    assert granted(*made[2:]) == [True, False]
    env.work()
    assert [run.refresh().status for run in made] == ["succeeded"] * 4


@pytest.mark.every_database
def test_number_that_is_raised_lets_more_start_at_once(any_env: Env) -> None:
    made = any_env.fire_all(*(create(any_env, name) for name in "abc"))
    any_env.scheduler.limits.set("tenant:42", 2)
    assert granted(*made) == [True, True, False]
    assert any_env.queued() == [run_job_id(run) for run in made[:2]]


@pytest.mark.every_database
def test_another_number_is_refused_and_nothing_is_written(any_env: Env) -> None:
    env = any_env
    create(env, "a", 5)
    with pytest.raises(LimitConflictError, match="5 may run at once; given is: 4 may run at once"):
        create(env, "b", 4)
    assert env.scheduler.count() == 1
    joined = create(env, "b", None)
    with pytest.raises(LimitConflictError):
        joined.update(limit_running=4)
    assert joined.refresh().state.policies.limit_running is None
    env.scheduler.limits.set("tenant:42", 9)
    env.scheduler.get("a").update(overlap="allow_all")  # an update without bounds keeps the declared ones
    create(env, "c", 9)


def test_first_schedule_of_a_group_gives_its_number(env: Env) -> None:
    with pytest.raises(LimitConflictError, match="give limit_running"):
        create(env, "a", None)
    assert (env.scheduler.count(), rows(env)) == (0, {})


def test_label_that_is_missing_is_refused_at_creation_and_at_a_change(env: Env) -> None:
    with pytest.raises(InvalidPolicyError, match="label 'tenant'"):
        create(env, "a", labels={})
    schedule = create(env, "a")
    with pytest.raises(InvalidPolicyError, match="label 'tenant'"):
        schedule.update(labels={"team": "x"})
    with pytest.raises(InvalidPolicyError, match="label 'tenant'"):
        env.create("b", limit="{labels.tenant}", limit_running=1)
    assert schedule.refresh().labels == {"tenant": "42"}


@pytest.mark.parametrize("limit", ["", "..", "a b", "{tenant}", "{labels.}", "{labels.a", "a}", "x" * 256, 5, "a\nb"])
def test_what_is_no_template_is_refused(env: Env, limit: Any) -> None:
    with pytest.raises(InvalidPolicyError, match="limit"):
        env.create(limit=limit, limit_running=1)
    assert env.scheduler.count() == 0


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "5", 10_001])
def test_what_is_no_number_is_refused(env: Env, number: Any) -> None:
    with pytest.raises(InvalidPolicyError, match="limit_running"):
        env.create(limit="a", limit_running=number)
    create(env, "a")
    with pytest.raises(Exception, match="number"):
        env.scheduler.limits.set("tenant:42", number)


def test_number_without_a_group_is_refused(env: Env) -> None:
    with pytest.raises(InvalidPolicyError, match="name the group with limit"):
        env.create(limit_running=1)
    assert env.scheduler.count() == 0


def test_upsert_whose_labels_lack_what_the_template_names_is_refused(env: Env) -> None:
    schedule = create(env, "a", labels={"tenant": "42", "team": "x"})
    with pytest.raises(InvalidPolicyError, match="label 'tenant'"):
        env.scheduler.upsert("a", "note", Every("1h"), limit="{labels.tenant}", limit_running=1)
    assert schedule.refresh().state.limit_group == GROUP


@pytest.mark.every_database
def test_runs_that_were_made_keep_their_group_when_the_label_changes(any_env: Env) -> None:
    env = any_env
    schedule = create(env, "a", overlap="allow_all")
    (old,) = env.fire_all(schedule)
    schedule.update(labels={"tenant": "7"})
    new = env.fire_next(schedule, HOUR)
    assert [run.refresh().state.limit_group for run in (old, new)] == [GROUP, "default/tenant:7"]
    assert granted(old, new) == [True, True]


@pytest.mark.every_database
def test_group_that_nobody_needs_is_removed(any_env: Env) -> None:
    env = any_env
    schedule = create(env, "a")
    (run,) = env.fire_all(schedule)
    schedule.update(limit=None, limit_running=None)
    env.recover()
    assert rows(env) == {GROUP: 1}
    env.work()
    assert run.refresh().status == "succeeded"
    env.recover()
    assert rows(env) == {}


@pytest.mark.every_database
def test_row_of_a_group_that_is_gone_is_made_again(any_env: Env) -> None:
    env = any_env
    first, second, third = env.fire_all(*(create(env, name, 2) for name in "abc"))
    env.runtime.database.transact(lambda connection: connection.execute(sa.delete(limits)))
    claims = [env.claim(first), env.claim(second)]
    end(env, claims[0])
    assert granted(third) == [False]
    env.recover()
    assert (rows(env), granted(third)) == ({GROUP: 2}, [True])


@pytest.mark.every_database
def test_while_everything_is_frozen_no_place_is_given(any_env: Env) -> None:
    env = any_env
    first, second = env.fire_all(create(env, "a"), create(env, "b"))
    env.scheduler.freeze("restoring", everything=True)
    first.cancel()
    env.advance(2 * GRANT_LIFE)
    env.recover()
    assert granted(second) == [False]
    env.scheduler.thaw(everything=True)
    env.recover()
    assert granted(second) == [True]
    env.work()
    assert second.refresh().status == "succeeded"


@pytest.mark.every_database
def test_frozen_namespace_gives_no_place(any_env: Env) -> None:
    env = any_env
    first, second = env.fire_all(create(env, "a"), create(env, "b"))
    env.scheduler.freeze()
    env.advance(2 * GRANT_LIFE)
    env.recover()
    first.cancel()
    assert granted(second) == [False]
    env.scheduler.thaw()
    env.recover()
    assert granted(second) == [True]


@pytest.mark.every_database
def test_redis_that_was_lost_gets_the_jobs_of_those_who_have_a_place(any_env: Env) -> None:
    env = any_env
    made = env.fire_all(*(create(env, name, 2) for name in "abc"))
    env.redis.flushall()
    env.advance(SECOND)
    env.recover()
    assert [run.refresh().state.delivery for run in made] == [2, 2, 1]
    assert env.queued() == [run_job_id(run) for run in made[:2]]
    env.work()
    assert [run.refresh().status for run in made] == ["succeeded"] * 3
    check_invariants(env.runtime)


def test_run_that_was_passed_over_is_delivered_again_when_its_job_is_lost(env: Env) -> None:
    first, second = env.fire_all(create(env, "a", queue="nobody"), create(env, "b"))
    env.advance(GRANT_LIFE)
    env.recover()
    assert granted(first, second) == [False, True]
    env.redis.flushall()
    env.advance(MINUTE)
    env.recover()
    assert env.queued("nobody") == [run_job_id(first.refresh())]


@pytest.mark.every_database
def test_what_runs_although_nobody_granted_it_counts(any_env: Env) -> None:
    env = any_env
    first, second = env.fire_all(create(env, "a"), create(env, "b"))
    old = sa.update(runs).where(runs.c.uid == first.uid).values(status="running", granted_at=None)
    env.runtime.database.transact(lambda connection: connection.execute(old))
    assert grant(env.runtime, [GROUP]) == 0
    assert granted(second) == [False]


@pytest.mark.every_database
def test_groups_are_listed_with_who_runs_and_who_waits(any_env: Env) -> None:
    env = any_env
    first, *_ = env.fire_all(*(create(env, name, 2) for name in "abcd"))
    create(env, "other", labels={"tenant": "7"})
    env.claim(first)

    (mine, other) = env.scheduler.limits.list().items

    assert mine.to_dict() == {
        "namespace": "default", "name": "tenant:42", "number": 2, "running": 1, "starting": 1, "waiting": 2,
        "rate": None, "started": None, "waiting_since": "2026-01-15T13:00:03Z", "changes": [],
    }  # fmt: skip
    assert (other.name, other.running, other.waiting, other.waiting_since) == ("tenant:7", 0, 0, None)
    page = env.scheduler.limits.list(limit=1)
    assert [one.name for one in env.scheduler.limits.list(limit=1, cursor=page.next_cursor).items] == ["tenant:7"]
    assert [one.name for one in env.scheduler.limits.iter()] == ["tenant:42", "tenant:7"]
    with pytest.raises(LimitNotFoundError):
        env.scheduler.limits.set("tenant:1", 5)
    with pytest.raises(LimitNotFoundError):
        env.scheduler.limits.set("tenant:42", 5, namespace="other")


def test_what_is_claimed_while_a_grant_counts_is_counted_once(postgres_env: Env) -> None:
    """One statement reads granted and running runs. Two statements could miss a run that is claimed between them."""
    env = postgres_env
    first, second = env.fire_all(create(env, "a"), create(env, "b"))

    def claim_between(word: str) -> None:
        if word == "SELECT":
            with other.begin() as connection:
                connection.execute(sa.update(runs).where(runs.c.uid == first.uid).values(status="running"))

    other = sa.create_engine(env.runtime.database.url)
    with statements(env.runtime, claim_between) as found:
        env.runtime.database.transact(lambda connection: groups.grant(connection, [GROUP], env.clock.now))
    other.dispose()

    assert found == ["SELECT"] * 3, "the row, what is taken, the line"
    assert [run.refresh().status for run in (first, second)] == ["running", "pending"]
    assert granted(second) == [False]
