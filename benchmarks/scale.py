"""Scale: the cost of an operation as the tables grow, as a ratio to the smallest size.

    python -m benchmarks.scale --smallest 1000 --largest 1000000 --rounds 20

A fire, a recover pass when nothing is wrong, a page of the list, a create, a page of history, at 1 000, 100 000 and
1 000 000 schedules on PostgreSQL: a database of each size, all of them measured in turn, so that a slow moment of the
machine falls on every size. The aim is at most 1.2 x for a fire.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.lab import START, Lab, analyse, arguments, fill, fire_all, lab, minutes, ratio, report, summary
from rqsched import Cron, Scheduler
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.chain.runtime import Runtime
from rqsched.testing import ManualClock

STEPS = (1, 100, 1_000)
"""The sizes, as multiples of the smallest."""
FAR = Cron("0 0 1 1 *")
SOON = Cron("1 12 * * *")
FIRES = 100
"""Fires a batch."""
CALLS = 10
"""Calls of an operation a round."""
WARM = 2
"""Rounds before the first that counts."""


@dataclass
class Site:
    """A database of one size, with a Redis of its own."""

    size: int
    runtime: Runtime
    scheduler: Scheduler
    clock: ManualClock

    def round(self, number: int) -> dict[str, list[float]]:
        """Measure each operation: microseconds a fire, milliseconds a call of the others."""
        handle = self.scheduler.list(limit=1).items[0]
        name = f"new-{number}"
        return {
            "fire_us": [self.fire(number)],
            "list_page_ms": milliseconds(lambda _: self.scheduler.list(limit=50)),
            "create_ms": milliseconds(
                lambda call: self.scheduler.create(f"{name}-{call}", "benchmark-noop", FAR, on_resume="next")
            ),
            "history_page_ms": milliseconds(lambda _: handle.history(limit=100)),
            "recover_pass_ms": milliseconds(lambda _: recover(self.runtime), 1),
        }

    def fire(self, number: int) -> float:
        """Fire a batch while all the others are far from due."""
        self.clock.set(START)
        fill(self.runtime, FIRES, SOON, prefix=f"due-{number}-")
        self.clock.advance(minutes(1))
        return fire_all(self.runtime, FIRES) / FIRES * 1e6


def milliseconds(call: Callable[[int], object], calls: int = CALLS) -> list[float]:
    found = []
    for number in range(calls):
        started = time.perf_counter()
        call(number)
        found.append((time.perf_counter() - started) * 1000)
    return found


def build(place: Lab, size: int, number: int, stack: ExitStack) -> Site:
    clock = ManualClock(START)
    runtime = stack.enter_context(place.runtime("postgres", clock, number=number))
    started = time.perf_counter()
    fill(runtime, size, FAR, prefix="far-")
    analyse(runtime)
    print(f"{size} schedules made in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    scheduler = Scheduler(settings=runtime.settings, clock=clock)
    stack.callback(scheduler.close)
    return Site(size, runtime, scheduler, clock)


def main() -> None:
    given = arguments(__doc__, smallest=1_000, largest=1_000_000, rounds=20)
    sizes = [size for size in (given.smallest * step for step in STEPS) if size <= given.largest]
    with ExitStack() as stack:
        place = stack.enter_context(lab())
        sites = [build(place, size, number, stack) for number, size in enumerate(sizes)]
        found: dict[int, dict[str, list[float]]] = {size: defaultdict(list) for size in sizes}
        for number in range(-WARM, given.rounds):
            for site in sites:
                for name, values in site.round(number).items():
                    found[site.size][name] += values if number >= 0 else []
    smallest = found[sizes[0]]
    figures = {
        "by_schedules": {
            str(size): {name: summary(values, 3) for name, values in found[size].items()} for size in sizes
        },
        "ratios": {
            str(size): {name: ratio(values, smallest[name]) for name, values in found[size].items()}
            for size in sizes[1:]
        },
        "aim": "a fire: at most 1.2",
    }
    report("scale", vars(given), figures)


if __name__ == "__main__":
    main()
