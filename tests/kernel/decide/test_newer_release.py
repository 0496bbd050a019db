"""Decisions about a timing that only a newer release knows: none of them evaluates it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rqsched.errors import NewerReleaseError
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.model import RunStatus, Schedule, ScheduleStatus, dump_spec
from rqsched.kernel.decide.payload import dumps, loads
from rqsched.kernel.decide.policy import FailurePolicy, OnResume, Policies, RetryPolicy
from rqsched.kernel.decide.schedule_repair import decide_replan, decide_retime
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from rqsched.when.spec import Every, Spec
from tests.support.decisions import active, event, fire, holding, run, types
from tests.support.env import DAY, HOUR, MINUTE, NOON

DEAD = Policies(retry=RetryPolicy(max_retries=0, then=FailurePolicy.DEAD))


def of_newer(schedule: Schedule) -> Schedule:
    spec = loads(schedule.definition.spec) | {"moon": "full"}
    return replace(schedule, definition=replace(schedule.definition, spec=dumps(spec)))


def as_known(schedule: Schedule) -> Schedule:
    """As a process of the newer release sees it."""
    spec = loads(schedule.definition.spec)
    del spec["moon"]
    return replace(schedule, definition=replace(schedule.definition, spec=dumps(spec)))


def test_it_is_neither_changed_nor_planned_and_keeps_what_it_says() -> None:
    hourly = of_newer(active())
    changed = define(hourly.definition, {"labels": {"team": "billing"}})
    with pytest.raises(NewerReleaseError, match="unknown key 'moon'"):
        lifecycle.decide_update(hourly, changed, now=NOON)
    with pytest.raises(NewerReleaseError):
        lifecycle.decide_update(hourly, define(hourly.definition, {}, spec="0 3 * * *"), now=NOON)
    assert decide_retime(hourly, now=NOON, tzdata="2027a").is_empty
    assert decide_replan(replace(hourly, next_run_at=None, due_at=None), None, now=NOON).is_empty

    paused = lifecycle.decide_pause(hourly, now=NOON, until=NOON + HOUR, on_resume=OnResume.NEXT).after
    assert paused.definition == hourly.definition
    assert lifecycle.decide_end_pause(paused, [], now=NOON + HOUR).is_empty
    for on_resume in OnResume:
        with pytest.raises(NewerReleaseError):
            lifecycle.decide_resume(paused, [], now=NOON + MINUTE, on_resume=on_resume)


@pytest.mark.parametrize("stop", [lifecycle.decide_pause, lifecycle.decide_delete])
def test_a_stop_writes_off_the_stored_occurrence_alone(stop: object) -> None:
    assert callable(stop)
    change = stop(of_newer(active()), now=NOON + DAY)
    assert event(change, "TriggerSkipped")["occurrence_time"] == "2026-01-15T13:00:00Z"
    assert (change.after.skipped_count, change.after.missed_count) == (1, 0)


@pytest.mark.parametrize(("outcome", "status"), [("succeeded", "active"), ("failed", "dead")])
def test_a_run_ends_and_may_be_the_end_of_it(outcome: str, status: str) -> None:
    begun = run(1)
    hourly = of_newer(holding(active(policies=DEAD), begun))
    change = decide_settle(hourly, [begun], begun, AttemptResult(AttemptOutcome(outcome), error="no"), now=NOON + HOUR)
    assert (change.after.status, change.changed_runs[0][1].status) == (status, outcome)


def test_one_that_counts_from_the_end_of_its_run_is_planned_by_a_process_that_knows_it() -> None:
    fired = fire(active(Spec(Every("1h", from_completion=True))))
    (begun,) = fired.new_runs
    begun = replace(begun, status=RunStatus.RUNNING)
    done = AttemptResult(AttemptOutcome.SUCCEEDED)
    change = decide_settle(of_newer(fired.after), [begun], begun, done, now=NOON + 3 * HOUR)
    assert (change.after.status, change.after.next_run_at, change.after.awaiting_run_uid) == (
        ScheduleStatus.ACTIVE, None, begun.uid,
    )  # fmt: skip

    ((_, ended),) = change.changed_runs
    planned = decide_replan(as_known(change.after), ended, now=NOON + 3 * HOUR + MINUTE)
    assert planned.after.next_run_at == NOON + 4 * HOUR
    assert types(planned) == ["Recovered"]


def test_what_cannot_be_read_at_all_is_of_a_newer_release_too() -> None:
    forms: list[dict[str, Any]] = [
        {"moons": ["full"]},
        {"cron_expressions": ["0 9 * * BANKDAY"]},
        {"crons": [7]},
        {"intervals": {}},
    ]
    for spec in forms:
        found = Spec.from_stored(spec | {"timezone": "UTC"})
        assert (found.members, bool(found.newer)) == ((), True)
        assert found.describe().startswith("of a newer release (")
        with pytest.raises(NewerReleaseError):
            dump_spec(found)
