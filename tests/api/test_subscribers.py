"""Subscribers: told after commit, in our words and in Open Job Spec's, and harmless when they raise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rqsched import Cron
from rqsched.errors import InvalidInputError, RqschedError
from rqsched.kernel.decide.ids import uid_to_uuid
from rqsched.signals import everywhere, on
from tests.support.env import HOUR, MINUTE, ONCE, Env, newest, types

Messages = list[dict[str, Any]]


def heard(env: Env, name: str) -> Messages:
    messages: Messages = []
    env.scheduler.on(name, messages.append)
    return messages


def test_a_fire_is_emitted_as_cron_triggered(any_env: Env) -> None:
    messages = heard(any_env, "cron.triggered")
    schedule = any_env.create("daily-report")

    any_env.tick(MINUTE)

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


def test_a_failed_run_and_the_success_after_it_are_emitted_and_a_further_success_is_not(any_env: Env) -> None:
    messages = heard(any_env, "RunFailed")
    successes = heard(any_env, "RunSucceeded")
    schedule = any_env.create(retry=ONCE)

    any_env.failing = True
    any_env.tick()
    any_env.execute_pending()
    failed = newest(schedule)
    any_env.failing = False
    for _ in range(2):
        any_env.tick()
        any_env.execute_pending()

    [message] = messages
    assert message["data"]["workflow_run_id"] == failed.uid
    assert message["data"]["error"] == "RuntimeError: as the test wants it"
    assert (message["data"]["schedule_id"], message["data"]["attempt"]) == ("report", 1)
    assert [one["data"]["consecutive_failures"] for one in successes] == [1]


def test_a_skip_is_emitted_as_cron_skipped_with_the_blocking_run(any_env: Env) -> None:
    messages = heard(any_env, "cron.skipped")
    schedule = any_env.create()

    any_env.tick()
    any_env.tick()

    assert [message["data"] for message in messages] == [
        {
            "cron_name": "report",
            "reason": "overlap_skip",
            "active_job_id": uid_to_uuid(newest(schedule).uid),
            "scheduled_time": "2026-01-15T12:02:00Z",
        }
    ]


def test_an_occurrence_due_at_a_pause_is_emitted_as_skipped(env: Env) -> None:
    messages = heard(env, "cron.skipped")
    schedule = env.create()
    env.advance(MINUTE)
    schedule.pause()
    assert [message["data"]["reason"] for message in messages] == ["disabled"]


def test_a_local_time_that_a_clock_change_skips_is_emitted_as_skipped(env: Env) -> None:
    messages = heard(env, "cron.skipped")
    env.create(spec=Cron("30 2 * * *", "America/New_York"), dst_gap="skip")
    env.run_due(51 * 24 * HOUR)  # to the 7th of March 2026; on the 8th New York has no 2:30
    env.run_due(48 * HOUR)
    assert ("dst_skip", "2026-03-08T07:30:00Z") in [
        (message["data"]["reason"], message["data"]["scheduled_time"]) for message in messages
    ]


def test_every_audit_event_is_emitted_under_its_type_and_under_the_star(any_env: Env) -> None:
    paused, everything = heard(any_env, "SchedulePaused"), heard(any_env, "*")
    schedule = any_env.create()

    schedule.pause(reason="why")
    schedule.resume()
    schedule.delete()

    assert [message["data"] for message in paused] == [
        {"schedule_id": "report", "reason": "why", "paused_at": "2026-01-15T12:00:00Z"}
    ]
    assert [message["event"].removeprefix("Schedule") for message in everything] == types(schedule)


def test_subscribers_are_called_after_the_commit(any_env: Env) -> None:
    statuses: list[str] = []
    any_env.scheduler.on("ScheduleCreated", lambda _: statuses.append(any_env.scheduler.get("report").status))
    any_env.create()
    assert statuses == ["active"], "another connection sees it already"


def test_a_rolled_back_change_is_not_emitted(env: Env) -> None:
    everything = heard(env, "*")
    env.create()
    refusals: tuple[Callable[[], object], ...] = (env.create, env.scheduler.get("report").resume)
    for refused in refusals:
        with pytest.raises(RqschedError):
            refused()
    assert len(everything) == 1


def test_a_subscriber_that_raises_harms_nothing(any_env: Env, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: dict[str, Any]) -> None:
        raise RuntimeError("as the test wants it")

    any_env.scheduler.on("*", fail)
    messages = heard(any_env, "cron.triggered")
    schedule = any_env.create()

    with caplog.at_level(logging.ERROR):
        any_env.run_due()

    assert (newest(schedule).status, len(messages)) == ("succeeded", 1)
    assert "subscriber_failed" in {getattr(record, "action", None) for record in caplog.records}


def test_an_unknown_event_name_is_refused(env: Env) -> None:
    with pytest.raises(InvalidInputError, match=r"cron\.skipped"):
        env.scheduler.on("cron.skiped", print)


@pytest.fixture
def everywhere_heard() -> Iterator[Messages]:
    messages: Messages = []
    on("cron.triggered")(messages.append)
    yield messages
    everywhere.remove("cron.triggered", messages.append)


def test_a_module_subscribes_for_every_scheduler_and_worker_of_its_process(
    env: Env, everywhere_heard: Messages
) -> None:
    env.create()
    env.tick()
    assert [message["data"]["cron_name"] for message in everywhere_heard] == ["report"]
