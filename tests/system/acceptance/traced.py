"""The user code of the tests of traces: it sets the SDK up, as an application does, and looks at the current span."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry_instrumentation_rq import RQInstrumentor

from rqsched import current_run, workflow

LOOK = "traced.look"
EACH = "traced.each"
tracer = trace.get_tracer("application")
"""Traces the application's own work."""
INSTRUMENTED = "TRACED_INSTRUMENTED"
"""The variable that lets the instrumentations of RQ and SQLAlchemy stand beside ours."""


def set_up() -> TracerProvider:
    """Export all spans by OTLP, to where `OTEL_EXPORTER_OTLP_ENDPOINT` says."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    if os.environ.get(INSTRUMENTED):
        with suppress(AttributeError):  # of RQ 3 it finds no callbacks, which it wraps last
            RQInstrumentor().instrument()
        SQLAlchemyInstrumentor().instrument(skip_dep_check=True)  # 2.1 is newer than what it names
    return provider


@workflow(LOOK)
def look(log: str) -> None:
    """Leave the span of this attempt, as the run knows it and as OpenTelemetry does."""
    current = trace.get_current_span().get_span_context()
    with Path(log).open("a") as lines:
        lines.write(f"{current_run().traceparent} {trace.format_span_id(current.span_id)}\n")


@workflow(EACH, targets=lambda: ["a", "b"])
def each(target: str, log: str) -> None:
    """Do the same for each target."""
    look(log)


if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
    set_up()
