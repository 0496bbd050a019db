"""The settings' defaults for schedules that set no timezone, retries or notifications themselves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rqsched import Cron, Declaration, Every, RetryPolicy, ScheduleHandle, Spec
from rqsched.errors import UnknownWorkflowError
from rqsched.timing import Timing, When
from rqsched.when.spec import SpecLike
from tests.cli.conftest import cli
from tests.http.conftest import make_web
from tests.support.cli import HELLO, Cli
from tests.support.client import client_of
from tests.support.env import Env, MakeEnv
from tests.support.web import MakeWeb

__all__ = ["cli", "make_web"]

BERLIN = "Europe/Berlin"
HALF, HOUR = timedelta(seconds=30), timedelta(hours=1)
THREE = Cron("0 3 * * *")
PROJECT: dict[str, Any] = {
    "timezone": BERLIN,
    "retry": {"max_retries": 5, "base": "30s"},
    "target_retry": {"max_retries": 2},
    "on_failure": "alert",
    "on_recovery": "calm",
}


@pytest.fixture
def project(make_env: MakeEnv) -> Env:
    """A project with settings of its own for all that its schedules leave open."""
    env = make_env(**PROJECT)
    for name in ("alert", "calm"):
        env.register(name, env._note)
    return env


def zone(schedule: ScheduleHandle) -> str:
    return schedule.describe().timezone


def retries(schedule: ScheduleHandle) -> RetryPolicy:
    return schedule.state.policies.retry


NAMED: dict[str, tuple[SpecLike | When, dict[str, Any], str]] = {
    "a cron expression": (THREE, {}, BERLIN),
    "a text": ("0 3 * * *", {}, BERLIN),
    "several": ([THREE, Cron("0 4 * * *")], {}, BERLIN),
    "a spec": (Spec(THREE), {}, BERLIN),
    "a spec as JSON": ({"cron_expressions": ["0 3 * * *"]}, {}, BERLIN),
    "a timing": (Timing().daily_at("03:00"), {}, BERLIN),
    "the option": (THREE, {"timezone": "Asia/Tokyo"}, "Asia/Tokyo"),
    "the option, UTC": (THREE, {"timezone": "UTC"}, "UTC"),
    "a spec in a zone": (Spec(THREE, "Asia/Tokyo"), {}, "Asia/Tokyo"),
    "a spec in UTC": (Spec(THREE, "UTC"), {}, "UTC"),
    "a spec as JSON in UTC": ({"cron_expressions": ["0 3 * * *"], "timezone": "UTC"}, {}, "UTC"),
    "a cron expression in a zone": (Cron("0 3 * * *", timezone="Asia/Tokyo"), {}, "Asia/Tokyo"),
    "a timing in UTC": (Timing().daily_at("03:00").timezone("UTC"), {}, "UTC"),
}


@pytest.mark.parametrize(("spec", "options", "expected"), NAMED.values(), ids=NAMED.keys())
def test_timezone_is_the_projects_where_the_timing_names_none(
    project: Env, spec: Any, options: dict[str, Any], expected: str
) -> None:
    assert zone(project.create(spec=spec, **options)) == expected


def test_timing_that_names_no_timezone_is_utc_without_a_setting(env: Env) -> None:
    assert [zone(env.create(str(number), spec)) for number, spec in enumerate([THREE, Spec(THREE), Every("1h")])] == [
        "UTC"
    ] * 3


def test_new_timing_of_a_known_schedule_stays_in_its_timezone(project: Env) -> None:
    tokyo = project.create(spec=THREE, timezone="Asia/Tokyo")
    assert zone(tokyo.update(spec=Cron("0 4 * * *"))) == "Asia/Tokyo"
    assert zone(tokyo.update(spec=Spec(Cron("0 5 * * *")))) == BERLIN


RETRIES: dict[str, tuple[dict[str, Any], tuple[int, timedelta | None]]] = {
    "nothing": ({}, (5, HALF)),
    "None": ({"retry": None}, (5, HALF)),
    "one field": ({"retry": {"max_retries": 1}}, (1, HALF)),
    "a field of None": ({"retry": {"max_retries": None, "factor": 3}}, (5, HALF)),
    "a whole policy": ({"retry": RetryPolicy(max_retries=0)}, (0, None)),
}


@pytest.mark.parametrize(("options", "expected"), RETRIES.values(), ids=RETRIES.keys())
def test_retries_are_the_projects_where_a_schedule_leaves_them_open(
    project: Env, options: dict[str, Any], expected: tuple[int, timedelta | None]
) -> None:
    found = retries(project.create(**options))
    assert (found.max_retries, found.base) == expected


def test_retries_that_are_set_back_are_the_projects_again(project: Env) -> None:
    schedule = project.create(retry=RetryPolicy(max_retries=9, base=HOUR))
    assert retries(schedule.update(retry={"max_retries": None})) == RetryPolicy(max_retries=5, base=HOUR)
    assert retries(schedule.update(retry=None)) == RetryPolicy(max_retries=5, base=HALF)


def test_targets_have_the_projects_retries_which_say_nothing_of_runs(project: Env) -> None:
    assert project.create().state.policies.target_retry == RetryPolicy(max_retries=2)


def test_failed_attempt_is_repeated_as_the_project_says(project: Env) -> None:
    project.failing = True
    run = project.run_next(project.create())
    assert run.status == "retrying"
    assert run.state.retry_at == project.clock.now() + HALF


TOLD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "the project": ({}, {}, "alert"),
    "the workflow": ({"on_failure": "calm"}, {}, "calm"),
    "the schedule": ({"on_failure": "calm"}, {"on_failure": "note"}, "note"),
    "an external worker's": ({}, {"executor": "external"}, "alert"),
}


@pytest.mark.parametrize(("of_workflow", "of_schedule", "expected"), TOLD.values(), ids=TOLD.keys())
def test_who_is_told_of_failures_comes_from_schedule_then_workflow_then_settings(
    project: Env, of_workflow: dict[str, Any], of_schedule: dict[str, Any], expected: str
) -> None:
    project.register("report", project._note, **of_workflow)
    assert project.create(workflow="report", **of_schedule).describe().on_failure == expected


def test_workflow_of_the_settings_is_run_when_a_run_failed(make_env: MakeEnv) -> None:
    env = make_env(on_failure="alert", retry={"max_retries": 0})
    told: list[Any] = []
    env.register("alert", lambda message: told.append(message["data"]["schedule_id"]))
    env.failing = True
    env.run_next(env.create())
    env.work()
    assert told == ["report"]


def test_workflow_of_the_settings_that_nobody_has_is_refused_by_its_setting(make_env: MakeEnv) -> None:
    env = make_env(on_failure="alart")
    with pytest.raises(UnknownWorkflowError, match="alart") as refused:
        env.create()
    assert "RQSCHED_ON_FAILURE" in "".join(refused.value.__notes__)
    assert list(env.scheduler.iter()) == []


def test_sync_brings_changed_settings_to_what_is_declared_and_leaves_the_rest(
    make_env: MakeEnv, database_url: str
) -> None:
    declared = [Declaration("nightly", "note", THREE)]
    before = make_env(database_url=database_url)
    before.scheduler.sync(declared)
    own = before.create("own", THREE)

    after = make_env(database_url=database_url, **{name: PROJECT[name] for name in ("timezone", "retry")})

    assert after.scheduler.sync(declared).updated == ["nightly"]
    assert after.scheduler.sync(declared).unchanged == ["nightly"]
    nightly = after.scheduler.get("nightly")
    assert (zone(nightly), retries(nightly).max_retries) == (BERLIN, 5)
    assert after.scheduler.get("own").state == own.refresh().state
    assert (zone(own), retries(own).max_retries) == ("UTC", 3)


def test_every_surface_creates_with_the_projects_defaults(
    make_web: MakeWeb, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = make_web(timezone=BERLIN, retry={"max_retries": 5})
    body = {"workflow": "note", "cron": "0 3 * * *", "retry": {"base": "30s"}}
    assert web("POST", "/api/v1/schedules/", {"schedule_id": "http", **body}).status_code == 201
    client_of(web).create("client", "note", THREE, retry={"base": "30s"})
    found = [web.env.scheduler.get(name) for name in ("http", "client")]

    monkeypatch.setenv("RQSCHED_TIMEZONE", BERLIN)
    monkeypatch.setenv("RQSCHED_RETRY", '{"max_retries": 5}')
    cli("create", "flags", HELLO, "--cron", "0 3 * * *", "--set", "retry.base=30s")
    file = tmp_path / "schedules.toml"
    file.write_text(
        f'[[schedules]]\nschedule_id = "file"\nworkflow = "{HELLO}"\ncron = "0 3 * * *"\nretry = {{base = "30s"}}\n'
    )
    cli("sync", str(file))
    found += [cli.scheduler.get(name) for name in ("flags", "file")]

    wanted = RetryPolicy(max_retries=5, base=HALF)
    assert [(one.schedule_id, zone(one), retries(one)) for one in found] == [
        (name, BERLIN, wanted) for name in ("http", "client", "flags", "file")
    ]
