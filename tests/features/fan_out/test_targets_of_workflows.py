"""Targets for any workflow: a function names ids, and the workflow is called for each in a job of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every, RetryPolicy, current_run, workflow
from rqsched.api.run_handle import RunHandle
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidInputError, InvalidPolicyError, RunCancelled, UnknownWorkflowError
from rqsched.features.fan_out import execution as target_execution
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.dispatch import batch_of, fan_out, iter_chunks
from rqsched.kernel.store.tables import targets as rows
from rqsched.testing import execute_pending
from rqsched.workflows import FannedOut, make_workflow, registry
from tests.support.env import MINUTE, ONCE, SECOND, Env, MakeEnv
from tests.support.invariants import check_invariants
from tests.support.narrow import present

NIGHTLY = Every("1d")


class Reminders:
    """The arguments of each call of the workflow `remind`, and the customers that are due."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.due: Callable[[], Any] = lambda: ["c-1", "c-2", "c-3"]
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.act: Callable[[str], None] = lambda customer: None
        env.registry.add(make_workflow("remind", self.remind))
        env.registry.add(make_workflow("due-customers", lambda: self.due()))

    def remind(self, customer: str, *args: Any, **kwargs: Any) -> str:
        self.calls.append(((customer, *args), kwargs))
        self.act(customer)
        return "reminded"

    def create(self, **options: Any) -> ScheduleHandle:
        return self.env.scheduler.create("nightly", "remind", NIGHTLY, **{"targets": "due-customers", **options})

    def run(self, **options: Any) -> RunHandle:
        run = present(self.create(**options).trigger().run)
        execute_pending(self.env.scheduler)
        return run.refresh()

    @property
    def customers(self) -> list[str]:
        return [args[0] for args, _ in self.calls]

    def count(self, run: RunHandle) -> dict[str, int]:
        return self.env.runtime.database.read(lambda c: fan_out_targets.count(c, run.uid))


@pytest.fixture
def reminders(any_env: Env) -> Reminders:
    return Reminders(any_env)


def test_a_workflow_is_called_for_each_id_in_a_job_of_its_own(reminders: Reminders) -> None:
    run = present(reminders.create().trigger().run)
    execute_pending(reminders.env.scheduler)
    run.refresh()
    assert reminders.calls == [((name,), {}) for name in ("c-1", "c-2", "c-3")]
    assert (run.status, run.result, run.target_counts) == ("succeeded", {"targets": 3}, {"succeeded": 3})
    check_invariants(reminders.env.runtime, with_redis=False)


def test_a_payload_follows_the_id_and_the_arguments_of_the_schedule_follow_both(reminders: Reminders) -> None:
    reminders.due = lambda: [("c-1", {"days": 2}), "c-2", ("c-3", None)]
    reminders.run(args=["mail"], kwargs={"region": "eu"})
    region = {"region": "eu"}
    assert reminders.calls == [
        (("c-1", {"days": 2}, "mail"), region),
        (("c-2", "mail"), region),
        (("c-3", None, "mail"), region),
    ]


FORMS: dict[str, Any] = {
    "a list": ["c-1", "c-2"],
    "a set of one": {"c-1"},
    "a generator": (name for name in ("c-1", "c-2", "c-1")),
    "numbers": [1, 2],
    "rows with an id": [("c-1",), ("c-2",)],
    "a mapping from id to payload": {"c-1": 1, "c-2": [2]},
}


@pytest.mark.parametrize("form", FORMS)
def test_targets_may_be_any_iterable_and_each_is_called_once(env: Env, form: str) -> None:
    reminders = Reminders(env)
    found = FORMS[form]
    reminders.due = lambda: found
    run = reminders.run()
    assert run.status == "succeeded"
    assert len(reminders.customers) == len(set(reminders.customers)) == (1 if form == "a set of one" else 2)


WRONG: dict[str, tuple[Any, str]] = {
    "a text": ("c-1", "must be an iterable of ids"),
    "nothing at all": (None, "must be an iterable of ids"),
    "a row of three": ([("c-1", 1, 2)], "neither an id nor an id and a payload"),
    "no id": ([None], "is not an id"),
    "an id that is too long": (["x" * 256], "is not an id"),
    "a payload that is no JSON": ([("c-1", object())], "the payload of target c-1"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_a_list_of_ids_fails_the_attempt_and_says_why(env: Env, wrong: str) -> None:
    reminders = Reminders(env)
    found, message = WRONG[wrong]
    reminders.due = lambda: found
    run = reminders.run(retry=ONCE)
    assert run.status == "failed"
    assert message in present(run.error)
    assert reminders.calls == []


def test_a_resolver_that_raises_in_the_middle_dispatches_nothing_and_is_asked_again(
    make_env: MakeEnv, database_url: str
) -> None:
    env = make_env(database_url=database_url, target_chunk=2)
    reminders = Reminders(env)
    asked: list[int] = []

    def due() -> Iterator[str]:
        asked.append(1)
        yield from ("c-1", "c-2", "c-3")
        if len(asked) == 1:
            raise ConnectionError("the database of customers is away")
        yield "c-4"

    reminders.due = due
    run = reminders.run(retry=RetryPolicy(max_retries=1, base=MINUTE))
    assert (run.status, reminders.calls, reminders.count(run)) == ("retrying", [], {"waiting": 2})
    env.run_due()
    assert (run.refresh().status, run.target_counts) == ("succeeded", {"succeeded": 4})
    assert reminders.customers == ["c-1", "c-2", "c-3", "c-4"]


def test_an_iterator_is_read_in_chunks() -> None:
    read: list[int] = []

    def ids() -> Iterator[int]:
        for number in range(10):
            read.append(number)
            yield number

    seen = [(len(chunk), len(read)) for chunk in iter_chunks(ids, 4)]
    assert seen == [(4, 4), (4, 8), (2, 10)]


def test_a_chunk_ends_when_its_payloads_are_long() -> None:
    found = [(f"c-{number}", "x" * 250_000) for number in range(10)]
    assert [len(chunk) for chunk in iter_chunks(lambda: found, 500)] == [5, 5]


def test_no_targets_are_a_success_with_zero(reminders: Reminders) -> None:
    reminders.due = list
    run = reminders.run()
    assert (run.status, run.result, reminders.calls) == ("succeeded", {"targets": 0}, [])


def test_a_target_knows_its_run_and_itself(reminders: Reminders) -> None:
    seen: list[Any] = []
    reminders.act = lambda customer: seen.append(current_run())
    run = reminders.run(target_timeout=33, labels={"team": "crm"})
    one = seen[1]
    assert (one.uid, one.target_id, one.attempt, one.labels) == (run.uid, "c-2", 1, {"team": "crm"})
    assert (one.deadline_at - one.started_at).total_seconds() == 33
    one.checkpoint  # noqa: B018 - it is there


def test_a_target_has_its_own_attempt_and_a_fence_that_grows_whatever_the_clock_says(reminders: Reminders) -> None:
    seen: list[tuple[int, int]] = []
    claimed_at = reminders.env.clock.now()

    def act(customer: str) -> None:
        seen.append((current_run().attempt, current_run().fence))
        if len(seen) == 1:
            raise RuntimeError("not yet")

    reminders.act, reminders.due = act, lambda: ["c-1"]
    reminders.run(target_retry=RetryPolicy(max_retries=1, base=SECOND))
    reminders.env.advance(SECOND)
    reminders.env.recover()
    reminders.env.clock.set(claimed_at - MINUTE)  # another server answers, and its clock is behind
    execute_pending(reminders.env.scheduler)
    fence = round(claimed_at.timestamp() * 1_000_000)
    assert seen == [(1, fence), (2, fence + 1)]


def test_a_target_sees_at_its_checkpoint_that_its_run_was_cancelled(reminders: Reminders) -> None:
    def act(customer: str) -> None:
        run = current_run()
        run.checkpoint()
        reminders.env.scheduler.runs.get(run.uid).cancel()
        with pytest.raises(RunCancelled):
            run.checkpoint()
        run.checkpoint()

    reminders.act = act
    run = reminders.run()
    reminders.env.recover()
    assert (run.status, reminders.count(run)) == ("cancelled", {"cancelled": 3})
    assert reminders.customers == ["c-1"]


def test_a_workflow_may_name_its_targets_itself(any_env: Env) -> None:
    calls: list[str] = []
    named = make_workflow("remind", calls.append, targets=lambda: ["c-1", "c-2"])
    any_env.registry.add(named)
    schedule = any_env.scheduler.create("nightly", "remind", NIGHTLY)
    assert "<lambda>" in present(schedule.describe().targets)
    run = present(schedule.trigger().run)
    execute_pending(any_env.scheduler)
    assert (calls, run.refresh().result) == (["c-1", "c-2"], {"targets": 2})


def test_a_run_whose_last_target_ends_before_its_workflow_returns_ends_without_a_pass(any_env: Env) -> None:
    runtime = any_env.runtime

    def name_and_wait() -> FannedOut:
        named = fan_out(runtime, batch_of(runtime, current_run().uid), [["c-1"]])
        pending = partial(fan_out_targets.pending, before=any_env.clock.now(), after=None, limit=1)
        [target], _ = runtime.database.read(pending)
        target_execution.execute(runtime, target.job_id)
        return FannedOut(targets=named)

    any_env.registry.add(replace(make_workflow("note", name_and_wait), each=bool))
    run = present(any_env.create().trigger().run)
    any_env.work()
    assert (run.refresh().status, run.target_counts) == ("succeeded", {"succeeded": 1})


def test_the_decorator_takes_a_function_or_a_name() -> None:
    @workflow("remind-by-test", targets="due-customers")
    def remind(customer: str) -> None: ...

    known = present(registry.get("remind-by-test"))
    registry.remove("remind-by-test")
    assert (known.targets, known.defaults["targets"]) == ("due-customers", "due-customers")
    with pytest.raises(InvalidInputError, match="neither a function that returns ids nor the name of one"):
        make_workflow("remind", remind, targets=5)  # type: ignore[arg-type]


def test_an_async_resolver_and_an_async_workflow_are_awaited(env: Env) -> None:
    calls: list[str] = []

    async def due() -> list[str]:
        return ["c-1"]

    async def remind(customer: str) -> None:
        calls.append(customer)

    env.registry.add(make_workflow("remind", remind, targets=due))
    run = present(env.scheduler.create("nightly", "remind", NIGHTLY).trigger().run)
    execute_pending(env.scheduler)
    assert (calls, run.refresh().status) == (["c-1"], "succeeded")


def test_targets_may_be_given_as_a_function_and_are_named_by_it(any_env: Env) -> None:
    reminders = Reminders(any_env)
    schedule = reminders.create(targets=present(any_env.registry.get("due-customers")).target)
    assert schedule.describe().targets == "due-customers"
    schedule.update(targets=None)
    assert schedule.describe().targets is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"targets": "nobody.knows_it"}, UnknownWorkflowError),
        ({"targets": "not a name"}, UnknownWorkflowError),
        ({"targets": 5}, InvalidInputError),
        ({"targets": "due-customers", "executor": "external"}, InvalidPolicyError),
    ],
)
def test_targets_that_make_no_sense_are_refused_before_anything_is_written(
    env: Env, options: dict[str, Any], error: type[Exception]
) -> None:
    reminders = Reminders(env)
    with pytest.raises(error):
        reminders.create(**options)
    assert list(env.scheduler.iter()) == []


def test_a_worker_that_lacks_the_resolver_blocks_the_run(any_env: Env) -> None:
    reminders = Reminders(any_env)
    known = present(any_env.registry.get("due-customers"))
    schedule = reminders.create()
    any_env.registry.remove("due-customers")
    run = present(schedule.trigger().run)
    execute_pending(any_env.scheduler)
    assert run.refresh().is_blocked
    assert "no workflow named 'due-customers' is registered" in present(run.blocked_reason)
    any_env.registry.add(known)
    run.retry()
    execute_pending(any_env.scheduler)
    assert run.refresh().status == "succeeded"


def test_targets_are_found_by_their_dotted_path(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "billing_of_test.py").write_text(
        "def due_customers():\n    return ['c-1']\n\n\ndef remind(customer):\n    assert customer == 'c-1'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = env.scheduler.create("nightly", "billing_of_test.remind", NIGHTLY, targets="billing_of_test.due_customers")
    run = present(spec.trigger().run)
    execute_pending(env.scheduler)
    assert run.refresh().target_counts == {"succeeded": 1}
    sys.modules.pop("billing_of_test")


def test_a_workflow_that_handles_targets_itself_takes_no_other_resolver(env: Env) -> None:
    reminders = Reminders(env)
    env.registry.add(replace(make_workflow("machine", lambda: None), each=bool))
    run = present(env.scheduler.create("m", "machine", NIGHTLY, targets="due-customers", retry=ONCE).trigger().run)
    execute_pending(env.scheduler)
    assert "names its targets itself" in present(run.refresh().error)
    assert reminders.calls == []


def test_a_retried_run_asks_nobody_again_and_handles_what_has_failed(reminders: Reminders) -> None:
    asked: list[int] = []
    broken = ["c-2"]

    def due() -> list[str]:
        asked.append(1)
        return [f"c-{number}" for number in range(1, 3 + len(asked))]

    def act(customer: str) -> None:
        if customer in broken:
            raise RuntimeError("the mail server is away")

    reminders.due, reminders.act = due, act
    run = reminders.run()
    assert (run.status, run.target_counts) == ("failed", {"succeeded": 2, "failed": 1})
    broken.clear()
    run.retry()
    execute_pending(reminders.env.scheduler)
    assert (run.refresh().status, run.target_counts, asked) == ("succeeded", {"succeeded": 3}, [1])
    assert reminders.customers == ["c-1", "c-2", "c-3", "c-2"]
    attempts = reminders.env.runtime.database.read(
        lambda c: c.execute(sa.select(rows.c.attempt).order_by(rows.c.number)).scalars().all()
    )
    assert attempts == [1, 2, 1]
