"""Memory: Redis bytes an armed schedule, SQL bytes a schedule, run and event, RSS of a dispatcher.

    python -m benchmarks.memory --schedules 1000000

The peer is a scheduled RQ job (625 bytes, measured in the same run). The aim is at most as much.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from redis import Redis
from rq import Queue

from benchmarks.lab import START, Lab, analyse, arguments, fill, fire_all, lab, minutes, report
from rqsched import Cron
from rqsched.kernel.chain.runtime import Runtime
from rqsched.testing import ManualClock

TABLES = ("rqsched_schedules", "rqsched_runs", "rqsched_audit_events")


def used(redis: Redis) -> int:
    return int(redis.info("memory")["used_memory"])


def rq_job_bytes(place: Lab, count: int) -> float:
    redis = Redis.from_url(place.valkey.url)
    redis.flushall()
    before = used(redis)
    queue, due = Queue("peer", connection=redis), datetime.now(UTC) + timedelta(days=1)
    for _ in range(count):
        queue.schedule_job(queue.create_job("rqsched.jobs.fire", args=("x" * 41,)), due)
    return (used(redis) - before) / count


def sql_bytes(runtime: Runtime) -> dict[str, float]:
    def size(connection: sa.Connection, table: str) -> float:
        total = connection.exec_driver_sql(f"SELECT pg_total_relation_size('{table}')").scalar_one()
        rows = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
        return float(round(total / max(rows, 1), 0))

    return runtime.database.read(lambda connection: {table: size(connection, table) for table in TABLES})


def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    given = arguments(__doc__, schedules=1_000_000, fires=5_000, peer=20_000)
    clock = ManualClock(START)
    with lab() as place:
        peer = rq_job_bytes(place, given.peer)
        with place.runtime("postgres", clock) as runtime:
            redis = runtime.transport.redis
            before = used(redis)
            fill(runtime, given.schedules, Cron("0 0 1 1 *"))
            armed = (used(redis) - before) / given.schedules
            analyse(runtime)
            fill(runtime, given.fires, Cron("1 12 * * *"), prefix="due")
            clock.advance(minutes(1))
            before_rss = rss()
            fire_all(runtime, given.fires)
            figures = {
                "redis_bytes": {"armed_schedule": round(armed), "rq_scheduled_job": round(peer)},
                "ratio_to_rq_scheduled_job": round(armed / peer, 2),
                "sql_bytes_a_row_with_indexes": sql_bytes(runtime),
                "dispatcher_rss_mb": {"before": round(before_rss / 2**20), "after_fires": round(rss() / 2**20)},
                "aim": "an armed schedule: at most 625 bytes",
            }
    report("memory", vars(given), figures)


if __name__ == "__main__":
    main()
