"""When the chores run. `rqsched dev` syncs what `schedules` of an imported module returns."""

from __future__ import annotations

from datetime import timedelta

from rqsched import Cron, Declaration, Every, FailurePolicy, RetryPolicy, Scheduler

from .backup import back_up
from .logs import tend_logs
from .report import deliver_report
from .sample import sample_machine

RETRY = RetryPolicy(max_retries=3, base=timedelta(seconds=2), then=FailurePolicy.CONTINUE)
"""After 2, 4 and 8 seconds; a chore that still fails waits for its next occurrence."""


def schedules(scheduler: Scheduler) -> list[Declaration]:
    """Declare the chores: they work on the scheduler's own data folder, its database and its logs."""
    data = scheduler.settings.data_dir.absolute()
    ops = data / "ops"
    samples = str(ops / "machine.csv")
    return [
        Declaration(
            "sample-machine",
            sample_machine,
            Every("5s"),
            {"kwargs": {"path": samples}, "description": "load, memory and disk into a CSV file"},
        ),
        Declaration(
            "deliver-report",
            deliver_report,
            Every("15s"),
            {
                "kwargs": {"samples": samples, "path": str(ops / "report.json")},
                "retry": RETRY,
                "description": "fails twice, then recovers with backoff",
            },
        ),
        Declaration(
            "tend-logs",
            tend_logs,
            Every("20s"),
            {"kwargs": {"folder": str(data)}, "description": "rotate, compress and prune logs"},
        ),
        Declaration(
            "back-up-database",
            back_up,
            Cron("* * * * *"),
            {
                "kwargs": {"database": str(data / "rqsched.db"), "folder": str(ops / "backups")},
                "retry": RETRY,
                "description": "a checked copy of the schedules' own database",
            },
        ),
    ]
