"""The types of rqsched's results and arguments, for annotations and `isinstance`.

>>> from rqsched.types import Description
>>> def due_at(description: Description) -> object:
...     return description.next_run_at

`rqsched` itself exports the classes and functions that an application calls. Every name here is imported at its first
use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqsched.api.description import BackfillProgress as BackfillProgress
    from rqsched.api.description import DeliveryDescription as DeliveryDescription
    from rqsched.api.description import Description as Description
    from rqsched.api.description import RunDescription as RunDescription
    from rqsched.api.description import TriggerResult as TriggerResult
    from rqsched.api.list_filters import ListFilters as ListFilters
    from rqsched.api.list_filters import RunListFilters as RunListFilters
    from rqsched.api.run_handle import Runs as Runs
    from rqsched.features.backfill.api import Backfills as Backfills
    from rqsched.features.bulk.api import BulkOperations as BulkOperations
    from rqsched.features.calendars.api import Calendars as Calendars
    from rqsched.features.declarations.declarations import DeclarationOptions as DeclarationOptions
    from rqsched.features.fan_out.progress import TargetDescription as TargetDescription
    from rqsched.features.fan_out.progress import TargetProgress as TargetProgress
    from rqsched.features.limits.api import Limits as Limits
    from rqsched.features.limits.decide import Bounds as Bounds
    from rqsched.features.namespaces.api import Namespaces as Namespaces
    from rqsched.features.notifications.decide import DeliveryStatus as DeliveryStatus
    from rqsched.features.pruning.chain import Pruned as Pruned
    from rqsched.features.quotas.decide import Usage as Usage
    from rqsched.kernel.decide.audit import AuditRecord as AuditRecord
    from rqsched.kernel.decide.freeze import DueSchedule as DueSchedule
    from rqsched.kernel.decide.freeze import Freeze as Freeze
    from rqsched.kernel.decide.freeze import Thawed as Thawed
    from rqsched.kernel.decide.freeze import ThawPreview as ThawPreview
    from rqsched.kernel.decide.freeze import WaitingRun as WaitingRun
    from rqsched.kernel.decide.model import LastOutcome as LastOutcome
    from rqsched.kernel.decide.model import Run as Run
    from rqsched.kernel.decide.model import RunKind as RunKind
    from rqsched.kernel.decide.model import RunStatus as RunStatus
    from rqsched.kernel.decide.model import Schedule as Schedule
    from rqsched.kernel.decide.model import ScheduleStatus as ScheduleStatus
    from rqsched.kernel.decide.model import TargetStatus as TargetStatus
    from rqsched.kernel.decide.notifications import Notifications as Notifications
    from rqsched.kernel.decide.options import Options as Options
    from rqsched.kernel.decide.policy import ErrorsLike as ErrorsLike
    from rqsched.kernel.decide.results import Answer as Answer
    from rqsched.kernel.decide.results import BackfillRow as BackfillRow
    from rqsched.kernel.decide.results import BulkProgress as BulkProgress
    from rqsched.kernel.decide.results import BulkRow as BulkRow
    from rqsched.kernel.decide.results import LimitDescription as LimitDescription
    from rqsched.kernel.decide.results import Load as Load
    from rqsched.kernel.decide.results import NamespaceData as NamespaceData
    from rqsched.kernel.decide.results import Page as Page
    from rqsched.kernel.decide.results import Peak as Peak
    from rqsched.kernel.decide.results import QueueLoad as QueueLoad
    from rqsched.kernel.decide.results import Recovered as Recovered
    from rqsched.kernel.decide.results import RetryRow as RetryRow
    from rqsched.kernel.decide.results import Synced as Synced
    from rqsched.kernel.decide.results import Why as Why
    from rqsched.kernel.store.caller_transaction import ConnectionLike as ConnectionLike
    from rqsched.kernel.store.caller_transaction import SessionLike as SessionLike
    from rqsched.kernel.store.caller_transaction import WritingOptions as WritingOptions
    from rqsched.simulate.report import ClockEffect as ClockEffect
    from rqsched.simulate.report import ClockNight as ClockNight
    from rqsched.simulate.report import LimitOutcome as LimitOutcome
    from rqsched.simulate.report import NotSimulated as NotSimulated
    from rqsched.simulate.report import QueueBehind as QueueBehind
    from rqsched.simulate.report import QueueOutcome as QueueOutcome
    from rqsched.simulate.report import ScheduleOutcome as ScheduleOutcome
    from rqsched.simulate.report import SimulatedDay as SimulatedDay
    from rqsched.simulate.report import SimulatedSchedule as SimulatedSchedule
    from rqsched.simulate.report import Simulation as Simulation
    from rqsched.simulate.report import SimulationOutcome as SimulationOutcome
    from rqsched.timing import When as When
    from rqsched.when.duration import SpanLike as SpanLike
    from rqsched.when.exclusion import ExcludeLike as ExcludeLike
    from rqsched.when.members import MemberLike as MemberLike
    from rqsched.when.spec import SpecLike as SpecLike
    from rqsched.when.timeline import Count as Count
    from rqsched.when.timeline import Excluded as Excluded

_NAMES = {
    "api.description": "BackfillProgress DeliveryDescription Description RunDescription TriggerResult",
    "api.list_filters": "ListFilters RunListFilters",
    "api.run_handle": "Runs",
    "features.backfill.api": "Backfills",
    "features.bulk.api": "BulkOperations",
    "features.calendars.api": "Calendars",
    "features.declarations.declarations": "DeclarationOptions",
    "features.fan_out.progress": "TargetDescription TargetProgress",
    "features.limits.api": "Limits",
    "features.namespaces.api": "Namespaces",
    "features.limits.decide": "Bounds",
    "features.notifications.decide": "DeliveryStatus",
    "features.pruning.chain": "Pruned",
    "features.quotas.decide": "Usage",
    "kernel.decide.audit": "AuditRecord",
    "kernel.decide.freeze": "DueSchedule Freeze ThawPreview Thawed WaitingRun",
    "kernel.decide.model": "LastOutcome Run RunKind RunStatus Schedule ScheduleStatus TargetStatus",
    "kernel.decide.notifications": "Notifications",
    "kernel.decide.options": "Options",
    "kernel.decide.policy": "ErrorsLike",
    "kernel.decide.results": "Answer BackfillRow BulkProgress BulkRow LimitDescription Load NamespaceData Page Peak "
    "QueueLoad Recovered RetryRow Synced Why",
    "kernel.store.caller_transaction": "ConnectionLike SessionLike WritingOptions",
    "simulate.report": "ClockEffect ClockNight LimitOutcome NotSimulated QueueBehind QueueOutcome ScheduleOutcome "
    "SimulatedDay SimulatedSchedule Simulation SimulationOutcome",
    "timing": "When",
    "when.duration": "SpanLike",
    "when.exclusion": "ExcludeLike",
    "when.members": "MemberLike",
    "when.spec": "SpecLike",
    "when.timeline": "Count Excluded",
}
"""For each module, the names that it defines."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [name for names in _NAMES.values() for name in names.split()]


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept every name

    def __getattr__(name: str) -> Any:
        """Import the module of a name and keep the name, so that this happens once."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"rqsched.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    """List the names, imported yet or not."""
    return sorted({*globals(), *__all__})
