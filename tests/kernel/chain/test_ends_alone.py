"""The end of a run whose schedule is as it was at the claim: one statement on PostgreSQL, and else as ever."""

from __future__ import annotations

import pytest

from tests.support.env import Env, newest, statuses
from tests.support.invariants import check_invariants
from tests.support.sql import silent_database, statements

BESIDES = ("pause", "update", "trigger", "fire", "delete")


@pytest.mark.postgres
def test_run_that_nothing_disturbs_takes_two_statements(postgres_env: Env) -> None:
    schedule = postgres_env.create()
    run = postgres_env.fire_next(schedule)

    with statements(postgres_env.runtime) as found:
        postgres_env.execute(run)

    assert found == ["UPDATE", "WITH"]
    assert statuses(schedule) == ["succeeded"]
    assert postgres_env.state(schedule).success_count == 1


@pytest.mark.parametrize("besides", BESIDES)
def test_what_happens_to_the_schedule_during_a_run_is_kept_and_the_end_counted(any_env: Env, besides: str) -> None:
    def act() -> None:
        if len(seen) == 1:
            return
        seen.append(besides)
        if besides == "fire":
            any_env.fire_next(schedule)
        elif besides == "update":
            schedule.update(note="changed meanwhile")
        else:
            getattr(schedule, besides)()

    seen: list[str] = []
    any_env.register("busy", act)
    schedule = any_env.create(workflow="busy", overlap="buffer_all")
    run = any_env.fire_next(schedule)

    any_env.execute(run)

    state = any_env.state(schedule)
    assert run.refresh().status == "succeeded"
    assert state.success_count == 1
    expected = {"pause": "paused", "delete": "deleted"}.get(besides, "active")
    assert state.status.value == expected
    if besides in {"trigger", "fire"}:
        assert newest(schedule).status == "pending", "what waited is started"
    check_invariants(any_env.runtime)


@pytest.mark.parametrize("end", ["cancel", "terminate"])
def test_the_result_of_a_run_that_was_ended_meanwhile_is_not_recorded(any_env: Env, end: str) -> None:
    def act() -> int:
        getattr(run, end)()
        return 7

    any_env.register("busy", act)
    schedule = any_env.create(workflow="busy")
    run = any_env.fire_next(schedule)

    any_env.execute(run)

    assert (run.refresh().result, any_env.state(schedule).success_count) == (None, 0)
    check_invariants(any_env.runtime)


@pytest.mark.postgres
def test_start_of_a_run_whose_schedule_wants_it_told_is_recorded_with_its_claim(
    postgres_env: Env,
) -> None:
    run = postgres_env.fire_next(postgres_env.create(notifications={"heartbeat": "http://127.0.0.1:9/ping"}))

    claim = postgres_env.claim(run)

    assert len(claim.owed) == 1


@pytest.mark.postgres
def test_end_whose_answer_was_lost_is_found_again_and_told_once(
    postgres_env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    database = silent_database(postgres_env.runtime)
    postgres_env.register("noop", database.lose)
    schedule = postgres_env.create(workflow="noop")
    run = postgres_env.fire_next(schedule)

    with caplog.at_level("INFO", "rqsched.runs"):
        postgres_env.execute(run)

    assert (run.refresh().status, postgres_env.state(schedule).success_count) == ("succeeded", 1)
    ends = [record for record in caplog.records if getattr(record, "action", None) == "run_ended"]
    assert [getattr(record, "outcome", None) for record in ends] == ["succeeded"]
