"""Open Job Spec, dead letters: kept when their attempts are used up, listed, read, removed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.env import MINUTE
from tests.support.openjobspec import Ojs, refused
from tests.support.web import MakeWeb, Web

DEAD = "/ojs/v1/dead-letter"
KEPT: dict[str, Any] = {"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}
ERROR = {"code": "handler_error", "message": "no answer", "retryable": True, "details": {"host": "mail"}}


def listed(ojs: Ojs, **params: Any) -> dict[str, Any]:
    answer = ojs("GET", DEAD, params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def failed(ojs: Ojs, **fields: Any) -> dict[str, Any]:
    """A cron job whose only job has failed for good."""
    ojs.registered(**{"options": KEPT, **fields})
    ojs.advance_and_dispatch()
    job = ojs.fetched()
    assert ojs.nack(job, error=ERROR).json()["state"] == "discarded"
    return job


def test_without_dead_letters_the_list_is_empty(ojs: Ojs) -> None:
    pagination = {"total": 0, "has_more": False, "next_cursor": None, "limit": 50, "offset": 0}
    assert listed(ojs) == {"jobs": [], "pagination": pagination}


def test_a_job_whose_attempts_are_used_up_is_kept_with_its_errors(any_web: Web) -> None:
    ojs = Ojs(any_web)
    job = failed(ojs, args=["eu"])

    (kept,) = listed(ojs)["jobs"]

    assert kept == ojs("GET", f"{DEAD}/{job['id']}").json()["job"] == ojs.job(job)
    assert (kept["id"], kept["state"], kept["args"], kept["error"]) == (job["id"], "discarded", ["eu"], ERROR)
    assert kept["discarded_at"] == "2026-01-15T12:01:00.000Z"
    assert kept["errors"] == [{**ERROR, "attempt": 1, "occurred_at": "2026-01-15T12:01:00.000Z"}]


@pytest.mark.parametrize(
    ("retry", "error", "count"),
    [({}, ERROR, 0), ({"on_exhaustion": "discard"}, ERROR, 0),
     ({"on_exhaustion": "dead_letter", "max_attempts": 5}, {"message": "x", "retryable": False}, 1),
     ({"on_exhaustion": "dead_letter", "max_attempts": 5, "non_retryable_errors": ["a.b"]}, {"type": "a.b"}, 1),
     ({"max_attempts": 5}, {"code": "DEAD_LETTER", "message": "x"}, 1),
     ({"on_exhaustion": "dead_letter"}, {"code": "DISCARD", "message": "x"}, 0)],
    ids=["usually", "discard", "final", "a final type", "asked for", "discarded on purpose"],
)  # fmt: skip
def test_what_ends_as_a_dead_letter(ojs: Ojs, retry: dict[str, Any], error: Any, count: int) -> None:
    ojs.registered(options={"retry": {"max_attempts": 1, **retry}})
    ojs.advance_and_dispatch()
    assert ojs.nack(ojs.fetched(), error=error).json()["state"] == "discarded"
    assert listed(ojs)["pagination"]["total"] == count


def test_a_lost_job_is_a_dead_letter_too(ojs: Ojs) -> None:
    ojs.registered(options=KEPT)
    ojs.advance_and_dispatch()
    job = ojs.fetched()
    ojs.patched(enabled=False)
    ojs.env.advance(10 * MINUTE)
    ojs.env.recover()
    (kept,) = listed(ojs)["jobs"]
    assert (kept["id"], kept["error"]["code"]) == (job["id"], "x_lost")


def test_a_dead_letter_outlives_its_cron_job(ojs: Ojs) -> None:
    job = failed(ojs)
    ojs("DELETE", "/ojs/v1/cron/daily-report")
    assert [kept["id"] for kept in listed(ojs)["jobs"]] == [job["id"]]


def test_the_list_is_newest_first_by_page_offset_and_queue(any_web: Web) -> None:
    ojs = Ojs(any_web)
    for number in range(5):
        ojs.registered(name=f"job-{number}", options={**KEPT, "queue": "odd" if number % 2 else "even"})
        ojs.advance_and_dispatch()
        ojs.patched(f"job-{number}", enabled=False)
        ojs.nack(ojs.fetch("odd", "even")[0])

    def names(page: dict[str, Any]) -> list[str]:
        return [job["meta"]["cron_name"] for job in page["jobs"]]

    pages = [listed(ojs, limit=2)]
    while pages[-1]["pagination"]["has_more"]:
        pages.append(listed(ojs, limit=2, cursor=pages[-1]["pagination"]["next_cursor"]))
    assert [names(page) for page in pages] == [["job-4", "job-3"], ["job-2", "job-1"], ["job-0"]]
    assert {page["pagination"]["total"] for page in pages} == {5}
    assert names(listed(ojs, offset=3)) == ["job-1", "job-0"]
    assert names(listed(ojs, queue="odd")) == ["job-3", "job-1"]
    assert listed(ojs, queue="odd")["pagination"]["total"] == 2
    assert listed(ojs, limit=1_000_000)["pagination"]["limit"] == 100


def test_a_dead_letter_is_tried_again_with_its_errors(any_web: Web) -> None:
    ojs = Ojs(any_web)
    job = failed(ojs)
    ojs.patched(enabled=False)

    answer = ojs("POST", f"{DEAD}/{job['id']}/retry")

    assert answer.status_code == 200, answer.text
    shown = answer.json()["job"]
    assert shown == ojs.job(job) | {"re_enqueued_at": "2026-01-15T12:01:00.000Z"}, "the whole job"
    assert (shown["id"], shown["state"], shown["attempt"]) == (job["id"], "available", 1)
    assert listed(ojs)["jobs"] == []
    again = ojs.fetched()
    assert (again["id"], again["attempt"], len(again["errors"])) == (job["id"], 2, 1)
    ojs.nack(again)
    assert [len(kept["errors"]) for kept in listed(ojs)["jobs"]] == [2], "it failed again"


def test_a_dead_letter_of_a_removed_cron_job_is_not_tried_again(ojs: Ojs) -> None:
    job = failed(ojs)
    ojs("DELETE", "/ojs/v1/cron/daily-report")
    error = refused(ojs("POST", f"{DEAD}/{job['id']}/retry"), 409, "invalid_request")
    assert error["details"] == {"job_id": job["id"], "current_state": "discarded"}
    assert listed(ojs)["pagination"]["total"] == 1
    refused(ojs("POST", f"{DEAD}/nonsense/retry"), 404, "not_found")


def test_a_removed_dead_letter_is_gone_and_stays_in_the_history(ojs: Ojs) -> None:
    job = failed(ojs)
    answer = ojs("DELETE", f"{DEAD}/{job['id']}")
    assert (answer.status_code, answer.json()) == (200, {"deleted": True, "job_id": job["id"]})
    assert listed(ojs)["jobs"] == []
    for method in ("GET", "DELETE"):
        error = refused(ojs(method, f"{DEAD}/{job['id']}"), 404, "not_found")
        assert error["details"] == {"resource_type": "dead_letter_job", "resource_id": job["id"]}
    assert ojs.job(job)["state"] == "discarded"


def test_a_job_that_is_no_dead_letter_is_not_found_there(ojs: Ojs) -> None:
    ojs.registered()
    ojs.advance_and_dispatch()
    job = ojs.fetched()
    for job_id in (job["id"], "nonsense"):
        refused(ojs("GET", f"{DEAD}/{job_id}"), 404, "not_found")
        refused(ojs("DELETE", f"{DEAD}/{job_id}"), 404, "not_found")


def test_dead_letters_of_another_namespace_are_not_visible(make_web: MakeWeb) -> None:
    web = make_web()
    red, blue = (Ojs(Web(web.app, web.env, {"X-Namespace": name})) for name in ("red", "blue"))
    job = failed(red)
    assert listed(blue)["pagination"]["total"] == 0
    for method in ("GET", "DELETE"):
        refused(blue(method, f"{DEAD}/{job['id']}"), 404, "not_found")
    assert listed(red)["pagination"]["total"] == 1


@pytest.mark.parametrize("params", [{"limit": 0}, {"offset": -1}, {"cursor": "%%"}, {"queue": "A queue"}], ids=str)
def test_an_invalid_request_for_dead_letters_is_refused(ojs: Ojs, params: dict[str, Any]) -> None:
    refused(ojs("GET", DEAD, params=params), 400, "invalid_request")
