"""Traces over HTTP: a caller's span reaches runs and external workers, beside FastAPI's instrumentation and alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rqsched.kernel.decide.traceparent import parse_traceparent
from tests.support.client import client_of
from tests.support.narrow import present
from tests.support.openjobspec import Ojs
from tests.support.spans import Seen, Spans, spans, trace
from tests.support.web import MakeWeb, Web, at

__all__ = ["spans"]
instrumentation = pytest.importorskip("opentelemetry.instrumentation.fastapi")
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALLED = {"traceparent": CALLER}


@pytest.fixture
def traced(make_web: MakeWeb, spans: Spans) -> Web:
    """An application that traces."""
    return make_web(otel=True)


@pytest.fixture
def instrumented(traced: Web) -> Iterator[Web]:
    """The same with FastAPI's instrumentation."""
    instrumentation.FastAPIInstrumentor.instrument_app(traced.app)
    yield traced
    instrumentation.FastAPIInstrumentor.uninstrument_app(traced.app)


def above(spans: Spans, one: Seen) -> str | None:
    """The span of another process above this one; newer releases of FastAPI make one of their own between them."""
    by_id = {known.span: known for known in spans.all()}
    while one.parent in by_id:
        one = by_id[one.parent]
    return one.parent


def test_the_header_of_a_request_is_the_parent_of_what_it_asks_for(traced: Web, spans: Spans) -> None:
    traced.post("/api/v1/schedules/", {"schedule_id": "report", "workflow": "note", "interval": "1m"}, headers=CALLED)
    traced.post(at("report", "trigger/"), headers=CALLED)

    caller = present(parse_traceparent(CALLER))
    for one in (spans.one("create note"), spans.one("trigger note")):
        assert (one.trace, above(spans, one)) == (caller.trace_id, caller.span_id)


def test_fastapi_s_instrumentation_stands_between_the_caller_and_the_trigger(instrumented: Web, spans: Spans) -> None:
    instrumented.create()
    spans.clear()
    instrumented.post(at("report", "trigger/"), headers=CALLED)
    instrumented.env.work()

    caller, trigger = present(parse_traceparent(CALLER)), spans.one("trigger note")
    request = next(one for one in spans.all() if one.span == trigger.parent)
    assert (request.kind, above(spans, request)) == ("server", caller.span_id)
    assert {request.trace, trigger.trace, spans.one("run note").trace} == {caller.trace_id}


@pytest.mark.parametrize("header", ["", "nonsense", CALLER.upper(), "ff" + CALLER[2:], CALLER + "-more"])
def test_a_header_that_is_not_valid_is_ignored(traced: Web, spans: Spans, header: str) -> None:
    traced.create()
    answer = traced.post(at("report", "trigger/"), headers={"traceparent": header})

    assert answer.status_code == 200
    assert above(spans, spans.one("trigger note")) is None


def test_a_later_version_of_the_header_is_read_as_far_as_it_is_known(traced: Web, spans: Spans) -> None:
    traced.create()
    traced.post(at("report", "trigger/"), headers={"traceparent": "01" + CALLER[2:] + "-more"})
    assert above(spans, spans.one("trigger note")) == present(parse_traceparent(CALLER)).span_id


def test_without_tracing_the_header_reaches_the_run_and_the_external_worker(ojs: Ojs) -> None:
    ojs.registered()
    ojs.web.post(at("daily-report", "trigger/"), headers=CALLED)

    job = ojs.fetched()
    assert job["meta"]["traceparent"] == CALLER


def test_an_external_worker_gets_the_span_of_the_fire(make_web: MakeWeb, spans: Spans) -> None:
    ojs = Ojs(make_web(otel=True))
    ojs.registered()
    ojs.env.tick()

    job = ojs.fetched()
    assert job["meta"]["traceparent"] == spans.one("fire report.generate").traceparent


def test_the_client_names_the_current_span_of_its_application(traced: Web, spans: Spans) -> None:
    client = client_of(traced)
    traced.create()
    with trace.get_tracer("application").start_as_current_span("request"):
        run = present(client.get("report").trigger().run)

    assert spans.one("trigger note").trace == spans.one("request").trace
    assert run.traceparent == spans.one("trigger note").traceparent


def test_the_page_of_a_run_names_its_trace(make_web: MakeWeb, spans: Spans) -> None:
    web = make_web(otel=True)
    web.create()
    run = web.post(at("report", "trigger/")).json()["run"]
    assert run["traceparent"] == spans.one("trigger note").traceparent
    assert spans.one("trigger note").trace in web.get(f"/runs/{run['uid']}/").text
