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
    from rqsched.config import Settings
    from rqsched.errors import RqschedError, RunCancelled
    from rqsched.features.backfill.chain import BackfillRange
    from rqsched.features.calendars.api import Calendars
    from rqsched.features.declarations.declarations import Declaration, DeclarationOptions
    from rqsched.features.fan_out.progress import TargetDescription, TargetProgress
    from rqsched.features.pruning.chain import Pruned
    from rqsched.features.quotas.decide import Usage
    from rqsched.kernel.decide.audit import AuditRecord, CommandContext
    from rqsched.kernel.decide.hold import HeldRun, HeldSchedule, Hold, Released, ReleasePreview
    from rqsched.kernel.decide.option_table import Options
    from rqsched.kernel.decide.policy import (
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
    from rqsched.kernel.decide.quota_options import Quota
    from rqsched.kernel.decide.results import (
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
    from rqsched.kernel.store.caller_transaction import ConnectionLike, SessionLike, WritingOptions
    from rqsched.simulate.report import (
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
    from rqsched.timing import Timing, When
    from rqsched.when.calendars import Calendar
    from rqsched.when.cron import Gap
    from rqsched.when.duration import SpanLike
    from rqsched.when.exclusion import ExcludeLike
    from rqsched.when.members import MemberLike
    from rqsched.when.spec import After, Cron, Every, Once, Spec, SpecLike
    from rqsched.when.timeline import Count, Excluded
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
    "After": "when.spec",
    "Answer": "kernel.decide.results",
    "AuditRecord": "kernel.decide.audit",
    "BackfillProgress": "api.description",
    "BackfillRange": "features.backfill.chain",
    "BackfillRow": "kernel.decide.results",
    "BulkProgress": "kernel.decide.results",
    "BulkRow": "kernel.decide.results",
    "Calendar": "when.calendars",
    "Calendars": "features.calendars.api",
    "CatchUp": "kernel.decide.policy",
    "ClockEffect": "simulate.report",
    "ClockNight": "simulate.report",
    "CommandContext": "kernel.decide.audit",
    "ConnectionLike": "kernel.store.caller_transaction",
    "Count": "when.timeline",
    "Cron": "when.spec",
    "Declaration": "features.declarations.declarations",
    "DeclarationOptions": "features.declarations.declarations",
    "DeliveryDescription": "api.description",
    "Description": "api.description",
    "ErrorsLike": "kernel.decide.policy",
    "Every": "when.spec",
    "ExcludeLike": "when.exclusion",
    "Excluded": "when.timeline",
    "FailurePolicy": "kernel.decide.policy",
    "FanOutPolicy": "kernel.decide.policy",
    "Gap": "when.cron",
    "HeldRun": "kernel.decide.hold",
    "HeldSchedule": "kernel.decide.hold",
    "Hold": "kernel.decide.hold",
    "ListFilters": "api.list_filters",
    "LimitDescription": "kernel.decide.results",
    "LimitOutcome": "simulate.report",
    "Load": "kernel.decide.results",
    "MemberLike": "when.members",
    "MissedPolicy": "kernel.decide.policy",
    "NamespaceData": "kernel.decide.results",
    "NotSimulated": "simulate.report",
    "Once": "when.spec",
    "Options": "kernel.decide.option_table",
    "OverlapPolicy": "kernel.decide.policy",
    "OverlapUntil": "kernel.decide.policy",
    "Page": "kernel.decide.results",
    "Peak": "kernel.decide.results",
    "Pruned": "features.pruning.chain",
    "QueueBehind": "simulate.report",
    "QueueLoad": "kernel.decide.results",
    "QueueOutcome": "simulate.report",
    "Quota": "kernel.decide.quota_options",
    "Recovered": "kernel.decide.results",
    "Registry": "workflows",
    "ReleasePreview": "kernel.decide.hold",
    "Released": "kernel.decide.hold",
    "Rerun": "kernel.decide.policy",
    "RetryPolicy": "kernel.decide.policy",
    "RetryRow": "kernel.decide.results",
    "RqschedError": "errors",
    "RunCancelled": "errors",
    "RunContext": "workflows",
    "RunDescription": "api.description",
    "RunHandle": "api.run_handle",
    "ScheduleHandle": "api.schedule_handle",
    "ScheduleOutcome": "simulate.report",
    "Scheduler": "api.scheduler",
    "SessionLike": "kernel.store.caller_transaction",
    "Settings": "config",
    "SimulatedDay": "simulate.report",
    "SimulatedSchedule": "simulate.report",
    "Simulation": "simulate.report",
    "SimulationOutcome": "simulate.report",
    "SpanLike": "when.duration",
    "Spec": "when.spec",
    "SpecLike": "when.spec",
    "Synced": "kernel.decide.results",
    "TargetDescription": "features.fan_out.progress",
    "TargetProgress": "features.fan_out.progress",
    "Timing": "timing",
    "TriggerResult": "api.description",
    "Usage": "features.quotas.decide",
    "When": "timing",
    "Why": "kernel.decide.results",
    "WritingOptions": "kernel.store.caller_transaction",
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
