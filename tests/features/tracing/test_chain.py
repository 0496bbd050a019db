"""Traces: requests, fires, attempts and targets as spans of OpenTelemetry's own SDK, recorded in memory."""

from __future__ import annotations

import pytest

from rqsched import After, current_run
from rqsched.errors import InvalidPayloadError, RunCancelled
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.decide.traceparent import parse_traceparent
from tests.support.damage import set_columns
from tests.support.env import DAY, HOUR, MINUTE, NOON, ONCE, Env, MakeEnv, events, newest, run_job_id
from tests.support.narrow import present
from tests.support.spans import Spans, spans, trace

__all__ = ["spans"]
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def env(make_env: MakeEnv, spans: Spans) -> Env:
    """An environment that traces."""
    return make_env(otel=True)


def test_a_fire_begins_a_trace_that_is_linked_to_the_create_and_holds_the_attempt(env: Env, spans: Spans) -> None:
    schedule = env.create()
    run = env.run_next(schedule)

    create, fire, attempt = spans.one("create note"), spans.one("fire note"), spans.one("run note")
    assert schedule.refresh().state.traceparent == create.traceparent
    assert run.state.traceparent == fire.traceparent
    assert (fire.parent, fire.trace == create.trace) == (None, False)
    assert create.span in fire.links
    assert (attempt.trace, attempt.parent, attempt.links) == (fire.trace, fire.span, ())
    assert (create.kind, fire.kind, attempt.kind) == ("internal", "producer", "consumer")


def test_spans_say_what_they_are_about(env: Env, spans: Spans) -> None:
    schedule = env.create("nightly", queue="default", labels={"team": "a"})
    run = env.run_next(schedule, 2 * MINUTE)

    named = {
        "messaging.system": "rqsched",
        "rqsched.namespace": "default",
        "rqsched.schedule.id": "nightly",
        "rqsched.schedule.uid": schedule.uid,
        "rqsched.workflow": "note",
    }
    started = {"rqsched.run.uid": run.uid, "rqsched.occurrence": "2026-01-15T12:01:00Z"}
    assert spans.one("create note").attributes == named | {
        "messaging.operation.name": "create",
        "rqsched.outcome": "active",
    }
    assert spans.one("fire note").attributes == named | started | {
        "messaging.operation.name": "fire",
        "messaging.operation.type": "send",
        "rqsched.lateness": 60.0,
        "rqsched.outcome": "ScheduleTriggered",
    }
    assert spans.one("run note").attributes == named | started | {
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": run.uid,
        "rqsched.run.kind": "scheduled",
        "rqsched.run.attempt": 1,
        "rqsched.queue_wait": 0.0,
        "rqsched.outcome": "succeeded",
    }


def test_a_trigger_is_the_parent_of_the_attempt_and_its_caller_that_of_the_trigger(env: Env, spans: Spans) -> None:
    schedule = env.create()
    with trace.get_tracer("application").start_as_current_span("request"):
        run = present(schedule.trigger().run)
    env.work()

    request, trigger, attempt = spans.one("request"), spans.one("trigger note"), spans.one("run note")
    assert trigger.parent == request.span
    assert run.state.traceparent == trigger.traceparent
    assert attempt.parent == trigger.span
    assert {request.trace, trigger.trace} == {attempt.trace}
    assert (trigger.attributes["rqsched.run.uid"], trigger.attributes["rqsched.outcome"]) == (run.uid, "triggered")


def test_a_caller_without_a_current_span_may_name_its_own(env: Env, spans: Spans) -> None:
    schedule = env.create()
    asked = CommandContext(principal="ada", traceparent=CALLER)
    run = present(schedule.trigger(context=asked).run)

    trigger, caller = spans.one("trigger note"), present(parse_traceparent(CALLER))
    assert (trigger.trace, trigger.parent) == (caller.trace_id, caller.span_id)
    [event] = events(schedule, "ScheduleTriggered")
    assert event.payload["command_context"] == {"principal": "ada", "traceparent": run.state.traceparent}


def test_nobody_asked_where_only_a_span_is_known(env: Env, spans: Spans) -> None:
    schedule = env.create()
    schedule.trigger()
    assert [event.payload.get("command_context") for event in events(schedule)] == [None, None]


def test_a_workflow_knows_its_span_and_executes_within_it(env: Env, spans: Spans) -> None:
    inner: list[str | None] = []

    def work() -> None:
        with trace.get_tracer("application").start_as_current_span("inner"):
            inner.append(current_run().traceparent)

    env.register("work", work)
    env.run_next(env.create(workflow="work"))

    attempt = spans.one("run work")
    assert spans.one("inner").parent == attempt.span
    assert inner == [attempt.traceparent]


def test_an_attempt_that_fails_is_an_error_with_its_exception(env: Env, spans: Spans) -> None:
    env.fail_next(env.create(retry=ONCE))

    attempt = spans.one("run note")
    assert attempt.is_error
    assert attempt.attributes["rqsched.outcome"] == "failed"
    assert attempt.events == ("exception",)


def test_a_run_that_cancels_itself_is_no_error(env: Env, spans: Spans) -> None:
    def stop() -> None:
        raise RunCancelled("nothing to do")

    env.register("stop", stop)
    env.run_next(env.create(workflow="stop"))

    attempt = spans.one("run stop")
    assert (attempt.is_error, attempt.attributes["rqsched.outcome"]) == (False, "cancelled")


def test_a_run_whose_code_is_missing_is_blocked_and_no_error(env: Env, spans: Spans) -> None:
    env.register("absent", lambda: None)
    schedule = env.create(workflow="absent")
    env.registry.remove("absent")
    env.run_next(schedule)

    attempt = spans.one("run absent")
    assert (attempt.is_error, attempt.attributes["rqsched.outcome"]) == (False, "blocked")


@pytest.mark.parametrize(("later", "belongs"), [(HOUR - MINUTE, True), (DAY, False)], ids=["within the hour", "a day"])
def test_a_later_attempt_belongs_to_the_trace_of_its_fire_unless_much_time_lies_between(
    env: Env, spans: Spans, later: object, belongs: bool
) -> None:
    schedule = env.create(spec="0 0 1 1 *", retry=RetryPolicy(base=later))  # type: ignore[arg-type]
    run = present(schedule.trigger().run)
    env.failing = True
    env.work()
    env.failing = False
    env.tick(later)  # type: ignore[arg-type]
    env.work()

    assert run.refresh().status == "succeeded"
    trigger, (first, second) = spans.one("trigger note"), spans.named("run note")
    assert (first.parent, second.attributes["rqsched.run.attempt"]) == (trigger.span, 2)
    expected = (trigger.trace, trigger.span, ()) if belongs else (second.trace, None, (trigger.span,))
    assert (second.trace, second.parent, second.links) == expected
    assert (second.trace == trigger.trace) is belongs


def test_runs_of_a_backfill_have_traces_of_their_own_that_are_linked_to_whoever_asked(env: Env, spans: Spans) -> None:
    schedule = env.create(spec=HOUR)
    schedule.backfill(NOON - 2 * HOUR, NOON, context=CommandContext(principal="ada", traceparent=CALLER))
    env.work()
    env.work()

    found = spans.named("run note")
    assert len({one.trace for one in found}) == len(found) == 2
    assert {(one.parent, one.links) for one in found} == {(None, (present(parse_traceparent(CALLER)).span_id,))}


def test_what_comes_after_a_run_has_a_trace_of_its_own_that_is_linked_to_that_attempt(env: Env, spans: Spans) -> None:
    nightly = env.create("nightly")
    env.register("report", lambda: None)
    report = env.create("report", After("nightly"), "report")
    env.run_next(nightly)
    env.work()

    before, after = spans.one("run note"), spans.one("run report")
    assert newest(report).state.traceparent == before.traceparent
    assert (after.parent, after.links, after.trace == before.trace) == (None, (before.span,), False)
    assert after.attributes["rqsched.run.kind"] == "after"


def test_targets_belong_to_the_trace_of_their_run(env: Env, spans: Spans) -> None:
    seen: list[str | None] = []
    env.register("each", lambda target: seen.append(current_run().traceparent))
    env.register("names", lambda: ["a", "b"])
    env.run_next(env.create(workflow="each", targets="names"))

    fire, run, targets = spans.one("fire each"), spans.one("run each"), spans.named("target each")
    assert (run.parent, run.attributes["rqsched.outcome"]) == (fire.span, "dispatched")
    assert [(one.trace, one.parent, one.attributes["rqsched.target.id"]) for one in targets] == [
        (fire.trace, fire.span, "a"),
        (fire.trace, fire.span, "b"),
    ]
    assert seen == [one.traceparent for one in targets]


def test_targets_beyond_a_thousand_have_traces_of_their_own(
    env: Env, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqsched.features.tracing.chain.MANY", 1)
    env.register("each", lambda target: None)
    env.register("names", lambda: ["a", "b"])
    env.run_next(env.create(workflow="each", targets="names"))

    fire, (first, second) = spans.one("fire each"), spans.named("target each")
    assert (first.trace, first.parent) == (fire.trace, fire.span)
    assert (second.trace == fire.trace, second.parent, second.links) == (False, None, (fire.span,))


def test_a_target_that_is_an_error_says_so(env: Env, spans: Spans) -> None:
    def each(target: str) -> None:
        raise ValueError(target)

    env.register("each", each)
    env.register("names", lambda: ["a"])
    env.run_next(env.create(workflow="each", targets="names", retry=ONCE))

    target = spans.one("target each")
    assert (target.is_error, target.attributes["rqsched.outcome"]) == (True, "failed")


def test_a_fire_that_starts_nothing_says_why(env: Env, spans: Spans) -> None:
    schedule = env.create()
    env.fire_next(schedule)
    env.advance()
    env.deliver(schedule.refresh())

    assert [one.attributes["rqsched.outcome"] for one in spans.named("fire note")] == [
        "ScheduleTriggered",
        "ScheduleTriggerSkipped",
    ]


def test_a_transaction_that_is_repeated_exports_one_span_of_a_fire(env: Env, spans: Spans) -> None:
    broken = env.create("broken")
    schedule = env.create()
    set_columns(env, broken, policies="{")
    env.advance()
    env.deliver(broken.refresh(), schedule.refresh())

    assert spans.one("fire note").attributes["rqsched.schedule.id"] == "report"
    failed = spans.one("fire")
    assert (failed.is_error, failed.attributes["rqsched.schedule.uid"]) == (True, broken.uid)


def test_a_job_carries_the_span_for_instrumentations_of_rq(env: Env, spans: Spans) -> None:
    run = env.fire_next(env.create())
    assert env.job(run_job_id(run)).meta["traceparent"] == spans.one("fire note").traceparent


def test_without_tracing_the_caller_s_span_reaches_the_workflow(make_env: MakeEnv, spans: Spans) -> None:
    env = make_env()
    schedule = env.create()
    schedule.trigger(context=CommandContext(traceparent=CALLER))
    env.work()

    assert [run.traceparent for run in env.seen] == [CALLER]
    assert spans.all() == []
    env.fire_next(schedule)
    assert newest(schedule).state.traceparent is None


def test_a_span_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidPayloadError, match="W3C Trace Context"):
        CommandContext(traceparent="00-0-0-01")


def test_a_processor_of_the_application_s_that_raises_stops_neither_fires_nor_runs(env: Env, spans: Spans) -> None:
    spans.unruly.raises = True
    schedule = env.create()
    run = env.run_next(schedule)
    again = present(schedule.trigger().run)
    env.work()

    assert (run.status, again.refresh().status) == ("succeeded", "succeeded")
    assert schedule.refresh().state.fire_failures == 0


def test_a_later_attempt_leaves_the_trace_also_where_an_instrumentation_has_joined_it(env: Env, spans: Spans) -> None:
    schedule = env.create(spec=DAY)
    run = present(schedule.trigger().run)
    env.advance(2 * HOUR)
    trigger = spans.one("trigger note")
    above = trace.SpanContext(int(trigger.trace, 16), int(trigger.span, 16), True, trace.TraceFlags(1))
    joined = trace.set_span_in_context(trace.NonRecordingSpan(above))
    with trace.get_tracer("rq").start_as_current_span("consume", context=joined):
        env.execute(run)

    attempt = spans.one("run note")
    assert (attempt.trace == trigger.trace, attempt.parent) == (False, None)
    assert set(attempt.links) == {trigger.span, spans.one("consume").span}
