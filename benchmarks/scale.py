"""Scale: what an operation costs as the tables grow, as a ratio to the smallest size.

    python -m benchmarks.scale --largest 1000000 --samples 200

A fire, a recover pass when nothing is wrong, a page of the list, a create, a page of history, at 1 000, 100 000 and
1 000 000 schedules on PostgreSQL. The aim is at most 1.2 x for a fire.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks.lab import START, analyse, arguments, fill, fire_all, lab, minutes, report, summary
from rqsched import Cron, Scheduler, reconcile
from rqsched.runtime import Runtime
from rqsched.testing import ManualClock

SIZES = (1_000, 100_000, 1_000_000)
FAR = Cron("0 0 1 1 *")
SOON = Cron("1 12 * * *")


def milliseconds(call: Callable[[int], object], samples: int) -> list[float]:
    found = []
    for number in range(samples):
        started = time.perf_counter()
        call(number)
        found.append((time.perf_counter() - started) * 1000)
    return found


def measure(runtime: Runtime, clock: ManualClock, size: int, samples: int) -> dict[str, object]:
    scheduler = Scheduler(settings=runtime.settings, clock=clock)
    handles = scheduler.list(limit=1).items
    listed = milliseconds(lambda _: scheduler.list(limit=50), samples)
    created = milliseconds(
        lambda number: scheduler.create(f"new-{size}-{number}", "benchmark-noop", FAR, catch_up="next"), samples
    )
    history = milliseconds(lambda _: handles[0].history(limit=100), samples)
    recovered = milliseconds(lambda _: reconcile.recover(runtime), max(3, samples // 50))
    scheduler.close()
    return {
        "list_page_ms": summary(listed, 3),
        "create_ms": summary(created, 3),
        "history_page_ms": summary(history, 3),
        "recover_pass_ms": summary(recovered, 2),
    }


def fire_cost(runtime: Runtime, clock: ManualClock, size: int, samples: int) -> list[float]:
    """Microseconds a fire in batches of a hundred, while all the others are far from due."""
    found = []
    for round_number in range(max(3, samples // 20)):
        clock.set(START)
        fill(runtime, 100, SOON, prefix=f"due-{size}-{round_number}-")
        clock.advance(minutes(1))
        found.append(fire_all(runtime, 100) / 100 * 1e6)
    return found


def main() -> None:
    given = arguments(__doc__, largest=1_000_000, samples=200)
    found: dict[str, dict[str, object]] = {}
    clock, filled = ManualClock(START), 0
    with lab() as place, place.runtime("postgres", clock) as runtime:
        for size in [size for size in SIZES if size <= given.largest]:
            fill(runtime, size - filled, FAR, prefix=f"far-{size}-")
            filled = size
            analyse(runtime)
            fire_cost(runtime, clock, size * 10 + 1, 60)  # warm
            fires = fire_cost(runtime, clock, size, given.samples)
            found[str(size)] = {"fire_us": summary(fires), **measure(runtime, clock, size, given.samples)}
            print(size, found[str(size)], file=sys.stderr, flush=True)  # the next size takes minutes
    report("scale", vars(given), {"by_schedules": found, "ratios": ratios(found), "aim": "a fire: at most 1.2"})


def ratios(found: dict[str, dict[str, object]]) -> dict[str, dict[str, float]]:
    sizes = list(found)
    smallest = found[sizes[0]]

    def of(size: str, name: str) -> float:
        return round(found[size][name]["median"] / smallest[name]["median"], 2)  # type: ignore[index]

    return {size: {name: of(size, name) for name in smallest} for size in sizes[1:]}


if __name__ == "__main__":
    main()
