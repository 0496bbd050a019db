"""The metrics of /metrics through OpenTelemetry, read from the same source. Imported where RQSCHED_OTEL is on.

Names are those of Prometheus with a dot behind `rqsched` and without their unit, which OpenTelemetry says apart: a
collector that exports to Prometheus makes the same names of them. Counters and gauges are observed when a reader asks.
Histograms cannot be observed: each span is recorded as it is counted, so a reader that was set up later has only what
was counted since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation
from prometheus_client.metrics_core import Metric

import rqsched
from rqsched.http.auth import Principal, Role
from rqsched.http.metrics import exposition
from rqsched.http.metrics.counters import BUCKETS, RUN_BUCKETS, Counts, Key
from rqsched.http.metrics.exposition import HISTOGRAMS, SPANS, DatabaseGauges, RedisGauges
from rqsched.http.metrics.meter import Meter

_EVERYBODY = Principal("opentelemetry", Role.READ)
_UNITS = {"_seconds": "s", "_bytes": "By"}


def export(meter: Meter) -> None:
    """Let readers of the process's meter provider have what a meter measures, from when there is one."""
    _exporting().add(meter)


@cache
def _exporting() -> _Exporting:
    """Return what exports in this process: OpenTelemetry makes an instrument of a name once, and removes none."""
    return _Exporting()


class _Exporting:
    """The instruments of this process, and the meters that they read while these are there."""

    def __init__(self) -> None:
        self._read: WeakKeyDictionary[Meter, tuple[float, Mapping[str, Metric]]] = WeakKeyDictionary()
        otel = metrics.get_meter("rqsched", rqsched.__version__)
        for family in _shapes():
            name, unit = _named(family.name)
            create = otel.create_observable_counter if family.type == "counter" else otel.create_observable_gauge
            create(name, [partial(self._observe, family.name)], unit, family.documentation)
        self._spans = {}
        for name, (text, labels) in HISTOGRAMS.items():
            bounds = BUCKETS if name == "fire_lateness" else RUN_BUCKETS
            made = otel.create_histogram(f"rqsched.{name}", "s", text, explicit_bucket_boundaries_advisory=bounds)
            self._spans[SPANS[name]] = made, ("namespace", *labels)

    def add(self, meter: Meter) -> None:
        """Read this meter, too, until it is gone."""
        self._read[meter] = float("-inf"), {}
        meter.tell_spans(self._record)

    def _record(self, name: str, key: Key, seconds: float) -> None:
        histogram, labels = self._spans[name]
        histogram.record(seconds, dict(zip(labels, key, strict=True)))

    def _observe(self, name: str, options: CallbackOptions) -> Iterator[Observation]:
        """Yield the samples of a family; none while its backend does not respond."""
        del options
        for meter in list(self._read):
            meter.refresh()
            if self._read[meter][0] != meter.read_at:
                self._read[meter] = meter.read_at, {one.name: one for one in meter.families(_EVERYBODY)}
            family = self._read[meter][1].get(name)
            if family is not None:
                yield from (Observation(sample.value, sample.labels) for sample in family.samples)


def _shapes() -> Iterator[Metric]:
    """Return every family without samples, but for histograms."""

    def label(name: str) -> str:
        return name

    def sees(namespace: str) -> bool:
        del namespace
        return True

    nothing: Any = [()] * len(DatabaseGauges._fields)
    found = DatabaseGauges(*nothing)
    yield from (one for one in exposition.counter_families(Counts(), sees) if one.type != "histogram")
    yield from exposition.database_families(found, label, sees)
    yield from exposition.queues(found, label)
    yield exposition.went_back(())
    yield exposition.up({})
    yield exposition.held(False)
    yield from exposition.redis_families(RedisGauges(0, 0, None, {}))


def _named(name: str) -> tuple[str, str]:
    """Return the name and the unit by which OpenTelemetry knows a family."""
    unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
    return name.removesuffix(unit).replace("_", ".", 1), _UNITS.get(unit, "")
