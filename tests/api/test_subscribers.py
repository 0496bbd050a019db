"""Subscribers: told after commit, in our words and in Open Job Spec's, and harmless when they raise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rqsched import Cron, RetryPolicy
from rqsched.core.ids import uid_to_uuid
from rqsched.errors import InvalidInputError, RqschedError
from rqsched.signals import everywhere, on
from tests.support.desk import HOUR, MINUTE, Desk, newest, types

Messages = list[dict[str, Any]]


def heard(desk: Desk, name: str) -> Messages:
    messages: Messages = []
    desk.scheduler.on(name, messages.append)
    return messages


def test_a_fire_is_emitted_as_cron_triggered(any_desk: Desk) -> None:
    messages = heard(any_desk, "cron.triggered")
    schedule = any_desk.create("daily-report")

    any_desk.fire(MINUTE)

    assert messages == [
        {
            "event": "cron.triggered",
            "data": {
                "cron_name": "daily-report",
                "job_id": uid_to_uuid(newest(schedule).uid),
                "job_type": "note",
                "run_count": 1,
                "scheduled_time": "2026-01-15T12:01:00Z",
                "actual_time": "2026-01-15T12:01:00Z",
            },
        }
    ]


def test_a_failed_run_and_the_success_after_it_are_emitted_and_a_further_success_is_not(any_desk: Desk) -> None:
    messages = heard(any_desk, "RunFailed")
    successes = heard(any_desk, "RunSucceeded")
    schedule = any_desk.create(retry=RetryPolicy(max_retries=0))

    any_desk.failing = True
    any_desk.fire()
    any_desk.work()
    failed = newest(schedule)
    any_desk.failing = False
    for _ in range(2):
        any_desk.fire()
        any_desk.work()

    [message] = messages
    assert message["data"]["workflow_run_id"] == failed.uid
    assert message["data"]["error"] == "RuntimeError: as the test wants it"
    assert (message["data"]["schedule_id"], message["data"]["attempt"]) == ("report", 1)
    assert [one["data"]["consecutive_failures"] for one in successes] == [1]


def test_a_skip_is_emitted_as_cron_skipped_with_the_blocking_run(any_desk: Desk) -> None:
    messages = heard(any_desk, "cron.skipped")
    schedule = any_desk.create()

    any_desk.fire()
    any_desk.fire()

    assert [message["data"] for message in messages] == [
        {
            "cron_name": "report",
            "reason": "overlap_skip",
            "active_job_id": uid_to_uuid(newest(schedule).uid),
            "scheduled_time": "2026-01-15T12:02:00Z",
        }
    ]


def test_an_occurrence_due_at_a_pause_is_emitted_as_skipped(desk: Desk) -> None:
    messages = heard(desk, "cron.skipped")
    schedule = desk.create()
    desk.advance(MINUTE)
    schedule.pause()
    assert [message["data"]["reason"] for message in messages] == ["disabled"]


def test_a_local_time_that_a_clock_change_skips_is_emitted_as_skipped(desk: Desk) -> None:
    messages = heard(desk, "cron.skipped")
    desk.create(spec=Cron("30 2 * * *", "America/New_York"))
    desk.turn(51 * 24 * HOUR)  # to the 7th of March 2026; on the 8th New York has no 2:30
    desk.turn(48 * HOUR)
    assert ("dst_skip", "2026-03-08T07:30:00Z") in [
        (message["data"]["reason"], message["data"]["scheduled_time"]) for message in messages
    ]


def test_every_audit_event_is_emitted_under_its_type_and_under_the_star(any_desk: Desk) -> None:
    paused, everything = heard(any_desk, "SchedulePaused"), heard(any_desk, "*")
    schedule = any_desk.create()

    schedule.pause(reason="why")
    schedule.resume()
    schedule.delete()

    assert [message["data"] for message in paused] == [
        {"schedule_id": "report", "reason": "why", "paused_at": "2026-01-15T12:00:00Z"}
    ]
    assert [message["event"].removeprefix("Schedule") for message in everything] == types(schedule)


def test_subscribers_are_called_after_the_commit(any_desk: Desk) -> None:
    statuses: list[str] = []
    any_desk.scheduler.on("ScheduleCreated", lambda _: statuses.append(any_desk.scheduler.get("report").status))
    any_desk.create()
    assert statuses == ["active"], "another connection sees it already"


def test_a_rolled_back_change_is_not_emitted(desk: Desk) -> None:
    everything = heard(desk, "*")
    desk.create()
    refusals: tuple[Callable[[], object], ...] = (desk.create, desk.scheduler.get("report").resume)
    for refused in refusals:
        with pytest.raises(RqschedError):
            refused()
    assert len(everything) == 1


def test_a_subscriber_that_raises_harms_nothing(any_desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: dict[str, Any]) -> None:
        raise RuntimeError("as the test wants it")

    any_desk.scheduler.on("*", fail)
    messages = heard(any_desk, "cron.triggered")
    schedule = any_desk.create()

    with caplog.at_level(logging.ERROR):
        any_desk.turn()

    assert (newest(schedule).status, len(messages)) == ("succeeded", 1)
    assert "subscriber_failed" in {getattr(record, "action", None) for record in caplog.records}


def test_an_unknown_event_name_is_refused(desk: Desk) -> None:
    with pytest.raises(InvalidInputError, match=r"cron\.skipped"):
        desk.scheduler.on("cron.skiped", print)


@pytest.fixture
def everywhere_heard() -> Iterator[Messages]:
    messages: Messages = []
    on("cron.triggered")(messages.append)
    yield messages
    everywhere.remove("cron.triggered", messages.append)


def test_a_module_subscribes_for_every_scheduler_and_worker_of_its_process(
    desk: Desk, everywhere_heard: Messages
) -> None:
    desk.create()
    desk.fire()
    assert [message["data"]["cron_name"] for message in everywhere_heard] == ["report"]
