"""Creating and triggering, one by one through Python, and `sync` of a declared set; HTTP create p50 and p99.

    python -m benchmarks.create --count 1000 --declared 10000 --own 5000

The peer is RQ's `enqueue_at`, which writes no database; of a sync it is a pipeline of them, in turn with it. The
declarations are equal, except `--own` of them with their own arguments. The CPU of this process for one create, one
trigger and one `enqueue_at` is measured in turn, a few dozen calls at a time: the aim is at most 2 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count as numbers

from redis import Redis
from rq import Queue

from benchmarks.lab import DATABASES, Lab, alternate, arguments, lab, paired, ratio, report, summary
from rqsched import Cron, Scheduler
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.features.declarations.declarations import Declaration

DAILY = Cron("0 2 * * *")
Arguments = Sequence[tuple[int, ...]]
"""The calls of one kind, each with its arguments."""


def one_by_one(scheduler: Scheduler, count: int) -> tuple[float, float]:
    started = time.perf_counter()
    handles = [scheduler.create(f"one-{number}", "benchmark-noop", DAILY) for number in range(count)]
    created = count / (time.perf_counter() - started)
    started = time.perf_counter()
    for handle in handles:
        handle.trigger()
    return created, count / (time.perf_counter() - started)


def enqueue_at(place: Lab, count: int) -> float:
    queue, due = Queue("peer", connection=Redis.from_url(place.valkey.url)), datetime.now(UTC) + timedelta(hours=1)
    started = time.perf_counter()
    for _ in range(count):
        queue.enqueue_at(due, "time.time")
    return count / (time.perf_counter() - started)


@dataclass
class Side:
    """One way to write many: how fast it was in each round, and the CPU of this process that it took."""

    write: Callable[[Arguments], object]
    """Writes a declaration for each of these arguments."""
    per_second: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def measure(self, given: Arguments) -> None:
        """Write them once more."""
        started, cpu_at = time.perf_counter(), time.process_time()
        self.write(given)
        self.cpu_us.append(1e6 * (time.process_time() - cpu_at) / len(given))
        self.per_second.append(len(given) / (time.perf_counter() - started))


def enqueue_together(queue: Queue, given: Arguments) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    with queue.connection.pipeline() as pipe:
        for arguments_of_one in given:
            queue.enqueue_at(due, "time.time", *arguments_of_one, pipeline=pipe)
        pipe.execute()


def sync(scheduler: Scheduler, ids: Iterator[int], given: Arguments) -> None:
    scheduler.sync(
        Declaration(f"declared-{next(ids)}", "benchmark-noop", DAILY, {"args": list(own)} if own else {})
        for own in given
    )


def syncs(place: Lab, rounds: int, sets: Mapping[str, Arguments]) -> dict[str, object]:
    """Write each set with RQ and with a sync on each database, in turn, without the first round, which compiles."""
    found: dict[str, object] = {}
    with ExitStack() as stack:
        opened = {kind: stack.enter_context(place.runtime(kind, number=at)) for at, kind in enumerate(DATABASES, 1)}
        schedulers = {kind: Scheduler(settings=runtime.settings) for kind, runtime in opened.items()}
        queue = Queue("peer", connection=Redis.from_url(place.valkey.url))
        for name, given in sets.items():
            sides = {kind: Side(partial(sync, one, numbers(len(found) * 10**9))) for kind, one in schedulers.items()}
            sides["rq"] = Side(partial(enqueue_together, queue))
            for _ in range(rounds + 1):
                for side in sides.values():
                    side.measure(given)
            found[name] = _beside_rq(sides)
        for scheduler in schedulers.values():
            scheduler.close()
    return found


def _beside_rq(sides: Mapping[str, Side]) -> dict[str, object]:
    rates = {kind: side.per_second[1:] for kind, side in sides.items()}
    cpu_us = {kind: side.cpu_us[1:] for kind, side in sides.items()}
    return {
        "per_second": {kind: summary(one) for kind, one in rates.items()},
        "cpu_us": {kind: summary(one) for kind, one in cpu_us.items()},
        "ratio_to_rq": {kind: paired(rates[kind], rates["rq"]) for kind in DATABASES},
        "cpu_ratio_to_rq": {kind: paired(cpu_us["rq"], cpu_us[kind]) for kind in DATABASES},
    }


def cpu(place: Lab, kind: str, rounds: int, calls: int = 25) -> dict[str, list[float]]:
    """Measure the CPU of this process in milliseconds a call, each side in turn, without the calls that compile."""
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


def measure(place: Lab, kind: str, count: int) -> dict[str, float]:
    with place.runtime(kind) as runtime:
        scheduler = Scheduler(settings=runtime.settings)
        created, triggered = one_by_one(scheduler, count)
        scheduler.close()
        return {"create": created, "trigger": triggered}


def http_create(place: Lab, count: int) -> dict[str, object] | None:
    try:
        from fastapi.testclient import TestClient  # noqa: PLC0415 - an optional extra

        from rqsched.http import create_app  # noqa: PLC0415 - an optional extra
    except ImportError:
        return None
    with place.runtime("postgres") as runtime:
        scheduler = Scheduler(settings=runtime.settings)
        scheduler.runtime.record_workflows()
        client, found = TestClient(create_app(scheduler), "http://localhost", client=("127.0.0.1", 50_000)), []
        for number in range(count):
            body = {"schedule_id": f"http-{number}", "workflow": "benchmark-noop", "cron": "0 2 * * *"}
            started = time.perf_counter()
            client.post("/api/v1/schedules/", json=body).raise_for_status()
            found.append((time.perf_counter() - started) * 1000)
        scheduler.close()
    ranked = sorted(found)
    return {**summary(found, 2), "p99": round(ranked[int(0.99 * (len(ranked) - 1))], 2)}


def main() -> None:
    given = arguments(__doc__, count=1_000, declared=10_000, own=5_000, rounds=3)
    sets: dict[str, Arguments] = {
        "alike": [()] * given.declared,
        "own_arguments": [(number,) for number in range(given.own)],
    }
    with lab() as place:
        peer = [enqueue_at(place, given.count) for _ in range(given.rounds)]
        synced = syncs(place, given.rounds, sets)
        of_calls = {kind: cpu(place, kind, 4 * given.rounds) for kind in DATABASES}
        found = {k: [measure(place, k, given.count) for _ in range(given.rounds)] for k in DATABASES}
        http = http_create(place, min(given.count, 500))
    figures = {
        kind: {name: summary([one[name] for one in samples]) for name in samples[0]} for kind, samples in found.items()
    }
    ratios = {kind: ratio([one["create"] for one in samples], peer) for kind, samples in found.items()}
    per_second = {**figures, "rq_enqueue_at": summary(peer)}
    cpu_ms = {kind: {name: summary(one, 2) for name, one in sides.items()} for kind, sides in of_calls.items()}
    report(
        "create",
        vars(given),
        {
            "per_second": per_second,
            "create_ratio_to_enqueue_at": ratios,
            "sync": synced,
            "cpu_ms_a_call": cpu_ms,
            "http_create_ms": http,
            "aim": "CPU of a create and of a trigger at most 2 ms; sync at least as fast as pipelined enqueue_at",
        },
    )


if __name__ == "__main__":
    main()
