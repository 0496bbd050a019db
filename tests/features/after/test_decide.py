"""One schedule after another, as decisions: each end has one outcome, whatever the policies; a circle is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqsched.errors import UpstreamError
from rqsched.features.after.decide import (
    Followed,
    Thaw,
    UpstreamEnd,
    counts_for,
    decide_after,
    ended_runs,
    next_try_at,
    require_no_cycle,
)
from rqsched.features.after.upstreams import in_order
from rqsched.kernel.decide import audit, lifecycle
from rqsched.kernel.decide.model import OPEN, Change, RunKind, RunStatus, Schedule, ScheduleStatus
from rqsched.kernel.decide.policy import KEEPS_ALL, MissedPolicy, OnResume, OverlapPolicy, Policies
from rqsched.when.members import ENDS, After
from tests.support.decisions import active, holding, run
from tests.support.env import HOUR, MINUTE, NOON, ONCE, SECOND

UPSTREAM = "01KF0000000000000000000UPS"


def after(**policies: Any) -> Schedule:
    limit = policies.pop("max_runs", None)
    given = Policies(retry=ONCE, **policies)
    return active(After("nightly", on="end"), policies=given, max_runs=limit)


def end(number: int, ago: timedelta = timedelta(0)) -> UpstreamEnd:
    at = NOON + HOUR - ago
    return UpstreamEnd(f"01KE{number:022d}", "D", UPSTREAM, "succeeded", at, at)


def recorded(change: Change) -> Counter[str]:
    """How many ends the Change says were started, skipped and missed."""
    found = Counter[str]()
    for event in change.events:
        if event.type in {audit.TRIGGERED, audit.BUFFERED} and event.payload.get("outcome") in {
            "triggered",
            "buffered",
        }:
            found["started"] += 1
        elif event.type == audit.SKIPPED:
            found["skipped"] += 1
        elif event.type == audit.MISSED:
            found["missed"] += event.payload["count"]
    return found


ENDS_OF_RUNS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 7_200)), unique_by=lambda one: one[0], max_size=8
).map(lambda found: [end(number, timedelta(seconds=ago)) for number, ago in found])
POLICIES = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(OverlapPolicy),
        "missed": st.sampled_from(MissedPolicy),
        "fire_within": st.sampled_from([None, MINUTE, HOUR]),
        "missed_limit": st.integers(1, 4),
        "max_runs": st.sampled_from([None, 1, 2]),
        "environments": st.sampled_from([(), ("production",)]),
    }
)
THAWS = st.sampled_from([None, Thaw(), Thaw(MissedPolicy.ALL), Thaw(is_missed=True)])


@given(POLICIES, ENDS_OF_RUNS, THAWS, st.sampled_from(["active", "paused", "done", "dead"]), st.booleans())
def test_each_end_has_one_outcome_and_the_events_say_the_same(
    policies: dict[str, Any], ends: Sequence[UpstreamEnd], thaw: Thaw | None, status: str, is_busy: bool
) -> None:
    if policies["missed"] is not MissedPolicy.ALL:
        policies = {name: value for name, value in policies.items() if name != "missed_limit"}
    elif policies["overlap"] not in KEEPS_ALL:
        policies = {**policies, "overlap": OverlapPolicy.BUFFER_ALL}
    schedule, runs = after(**policies), [run(1)] if is_busy else []
    schedule = holding(replace(schedule, status=ScheduleStatus(status)), *runs)
    change, outcomes = decide_after(schedule, runs, ends, now=NOON + HOUR, thaw=thaw)
    assert outcomes.keys() == {one.run_uid for one in ends}
    found, told = Counter(outcomes.values()), recorded(change)
    kept = change.after.missed_run_uid is not None
    assert (told["started"], told["skipped"], told["missed"] + kept) == (
        found[Followed.STARTED],
        found[Followed.SKIPPED],
        found[Followed.MISSED],
    )
    started = [one.upstream_run_uid for one in change.new_runs]
    assert sorted(started, key=str) == sorted(uid for uid, one in outcomes.items() if one is Followed.STARTED)
    assert all(one.kind is RunKind.AFTER for one in change.new_runs)
    assert change.after.next_run_at is None
    assert decide_after(schedule, runs, [*ends][::-1], now=NOON + HOUR, thaw=thaw) == (change, outcomes)


@pytest.mark.parametrize(
    ("missed", "followed"), [(MissedPolicy.FIRE_ONCE, [0]), (MissedPolicy.SKIP, [2]), (MissedPolicy.ALL, [1, 2])]
)
def test_a_thaw_follows_the_ends_that_its_policy_names(missed: MissedPolicy, followed: list[int]) -> None:
    ends = [end(number, SECOND * (3 - number)) for number in range(3)]
    schedule = after(missed=MissedPolicy.ALL, missed_limit=2, overlap=OverlapPolicy.ALLOW_ALL)

    change, _ = decide_after(schedule, [], ends, now=NOON + HOUR, thaw=Thaw(missed))

    assert [one.upstream_run_uid for one in change.new_runs] == [ends[number].run_uid for number in followed]


@given(ENDS_OF_RUNS, ENDS_OF_RUNS, st.sampled_from(OnResume))
def test_a_pause_leaves_at_most_one_run_whatever_came_meanwhile(
    first: Sequence[UpstreamEnd], second: Sequence[UpstreamEnd], mode: OnResume
) -> None:
    schedule = lifecycle.decide_pause(after(fire_within=SECOND), now=NOON).after
    told = Counter[str]()
    for ends in (first, second):
        change, _ = decide_after(schedule, [], ends, now=NOON + HOUR)
        told, schedule = told + recorded(change), change.after
    resumed = lifecycle.decide_resume(schedule, [], now=NOON + HOUR, on_resume=mode)
    told += recorded(resumed)
    newest = max((*first, *second), key=lambda one: (one.ended_at, one.run_uid), default=None)
    total, starts = len(first) + len(second), int(newest is not None and mode is OnResume.ONCE)
    assert resumed.new_runs == ()
    if resumed.owed_again is not None and newest is not None:
        assert resumed.owed_again == (newest.run_uid, newest.ended_at)
        again = replace(newest, due_at=NOON + HOUR, followed=Followed.MISSED.value)
        resumed_run, _ = decide_after(resumed.after, [], [again], now=NOON + HOUR)
        assert [one.occurrence_at for one in resumed_run.new_runs] == [newest.ended_at]
        told += recorded(resumed_run)
    assert (told["started"], told["missed"], told["skipped"]) == (starts, total - starts, 0)
    assert resumed.after.missed_run_uid is None
    assert resumed.after.status is ScheduleStatus.ACTIVE


@pytest.mark.parametrize("status", [one for one in RunStatus if one not in OPEN])
def test_an_end_is_a_success_or_a_failure_and_always_an_end(status: RunStatus) -> None:
    assert counts_for("end", status)
    assert counts_for("success", status) is (status is RunStatus.SUCCEEDED)
    assert counts_for("failure", status) is not counts_for("success", status)
    assert set(ENDS) == {"success", "failure", "end"}


@pytest.mark.parametrize("kind", RunKind)
@pytest.mark.parametrize("began", [False, True])
def test_a_backfilled_run_and_one_that_never_began_are_not_come_after(kind: RunKind, began: bool) -> None:
    schedule = replace(active(), followed_at=NOON)
    before = run(1, kind=kind.value, trigger_number=7 if began else None)
    change = Change(schedule, schedule, changed_runs=((before, replace(before, status=RunStatus.CANCELLED)),))
    assert bool(ended_runs(change)) is (began and kind is not RunKind.BACKFILL)
    assert ended_runs(replace(change, after=replace(schedule, followed_at=None))) == []
    assert ended_runs(replace(change, changed_runs=((before, before),))) == []


@given(st.integers(0, 10_000))
def test_an_end_is_never_given_up_and_waits_five_minutes_at_most(tries: int) -> None:
    again_at = next_try_at(replace(end(1), tries=tries), NOON)
    assert SECOND <= again_at - NOON <= 5 * MINUTE


NAMES = st.sampled_from("abcdefgh")
EDGES = st.dictionaries(NAMES, NAMES, max_size=8)


@given(EDGES)
def test_a_circle_is_found_wherever_there_is_one(edges: dict[str, str]) -> None:
    def is_in_circle(first: str) -> bool:
        at = edges.get(first)
        for _ in edges:
            if at == first:
                return True
            at = edges.get(at or "")
        return False

    for name in edges:
        if is_in_circle(name):
            with pytest.raises(UpstreamError, match=f"{name} after "):
                require_no_cycle(edges, [name])
        else:
            require_no_cycle(edges, [name])


def test_a_chain_of_many_is_looked_at_once() -> None:
    looked = Counter[str]()

    class Chain(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            looked[name] += 1
            return super().get(name, default)

    chain = Chain({f"s{n}": f"s{n - 1}" for n in range(1, 300)})
    require_no_cycle(chain, list(chain)[::-1])
    assert max(looked.values()) == 1


@given(EDGES)
def test_a_set_is_written_in_an_order_in_which_each_finds_what_it_comes_after(edges: dict[str, str]) -> None:
    wanted: dict[str, str | None] = {name: edges.get(name) for name in "hgfedcba"}
    try:
        require_no_cycle(edges, edges)
    except UpstreamError:
        return
    ordered = in_order(wanted)
    assert sorted(ordered) == sorted(wanted)
    for name, upstream in edges.items():
        assert ordered.index(upstream) < ordered.index(name)
