"""The faults, each in a window of its own. Every setup has the same faults at the same distance from its due times."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.peers.count import REACH
from benchmarks.peers.setups import EVERY
from benchmarks.peers.supervised import Site
from tests.support.processes import wait_until

SEED = 46
KILLS = 10
TAIL = 8
"""Seconds after a window in which the runs of its last due times may still begin."""
PATIENCE = 120
DOWN = (6.0, 126.0)
"""The span in which everything is down."""


class Fault(NamedTuple):
    """One fault and its window."""

    length: int
    """The window's seconds; its due times are those within."""
    cause: Callable[[Site], list[tuple[float, str, Callable[[], None]]]]
    """Returns the actions: the second of the window, a name, and a function."""
    down: tuple[float, float] | None = None


def random_kills() -> list[float]:
    """Return instants within two minutes that are random, the same for every setup, and at least 7 s apart."""
    chance = random.Random(SEED)
    while True:
        found = sorted(round(chance.uniform(2, 118), 2) for _ in range(KILLS))
        if all(after - before >= 7 for before, after in pairwise(found)):
            return found


FAULTS: dict[str, Fault] = {
    "idle": Fault(90, lambda _: []),
    "kills": Fault(
        175,  # rqsched takes up to a minute to settle a run whose process was killed
        lambda site: [
            (at, "a scheduler is killed", partial(site.kill, number)) for number, at in enumerate(random_kills())
        ],
    ),
    "emptied": Fault(60, lambda site: [(7.5, "Redis is emptied", site.empty_redis)]),
    "second": Fault(45, lambda site: [(1.0, "one more scheduler is started", site.add_scheduler)]),
    "down": Fault(
        160,
        lambda site: [
            (DOWN[0], "everything is killed", site.go_down),
            (DOWN[1], "everything is started", site.come_back),
        ],
        DOWN,
    ),
    "deployment": Fault(50, lambda site: [(6.0, "a deployment restarts everything", site.deploy)]),
}


def observe(site: Site, name: str) -> dict[str, Any]:
    """Begin anew, cause a fault, and return what the job wrote in the window."""
    fault = FAULTS[name]
    site.begin(name)
    wait_until(partial(_has_begun, site), timeout=PATIENCE, what=lambda: f"two runs of {site.setup}")
    begin = math.ceil((time.time() + 2) / EVERY) * EVERY
    _supervise_until(site, begin)
    used, starts = site.cpu(), sum(kept.starts for kept in site.kept)
    pending, events = fault.cause(site), []
    while pending:
        at, what, act = pending.pop(0)
        _supervise_until(site, begin + at)
        events.append((round(time.time() - begin, 2), what))
        act()
    _supervise_until(site, begin + fault.length)
    cpu = (site.cpu() - used) / fault.length
    idle = {} if events else {"cpu_ms_per_s": round(cpu, 2), "mib": round(site.memory(), 1)}
    _supervise_until(site, begin + fault.length + TAIL)
    runs = [(began - begin, due and due - begin) for began, due in site.runs()]
    earlier = max(began for began, _ in runs if began < 0)
    return {
        "length": fault.length,
        "phase": round(_phase(earlier, site.setup.times), 3),
        "down": fault.down,
        "events": events,
        "starts": sum(kept.starts for kept in site.kept) - starts,
        **idle,
        "runs": [
            [round(began, 3)] if due is None else [round(began, 3), round(due, 3)]
            for began, due in runs
            if began >= -REACH - EVERY
        ],
    }


def _has_begun(site: Site) -> bool:
    site.supervise()
    return len(site.runs()) >= 2


def _supervise_until(site: Site, moment: float) -> None:
    site.supervise_for(max(0.0, moment - time.time()))


def _phase(earlier: float, times: float) -> float:
    """Return the first due time that is not before the window, from the last run before it and where times can be."""
    due = math.floor(earlier / times) * times if times else earlier
    return due % EVERY
