"""The metrics through OpenTelemetry's own SDK, beside what Prometheus gets of the same application."""

from __future__ import annotations

import gc
import re
from functools import cache
from itertools import count
from typing import Any

import pytest

from tests.support.env import MINUTE, ONCE
from tests.support.web import MakeWeb, Web

metrics = pytest.importorskip("opentelemetry.metrics")
sdk = pytest.importorskip("opentelemetry.sdk.metrics")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")


HISTOGRAMS = {f"rqsched.{name}" for name in ("fire_lateness", "run_duration", "run_queue_wait", "run_lateness")}


_numbers = count(1)


@cache
def reader() -> Any:
    """A process has one meter provider, which cannot be replaced."""
    made = export.InMemoryMetricReader()
    metrics.set_meter_provider(sdk.MeterProvider([made]))
    return made


def collected() -> dict[str, Any]:
    """Every metric with data, by its name."""
    gc.collect()  # the applications of tests before
    found = reader().get_metrics_data()
    return {
        metric.name: metric
        for resource in found.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.data.data_points
    }


@pytest.fixture
def web(make_web: MakeWeb) -> Web:
    """An application in a namespace of this test: what others of this process have measured is of other ones."""
    reader()
    return make_web(otel=True, namespace=f"metered-{next(_numbers)}")


def of_prometheus(web: Web) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples of /metrics by the name of the family and their labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in web.get("/metrics/").text.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match:
            labels = tuple(sorted(re.findall(r'(\w+)="([^"]*)"', match[2] or "")))
            found.setdefault(match[1], {})[labels] = float(match[3])
    return found


def test_counters_and_gauges_are_those_of_prometheus(web: Web) -> None:
    collected()  # counts from here on
    schedule = web.env.create(retry=ONCE)
    web.env.run_next(schedule)
    web.env.fail_next(schedule)
    web.app.state.rqsched.meter.refresh(force=True)

    found, expected = collected(), of_prometheus(web)
    assert {"rqsched.runs_ended", "rqsched.schedules", "rqsched.up", "rqsched.redis_memory_used"} <= found.keys()
    for name, metric in found.items():
        if name in HISTOGRAMS or name == "rqsched.redis_memory_used":
            continue
        unit = {"s": "_seconds", "By": "_bytes", "": ""}[metric.unit]
        total = "_total" if metric.data.__class__.__name__ == "Sum" else ""
        samples = expected[f"{name.replace('.', '_')}{unit}{total}"]
        shown = {tuple(sorted(point.attributes.items())): float(point.value) for point in metric.data.data_points}
        of_this = {
            key: value
            for key, value in shown.items()
            if ("namespace", web.env.scheduler.settings.namespace) in key or "namespace" not in dict(key)
        }
        assert of_this.items() <= samples.items(), name


def test_histograms_have_the_buckets_and_the_counts_of_prometheus(web: Web) -> None:
    collected()
    web.env.run_next(web.env.create(retry=ONCE), 2 * MINUTE)
    web.app.state.rqsched.meter.refresh(force=True)

    found, expected = collected(), of_prometheus(web)
    for full in HISTOGRAMS:
        name, metric = full.removeprefix("rqsched."), found[full]
        [point] = [
            one
            for one in metric.data.data_points
            if one.attributes["namespace"] == web.env.scheduler.settings.namespace
        ]
        labels = tuple(sorted(point.attributes.items()))
        assert metric.unit == "s"
        assert point.count == expected[f"rqsched_{name}_seconds_count"][labels]
        assert point.sum == expected[f"rqsched_{name}_seconds_sum"][labels]
        bounds = [
            float(dict(key)["le"]) for key in expected[f"rqsched_{name}_seconds_bucket"] if set(labels) <= set(key)
        ]
        assert [*point.explicit_bounds, float("inf")] == bounds


def test_what_a_backend_that_is_away_would_say_is_left_out(make_web: MakeWeb) -> None:
    reader()
    web = make_web(otel=True, redis_url="redis://127.0.0.1:9/0", namespace="away")
    web.app.state.rqsched.meter.refresh(force=True)
    backends = {point.attributes["backend"]: point.value for point in collected()["rqsched.up"].data.data_points}
    assert backends["redis"] == 0.0
