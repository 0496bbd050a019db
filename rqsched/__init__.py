"""rqsched: durable, self-rescheduling schedules on RQ. SQL is the truth, Redis is transport.

>>> from rqsched import Cron, Scheduler, workflow
>>> @workflow("invoice-sync")
... def invoice_sync(region: str) -> None: ...
>>> scheduler = Scheduler.from_env()  # doctest: +SKIP
>>> scheduler.create("nightly", "invoice-sync", Cron("0 2 * * *"), args=["eu"])  # doctest: +SKIP

The names below are imported when they are first asked for: SQLAlchemy, RQ and pydantic are most of the time that
`rqsched --help` or a module of workflows would otherwise take.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqsched.api.scheduler import Scheduler
    from rqsched.core.audit import CommandContext
    from rqsched.core.policy import OverlapPolicy, RetryPolicy
    from rqsched.errors import RqschedError, RunCancelled
    from rqsched.spec.spec import Cron, Every, Once, Spec
    from rqsched.workflows import current_run, workflow

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

_HOMES = {
    "CommandContext": "core.audit",
    "Cron": "spec.spec",
    "Every": "spec.spec",
    "Once": "spec.spec",
    "OverlapPolicy": "core.policy",
    "RetryPolicy": "core.policy",
    "RqschedError": "errors",
    "RunCancelled": "errors",
    "Scheduler": "api.scheduler",
    "Spec": "spec.spec",
    "current_run": "workflows",
    "workflow": "workflows",
}
"""The module of each public name."""
_MODULES = frozenset({"aio", "client", "errors", "machines", "signals", "testing"})
"""Public modules that `import rqsched` alone gives, when they are asked for."""


def __getattr__(name: str) -> Any:
    """Import a public name's module and keep the name, so that it is asked for once."""
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    """Name what is here, imported yet or not."""
    return sorted({*globals(), *__all__})
