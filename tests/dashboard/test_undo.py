"""The undo of an edit: the fields that it sets back, its refusals, and the event that it records."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rqsched import CommandContext, Cron, Every, RetryPolicy
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.dashboard.rendering import NOTHING
from rqsched.kernel.decide.model import DEFINITION
from tests.support.env import MINUTE, SECOND, Env
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb

AT = "/schedules/nightly/undo/{}"
EDITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "timing": ({}, {"spec": Every("2h")}),
    "timing-and-exclusions": ({"exclude": ["Sat, Sun"]}, {"spec": Every("2h"), "exclude": []}),
    "zone": ({"timezone": "Europe/Berlin"}, {"timezone": "UTC"}),
    "exclusions": ({}, {"exclude": ["2026-12-25"], "on_excluded": "next"}),
    "clocks": ({"timezone": "Europe/Berlin", "dst_fold": "both"}, {"dst_fold": "first", "dst_gap": "skip"}),
    "arguments": ({"args": ["eu"], "kwargs": {"a": [1, None]}}, {"args": [], "kwargs": {"b": "x"}}),
    "routing": ({"queue": "slow", "timeout": 90}, {"queue": None, "timeout": 30, "priority": 3}),
    "labels": ({"labels": {"team": "billing"}, "memo": {"x": 1}}, {"labels": {}, "memo": {}}),
    "policies": ({"overlap": "allow_all", "max_runs": 9}, {"overlap": "skip", "missed": "skip", "max_runs": None}),
    "delays": ({"jitter": "2m", "fire_within": "1h"}, {"jitter": 0, "fire_within": None, "spread": "1h"}),
    "retry": ({"retry": RetryPolicy(max_retries=7, base=30 * SECOND)}, {"retry": {"max_retries": 1, "cap": "2h"}}),
    "expectation": ({"expect_success_within": "26h"}, {"expect_success_within": None, "on_failure": "note"}),
    "monitor": (
        {"notifications": {"webhook": "https://hooks.example.com/s", "sentry": "a"}},
        {"notifications": {"webhook": "https://hooks.example.com/s", "sentry": "b", "events": ["RunFailed"]}},
    ),
    "webhook-added": ({}, {"notifications": {"webhook": "https://hooks.example.com/s"}}),
    "texts": ({"note": "a", "description": "b", "owner": "c"}, {"note": "x", "description": None, "owner": "d"}),
    "workflow": ({}, {"workflow": "other"}),
}  # fmt: skip


def create(env: Env, **options: Any) -> ScheduleHandle:
    env.register("other", print)
    return env.create("nightly", Cron("0 2 * * *"), **options)


def queue_of(handle: ScheduleHandle) -> str | None:
    return handle.refresh().state.definition.queue


def defined(handle: ScheduleHandle) -> dict[str, object]:
    state = handle.refresh().state
    return {name: getattr(state.definition, name) for name in DEFINITION} | {"note": state.note}


@pytest.fixture
def signing(make_web: MakeWeb) -> Pages:
    """The pages of a scheduler that may send webhooks."""
    return Pages(make_web(webhook_secret="a secret"))


def edit_and_undo(pages: Pages, edit: dict[str, Any], **options: Any) -> None:
    handle = create(pages.env, **options)
    before = defined(handle)
    pages.env.advance(MINUTE)
    handle.update(**edit)
    event = handle.history()[-1]
    assert defined(handle) != before
    page = pages.get(AT.format(event.sequence))
    assert ">Undo</button>" in page
    told = pages.do(AT.format(event.sequence), version=handle.state.version, reason="a mistake")
    assert f"The edit of nightly is undone: event {event.sequence}." in told
    assert defined(handle) == before
    undone = handle.history()[-1]
    assert undone.event_type == "ScheduleUpdated"
    assert undone.payload["command_context"]["context"] == {"undoes": event.sequence}
    assert undone.payload["command_context"]["reason"] == "a mistake"
    assert undone.payload["changes"] == {name: pair[::-1] for name, pair in event.payload["changes"].items()}


@pytest.mark.parametrize(("options", "edit"), EDITS.values(), ids=list(EDITS))
def test_undo_sets_back_every_value_that_the_edit_changed(
    signing: Pages, options: dict[str, Any], edit: dict[str, Any]
) -> None:
    edit_and_undo(signing, edit, **options)


@pytest.mark.every_database
def test_undo_of_a_timing_and_arguments_works_on_each_database(any_pages: Pages) -> None:
    edit_and_undo(any_pages, {"spec": Every("2h"), "kwargs": {"b": 2}}, kwargs={"a": "é"}, timezone="Europe/Berlin")


def test_history_and_audit_link_to_the_undo_and_name_the_event_that_was_undone(pages: Pages) -> None:
    handle = create(pages.env)
    handle.update(queue="slow", context=CommandContext(principal="ann"))
    link = f'href="/schedules/nightly/undo/2?of={handle.uid}"'
    for path in ("/schedules/nightly", "/audit"):
        assert (path, pages.get(path).count(link)) == (path, 1)
    told = pages.do(AT.format(2), version=2)
    assert "undoes event 2" in told
    assert "undoes event 2" in pages.get("/audit")


def test_page_shows_the_present_value_and_the_value_before_the_edit(pages: Pages) -> None:
    create(pages.env, labels={"team": "<b>"}).update(labels={}, queue="slow")
    page = pages.get(AT.format(2))
    rows = re.findall(r'<td class="name">(.*?)</td>.*?<bdi>(.*?)</bdi>.*?<bdi>(.*?)</bdi>', page)
    assert rows == [("labels", NOTHING, "{&#34;team&#34;: &#34;&lt;b&gt;&#34;}"), ("queue", "slow", NOTHING)]


def test_undo_is_refused_if_a_later_edit_changed_the_same_value(pages: Pages) -> None:
    handle = create(pages.env)
    handle.update(queue="slow", labels={"a": "b"})
    handle.update(queue="fast")
    page = pages.get(AT.format(2))
    assert "A later edit changed the same values, so nothing is set back." in page
    assert "it was changed by a later edit, event 3 by" in page
    assert ">Undo</button>" not in page
    answer = pages.send(AT.format(2), version=3)
    assert answer.status_code == 422
    assert "would overwrite a later edit of queue" in answer.text
    assert (queue_of(handle), handle.labels) == ("fast", {"a": "b"})


def test_later_edit_of_another_value_stays(pages: Pages) -> None:
    handle = create(pages.env, retry={"max_retries": 2})
    handle.update(queue="slow", retry={"max_retries": 5})
    handle.update(labels={"a": "b"}, retry={"base": "7s"})
    pages.do(AT.format(2), version=3)
    assert (queue_of(handle), handle.labels) == (None, {"a": "b"})
    retry = handle.state.policies.retry
    assert (retry.max_retries, retry.base) == (2, 7 * SECOND)


def test_change_since_the_page_was_shown_is_noticed(pages: Pages) -> None:
    handle = create(pages.env)
    handle.update(queue="slow")
    assert 'name="version" value="2"' in pages.get(AT.format(2))
    handle.update(labels={"a": "b"})
    answer = pages.send(AT.format(2), version=2)
    assert answer.status_code == 412
    assert "is at version 3, not 2" in answer.text
    assert queue_of(handle) == "slow"
    pages.do(AT.format(2), version=3)
    assert queue_of(handle) is None


def test_value_that_was_set_back_by_hand_is_left_out(pages: Pages) -> None:
    handle = create(pages.env)
    handle.update(queue="slow")
    handle.update(queue=None)
    assert "Every value is as it was before the edit." in pages.get(AT.format(2))
    assert "has nothing to set back" in pages.send(AT.format(2), version=3).text
    assert handle.refresh().state.version == 3


def test_url_and_long_value_are_not_recorded_and_not_set_back(signing: Pages) -> None:
    pages, env = signing, signing.env
    urls = [f"https://hooks.example.com/secret-{number}" for number in (1, 2)]
    handle = create(env, notifications={"webhook": urls[0]}, kwargs={"text": "x" * 5_000})
    handle.update(notifications={"webhook": urls[1]}, kwargs={}, queue="slow")
    assert "secret" not in str(handle.history()[-1].payload)
    assert handle.history()[-1].payload["changes"]["kwargs"] is None
    page = pages.get(AT.format(2))
    assert "secret" not in page
    assert "It is not set back: it is a URL, of which only the host is recorded." in page
    assert "It is not set back: it was too long to be recorded." in page
    pages.do(AT.format(2), version=2)
    assert (queue_of(handle), handle.state.definition.action) == (None, '{"args":[],"kwargs":{}}')
    assert handle.state.definition.parsed_notifications.webhook == urls[1]


def test_workflow_that_is_not_registered_is_refused(pages: Pages) -> None:
    path = "tests.support.cli_flows.unregistered"
    env = pages.env
    env.create("nightly", Cron("0 2 * * *"), path).update(workflow="note")
    answer = pages.send(AT.format(2), version=2)
    assert answer.status_code == 422
    assert f"no workflow named &#39;{path}&#39; is registered" in answer.text


@pytest.mark.parametrize("sequence", ["1", "9", "0", "x", "99999999999999999999"])
def test_event_that_is_no_edit_is_refused(pages: Pages, sequence: str) -> None:
    create(pages.env)
    assert "is no edit of this schedule" in pages.get(AT.format(sequence), status=422)


def test_event_of_a_deleted_schedule_with_the_same_id_is_refused(pages: Pages) -> None:
    old = create(pages.env)
    old.update(queue="slow")
    old.delete()
    new = create(pages.env)
    new.update(queue="fast")
    answer = pages.get(f"/schedules/nightly/undo/2?of={old.uid}", status=422)
    assert "is of a deleted schedule with the same id" in answer
    assert pages.send(AT.format(2), version=2, of=old.uid).status_code == 422
    assert queue_of(new) == "fast"


def test_only_an_admin_may_undo(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    handle = create(web.env)
    handle.update(queue="slow")
    pages = Pages(web).log_in("operator")
    assert "/undo/" not in pages.get("/schedules/nightly")
    assert "/undo/" not in pages.get("/audit")
    pages.get(AT.format(2), status=403)
    assert pages.send(AT.format(2), version=2).status_code == 403
    assert queue_of(handle) == "slow"
