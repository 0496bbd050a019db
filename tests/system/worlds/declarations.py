"""Declarations of a world's schedules: a seed draws spec, policies and bounds that go together."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

from rqsched import Cron, Every, Once, RetryPolicy, Spec
from tests.system.worlds.stage import START

_SPECS: tuple[Callable[[], Any], ...] = (
    lambda: Every("1m"),
    lambda: Every("90s"),
    lambda: Every("5m", offset="0s"),
    lambda: Every("20s", offset="7s"),
    lambda: Cron("* * * * *"),
    lambda: Cron("*/7 * * * *"),
    lambda: Spec([Every("3m", offset="0s"), Cron("*/5 * * * *")]),
    lambda: Spec([Cron("* * * * *")], end_at=START + timedelta(minutes=20)),
    lambda: Spec([Once(START + timedelta(minutes=4)), Once(START + timedelta(minutes=9))]),
    lambda: Spec("* * * * *", exclude=[_minutes(3, 8), _minutes(12, 13)]),
)
_MOVING: tuple[Callable[[], Any], ...] = (
    lambda: Cron("0 9 * * *"),
    lambda: Spec([Cron("0 9 * * *"), Cron("0 14 * * *"), Cron("30 23 * * MON-FRI")]),
    lambda: Cron("0 18 * * SUN,WED"),
    lambda: Once(START + timedelta(days=5)),
)
_OVERLAPS = ("skip", "skip", "buffer_one", "buffer_all", "allow_all", "cancel_other", "terminate_other")


def _minutes(first: int, end: int) -> str:
    """These minutes from the start on, of every day."""
    return "-".join(f"{START + timedelta(minutes=minute):%H:%M}" for minute in (first, end))


def moving_declaration(random: Random) -> dict[str, Any]:
    """Draw a spec of some times of day, days that are excluded, and to where what falls on those is moved."""
    options = declaration(random)
    if options["spec"] == Every("1m", from_completion=True):
        options["missed"], options["overlap"] = "fire_once", "allow_all"
    return options | {
        "spec": random.choice(_MOVING)(),
        "exclude": excluded_days(random, START),
        "on_excluded": random.choice(("next", "next", "previous", "previous", "skip")),
    }


def excluded_days(random: Random, about: datetime) -> list[Any]:
    """Draw some days about an instant, and perhaps those of every weekend."""
    days = [(about + timedelta(days=random.randrange(-4, 20))).date() for _ in range(random.randrange(6))]
    return [*days, *random.choice(([], [], ["Sat, Sun"]))]


def declaration(random: Random) -> dict[str, Any]:
    """Draw a spec and the options that go with it."""
    retry = RetryPolicy(
        max_retries=random.choice((0, 0, 1, 2)),
        base=timedelta(seconds=random.choice((5, 30))),
        then=random.choice(("dead", "continue")),
    )
    options: dict[str, Any] = {"retry": retry, "max_runs": random.choice((None, None, None, 1, 3))}
    if random.random() < 0.15:
        return {"spec": Every("1m", from_completion=True), "overlap": "skip", "missed": "fire_once", **options}
    options["overlap"] = random.choice(_OVERLAPS)
    options["missed"] = random.choice(_missed_with(options["overlap"]))
    options |= random.choice(({}, {}, {}, {"jitter": "15s"}, {"spread": "40s"}, {"spread": "5m", "jitter": "15s"}))
    if random.random() < 0.2:
        options["fire_within"] = timedelta(seconds=random.choice((30, 300)))
    if options["missed"] == "all":
        options["missed_limit"] = random.choice((2, 5))
    return {"spec": random.choice(_SPECS)(), **options}


def _missed_with(overlap: str) -> tuple[str, ...]:
    return ("fire_once", "skip", "all") if overlap in {"buffer_all", "allow_all"} else ("fire_once", "skip")
