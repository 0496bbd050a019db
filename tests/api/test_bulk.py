"""One operation on many schedules: matches, skips and repetition."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from rqsched import Every
from rqsched.core.results import BulkRow
from rqsched.errors import InvalidInputError, InvalidLimitError
from tests.support.env import DAY, HOUR, SECOND, Env, events

pytestmark = pytest.mark.every_database


def create(env: Env) -> None:
    for name, team in (("a", "billing"), ("b", "billing"), ("c", "sales")):
        env.scheduler.create(name, "note", "1h", labels={"team": team})
        env.clock.advance(SECOND)  # schedules of one instant are in no order


def statuses_of(env: Env) -> dict[str, str]:
    return {one.schedule_id: one.status for one in env.scheduler.iter()}


def test_what_matches_is_paused_and_resumed(env: Env) -> None:
    create(env)
    planned = env.scheduler.bulk("pause", labels={"team": "billing"}, dry_run=True)
    assert [(row.schedule_id, row.outcome) for row in planned] == [("a", "would_pause"), ("b", "would_pause")]
    assert set(statuses_of(env).values()) == {"active"}
    seen = list[BulkRow]()
    rows = env.scheduler.bulk("pause", labels={"team": "billing"}, reason="the bank is away", progress=seen.append)
    assert [(row.schedule_id, row.outcome) for row in rows] == [("a", "paused"), ("b", "paused")]
    assert seen == rows
    assert statuses_of(env) == {"a": "paused", "b": "paused", "c": "active"}
    assert events(env.scheduler.get("a"), "SchedulePaused")[0].payload["reason"] == "the bank is away"
    assert env.scheduler.bulk("pause", labels={"team": "billing"}) == []
    assert [row.outcome for row in env.scheduler.bulk("resume", catch_up="next")] == ["resumed", "resumed"]
    assert set(statuses_of(env).values()) == {"active"}


def test_a_trigger_that_is_repeated_with_its_key_starts_nothing_twice(env: Env) -> None:
    create(env)
    first, again = (env.scheduler.bulk("trigger", workflow="note", idempotency_key="k") for _ in range(2))
    assert [row.outcome for row in first] == [row.outcome for row in again] == ["triggered"] * 3
    assert [one.run_count for one in env.scheduler.iter()] == [1, 1, 1]
    skipped = env.scheduler.bulk("trigger")
    assert [(row.outcome, bool(row.reason)) for row in skipped] == [("skipped", True)] * 3


def test_more_than_the_bound_is_refused_with_nothing_done(env: Env) -> None:
    create(env)
    with pytest.raises(InvalidLimitError, match="3 schedules match"):
        env.scheduler.bulk("pause", bound=2)
    assert set(statuses_of(env).values()) == {"active"}
    refused: list[dict[str, Any]] = [
        {"operation": "delete"}, {"operation": "pause", "bound": 0}, {"operation": "pause", "status": "x"},
    ]  # fmt: skip
    for wrong in refused:
        with pytest.raises(InvalidInputError):
            env.scheduler.bulk(**wrong)


def test_a_schedule_in_another_status_is_skipped_with_the_reason(env: Env) -> None:
    create(env)
    env.scheduler.get("b").pause()
    rows = env.scheduler.bulk("pause", status=["active", "paused"])
    assert [(row.schedule_id, row.outcome) for row in rows] == [("a", "paused"), ("b", "skipped"), ("c", "paused")]
    assert "paused" in (rows[1].reason or "")


def test_the_next_occurrences_of_each_are_skipped_and_one_without_any_is_told_apart(env: Env) -> None:
    hourly, daily = env.create("hourly", spec=Every("1h")), env.create("daily", spec=Every("1d"))
    waits = env.create("waits", spec=Every("1h", from_completion=True))
    env.create("rests").pause()
    skip = partial(env.scheduler.bulk, "skip_next", count=2, reason="the vendor moves")

    assert [row.outcome for row in skip(dry_run=True)] == ["would_skip_next"] * 3
    assert hourly.refresh().skips == []
    rows = {row.schedule_id: row for row in skip()}

    assert {name: row.outcome for name, row in rows.items()} == {
        "hourly": "skips_next", "daily": "skips_next", "waits": "skipped",
    }  # fmt: skip
    assert "from_completion" in (rows["waits"].reason or "")
    now = env.clock.now()
    assert hourly.refresh().skips == [now + HOUR, now + 2 * HOUR]
    assert daily.refresh().skips == [now + DAY, now + 2 * DAY]
    before = env.state(hourly)
    assert sorted(row.outcome for row in skip()) == ["skipped", "skips_next", "skips_next"], "sent again"
    assert env.state(hourly) == before
    env.scheduler.bulk("skip_next", count=0)
    assert (hourly.refresh().skips, daily.refresh().skips, waits.refresh().skips) == ([], [], [])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"operation": "pause", "count": 2}, "leave it out of pause"),
        ({"operation": "skip_next", "count": 101}, "from 0 to 100"),
        ({"operation": "skip_next", "count": -1}, "from 0 to 100"),
        ({"operation": "skip_next", "count": True}, "from 0 to 100"),
    ],
)
def test_a_count_of_skips_that_cannot_be_is_refused_before_anything_is_done(
    env: Env, asked: dict[str, Any], told: str
) -> None:
    schedule = env.create()
    with pytest.raises(InvalidInputError, match=told):
        env.scheduler.bulk(**asked)
    assert (schedule.refresh().skips, schedule.status) == ([], "active")
