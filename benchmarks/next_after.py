"""The cost of one step to the next occurrence, by kind of expression, against raw croniter in the same run.

    python benchmarks/next_after.py --rounds 9 --count 500

Rounds alternate between the two, so that a slow moment of the machine falls on both; the
first finds our caches cold, which is what p95 shows and the median does not. Prints one JSON object:
microseconds per step, and the ratio of rqsched's median to croniter's (under 1: rqsched is faster). `excluded` has the
steps of every minute up to, over and after an excluded year, and their ratio to the same steps without it. `moved` has
the same for a daily time whose weekends, and days of that year, move to other days.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any
from zoneinfo import ZoneInfo

from croniter import croniter

from rqsched.when.spec import Cron, Spec

ZONE = "America/New_York"
START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = {
    "every minute": "* * * * *",
    "every 15 minutes": "*/15 * * * *",
    "daily": "0 2 * * *",
    "workdays": "0 9 * * 1-5",
    "last day of the month": "0 0 L * *",
    "third Friday": "0 12 * * 5#3",
}


def walk_rqsched(
    expression: str, count: int, exclude: str | tuple[str, ...] = (), on_excluded: str | None = None
) -> None:
    spec, instant = Spec([Cron(expression)], ZONE, exclude=exclude, on_excluded=on_excluded), START
    for _ in range(count):
        following = spec.next_after(instant)
        if following is None:
            raise RuntimeError(f"{expression} ended after {instant}")
        instant = following


def walk_croniter(expression: str, count: int) -> None:
    walker = croniter(expression, START.astimezone(ZoneInfo(ZONE)))
    for _ in range(count):
        walker.get_next(datetime)


def microseconds(walk: Callable[[str, int], None], expression: str, count: int) -> float:
    started = time.perf_counter()
    walk(expression, count)
    return (time.perf_counter() - started) / count * 1e6


def summary(samples: list[float]) -> dict[str, float]:
    ranked = sorted(samples)
    p95 = ranked[min(len(ranked) - 1, round(0.95 * (len(ranked) - 1)))]
    return {"median_us": round(statistics.median(samples), 2), "p95_us": round(p95, 2)}


def measured(expression: str, rounds: int, count: int) -> dict[str, Any]:
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours.append(microseconds(walk_rqsched, expression, count))
        theirs.append(microseconds(walk_croniter, expression, count))
    ratio = statistics.median(ours) / statistics.median(theirs)
    return {
        "expression": expression,
        "rqsched": summary(ours),
        "croniter": summary(theirs),
        "ratio": round(ratio, 3),
    }


def measured_excluded(rounds: int, count: int) -> dict[str, Any]:
    """Measure steps from five hours before the year, which begins at New York's midnight."""
    ours: list[float] = []
    plain: list[float] = []
    beside_a_year = partial(walk_rqsched, exclude="2026-01-01/2026-12-31")
    for _ in range(rounds):
        ours.append(microseconds(beside_a_year, "* * * * *", count))
        plain.append(microseconds(walk_rqsched, "* * * * *", count))
    ratio = round(statistics.median(ours) / statistics.median(plain), 3)
    return {"beside_a_year": summary(ours), "plain": summary(plain), "ratio": ratio}


def measured_moved(rounds: int, count: int) -> dict[str, Any]:
    exclude = ("2026-01-01/2026-12-31", "Sat, Sun")
    walks = {name: partial(walk_rqsched, exclude=exclude, on_excluded=name) for name in ("next", "previous")}
    walks["plain"] = partial(walk_rqsched)
    samples: dict[str, list[float]] = {name: [] for name in walks}
    for _ in range(rounds):
        for name, walk in walks.items():
            samples[name].append(microseconds(walk, "0 2 * * *", count))
    plain = statistics.median(samples["plain"])
    found: dict[str, Any] = {name: summary(taken) for name, taken in samples.items()}
    return found | {
        f"{name}_ratio": round(statistics.median(samples[name]) / plain, 3) for name in ("next", "previous")
    }


def machine() -> dict[str, Any]:
    versions = {name: version(name) for name in ("rqsched", "croniter", "tzdata")}
    return {"versions": versions, "python": platform.python_version(), "cores": os.cpu_count()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="alternating rounds per kind")
    parser.add_argument("--count", type=int, default=500, help="steps per round")
    options = parser.parse_args()
    kinds = {kind: measured(text, options.rounds, options.count) for kind, text in KINDS.items()}
    parameters = {"rounds": options.rounds, "count": options.count, "zone": ZONE}
    excluded = measured_excluded(options.rounds, options.count)
    moved = measured_moved(options.rounds, options.count)
    found = {"parameters": parameters, "kinds": kinds, "excluded": excluded, "moved": moved}
    print(json.dumps({"benchmark": "next_after", **found, **machine()}))


if __name__ == "__main__":
    main()
