"""RQ forks a work horse for every job. Afterwards parent and child use separate connections."""

from __future__ import annotations

from functools import partial

import pytest

from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.settle import lose_run
from tests.support.children import in_children
from tests.support.env import ONCE, Env, job_id, link_id, newest, outcomes, statuses
from tests.support.narrow import present


def test_a_forked_child_fires_and_its_parent_continues(any_env: Env) -> None:
    schedule = any_env.create(overlap="allow_all")
    any_env.fire_next(schedule)
    any_env.advance()

    assert in_children(1, lambda: outcomes(any_env.deliver(schedule.refresh()))) == [["fired"]]

    any_env.fire_next(schedule)
    assert statuses(schedule) == ["pending"] * 3
    assert len(any_env.queued()) == 3


def test_several_children_fire_one_link_once(any_env: Env) -> None:
    schedule = any_env.create()
    link = link_id(schedule)
    any_env.advance()

    answers = in_children(4, lambda: outcomes(any_env.deliver(link)))

    assert sorted(answer[0] for answer in answers) == ["fired", "stale", "stale", "stale"]
    assert statuses(schedule) == ["pending"]
    assert len(any_env.queued()) == 1


def test_one_of_several_children_gets_a_run(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())
    job = job_id(run.state)

    claims = in_children(4, lambda: claim_run(any_env.runtime, job) is not None)

    assert sorted(claims) == [False, False, False, True]


def test_a_horses_death_is_settled_by_the_process_that_forked_it(any_env: Env) -> None:
    """The horse claimed the run over its own connection and died without a report."""
    schedule = any_env.create(retry=ONCE)
    run = any_env.fire_next(schedule)
    job = job_id(run.state)
    in_children(1, lambda: claim_run(any_env.runtime, job) is not None)
    assert run.refresh().status == "running"

    lose_run(any_env.runtime, job, "its work horse died")

    assert (run.refresh().status, run.error) == ("lost", "its work horse died")


def test_a_horses_death_is_not_settled_twice(any_env: Env) -> None:
    schedule = any_env.create(retry=ONCE)
    run = any_env.fire_next(schedule)
    job = job_id(run.state)
    claim_run(any_env.runtime, job)

    changes = in_children(3, lambda: lose_run(any_env.runtime, job, "its work horse died") is not None)

    assert sorted(changes) == [False, False, True]
    assert any_env.state(schedule).error_count == 1
    assert newest(schedule).status == "lost"


@pytest.mark.parametrize("is_stopped", [False, True], ids=["died", "stopped"])
def test_the_death_of_a_process_that_had_claimed_nothing_leaves_the_run_of_another_alone(
    any_env: Env, is_stopped: bool
) -> None:
    """The same job was delivered to both processes. The dead one had drawn a token and lost the race for the claim."""
    run = any_env.fire_next(any_env.create(retry=ONCE))
    job = job_id(run.state)
    claim = present(claim_run(any_env.runtime, job))

    lose = partial(lose_run, any_env.runtime, job, "its runner died", is_stopped=is_stopped)
    assert lose(token="another") is None
    assert run.refresh().status == "running"

    assert lose(token=claim.token) is not None
    assert run.refresh().status == ("terminated" if is_stopped else "lost")


def test_the_token_is_told_before_the_claim(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create(retry=ONCE))
    told: list[tuple[str, str]] = []
    any_env.runtime.on_claim = lambda token: told.append((token, run.refresh().status))

    claim = claim_run(any_env.runtime, job_id(run.state))

    assert claim is not None
    assert told == [(claim.token, "pending")]
