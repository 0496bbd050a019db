"""An environment to crash in: one scheduler over a real database and Valkey, a manual clock, put back as it was.

After a process died in it, it goes on as production would: reconcile passes, a dispatcher, a worker of the run queue;
only that time passes at a word.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from rqsched import Scheduler
from rqsched.features.notifications import chain as delivering
from rqsched.kernel.chain import execution, fire
from rqsched.kernel.chain.dispatcher import Dispatcher
from rqsched.kernel.chain.ownership import UnknownJobError
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.ids import (
    DeliveryJobId,
    LinkId,
    RetryLinkId,
    RunJobId,
    parse_delivery_job_id,
    parse_run_job_id,
)
from rqsched.kernel.decide.model import OPEN, Run, RunStatus
from rqsched.kernel.store.database import Patience
from rqsched.kernel.store.tables import deliveries, metadata
from rqsched.kernel.transport import redis_keys
from rqsched.testing import ManualClock
from tests.support.invariants import check_invariants, i8_executions
from tests.support.sql import do_not_sync
from tests.support.stories import Story, read_stories
from tests.system.crash.workflows import AttemptFailedError, executed, notified, take_notes

RUN_QUEUE = "rq:queue:default"
TOLD = frozenset({audit.RUN_FAILED, audit.RUN_LOST, audit.RUN_LONG, audit.OVERDUE})
MOST_ROUNDS = 20
BEYOND_GRACE = timedelta(seconds=6)
BETWEEN_PASSES = timedelta(seconds=16)


class CrashEnv:
    """The one scheduler of a test, its clock and its log of side effects."""

    def __init__(self, database_url: str, redis_url: str, folder: Path, start: datetime) -> None:
        self.clock = ManualClock(start)
        self.scheduler = Scheduler(database_url=database_url, redis_url=redis_url, clock=self.clock, run_timeout=60)
        self.runtime = self.scheduler.runtime
        self.runtime.database.patience = Patience(first=timedelta(milliseconds=1))
        if self.runtime.database.dialect.name == "sqlite":
            do_not_sync(self.runtime.database.engine)
        self.redis = self.runtime.transport.redis
        self.log = folder / "executed"
        self.notes = folder / "notified"
        take_notes(self.notes)
        self.logs = [self.log, self.notes]
        """The logs of side effects outside SQL and Redis."""
        self.job: str | None = None
        """The job or link that a process of the flow has taken from Redis."""
        self.watch_engine: Callable[[sa.Engine], object] = lambda _: None
        """Counts the steps of an engine that is not the scheduler's; in the process that is crashed."""
        self.survive: Callable[[], object] = lambda: None
        """Called in a fork of the process that is crashed, which goes on as if nothing had happened."""

    def close(self) -> None:
        self.scheduler.close()

    @contextmanager
    def application(self) -> Iterator[sa.Engine]:
        """The engine of an application in the same database, with a connection that is open."""
        engine = sa.create_engine(self.runtime.database.url)
        if self.runtime.database.dialect.name == "sqlite":
            do_not_sync(engine)
        engine.connect().close()
        self.watch_engine(engine)
        yield engine
        engine.dispose()

    def dispatch_all(self) -> None:
        """Let a dispatcher fire every due link."""
        dispatcher = Dispatcher(self.runtime)
        while dispatcher.run_once():
            pass

    def next_job(self) -> str | None:
        """Take the first job of the run queue, as a worker does."""
        taken = cast("bytes | None", self.redis.lpop(RUN_QUEUE))
        return None if taken is None else taken.decode()

    def execute_next(self) -> bool:
        """Execute the first job of the run queue; False when there is none."""
        text = self.next_job()
        if text is None:
            return False
        with suppress(AttemptFailedError, UnknownJobError):  # unknown: a purge died before it withdrew the job
            self.execute(text)
        return True

    def execute(self, text: str) -> None:
        """Execute a job of the run queue: a run, or a notification."""
        job, delivery = parse_run_job_id(text), parse_delivery_job_id(text)
        if job is not None:
            execution.execute(self.runtime, job)
        if delivery is not None:
            delivering.execute(self.runtime, delivery)

    def work(self) -> None:
        """Let a worker empty the run queue."""
        while self.execute_next():
            pass

    def notifications(self) -> list[Any]:
        """Return the row of each notification there is, the oldest first."""
        statement = sa.select(deliveries).order_by(deliveries.c.created_at, deliveries.c.uid)
        return list(self.runtime.database.read(lambda connection: connection.execute(statement).all()))

    def stories(self) -> list[Story]:
        return read_stories(self.runtime)

    def settle(self, *, redeliver: bool = True) -> None:
        """Recover, deliver everything again, let it come to its end; the invariants hold at once and at the end."""
        self.clock.advance(BEYOND_GRACE)
        self.scheduler.recover()
        check_invariants(self.runtime)
        if redeliver:
            self._deliver_again()
        self.go_on(self.scheduler.recover)

    def go_on(self, reconcile: Callable[[], object]) -> None:
        """Let every run end and the next occurrence fire, with `reconcile` called now and then."""
        for _ in range(MOST_ROUNDS):
            self.dispatch_all()
            self.work()
            if not self.is_anything_open():
                break
            self.clock.advance(BETWEEN_PASSES)
            reconcile()
        else:
            raise AssertionError(f"runs are still open after {MOST_ROUNDS} rounds\n{self._lines()}")
        self._check_notifications()
        self._fire_next(reconcile)
        check_invariants(self.runtime)
        i8_executions(self.runtime, executed(self.log))

    def _check_notifications(self) -> None:
        """Each event that somebody is told of has one notification, and its message arrived."""
        arrived = {uid for uid, _ in notified(self.notes)}
        rows = self.notifications()
        for story in self.stories():
            found = sorted(row.event_type for row in rows if row.schedule_uid == story.schedule.uid)
            owed = [event.event_type for event in story.events if event.event_type in TOLD]
            if story.schedule.definition.parsed_notifications.on_failure is not None:
                assert found == sorted(owed), f"told of {found}, not of {owed}\n{story.lines()}"
        assert [row for row in rows if row.status != "succeeded" or row.uid not in arrived] == []

    def _deliver_again(self) -> None:
        """Deliver every link and every run job there ever was a second time: a Redis or a worker that comes back."""
        for story in self.stories():
            ids = [str(LinkId(story.schedule.uid, n)) for n in range(story.schedule.n + 1)]
            for link in [*ids, *(str(link) for run in story.runs for link in _retry_links(run))]:
                fire.fire(self.runtime, [link])
            for job in (job for run in story.runs for job in _jobs(run)):
                with suppress(AttemptFailedError):
                    execution.execute(self.runtime, job)
        for row in self.notifications():
            # If a delivery waits, its next attempt is left to reconcile, because a crash may have left out its job.
            for attempt in range(1, row.attempt + (row.status != "pending")):
                with suppress(AttemptFailedError):
                    delivering.execute(self.runtime, DeliveryJobId(row.uid, attempt))

    def is_anything_open(self) -> bool:
        """Runs that wait because their owner paused the schedule do not count."""
        if any(row.status in {"pending", "running"} for row in self.notifications()):
            return True
        return any(
            run.status in OPEN and not (run.status is RunStatus.BUFFERED and not story.schedule.is_active)
            for story in self.stories()
            for run in story.runs
        )

    def _fire_next(self, reconcile: Callable[[], object]) -> None:
        """The chain is alive: the next occurrence fires by its own link, armed at the latest shortly before it."""
        due = [story.schedule.due_at for story in self.stories() if story.schedule.due_at is not None]
        if not due:
            return
        next_due = max(due)
        self.clock.set(max(self.clock.now(), next_due - timedelta(seconds=10)))
        reconcile()
        self.clock.set(max(self.clock.now(), next_due) + timedelta(milliseconds=1))
        self.dispatch_all()
        self.work()
        now = self.clock.now()
        for story in self.stories():
            due_at = story.schedule.due_at
            assert due_at is None or due_at > now, f"its chain is broken, nothing fired at {due_at}\n{story.lines()}"

    def _lines(self) -> str:
        return "\n".join(story.lines() for story in self.stories())

    def state(self) -> str:
        """Return the state that determines the continuation, as text. Uids are numbered, because some are random.

        The counters and durations of reconcile passes are left out: they determine nothing.
        """
        rows = self.runtime.database.read(_read_rows)
        tables = {name: sorted((_text(row) for row in found), key=_blank) for name, found in rows.items()}
        counts = redis_keys.passes(self.runtime.settings.control_queue)
        keys = {key.decode(): self._value(key) for key in self._keys() if key != counts.encode()}
        ordered = sorted((repr(item) for item in keys.items()), key=_blank)
        text = "\n".join(
            [repr(tables), *ordered, str(self.clock.now()), str(executed(self.log)), str(notified(self.notes))]
        )
        numbers: dict[str, str] = {}
        return _UID.sub(lambda match: numbers.setdefault(match[0].upper(), f"uid{len(numbers)}"), text)

    def _keys(self) -> list[bytes]:
        return cast("list[bytes]", self.redis.keys("*"))

    def _dump(self, key: bytes) -> bytes:
        dumped = self.redis.dump(key)
        assert dumped is not None, f"{key!r} is gone"
        return dumped

    def _value(self, key: bytes) -> Any:
        kind = self.redis.type(key)
        if kind == b"hash":
            fields = cast("dict[bytes, bytes]", self.redis.hgetall(key))
            return sorted(_field(*item) for item in fields.items() if item[0] != b"data")
        if kind == b"zset":
            return sorted(
                self.redis.zrange(key, 0, -1, withscores=True), key=lambda item: (item[1], _blank(str(item[0])))
            )
        if kind == b"list":
            return self.redis.lrange(key, 0, -1)
        return sorted(self.redis.smembers(key)) if kind == b"set" else self.redis.get(key)

    def snapshot(self) -> Snapshot:
        """Remember every row, every key and the time."""
        rows = self.runtime.database.read(_read_rows)
        keys = {key: (self._dump(key), max(self.redis.pttl(key), 0)) for key in self._keys()}
        log = self.log.read_text() if self.log.exists() else ""
        notes = self.notes.read_text() if self.notes.exists() else ""
        return Snapshot(rows, keys, self.clock.now(), log, notes)

    def restore(self, snapshot: Snapshot) -> None:
        """Everything is as it was."""
        self.runtime.database.transact(snapshot.write_rows)
        self.restore_beside_sql(snapshot)

    def restore_beside_sql(self, snapshot: Snapshot) -> None:
        """Redis, the time and the log of side effects are as they were."""
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.flushdb()
            for key, (value, ttl) in snapshot.keys.items():
                pipe.restore(key, ttl, value)
            pipe.execute()
        self.clock.set(snapshot.at)
        self.log.write_text(snapshot.log)
        self.notes.write_text(snapshot.notes)


@dataclass(frozen=True)
class Snapshot:
    """Rows, keys with their remaining lives, time, and the log of side effects."""

    rows: dict[str, list[Any]]
    keys: dict[bytes, tuple[bytes, int]]
    at: datetime
    log: str
    notes: str

    @property
    def uids(self) -> list[str]:
        """The schedules and runs there were."""
        return [row["uid"] for name in ("rqsched_schedules", "rqsched_runs") for row in self.rows[name]]

    def write_rows(self, connection: sa.Connection) -> None:
        """Replace every row of every table."""
        for table in reversed(metadata.sorted_tables):
            connection.execute(sa.delete(table))
        for table in metadata.sorted_tables:
            if rows := self.rows[table.name]:
                connection.execute(sa.insert(table), rows)


def _jobs(run: Run) -> Iterator[RunJobId]:
    """Name every delivery a run has had, as far as its row tells."""
    yield from (RunJobId(run.uid, attempt, 1) for attempt in range(1, run.attempt))
    yield from (RunJobId(run.uid, run.attempt, delivery) for delivery in range(1, run.delivery + 1))


def _retry_links(run: Run) -> Iterator[RetryLinkId]:
    yield from (RetryLinkId(run.schedule_uid, run.number, attempt) for attempt in range(1, run.attempt + 1))


_UID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}", re.IGNORECASE)


def _blank(text: str) -> str:
    return _UID.sub("*", text)


def _field(name: bytes, value: bytes) -> tuple[bytes, Any]:
    """Return a field of a hash. The caller omits `data`, which packs the function and id of a job.

    `meta` is unpickled, because in a pickle a uid cannot be told from the length before it.
    """
    return name, pickle.loads(value) if name == b"meta" else value


def _text(row: dict[str, Any]) -> str:
    return repr({name: value for name, value in row.items() if name != "worker"})  # the process's own number


def _read_rows(connection: sa.Connection) -> dict[str, list[Any]]:
    return {
        table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
        for table in metadata.sorted_tables
    }
