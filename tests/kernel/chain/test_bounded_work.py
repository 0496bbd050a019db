"""Work over the limit of steps is refused with that limit. A weekly rule over ten years takes few steps."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rqsched.errors import InvalidLimitError, InvalidSpecError, TooMuchWorkError
from rqsched.kernel.chain import fire
from rqsched.when.spec import Cron, Every, Spec
from rqsched.when.steps import MOST_STEPS, Steps, bounded
from tests.support.decisions import HEAVY
from tests.support.env import NOON, Env, outcomes, statuses
from tests.support.narrow import present

QUARTERS = [f"{hour:02}:{minute:02}" for hour in range(24) for minute in (0, 15, 30, 45)]
MINUTES = [f"{at}-{at[:3]}{int(at[3:]) + 1:02}" for at in QUARTERS]
"""96 windows of a minute each, which take all of `*/15`."""
MOST_OF_EACH = [f"{at}-{at[:3]}{int(at[3:]) + 14:02}" for at in QUARTERS]
EVERY_TEN_SECONDS = [
    f"{h:02}:{m:02}:{s:02}-{h:02}:{m:02}:{s + 1:02}" for h in range(3) for m in range(50) for s in (0, 20, 40)
]
TOO_MUCH = Spec([Cron("*/15 * * * *", "Asia/Tokyo")], "Europe/Berlin", exclude=MINUTES)
"""On two clocks, so that no week is computed."""


def steps_of(spec: Spec) -> int:
    with bounded(Steps(None)) as steps:
        spec.anchored_at(NOON).is_all_excluded_after(NOON)
    return steps.taken


@pytest.mark.parametrize(
    "spec",
    [
        Spec("*/15 * * * *", "Europe/Berlin", exclude=MINUTES),
        Spec(["*/15 * * * *", "0 * * * *", Every("1h", offset="0s")], "Europe/Berlin", exclude=MINUTES),
        Spec("0 9 * * MON-FRI", "America/New_York", exclude=["Mon-Thu", "Fri 08:00-10:00"]),
        Spec(Every("15m", offset="0s"), "Australia/Lord_Howe", exclude=MINUTES),
    ],
    ids=["cron", "members", "weekdays", "interval"],
)
def test_where_time_of_day_and_weekday_decide_a_week_is_computed_for_ten_years(env: Env, spec: Spec) -> None:
    assert steps_of(spec) < MOST_STEPS / 10
    with pytest.raises(InvalidSpecError, match="covers every occurrence of the next ten years"):
        env.create("nothing", spec)


def test_three_years_of_minutes_are_counted_in_a_few_steps() -> None:
    spec = Spec("* * * * *", "Europe/Berlin", exclude=MINUTES)
    since = NOON - timedelta(days=1096)
    with bounded(Steps(2_000)):
        count, is_capped = spec.count_between(since, NOON)
        told = spec.excluded_between(since, NOON)
    assert (count, is_capped) == (1096 * 1440 - 1096 * 96, False)
    assert told is not None
    assert told.number == (1096 * 96, False)


def test_a_create_of_too_much_work_is_refused_with_the_limit_and_writes_nothing(env: Env) -> None:
    with pytest.raises(TooMuchWorkError, match=f"more than {MOST_STEPS} steps") as refused:
        env.create("endless", TOO_MUCH)
    assert refused.value.limit == MOST_STEPS
    assert env.scheduler.list().items == []


def test_an_update_to_too_much_work_is_refused_and_changes_nothing(env: Env) -> None:
    handle = env.scheduler.get(env.create("plain", Spec("*/15 * * * *", "Europe/Berlin")).schedule_id)
    with pytest.raises(TooMuchWorkError):
        handle.update(spec=TOO_MUCH)
    beside = Spec(Every("1000s", anchor=NOON + timedelta(seconds=5)), "UTC", exclude=MOST_OF_EACH)
    with pytest.raises(TooMuchWorkError):
        env.scheduler.upsert("plain", "note", beside)
    assert env.scheduler.get("plain").version == handle.version


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_backfill_of_too_many_is_refused_without_a_look_at_each_window(env: Env, dry_run: bool) -> None:
    spec = Spec(Every("1s", offset="0s"), "UTC", exclude=EVERY_TEN_SECONDS)
    handle = env.scheduler.get(env.create("seconds", spec).schedule_id)
    with bounded(Steps(20_000)), pytest.raises(InvalidLimitError, match="more than 10000 occurrences"):
        handle.backfill(NOON - timedelta(days=2190), NOON, dry_run=dry_run)


def test_a_batch_whose_schedules_take_too_many_steps_is_continued_in_the_next_one(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fire, "MOST_STEPS", 1_000)  # with 100 000, the schedules would take a million steps
    heavy = [env.create(f"heavy-{n}", Spec(HEAVY, "Europe/Berlin", exclude="01:05-02:00")) for n in range(3)]
    env.clock.set(max(present(one.state.due_at) for one in heavy))

    fired = env.deliver(*heavy)

    assert outcomes(fired) == ["fired", "deferred", "deferred"]
    assert {one.again_at for one in fired if one.outcome == "deferred"} == {env.clock.now() + fire.LOCKED_AGAIN}
    assert len([row for row in env.scheduler.tick() if row["outcome"] == "triggered"]) == 2
    assert [statuses(one) for one in heavy] == [["pending"]] * 3
