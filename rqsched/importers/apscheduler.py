"""The source `apscheduler`: the jobs that APScheduler 3 keeps in SQL or in Redis.

APScheduler stores each job as a pickle of its state, and beside it the job's next time. It treats a job without a next
time as paused. Therefore `disable` removes the next time. A running scheduler may write complete jobs back, so
`disable` checks that the jobs stay paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, cast

from redis import Redis

from rqsched.clock import Clock, SystemClock
from rqsched.errors import InvalidInputError
from rqsched.importers.apscheduler_triggers import OWN, timing_of
from rqsched.importers.foreign_tables import ForeignDatabase
from rqsched.importers.rq_jobs import call_of
from rqsched.importers.source import (
    MOST_DESCRIBED,
    Reading,
    SourceEntry,
    is_redis,
    move_scored,
    named_id,
    until_quiet,
)
from rqsched.importers.unpickle import NotReadableError, loaded, unpickle, what_is
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.decide.policy import SKIP_FIRE_WITHIN
from rqsched.kernel.decide.results import number_of
from rqsched.kernel.transport import redis_keys
from rqsched.kernel.transport.client import connect

KIND = "apscheduler"
TABLE = "apscheduler_jobs"
"""The default table of SQLAlchemyJobStore. An application may name another table by the argument `tablename`."""
JOBS, RUN_TIMES = "apscheduler.jobs", "apscheduler.run_times"
"""The default keys of RedisJobStore. An application may name other keys by `jobs_key` and `run_times_key`."""
_CHUNK = 500
_NOTES = (
    "Jobs that the application adds with replace_existing=True are scheduled again when it starts: remove those "
    "add_job calls.",
)


def open_source(address: str, reading: Reading) -> SqlJobs | RedisJobs:
    """Open a job store by the URL of its database or Redis.

    The URL may end in a fragment. For a database, the fragment names the table, perhaps with its schema (`#jobs`,
    `#app.jobs`). For a Redis, it names both keys (`#app.jobs,app.run_times`). Raises InvalidInputError or ConfigError
    for an address that is not valid.
    """
    url, _, names = address.partition("#")
    if is_redis(url):
        jobs, _, run_times = (names or f"{JOBS},{RUN_TIMES}").partition(",")
        if not run_times:
            raise InvalidInputError("SOURCE", f"names one key after #; write both, such as #{JOBS},{RUN_TIMES}")
        return RedisJobs(connect(url), reading, jobs=jobs, run_times=run_times)
    return SqlJobs(url, reading, table=names or TABLE)


class _Kept(NamedTuple):
    """A stored job."""

    job_id: str
    state: bytes
    is_paused: bool
    is_taken: bool = False


def _kept(row: Mapping[str, Any]) -> _Kept:
    """Read a row. In SQLite, a column may contain a number. `bytes` is not called, because it would allocate memory."""
    state = row["job_state"]
    return _Kept(str(row["id"]), state if isinstance(state, bytes) else b"", row["next_run_time"] is None)


class SqlJobs:
    """The jobs of a SQLAlchemyJobStore."""

    kind = KIND
    cannot_disable = None
    notes = _NOTES

    def __init__(self, url: str, reading: Reading, clock: Clock | None = None, *, table: str = TABLE) -> None:
        self._reading, self._clock = reading, clock or SystemClock()
        schema, _, self._table = table.rpartition(".")
        self._database = ForeignDatabase(url, [self._table], schema or None)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def entries(self) -> list[SourceEntry]:
        """Read all jobs, ordered by id; raises InvalidInputError if there are jobs and the source is not trusted."""
        rows = self._database.rows()[self._table]
        return _entries(map(_kept, rows), self._reading, self._clock.now())

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        """Pause the jobs. Raises ConflictError if a running scheduler writes them back again and again."""
        ids = [entry.source_id for entry in entries]
        count = until_quiet(lambda: self._database.pause_jobs(self._table, ids))
        return f"Paused {number_of(count, 'job')} of {self._table}; APScheduler's resume_job() resumes a job."


class RedisJobs:
    """The jobs of a RedisJobStore."""

    kind = KIND
    cannot_disable = None
    notes = _NOTES

    def __init__(
        self,
        redis: Redis,
        reading: Reading,
        clock: Clock | None = None,
        *,
        jobs: str = JOBS,
        run_times: str = RUN_TIMES,
    ) -> None:
        self._redis, self._reading, self._clock = redis, reading, clock or SystemClock()
        self._jobs, self._run_times = jobs, run_times
        self._backup = redis_keys.disabled_entries(f"{KIND}:{run_times}")

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def entries(self) -> list[SourceEntry]:
        """Read all jobs, ordered by id; raises InvalidInputError if there are jobs and the source is not trusted."""
        return _entries(sorted(self._read()), self._reading, self._clock.now())

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        """Remove the jobs from the set of run times. Raises ConflictError if a scheduler adds them again and again."""
        ids = [entry.source_id for entry in entries]
        count = until_quiet(partial(self._disable, ids))
        return (
            f"Moved {count} of {self._run_times} to {self._backup}; ZUNIONSTORE {self._run_times} 2 {self._run_times} "
            f"{self._backup} puts all back, and APScheduler's resume_job() resumes a job."
        )

    def _read(self) -> Iterator[_Kept]:
        scheduled = {bytes(job_id) for job_id in cast("list[bytes]", self._redis.zrange(self._run_times, 0, -1))}
        taken = {bytes(job_id) for job_id in cast("list[bytes]", self._redis.zrange(self._backup, 0, -1))}
        for job_id, state in cast("dict[bytes, bytes]", self._redis.hgetall(self._jobs)).items():
            is_paused = job_id not in scheduled
            yield _Kept(job_id.decode(errors="surrogateescape"), state, is_paused, is_paused and job_id in taken)

    def _disable(self, ids: Sequence[str]) -> int:
        count = 0
        for chunk in chunks([one.encode(errors="surrogateescape") for one in ids], _CHUNK):
            count += move_scored(self._redis, self._run_times, self._backup, chunk)
        return count


def _entries(jobs: Iterable[_Kept], reading: Reading, now: datetime) -> list[SourceEntry]:
    kept = list(jobs)
    unpickled = unpickle((job.state for job in kept), OWN, is_trusted=reading.is_trusted)
    return [_entry(job, unpickled, now) for job in kept]


def _entry(job: _Kept, unpickled: Mapping[bytes, Any], now: datetime) -> SourceEntry:
    try:
        return _read_entry(job, loaded(unpickled, job.state), now)
    except NotReadableError as error:
        reason = f"It is not readable: {error}."
    except InvalidInputError as error:
        reason = f"It cannot become a schedule: {error.reason}."
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"It is not readable: APScheduler 3 writes jobs in another form ({type(error).__name__})."
    return SourceEntry(job.job_id, None, (reason,), not job.is_paused, is_taken=job.is_taken)


def _read_entry(job: _Kept, state: Any, now: datetime) -> SourceEntry:
    if not isinstance(state, dict):
        raise NotReadableError(f"it is {what_is(state)}, but a job is a dict")
    next_at = state["next_run_time"]
    if next_at is not None and (not isinstance(next_at, datetime) or next_at.utcoffset() is None):
        raise NotReadableError(f"its next time is {what_is(next_at)}, or has no zone")
    timing = timing_of(state["trigger"], next_at, now)
    call = call_of(_path(state["func"]), state["args"], state["kwargs"])
    grace = state["misfire_grace_time"]
    if not isinstance(state["max_instances"], int) or not isinstance(grace, int | None):
        raise NotReadableError("its max_instances or misfire_grace_time is no number")
    is_too_late = next_at is not None and grace is not None and next_at + timedelta(seconds=grace) < now
    if is_too_late and "once" in timing.keys:
        raise InvalidInputError("once", f"its time has passed, and APScheduler runs it at most {grace} s late")
    lost = [*call.lost, *timing.lost, *_lost(state)]
    entry = {
        "schedule_id": named_id(KIND, job.job_id),
        "workflow": call.workflow,
        **timing.keys,
        **_policies(state),
        **{name: value for name, value in (("args", call.args), ("kwargs", call.kwargs)) if value},
    }
    name = state["name"]
    if isinstance(name, str) and name not in {call.workflow.rpartition(".")[2], job.job_id}:
        entry["description"] = name[:MOST_DESCRIBED]
    owed_at = None if is_too_late else next_at
    return SourceEntry(job.job_id, entry, tuple(lost), not job.is_paused, owed_at, job.is_taken)


def _path(func: object) -> str:
    """Return the dotted path of a textual reference `module:function`."""
    module, _, name = str(func).partition(":")
    if module == "__main__" or "." in name:
        raise NotReadableError(f"it calls {func}, but a workflow must be a function in a module: move it into one")
    return f"{module}.{name}"


def _policies(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with which a schedule handles overlaps and late fires as APScheduler does, and never retries."""
    policies: dict[str, Any] = {"overlap": "skip" if state["max_instances"] == 1 else "allow_all"}
    grace = state["misfire_grace_time"]
    if grace is not None:
        policies["missed"] = "skip"
        if timedelta(seconds=grace) > SKIP_FIRE_WITHIN:
            policies["fire_within"] = grace
    return policies | {"retry": {"max_retries": 0}}


def _lost(state: Mapping[str, Any]) -> Iterator[str]:
    grace, tolerance = state["misfire_grace_time"], int(SKIP_FIRE_WITHIN.total_seconds())
    if state["max_instances"] != 1:
        yield f"Its max_instances of {state['max_instances']} becomes unlimited: overlap is allow_all."
    if grace is not None and grace < tolerance:
        yield f"It fires if it is at most {tolerance} s late; its misfire_grace_time was {grace} s."
    if not state["coalesce"] and (grace is None or grace > tolerance):
        yield "Of several missed times one fires. With coalesce=False APScheduler runs each: see missed='all'."
    if state["executor"] != "default":
        yield f"Its executor {state['executor']} is lost: see queue."
