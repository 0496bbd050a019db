"""Creating and triggering, one by one through Python, and `sync` of a declared set; HTTP create p50 and p99.

    python -m benchmarks.create --count 1000 --declared 10000

The peer is RQ's `enqueue_at`, which writes no database.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from redis import Redis
from rq import Queue

from benchmarks.lab import DATABASES, Lab, arguments, lab, ratio, report, summary
from rqsched import Cron, Scheduler
from rqsched.api.declarations import Declaration

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
        found = {k: [measure(place, k, given.count, given.declared) for _ in range(given.rounds)] for k in DATABASES}
        http = http_create(place, min(given.count, 500))
    figures = {
        kind: {name: summary([one[name] for one in samples]) for name in samples[0]} for kind, samples in found.items()
    }
    ratios = {kind: ratio([one["create"] for one in samples], peer) for kind, samples in found.items()}
    per_second = {**figures, "rq_enqueue_at": summary(peer)}
    report(
        "create",
        vars(given),
        {"per_second": per_second, "create_ratio_to_enqueue_at": ratios, "http_create_ms": http},
    )


if __name__ == "__main__":
    main()
