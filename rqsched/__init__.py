"""rqsched: durable, self-rescheduling schedules on RQ. SQL is the truth, Redis is transport.

>>> from rqsched import Cron, Scheduler, workflow
>>> @workflow("invoice-sync")
... def invoice_sync(region: str) -> None: ...
>>> scheduler = Scheduler.from_env()
>>> schedule = scheduler.create("nightly", "invoice-sync", Cron("0 2 * * *"), args=["eu"])
>>> schedule.status
'active'

Every name is imported at its first use: SQLAlchemy, RQ and pydantic are most of the time that `rqsched --help` or a
module of workflows would otherwise take.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqsched.api.declarations import Declaration
    from rqsched.api.description import TriggerResult
    from rqsched.api.run_handle import RunHandle
    from rqsched.api.schedule_handle import BackfillResult, ScheduleHandle
    from rqsched.api.scheduler import Scheduler
    from rqsched.config import Settings
    from rqsched.core.audit import CommandContext
    from rqsched.core.policy import CatchUp, FailurePolicy, MissedPolicy, OverlapPolicy, RetryPolicy
    from rqsched.errors import RqschedError, RunCancelled
    from rqsched.spec.spec import Cron, Every, Once, Spec
    from rqsched.timing import Timing
    from rqsched.workflows import RunContext, current_run, workflow

__version__ = "0.1.0"

__all__ = [
    "BackfillResult",
    "CatchUp",
    "CommandContext",
    "Cron",
    "Declaration",
    "Every",
    "FailurePolicy",
    "MissedPolicy",
    "Once",
    "OverlapPolicy",
    "RetryPolicy",
    "RqschedError",
    "RunCancelled",
    "RunContext",
    "RunHandle",
    "ScheduleHandle",
    "Scheduler",
    "Settings",
    "Spec",
    "Timing",
    "TriggerResult",
    "current_run",
    "workflow",
]

_HOMES = {
    "BackfillResult": "api.schedule_handle",
    "CatchUp": "core.policy",
    "CommandContext": "core.audit",
    "Cron": "spec.spec",
    "Declaration": "api.declarations",
    "Every": "spec.spec",
    "FailurePolicy": "core.policy",
    "MissedPolicy": "core.policy",
    "Once": "spec.spec",
    "OverlapPolicy": "core.policy",
    "RetryPolicy": "core.policy",
    "RqschedError": "errors",
    "RunCancelled": "errors",
    "RunContext": "workflows",
    "RunHandle": "api.run_handle",
    "ScheduleHandle": "api.schedule_handle",
    "Scheduler": "api.scheduler",
    "Settings": "config",
    "Spec": "spec.spec",
    "Timing": "timing",
    "TriggerResult": "api.description",
    "current_run": "workflows",
    "workflow": "workflows",
}
"""The module of each public name."""
_MODULES = frozenset({"aio", "client", "config", "errors", "machines", "signals", "tables", "testing", "timing"})
"""Public modules that `import rqsched` alone offers; each is imported at its first use."""


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
