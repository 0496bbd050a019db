"""The steps that a process reports to its tracer: the kernel names them, and the tracing feature makes spans of them.

A tracer is no `Feature`. It decides and writes nothing, it reports what the kernel and the features do, and most of
its steps (a delivery of links, an operation, a span that outlives its transaction) concern no other feature. A process
has at most one tracer, for its settings switch that on. Its methods raise nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple, Protocol

from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.model import Change, Run, Schedule


class Asked(Protocol):
    """The span of an operation that somebody asks for."""

    @property
    def context(self) -> CommandContext:
        """The actor, the reason, and the span to which a created schedule or a started run belongs."""
        ...

    def note(self, schedule: Schedule, outcome: str, run: Run | None = None) -> None:
        """Note the outcome; called at most once."""
        ...


class FireSpan(Protocol):
    """The span of a fire, which begins in the transaction and ends after its commit."""

    @property
    def context(self) -> CommandContext:
        """The context by which the runs that the fire starts belong to the span."""
        ...

    def end(self, change: Change) -> None:
        """End the span once the fire is committed, and followed if Redis answers; not called after a rollback."""
        ...


class Attempt(NamedTuple):
    """An attempt of a run or of a target."""

    workflow: str
    """The name of the workflow that is called."""
    uid: str
    """The uid of the run or of the target."""
    number: int
    """The number of the attempt, from 1."""
    queue: str | None
    """The queue of its job; None for the default queue."""
    began: datetime | None
    """When it was claimed."""
    of: tuple[Schedule, Run] | None
    """Its schedule and its run; None for a target that was started by hand."""
    target_id: str | None = None
    """The id of the target; None for a run."""
    place: int = 1
    """The target's place among the targets of its run."""


class Tracer(Protocol):
    """The tracer of a process."""

    @property
    def traceparent(self) -> str | None:
        """The current span; None when there is none."""
        ...

    def asked(self, operation: str, context: CommandContext | None) -> AbstractContextManager[Asked]:
        """Trace an operation that creates or triggers, under the current span or the one that its caller named.

        Called once for each operation, however often its transaction is repeated.
        """
        ...

    def batch(self, links: int) -> AbstractContextManager[None]:
        """Trace the delivery of so many links, whose statements belong to all of them."""
        ...

    def begin_fire(self, schedule: Schedule, now: datetime) -> FireSpan:
        """Begin the span of a fire; called in each try of its transaction."""
        ...

    def fail_fire(self, schedule_uid: str, error: Exception) -> None:
        """Trace a fire that failed, and is tried again."""
        ...

    def attempt(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Trace an attempt while its workflow executes and its end is recorded; its span is current."""
        ...

    def note_outcome(self, outcome: str) -> None:
        """Note how the attempt that is traced here ended."""
        ...

    def warn_unless_set_up(self) -> None:
        """Log that nothing records spans, if that is so once the application is imported."""
        ...

    def end_job(self, job_id: str) -> None:
        """Export what a work horse traced, before RQ ends it; nothing in a process that goes on."""
        ...

    def flush(self) -> None:
        """Export what this process traced, within a bounded time; called when the process ends."""
        ...
