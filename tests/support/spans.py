"""The spans of this process, recorded by OpenTelemetry's own SDK, and those that an OTLP receiver got.

A process has one tracer provider, which cannot be replaced: it is set at the first use, and emptied for each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

from rqsched.kernel.decide.traceparent import Traceparent

trace = pytest.importorskip("opentelemetry.trace")
_sdk = pytest.importorskip("opentelemetry.sdk.trace")
_export = pytest.importorskip("opentelemetry.sdk.trace.export")
_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
_otlp = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2")
_collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


class Seen(NamedTuple):
    """One span that has ended."""

    name: str
    trace: str
    """32 hexadecimal digits."""
    span: str
    """16 of them."""
    parent: str | None
    """The span above it; None for the first of its trace."""
    links: tuple[str, ...]
    """Spans that it is linked to."""
    attributes: dict[str, Any]
    is_error: bool
    kind: str
    flags: int
    events: tuple[str, ...]
    """The recorded events, such as an exception."""
    began: float
    """Milliseconds since 1970, as `ended`."""
    ended: float

    @property
    def traceparent(self) -> str:
        return str(Traceparent(self.trace, self.span, self.flags))


class Unruly(_sdk.SpanProcessor):  # type: ignore[misc, name-defined]
    """A processor of the application's that raises while it is told to."""

    raises = False

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.raises:
            raise RuntimeError("at the start of a span")

    def on_end(self, span: Any) -> None:
        if self.raises:
            raise RuntimeError("at the end of a span")


class Spans:
    """The spans of this process since the test began."""

    def __init__(self, exporter: Any, unruly: Unruly) -> None:
        self._exporter = exporter
        self.unruly = unruly

    def all(self) -> list[Seen]:
        """Every span that has ended, in that order."""
        return [_of_sdk(one) for one in self._exporter.get_finished_spans()]

    def named(self, name: str) -> list[Seen]:
        return [one for one in self.all() if one.name == name]

    def one(self, name: str) -> Seen:
        """The only span of that name."""
        found = self.named(name)
        assert len(found) == 1, [one.name for one in self.all()]
        return found[0]

    def clear(self) -> None:
        self._exporter.clear()


@cache
def _recording() -> tuple[Any, Unruly]:
    exporter, provider = _memory.InMemorySpanExporter(), _sdk.TracerProvider()
    provider.add_span_processor(_export.SimpleSpanProcessor(exporter))
    unruly = Unruly()
    provider.add_span_processor(unruly)
    trace.set_tracer_provider(provider)
    return exporter, unruly


@pytest.fixture
def spans() -> Iterator[Spans]:
    """The spans of this test; schedulers trace where they are opened with `otel=True`."""
    exporter, unruly = _recording()
    exporter.clear()
    yield Spans(exporter, unruly)
    unruly.raises = False
    exporter.clear()


def _of_sdk(span: Any) -> Seen:
    context = span.get_span_context()
    return Seen(
        span.name,
        trace.format_trace_id(context.trace_id),
        trace.format_span_id(context.span_id),
        None if span.parent is None else trace.format_span_id(span.parent.span_id),
        tuple(trace.format_span_id(link.context.span_id) for link in span.links),
        dict(span.attributes),
        span.status.status_code is trace.StatusCode.ERROR,
        span.kind.name.lower(),
        context.trace_flags,
        tuple(event.name for event in span.events),
        span.start_time / 1e6,
        span.end_time / 1e6,
    )


def of_otlp(requests: list[dict[str, Any]]) -> list[Seen]:
    """The spans that were exported to a receiver by OTLP, as protobuf over HTTP."""
    found = []
    for request in requests:
        if request["path"] != "/v1/traces":
            continue
        sent = _collector.ExportTraceServiceRequest.FromString(bytes.fromhex(request["hex"]))
        for span in [one for resource in sent.resource_spans for scope in resource.scope_spans for one in scope.spans]:
            values = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
            found.append(
                Seen(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex() or None,
                    tuple(link.span_id.hex() for link in span.links),
                    values,
                    span.status.code == _otlp.Status.STATUS_CODE_ERROR,
                    _otlp.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    span.flags & 0xFF,
                    tuple(event.name for event in span.events),
                    span.start_time_unix_nano / 1e6,
                    span.end_time_unix_nano / 1e6,
                )
            )
    return found
