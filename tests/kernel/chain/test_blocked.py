"""Code that a worker cannot find: its run is given back, offered to others, and fails only after a long time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.errors import UnknownWorkflowError
from rqsched.kernel.chain.blocked import block_run
from rqsched.kernel.chain.execution import claim_run, execute
from rqsched.kernel.decide import audit
from rqsched.kernel.store.database import Patience
from rqsched.workflows import WorkflowNotFoundError, load_path
from tests.support.env import (
    HOUR,
    MINUTE,
    ONCE,
    SECOND,
    Env,
    MakeEnv,
    events,
    job_id,
    retry_link_id,
    run_job_id,
    statuses,
)
from tests.support.invariants import check_invariants
from tests.support.narrow import present

AT_ONCE = Patience(total=timedelta(seconds=1))


@pytest.fixture
def new(any_env: Env) -> Env:
    """A worker of the new release: it has the workflow `fresh`."""
    any_env.register("fresh", lambda: any_env.calls.append(((), {})))
    return any_env


@pytest.fixture
def old(make_env: MakeEnv, database_url: str) -> Env:
    """A worker of the old release, over the same database and Redis: it lacks `fresh`."""
    return make_env(database_url=database_url)


def fire_fresh(new: Env, **options: Any) -> tuple[ScheduleHandle, RunHandle]:
    schedule = new.create(workflow="fresh", retry=ONCE, **options)
    return schedule, new.fire_next(schedule)


def test_a_run_whose_workflow_a_worker_lacks_is_blocked_and_says_which_worker_lacked_what(new: Env, old: Env) -> None:
    schedule, run = fire_fresh(new)

    old.work()

    run.refresh()
    assert (run.status, run.attempt, run.state.delivery) == ("pending", 1, 2)
    assert (run.state.token, run.worker, run.started_at) == (None, None, None)
    reason = present(run.blocked_reason)
    assert reason.startswith(f"{os.uname().nodename}:{os.getpid()}: ")
    assert "no workflow named 'fresh' is registered" in reason
    assert run.is_blocked
    assert run.blocked_at == new.clock.now()
    (event,) = events(schedule, audit.RUN_BLOCKED)
    assert event.workflow_run_id == run.uid


def test_a_blocked_run_starts_at_once_where_a_worker_has_its_workflow(new: Env, old: Env) -> None:
    _, run = fire_fresh(new)
    old.work()
    assert new.queued() == [], "it is not offered before its time"

    new.advance(5 * SECOND)
    new.dispatch()
    assert new.queued() == [run_job_id(run.refresh())]
    new.work()

    run.refresh()
    assert (run.status, run.attempt, len(new.calls)) == ("succeeded", 1, 1)
    assert (run.is_blocked, run.blocked_at, run.blocked_reason) == (False, None, None)


def test_a_run_that_stays_blocked_is_offered_after_growing_delays_and_recorded_once(new: Env, old: Env) -> None:
    schedule, run = fire_fresh(new)
    offered = []
    for delay in (5, 10, 20, 40, 60, 60):
        old.work()
        link = retry_link_id(run.refresh())
        offered.append(new.armed()[link] - new.clock.now().timestamp())
        new.advance((delay - 1) * SECOND)
        new.deliver(link)
        assert new.queued() == []
        new.advance(SECOND)
        new.dispatch()
    assert [round(delay) for delay in offered] == [5, 10, 20, 40, 60, 60]
    assert len(events(schedule, audit.RUN_BLOCKED)) == 1
    assert run.refresh().state.delivery == 7


def test_a_running_run_is_not_shown_as_blocked_any_more(new: Env, old: Env) -> None:
    seen = []
    _, run = fire_fresh(new)
    new.register("fresh", lambda: seen.append(new.run_row(run.uid)))
    old.work()
    new.advance(5 * SECOND)
    new.dispatch()

    new.work()

    assert [(row.status, row.blocked_at, row.blocked_reason) for row in seen] == [("running", None, None)]


def test_a_blocked_run_whose_link_was_lost_is_delivered_by_reconcile(new: Env, old: Env) -> None:
    _, run = fire_fresh(new)
    old.work()
    new.redis.flushdb()

    new.recover()
    assert new.queued() == [], "a flush does not shorten the delay"
    new.advance(MINUTE)
    new.recover()
    new.work()

    assert run.refresh().status == "succeeded"


def test_a_flush_or_a_stale_link_does_not_deliver_a_blocked_run_early(new: Env, old: Env) -> None:
    schedule, _ = fire_fresh(new, overlap="allow_all")
    old.work()
    new.deliver(schedule)  # stale: it lets Redis follow the schedule's pending runs

    assert new.queued() == []


def test_a_blocked_run_blocks_the_next_occurrence(new: Env, old: Env) -> None:
    schedule, run = fire_fresh(new)
    old.work()

    new.fire_next(schedule)

    assert events(schedule, audit.SKIPPED)[0].payload["blocking_run_id"] == run.uid


def test_a_run_that_nobody_can_start_fails_after_the_timeout(new: Env, old: Env) -> None:
    schedule, run = fire_fresh(new)
    old.work()
    new.advance(HOUR)
    new.dispatch()

    old.work()

    run.refresh()
    assert run.status == "failed"
    assert present(run.error).startswith("no worker could find its workflow within 3600 s")
    assert "no workflow named 'fresh' is registered" in present(run.error)
    assert len(events(schedule, audit.RUN_FAILED)) == 1


def test_a_blocked_run_that_no_worker_takes_any_more_fails_after_the_timeout(new: Env, old: Env) -> None:
    _, run = fire_fresh(new)
    old.work()
    new.advance(HOUR - SECOND)
    assert new.recover().blocked == 0
    new.advance(SECOND)

    assert new.recover().blocked == 1

    assert run.refresh().status == "failed"
    assert present(run.error).startswith("no worker could find its workflow")


def test_the_timeout_is_a_setting(make_env: MakeEnv) -> None:
    env = make_env(blocked_timeout=30)
    env.register("fresh", lambda: None)
    run = env.fire_next(env.create(workflow="fresh"))
    env.registry.remove("fresh")
    env.work()
    env.advance(30 * SECOND)

    assert env.recover().blocked == 1
    assert "within 30 s" in present(run.refresh().error)


def test_a_claim_is_undone_under_its_token_only(new: Env, old: Env) -> None:
    _, run = fire_fresh(new)
    claim = present(claim_run(old.runtime, job_id(run.state)))
    run.cancel()

    assert block_run(old.runtime, claim.run, "nothing", patience=AT_ONCE) is None

    assert run.refresh().status == "cancelled"


def test_a_worker_that_wakes_up_after_its_run_was_lost_gives_nothing_back(new: Env, old: Env) -> None:
    schedule = new.create(workflow="fresh")
    run = new.fire_next(schedule)
    frozen = present(claim_run(old.runtime, job_id(run.state)))
    for _ in range(5):
        new.advance(16 * SECOND)
        new.recover()
    assert run.refresh().status == "retrying"
    new.advance(MINUTE)
    new.dispatch()
    successor = present(claim_run(new.runtime, job_id(run.refresh().state)))

    assert block_run(old.runtime, frozen.run, "nothing", patience=AT_ONCE) is None

    assert run.refresh().state.token == successor.token


def test_a_blocked_run_can_be_cancelled(new: Env, old: Env) -> None:
    _, run = fire_fresh(new)
    old.work()

    assert run.refresh().cancel().status == "cancelled"

    new.advance(5 * SECOND)
    new.dispatch()
    assert new.queued() == []


def test_a_delivery_before_it_was_blocked_is_stale(new: Env, old: Env) -> None:
    _, run = fire_fresh(new)
    before = job_id(run.state)
    old.work()

    assert execute(new.runtime, before) is None

    assert new.calls == []


def test_a_blocked_retry_counts_no_attempt(new: Env, old: Env) -> None:
    def fail() -> None:
        raise ValueError("not today")

    new.register("fresh", fail)
    schedule = new.create(workflow="fresh")
    run = new.run_next(schedule)
    new.advance(MINUTE)
    new.dispatch()

    old.work()

    run.refresh()
    assert (run.status, run.attempt, run.is_blocked, len(run.attempts)) == ("pending", 2, True, 1)


# ---- what counts as code that cannot be found


def write_module(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    return name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


DJANGO = """
class ImproperlyConfigured(Exception): ...
class AppRegistryNotReady(Exception): ...
"""
MISSING: dict[str, Callable[[Path], str]] = {
    "a module": lambda _: "blocked_nowhere.jobs.work",
    "a module of a package": lambda folder: f"{write_module(folder, 'blocked_a', '')}.jobs.work",
    "a name": lambda folder: f"{write_module(folder, 'blocked_b', '')}.work",
    "a name after a colon": lambda folder: f"{write_module(folder, 'blocked_c', '')}:work",
    "a registration": lambda _: "never-registered",
}
FOUND: dict[str, str] = {
    "a dependency is missing": "import no_such_dependency\n",
    "a name of a dependency is missing": "from json import no_such_name\n",
    "its own name is imported wrongly": "import {name}.nothing\n",
    "it raises": "raise RuntimeError('at import')\n",
    "an attribute is missing at import": "import json\njson.no_such_name\n",
    "it is not Python": "def\n",
    "it holds no workflow": "work = 42\n",
}


@pytest.mark.parametrize("what", MISSING)
def test_code_that_is_missing_is_not_found(what: str, folder: Path, env: Env) -> None:
    with pytest.raises(WorkflowNotFoundError):
        env.runtime.imports.resolve(MISSING[what](folder))


@pytest.mark.parametrize("what", FOUND)
def test_code_that_is_there_and_does_not_work_is_found(what: str, folder: Path, env: Env) -> None:
    name = f"blocked_found_{list(FOUND).index(what)}"
    write_module(folder, name, FOUND[what].format(name=name))

    with pytest.raises(UnknownWorkflowError) as refusal:
        env.runtime.imports.resolve(f"{name}.work")

    assert not isinstance(refusal.value, WorkflowNotFoundError)


@pytest.mark.parametrize("error", ["ImproperlyConfigured", "AppRegistryNotReady"])
def test_a_django_that_is_not_set_up_counts_as_missing(folder: Path, error: str) -> None:
    (folder / "django" / "core").mkdir(parents=True)
    (folder / "django" / "core" / "exceptions.py").write_text(DJANGO)
    text = f"from django.core.exceptions import {error}\nraise {error}('settings are not configured')\n"
    write_module(folder, f"blocked_{error.lower()}", text)

    with pytest.raises(WorkflowNotFoundError, match="settings are not configured"):
        load_path(f"blocked_{error.lower()}.work")


def test_an_import_error_out_of_a_workflows_body_is_a_failed_attempt(env: Env) -> None:
    def body() -> None:
        raise ModuleNotFoundError("No module named 'body'", name="body")

    env.register("body", body)
    run = env.run_next(env.create(workflow="body", retry=ONCE))

    assert (run.status, run.is_blocked) == ("failed", False)


def test_a_workflow_that_misses_another_workflow_in_its_body_is_a_failed_attempt(env: Env) -> None:
    env.register("body", lambda: env.runtime.imports.resolve("never-registered"))
    run = env.run_next(env.create(workflow="body", retry=ONCE))

    assert (run.status, run.is_blocked) == ("failed", False)


def test_a_module_that_breaks_at_import_is_a_failed_attempt(folder: Path, env: Env) -> None:
    name = write_module(folder, "blocked_breaks", "def work(): ...\n")
    schedule = env.create(workflow=f"{name}.work", retry=ONCE)
    del sys.modules[name]
    write_module(folder, name, "import no_such_dependency_at_all\n")

    run = env.run_next(schedule)

    assert run.status == "failed"
    assert "no_such_dependency_at_all" in present(run.error)
    assert statuses(schedule) == ["failed"]


def test_retry_of_a_blocked_run_offers_it_now(new: Env, old: Env) -> None:
    schedule, run = fire_fresh(new)
    old.work()
    assert new.queued() == []
    assert run.refresh().retry("the deploy is done").attempt == 1
    assert new.queued() == [run_job_id(run)]
    (event,) = events(schedule, audit.RUN_RETRY_REQUESTED)
    assert (event.payload["outcome"], event.payload["previous_status"]) == ("offered", "blocked")
    new.work()
    assert (run.refresh().status, len(new.calls)) == ("succeeded", 1)
    check_invariants(new.runtime)


def test_retry_on_request_that_is_blocked_is_offered_now_too(new: Env, old: Env) -> None:
    _, run = fire_fresh(new)
    run.cancel().retry()
    old.work()
    assert (run.refresh().is_blocked, run.attempt) == (True, 2)
    assert run.retry().attempt == 2
    new.work()
    assert (run.refresh().status, len(new.calls)) == ("succeeded", 1)
    check_invariants(new.runtime)
