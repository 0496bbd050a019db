"""Open Job Spec, cron jobs in motion: fired on time, overlap, daylight saving, and the signals of the spec."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import Any

import pytest

from tests.support.env import MINUTE, SECOND
from tests.support.openjobspec import CRON, Ojs

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def ojs(any_ojs: Ojs) -> Ojs:
    return any_ojs


@pytest.fixture
def signals(ojs: Ojs) -> list[dict[str, Any]]:
    """Subscribe to the spec's two signals, and return the list of their payloads."""
    told: list[dict[str, Any]] = []
    for name in ("cron.triggered", "cron.skipped"):
        ojs.env.scheduler.signals.add(name, told.append)
    return told


def states(ojs: Ojs, jobs: list[dict[str, Any]]) -> list[str]:
    return [ojs.job(job)["state"] for job in jobs]


def told(signals: list[dict[str, Any]]) -> list[str]:
    return [signal["event"] for signal in signals]


def test_a_fired_job_is_fetchable_within_a_second_of_its_minute(ojs: Ojs) -> None:
    ojs.registered()
    ojs.env.advance(59 * SECOND)
    ojs.env.dispatch()
    assert ojs.fetch() == []

    ojs.env.advance(SECOND)
    ojs.env.dispatch()

    job = ojs.fetched()
    assert (job["type"], job["state"], job["args"]) == ("report.generate", "active", [])
    assert job["scheduled_at"] == job["enqueued_at"] == "2026-01-15T12:01:00.000Z"


def test_the_job_of_a_cron_carries_its_name_and_when_it_triggered(ojs: Ojs) -> None:
    ojs.registered(meta={"team": "billing", "cron_name": "another"})
    ojs.env.advance(MINUTE + timedelta(milliseconds=123, microseconds=456))
    ojs.env.dispatch()

    job = ojs.fetched()

    assert job["meta"] == {
        "team": "billing",
        "cron_name": "daily-report",
        "cron_triggered_at": "2026-01-15T12:01:00.123Z",
    }
    assert UUID7.fullmatch(job["id"])
    assert all(INSTANT.fullmatch(job[name]) for name in job if name.endswith("_at")), job


def test_a_fire_is_counted_and_dated_and_sets_the_next_time(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="allow")
    ojs.advance_and_dispatch()
    ojs.advance_and_dispatch()
    job = ojs.cron()
    assert (job["run_count"], job["last_run_at"]) == (2, "2026-01-15T12:02:00.000Z")
    assert job["next_run_at"] == "2026-01-15T12:03:00.000Z"


def test_one_run_stands_for_many_missed_occurrences(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="allow")
    ojs.advance_and_dispatch(60 * MINUTE)
    assert len(ojs.fetch()) == 1
    assert ojs.cron()["next_run_at"] == "2026-01-15T13:01:00.000Z"


def test_at_every_30m_counts_from_registration_and_a_cron_step_from_the_hour(ojs: Ojs) -> None:
    ojs.env.advance(7 * MINUTE)
    ojs.registered(name="every", cron="@every 30m", overlap_policy="allow")
    ojs.registered(name="star", cron="*/30 * * * *", overlap_policy="allow")
    ojs.reach("2026-01-15T12:30:00+00:00")
    assert [job["meta"]["cron_name"] for job in ojs.fetch()] == ["star"]
    ojs.reach("2026-01-15T12:37:00+00:00")
    assert [job["meta"]["cron_name"] for job in ojs.fetch()] == ["every"]
    assert ojs.cron("every")["next_run_at"] == "2026-01-15T13:07:00.000Z"


def test_skip_counts_every_unfinished_job_not_only_active_ones(ojs: Ojs, signals: list[dict[str, Any]]) -> None:
    ojs.registered()
    ojs.advance_and_dispatch()
    ojs.advance_and_dispatch()
    waiting = ojs.fetched()
    ojs.advance_and_dispatch()
    ojs.nack(waiting)
    assert states(ojs, [waiting]) == ["retryable"]
    ojs.advance_and_dispatch(SECOND)
    assert told(signals) == ["cron.triggered", "cron.skipped", "cron.skipped"]
    ojs.advance_and_dispatch(59 * SECOND)
    assert told(signals)[-1] == "cron.skipped", "a job that waits for its retry is unfinished"
    assert ojs.cron()["run_count"] == 1


def test_a_skipped_cron_fires_again_once_its_job_has_ended(ojs: Ojs) -> None:
    ojs.registered()
    ojs.advance_and_dispatch()
    job = ojs.fetched()
    ojs.advance_and_dispatch()
    ojs.ack(job)
    ojs.advance_and_dispatch()
    assert ojs.fetched()["id"] != job["id"]


def test_allow_lets_jobs_run_side_by_side(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="allow")
    for _ in range(3):
        ojs.advance_and_dispatch()
    assert states(ojs, ojs.fetch()) == ["active"] * 3


def test_cancel_previous_ends_the_old_job_with_the_new_one(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="cancel_previous")
    ojs.advance_and_dispatch()
    old = ojs.fetched()
    ojs.advance_and_dispatch()

    assert ojs.job(old)["state"] == "cancelled"
    assert (ojs.heartbeat(old)["jobs_extended"], ojs.heartbeat(old)["x_jobs_cancelled"]) == ([], [old["id"]])
    assert ojs.ack(old).status_code == 409
    assert ojs.fetched()["state"] == "active"


def test_enqueue_keeps_every_job_and_never_lets_two_execute(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="enqueue")
    for _ in range(4):
        ojs.advance_and_dispatch()
    done: list[str] = []
    while jobs := ojs.fetch(count=10):
        (job,) = jobs
        assert ojs.fetch(worker_id="another") == []
        ojs.ack(job)
        done.append(job["scheduled_at"])
    assert done == [f"2026-01-15T12:0{minute}:00.000Z" for minute in (1, 2, 3, 4)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if record.__dict__.get("action") == "buffer_growing"]
    return [record.getMessage() for record in found]


def test_more_than_two_waiting_jobs_log_a_warning(ojs: Ojs, caplog: pytest.LogCaptureFixture) -> None:
    ojs.registered(overlap_policy="enqueue")
    seen = []
    with caplog.at_level(logging.WARNING, "rqsched.kernel.chain.commit"):
        for _ in range(5):
            ojs.advance_and_dispatch()
            seen.append(warnings(caplog))
            caplog.clear()
    warning = "{} runs of default/daily-report wait for the one ahead of them"
    assert seen == [[], [], [], [warning.format(3)], [warning.format(4)]]


def test_removing_a_cron_leaves_its_running_waiting_and_retryable_jobs_alone(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="enqueue", options={"retry": {"initial_interval": "PT30S", "jitter": False}})
    for _ in range(3):
        ojs.advance_and_dispatch()
    running = ojs.fetched()
    assert ojs("DELETE", f"{CRON}/daily-report").status_code == 200

    assert ojs.nack(running).json()["state"] == "retryable"
    ojs.advance_and_dispatch(30 * SECOND)
    jobs = [ojs.fetched()]
    assert (jobs[0]["id"], jobs[0]["attempt"]) == (running["id"], 2)
    while jobs and len(jobs) < 10:
        assert ojs.ack(jobs[-1]).status_code == 200
        waiting = ojs.fetch()
        assert len(waiting) <= 1, "never two at once"
        if not waiting:
            break
        jobs += waiting
    assert [job["scheduled_at"][11:16] for job in jobs] == ["12:01", "12:02", "12:03"]
    ojs.advance_and_dispatch(5 * MINUTE)
    assert ojs.fetch() == [], "it does not fire any more"


def test_a_cron_that_is_removed_while_it_is_disabled_leaves_its_waiting_jobs_alone(ojs: Ojs) -> None:
    ojs.registered(overlap_policy="enqueue")
    ojs.advance_and_dispatch()
    ojs.advance_and_dispatch()
    running = ojs.fetched()
    ojs.patched(enabled=False)
    ojs.ack(running)
    assert ojs.fetch() == [], "a disabled one keeps its jobs waiting"

    ojs("DELETE", f"{CRON}/daily-report")
    ojs.env.recover()

    assert ojs.fetched()["scheduled_at"] == "2026-01-15T12:02:00.000Z"


def test_a_local_time_skipped_by_dst_does_not_fire_and_emits_a_skip(ojs: Ojs, signals: list[dict[str, Any]]) -> None:
    ojs.env.clock.set(ojs.env.clock.now().replace(month=3, day=7, hour=20))
    ojs.registered(cron="30 2 * * *", timezone="America/New_York", overlap_policy="allow")

    ojs.reach("2026-03-08T12:00:00+00:00")
    assert ojs.fetch() == []
    assert ojs.cron()["next_run_at"] == "2026-03-09T06:30:00.000Z"
    ojs.reach("2026-03-09T06:30:00+00:00")

    assert len(ojs.fetch()) == 1
    skipped = [signal["data"] for signal in signals if signal["event"] == "cron.skipped"]
    assert [(data["cron_name"], data["reason"]) for data in skipped] == [("daily-report", "dst_skip")]


def test_a_local_time_repeated_by_dst_fires_only_once(ojs: Ojs) -> None:
    ojs.env.clock.set(ojs.env.clock.now().replace(month=10, day=31, hour=20))
    ojs.registered(cron="30 1 * * *", timezone="America/New_York", overlap_policy="allow")

    ojs.reach("2026-11-01T05:30:00+00:00")
    assert len(ojs.fetch()) == 1
    ojs.reach("2026-11-01T06:30:00+00:00")
    assert ojs.fetch() == []
    assert ojs.cron()["next_run_at"] == "2026-11-02T06:30:00.000Z"


def test_a_fire_emits_a_signal_with_the_specs_keys(ojs: Ojs, signals: list[dict[str, Any]]) -> None:
    ojs.registered()
    ojs.env.advance(MINUTE + timedelta(milliseconds=123))
    ojs.env.dispatch()
    job = ojs.fetched()
    (signal,) = signals
    assert signal == {
        "event": "cron.triggered",
        "data": {
            "cron_name": "daily-report",
            "job_id": job["id"],
            "job_type": "report.generate",
            "run_count": 1,
            "scheduled_time": "2026-01-15T12:01:00Z",
            "actual_time": "2026-01-15T12:01:00.123000Z",
        },
    }


def test_a_skip_emits_a_signal_with_the_specs_keys(ojs: Ojs, signals: list[dict[str, Any]]) -> None:
    ojs.registered()
    ojs.advance_and_dispatch()
    job = ojs.fetched()
    ojs.advance_and_dispatch()
    assert signals[-1] == {
        "event": "cron.skipped",
        "data": {
            "cron_name": "daily-report",
            "reason": "overlap_skip",
            "active_job_id": job["id"],
            "scheduled_time": "2026-01-15T12:02:00Z",
        },
    }


def test_an_occurrence_due_when_its_cron_is_disabled_emits_a_skip(ojs: Ojs, signals: list[dict[str, Any]]) -> None:
    ojs.registered()
    ojs.env.advance(MINUTE)
    ojs.patched(enabled=False)
    (signal,) = signals
    assert signal["data"]["reason"] == "disabled"
