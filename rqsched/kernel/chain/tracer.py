"""The steps that the kernel reports to the tracer of its process.

The tracing feature makes spans of the steps. A tracer is not a `Feature`, because it decides and writes nothing. If the
settings of a process switch tracing on, the process has one tracer, otherwise none. The methods of a tracer raise
nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple, Protocol

from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.model import Change, Run, Schedule


class Asked(Protocol):
    """The span of a requested operation."""

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
        """The context for the runs that the fire starts. It makes the runs belong to this span."""
        ...

    def end(self, change: Change) -> None:
        """End the span. Called after the commit and the writes to Redis, even if these failed; not after a rollback."""
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
    """The queue of the attempt's job; None for the default queue."""
    began: datetime | None
    """When the attempt was claimed."""
    of: tuple[Schedule, Run] | None
    """The schedule and the run; None for a target that was started by hand."""
    target_id: str | None = None
    """The id of the target; None for a run."""
    place: int = 1
    """The target's number among the targets of its run."""


class Tracer(Protocol):
    """The tracer of a process."""

    @property
    def traceparent(self) -> str | None:
        """The current span; None when there is none."""
        ...

    def asked(self, operation: str, context: CommandContext | None) -> AbstractContextManager[Asked]:
        """Trace a create, an upsert or a trigger, under the current span or the span that its caller named.

        Called once for each operation, even if its transaction is repeated.
        """
        ...

    def batch(self, links: int) -> AbstractContextManager[None]:
        """Trace the delivery of this number of links, which share their statements."""
        ...

    def begin_fire(self, schedule: Schedule, now: datetime) -> FireSpan:
        """Begin the span of a fire; called again each time its transaction is repeated."""
        ...

    def fail_fire(self, schedule_uid: str, error: Exception) -> None:
        """Trace a fire that failed and will be tried again."""
        ...

    def attempt(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Trace an attempt while its workflow executes and its end is recorded.

        The attempt's span is current meanwhile.
        """
        ...

    def note_outcome(self, outcome: str) -> None:
        """Note how the attempt that this process traces ended."""
        ...

    def warn_unless_set_up(self) -> None:
        """Log a warning if the application is imported but nothing records spans."""
        ...

    def end_job(self, job_id: str) -> None:
        """Export the spans of a work horse (the process that RQ forks for a job) before RQ ends it."""
        ...

    def flush(self) -> None:
        """Export the spans of this process, within a bounded time; called when the process ends."""
        ...
