"""rqsched: durable, self-rescheduling schedules on RQ. SQL is the source of truth, Redis is the transport.

>>> from rqsched import Cron, Scheduler, workflow
>>> @workflow("invoice-sync")
... def invoice_sync(region: str) -> None: ...
>>> scheduler = Scheduler.from_env()
>>> schedule = scheduler.create("nightly", "invoice-sync", Cron("0 2 * * *"), args=["eu"])
>>> schedule.status
'active'

Every name is imported at its first use. Otherwise, `rqsched --help` and modules of workflows would spend most of their
time on the imports of SQLAlchemy, RQ and pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqsched.api.run_handle import RunHandle
    from rqsched.api.schedule_handle import ScheduleHandle
    from rqsched.api.scheduler import Scheduler
    from rqsched.config import Settings
    from rqsched.errors import RqschedError, RunCancelled
    from rqsched.features.backfill.chain import BackfillRange
    from rqsched.features.declarations.declarations import Declaration
    from rqsched.kernel.decide.audit import CommandContext
    from rqsched.kernel.decide.policy import (
        FailurePolicy,
        FanOutPolicy,
        MissedPolicy,
        OnResume,
        OverlapPolicy,
        OverlapUntil,
        Rerun,
        RetryPolicy,
    )
    from rqsched.kernel.decide.quota_options import Quota
    from rqsched.when.calendars import Calendar
    from rqsched.when.cron import Gap
    from rqsched.when.spec import After, Cron, Every, Once, Spec
    from rqsched.workflows import Registry, RunContext, current_run, workflow

__version__ = "0.1.0"

__all__ = [
    "After",
    "BackfillRange",
    "Calendar",
    "CommandContext",
    "Cron",
    "Declaration",
    "Every",
    "FailurePolicy",
    "FanOutPolicy",
    "Gap",
    "MissedPolicy",
    "OnResume",
    "Once",
    "OverlapPolicy",
    "OverlapUntil",
    "Quota",
    "Registry",
    "Rerun",
    "RetryPolicy",
    "RqschedError",
    "RunCancelled",
    "RunContext",
    "RunHandle",
    "ScheduleHandle",
    "Scheduler",
    "Settings",
    "Spec",
    "current_run",
    "workflow",
]

_HOMES = {
    "After": "when.spec",
    "BackfillRange": "features.backfill.chain",
    "Calendar": "when.calendars",
    "CommandContext": "kernel.decide.audit",
    "Cron": "when.spec",
    "Declaration": "features.declarations.declarations",
    "Every": "when.spec",
    "FailurePolicy": "kernel.decide.policy",
    "FanOutPolicy": "kernel.decide.policy",
    "Gap": "when.cron",
    "MissedPolicy": "kernel.decide.policy",
    "OnResume": "kernel.decide.policy",
    "Once": "when.spec",
    "OverlapPolicy": "kernel.decide.policy",
    "OverlapUntil": "kernel.decide.policy",
    "Quota": "kernel.decide.quota_options",
    "Registry": "workflows",
    "Rerun": "kernel.decide.policy",
    "RetryPolicy": "kernel.decide.policy",
    "RqschedError": "errors",
    "RunCancelled": "errors",
    "RunContext": "workflows",
    "RunHandle": "api.run_handle",
    "ScheduleHandle": "api.schedule_handle",
    "Scheduler": "api.scheduler",
    "Settings": "config",
    "Spec": "when.spec",
    "current_run": "workflows",
    "workflow": "workflows",
}
"""The module of each public name."""
_MODULES = frozenset(
    {"aio", "client", "clock", "config", "errors", "machines", "signals", "tables", "testing", "timing", "types"}
    | {"workflows"}
)
"""Public modules that `import rqsched` makes available; each is imported at its first use."""


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name

    def __getattr__(name: str) -> Any:
        """Import the module of a public name and keep the name, so that this happens once."""
        if name in _MODULES:
            return import_module(f".{name}", __name__)
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    """List the public names, imported yet or not."""
    return sorted({*globals(), *__all__})
