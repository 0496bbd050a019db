"""Every option of a schedule can be set in every surface, and means the same there.

Each is set by itself in Python, HTTP, the client, the command line, a sync file and the dashboard's form, and stored
equally by each.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rqsched import RetryPolicy, Spec
from rqsched.kernel.decide.model import Definition
from rqsched.kernel.decide.options import OPTIONS, Options
from rqsched.testing import ManualClock
from tests.cli.conftest import cli
from tests.contract.test_docs import script
from tests.http.conftest import make_web
from tests.support.cli import HELLO, Cli
from tests.support.client import client_of
from tests.support.pages import Pages
from tests.support.web import MakeWeb, Web

__all__ = ["cli", "make_web"]

HOOK = "https://hooks.example.com/secret"


class Sample(NamedTuple):
    """One value of an option, as each surface has it."""

    python: Any
    json: Any
    words: str
    """The words of the command line, apart by blanks."""
    fields: dict[str, str] | None = None
    """The fields of the dashboard's form; None: one field with the JSON value as text."""


SAMPLES: dict[str, Sample] = {
    "timezone": Sample("Europe/Berlin", "Europe/Berlin", "--timezone Europe/Berlin", {"timezone": "Europe/Berlin"}),
    "exclude": Sample(["Sat, Sun", "2026-12-25"], ["2026-12-25", "Sat, Sun"], "--exclude Sun,Sat --exclude 2026-12-25",
                      {"exclude": "Sat, Sun\r\n2026-12-25"}),
    "on_excluded": Sample("next", "next", "--set on_excluded=next", {"on_excluded": "next"}),
    "dst_gap": Sample("skip", "skip", "--set dst_gap=skip", {"dst_gap": "skip"}),
    "dst_fold": Sample("both", "both", "--set dst_fold=both", {"dst_fold": "both"}),
    "args": Sample(["eu", 2], ["eu", 2], '--args ["eu",2]', {"args": '["eu", 2]'}),
    "kwargs": Sample({"a": 1}, {"a": 1}, '--kwargs {"a":1}', {"kwargs": '{"a": 1}'}),
    "overlap": Sample("buffer_all", "buffer_all", "--overlap buffer_all", {"overlap": "buffer_all"}),
    "buffer_limit": Sample(7, 7, "--set buffer_limit=7"),
    "missed": Sample("all", "all", "--set missed=all", {"missed": "all"}),
    "limit": Sample("shop:a", "shop:a", "--set limit=shop:a"),
    "limit_running": Sample(3, 3, "--set limit_running=3"),
    "limit_rate": Sample("100/minute", "100/min", "--set limit_rate=100/min"),
    "start_within": Sample(timedelta(minutes=30), "30m", "--set start_within=30m"),
    "fire_within": Sample(timedelta(hours=2), "2h", "--set fire_within=2h"),
    "missed_limit": Sample(5, 5, "--set missed_limit=5"),
    "on_resume": Sample("from_now", "from_now", "--set on_resume=from_now"),
    "jitter": Sample(timedelta(seconds=30), 30, "--set jitter=30s", {"jitter": "30"}),
    "spread": Sample(timedelta(hours=2), "2h", "--set spread=2h", {"spread": "2h"}),
    "max_runs": Sample(9, 9, "--set max_runs=9", {"max_runs": "9"}),
    "on_max_runs": Sample("delete", "delete", "--set on_max_runs=delete"),
    "max_successes": Sample(4, 4, "--set max_successes=4"),
    "environments": Sample(["production"], ["production"], "--set environments=production",
                           {"environments": "production"}),
    "retry": Sample(
        RetryPolicy(max_retries=0, jitter=timedelta(seconds=3), then="continue", retry_on=[OSError, "a.B"]),
        {"max_retries": 0, "jitter": "3s", "then": "continue", "retry_on": ["OSError", "a.B"]},
        "--max-retries 0 --set retry.jitter=3 --set retry.then=continue --set retry.retry_on=OSError "
        "--set retry.retry_on=a.B",
        {"retry.max_retries": "0", "retry.jitter": "3", "retry.then": "continue", "retry.retry_on": "OSError, a.B"},
    ),
    "fan_out": Sample("never", "never", "--set fan_out=never"),
    "overlap_until": Sample("dispatched", "dispatched", "--set overlap_until=dispatched"),
    "targets": Sample(HELLO, HELLO, f"--set targets={HELLO}"),
    "target_retry": Sample(RetryPolicy(max_retries=1, base=timedelta(seconds=5), give_up_on="KeyError"),
                           {"max_retries": 1, "base": 5, "give_up_on": ["KeyError"]},
                           "--set target_retry.max_retries=1 --set target_retry.base=5s "
                           "--set target_retry.give_up_on=KeyError",
                           {"target_retry.max_retries": "1", "target_retry.base": "5s",
                            "target_retry.give_up_on": "KeyError"}),
    "target_timeout": Sample(60, 60, "--set target_timeout=60"),
    "max_parallel": Sample(3, 3, "--set max_parallel=3"),
    "retention": Sample("90d", "90d", "--set retention=90d"),
    "timeout": Sample(120, 120, "--timeout 120", {"timeout": "120"}),
    "queue": Sample("low", "low", "--queue low", {"queue": "low"}),
    "priority": Sample(2, 2, "--set priority=2"),
    "labels": Sample({"team": "a"}, {"team": "a"}, "--label team=a", {"labels": "team:a"}),
    "memo": Sample({"why": "x"}, {"why": "x"}, '--set memo={"why":"x"}', {"memo": '{"why": "x"}'}),
    "search_attributes": Sample({"tier": 1}, {"tier": 1}, '--set search_attributes={"tier":1}',
                                {"search_attributes": '{"tier": 1}'}),
    "description": Sample("nightly", "nightly", "--set description=nightly", {"description": "nightly"}),
    "owner": Sample("ops", "ops", "--set owner=ops", {"owner": "ops"}),
    "executor": Sample("external", "external", "--set executor=external"),
    "connection": Sample("eu", "eu", "--set connection=eu"),
    "on_failure": Sample(HELLO, HELLO, f"--set on_failure={HELLO}", {"on_failure": HELLO}),
    "on_recovery": Sample(HELLO, HELLO, f"--set on_recovery={HELLO}", {"on_recovery": HELLO}),
    "expect_success_within": Sample("26h", "26h", "--set expect_success_within=26h", {"expect_success_within": "26h"}),
    "expect_duration": Sample("20m", "20m", "--set expect_duration=20m", {"expect_duration": "20m"}),
    "notifications": Sample({"webhook": HOOK}, {"webhook": HOOK}, f"--set notifications.webhook={HOOK}",
                            {"webhook": HOOK}),
}  # fmt: skip

NEEDS = {
    "buffer_limit": ["overlap"],
    "missed": ["overlap"],
    "missed_limit": ["overlap", "missed"],
    "limit": ["limit_running"],
    "limit_running": ["limit"],
    "limit_rate": ["limit"],
}
"""Options that are given beside others."""


class Surfaces(NamedTuple):
    """One installation, and every way to it."""

    web: Web
    cli: Cli
    folder: Path

    def stored(self, schedule_id: str) -> Definition:
        """Return the stored definition without `managed_by`, which is no option."""
        return replace(self.web.env.scheduler.get(schedule_id).state.definition, managed_by=None)


@pytest.fixture
def surfaces(
    cli: Cli, make_web: MakeWeb, redis_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Surfaces:
    monkeypatch.setenv("RQSCHED_WEBHOOK_SECRET", "a secret")
    monkeypatch.setenv("RQSCHED_CONNECTIONS", json.dumps({"eu": redis_url}))
    web = make_web(webhook_secret="a secret", notification_hosts=("hooks.example.com",), connections={"eu": redis_url})
    web.env.register(HELLO, print, queue="high", timeout=30)  # as the commands' module has it
    return Surfaces(web, cli, tmp_path)


Samples = dict[str, Sample]


def _by_python(surfaces: Surfaces, samples: Samples) -> None:
    options: Any = {name: sample.python for name, sample in samples.items()}
    surfaces.web.env.scheduler.create("by-python", HELLO, "0 2 * * *", **options)


def _by_http(surfaces: Surfaces, samples: Samples) -> None:
    options = {name: sample.json for name, sample in samples.items()}
    body = {"schedule_id": "by-http", "workflow": HELLO, "cron": "0 2 * * *", **options}
    answer = surfaces.web.post("/api/v1/schedules/", body)
    assert answer.status_code == 201, answer.text


def _by_client(surfaces: Surfaces, samples: Samples) -> None:
    options: Any = {name: sample.python for name, sample in samples.items()}
    client_of(surfaces.web).create("by-client", HELLO, "0 2 * * *", **options)


def _by_command(surfaces: Surfaces, samples: Samples) -> None:
    words = [word for sample in samples.values() for word in sample.words.split()]
    surfaces.cli("create", "by-command", HELLO, "--cron", "0 2 * * *", *words)


def _by_file(surfaces: Surfaces, samples: Samples) -> None:
    path = surfaces.folder / "schedules.json"
    options = {name: sample.json for name, sample in samples.items()}
    entry = {"schedule_id": "by-file", "workflow": HELLO, "cron": "0 2 * * *", **options}
    path.write_text(json.dumps({"schedules": [entry]}))
    surfaces.cli("sync", str(path))


def _by_form(surfaces: Surfaces, samples: Samples) -> None:
    fields = {"schedule_id": "by-form", "workflow": HELLO, "kind": "cron", "timing": "0 2 * * *", "timezone": "UTC"}
    for name, sample in samples.items():
        fields |= {name: str(sample.json)} if sample.fields is None else sample.fields
    Pages(surfaces.web).do("/schedules", **fields)


WAYS: dict[str, Callable[[Surfaces, Samples], None]] = {
    "http": _by_http,
    "client": _by_client,
    "command": _by_command,
    "file": _by_file,
    "form": _by_form,
}


def test_there_is_a_sample_of_every_option() -> None:
    assert SAMPLES.keys() == Options.__annotations__.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_an_option_is_stored_alike_by_every_surface(surfaces: Surfaces, name: str) -> None:
    samples = {one: SAMPLES[one] for one in (*NEEDS.get(name, ()), name)}
    _by_python(surfaces, samples)
    expected = surfaces.stored("by-python")
    surfaces.web.env.scheduler.create("plain", HELLO, "0 2 * * *")
    assert expected != surfaces.stored("plain")

    for way, set_option in WAYS.items():
        set_option(surfaces, samples)

        assert surfaces.stored(f"by-{way}") == expected, f"{name} by {way}"


@pytest.mark.parametrize("name", SAMPLES)
def test_an_option_is_exported_and_its_difference_is_shown(surfaces: Surfaces, name: str) -> None:
    samples = {one: SAMPLES[one] for one in (*NEEDS.get(name, ()), name)}
    _by_file(surfaces, samples)
    stored = surfaces.stored("by-file")
    surfaces.cli("export", "exported.toml")

    surfaces.cli("sync", "exported.toml")
    assert surfaces.stored("by-file") == stored

    dropped = {name, "limit_running"} if name == "limit" else {name}  # the number is that of the group
    _by_file(surfaces, {one: sample for one, sample in samples.items() if one not in dropped})
    if name in {"dst_gap", "dst_fold"}:  # options for clock changes that a declaration omits stay as stored
        assert surfaces.cli("sync", "exported.toml", "--diff", "-o", "jsonl").lines == []
        return
    (found,) = surfaces.cli("sync", "exported.toml", "--diff", "-o", "jsonl", code=6).lines
    differing = {row["field"].partition(".")[0] for row in found["fields"]}
    assert differing - {"workflow_defaults"} == dropped  # an external worker has none


@pytest.mark.parametrize(
    "left_out", [{"executor", "limit", "limit_running", "limit_rate"}, {"targets"}], ids=["rq", "external"]
)
def test_what_the_page_of_options_shows_is_stored_alike_in_each_place(surfaces: Surfaces, left_out: set[str]) -> None:
    page, known = script("options"), {"alert_team": HELLO, "list_shops": HELLO}
    given = {"overlap": "buffer_all", "missed": "all"}  # required by other options, in place of their examples
    shown: dict[str, list[str]] = {}
    for name in OPTIONS.keys() - given.keys() - left_out:
        for place, text in page.said(name).items():
            shown.setdefault(place, []).append(re.sub("|".join(known), lambda one: known[one[0]], text))
        assert page.labels(name), f"the form has no field for {name}"
    python, in_json, in_toml, words = shown.values()

    declared = eval(f"dict({', '.join(python)})") | given
    surfaces.web.env.scheduler.create("by-python", HELLO, "0 2 * * *", **declared)
    expected = surfaces.stored("by-python")
    entry = {"workflow": HELLO, "cron": "0 2 * * *", **given}
    body = json.loads("{" + ", ".join(in_json) + "}") | entry | {"schedule_id": "by-http"}
    assert surfaces.web.post("/api/v1/schedules/", body).status_code == 201
    flags = ["--cron", "0 2 * * *", "--overlap", given["overlap"], "--set", f"missed={given['missed']}"]
    surfaces.cli("create", "by-command", HELLO, *flags, *shlex.split(" ".join(words)))
    path = surfaces.folder / "schedules.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in (entry | {"schedule_id": "by-file"}).items()]
    path.write_text("\n".join(["[[schedules]]", *lines, *in_toml]))
    surfaces.cli("sync", str(path))

    for way in ("http", "command", "file"):
        assert surfaces.stored(f"by-{way}") == expected, way


@pytest.mark.parametrize("way", ["python", "http", "client", "command", "form"])
def test_a_change_of_the_timing_keeps_what_is_excluded_and_null_takes_it_away(surfaces: Surfaces, way: str) -> None:
    web, cli = surfaces.web, surfaces.cli
    handle = web.env.scheduler.create("report", HELLO, "0 2 * * *", timezone="Europe/Berlin", exclude="Sat, Sun")
    path, form = "/api/v1/schedules/report/", {"workflow": HELLO, "kind": "cron", "timezone": "Europe/Berlin"}
    changes: dict[str, Callable[[], object]] = {
        "python": lambda: handle.update(spec="0 3 * * *"),
        "http": lambda: web("PATCH", path, {"cron": "0 3 * * *"}),
        "client": lambda: client_of(web).get("report").update(spec=Spec("0 3 * * *", "Europe/Berlin")),
        "command": lambda: cli("update", "report", "--cron", "0 3 * * *"),
        "form": lambda: Pages(web).do("/schedules/report/edit", timing="0 3 * * *", exclude="Sat, Sun", **form),
    }
    blanks: dict[str, Callable[[], object]] = {
        "python": lambda: handle.update(exclude=[]),
        "http": lambda: web("PATCH", path, {"exclude": None}),
        "client": lambda: client_of(web).get("report").update(exclude=None),
        "command": lambda: cli("update", "report", "--unset", "exclude"),
        "form": lambda: Pages(web).do("/schedules/report/edit", timing="0 3 * * *", exclude="", **form),
    }

    changes[way]()
    changed = handle.refresh().state.spec
    assert (changed.primary_cron, changed.timezone, changed.exclude) == ("0 3 * * *", "Europe/Berlin", ("Sat, Sun",))
    blanks[way]()
    assert handle.refresh().state.spec.exclude == ()
