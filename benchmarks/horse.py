"""RQ's worker class with work horses that log their memory and CPU at their end, for benchmarks."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from rq import Worker

FIGURES = "BENCHMARK_HORSES"
"""Names the file of figures: one line a horse, its private KiB, page faults and milliseconds of CPU."""


def read_memory(pid: int) -> dict[str, int]:
    """Return a process's memory in KiB, from Linux: `Private`, shared with nobody, and `Pss`, its share of all."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {"Private": found["Private_Clean"] + found["Private_Dirty"], "Pss": found["Pss"]}


class MeasuringWorker(Worker):
    """Imports nothing that RQ has not, and reads the figures before it does anything else with them."""

    def perform_job(self, *arguments: Any, **options: Any) -> bool:
        """Execute a job; the horse ends right after it."""
        is_done = super().perform_job(*arguments, **options)
        used = resource.getrusage(resource.RUSAGE_SELF)
        private = read_memory(os.getpid())["Private"]
        with Path(os.environ[FIGURES]).open("a") as figures:
            print(private, used.ru_minflt, 1_000 * (used.ru_utime + used.ru_stime), file=figures)
        return is_done
