"""Schedules for people who think in code: decorators that register and declare, and `sync` at start-up."""

from __future__ import annotations

from typing import Any

import pytest

from rqsched import Cron, Every, RetryPolicy
from rqsched.errors import InvalidInputError
from rqsched.features.declarations.declarations import Declaration
from rqsched.testing import assert_has_schedule, run_schedule
from rqsched.timing import Timing
from tests.support.env import MINUTE, NOON, Env, newest, statuses


def test_a_decorator_registers_and_declares_and_sync_applies(any_env: Env) -> None:
    scheduler = any_env.scheduler

    @scheduler.cron("0 2 * * *", timezone="America/New_York", queue="high", timeout=60, args=["eu"], note="at night")
    def invoice_sync(region: str) -> str:
        return f"synced {region}"

    @scheduler.every("30m", schedule_id="half-hourly", name="tidy-up", overlap="allow")
    async def tidy() -> str:
        return "tidied"

    @scheduler.declare(Timing().daily_at("00:10").timezone("Europe/Istanbul").environments("production"))
    def check_expiry() -> None: ...

    assert scheduler.list().items == [], "nothing is written before sync"
    assert scheduler.sync().created == ["invoice_sync", "half-hourly", "check_expiry"]
    assert scheduler.sync().unchanged == ["invoice_sync", "half-hourly", "check_expiry"]

    nightly = assert_has_schedule(
        scheduler, "invoice_sync", workflow=invoice_sync, spec=Cron("0 2 * * *", "America/New_York")
    )
    assert (nightly.note, nightly.describe().queue, nightly.describe().timeout) == ("at night", "high", 60)
    assert run_schedule(scheduler, "invoice_sync").result == "synced eu"
    assert_has_schedule(scheduler, "half-hourly", workflow="tidy-up", spec=Every("30m"))
    assert run_schedule(scheduler, "half-hourly").result == "tidied"
    fluent = assert_has_schedule(scheduler, "check_expiry", spec=Cron("10 0 * * *", "Europe/Istanbul"))
    assert fluent.describe().policies["environments"] == ["production"]


def test_the_decorated_function_stays_what_it_is(env: Env) -> None:
    @env.scheduler.every("1m")
    def plain(number: int = 1) -> int:
        return number + 1

    assert plain(4) == 5


def test_an_interval_keeps_its_anchor_over_restarts(any_env: Env) -> None:
    any_env.scheduler.every("10m", schedule_id="beat")(lambda_workflow)
    any_env.scheduler.sync()
    any_env.advance(7 * MINUTE)

    any_env.scheduler.every("10m", schedule_id="beat")(lambda_workflow)
    any_env.scheduler.sync()

    assert any_env.scheduler.get("beat").next_run_at == NOON + 10 * MINUTE


def lambda_workflow() -> None: ...


def test_an_aligned_interval_is_declared_with_an_offset(env: Env) -> None:
    env.scheduler.every("1h", offset="5m", schedule_id="aligned")(lambda_workflow)
    env.scheduler.sync()
    assert env.scheduler.get("aligned").next_run_at == NOON + 5 * MINUTE


def test_a_schedule_may_be_declared_paused(env: Env) -> None:
    env.scheduler.every("1m", schedule_id="sleeping", paused=True)(lambda_workflow)
    env.scheduler.sync()
    assert env.scheduler.get("sleeping").status == "paused"


WRONG: dict[str, dict[str, Any]] = {
    "option": {"colour": "red"},
    "value": {"max_runs": 0},
    "id": {"schedule_id": "no id"},
    "name": {"name": "no name"},
    "note": {"note": 5},
    "queue": {"queue": "no queue"},
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG.keys())
def test_an_invalid_declaration_is_refused_at_the_decorated_function(env: Env, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        env.scheduler.every("1m", **options)(lambda_workflow)
    assert env.scheduler.declarations.all() == []
    assert env.runtime.workflows.get("lambda_workflow") is None


def test_a_decorator_names_the_argument_that_is_meant(env: Env) -> None:
    with pytest.raises(TypeError, match="id: is not an option; did you mean schedule_id"):
        env.scheduler.every("1m", id="hourly")  # type: ignore[call-arg]  # the option's former name


def test_an_invalid_timing_is_refused_at_the_decorated_function(env: Env) -> None:
    with pytest.raises(InvalidInputError):
        env.scheduler.cron("61 * * * *")
    with pytest.raises(InvalidInputError):
        env.scheduler.every("soon")


def test_a_timing_is_accepted_wherever_a_spec_is(any_env: Env) -> None:
    timing = Timing().hourly_at(5).option(queue="high", retry=RetryPolicy(max_retries=0))

    created = any_env.create("created", timing)
    any_env.scheduler.sync([Declaration("synced", "note", timing, {"queue": "low"})])
    updated = any_env.create("updated").update(spec=timing)

    synced = any_env.scheduler.get("synced")
    assert {s.next_run_at for s in (created, updated, synced)} == {NOON + 5 * MINUTE}
    assert [s.describe().queue for s in (created, updated, synced)] == ["high", "high", "low"]


def test_environments_are_judged_where_the_schedule_fires(make_env: Any, sqlite_url: str) -> None:
    envs = {env: make_env(database_url=sqlite_url, environment=env) for env in ("production", "staging")}
    schedule = envs["staging"].create(spec=Timing().every("1m").environments("production"))

    envs["staging"].run_due()
    assert (statuses(schedule), schedule.refresh().last_skip_reason) == ([], "environment")
    envs["production"].run_due()
    assert newest(schedule).status == "succeeded"
