"""Pruning: runs a second that are pruned, against runs a second that are fired, and the size of a row on disk.

    python -m benchmarks.pruning --schedules 100 --runs 51 --rounds 3

`bulk` prunes schedules with fifty old runs each, as many as there are when a dispatcher prunes one under the default
retention; `scattered` those with one each: a transaction a schedule. A step is
what a dispatcher does between two looks for due links; a fire due meanwhile waits for it. The aim is that one
dispatcher prunes at least as fast as it fires.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from time import perf_counter

import sqlalchemy as sa

from benchmarks.lab import (
    DATABASES,
    START,
    Lab,
    analyse,
    arguments,
    fill,
    fire_all,
    lab,
    minutes,
    ratio,
    report,
    summary,
)
from rqsched import Cron
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.store import Batch
from rqsched.features.pruning.chain import NOT_BEFORE_A_FIRE, Pruned, Pruning, prune
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.store.tables import runs, targets
from rqsched.kernel.store.tables import schedules as schedules_table
from rqsched.testing import ManualClock

TABLES = ("rqsched_runs", "rqsched_audit_events", "rqsched_targets")
TARGETS = 2_000


def fired(runtime: Runtime, clock: ManualClock, schedules: int, count: int) -> float:
    """Fire every schedule so often and let the runs have ended; returns runs fired a second."""
    fill(runtime, schedules, Cron("* * * * *"), overlap="allow_all")
    seconds = 0.0
    for _ in range(count):
        clock.advance(minutes(1))
        seconds += fire_all(runtime, schedules)
    ended = sa.update(runs).values(status="succeeded", started_at=clock.now(), ended_at=clock.now())
    runtime.database.transact(lambda connection: connection.execute(ended))
    analyse(runtime)
    return schedules * count / seconds


def steps(runtime: Runtime) -> Iterator[tuple[Pruned, float]]:
    """Prune as a dispatcher does; yields what each step did and its milliseconds."""
    pruning = prune(runtime, Pruning(spare=NOT_BEFORE_A_FIRE))
    while True:
        started = perf_counter()
        step = next(pruning, None)
        if step is None:
            return
        yield step, 1_000 * (perf_counter() - started)


def pruned(place: Lab, kind: str, schedules: int, count: int) -> dict[str, float]:
    clock = ManualClock(START)
    with place.runtime(kind, clock) as runtime:
        rate = fired(runtime, clock, schedules, count)
        clock.advance(timedelta(days=100))
        idle = sa.update(schedules_table).values(due_at=None, next_run_at=None)  # else all of it is due at once
        runtime.database.transact(lambda connection: connection.execute(idle))
        done = list(steps(runtime))
    taken, seconds = sum(step.runs for step, _ in done), sum(took for _, took in done) / 1_000
    assert taken == schedules * (count - 1), taken
    took = sorted(took for _, took in done)
    return {"fired": rate, "pruned": taken / seconds, "p50": took[len(took) // 2], "longest": took[-1]}


def sizes(place: Lab, kind: str, schedules: int, count: int) -> dict[str, int]:
    """Bytes a row, with its indexes and its share of half-empty pages."""
    clock = ManualClock(START)
    with place.runtime(kind, clock) as runtime:
        fired(runtime, clock, schedules, count)
        now = runtime.now()
        batch = Batch(new_uid(now), "sweep", now, 60, new_uid(now))
        names = [f"customer-{number}" for number in range(TARGETS)]
        runtime.database.transact(partial(fan_out_targets.record, batch=batch, named=names, first=1, now=now))
        ended = sa.update(targets).values(status="succeeded", queued_at=now, deadline_at=now, ended_at=now)
        runtime.database.transact(lambda connection: connection.execute(ended))
        if kind == "postgres":
            with runtime.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM FULL")
        return runtime.database.read(lambda connection: {table: _size(connection, kind, table) for table in TABLES})


def _size(connection: sa.Connection, kind: str, table: str) -> int:
    query = f"SELECT pg_total_relation_size('{table}')"
    if kind == "sqlite":
        parts = f"SELECT name FROM sqlite_master WHERE tbl_name = '{table}'"
        query = f"SELECT sum(pgsize) FROM dbstat WHERE name IN ({parts})"
    rows = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
    return int(connection.exec_driver_sql(query).scalar_one() / rows)


def main() -> None:
    given = arguments(__doc__, schedules=100, runs=51, rounds=3)
    figures: dict[str, object] = {}
    with lab() as place:
        for kind in DATABASES:
            bulk = [pruned(place, kind, given.schedules, given.runs) for _ in range(given.rounds)]
            scattered = [pruned(place, kind, given.schedules, 2) for _ in range(given.rounds)]
            figures[kind] = {
                "fired_per_second": summary([one["fired"] for one in bulk]),
                "pruned_per_second": {
                    "bulk": summary([one["pruned"] for one in bulk]),
                    "scattered": summary([one["pruned"] for one in scattered]),
                },
                "ratio_to_fires": {
                    "bulk": ratio([one["pruned"] for one in bulk], [one["fired"] for one in bulk]),
                    "scattered": ratio([one["pruned"] for one in scattered], [one["fired"] for one in bulk]),
                },
                "step_milliseconds": {
                    "p50": summary([one["p50"] for one in bulk]),
                    "longest": summary([one["longest"] for one in bulk]),
                },
                "bytes_a_row_with_indexes": sizes(place, kind, given.schedules, given.runs),
            }
    figures["aim"] = "bulk: at least as many pruned as fired a second"
    report("pruning", vars(given), figures)


if __name__ == "__main__":
    main()
