"""Running a run again over HTTP: its answer, the role that other arguments need, and lost answers to clients."""

from __future__ import annotations

import pytest

from rqsched.errors import RunStateError
from rqsched.kernel.decide import audit
from tests.support.client import InProcess, client_of
from tests.support.env import all_runs, events
from tests.support.web import MakeWeb, Web, at, one_token, problem

AGAIN = at(operation="runs/1/again/")


def ended(web: Web) -> Web:
    """A schedule whose first run has succeeded."""
    web.env.run_next(web.env.create(kwargs={"part": 1}))
    return web


def test_the_answer_is_the_new_run(any_web: Web) -> None:
    first = ended(any_web).get(at(operation="runs/1/")).json()
    answer = any_web.post(AGAIN, {"reason": "the file is complete now", "downstream": True})
    assert answer.status_code == 200
    run = answer.json()
    assert (run["number"], run["kind"], run["copied_from"]) == (2, "manual", first["uid"])
    assert (run["occurrence_at"], first["copied_from"]) == (first["occurrence_at"], None)
    (summary, _) = any_web.get(at(operation="runs/"), params={"fields": "summary"}).json()["items"]
    assert (summary["copied_from"], "lineage" in summary) == (first["uid"], False)
    (event,) = events(any_web.env.scheduler.get("report"), audit.RUN_COPIED)
    assert (event.payload["reason"], event.payload["downstream"]) == ("the file is complete now", True)
    problem(any_web.post(at(operation="runs/2/again/")), 409, "invalid_run_state")
    problem(any_web.post(at(operation="runs/9/again/")), 404, "run_not_found")


def test_other_arguments_need_the_role_admin_and_a_reason(make_web: MakeWeb) -> None:
    web = ended(make_web(tokens=one_token("may-operate-only", "operate"))).acting_as("may-operate-only")
    found = problem(web.post(AGAIN, {"kwargs": {"part": 2}, "reason": "x"}), 403, "forbidden")
    assert "'admin'" in found["detail"]
    problem(web.post(AGAIN, {"args": [], "reason": "x"}), 403, "forbidden")
    assert web.post(AGAIN).status_code == 200
    assert len(all_runs(web.env.scheduler.get("report"))) == 2


def test_an_admin_gives_other_arguments_with_a_reason(any_web: Web) -> None:
    ended(any_web)
    found = problem(any_web.post(AGAIN, {"kwargs": {"part": 2}}), 422, "invalid_input")
    assert "reason" in found["detail"]
    assert any_web.post(AGAIN, {"kwargs": {"part": 2}, "reason": "x"}).json()["kwargs"] == {"part": 2}


def test_a_client_whose_answers_are_lost_starts_one_run(any_web: Web) -> None:
    ended(any_web)
    transport = InProcess(any_web)
    run = client_of(any_web, transport).get("report").run("1")
    transport.lost = 2

    copy = run.run_again("lost twice")

    assert (copy.copied_from, run.number, copy.number) == (run.uid, 1, 2)
    assert len(all_runs(any_web.env.scheduler.get("report"))) == 2
    assert run.run_again(idempotency_key="mine").uid == run.run_again(idempotency_key="mine").uid
    with pytest.raises(RunStateError):
        copy.run_again()
