"""Open Job Spec, cron jobs: registered in every published shape, listed, read, changed, toggled and removed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rqsched.kernel.decide.policy import FailurePolicy
from tests.support.openjobspec import CRON, REPORT, Ojs, refused
from tests.support.rows import every_row
from tests.support.web import Web

NOON = "2026-01-15T12:00:00.000Z"
HOURLY = {"cron": "0 * * * *"}


def test_a_registration_returns_the_cron_job_under_both_published_names(ojs: Ojs) -> None:
    answer = ojs.register(
        cron="0 9 * * *",
        timezone="America/New_York",
        args=[{"report": "daily_summary"}],
        options={"queue": "reports", "timeout": 300},
        description="Generate daily summary report at 9 AM ET",
    )

    assert answer.status_code == 201
    assert answer.json()["cron"] == answer.json()["cron_job"]
    assert answer.json()["cron_job"] == {
        "name": "daily-report",
        "cron": "0 9 * * *",
        "expression": "0 9 * * *",
        "timezone": "America/New_York",
        "type": "report.generate",
        "args": [{"report": "daily_summary"}],
        "options": {"queue": "reports", "timeout": 300},
        "job_template": {
            "type": "report.generate",
            "args": [{"report": "daily_summary"}],
            "options": {"queue": "reports", "timeout": 300},
        },
        "overlap_policy": "skip",
        "enabled": True,
        "status": "active",
        "description": "Generate daily summary report at 9 AM ET",
        "last_run_at": None,
        "next_run_at": "2026-01-15T14:00:00.000Z",
        "run_count": 0,
        "created_at": NOON,
    }
    assert ojs.cron() == answer.json()["cron_job"]


def test_a_done_schedule_that_is_registered_again_is_active_and_fires(ojs: Ojs, web: Web) -> None:
    schedule = web.env.create("daily-report", max_runs=1)
    web.env.run_next(schedule)
    assert schedule.refresh().status == "done"

    assert ojs.registered(cron="* * * * *")["status"] == "active"

    web.env.advance(timedelta(minutes=1))
    web.env.dispatch()
    assert schedule.refresh().run_count == 2


def test_what_is_not_sent_has_the_specs_defaults(ojs: Ojs) -> None:
    job = ojs.registered()
    found = [job[name] for name in ("timezone", "args", "options", "overlap_policy", "enabled", "description")]
    assert found == ["UTC", [], {}, "skip", True, None]


OPTIONS = {"queue": "reports"}
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("flat", {"cron": "0 9 * * *", "type": "a.b", "args": [1], "options": {**OPTIONS, "meta": {"k": "v"}}}),
    ("expression", {"expression": "0 9 * * *", "type": "a.b", "args": [1], "options": OPTIONS, "meta": {"k": "v"}}),
    ("both", {"cron": "0 9 * * *", "expression": "0 9 * * *", "type": "a.b", "args": [1], "options": OPTIONS,
              "meta": {"k": "v"}}),
    ("template", {"expression": "0 9 * * *", "meta": {"k": "v"},
                  "job_template": {"type": "a.b", "args": [1], "options": OPTIONS}}),
    ("template with meta", {"cron": "0 9 * * *",
                            "job_template": {"type": "a.b", "args": [1], "options": OPTIONS, "meta": {"k": "v"}}}),
    ("flat beside a template", {"cron": "0 9 * * *", "type": "a.b", "args": [1], "options": OPTIONS,
                                "meta": {"k": "v"}, "job_template": {"type": "other", "args": [2]}}),
    ("null where the template speaks", {"cron": "0 9 * * *", "type": None, "args": None, "options": None,
                                        "meta": {"k": "v"},
                                        "job_template": {"type": "a.b", "args": [1], "options": OPTIONS}}),
]  # fmt: skip


@pytest.mark.parametrize("shape", [row[1] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_every_published_form_registers_the_same_cron_job(ojs: Ojs, shape: dict[str, Any]) -> None:
    answer = ojs("POST", CRON, {"name": "daily-report", **shape})

    assert answer.status_code == 201, answer.text
    job = answer.json()["cron_job"]
    template = {"type": "a.b", "args": [1], "options": {"queue": "reports", "meta": {"k": "v"}}}
    assert (job["cron"], job["job_template"]) == ("0 9 * * *", template)
    assert {name: job[name] for name in template} == template


def test_fields_of_the_system_that_a_client_sends_are_ignored(ojs: Ojs) -> None:
    system = {"last_run_at": "1999-01-01T00:00:00Z", "next_run_at": None, "run_count": 99, "created_at": 7}
    job = ojs.registered(**system, status="paused", colour="red")
    assert (job["run_count"], job["last_run_at"], job["created_at"], job["status"]) == (0, None, NOON, "active")


def test_registering_a_name_again_changes_it(ojs: Ojs) -> None:
    ojs.registered(**HOURLY, args=[1], options={"queue": "reports"}, description="old")
    ojs.env.advance(timedelta(minutes=5))

    answer = ojs.register(cron="30 * * * *", args=[2])

    assert answer.status_code == 200
    job = answer.json()["cron_job"]
    assert (job["cron"], job["args"], job["options"], job["description"]) == ("30 * * * *", [2], {}, None)
    assert (job["next_run_at"], job["created_at"]) == ("2026-01-15T12:30:00.000Z", NOON)
    assert ojs.listed()["count"] == 1


def test_registering_the_same_again_moves_nothing(ojs: Ojs) -> None:
    first = ojs.registered(cron="@every 30m")
    ojs.env.advance(timedelta(minutes=7))
    again = ojs.register(cron="@every 30m")
    assert (again.status_code, again.json()["cron_job"]) == (200, first)


@pytest.mark.parametrize(
    ("sent", "is_enabled"), [({}, False), ({"enabled": True}, True), ({"enabled": False}, False)], ids=str
)
def test_registering_again_keeps_a_cron_job_disabled_unless_enabled_is_sent(
    ojs: Ojs, sent: dict[str, bool], is_enabled: bool
) -> None:
    ojs.registered(**HOURLY)
    ojs.patched(enabled=False)

    job = ojs.registered(**HOURLY, description="changed", **sent)

    assert (job["enabled"], job["next_run_at"] is not None) == (is_enabled, is_enabled)
    assert ojs.cron() == job


def test_a_cron_job_may_be_registered_disabled(ojs: Ojs) -> None:
    job = ojs.registered(enabled=False)
    assert (job["enabled"], job["next_run_at"], job["status"]) == (False, None, "paused")
    ojs.advance_and_dispatch()
    assert ojs.fetch() == []


EXPRESSIONS = [
    ("*/15 * * * *", "2026-01-15T12:15:00.000Z"),
    ("30 * * * * *", "2026-01-15T12:00:30.000Z"),
    ("0 0 L * *", "2026-01-31T00:00:00.000Z"),
    ("0 0 15W * *", "2026-02-16T00:00:00.000Z"),
    ("0 0 * * 5#3", "2026-01-16T00:00:00.000Z"),
    ("0 9 * * mon-FRI", "2026-01-16T09:00:00.000Z"),
    ("0 0 * feb 7", "2026-02-01T00:00:00.000Z"),
    ("@yearly", "2027-01-01T00:00:00.000Z"),
    ("@annually", "2027-01-01T00:00:00.000Z"),
    ("@monthly", "2026-02-01T00:00:00.000Z"),
    ("@weekly", "2026-01-18T00:00:00.000Z"),
    ("@daily", "2026-01-16T00:00:00.000Z"),
    ("@midnight", "2026-01-16T00:00:00.000Z"),
    ("@hourly", "2026-01-15T13:00:00.000Z"),
    ("@every 30m", "2026-01-15T12:37:00.000Z"),
    ("@every 1h30m", "2026-01-15T13:37:00.000Z"),
    ("@every 45s", "2026-01-15T12:07:45.000Z"),
]


@pytest.mark.parametrize(("expression", "next_run_at"), EXPRESSIONS, ids=[row[0] for row in EXPRESSIONS])
def test_an_expression_is_kept_as_it_was_sent_and_read_as_the_spec_says(
    ojs: Ojs, expression: str, next_run_at: str
) -> None:
    if expression.startswith("@every"):
        ojs.env.advance(timedelta(minutes=7))
    job = ojs.registered(cron=expression)
    assert (job["cron"], job["expression"], job["next_run_at"]) == (expression, expression, next_run_at)


REFUSED: list[tuple[str, dict[str, Any], str | None]] = [
    ("no name", {"name": None}, "name"),
    ("name with capitals", {"name": "Daily"}, "name"),
    ("name with a dash first", {"name": "-daily"}, "name"),
    ("name with a line's end", {"name": "daily\n"}, "name"),
    ("empty name", {"name": ""}, "name"),
    ("long name", {"name": "x" * 256}, "name"),
    ("name that is no text", {"name": 7}, "name"),
    ("no expression", {"cron": None}, "cron"),
    ("empty expression", {"cron": ""}, "cron"),
    ("expression out of range", {"cron": "61 * * * *"}, "cron"),
    ("step of zero", {"cron": "*/0 * * * *"}, "cron"),
    ("four fields", {"cron": "* * * *"}, "cron"),
    ("duration as expression", {"cron": "30m"}, "cron"),
    ("every nothing", {"cron": "@every 0s"}, "duration"),
    ("every garbage", {"cron": "@every soon"}, "duration"),
    ("unknown alias", {"cron": "@fortnightly"}, "cron"),
    ("expression that is no text", {"cron": 5}, "cron"),
    ("two expressions", {"expression": "@daily"}, None),
    ("offset as timezone", {"timezone": "+05:00"}, "timezone"),
    ("abbreviation as timezone", {"timezone": "EST"}, "timezone"),
    ("empty timezone", {"timezone": ""}, "timezone"),
    ("timezone that is no text", {"timezone": 1}, "timezone"),
    ("no type", {"type": None}, "type"),
    ("type with capitals", {"type": "Report"}, "type"),
    ("type with an empty segment", {"type": "report..generate"}, "type"),
    ("type with a dash", {"type": "report-generate"}, "type"),
    ("type with a line's end", {"type": "report\n"}, "type"),
    ("type that is no text", {"type": ["report"]}, "type"),
    ("args that are no array", {"args": {"report": 1}}, "args"),
    ("args beyond the limit", {"args": ["x" * 300_000]}, "args and kwargs"),
    ("unknown overlap policy", {"overlap_policy": "maybe"}, "overlap_policy"),
    ("overlap policy of another shape", {"overlap_policy": ["skip"]}, "overlap_policy"),
    ("enabled as text", {"enabled": "true"}, "enabled"),
    ("enabled as number", {"enabled": 1}, "enabled"),
    ("enabled null", {"enabled": None}, "enabled"),
    ("description that is no text", {"description": {}}, "description"),
    ("options that are no object", {"options": []}, "options"),
    ("options beyond the limit", {"options": {"x": "y" * 300_000}}, "surface"),
    ("template that is no object", {"job_template": "x"}, "job_template"),
    ("meta that is no object", {"meta": "x"}, "meta"),
    ("options' meta that is no object", {"options": {"meta": [1]}}, "options.meta"),
    ("queue with capitals", {"options": {"queue": "High"}}, "queue"),
    ("long queue", {"options": {"queue": "x" * 129}}, "queue"),
    ("timeout of zero", {"options": {"timeout": 0}}, "options.timeout"),
    ("timeout that is no number", {"options": {"timeout": "5m"}}, "options.timeout"),
    ("truth as timeout", {"options": {"timeout_ms": True}}, "options.timeout_ms"),
    ("tags that are no texts", {"options": {"tags": [1]}}, "options.tags"),
    ("priority that is no whole number", {"options": {"priority": 1.5}}, "options.priority"),
    ("retry that is no object", {"options": {"retry": 3}}, "options.retry"),
    ("fewer than no attempts", {"options": {"retry": {"max_attempts": -1}}}, "options.retry.max_attempts"),
    ("jitter as number", {"options": {"retry": {"jitter": 1}}}, "options.retry.jitter"),
    ("unknown end", {"options": {"retry": {"on_exhaustion": "explode"}}}, "options.retry.on_exhaustion"),
    ("errors as text", {"options": {"retry": {"non_retryable_errors": "x"}}}, "options.retry.non_retryable_errors"),
    ("errors beyond the limit", {"options": {"retry": {"non_retryable_errors": ["x"] * 101}}},
     "options.retry.non_retryable_errors"),
    ("attempts as text", {"options": {"retry": {"max_attempts": "3"}}}, "options.retry.max_attempts"),
    ("interval that is no duration", {"options": {"retry": {"initial_interval": "soon"}}}, "duration"),
    ("interval beyond the calendar", {"options": {"retry": {"initial_interval": "P999999D"}}},
     "options.retry.initial_interval"),
    ("coefficient that shrinks", {"options": {"retry": {"backoff_coefficient": 0.5}}}, "retry.factor"),
]  # fmt: skip


def test_a_refused_registration_names_its_field_and_writes_nothing(ojs: Ojs) -> None:
    with every_row() as row:
        for name, fields, field in REFUSED:
            with row(name):
                error = refused(ojs.register(**fields), 400, "invalid_request")

                details = error.get("details", {})
                assert field is None or field in {*details, details.get("field")}, error
                assert ojs.listed()["count"] == 0


@pytest.mark.parametrize("name", ["a", "0", "a-b.c", "x" * 255], ids=["letter", "digit", "all", "longest"])
def test_names_at_the_limits_are_accepted(ojs: Ojs, name: str) -> None:
    ojs.registered(name=name)
    assert ojs.cron(name)["name"] == name


def test_options_are_kept_verbatim_and_applied(ojs: Ojs) -> None:
    options = {
        "queue": "reports",
        "timeout": 300,
        "priority": 5,
        "tags": ["nightly", "pdf"],
        "meta": {"team": "billing"},
        "retry": {"max_attempts": 3, "initial_interval": "PT30S", "backoff_coefficient": 2.0, "jitter": True},
        "unknown_to_us": {"kept": [1, None]},
    }

    assert ojs.registered(options=options)["options"] == options

    ojs.advance_and_dispatch()
    assert ojs.fetch("default") == []
    (job,) = ojs.fetch("reports")
    assert (job["queue"], job["timeout"], job["priority"], job["tags"]) == ("reports", 300, 5, ["nightly", "pdf"])
    assert (job["meta"]["team"], job["attempt"], job["max_attempts"]) == ("billing", 1, 3)


RETRIES = [
    ("ISO", {"max_attempts": 3, "initial_interval": "PT30S", "max_interval": "PT5M"}, (2, 30.0, 2.0, 300.0)),
    ("ms by name", {"max_attempts": 1, "initial_interval_ms": 1500, "max_interval_ms": 60000}, (0, 1.5, 2.0, 60.0)),
    ("ms as numbers", {"max_attempts": 5, "initial_interval": 500, "backoff_coefficient": 3}, (4, 0.5, 3.0, 300.0)),
    ("under a second", {"initial_interval": "PT0.25S"}, (2, 0.25, 2.0, 300.0)),
    ("no retry", {"max_attempts": 0}, (0, 1.0, 2.0, 300.0)),
    ("a cap below the interval", {"initial_interval": "PT10S", "max_interval": "PT4S"}, (2, 4.0, 2.0, 4.0)),
    ("nothing", {}, (2, 1.0, 2.0, 300.0)),
    ("null", None, (2, 1.0, 2.0, 300.0)),
]


@pytest.mark.parametrize(("retry", "expected"), [row[1:] for row in RETRIES], ids=[row[0] for row in RETRIES])
def test_retry_options_in_every_form_are_our_retry_policy(ojs: Ojs, retry: Any, expected: Any) -> None:
    ojs.registered(options={"retry": retry})

    policy = ojs.env.scheduler.get("daily-report").state.policies.retry
    spans = [None if span is None else span.total_seconds() for span in (policy.base, policy.cap)]
    assert (policy.max_retries, spans[0], policy.factor, spans[1]) == expected
    assert policy.then is FailurePolicy.CONTINUE


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({"timeout": 300}, 300), ({"timeout_ms": 1500}, 2), ({"timeout_ms": 1}, 1), ({"timeout": 90.4}, 90), ({}, None)],
    ids=["seconds", "milliseconds", "under a second", "fraction", "none"],
)
def test_a_timeout_is_read_in_either_unit(ojs: Ojs, options: dict[str, Any], seconds: int | None) -> None:
    ojs.registered(options=options)
    assert ojs.env.scheduler.get("daily-report").describe().timeout == seconds


def test_a_type_that_a_process_registered_is_executed_by_rq(ojs: Ojs) -> None:
    ojs.registered(name="local", type="note", args=["eu"])
    ojs.advance_and_dispatch()
    assert ojs.fetch() == []
    ojs.env.work()
    assert ojs.env.calls == [(("eu",), {})]


def test_an_import_path_is_never_followed(ojs: Ojs) -> None:
    ojs.registered(type="os.getcwd")
    assert ojs.env.scheduler.get("daily-report").describe().executor == "external"


def test_a_removed_cron_job_is_404_and_its_enqueued_jobs_continue(ojs: Ojs) -> None:
    registered = ojs.registered()
    ojs.advance_and_dispatch()

    answer = ojs("DELETE", f"{CRON}/daily-report")

    assert answer.status_code == 200
    assert answer.json() == {"deleted": True, "name": "daily-report", "cron": answer.json()["cron"]}
    assert answer.json()["cron"]["created_at"] == registered["created_at"]
    for method in ("GET", "DELETE"):
        refused(ojs(method, f"{CRON}/daily-report"), 404, "not_found")
    assert ojs.ack(ojs.fetched()).status_code == 200


def test_a_name_is_free_again_once_it_is_removed(ojs: Ojs) -> None:
    ojs.registered()
    ojs.advance_and_dispatch()
    ojs("DELETE", f"{CRON}/daily-report")
    answer = ojs.register()
    assert (answer.status_code, answer.json()["cron_job"]["run_count"]) == (201, 0)
    assert REPORT["name"] == answer.json()["cron_job"]["name"]
