"""rqsched: durable, self-rescheduling schedules on RQ. SQL is the truth, Redis is transport.

>>> from rqsched import Cron, Scheduler, workflow
>>> @workflow("invoice-sync")
... def invoice_sync(region: str) -> None: ...
>>> scheduler = Scheduler.from_env()  # doctest: +SKIP
>>> scheduler.create("nightly", "invoice-sync", Cron("0 2 * * *"), args=["eu"])  # doctest: +SKIP
"""

from .audit import CommandContext
from .errors import RqschedError, RunCancelled
from .policy import OverlapPolicy, RetryPolicy
from .scheduler import Scheduler
from .spec import Cron, Every, Once, Spec
from .workflows import current_run, workflow

__version__ = "0.1.0"

__all__ = [
    "CommandContext",
    "Cron",
    "Every",
    "Once",
    "OverlapPolicy",
    "RetryPolicy",
    "RqschedError",
    "RunCancelled",
    "Scheduler",
    "Spec",
    "current_run",
    "workflow",
]
