"""Runs: which process may execute an attempt, the workflow's view of its run, and the stored result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from rq import Retry
from rq.job import JobStatus

from rqsched import current_run
from rqsched.kernel.chain import execution
from rqsched.kernel.chain.attempt import Claim
from rqsched.kernel.chain.execution import MAX_RESULT, claim_run
from rqsched.kernel.chain.ownership import UnknownJobError
from rqsched.kernel.decide.ids import RunJobId
from tests.support.env import MINUTE, Env, MakeEnv, job_id, run_job_id, run_target
from tests.support.narrow import present


def test_a_claimed_run_runs_under_a_token_of_this_process(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())

    claim = claim_run(any_env.runtime, job_id(run.state))

    row = any_env.run_row(run.uid)
    assert isinstance(claim, Claim)
    assert (row.status, row.token, row.started_at) == ("running", claim.token, any_env.clock.now())
    assert row.worker


def test_only_one_of_two_deliveries_gets_the_run(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())

    claims = [claim_run(any_env.runtime, job_id(run.state)) for _ in range(2)]

    assert [claim is None for claim in claims] == [False, True]


@pytest.mark.parametrize(
    "stale", [{"delivery": 2}, {"attempt": 2}, {"attempt": 9, "delivery": 9}], ids=["delivery", "attempt", "both"]
)
def test_a_delivery_of_another_number_gets_nothing(env: Env, stale: dict[str, int]) -> None:
    run = env.fire_next(env.create())

    assert claim_run(env.runtime, job_id(run.state, **stale)) is None

    assert env.run_row(run.uid).status == "pending"


def test_a_stale_delivery_performed_by_rq_executes_nothing(env: Env) -> None:
    schedule = env.create()
    run = env.run_next(schedule)
    assert len(env.calls) == 1

    env.transport.deliver([run.state], now=env.clock.now())
    env.work()

    assert len(env.calls) == 1
    assert run.refresh().status == "succeeded"


def test_a_delivery_of_an_unknown_run_is_an_error_and_executes_nothing(env: Env) -> None:
    run = env.fire_next(env.create())

    with pytest.raises(UnknownJobError):
        execution.execute(env.runtime, RunJobId(env.state(env.scheduler.get("report")).uid, 1, 1))

    assert run.refresh().status == "pending"


def test_a_workflow_gets_its_arguments_as_they_were_declared(any_env: Env) -> None:
    schedule = any_env.create(args=["eu", {"deep": [1, None, 2.5]}], kwargs={"dry_run": True, "näme": "ü"})

    any_env.run_next(schedule)

    assert any_env.calls == [(("eu", {"deep": [1, None, 2.5]}), {"dry_run": True, "näme": "ü"})]


def test_a_run_keeps_the_arguments_of_the_schedule_at_its_fire(env: Env) -> None:
    schedule = env.create(args=["old"])
    env.fire_next(schedule)
    schedule.update(args=["new"])

    env.work()

    assert env.calls == [(("old",), {})]


def test_current_run_says_which_occurrence_is_executed(env: Env) -> None:
    seen: list[Any] = []
    env.register("look", lambda region: seen.append((region, current_run())))
    schedule = env.create(
        workflow="look",
        spec="*/5 * * * *",
        timeout=90,
        kwargs={"region": "eu"},
        labels={"team": "billing"},
        memo={"ticket": 7},
        search_attributes={"tier": "gold"},
    )
    nominal = schedule.next_run_at

    run = env.run_next(schedule, timedelta(minutes=5, seconds=20))

    ((_, context),) = seen
    assert (context.uid, context.instance_id) == (run.uid, f"schedule:report:{nominal:%Y-%m-%dT%H:%M:%SZ}")
    assert (context.schedule_id, context.schedule_uid, context.namespace) == ("report", schedule.uid, "default")
    assert (context.workflow, context.kind, context.status) == ("look", "scheduled", "running")
    assert (context.occurrence_at, context.scheduled_at) == (nominal, nominal)
    assert (context.attempt, context.trigger_number, context.error) == (1, 1, None)
    assert context.started_at == env.clock.now()
    assert context.deadline_at == env.clock.now() + timedelta(seconds=90)
    assert (context.payload, context.labels) == ({"region": "eu"}, {"team": "billing"})
    assert (context.memo, context.search_attributes) == ({"ticket": 7}, {"tier": "gold"})


def test_current_run_is_gone_after_the_run(env: Env) -> None:
    run_target(env, lambda: current_run().uid)

    with pytest.raises(LookupError, match="inside a workflow"):
        current_run()


def test_a_manual_run_names_its_kind_and_moment(env: Env) -> None:
    seen: list[Any] = []
    env.register("look", lambda: seen.append(current_run()))
    schedule = env.create(workflow="look")
    env.advance(timedelta(seconds=7))

    schedule.trigger()
    env.work()

    assert (seen[0].kind, seen[0].occurrence_at) == ("manual", env.clock.now())


async def awaits() -> str:
    await asyncio.sleep(0)
    return current_run().schedule_id


class Report:
    def run(self) -> str:
        return f"by {type(self).__name__}"


@pytest.mark.parametrize(
    ("target", "result"),
    [(lambda: {"rows": 3}, {"rows": 3}), (awaits, "report"), (Report, "by Report"), (lambda: None, None)],
    ids=["function", "async def", "class with run", "nothing"],
)
def test_what_a_workflow_returns_is_the_runs_result(any_env: Env, target: Callable[..., Any], result: Any) -> None:
    run = run_target(any_env, target)

    assert (run.status, run.result, run.ended_at) == ("succeeded", result, any_env.clock.now())
    assert any_env.state(any_env.scheduler.get("report")).success_count == 1


def test_a_workflow_named_by_its_dotted_path_is_imported(env: Env) -> None:
    run = env.run_next(env.create(workflow="platform.python_implementation"))

    assert run.result


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no comment")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (lambda: {1, 2}, "{1, 2}"),
        (lambda: float("nan"), "nan"),
        (Unspeakable, "<Unspeakable>"),
        (circular, "[[...]]"),
        (lambda: (1, 2), [1, 2]),
        (lambda: object, "<class 'object'>"),
    ],
    ids=["set", "nan", "without a repr", "circular", "tuple", "class"],
)
def test_a_result_that_is_not_json_is_kept_as_its_repr(env: Env, result: Callable[[], Any], kept: object) -> None:
    run = run_target(env, partial(result))

    assert (run.status, run.result) == ("succeeded", kept)


def test_a_result_nested_beyond_json_does_not_fail_its_run(env: Env) -> None:
    assert run_target(env, lambda: nested(100_000)).status == "succeeded"


@pytest.mark.parametrize("text", ["x", '"', "ü"], ids=["plain", "escaped once more when cut", "beyond ASCII"])
def test_a_result_beyond_the_limit_is_cut(env: Env, text: str) -> None:
    run = run_target(env, lambda: text * MAX_RESULT)

    assert run.status == "succeeded"
    assert len(present(run.state.result)) <= MAX_RESULT + 100
    assert run.result.endswith("[cut]")


def test_arguments_and_memo_do_not_go_through_redis_even_where_rq_keeps_results(make_env: MakeEnv) -> None:
    env = make_env(rq_result_ttl=60)
    env.register("secret", len)
    run = env.fire_next(env.create(workflow="secret", args=["s3cret"], memo={"note": "s3cret"}))
    held = [env.redis.dump(key) for key in env.redis.keys("*")]

    env.work()

    held += [env.redis.dump(key) for key in env.redis.keys("*")]
    assert (run.refresh().status, run.result) == ("succeeded", len("s3cret"))
    assert env.job(run_job_id(run)).get_status() == JobStatus.FINISHED, "its job is among what was looked at"
    assert not any(b"s3cret" in present(value) for value in held)


def test_a_workflow_that_returns_an_rq_retry_is_not_performed_again(env: Env) -> None:
    run = run_target(env, lambda: Retry(max=3, interval=0))

    assert run.status == "succeeded"
    assert env.queued() == []


def test_lineage_ties_a_run_to_its_schedule(env: Env) -> None:
    schedule = env.create(spec="*/5 * * * *", timezone="Europe/Berlin")

    run = env.run_next(schedule, 5 * MINUTE)

    assert run.lineage == {
        "schedule_id": "report",
        "schedule_ulid": schedule.uid,
        "cron_expression": "*/5 * * * *",
        "timezone": "Europe/Berlin",
        "overlap_policy": "skip",
        "trigger_number": 1,
        "occurrence_time": "2026-01-15T12:05:00Z",
    }
