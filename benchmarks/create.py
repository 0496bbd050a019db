"""Creating and triggering, one by one through Python, and `sync` of a declared set; HTTP create p50 and p99.

    python -m benchmarks.create --count 1000 --declared 10000

The peer is RQ's `enqueue_at`, which writes no database; of a sync it is a pipeline of them. The CPU of this process for
one create, one trigger and one `enqueue_at` is measured in turn, a few dozen calls at a time: the aim is at most 2 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count as numbers

from redis import Redis
from rq import Queue

from benchmarks.lab import DATABASES, Lab, alternate, arguments, lab, ratio, report, summary
from rqsched import Cron, Scheduler
from rqsched.api.declarations import Declaration
from rqsched.api.schedule_handle import ScheduleHandle

DAILY = Cron("0 2 * * *")


def one_by_one(scheduler: Scheduler, count: int) -> tuple[float, float]:
    started = time.perf_counter()
    handles = [scheduler.create(f"one-{number}", "benchmark-noop", DAILY) for number in range(count)]
    created = count / (time.perf_counter() - started)
    started = time.perf_counter()
    for handle in handles:
        handle.trigger()
    return created, count / (time.perf_counter() - started)


def synced(scheduler: Scheduler, count: int) -> float:
    declared = [Declaration(f"declared-{number}", "benchmark-noop", DAILY) for number in range(count)]
    started = time.perf_counter()
    scheduler.sync(declared)
    return count / (time.perf_counter() - started)


def enqueue_at(place: Lab, count: int) -> float:
    queue, due = Queue("peer", connection=Redis.from_url(place.valkey.url)), datetime.now(UTC) + timedelta(hours=1)
    started = time.perf_counter()
    for _ in range(count):
        queue.enqueue_at(due, "time.time")
    return count / (time.perf_counter() - started)


def enqueue_at_together(place: Lab, count: int) -> float:
    queue, due = Queue("peer", connection=Redis.from_url(place.valkey.url)), datetime.now(UTC) + timedelta(hours=1)
    started = time.perf_counter()
    with queue.connection.pipeline() as pipe:
        for _ in range(count):
            queue.enqueue_at(due, "time.time", pipeline=pipe)
        pipe.execute()
    return count / (time.perf_counter() - started)


def cpu(place: Lab, kind: str, rounds: int, calls: int = 25) -> dict[str, list[float]]:
    """Measure the CPU of this process in milliseconds a call, each side in turn; what is first compiled is left out."""
    with place.runtime(kind) as runtime:
        scheduler, names = Scheduler(settings=runtime.settings), numbers()
        queue, due = Queue("peer", connection=runtime.transport.redis), datetime.now(UTC) + timedelta(hours=1)
        handles: list[ScheduleHandle] = []

        def create() -> None:
            handles.append(scheduler.create(f"cpu-{next(names)}", "benchmark-noop", DAILY))

        def of(call: Callable[[], object]) -> Callable[[], float]:
            def milliseconds() -> float:
                started = time.process_time()
                for _ in range(calls):
                    call()
                return 1_000 * (time.process_time() - started) / calls

            return milliseconds

        sides = {
            "create": of(create),
            "trigger": of(lambda: handles.pop().trigger()),
            "enqueue_at": of(lambda: queue.enqueue_at(due, "time.time")),
        }
        found = alternate(rounds + 1, sides)
        scheduler.close()
        return {name: samples[1:] for name, samples in found.items()}


def measure(place: Lab, kind: str, count: int, declared: int) -> dict[str, float]:
    with place.runtime(kind) as runtime:
        scheduler = Scheduler(settings=runtime.settings)
        created, triggered = one_by_one(scheduler, count)
        found = {"create": created, "trigger": triggered, "sync": synced(scheduler, declared)}
        scheduler.close()
        return found


def http_create(place: Lab, count: int) -> dict[str, object] | None:
    try:
        from fastapi.testclient import TestClient  # noqa: PLC0415 - an optional extra

        from rqsched.http import create_app  # noqa: PLC0415 - an optional extra
    except ImportError:
        return None
    with place.runtime("postgres") as runtime:
        scheduler = Scheduler(settings=runtime.settings)
        scheduler.runtime.record_workflows()
        client, found = TestClient(create_app(scheduler), client=("127.0.0.1", 50_000)), []
        for number in range(count):
            body = {"schedule_id": f"http-{number}", "workflow": "benchmark-noop", "cron": "0 2 * * *"}
            started = time.perf_counter()
            client.post("/api/v1/schedules/", json=body).raise_for_status()
            found.append((time.perf_counter() - started) * 1000)
        scheduler.close()
    ranked = sorted(found)
    return {**summary(found, 2), "p99": round(ranked[int(0.99 * (len(ranked) - 1))], 2)}


def main() -> None:
    given = arguments(__doc__, count=1_000, declared=10_000, rounds=3)
    with lab() as place:
        peer = [enqueue_at(place, given.count) for _ in range(given.rounds)]
        together = [enqueue_at_together(place, given.declared) for _ in range(given.rounds)]
        of_calls = {kind: cpu(place, kind, 4 * given.rounds) for kind in DATABASES}
        found = {k: [measure(place, k, given.count, given.declared) for _ in range(given.rounds)] for k in DATABASES}
        http = http_create(place, min(given.count, 500))
    figures = {
        kind: {name: summary([one[name] for one in samples]) for name in samples[0]} for kind, samples in found.items()
    }
    ratios = {kind: ratio([one["create"] for one in samples], peer) for kind, samples in found.items()}
    syncs = {kind: ratio([one["sync"] for one in samples], together) for kind, samples in found.items()}
    per_second = {**figures, "rq_enqueue_at": summary(peer), "rq_enqueue_at_pipelined": summary(together)}
    cpu_ms = {kind: {name: summary(one, 2) for name, one in sides.items()} for kind, sides in of_calls.items()}
    report(
        "create",
        vars(given),
        {
            "per_second": per_second,
            "create_ratio_to_enqueue_at": ratios,
            "sync_ratio_to_pipelined_enqueue_at": syncs,
            "cpu_ms_a_call": cpu_ms,
            "http_create_ms": http,
            "aim": "CPU of a create and of a trigger at most 2 ms; sync at least as fast as pipelined enqueue_at",
        },
    )


if __name__ == "__main__":
    main()
