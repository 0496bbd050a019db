"""A simulation beside a real run: what it said of the next minutes, made from the minutes before, and what came.

    python -m benchmarks.simulate --learn 600 --seconds 2100

36 schedules, two queues with one worker each, three overlap policies, retries; one attempt in ten fails. Three share a
rate, and three have three targets. For `learn` seconds they run so that durations and failures are measured; then the
next `seconds` are simulated, and really run.
`--decided` fires are simulated alone besides, to say how long one takes, and a year of `--schedules` on all processors.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from benchmarks.lab import Lab, arguments, lab, report
from benchmarks.processes import worker
from rqsched import Cron, Every, Scheduler
from rqsched.api.declarations import Declaration
from rqsched.api.simulating import simulate, usable_processes, wanted_of
from rqsched.api.simulation_entries import declared
from rqsched.core.simulation_report import Simulation
from rqsched.store.tables import audit_events, runs, targets

OVERLAPS = ("skip", "buffer_one", "cancel_other")
DEFAULT, SLOW = (30, 40, 45, 60, 75, 90, 120, 150), (120, 150, 180, 240)
WORKERS = {"default": 1, "slow": 1}
RETRY = {"max_retries": 2, "base": 10}
EACH = {"workflow": "benchmark-uneven-each", "target_retry": RETRY}
SPECIAL: dict[tuple[str, int], dict[str, Any]] = {
    ("default", 60): {"limit": "vendor", "limit_rate": "1/10s"},
    ("default", 120): EACH,
}
"""What some have beside what all have, by their queue and interval."""
START = datetime(2027, 1, 1, tzinfo=UTC)


def fill(scheduler: Scheduler) -> None:
    """Create the schedules: short ones on one queue, long ones on another."""
    for overlap in OVERLAPS:
        for queue, steps, span in (("default", DEFAULT, (0.5, 2.3)), ("slow", SLOW, (3, 18))):
            for every in steps:
                options = {"workflow": "benchmark-uneven", **SPECIAL.get((queue, every), {})}
                scheduler.create(
                    f"{queue}-{overlap}-{every}", spec=Every(timedelta(seconds=every)), queue=queue, overlap=overlap,
                    retry=RETRY, args=[*span, 0.1], **options,
                )  # fmt: skip


def compare(place: Lab, given: Any) -> dict[str, Any]:
    """Run, simulate and run on; returns both sides."""
    url = place.database_url("postgres")
    with Scheduler(database_url=url, redis_url=place.valkey.url) as scheduler, ExitStack() as stack:
        from benchmarks import flows  # noqa: F401, PLC0415 - its workflows are registered here too

        for queue in WORKERS:
            stack.enter_context(worker(place, url, queue, queue))
        fill(scheduler)
        time.sleep(given.learn)
        now = scheduler.runtime.now()
        start = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
        end = start + timedelta(minutes=max(given.seconds // 60, 1))
        time.sleep(max((start - scheduler.runtime.now()).total_seconds(), 0))
        began = time.perf_counter()
        said = scheduler.simulate(start, end, workers=WORKERS)
        took = time.perf_counter() - began
        time.sleep(max((end - scheduler.runtime.now()).total_seconds(), 0))
        came = really(scheduler, start, end)
    return {"from": start.isoformat(), "until": end.isoformat(), "simulated": figures(said), "real": came,
            "seconds_to_simulate": round(took, 2)}  # fmt: skip


def figures(said: Simulation) -> dict[str, Any]:
    """Return what a simulation said."""
    [stretch] = said.stretches
    total = stretch.total
    return {
        "fires": total.fires, "skipped": sum(total.skipped.values()), "waited": total.waited,
        "replaced": total.replaced, "retries": total.retries, "ended": total.ended, "targets": total.targets,
        "highest_minute": max(day.peak_fires for day in said.days),
        "waits": {one.queue: {"p50": one.wait_p50_seconds, "p95": one.wait_p95_seconds, "max": one.wait_max_seconds,
                              "busy": one.busy} for one in sorted(stretch.queues, key=lambda one: one.queue)},
        "limits": {one.limit: {"p50": one.wait_p50_seconds, "p95": one.wait_p95_seconds, "max": one.wait_max_seconds,
                               "places": one.places, "held_by_rate": one.held_by_rate} for one in stretch.limits},
        "not_simulated": [one.what for one in said.not_simulated],
    }  # fmt: skip


def really(scheduler: Scheduler, start: datetime, end: datetime) -> dict[str, Any]:
    """Count what is recorded of a span."""
    within = audit_events.c.recorded_at >= start, audit_events.c.recorded_at < end
    told = sa.select(audit_events.c.event_type, audit_events.c.payload, audit_events.c.recorded_at).where(*within)
    with scheduler.runtime.database.engine.connect() as connection:
        rows = connection.execute(told).all()
        attempts = [one for table in (runs, targets) for one in last_attempts(connection, table, start, end)]
        statuses, of_targets = (ended(connection, table, start, end) for table in (runs, targets))
    kinds, minutes, replaced = Counter[str](), Counter[int](), 0
    for kind, payload, at in rows:
        text = json.loads(payload)
        kinds[kind] += 1
        is_fire = kind in {"ScheduleBuffered", "ScheduleTriggerSkipped"} or text.get("outcome") == "triggered"
        minutes[int((at - start).total_seconds() // 60)] += is_fire
        replaced += len(text.get("cancelled_run_ids", ()))
    span = end - start
    return {
        "fires": sum(minutes.values()), "skipped": kinds["ScheduleTriggerSkipped"], "waited": kinds["ScheduleBuffered"],
        "replaced": replaced, "retries": kinds["RunRetrying"], "ended": statuses, "targets": of_targets,
        "highest_minute": max(minutes.values(), default=0),
        "waits": {queue: waits([one for one in attempts if one.queue == queue], span) for queue in sorted(WORKERS)},
        "limits": {"vendor": places([one for one in attempts if one.granted_at is not None], span)},
    }  # fmt: skip


def ended(connection: sa.Connection, table: sa.Table, start: datetime, end: datetime) -> dict[str, int]:
    """Count how runs, or targets, ended in a span."""
    found = sa.select(table.c.status, sa.func.count()).where(table.c.ended_at >= start, table.c.ended_at < end)
    return dict(connection.execute(found.group_by(table.c.status).order_by(table.c.status)).all())


class Attempt(NamedTuple):
    """The last attempt of a run, or of a target."""

    queue: str
    queued_at: datetime
    """Since when it waited: for a place of its group, where it has one."""
    granted_at: datetime | None
    started_at: datetime
    took: timedelta
    """How long it kept its worker, with the attempts before it, each as long as itself."""


def last_attempts(connection: sa.Connection, table: sa.Table, start: datetime, end: datetime) -> list[Attempt]:
    """Read those that started in a span; a run with targets keeps no worker once these are dispatched."""
    names = "queue", "queued_at", "granted_at", "started_at", "ended_at", "attempt"
    until = table.c.get("dispatched_at", sa.null())
    found = sa.select(*(table.c[name] for name in names), sa.label("until", until))
    rows = connection.execute(found.where(table.c.started_at >= start, table.c.started_at < end))
    return [
        Attempt(one.queue, one.queued_at, one.granted_at, one.started_at,
                ((one.until or one.ended_at or end) - one.started_at) * one.attempt)
        for one in rows
    ]  # fmt: skip


def waits(attempts: Sequence[Attempt], span: timedelta) -> dict[str, Any]:
    """Return how long attempts waited for a worker, and which part of the span they took."""
    waited = [one.started_at - (one.granted_at or one.queued_at) for one in attempts]
    took = sum((one.took for one in attempts), timedelta())
    return {**quantiles(waited), "busy": round(took / span, 3)}


def places(attempts: Sequence[Attempt], span: timedelta) -> dict[str, Any]:
    """Return how long attempts waited for a place, and which part of the span any did."""
    waited, until, held = list[timedelta](), datetime.min.replace(tzinfo=UTC), timedelta()
    for one in sorted(attempts, key=lambda one: one.queued_at):
        granted_at = one.granted_at or one.started_at
        waited.append(granted_at - one.queued_at)
        held += max(granted_at - max(one.queued_at, until), timedelta())
        until = max(until, granted_at)
    return {**quantiles(waited), "places": len(waited), "held_by_rate": round(held / span, 3)}


def quantiles(waited: Sequence[timedelta]) -> dict[str, float]:
    """Return what half of the waits, 95 of 100 and all of them last at most, in seconds."""
    found = sorted(one.total_seconds() for one in waited) or [0.0]
    shares = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return {name: round(found[min(int(share * len(found)), len(found) - 1)], 3) for name, share in shares.items()}


def speed(schedules: int, days: int, processes: int) -> dict[str, Any]:
    """Simulate daily and hourly schedules, half of each, for so many days."""
    with Scheduler(database_url="sqlite:///:memory:", redis_url="redis://127.0.0.1:1/0") as scheduler:
        given = [
            Declaration(f"s{number}", "benchmark-noop", Cron(f"{number % 60} {'2' if number % 2 else '*'} * * *"),
                        {"timezone": ("Europe/Berlin", "America/New_York", "UTC")[number % 3],
                         "queue": f"q{number % 4}"})
            for number in range(schedules)
        ]  # fmt: skip
        entries = declared(scheduler.runtime, given, "default", START, is_measured=False)
        wanted = wanted_of(START, start=START, end=START + timedelta(days=days), duration="5s", processes=processes,
                           workers={"q0": 8, "q1": 8})  # fmt: skip
    began = time.perf_counter()
    found = simulate(entries, wanted, now=START)
    took = time.perf_counter() - began
    decided = sum(one.total.fires for one in found.stretches)
    rss = [resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"schedules": schedules, "days": days, "processes": processes, "seconds": round(took, 1),
            "fires": found.fires, "decided": decided,
            "is_decided": found.is_decided, "megabytes": max(rss)}  # fmt: skip


def main() -> None:
    given = arguments(__doc__, learn=600, seconds=2100, schedules=10_000, days=365, decided=50)
    found: dict[str, Any] = {}
    if given.seconds:
        with lab() as place:
            found["beside_a_real_run"] = compare(place, given)
    if given.decided:
        found["decided"] = speed(given.decided, min(given.days, 30), 1)
    if given.schedules:
        found["year"] = speed(given.schedules, given.days, usable_processes())
    report("simulate", vars(given), {**found, "measured_at": datetime.now(UTC).isoformat()})


if __name__ == "__main__":
    main()
