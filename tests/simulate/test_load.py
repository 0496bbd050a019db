"""The load: what fires when, counted as every schedule's next fires one by one would be."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import chain, takewhile
from random import Random
from typing import Any

import pytest

from rqsched import Cron, Every, Once, ScheduleHandle, Spec
from rqsched.api.build_description import iter_upcoming
from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.payload import dumps, loads
from rqsched.kernel.queries.schedules import Filters
from rqsched.simulate.load import Window, read_load, window_of
from rqsched.types import Load
from tests.support.damage import set_columns
from tests.support.env import DAY, HOUR, MINUTE, NOON, SECOND, Env
from tests.support.sizes import IS_NIGHTLY

SPECS: list[Any] = [
    Cron("* * * * *"), Cron("*/7 9-17 * * MON-FRI", timezone="Europe/Berlin"), Cron("0 0 * * *"),
    Cron("*/20 * * * * *", seconds="first"),
    Every("10s"), Every("45s"), Every("1m"), Every("90s"), Every("5m"), Every("1h", offset="59m30s"), Every("36h"),
    Spec([Cron("0 * * * *"), Every("20m", offset="0s")]), Spec("*/10 * * * *", end_at=NOON + 5 * HOUR),
    Spec(Every("15m"), start_at=NOON + 3 * HOUR), Spec("*/5 * * * *", exclude="Thu 13:00-20:00"),
    Spec("* * * * *", start_at=NOON + 23 * HOUR), Once(NOON + 90 * MINUTE), Once(NOON + 2 * DAY),
]  # fmt: skip


def one_by_one(env: Env, window: Window) -> Counter[int]:
    """The fires of each minute, by walking from each schedule's next fire to the one after it."""
    fires = (takewhile(lambda at: at < window.end, iter_upcoming(one.state, env.clock.now())) for one in schedules(env))
    return Counter(
        window.minute_of(at) for at in chain.from_iterable(fires) if at >= window.start or is_now(env, window)
    )


def is_now(env: Env, window: Window) -> bool:
    return window.start <= env.clock.now()


def schedules(env: Env) -> list[ScheduleHandle]:
    return list(env.scheduler.iter())


def counted(load: Load) -> Counter[int]:
    return Counter({minute: fires for minute, fires in enumerate(load.minutes) if fires})


def populate(env: Env, random: Random) -> None:
    """Sixty schedules of every kind; some are paused, and some are late by now."""
    for number in range(60):
        options: dict[str, Any] = {"queue": random.choice("abc"), "paused": random.random() < 0.1}
        options |= random.choice(
            [{}, {}, {"jitter": timedelta(seconds=30)}, {"jitter": timedelta(hours=1)}, {"spread": "40m"}]
        )
        env.create(f"s{number}", random.choice(SPECS), **options)
        env.advance(random.choice([0, 1, 20, 61]) * SECOND)


@pytest.mark.parametrize("seed", range(6 if IS_NIGHTLY else 2))
def test_each_minute_holds_what_the_next_fires_of_all_schedules_say(env: Env, seed: int) -> None:
    populate(env, random := Random(seed))
    load = env.scheduler.load(random.choice([1, 5, 24, 50]))
    window = Window(load.start, len(load.minutes))
    assert counted(load) == one_by_one(env, window)
    assert (load.fires, load.end) == (sum(load.minutes), window.end)
    assert load.fires == sum(one.fires for one in load.queues)
    firing = [one for one in schedules(env) if (due := next(iter_upcoming(one.state, env.clock.now()), None))
              and due < window.end]  # fmt: skip
    assert load.schedules == len(firing)


@pytest.mark.parametrize("seed", range(3 if IS_NIGHTLY else 1))
def test_a_window_that_is_still_ahead_is_counted_alike(env: Env, seed: int) -> None:
    populate(env, Random(seed))
    window = Window(NOON + 9 * HOUR, 300)
    assert counted(read_load(env.runtime, Filters("default"), window)) == one_by_one(env, window)


def test_herds_of_one_timing_are_counted_alike_beyond_the_fires_that_are_kept_for_them(env: Env) -> None:
    for name in "ab":
        env.create(name, Cron("* * * * * *", seconds="first"), jitter=timedelta(seconds=30))
    load = env.scheduler.load(3)
    assert counted(load) == one_by_one(env, Window(load.start, len(load.minutes)))
    assert load.fires > 2 * 10_000


def test_the_peak_is_the_minute_of_the_herd_and_names_those_that_make_it(env: Env) -> None:
    for number in range(8):
        env.create(f"nightly-{number}", Cron("0 2 * * *"), queue="reports")
        env.advance(SECOND)
    env.create("often", Every("10s", offset="0s"), queue="pings")
    env.create("once", Once(NOON + 14 * HOUR + 30 * SECOND), queue="pings")
    [peak] = env.scheduler.load(24).peaks
    assert (peak.at, peak.fires, peak.others) == (NOON + 14 * HOUR, 15, 5)
    assert peak.schedules == [f"nightly-{number}" for number in range(5)]


def test_a_queue_has_its_own_highest_minute(env: Env) -> None:
    env.create("a", Cron("15 * * * *"), queue="reports")
    env.create("b", Cron("15 16 * * *"), queue="reports")
    env.create("c", Cron("30 20 * * *"))
    env.create("d", Cron("0 3 * * *"), executor="external")
    told = [(one.queue, one.fires, one.peak_fires, one.peak_at) for one in env.scheduler.load().queues]
    assert told == [
        ("reports", 25, 2, NOON + timedelta(hours=4, minutes=15)),
        ("default", 1, 1, NOON + timedelta(hours=8, minutes=30)),
        ("external", 1, 1, NOON + 15 * HOUR),
    ]


def test_an_even_load_has_no_peak_and_nothing_has_no_queue(env: Env) -> None:
    assert (env.scheduler.load().fires, env.scheduler.load().queues) == (0, [])
    for number in range(5):
        env.create(f"s{number}", Every("1m"))
        env.advance(SECOND)
    load = env.scheduler.load()
    assert (load.fires, load.peaks) == (5 * (24 * 60 - 1), [])


def test_what_is_late_fires_in_the_first_minute(env: Env) -> None:
    env.create("late", Cron("0 13 * * *"))
    env.advance(90 * MINUTE)
    assert counted(env.scheduler.load(24)) == Counter({0: 1, 23 * 60 + 30: 1})


def test_a_paused_schedule_fires_from_the_end_of_its_pause_on(env: Env) -> None:
    env.create("paused", Cron("0 * * * *")).pause()
    env.create("until", Cron("30 * * * *")).pause(until=NOON + 3 * HOUR)
    assert counted(env.scheduler.load(5)) == Counter({210: 1, 270: 1})


def test_only_the_next_fire_of_what_counts_from_the_end_of_a_run_is_known(env: Env) -> None:
    env.create("after", Every("10m", from_completion=True))
    load = env.scheduler.load()
    assert counted(load) == Counter({10: 1})
    alone = (
        "1 schedule fires at times that depend on the end of a run, or need a newer release: only the next fire is "
        "counted."
    )
    assert load.assumed[1:] == [alone]


def test_only_the_next_fire_of_what_a_newer_release_wrote_is_known(env: Env) -> None:
    handle = env.create("moon", Every("10m"))
    set_columns(env, handle, spec=dumps(loads(env.state(handle).definition.spec) | {"moon": "full"}))
    load = env.scheduler.load()
    assert (counted(load), len(load.assumed)) == (Counter({10: 1}), 2)
    assert read_load(env.runtime, Filters("default"), window_of(NOON, 24), most_walked=0).fires == 1


def test_a_herd_is_counted_once_however_many_schedules_it_has(env: Env) -> None:
    for number in range(30):
        env.create(f"cron-{number}", Cron("*/5 * * * *"))
        env.create(f"step-{number}", Every("5m"))
        env.advance(SECOND)
    load = read_load(env.runtime, Filters("default"), window_of(env.clock.now(), 24), most_walked=2 * 287)
    assert load.fires == 2 * 30 * 287  # none at noon, which has passed
    assert len(load.assumed) == 1


def test_beyond_the_bound_fires_are_counted_and_spread_evenly_and_it_says_so(env: Env) -> None:
    env.create("odd", Cron("0-9 0-11 * * *"))
    env.create("even", Cron("0-9 12-23 * * *"))
    whole = env.scheduler.load()
    bounded = read_load(env.runtime, Filters("default"), window_of(env.clock.now(), 24), most_walked=60)
    assert bounded.fires == whole.fires == 239
    assert max(bounded.minutes[600:]) <= 2
    assert bounded.assumed[1:] == ["2 schedules fire too often to count each fire: these fires are spread evenly."]


def test_steps_that_are_spread_evenly_hide_no_nightly_peak(env: Env) -> None:
    for number in range(4):
        env.create(f"often-{number}", Every("61s"), queue="a")
        env.create(f"nightly-{number}", Cron("0 2 * * *"), queue="b")
        env.advance(SECOND)
    load = read_load(env.runtime, Filters("default"), window_of(NOON, 24), most_walked=10)
    assert [(peak.at, peak.fires >= 4) for peak in load.peaks] == [(NOON + 14 * HOUR, True)]
    assert load.assumed[1:] == ["4 schedules fire too often to count each fire: these fires are spread evenly."]


def test_beyond_the_bound_schedules_are_left_out_and_it_says_so(env: Env) -> None:
    for number in range(6):
        env.create(f"s{number}", Cron(f"{number} 20 * * *"))
    load = read_load(env.runtime, Filters("default"), window_of(NOON, 24), most_schedules=4)
    assert counted(load) == Counter({480 + number: 1 for number in range(4)})
    assert load.assumed[1:] == ["Only the 4 schedules that fire first are counted; there are more."]


def test_another_namespace_is_not_counted_unless_all_are(env: Env) -> None:
    env.create("mine", Cron("0 13 * * *"))
    env.create("theirs", Cron("0 13 * * *"), namespace="other")
    assert env.scheduler.load().fires == env.scheduler.load(namespace="other").fires == 1
    [peak] = read_load(env.runtime, Filters(), window_of(NOON, 24)).peaks
    assert sorted(peak.schedules) == ["default/mine", "other/theirs"]


@pytest.mark.parametrize("hours", [0, 745, 1.5, True, "24"])
def test_a_span_that_is_not_1_to_744_hours_is_refused(env: Env, hours: Any) -> None:
    with pytest.raises(InvalidInputError, match="a whole number from 1 to 744"):
        env.scheduler.load(hours)
