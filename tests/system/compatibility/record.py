"""Record the rows and jobs of this version: `python -m tests.system.compatibility.record DATABASE_URL REDIS_URL FILE`.

Done once for each released format, on an empty SQLite database and an empty Redis; the file stays as it is from then
on. It uses only names that are API, so that it also runs on the tree of an earlier release.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from rq import Queue, SimpleWorker

from rqsched import Cron, Every, Once, RetryPolicy, Scheduler
from rqsched.features.fan_out.dispatch import fan_out
from rqsched.features.fan_out.store import Batch
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.runtime import using
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.store.tables import metadata
from rqsched.testing import ManualClock
from rqsched.workflows import Registry, make_workflow

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def fail() -> None:
    """Fail its first attempt."""
    raise ValueError("not today")


def note(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


def play(scheduler: Scheduler, clock: ManualClock) -> None:
    """Leave a schedule, a run or a target in each state that a deploy may find."""
    scheduler.recover()
    scheduler.create("retrying", "fail", Every("1h"), retry=RetryPolicy(max_retries=2, base=10 * MINUTE))
    scheduler.get("retrying").trigger()
    work(scheduler)
    scheduler.create("waiting", "note", Every("1m"), overlap="buffer_all", kwargs={"region": "eu"})
    for _ in range(2):
        clock.advance(MINUTE)
        Dispatcher(scheduler.runtime).run_once()
    options: dict[str, Any] = {"labels": {"team": "billing"}, "memo": {"a": [1]}, "max_runs": 9, "jitter": MINUTE / 60}
    options |= {"timezone": "Europe/Berlin", "args": ["eu"], "missed": "all", "overlap": "allow_all"}
    scheduler.create("cron", "note", Cron("*/5 8-18 * * mon-fri"), note="kept", **options)
    scheduler.create("once", "note", Once(NOON + timedelta(hours=1)))
    scheduler.create("completion", "note", Every("4m", from_completion=True))
    scheduler.create("paused", "note", Every("90s"), paused=True)
    scheduler.create("deleted", "note", Every("90s")).delete(reason="gone")
    batch = Batch(new_uid(clock.now()), "each", clock.now(), timeout=60)
    fan_out(scheduler.runtime, batch, [["a", "b"]])


def work(scheduler: Scheduler) -> None:
    """Execute the queued jobs."""
    redis = scheduler.runtime.transport.redis
    with using(scheduler.runtime):
        SimpleWorker([Queue("default", connection=redis)], connection=redis).work(burst=True, logging_level="CRITICAL")


def rows_of(scheduler: Scheduler) -> dict[str, list[dict[str, Any]]]:
    """Read every row of every table."""

    def read(connection: sa.Connection) -> dict[str, list[dict[str, Any]]]:
        tables = [table for table in metadata.sorted_tables if sa.inspect(connection).has_table(table.name)]
        return {
            table.name: [
                {name: _encode(value) for name, value in row.items()}
                for row in connection.execute(sa.select(table)).mappings()
            ]
            for table in tables
        }

    return scheduler.runtime.database.read(read)


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return {"at": value.isoformat()}
    return {"microseconds": value // timedelta(microseconds=1)} if isinstance(value, timedelta) else value


def keys_of(redis: Any) -> dict[str, Any]:
    """Read every key that is ours or names a job, as bytes."""
    found: dict[str, Any] = {}
    for key in sorted(redis.keys("rq*")):
        name, kind = key.decode(), redis.type(key).decode()
        if name.startswith(("rq:worker", "rq:results", "rq:execution", "rqsched:dispatcher", "rqsched:wake")):
            continue
        if kind == "hash":
            found[name] = [kind, [[_text(field), _text(value)] for field, value in redis.hgetall(key).items()]]
        elif kind == "zset":
            found[name] = [kind, [[_text(entry), score] for entry, score in redis.zrange(key, 0, -1, withscores=True)]]
        elif kind == "list":
            found[name] = [kind, [_text(entry) for entry in redis.lrange(key, 0, -1)]]
        elif kind == "set":
            found[name] = [kind, [_text(entry) for entry in redis.smembers(key)]]
        elif kind == "string":
            found[name] = [kind, _text(redis.get(key))]
    return found


def _text(value: Any) -> str:
    return base64.b64encode(value).decode()


def main(database_url: str, redis_url: str, path: str) -> None:
    """Play, and write down what there is then."""
    clock = ManualClock(NOON)
    registry = Registry()
    registry.add(make_workflow("note", note))
    registry.add(make_workflow("fail", fail))
    scheduler = Scheduler(database_url=database_url, redis_url=redis_url, clock=clock, workflows=registry)
    play(scheduler, clock)
    keys = keys_of(scheduler.runtime.transport.redis)
    recorded = {"at": clock.now().isoformat(), "tables": rows_of(scheduler), "keys": keys}
    Path(path).write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    scheduler.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
