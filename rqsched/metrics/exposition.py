"""Convert counters and gauges to Prometheus metric families. Names and labels are API; docs/http.md lists them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from rqsched import Quota
from rqsched.api.gauges import LAST_SECONDS, PASSES, PRUNED, SECONDS, DatabaseGauges, RedisGauges, WentBack
from rqsched.metrics.counters import Counts, Histogram, Key
from rqsched.types import Bounds, LimitDescription, Usage

Sees = Callable[[str], bool]
"""Returns whether the caller may see a namespace."""
Label = Callable[[str], str]
"""Returns the label of a namespace."""
_RESOURCES = tuple(field.name for field in fields(Quota))
_REARMED = {"links": "main", "retries": "retry"}
_REPAIRED = (
    "next_times",
    "retimed",
    "deliveries",
    "lost",
    "blocked",
    "drained",
    "backfills",
    "targets",
    "late",
    "notifications",
)


_PRUNED = ("runs", "targets", "events", "backfills", "deliveries", "tasks")


def counter_families(counts: Counts, sees: Sees) -> Iterator[Metric]:
    """Return the counters of the visible namespaces."""
    yield _counter("fires", "Occurrences and triggers, by outcome.", ("outcome",), counts.fires, sees)
    yield _counter(
        "skips", "Occurrences and triggers that started nothing, by reason.", ("reason",), counts.skips, sees
    )
    yield _counter("runs_ended", "Runs that ended, by outcome.", ("outcome",), counts.runs, sees)
    yield _counter("targets_ended", "Targets of ended fan-outs, by outcome.", ("outcome",), counts.targets, sees)
    yield _counter("missed", "Occurrences that passed without a fire.", (), counts.missed, sees)
    yield _counter("fire_failures", "Fires that failed and were postponed.", (), counts.fire_failures, sees)
    yield _counter("runs_expired", "Runs that were not started within `start_within`.", (), counts.expired, sees)
    yield _counter("schedules_died", "Schedules whose runs failed too often.", (), counts.died, sees)
    yield _histogram("fire_lateness", "How long after its due time an occurrence fired.", (), counts.lateness, sees)
    of_run = "queue", "workflow", "outcome"
    yield _histogram("run_duration", "How long the last attempt of a run took.", of_run, counts.durations, sees)
    wait = "How long that attempt waited on its queue for a worker."
    yield _histogram("run_queue_wait", wait, of_run, counts.waits, sees)
    lateness = "How long after its due time a run of one attempt began."
    yield _histogram("run_lateness", lateness, of_run, counts.run_lateness, sees)


def _counter(
    name: str, text: str, labels: tuple[str, ...], counts: Mapping[Key, int], sees: Sees
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"rqsched_{name}", text, labels=("namespace", *labels))
    for key, count in sorted(counts.items()):
        if sees(key[0]):
            family.add_metric(key, count)
    return family


def _histogram(
    name: str, text: str, labels: tuple[str, ...], found: Mapping[Key, Histogram], sees: Sees
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"rqsched_{name}_seconds", text, labels=("namespace", *labels))
    for key, histogram in sorted(found.items()):
        if sees(key[0]):
            bounds, sums = [*map(str, histogram.bounds), "+Inf"], accumulate(map(float, histogram.buckets))
            family.add_metric(key, list(zip(bounds, sums, strict=True)), histogram.total)
    return family


def database_families(found: DatabaseGauges, label: Label, sees: Sees) -> Iterator[Metric]:
    """Return the gauges from SQL of the visible namespaces."""
    yield _by_status("schedules", "Schedules, by status.", found.schedules, label, sees)
    yield _by_status("runs_open", "Runs that have not ended, by status.", found.runs, label, sees)
    text = "Targets of fan-outs that have not ended, by status."
    yield _by_status("targets_open", text, found.targets, label, sees)
    counts = [(namespace, count) for namespace, count, _ in found.late]
    longest = [(namespace, seconds) for namespace, _, seconds in found.late]
    yield _by_namespace("rqsched_late", "Schedules that should have fired.", counts, label, sees)
    yield _by_namespace("rqsched_late_seconds", "The longest of those delays.", longest, label, sees, max)
    yield _by_namespace("rqsched_runs_blocked", "Runs whose code no worker had yet.", found.blocked, label, sees)
    text = "Runs that take longer than `expect_duration`."
    yield _by_namespace("rqsched_runs_long", text, found.long, label, sees)
    text = "Schedules without a success for as long as they allow."
    yield _by_namespace("rqsched_schedules_without_success", text, found.without_success, label, sees)
    text = "Whether the namespace is frozen, so that nothing begins there."
    yield _by_namespace("rqsched_frozen", text, found.frozen, label, sees, max)
    text = "Active schedules whose newest runs failed, three or more in a row."
    yield _by_namespace("rqsched_schedules_failing", text, found.failing, label, sees)
    yield from _limits([one for one in found.limits if sees(one.namespace)], label)
    yield from _quotas([one for one in found.usages if sees(one.namespace)], label)
    text = "Notifications that wait, and those given up within a day, by status."
    yield _by_status("notifications", text, found.notifications, label, sees)


def _limits(groups: Sequence[LimitDescription], label: Label) -> Iterator[Metric]:
    """Return the running and waiting runs of the busiest groups only: there may be a group for each tenant."""
    labels = ("namespace", "limit")
    running = GaugeMetricFamily("rqsched_limit_running", "Runs and targets of a group that run.", labels=labels)
    waiting = GaugeMetricFamily(
        "rqsched_limit_waiting", "Runs and targets of a group that wait for a place.", labels=labels
    )
    number = GaugeMetricFamily("rqsched_limit_number", "How many of a group may run at once.", labels=labels)
    text = "Attempts of a group with a rate that started in its last window."
    starts = GaugeMetricFamily("rqsched_limit_starts", text, labels=labels)
    rate = GaugeMetricFamily("rqsched_limit_rate", "How many may start in that window.", labels=labels)
    for one in groups:
        if label(one.namespace) == one.namespace:
            running.add_metric((one.namespace, one.name), one.running)
            waiting.add_metric((one.namespace, one.name), one.waiting)
            if one.number is not None:
                number.add_metric((one.namespace, one.name), one.number)
            if (allowed := Bounds.read(one.number, one.rate).rate) is not None:
                starts.add_metric((one.namespace, one.name), one.started or 0)
                rate.add_metric((one.namespace, one.name), allowed.number)
    yield from (running, waiting, number, starts, rate)


def _quotas(usages: Sequence[Usage], label: Label) -> Iterator[Metric]:
    """Return the usage and the quota of namespaces that have a quota."""
    labels = ("namespace", "resource")
    used = GaugeMetricFamily("rqsched_quota_used", "What a namespace with a quota holds.", labels=labels)
    limit = GaugeMetricFamily("rqsched_quota_limit", "What it may hold.", labels=labels)
    for one in usages:
        for resource in _RESOURCES:
            if (most := getattr(one.limits, resource)) is not None and label(one.namespace) == one.namespace:
                used.add_metric((one.namespace, resource), getattr(one, resource))
                limit.add_metric((one.namespace, resource), most)
    yield from (used, limit)


def _by_status(
    name: str, text: str, counts: Iterable[tuple[str, str, int]], label: Label, sees: Sees
) -> GaugeMetricFamily:
    sums: Counter[tuple[str, str]] = Counter()
    for namespace, status, count in counts:
        if sees(namespace):
            sums[label(namespace), status] += count
    family = GaugeMetricFamily(f"rqsched_{name}", text, labels=("namespace", "status"))
    for key, count in sorted(sums.items()):
        family.add_metric(key, count)
    return family


def _by_namespace(
    name: str,
    text: str,
    values: Iterable[tuple[str, float]],
    label: Label,
    sees: Sees,
    merge: Callable[[Iterable[float]], float] = sum,
) -> GaugeMetricFamily:
    """Return one sample for each label. Namespaces without their own label share a sample."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for namespace, value in sorted(values):
        if sees(namespace):
            found[label(namespace)].append(value)
    family = GaugeMetricFamily(name, text, labels=("namespace",))
    for namespace, some in found.items():
        family.add_metric((namespace,), merge(some))
    return family


def queues(found: DatabaseGauges, label: Label) -> Iterator[Metric]:
    """Return the runs and targets that wait on queues, of all namespaces."""
    waiting: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for queue, number, seconds in sorted(found.waiting):
        waiting[label(queue)].append((number, seconds))
    text = "Runs and targets that wait for a worker."
    numbers = GaugeMetricFamily("rqsched_queue_waiting", text, labels=("queue",))
    longest = GaugeMetricFamily("rqsched_queue_waiting_seconds", "The longest of these waits.", labels=("queue",))
    for name, some in waiting.items():
        numbers.add_metric((name,), sum(number for number, _ in some))
        longest.add_metric((name,), max(seconds for _, seconds in some))
    yield from (numbers, longest)


def went_back(noticed: Collection[WentBack]) -> GaugeMetricFamily:
    """Return, for each kind of `WentBack`, whether it was noticed within a day."""
    text = "Whether SQL or Redis has gone back, or two databases write, within a day."
    family = GaugeMetricFamily("rqsched_went_back", text, labels=("what",))
    for one in WentBack:
        family.add_metric((one.value,), float(one in noticed))
    return family


def refused(found: DatabaseGauges) -> Iterator[Metric]:
    """Return how often Redis permanently refused a write, and how many queues and kinds of links it refuses now."""
    text = "How often Redis has refused for good what was published or taken."
    yield CounterMetricFamily("rqsched_refusals", text, value=found.refusals)
    text = "Queues, and kinds of links, of which Redis refuses for good what is published or taken."
    yield GaugeMetricFamily("rqsched_refused", text, value=len(found.refused))


def redis_families(found: RedisGauges) -> Iterator[Metric]:
    """Return the figures of Redis, and the sums of all reconcile passes and prunings of all processes."""
    sums = found.reconcile
    yield GaugeMetricFamily("rqsched_links_scheduled", "Links that wait for their time.", value=found.scheduled)
    dispatchers = GaugeMetricFamily("rqsched_dispatchers", "Live dispatchers.", labels=())
    if found.dispatchers is not None:
        dispatchers.add_metric((), found.dispatchers)
    yield dispatchers
    used = GaugeMetricFamily("rqsched_redis_memory_used_bytes", "What Redis holds.", labels=())
    limit = GaugeMetricFamily("rqsched_redis_memory_limit_bytes", "What it may hold, if it has a limit.", labels=())
    if found.memory is not None:
        used.add_metric((), found.memory.used)
        if found.memory.limit:
            limit.add_metric((), found.memory.limit)
    yield from (used, limit)
    rearmed = CounterMetricFamily("rqsched_links_rearmed", "Links armed again because none was live.", labels=("kind",))
    for name, kind in _REARMED.items():
        rearmed.add_metric((kind,), sums.get(name, 0))
    repaired = CounterMetricFamily("rqsched_repaired", "Other rows that reconcile repaired.", labels=("what",))
    for name in _REPAIRED:
        repaired.add_metric((name,), sums.get(name, 0))
    pruned = CounterMetricFamily("rqsched_pruned_rows", "Rows deleted by retention.", labels=("what",))
    for name in _PRUNED:
        pruned.add_metric((name,), sums.get(f"{PRUNED}{name}", 0))
    yield from (rearmed, repaired, pruned)
    last = sums.get(LAST_SECONDS, 0)
    yield GaugeMetricFamily("rqsched_reconcile_last_seconds", "How long the last pass took.", value=last)
    yield CounterMetricFamily("rqsched_reconcile_passes", "Completed reconcile passes.", value=sums.get(PASSES, 0))
    yield CounterMetricFamily("rqsched_reconcile_seconds", "How long they took in total.", value=sums.get(SECONDS, 0))


def all_frozen(is_all_frozen: bool) -> GaugeMetricFamily:
    """Return whether everything is frozen."""
    text = "Whether everything is frozen, so that nothing begins."
    return GaugeMetricFamily("rqsched_all_frozen", text, value=float(is_all_frozen))


def up(backends: Mapping[str, bool]) -> GaugeMetricFamily:
    """Return which backends responded. Redis is up only if it also took a write."""
    text = "Whether a backend responds, and Redis takes writes."
    family = GaugeMetricFamily("rqsched_up", text, labels=("backend",))
    for name, is_up in backends.items():
        family.add_metric((name,), float(is_up))
    return family
