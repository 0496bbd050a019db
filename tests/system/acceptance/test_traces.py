"""Traces of real processes, exported by the SDK over OTLP to a receiver; and that nothing traces where that is off."""

from __future__ import annotations

import json

import pytest

from rqsched import Every
from tests.support.env import SECOND
from tests.support.invariants import check_invariants
from tests.support.processes import SOON, Process, wait_until
from tests.support.receiver import HANG, Receiver
from tests.support.spans import Seen, of_otlp
from tests.system.acceptance.imported import LOG, TELL
from tests.system.acceptance.live import RQ_KINDS, LiveEnv
from tests.system.acceptance.traced import EACH, INSTRUMENTED, LOOK

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
PLAIN_KINDS = {"plain": ("worker", "-c", "rqsched.preload"), "bare": ("worker", "--with-scheduler")}
KINDS = ["forking", "runner", *PLAIN_KINDS, *RQ_KINDS]
"""Every kind of process that executes runs."""


def start(live: LiveEnv, kind: str, *words: str) -> Process:
    """Start a worker of this kind."""
    if kind == "runner":
        return live.start_runners(1, *words)
    return live.start_worker(*words) if kind == "forking" else live.start_rq(*(PLAIN_KINDS | RQ_KINDS)[kind])


@pytest.fixture
def traced(live: LiveEnv, hook: Receiver) -> LiveEnv:
    """A live environment whose processes trace, and export to the receiver."""
    live.environment |= {
        "RQSCHED_OTEL": "1",
        "RQSCHED_IMPORTS": "tests.system.acceptance.traced",
        "OTEL_EXPORTER_OTLP_ENDPOINT": hook.url,
        "OTEL_BSP_SCHEDULE_DELAY": "3000",  # a work horse is gone by then
    }
    return live


def look_once(live: LiveEnv, workflow: str = LOOK) -> None:
    """Have one fire of a workflow that leaves its span in a file."""
    kwargs = {"log": str(live.folder / "looked")}
    live.scheduler.create("look", workflow, Every(SECOND), kwargs=kwargs, max_runs=1)


def seen(hook: Receiver, *names: str) -> list[Seen]:
    """The first span of each of these names, once they have arrived."""

    def find() -> list[Seen]:
        found = {one.name: one for one in reversed(of_otlp(hook.got))}
        return [found[name] for name in names] if set(names) <= found.keys() else []

    return wait_until(find, timeout=SOON, what=lambda: f"{names} in {[one.name for one in of_otlp(hook.got)]}")


@pytest.mark.parametrize("kind", KINDS)
def test_fires_and_attempts_of_every_kind_of_worker_are_exported(traced: LiveEnv, hook: Receiver, kind: str) -> None:
    live = traced
    look_once(live)
    start(live, kind)

    fire, run = seen(hook, f"fire {LOOK}", f"run {LOOK}")
    assert (run.trace, run.parent) == (fire.trace, fire.span)
    assert run.attributes["rqsched.outcome"] == "succeeded"
    told, current = (live.folder / "looked").read_text().split()
    assert (told.split("-")[1:3], current) == ([run.trace, run.span], run.span), "the workflow executes within its span"


@pytest.mark.parametrize("kind", ["forking", "runner", "plain"])
def test_targets_are_exported_from_each_process_that_handles_them(traced: LiveEnv, hook: Receiver, kind: str) -> None:
    live = traced
    look_once(live, EACH)
    start(live, kind)

    def find() -> list[Seen]:
        found = [one for one in of_otlp(hook.got) if one.name == f"target {EACH}"]
        return found if len(found) == 2 else []

    targets = wait_until(find, timeout=SOON, what="two targets")
    [fire] = seen(hook, f"fire {EACH}")
    assert {(one.trace, one.parent) for one in targets} == {(fire.trace, fire.span)}
    assert sorted(one.attributes["rqsched.target.id"] for one in targets) == ["a", "b"]


def test_spans_of_the_instrumentations_of_rq_and_sqlalchemy_stand_between_ours(traced: LiveEnv, hook: Receiver) -> None:
    live = traced
    live.environment[INSTRUMENTED] = "1"
    look_once(live)
    live.start_worker()

    fire, run, batch = seen(hook, f"fire {LOOK}", f"run {LOOK}", "dispatch")

    def above_the_run() -> list[Seen]:
        """RQ's spans of the job of that run: a worker may perform a link as a job, too."""
        known = {one.span: one for one in of_otlp(hook.got)}
        perform = known.get(run.parent or "")
        consume = None if perform is None else known.get(perform.parent or "")
        return [] if perform is None or consume is None else [perform, consume]

    perform, consume = wait_until(above_the_run, timeout=SOON, what="the spans of RQ")
    assert [perform.name, consume.name, consume.parent] == ["perform", "consume default", fire.span]
    assert {run.trace, consume.trace, perform.trace} == {fire.trace}
    statements = [one for one in of_otlp(hook.got) if one.attributes.keys() & {"db.system", "db.system.name"}]
    assert batch.span in {one.parent for one in statements}, "the statements of a batch belong to it"


@pytest.mark.parametrize("how", ["hangs", "is away"])
@pytest.mark.parametrize("kind", ["forking", "runner"])
def test_a_collector_that_does_not_answer_holds_up_neither_fires_nor_runs(
    traced: LiveEnv, hook: Receiver, kind: str, how: str
) -> None:
    live = traced
    hook.answer(HANG)
    live.environment["OTEL_EXPORTER_OTLP_TIMEOUT"] = "3600"
    if how == "is away":
        live.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:9"
    kwargs = {"log": str(live.folder / "looked")}
    schedule = live.scheduler.create("look", LOOK, Every(SECOND), kwargs=kwargs, overlap="allow_all")
    worker = start(live, kind)

    live.wait_for_successes(schedule, more=5)
    schedule.pause()
    assert worker.terminate() == 0
    check_invariants(live.scheduler.runtime)


def test_lines_that_are_logged_within_a_span_name_it(traced: LiveEnv, hook: Receiver) -> None:
    live = traced
    look_once(live)
    worker = live.start_worker("--log-format", "json")

    [run] = seen(hook, f"run {LOOK}")
    worker.wait_for_log('"run_ended"')
    # A worker that starts may deliver a run again whose job another process of it holds: that is left without a span.
    lines = [json.loads(line) for line in worker.log().splitlines() if '"run_started"' in line or '"run_ended"' in line]
    named = {line["action"]: (line["trace_id"], line["span_id"]) for line in lines}
    assert named == {"run_started": (run.trace, run.span), "run_ended": (run.trace, run.span)}


@pytest.mark.parametrize("kind", KINDS)
def test_where_tracing_is_off_no_process_imports_what_traces(live: LiveEnv, kind: str) -> None:
    log = live.folder / "imported"
    live.environment |= {"RQSCHED_IMPORTS": "tests.system.acceptance.imported", LOG: str(log)}
    schedule = live.scheduler.create("tell", TELL, Every(SECOND), max_runs=1)
    start(live, kind)

    live.wait_for_successes(schedule, more=1)
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) == 2, timeout=SOON, what="a fire and a run")
    assert sorted(log.read_text().splitlines()) == ["fire 0", "run 0"]


def test_a_worker_says_where_no_sdk_is_set_up(traced: LiveEnv) -> None:
    live = traced
    live.environment["RQSCHED_IMPORTS"] = "tests.system.acceptance.chores"
    live.start_worker().wait_for_log("no SDK of OpenTelemetry is set up in this process")
