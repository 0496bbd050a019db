"""Measure the seconds and the memory of a simulation, by its number of schedules and days.

python -m benchmarks.simulate --schedules 600 --days 365
"""

from __future__ import annotations

import resource
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.lab import arguments, report
from rqsched import Cron, Scheduler
from rqsched.features.declarations.declarations import Declaration
from rqsched.simulate.api import simulate, wanted_of
from rqsched.simulate.entries import declared

START = datetime(2027, 1, 1, tzinfo=UTC)


def speed(schedules: int, days: int) -> dict[str, Any]:
    """Simulate daily and hourly schedules, half of each, for so many days."""
    with Scheduler(database_url="sqlite:///:memory:", redis_url="redis://127.0.0.1:1/0") as scheduler:
        given = [
            Declaration(f"s{number}", "benchmark-noop", Cron(f"{number % 60} {'2' if number % 2 else '*'} * * *"),
                        {"timezone": ("Europe/Berlin", "America/New_York", "UTC")[number % 3],
                         "queue": f"q{number % 4}"})
            for number in range(schedules)
        ]  # fmt: skip
        entries = declared(scheduler.runtime, given, "default", START, is_measured=False)
        end = START + timedelta(days=days)
        wanted = wanted_of(START, start=START, end=end, duration="5s", workers={"q0": 8, "q1": 8})
    began = time.perf_counter()
    found = simulate(entries, wanted, now=START)
    took = time.perf_counter() - began
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": round(took, 2), "fires": found.fires, "milliseconds_a_fire": round(took / found.fires * 1000, 3),
            "megabytes": megabytes}  # fmt: skip


def main() -> None:
    given = arguments(__doc__, schedules=600, days=365)
    found = speed(given.schedules, given.days)
    report("simulate", vars(given), {**found, "measured_at": datetime.now(UTC).isoformat()})


if __name__ == "__main__":
    main()
