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
    from rqsched.api.calendars import Calendars
    from rqsched.api.declarations import Declaration, DeclarationOptions
    from rqsched.api.description import (
        BackfillProgress,
        DeliveryDescription,
        Description,
        RunDescription,
        TriggerResult,
    )
    from rqsched.api.list_filters import ListFilters
    from rqsched.api.run_handle import RunHandle
    from rqsched.api.schedule_handle import ScheduleHandle
    from rqsched.api.scheduler import Scheduler
    from rqsched.chain.backfill import BackfillRange
    from rqsched.chain.pruning import Pruned
    from rqsched.config import Settings
    from rqsched.core.audit import AuditRecord, CommandContext
    from rqsched.core.hold import HeldRun, HeldSchedule, Hold, Released, ReleasePreview
    from rqsched.core.option_table import Options
    from rqsched.core.policy import (
        CatchUp,
        ErrorsLike,
        FailurePolicy,
        FanOutPolicy,
        MissedPolicy,
        OverlapPolicy,
        OverlapUntil,
        Rerun,
        RetryPolicy,
    )
    from rqsched.core.quota import Quota, Usage
    from rqsched.core.results import (
        Answer,
        BackfillRow,
        BulkProgress,
        BulkRow,
        LimitDescription,
        Load,
        NamespaceData,
        Page,
        Peak,
        QueueLoad,
        Recovered,
        RetryRow,
        Synced,
        Why,
    )
    from rqsched.core.simulation_report import (
        ClockEffect,
        ClockNight,
        LimitOutcome,
        NotSimulated,
        QueueBehind,
        QueueOutcome,
        ScheduleOutcome,
        SimulatedDay,
        SimulatedSchedule,
        Simulation,
        SimulationOutcome,
    )
    from rqsched.core.target_progress import TargetDescription, TargetProgress
    from rqsched.errors import RqschedError, RunCancelled
    from rqsched.spec.calendars import Calendar
    from rqsched.spec.cron import Gap
    from rqsched.spec.duration import SpanLike
    from rqsched.spec.exclusion import ExcludeLike
    from rqsched.spec.members import MemberLike
    from rqsched.spec.spec import After, Cron, Every, Once, Spec, SpecLike
    from rqsched.spec.timeline import Count, Excluded
    from rqsched.store.caller_transaction import ConnectionLike, SessionLike, WritingOptions
    from rqsched.timing import Timing, When
    from rqsched.workflows import Registry, RunContext, current_run, workflow

__version__ = "0.1.0"

__all__ = [
    "After",
    "Answer",
    "AuditRecord",
    "BackfillProgress",
    "BackfillRange",
    "BackfillRow",
    "BulkProgress",
    "BulkRow",
    "Calendar",
    "Calendars",
    "CatchUp",
    "ClockEffect",
    "ClockNight",
    "CommandContext",
    "ConnectionLike",
    "Count",
    "Cron",
    "Declaration",
    "DeclarationOptions",
    "DeliveryDescription",
    "Description",
    "ErrorsLike",
    "Every",
    "ExcludeLike",
    "Excluded",
    "FailurePolicy",
    "FanOutPolicy",
    "Gap",
    "HeldRun",
    "HeldSchedule",
    "Hold",
    "LimitDescription",
    "LimitOutcome",
    "ListFilters",
    "Load",
    "MemberLike",
    "MissedPolicy",
    "NamespaceData",
    "NotSimulated",
    "Once",
    "Options",
    "OverlapPolicy",
    "OverlapUntil",
    "Page",
    "Peak",
    "Pruned",
    "QueueBehind",
    "QueueLoad",
    "QueueOutcome",
    "Quota",
    "Recovered",
    "Registry",
    "ReleasePreview",
    "Released",
    "Rerun",
    "RetryPolicy",
    "RetryRow",
    "RqschedError",
    "RunCancelled",
    "RunContext",
    "RunDescription",
    "RunHandle",
    "ScheduleHandle",
    "ScheduleOutcome",
    "Scheduler",
    "SessionLike",
    "Settings",
    "SimulatedDay",
    "SimulatedSchedule",
    "Simulation",
    "SimulationOutcome",
    "SpanLike",
    "Spec",
    "SpecLike",
    "Synced",
    "TargetDescription",
    "TargetProgress",
    "Timing",
    "TriggerResult",
    "Usage",
    "When",
    "Why",
    "WritingOptions",
    "current_run",
    "workflow",
]

_HOMES = {
    "After": "spec.spec",
    "Answer": "core.results",
    "AuditRecord": "core.audit",
    "BackfillProgress": "api.description",
    "BackfillRange": "chain.backfill",
    "BackfillRow": "core.results",
    "BulkProgress": "core.results",
    "BulkRow": "core.results",
    "Calendar": "spec.calendars",
    "Calendars": "api.calendars",
    "CatchUp": "core.policy",
    "ClockEffect": "core.simulation_report",
    "ClockNight": "core.simulation_report",
    "CommandContext": "core.audit",
    "ConnectionLike": "store.caller_transaction",
    "Count": "spec.timeline",
    "Cron": "spec.spec",
    "Declaration": "api.declarations",
    "DeclarationOptions": "api.declarations",
    "DeliveryDescription": "api.description",
    "Description": "api.description",
    "ErrorsLike": "core.policy",
    "Every": "spec.spec",
    "ExcludeLike": "spec.exclusion",
    "Excluded": "spec.timeline",
    "FailurePolicy": "core.policy",
    "FanOutPolicy": "core.policy",
    "Gap": "spec.cron",
    "HeldRun": "core.hold",
    "HeldSchedule": "core.hold",
    "Hold": "core.hold",
    "ListFilters": "api.list_filters",
    "LimitDescription": "core.results",
    "LimitOutcome": "core.simulation_report",
    "Load": "core.results",
    "MemberLike": "spec.members",
    "MissedPolicy": "core.policy",
    "NamespaceData": "core.results",
    "NotSimulated": "core.simulation_report",
    "Once": "spec.spec",
    "Options": "core.option_table",
    "OverlapPolicy": "core.policy",
    "OverlapUntil": "core.policy",
    "Page": "core.results",
    "Peak": "core.results",
    "Pruned": "chain.pruning",
    "QueueBehind": "core.simulation_report",
    "QueueLoad": "core.results",
    "QueueOutcome": "core.simulation_report",
    "Quota": "core.quota",
    "Recovered": "core.results",
    "Registry": "workflows",
    "ReleasePreview": "core.hold",
    "Released": "core.hold",
    "Rerun": "core.policy",
    "RetryPolicy": "core.policy",
    "RetryRow": "core.results",
    "RqschedError": "errors",
    "RunCancelled": "errors",
    "RunContext": "workflows",
    "RunDescription": "api.description",
    "RunHandle": "api.run_handle",
    "ScheduleHandle": "api.schedule_handle",
    "ScheduleOutcome": "core.simulation_report",
    "Scheduler": "api.scheduler",
    "SessionLike": "store.caller_transaction",
    "Settings": "config",
    "SimulatedDay": "core.simulation_report",
    "SimulatedSchedule": "core.simulation_report",
    "Simulation": "core.simulation_report",
    "SimulationOutcome": "core.simulation_report",
    "SpanLike": "spec.duration",
    "Spec": "spec.spec",
    "SpecLike": "spec.spec",
    "Synced": "core.results",
    "TargetDescription": "core.target_progress",
    "TargetProgress": "core.target_progress",
    "Timing": "timing",
    "TriggerResult": "api.description",
    "Usage": "core.quota",
    "When": "timing",
    "Why": "core.results",
    "WritingOptions": "store.caller_transaction",
    "current_run": "workflows",
    "workflow": "workflows",
}
"""The module of each public name."""
_MODULES = frozenset(
    {"aio", "client", "clock", "config", "errors", "machines", "signals", "tables", "testing", "timing", "workflows"}
)
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
