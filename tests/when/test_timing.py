"""The fluent builder: each step yields the ordinary spec one would have written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rqsched import Cron, Every, Spec
from rqsched.errors import InvalidDurationError, InvalidSpecError
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.timing import Timing, unfold

Build = Callable[[Timing], Timing]

YIELDS: dict[str, tuple[Build, Spec]] = {
    "daily_at": (lambda t: t.daily_at("00:10"), Spec("10 0 * * *")),
    "daily_at, several": (lambda t: t.daily_at("9:00", "17:00", "17:30"), Spec(["0 9 * * *", "0,30 17 * * *"])),
    "daily_at, same minute": (lambda t: t.daily_at("9:15", "17:15"), Spec("15 9,17 * * *")),
    "twice_daily": (lambda t: t.twice_daily(1, 13), Spec("0 1,13 * * *")),
    "hourly_at": (lambda t: t.hourly_at(5), Spec("5 * * * *")),
    "hourly_at, several": (lambda t: t.hourly_at(35, 5), Spec("5,35 * * * *")),
    "weekly_on": (lambda t: t.weekly_on("mon", "8:00"), Spec("0 8 * * 1")),
    "weekly_on, a whole name": (lambda t: t.weekly_on("Sunday"), Spec("0 0 * * 0")),
    "monthly_on": (lambda t: t.monthly_on(15, "6:30"), Spec("30 6 15 * *")),
    "monthly_on the last": (lambda t: t.monthly_on("L"), Spec("0 0 L * *")),
    "every": (lambda t: t.every("30m"), Spec(Every("30m"))),
    "every, a timedelta": (lambda t: t.every(timedelta(seconds=45)), Spec(Every("45s"))),
    "cron": (lambda t: t.cron("0 9 * * 1#1"), Spec("0 9 * * 1#1")),
    "every between": (lambda t: t.every("30m").between("9:00", "10:30"), Spec(["0 10 * * *", "0,30 9 * * *"])),
    "every on weekdays": (lambda t: t.every("6h").weekdays(), Spec("0 0,6,12,18 * * 1,2,3,4,5")),
    "hourly between": (lambda t: t.hourly_at(0).between("9:00", "12:00"), Spec("0 9,10,11 * * *")),
    "weekends": (lambda t: t.daily_at("10:00").weekends(), Spec("0 10 * * 0,6")),
    "days": (lambda t: t.daily_at("10:00").days("wed", "mon"), Spec("0 10 * * 1,3")),
    "timezone": (lambda t: t.daily_at("0:10").timezone("Europe/Istanbul"), Spec("10 0 * * *", "Europe/Istanbul")),
}


@pytest.mark.parametrize(("build", "expected"), YIELDS.values(), ids=YIELDS.keys())
def test_a_timing_yields_an_ordinary_spec(build: Build, expected: Spec) -> None:
    assert build(Timing()).spec() == expected


OPTIONS: dict[str, tuple[Build, dict[str, Any]]] = {
    "none": (lambda t: t, {}),
    "environments": (lambda t: t.environments("production", "staging"), {"environments": ["production", "staging"]}),
    "environments, a list": (lambda t: t.environments(["production"]), {"environments": ["production"]}),
    "without_overlapping": (lambda t: t.without_overlapping(), {"overlap": OverlapPolicy.SKIP}),
    "what is always so": (lambda t: t.on_one_server().run_in_background(), {}),
    "jitter": (lambda t: t.jitter("30s"), {"jitter": "30s"}),
    "spread": (lambda t: t.spread("2h"), {"spread": "2h"}),
    "sentry_monitor": (lambda t: t.sentry_monitor("expire"), {"notifications": {"sentry": "expire"}}),
    "sentry_monitor and a heartbeat": (
        lambda t: t.option(notifications={"heartbeat": "https://a.example"}).sentry_monitor("expire"),
        {"notifications": {"heartbeat": "https://a.example", "sentry": "expire"}},
    ),
    "any other": (lambda t: t.option(queue="high").option(max_runs=3), {"queue": "high", "max_runs": 3}),
}


@pytest.mark.parametrize(("build", "expected"), OPTIONS.values(), ids=OPTIONS.keys())
def test_a_timing_yields_options(build: Build, expected: dict[str, Any]) -> None:
    assert build(Timing().every("1m")).options() == expected


REFUSED: dict[str, Build] = {
    "nothing said": lambda t: t,
    "days without a time": lambda t: t.weekdays(),
    "no time of day": lambda t: t.daily_at("25:00"),
    "words for a time": lambda t: t.daily_at("noon"),
    "no minute": lambda t: t.hourly_at(60),
    "no minutes at all": lambda t: t.hourly_at(),
    "no day": lambda t: t.weekly_on("someday"),
    "no interval": lambda t: t.every("soon"),
    "a cron with more beside it": lambda t: t.cron("0 9 * * *").weekdays(),
    "a window that is empty": lambda t: t.every("1h").between("9:00", "9:00"),
    "a window over midnight": lambda t: t.every("1h").between("22:00", "6:00"),
    "nothing left in the window": lambda t: t.daily_at("8:00").between("9:00", "10:00"),
    "an interval that divides no day": lambda t: t.every("7m").weekdays(),
    "an interval of seconds in a window": lambda t: t.every("90s").between("9:00", "10:00"),
    "a month day and a week day": lambda t: t.monthly_on(1).weekdays(),
    "an unknown zone": lambda t: t.daily_at("9:00").timezone("Mars/Olympus"),
}


@pytest.mark.parametrize("build", REFUSED.values(), ids=REFUSED.keys())
def test_contradicting_steps_are_refused(build: Build) -> None:
    with pytest.raises((InvalidSpecError, InvalidDurationError)):
        build(Timing()).spec()


def test_a_subclass_has_its_own_steps_and_keeps_its_type() -> None:
    class Ours(Timing):
        def end_of_business(self) -> Ours:
            return self.daily_at("17:00").weekdays()

    built = Ours().end_of_business().timezone("Europe/Berlin")

    assert isinstance(built, Ours)
    assert built.spec() == Spec("0 17 * * 1,2,3,4,5", "Europe/Berlin")


def test_a_step_may_be_added_to_a_builder() -> None:
    class Extended(Timing): ...

    Extended.extend("countries", lambda builder, *codes: builder.option(labels={"countries": ",".join(codes)}))

    built: Any = Extended().daily_at("0:10")
    assert built.countries("TR", "DE").environments("production").options() == {
        "labels": {"countries": "TR,DE"},
        "environments": ["production"],
    }
    assert not hasattr(Timing, "countries"), "the builder it was added to has it, and no other"


@pytest.mark.parametrize("name", ["daily_at", "no name", ""], ids=["taken", "no identifier", "empty"])
def test_a_step_whose_name_is_taken_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpecError):
        Timing.extend(name, lambda builder: None)


def test_options_given_with_a_builder_win_over_its_own() -> None:
    spec, options = unfold(Timing().cron("@daily").option(queue="a", timeout=1), {"queue": "b"})
    assert (spec, options) == (Spec("@daily"), {"queue": "b", "timeout": 1})
    assert unfold(Cron("@daily"), {"queue": "b"}) == (Cron("@daily"), {"queue": "b"})
