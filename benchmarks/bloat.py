"""Bloat: whether tables, indexes and the dispatcher stop growing where as much is pruned as is fired.

    python -m benchmarks.bloat --minutes 60 --schedules 300 --every 5 --keep 20

On PostgreSQL with autovacuum as it is installed. One dispatcher fires, one SimpleWorker executes, and each schedule
keeps its newest runs. Retention keeps what is younger than a day, so the pruner of this benchmark lives two days
ahead. Once every schedule has as many runs as it keeps, every row that is written takes the place of one that was:
sizes are compared with those at a quarter of the time. `hot` is the share of updates that touched no index.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import psutil
import sqlalchemy as sa

from benchmarks.flows import NOOP
from benchmarks.lab import Lab, arguments, lab, report
from benchmarks.processes import environment, rq_worker
from rqsched import Declaration, Every, Scheduler
from rqsched.config import Settings
from rqsched.features.list import make_runtime
from rqsched.features.pruning.chain import Pruning, prune
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.retention import Retention
from rqsched.testing import ManualClock
from tests.support.processes import Process, rqsched_command, running

TABLES = ("rqsched_schedules", "rqsched_runs", "rqsched_audit_events")
AHEAD = timedelta(days=2)
_TURN = 1.0
_COUNTS = sa.text("SELECT relname, n_tup_hot_upd, n_tup_upd, n_dead_tup FROM pg_stat_user_tables")


@dataclass
class Sample:
    """A measurement at one moment."""

    at: float
    """Seconds since the start."""
    sizes: dict[str, int]
    """Bytes of each table with its indexes."""
    rows: dict[str, int]
    """Rows of each table: a worker that falls behind leaves more of them, which is no bloat."""
    rss: int
    """Bytes of memory of the dispatcher."""


def of_each(connection: sa.Connection, query: str) -> dict[str, int]:
    """Ask for a number of each table."""
    return {table: int(connection.exec_driver_sql(query.format(table)).scalar_one()) for table in TABLES}


def counts(connection: sa.Connection) -> dict[str, dict[str, float]]:
    """Give, by table, the share of updates that touched no index, and the dead rows of this moment."""
    rows = [row for row in connection.execute(_COUNTS) if row.relname in TABLES]
    return {
        row.relname: {"hot": round(row.n_tup_hot_upd / max(1, row.n_tup_upd), 2), "dead": row.n_dead_tup}
        for row in rows
    }


def sample(runtime: Runtime, elapsed: float, dispatcher: Process) -> Sample:
    """Look at it now."""
    sizes, rows = (
        runtime.database.read(partial(of_each, query=query))
        for query in ("SELECT pg_total_relation_size('{}')", "SELECT count(*) FROM {}")
    )
    return Sample(elapsed, sizes, rows, psutil.Process(dispatcher.pid).memory_info().rss)


def observe(
    place: Lab, settings: Settings, keep: int, seconds: float, every: float
) -> tuple[list[Sample], dict[str, dict[str, float]]]:
    """Let it fire, execute and prune; returns what there was, each `every` seconds, and the counts of the end."""
    samples: list[Sample] = []
    env = environment(place, settings.database_url)
    with ExitStack() as stack:
        log = place.folder / "dispatcher.log"
        dispatcher = stack.enter_context(running(rqsched_command("dispatcher"), log_path=log, env=env))
        words = ("-w", "rq.SimpleWorker", "-c", "rqsched.preload")
        stack.enter_context(rq_worker(place, settings.database_url, "worker", words, "default"))
        clock = ManualClock(datetime.now(UTC) + AHEAD)
        runtime = stack.enter_context(closing(make_runtime(settings, clock=clock)))
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < seconds:
            clock.set(datetime.now(UTC) + AHEAD)
            for _ in prune(runtime, Pruning(retention=Retention.parse(str(keep)))):
                pass
            if not samples or elapsed - samples[-1].at >= every:
                samples.append(sample(runtime, elapsed, dispatcher))
            time.sleep(_TURN)
        samples.append(sample(runtime, elapsed, dispatcher))
        return samples, runtime.database.read(counts)


def main() -> None:
    given = arguments(__doc__, minutes=60.0, schedules=300, every=5, keep=20)
    seconds = given.minutes * 60
    with lab() as place:
        settings = Settings(database_url=place.database_url("postgres"), redis_url=place.valkey.url)
        with Scheduler(settings=settings) as scheduler:
            scheduler.sync(
                [
                    Declaration(f"s{number}", NOOP, Every(timedelta(seconds=given.every)), {"overlap": "allow_all"})
                    for number in range(given.schedules)
                ]
            )
            samples, end = observe(place, settings, given.keep, seconds, max(1.0, seconds / 60))
            fires = sum(handle.state.run_count for handle in scheduler.iter())
    quarters = [min(samples, key=lambda one: abs(one.at - seconds * part)) for part in (0.25, 0.5, 0.75, 1)]
    figures = {
        "fires": fires,
        "fires_per_second": round(fires / seconds, 1),
        "at_quarters": {
            table: {
                "bytes": [one.sizes[table] for one in quarters],
                "rows": [one.rows[table] for one in quarters],
                "ratio": round(quarters[-1].sizes[table] / quarters[0].sizes[table], 2),
            }
            for table in TABLES
        },
        "dispatcher_rss_mb": [round(one.rss / 2**20, 1) for one in quarters],
        "tables": end,
        "aim": "neither tables nor the dispatcher go on growing",
    }
    report("bloat", vars(given), figures)


if __name__ == "__main__":
    main()
