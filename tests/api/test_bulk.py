"""One operation on many schedules: what matches, what is skipped, and that it may be repeated."""

from __future__ import annotations

from typing import Any

import pytest

from rqsched.core.results import BulkRow
from rqsched.errors import InvalidInputError, InvalidLimitError
from tests.support.env import SECOND, Env, events

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
