"""Health and metrics: true, cheap, and safe for tenants."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rqsched.metrics import counters, meter
from rqsched.testing import execute_pending
from rqsched.workflows import make_workflow
from tests.support.env import DAY, MINUTE, block
from tests.support.narrow import present
from tests.support.web import MINUTELY, SCHEDULES, MakeWeb, Web, at

pytestmark = pytest.mark.every_database

Samples = dict[tuple[str, ...], float]


def scrape(web: Web, **options: Any) -> Samples:
    """Every sample of a forced refresh, by name and the values of its labels in their order."""
    web.app.state.rqsched.meter.refresh(force=True)
    answer = web.get("/metrics", **options)
    assert answer.status_code == 200, answer.text
    families = text_string_to_metric_families(answer.text)
    samples = [sample for family in families for sample in family.samples]
    return {(s.name, *(value for _, value in sorted(s.labels.items()))): s.value for s in samples}


def counts_of(found: Samples) -> Samples:
    """Return the samples that never decrease."""
    return {key: value for key, value in found.items() if key[0].endswith(("_total", "_bucket", "_count", "_sum"))}


def test_ready_when_both_backends_answer(any_web: Web) -> None:
    answer = any_web.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")


def test_metrics_count_what_happens_after_the_first_scrape(any_web: Web) -> None:
    web = any_web
    web.create()
    schedule = web.env.scheduler.get("report")
    web.env.run_next(schedule)
    assert not [key for key in scrape(web) if key[0] == "rqsched_fires_total"]
    web.env.run_next(schedule)
    web.env.advance(MINUTE)
    web.env.advance(timedelta(milliseconds=40))
    web.env.dispatch()
    web.env.advance(MINUTE)
    web.env.dispatch()
    found = scrape(web)
    assert found["rqsched_fires_total", "default", "triggered"] == 2
    assert found["rqsched_fires_total", "default", "skipped"] == 1
    assert found["rqsched_skips_total", "default", "overlap_policy_skip"] == 1
    assert found["rqsched_runs_ended_total", "default", "succeeded"] == 1
    assert found["rqsched_fire_lateness_seconds_count", "default"] == 2
    assert found["rqsched_fire_lateness_seconds_bucket", "0.025", "default"] == 1
    assert found["rqsched_fire_lateness_seconds_bucket", "0.05", "default"] == 2
    assert found["rqsched_schedules", "default", "active"] == 1
    assert found["rqsched_runs_open", "default", "pending"] == 1
    assert counts_of(scrape(web)) == counts_of(found)  # an update that overlaps the previous one counts nothing twice


def test_metrics_count_a_run_that_was_open_at_the_first_scrape(web: Web) -> None:
    web.create()
    web.post(at(operation="trigger/"))
    scrape(web)
    web.post(at(operation="runs/1/cancel/"))
    assert scrape(web)["rqsched_runs_ended_total", "default", "cancelled"] == 1


def test_metrics_count_deaths_misses_and_failed_fires(web: Web) -> None:
    web.env.register("fail", lambda: 1 / 0)
    web.create(workflow="fail", retry={"max_retries": 0, "then": "dead"})
    web.create("late")
    scrape(web)
    web.env.advance(MINUTE * 10)
    web.env.dispatch()
    web.env.work()
    found = scrape(web)
    assert found["rqsched_schedules_died_total", "default"] == 1
    assert found["rqsched_runs_ended_total", "default", "failed"] == 1
    assert found["rqsched_missed_total", "default"] >= 9


def test_metrics_show_overdue_schedules_and_reconcile_results(any_web: Web) -> None:
    web = any_web
    web.create()
    web.env.advance(MINUTE * 3)
    found = scrape(web)
    assert (found["rqsched_late", "default"], found["rqsched_late_seconds", "default"]) == (1, 120)
    assert (found["rqsched_up", "database"], found["rqsched_up", "redis"]) == (1, 1)
    assert found["rqsched_links_scheduled",] == 1
    web.env.redis.flushall()
    web.env.recover()
    found = scrape(web)
    assert (found["rqsched_links_rearmed_total", "main"], found["rqsched_reconcile_passes_total",]) == (1, 1)
    assert found["rqsched_reconcile_last_seconds",] > 0


def test_metrics_count_blocked_runs(any_web: Web) -> None:
    web = any_web
    web.create()
    block(web.env.runtime, present(web.env.scheduler.get("report").trigger().run))
    found = scrape(web)
    assert (found["rqsched_runs_blocked", "default"], found["rqsched_runs_open", "default", "pending"]) == (1, 1)


def test_metrics_count_targets_that_have_not_ended(any_web: Web) -> None:
    web, seen = any_web, list[dict[Any, float]]()
    web.env.registry.add(make_workflow("remind", lambda _: seen.append(scrape(web))))
    web.env.registry.add(make_workflow("due-customers", lambda: ["c-1", "c-2", "c-3"]))
    web.create("nightly", workflow="remind", targets="due-customers", max_parallel=2)
    web.env.scheduler.get("nightly").trigger()
    execute_pending(web.env.scheduler)

    statuses = "waiting", "pending", "running"
    counts = [[found.get(("rqsched_targets_open", "default", one), 0) for one in statuses] for found in seen]
    assert counts == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
    assert not [key for key in scrape(web) if key[0] == "rqsched_targets_open"]


def test_metrics_count_pruned_rows(web: Web) -> None:
    web.create(retention="1")
    for _ in range(3):
        web.env.run_next(web.env.scheduler.get("report"))
    web.env.advance(2 * DAY)
    done = web.env.scheduler.prune()
    found = scrape(web)
    assert (found["rqsched_pruned_rows_total", "runs"], found["rqsched_pruned_rows_total", "events"]) == (
        done.runs,
        done.events,
    )
    assert (done.runs, done.rows) == (2, sum(found["rqsched_pruned_rows_total", what] for what in done.deleted))


def test_a_scrape_within_the_maximum_age_reuses_the_gauges(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_MAX_AGE", math.inf)
    scrape(web)
    web.create()
    assert "rqsched_schedules{" not in web.get("/metrics").text
    web.app.state.rqsched.meter.refresh(force=True)
    assert "rqsched_schedules{" in web.get("/metrics").text


def test_metrics_read_the_clock_outside_of_transactions(web: Web) -> None:
    """Inside a transaction the clock is never measured anew, and a process may serve only metrics."""
    runtime, clock, looked = web.env.runtime, web.env.clock, list[bool]()

    class Watched:
        def now(self) -> datetime:
            looked.append(runtime.database.is_in_transaction)
            return clock.now()

    scrape(web)
    runtime.use_clock(Watched())
    web.app.state.rqsched.meter.refresh(force=True)
    assert looked
    assert not any(looked)


def histogram(found: Samples, name: str, *labels: str) -> dict[str, float]:
    """Return the count of each non-empty bucket by its bound, and the sum. `labels` are outcome, queue and workflow."""
    name, key = f"rqsched_run_{name}_seconds", ("default", *labels)
    sums = sorted((float(one[1]), n) for one, n in found.items() if (one[0], *one[2:]) == (f"{name}_bucket", *key))
    counts = {str(le): n - before for (le, n), (_, before) in zip(sums, [(0.0, 0.0), *sums], strict=False)}
    return {le: n for le, n in counts.items() if n} | {"sum": found[(f"{name}_sum", *key)]}


def test_histograms_measure_ended_runs_by_queue_workflow_and_outcome(any_web: Web) -> None:
    web, env = any_web, any_web.env
    env.register("slow", lambda: env.advance(timedelta(seconds=7)))
    env.register("fail", lambda: 1 / 0)
    web.create(workflow="slow", queue="letters")
    web.create("crm", workflow="fail", retry={"max_retries": 0})
    scrape(web)
    run = env.fire_next(env.scheduler.get("report"))
    env.advance(timedelta(seconds=2))
    env.work("letters")
    env.scheduler.get("crm").trigger()
    env.work()
    run.refresh()

    found = scrape(web)

    report = "succeeded", "letters", "slow"
    assert histogram(found, "duration", *report) == {"10.0": 1, "sum": 7}
    assert histogram(found, "queue_wait", *report) == {"2.5": 1, "sum": 2}
    assert histogram(found, "lateness", *report) == {"2.5": 1, "sum": 2}
    assert histogram(found, "duration", "failed", "default", "fail") == {"0.01": 1, "sum": 0}
    assert counts_of(scrape(web)) == counts_of(found), "an update that overlaps the previous one measures nothing twice"


def test_a_run_that_is_run_again_is_measured_again_and_takes_nothing_back(any_web: Web) -> None:
    web, env = any_web, any_web.env
    env.register("fail", lambda: 1 / 0)
    web.create(workflow="fail", retry={"max_retries": 0})
    scrape(web)
    run = env.run_next(env.scheduler.get("report"))
    scrape(web)

    env.advance(MINUTE)
    run.retry()
    env.work()

    found = scrape(web)
    assert found["rqsched_run_duration_seconds_count", "default", "failed", "default", "fail"] == 2
    assert found["rqsched_run_lateness_seconds_count", "default", "failed", "default", "fail"] == 1
    env.scheduler.get("report").delete(purge=True)
    assert scrape(web)["rqsched_run_duration_seconds_count", "default", "failed", "default", "fail"] == 2


def test_a_run_that_never_began_and_one_of_a_backfill_are_not_late(any_web: Web) -> None:
    web, env = any_web, any_web.env
    web.create()
    schedule = env.scheduler.get("report")
    env.advance(MINUTE * 9)
    scrape(web)
    env.advance(MINUTE)
    present(schedule.trigger().run).cancel()
    schedule.backfill(env.clock.now() - MINUTE * 3, env.clock.now() - MINUTE * 2)
    env.work()

    found = scrape(web)

    assert not [key for key in found if key[0] == "rqsched_run_lateness_seconds_count"]
    counts = {key[2]: n for key, n in found.items() if key[0] == "rqsched_run_duration_seconds_count"}
    assert set(counts) == {"succeeded"}


def test_workflows_beyond_the_bound_share_the_label_other(make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MAX_WORKFLOWS", 1)
    monkeypatch.setattr(counters, "MAX_SERIES", 2)
    web = make_web()
    scrape(web)
    web.env.advance(MINUTE)
    for name, queue in (("one", "a"), ("two", "a"), ("three", "a"), ("four", "b")):
        web.env.register(name, lambda: None)
        web.create(name, workflow=name, queue=queue)
        web.post(at(name, "trigger/"))
        web.env.work(queue)
        found = scrape(web)

    counts = {key[3:]: n for key, n in found.items() if key[0] == "rqsched_run_duration_seconds_count"}
    assert counts == {("a", "one"): 1, ("a", "other"): 2, ("other", "other"): 1}


def test_metrics_count_what_waits_fails_and_fills_redis(web: Web) -> None:
    web.env.register("fail", lambda: 1 / 0)
    web.create("crm", workflow="fail", interval="9h", retry={"max_retries": 0})
    for _ in range(3):
        web.post(at("crm", "trigger/"))
        web.env.work()
    web.create(queue="letters", interval="9h")
    web.post(at(operation="trigger/"))
    web.env.advance(MINUTE * 3)

    found = scrape(web)

    assert found["rqsched_schedules_failing", "default"] == 1
    assert (found["rqsched_queue_waiting", "letters"], found["rqsched_queue_waiting_seconds", "letters"]) == (1, 180)
    assert found["rqsched_redis_memory_used_bytes",] > 100_000
    assert ("rqsched_redis_memory_limit_bytes",) not in found
    limit = str(web.env.redis.config_get("maxmemory")["maxmemory"])
    try:
        web.env.redis.config_set("maxmemory", 1 << 30)
        assert scrape(web)["rqsched_redis_memory_limit_bytes",] == 1 << 30
    finally:
        web.env.redis.config_set("maxmemory", limit)


def test_namespaces_beyond_the_bound_share_the_label_other(make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MAX_NAMESPACES", 2)
    web = make_web()
    for name in ("a", "b", "c", "d"):
        web.post(SCHEDULES, {"schedule_id": "x", **MINUTELY}, headers={"X-Namespace": name})
    web.env.advance(MINUTE * 2)
    found = scrape(web)
    active = {key[1]: value for key, value in found.items() if key[0] == "rqsched_schedules"}
    assert sorted(active.values()) == [1, 1, 2]
    assert active["other"] == 2
    assert found["rqsched_late", "other"] == 2


def test_a_token_with_namespaces_gets_only_their_metrics(make_web: MakeWeb) -> None:
    secrets = {"tenant": ["mine"], "root": "*"}
    tokens = [
        {"name": n, "role": "admin", "namespaces": s, "token": f"{n}-0123456789abcdef"} for n, s in secrets.items()
    ]
    web = make_web(tokens=json.dumps(tokens))
    root, tenant = (web.acting_as(f"{name}-0123456789abcdef") for name in ("root", "tenant"))
    for name in ("mine", "yours"):
        assert root.post(SCHEDULES, {"schedule_id": "x", **MINUTELY}, headers={"X-Namespace": name}).status_code == 201
    assert {key[1] for key in scrape(root) if key[0] == "rqsched_schedules"} == {"mine", "yours"}
    assert {
        key for key in scrape(tenant) if "yours" in key or key[0].startswith(("rqsched_up", "rqsched_links"))
    } == set()
    assert ("rqsched_schedules", "mine", "active") in scrape(tenant)
    assert web.get("/metrics").status_code == 401
