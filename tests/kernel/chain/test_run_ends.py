"""How runs end beside success and failure: cancelled from outside or inside, given up, or while SQL is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import pytest

from rqsched import current_run
from rqsched.errors import DatabaseUnavailableError, RunCancelled
from rqsched.kernel.chain import execution, settle
from rqsched.kernel.chain.attempt import Claim
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import claims
from rqsched.kernel.store.database import Patience
from tests.support.env import MINUTE, ONCE, Env, MakeEnv, job_id, newest, run_target, statuses
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer


def boom() -> None:
    raise ValueError("the invoice has no number")


def test_a_checkpoint_of_a_live_run_returns(env: Env) -> None:
    def pass_through() -> str:
        current_run().checkpoint()
        return "through"

    assert run_target(env, pass_through).result == "through"


def test_a_cancelled_run_sees_it_at_its_next_checkpoint(any_env: Env) -> None:
    steps: list[str] = []

    def work() -> None:
        steps.append("before")
        newest(any_env.scheduler.get("report")).cancel()
        current_run().checkpoint()
        steps.append("after")

    run = run_target(any_env, work)

    assert steps == ["before"]
    assert (run.status, run.result) == ("cancelled", None)


def test_a_workflow_may_catch_its_cancellation_to_clean_up(env: Env) -> None:
    steps: list[str] = []

    def work() -> None:
        newest(env.scheduler.get("report")).cancel()
        try:
            current_run().checkpoint()
        except RunCancelled as cancelled:
            steps.append(str(cancelled))
            raise

    run = run_target(env, work)

    assert steps == [f"run {run.uid} is cancelled"]
    assert run.status == "cancelled"


@pytest.mark.parametrize("end", [lambda: "late result", boom], ids=["returns", "fails"])
def test_the_result_of_a_cancelled_run_is_not_recorded(any_env: Env, end: Callable[[], Any]) -> None:
    def work() -> Any:
        newest(any_env.scheduler.get("report")).cancel()
        return end()

    run = run_target(any_env, work)

    assert (run.status, run.result, run.error) == ("cancelled", None, None)
    after = any_env.state(any_env.scheduler.get("report"))
    assert (after.success_count, after.error_count) == (0, 0)


def test_a_workflow_may_cancel_its_own_run(env: Env) -> None:
    def work() -> None:
        raise RunCancelled("nothing to do today")

    run = run_target(env, work)

    assert (run.status, run.error) == ("cancelled", "nothing to do today")


def test_a_run_settled_as_lost_stops_at_its_next_checkpoint(env: Env) -> None:
    steps: list[str] = []

    def work() -> None:
        settle.lose_run(env.runtime, job_id(newest(env.scheduler.get("report")).state), "its host vanished")
        steps.append("before")
        current_run().checkpoint()
        steps.append("after")

    run = run_target(env, work)

    assert steps == ["before"]
    assert run.status == "lost"


def test_the_late_end_of_a_lost_attempt_is_not_that_of_the_attempt_in_its_place(any_env: Env) -> None:
    taken: list[Claim] = []

    def work() -> None:
        schedule = any_env.scheduler.get("report")
        settle.lose_run(any_env.runtime, job_id(newest(schedule).state), "its host froze")
        any_env.clock.set(present(newest(schedule).retry_at))
        any_env.dispatch()
        taken.append(present(claim_run(any_env.runtime, job_id(newest(schedule).state))))

    any_env.register("target", work)
    run = any_env.run_next(any_env.create(workflow="target", retry=RetryPolicy(max_retries=1, base=MINUTE)))

    assert (run.status, run.attempt, run.state.token) == ("running", 2, taken[0].token)


def heartbeat_of(env: Env, uid: str) -> int:
    return env.runtime.database.read(lambda connection: claims.read_heartbeat(connection, uid)) or 0


def test_an_executing_run_sends_heartbeats(make_env: MakeEnv, database_url: str) -> None:
    env = make_env(database_url=database_url, heartbeat_interval=0.01)

    run = run_target(env, lambda: wait_until(lambda: heartbeat_of(env, current_run().uid) >= 3))

    assert run.status == "succeeded", run.error


def test_a_checkpoint_sends_a_heartbeat(env: Env) -> None:
    def work() -> int:
        before = heartbeat_of(env, current_run().uid)
        current_run().checkpoint()
        return heartbeat_of(env, current_run().uid) - before

    assert run_target(env, work).result == 1


@contextmanager
def restarter(server: PostgresServer) -> Iterator[Callable[[], None]]:
    """Yield a function that restarts the server in a thread. The server would die with that thread, so it stays."""
    is_over = Event()

    def restart() -> None:
        server.start()
        is_over.wait(60)

    thread = Thread(target=restart)
    try:
        yield thread.start
    finally:
        server.stop()
        is_over.set()
        thread.join()


@pytest.fixture
def fragile(make_env: MakeEnv, own_postgres_url: str) -> Env:
    return make_env(database_url=own_postgres_url, heartbeat_interval=0.05, completion_outage=60)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("target", "status"), [(lambda: "kept", "succeeded"), (boom, "failed")], ids=["success", "failure"]
)
def test_the_end_of_a_run_is_recorded_through_an_outage_of_sql(
    fragile: Env, own_postgres: PostgresServer, target: Callable[[], Any], status: str
) -> None:
    with restarter(own_postgres) as restart:

        def work() -> Any:
            own_postgres.stop()
            restart()
            return target()

        run = run_target(fragile, work)

        assert run.status == status
        assert run.result == ("kept" if status == "succeeded" else None)


@pytest.mark.postgres
def test_a_checkpoint_passes_while_sql_is_away(fragile: Env, own_postgres: PostgresServer) -> None:
    fragile.runtime.database.patience = Patience(total=timedelta(milliseconds=50))

    def work() -> str:
        own_postgres.stop()
        current_run().checkpoint()
        own_postgres.start()
        return "went on"

    run = run_target(fragile, work)

    assert (run.status, run.result) == ("succeeded", "went on")


@pytest.mark.postgres
def test_an_end_that_outlasts_the_patience_is_logged_and_left_to_reconcile(
    make_env: MakeEnv, fragile: Env, own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = fragile.scheduler.settings.database_url
    env = make_env(database_url=url, completion_outage=0.2, clock_check_interval=1)
    schedule = env.create(retry=ONCE)
    run = env.fire_next(schedule)
    claim = env.claim(run)
    own_postgres.stop()
    with pytest.raises(DatabaseUnavailableError):
        execution._complete(env.runtime, claim, AttemptResult(AttemptOutcome.SUCCEEDED))
    own_postgres.start()

    assert "completion_lost" in {getattr(record, "action", None) for record in caplog.records}
    assert statuses(schedule) == ["running"]
    for _ in range(4):
        env.advance(timedelta(seconds=15))
        env.recover()
    assert statuses(schedule) == ["lost"]
