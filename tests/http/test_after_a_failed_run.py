"""A schedule continues after failed runs unless `then` is `dead`, in each surface's words for it.

A surface that declares a known schedule again, or changes it, keeps the stored policy unless it gives another.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rqsched import RetryPolicy
from rqsched.aio import AsyncScheduler, schedule_workflow, use
from rqsched.kernel.decide.policy import FailurePolicy
from tests.cli.conftest import cli
from tests.support.cli import HELLO, Cli
from tests.support.client import client_of
from tests.support.durable_workflow import PATH, VERSION
from tests.support.env import MINUTE
from tests.support.machine_case import open_case
from tests.support.openjobspec import Ojs
from tests.support.pages import Pages
from tests.support.web import MINUTELY, SCHEDULES, Web, at

__all__ = ["cli"]

FORM = {
    "workflow": "note", "kind": "every", "timing": "1m", "timezone": "UTC", "kwargs": "{}", "args": "[]",
    "overlap": "skip", "missed": "fire_once",
}  # fmt: skip


@dataclass
class Surfaces:
    """One database, spoken to through all of them."""

    web: Web
    cli: Cli
    folder: Path

    def api(self, operation: str, **options: Any) -> None:
        getattr(self.web.env.scheduler, operation)("a", "note", MINUTE, **options)

    def aio(self, operation: str, **options: Any) -> None:
        scheduler = AsyncScheduler(self.web.env.scheduler)
        asyncio.run(getattr(scheduler, operation)("a", "note", MINUTE, **options))

    def client(self, operation: str, **options: Any) -> None:
        with client_of(self.web) as client:
            getattr(client, operation)("a", "note", MINUTE, **options)

    def sync(self, **fields: Any) -> None:
        path = self.folder / "schedules.json"
        path.write_text(json.dumps([{"schedule_id": "a", "workflow": HELLO, "interval": "1m", **fields}]))
        self.cli("sync", str(path))

    def command(self, operation: str, *words: str) -> None:
        self.cli(operation, "a", HELLO, "--every", "1m", *words)

    def http(self, method: str, path: str, **fields: Any) -> None:
        answer = self.web(method, path, fields)
        assert answer.is_success, answer.text

    def durable(self, method: str, path: str, **fields: Any) -> None:
        self.web.env.scheduler.runtime.record_workflows()
        answer = self.web(method, path, fields, headers=VERSION)
        assert answer.is_success, answer.text

    def waymark(self) -> None:
        use(self.web.env.scheduler)
        try:
            asyncio.run(schedule_workflow("note", schedule_name="a", schedule=MINUTE))
        finally:
            use(None)

    def form(self, path: str, **fields: str) -> None:
        Pages(self.web).do(path, **FORM, **fields)

    def machine(self) -> None:
        open_case(self.web.env).register(schedule_id="a").daily_at("00:10")
        self.web.env.scheduler.sync()

    def update(self, **options: Any) -> None:
        self.web.env.scheduler.get("a").update(**options)

    def only(self) -> Any:
        """Return the one schedule that was declared."""
        (handle,) = self.web.env.scheduler.iter()
        return handle


@pytest.fixture
def surfaces(web: Web, cli: Cli, tmp_path: Path) -> Surfaces:
    return Surfaces(web, cli, tmp_path)


Act = Callable[[Surfaces], None]
DURABLE: dict[str, Any] = {
    "schedule_id": "a", "spec": {"cron_expressions": ["* * * * *"]}, "action": {"workflow_type": "note"},
}  # fmt: skip
DECLARED: dict[str, Act] = {
    "create": lambda of: of.api("create"),
    "upsert": lambda of: of.api("upsert"),
    "create, awaited": lambda of: of.aio("create"),
    "upsert, awaited": lambda of: of.aio("upsert"),
    "a retry policy without then": lambda of: of.api("create", retry=RetryPolicy(5)),
    "rqsched create": lambda of: of.command("create", "--max-retries", "5"),
    "rqsched upsert": lambda of: of.command("upsert"),
    "a sync file": lambda of: of.sync(retry={"max_retries": 5}),
    "a sync file with max_successes": lambda of: of.sync(max_successes=3),
    "create with max_successes": lambda of: of.api("create", max_successes=3),
    "create with max_successes, awaited": lambda of: of.aio("create", max_successes=3),
    "rqsched create --max-successes": lambda of: of.command("create", "--set", "max_successes=3"),
    "POST with max_successes": lambda of: of.http("POST", SCHEDULES, schedule_id="a", **MINUTELY, max_successes=3),
    "the client's create with max_successes": lambda of: void(
        client_of(of.web).create("a", "note", MINUTE, max_successes=3)
    ),
    "POST": lambda of: of.http("POST", SCHEDULES, schedule_id="a", **MINUTELY),
    "PUT": lambda of: of.http("PUT", at("a"), **MINUTELY),
    "the client's create": lambda of: of.client("create"),
    "the client's upsert": lambda of: of.client("upsert"),
    "Waymark": lambda of: of.waymark(),
    "Open Job Spec": lambda of: void(Ojs(of.web).registered()),
    "Durable Workflow": lambda of: of.durable("POST", PATH, **DURABLE, max_runs=3),
    "a machine": lambda of: of.machine(),
    "the dashboard's form": lambda of: of.form("/schedules", schedule_id="a"),
}
SAID: dict[str, Act] = {
    "create": lambda of: of.api("create", retry=RetryPolicy(then="dead")),
    "create, awaited": lambda of: of.aio("create", retry=RetryPolicy(then="dead")),
    "upsert": lambda of: of.api("upsert", retry=RetryPolicy(then="dead")),
    "rqsched create": lambda of: of.command("create", "--set", "retry.then=dead"),
    "a sync file": lambda of: of.sync(retry={"then": "dead"}),
    "POST": lambda of: of.http("POST", SCHEDULES, schedule_id="a", **MINUTELY, retry={"then": "dead"}),
    "PUT": lambda of: of.http("PUT", at("a"), **MINUTELY, retry={"then": "dead"}),
    "the client's create": lambda of: void(
        client_of(of.web).create("a", "note", MINUTE, retry=RetryPolicy(then="dead"))
    ),
    "POST with interval_seconds": lambda of: of.http(
        "POST", SCHEDULES, schedule_id="a", workflow="note", interval_seconds=60
    ),
    "POST with total_repeats": lambda of: of.http("POST", SCHEDULES, schedule_id="a", **MINUTELY, total_repeats=3),
}
AGAIN: dict[str, Act] = {
    "update": lambda of: of.update(retry=RetryPolicy(5), max_successes=3),
    "upsert": lambda of: of.api("upsert", retry=RetryPolicy(5)),
    "upsert, awaited": lambda of: of.aio("upsert"),
    "rqsched update": lambda of: void(of.cli("update", "a", "--max-retries", "5")),
    "rqsched upsert": lambda of: of.command("upsert", "--max-retries", "5"),
    "a sync file": lambda of: of.sync(retry={"max_retries": 5}),
    "PUT": lambda of: of.http("PUT", at("a"), **MINUTELY),
    "PUT with a retry policy": lambda of: of.http("PUT", at("a"), **MINUTELY, retry={"max_retries": 5}),
    "PUT with interval_seconds": lambda of: of.http("PUT", at("a"), workflow="note", interval_seconds=60),
    "PATCH": lambda of: of.http("PATCH", at("a"), retry={"max_retries": 5}),
    "PATCH of max_retries": lambda of: of.http("PATCH", at("a"), max_retries=5),
    "PATCH of something else": lambda of: of.http("PATCH", at("a"), description="x"),
    "the client's upsert": lambda of: of.client("upsert", retry=RetryPolicy(5)),
    "Durable Workflow": lambda of: of.durable("PUT", f"{PATH}/a", memo={"a": 1}),
    "a machine": lambda of: of.machine(),
    "the dashboard's form": lambda of: of.form("/schedules/a/edit", version="1", description="x"),
}


def void(_: object) -> None:
    """Make an expression an act."""


def follows(of: Surfaces) -> str:
    found: str = of.only().describe().policies["retry"]["then"]
    return found


@pytest.mark.parametrize("declare", DECLARED.values(), ids=DECLARED)
def test_a_schedule_that_says_nothing_of_it_goes_on(surfaces: Surfaces, declare: Act) -> None:
    declare(surfaces)

    assert follows(surfaces) == "continue"


@pytest.mark.parametrize("declare", SAID.values(), ids=SAID)
def test_a_schedule_dies_where_that_is_said_in_our_words_or_pipelits(surfaces: Surfaces, declare: Act) -> None:
    declare(surfaces)

    assert follows(surfaces) == "dead"


@pytest.mark.parametrize("stored", FailurePolicy)
@pytest.mark.parametrize("change", AGAIN.values(), ids=AGAIN)
def test_a_known_schedule_keeps_what_is_stored_of_it(surfaces: Surfaces, change: Act, stored: FailurePolicy) -> None:
    surfaces.api("create", retry=replace(RetryPolicy(2), then=stored))

    change(surfaces)

    assert surfaces.only().version > 1, "something was changed"
    assert follows(surfaces) == stored.value
