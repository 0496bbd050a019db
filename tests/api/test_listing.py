"""Finding schedules and runs, and their descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from rqsched import Cron, Every, Spec
from rqsched.errors import InvalidInputError, InvalidLimitError, ScheduleNotFoundError
from tests.support.env import HOUR, MINUTE, NOON, SECOND, Env, module_level, newest

pytestmark = pytest.mark.every_database


def test_get_raises_for_an_unknown_schedule(any_env: Env) -> None:
    any_env.create()
    with pytest.raises(ScheduleNotFoundError):
        any_env.scheduler.get("other")
    with pytest.raises(ScheduleNotFoundError):
        any_env.scheduler.get("report", namespace="other")


def test_list_filters_by_everything_given(any_env: Env) -> None:
    any_env.register("other", module_level)
    attributes = {"n": 1, "flag": True, "none": None, 'a"b.c': "x", "text": "1"}
    any_env.create("a", labels={"team": "billing", 'a"b.c': "x"}, search_attributes=attributes, owner="ann")
    any_env.advance(SECOND)
    any_env.create("b", workflow="other", labels={"team": "billing"})
    any_env.advance(SECOND)
    any_env.create("c").pause()
    any_env.advance(SECOND)
    any_env.create("d").delete()

    def ids(**filters: Any) -> str:
        return "".join(found.schedule_id for found in any_env.scheduler.list(**filters).items)

    assert (ids(), ids(sort="-created"), ids(status="deleted"), ids(status=["paused", "deleted"])) == (
        "abc", "cba", "d", "cd",
    )  # fmt: skip
    assert (ids(workflow="other"), ids(owner="ann"), ids(owner="bob"), ids(text="A")) == ("b", "a", "", "a")
    assert (ids(labels={"team": "billing"}), ids(labels={"team": "billing", 'a"b.c': "x"})) == ("ab", "a")
    assert (ids(labels={"team": "x"}), ids(labels={"%": "x"}), ids(text="%")) == ("", "", "")
    for name, value in attributes.items():
        assert ids(search_attributes={name: value}) == "a", name
    assert (ids(search_attributes={"n": "1"}), ids(search_attributes={"flag": 1})) == ("", "")


def test_pages_show_each_schedule_once_while_others_come_and_go(any_env: Env) -> None:
    for name in "abcdef":
        any_env.create(name)
        any_env.advance(SECOND)
    page = any_env.scheduler.list(limit=2)
    seen = [found.schedule_id for found in page.items]
    any_env.create("g")
    any_env.scheduler.get("a").delete()
    while page.next_cursor:
        page = any_env.scheduler.list(limit=2, cursor=page.next_cursor)
        seen += [found.schedule_id for found in page.items]

    assert "".join(seen) == "abcdefg"
    assert "".join(found.schedule_id for found in any_env.scheduler.iter()) == "bcdefg"


BAD_LISTS: dict[str, dict[str, Any]] = {
    "limit 0": {"limit": 0},
    "limit 501": {"limit": 501},
    "limit true": {"limit": True},
    "cursor": {"cursor": "nonsense"},
    "status": {"status": "sleeping"},
}


@pytest.mark.parametrize("filters", BAD_LISTS.values(), ids=BAD_LISTS.keys())
def test_list_refuses_an_invalid_filter(env: Env, filters: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        env.scheduler.list(**filters)


def test_describe_says_everything_as_plain_values(any_env: Env) -> None:
    schedule = any_env.create(
        spec=Cron("0 2 * * *"), timezone="America/New_York", args=["eu"], jitter=30 * SECOND, note="n",
        labels={"team": "billing"}, memo={"origin": "test"}, search_attributes={"tenant": 42}, max_runs=9,
        description="nightly", owner="ann",
    )  # fmt: skip
    schedule.trigger()

    described = schedule.describe().to_dict()

    assert described["spec"] == {"cron_expressions": ["0 2 * * *"], "timezone": "America/New_York", "dst_gap": "shift"}
    assert (described["timing"], described["overlap"]) == ("cron 0 2 * * * America/New_York", "skip")
    assert (described["labels"], described["memo"], described["search_attributes"]) == (
        {"team": "billing"}, {"origin": "test"}, {"tenant": 42},
    )  # fmt: skip
    assert (described["max_runs"], described["remaining_runs"], described["run_count"]) == (9, 8, 1)
    assert (described["jitter"], described["note"]) == (30, "n")
    assert (described["description"], described["owner"]) == ("nightly", "ann")
    assert described["last_instance_id"] == newest(schedule).instance_id
    assert (described["last_run_at"], described["next_run_at"]) == ("2026-01-15T12:00:00Z", "2026-01-16T07:00:00Z")
    assert described["args"] == ["eu"]


def test_upcoming_names_the_next_fires(any_env: Env) -> None:
    schedule = any_env.create(spec=Spec(["0 * * * *", Every("90m", offset="0s")]))

    assert schedule.upcoming(4) == [NOON + k * 30 * MINUTE for k in (2, 3, 4, 6)]
    assert any_env.create("jittered", Cron("@hourly"), jitter=MINUTE).upcoming(2) != [NOON + HOUR, NOON + 2 * HOUR]
    assert schedule.pause().upcoming() == []
    with pytest.raises(InvalidLimitError):
        schedule.upcoming(0)
