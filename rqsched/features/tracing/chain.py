"""OpenTelemetry spans for operations, fires, attempts of runs, and targets. Imported only if RQSCHED_OTEL is on.

Only the API of OpenTelemetry is used. The application sets up the SDK and its exporters. This code never waits for an
exporter, except for a moment before a process ends, because its spans would be lost otherwise.

A fire begins a trace of its own, with a link to the span that created its schedule, because the schedule may be years
old and fire often. An attempt belongs to the trace of the fire or operation that created its run, if it begins within
`NEAR` of that creation. The same holds for the targets of a run. Later attempts, attempts of backfills, and targets
beyond `MANY` begin traces of their own, with a link. So no trace lasts for days or has a hundred thousand spans.

If a sampler or a span processor of the application raises an error, the error is logged and nothing is traced. Fires
and runs continue.

Names and attributes follow the semantic conventions for messaging, version 1.44, which are still in development. Other
attributes begin with `rqsched.`. All names are constants in this file, so a release of the conventions cannot rename
them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import version
from threading import Thread
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from rqsched.kernel.chain.tracer import Attempt, Tracer
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import Change, Run, RunKind, Schedule
from rqsched.kernel.decide.traceparent import Traceparent, parse_traceparent

_log = logging.getLogger(__name__)

_FAILED = {"action": "tracing_failed"}
NEAR = timedelta(hours=1)
"""If an attempt begins within this time after its run was created, it belongs to the trace that created the run."""
MANY = 1_000
"""The first targets of a run, up to this number, belong to the trace that created the run, too."""
FLUSH_SECONDS = 1.0
"""The seconds that a process waits before its end for the export of its spans."""

SYSTEM = "messaging.system"
OPERATION, OPERATION_TYPE = "messaging.operation.name", "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE, MESSAGES = "messaging.message.id", "messaging.batch.message_count"
NAMESPACE = "rqsched.namespace"
SCHEDULE, SCHEDULE_UID = "rqsched.schedule.id", "rqsched.schedule.uid"
WORKFLOW = "rqsched.workflow"
RUN, RUN_KIND, ATTEMPT = "rqsched.run.uid", "rqsched.run.kind", "rqsched.run.attempt"
OCCURRENCE = "rqsched.occurrence"
TARGET = "rqsched.target.id"
OUTCOME = "rqsched.outcome"
LATENESS, QUEUE_WAIT = "rqsched.lateness", "rqsched.queue_wait"
"""In seconds."""
TRIGGER = "trigger"
"""The only operation that puts a run on its queue at once."""


class Asked(NamedTuple):
    """A traced operation of a caller."""

    operation: str
    """The name of the operation."""
    span: Span
    """Its span."""
    context: CommandContext
    """The actor, the reason, and the span to which a created schedule or a started run belongs."""

    def note(self, schedule: Schedule, outcome: str, run: Run | None = None) -> None:
        """Add the outcome and the workflow to the span. The workflow is known only after the schedule was read."""
        self.span.update_name(f"{self.operation} {schedule.definition.workflow}")
        self.span.set_attributes({**of_schedule(schedule), OUTCOME: outcome})
        if run is not None:
            self.span.set_attribute(RUN, run.uid)


class Fire(NamedTuple):
    """A traced fire, from its decision until after its commit."""

    span: Span
    """Its span."""
    context: CommandContext
    """The context for the runs that the fire starts. It makes these runs join the trace of the fire."""

    def end(self, change: Change) -> None:
        """Add the results of the fire to the span, and end it."""
        self.span.set_attribute(OUTCOME, change.events[-1].type if change.events else "")
        if change.new_runs:
            run = change.new_runs[-1]
            self.span.set_attributes({RUN: run.uid, OCCURRENCE: iso_utc(run.occurrence_at)})
        _end(self.span)


class Tracing(Tracer):
    """The tracing of one process, by OpenTelemetry's API."""

    def __init__(self, default_queue: str) -> None:
        self._tracer = trace.get_tracer("rqsched", version("rqsched"))
        self._default_queue = default_queue

    def warn_unless_set_up(self) -> None:
        """Log a warning if no SDK of OpenTelemetry is set up after the application was imported."""
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            text = (
                "RQSCHED_OTEL is on, but no SDK of OpenTelemetry is set up in this process: nothing is traced. Set a "
                "tracer provider in a module of RQSCHED_IMPORTS, or start the process with opentelemetry-instrument."
            )
            _log.warning(text, extra={"action": "tracing_not_set_up"})

    @property
    def traceparent(self) -> str | None:
        """The current span as a `traceparent` text; None without a span."""
        return _write(trace.get_current_span().get_span_context())

    @contextmanager
    def asked(self, operation: str, context: CommandContext | None) -> Iterator[Asked]:
        """Trace an operation.

        Its parent is the current span; without a current span, it is the span that the caller named.
        """
        context = context or CommandContext()
        parent = None if trace.get_current_span().get_span_context().is_valid else _read(context.traceparent)
        below = None if parent is None else _below(parent)
        kind = SpanKind.PRODUCER if operation == TRIGGER else SpanKind.INTERNAL
        given = {SYSTEM: "rqsched", OPERATION: operation}
        with self._current(operation, below, kind, given) as span:
            own = _write(span.get_span_context())
            yield Asked(operation, span, context if own is None else replace(context, traceparent=own))

    @contextmanager
    def batch(self, links: int) -> Iterator[None]:
        """Trace the delivery of several links at once. The links share SQL statements."""
        given = {SYSTEM: "rqsched", OPERATION: "dispatch", OPERATION_TYPE: "receive", MESSAGES: links}
        with self._current("dispatch", None, SpanKind.CONSUMER, given):
            yield

    def begin_fire(self, schedule: Schedule, now: datetime) -> Fire:
        """Begin the span of a fire.

        If the transaction is repeated, the span of the first try never ends, so it is never exported.
        """
        batch = trace.get_current_span().get_span_context()
        created = _read(schedule.traceparent)
        links = [Link(one) for one in (created, batch) if one is not None and one.is_valid]
        attributes = {OPERATION: "fire", OPERATION_TYPE: "send", **of_schedule(schedule)}
        if schedule.due_at is not None:
            attributes[LATENESS] = (now - schedule.due_at).total_seconds()
        name = f"fire {schedule.definition.workflow}"
        span = self._start(name, Context(), SpanKind.PRODUCER, attributes, links)
        return Fire(span, CommandContext(traceparent=_write(span.get_span_context())))

    def fail_fire(self, schedule_uid: str, error: Exception) -> None:
        """Trace a fire that failed and will be tried again."""
        given = {SYSTEM: "rqsched", OPERATION: "fire", OPERATION_TYPE: "send", SCHEDULE_UID: schedule_uid}
        span = self._start("fire", Context(), SpanKind.PRODUCER, given)
        _fail(span, error)
        _end(span)

    @contextmanager
    def attempt(self, attempt: Attempt) -> Iterator[None]:
        """Trace an attempt of a run or target, from the start of its workflow until its end is recorded."""
        attributes: dict[str, Any] = {SYSTEM: "rqsched"}
        run, operation = None, "run" if attempt.target_id is None else "target"
        if attempt.of is not None:
            schedule, run = attempt.of
            occurrence = {RUN: run.uid, RUN_KIND: run.kind.value, OCCURRENCE: iso_utc(run.occurrence_at)}
            attributes = of_schedule(schedule) | occurrence
        attributes |= {
            WORKFLOW: attempt.workflow,
            DESTINATION: attempt.queue or self._default_queue,
            MESSAGE: attempt.uid,
            ATTEMPT: attempt.number,
            OPERATION: operation,
            OPERATION_TYPE: "process",
        }
        if attempt.target_id is not None:
            attributes[TARGET] = attempt.target_id
        elif run is not None and run.queued_at is not None and run.started_at is not None:
            attributes[QUEUE_WAIT] = (run.started_at - run.queued_at).total_seconds()
        parent, links = (None, list[Link]()) if run is None else _place(attempt, run)
        with self._current(f"{operation} {attempt.workflow}", parent, SpanKind.CONSUMER, attributes, links):
            yield

    def note_outcome(self, outcome: str) -> None:
        """Add the outcome of the attempt to its span."""
        trace.get_current_span().set_attribute(OUTCOME, outcome)

    @contextmanager
    def _current(
        self,
        name: str,
        parent: Context | None,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """Start a span and make it current during a block.

        If the block raises an error, record the error in the span.
        """
        span = self._start(name, parent, kind, attributes, links)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            _fail(span, error)
            raise
        finally:
            _end(span)

    def _start(
        self,
        name: str,
        parent: Context | None,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        links: Sequence[Link] = (),
    ) -> Span:
        try:
            return self._tracer.start_span(name, parent, kind, attributes, links)
        except Exception:  # noqa: BLE001 - the application's sampler or processor
            _log.exception("the span %s could not be started", name, extra=_FAILED)
            return trace.INVALID_SPAN

    def end_job(self, job_id: str) -> None:
        """Export the spans of a work horse before RQ ends it. Do nothing in a process that continues."""
        if os.environ.get("RQ_JOB_ID") == job_id:  # RQ sets this variable only in a work horse
            self.flush()

    def flush(self) -> None:
        """Export the spans of this process. Wait at most `FLUSH_SECONDS`, because the collector may be unavailable."""
        force_flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if force_flush is not None:  # only the SDK's provider has this method, and it may exceed its timeout
            thread = Thread(target=force_flush, name="rqsched-flush", daemon=True)
            try:
                thread.start()
                thread.join(FLUSH_SECONDS)
            except RuntimeError as error:  # no thread can be started
                _log.warning("spans are not exported: %s", error, extra=_FAILED)


def of_schedule(schedule: Schedule) -> dict[str, Any]:
    """Return the attributes that name a schedule."""
    return {
        SYSTEM: "rqsched",
        NAMESPACE: schedule.namespace,
        SCHEDULE: schedule.schedule_id,
        SCHEDULE_UID: schedule.uid,
        WORKFLOW: schedule.definition.workflow,
    }


def _read(text: str | None) -> SpanContext | None:
    found = None if text is None else parse_traceparent(text)
    if found is None:
        return None
    return SpanContext(
        int(found.trace_id, 16), int(found.span_id, 16), is_remote=True, trace_flags=TraceFlags(found.flags)
    )


def _write(span: SpanContext) -> str | None:
    if not span.is_valid:
        return None
    return str(Traceparent(trace.format_trace_id(span.trace_id), trace.format_span_id(span.span_id), span.trace_flags))


def _below(parent: SpanContext) -> Context:
    return trace.set_span_in_context(NonRecordingSpan(parent))


def _place(attempt: Attempt, run: Run) -> tuple[Context | None, list[Link]]:
    """Return the parent of an attempt's span (None: the current span), and its links.

    A downstream run has a separate trace, with a link to the trace of its upstream's run. An instrumentation of RQ may
    have made a span for the job. Then that span is current: if it belongs to the same trace, it becomes the parent,
    otherwise it is linked.
    """
    asked = _read(run.traceparent)
    if asked is None:
        return None, []
    is_near = attempt.began is None or attempt.began - run.created_at <= NEAR
    belongs = is_near and run.kind not in {RunKind.BACKFILL, RunKind.AFTER} and attempt.place <= MANY
    current = trace.get_current_span().get_span_context()
    others = [Link(current)] if current.is_valid else []
    is_between = current.is_valid and current.trace_id == asked.trace_id
    if belongs:
        return (None, []) if is_between else (_below(asked), others)
    return (Context(), [Link(asked), *others]) if is_between else (None, [Link(asked)])


def _end(span: Span) -> None:
    try:
        span.end()
    except Exception:  # noqa: BLE001 - the application's processor
        _log.exception("a span could not be ended, and is lost", extra=_FAILED)


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
