"""The source `rq-scheduler`: the jobs that the package rq-scheduler stores in Redis, read without the package.

A sorted set contains the ids of jobs, with the time at which each is enqueued as its score. Each job is a normal hash
of RQ. The field `meta` of the hash contains the interval, the cron expression and the number of repeats that are left.
`rqscheduler` searches for due jobs every 60 s by default, and holds a lock while it enqueues. To disable a job, an
import takes this lock and moves the id into another set. The hash stays, so one Redis command restores everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

from redis import Redis

from rqsched.clock import Clock, SystemClock
from rqsched.errors import ConflictError, InvalidCronError
from rqsched.importers.cron_fields import ClockChanges, Following, not_compared, require_same_times, unwrapped
from rqsched.importers.rq_jobs import Call, call_in, described, entry_of, lost_timeout, pickles_in, read_field
from rqsched.importers.source import Reading, SourceEntry, derived_id, move_scored, named_id, not_before
from rqsched.importers.unpickle import NotReadableError, unpickle
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.results import number_of
from rqsched.kernel.transport import redis_keys
from rqsched.kernel.transport.client import connect
from rqsched.when.members import Cron

KIND = "rq-scheduler"
SCHEDULED = "rq:scheduler:scheduled_jobs"
"""The sorted set of rq-scheduler."""
LOCK = "rq:scheduler_lock"
"""The lock that rqscheduler holds while it enqueues."""
_INSTANCES = "rq:scheduler_instance:*"
_LOCK_SECONDS, _WAIT_SECONDS, _LOOK_SECONDS = 10, 15, 0.1
_OWN_META = frozenset({"interval", "repeat", "cron_string", "use_local_timezone"})
_LOST_FIELDS = {
    "ttl": "Its ttl is lost: runs wait in their queue without a limit.",
    "failure_ttl": "Its failure_ttl is lost: RQSCHED_RETENTION sets how long runs are kept.",
    "dependency_ids": "Its dependency on other jobs is lost; rq-scheduler ignores it too.",
    "success_callback_name": "Its on_success callback is lost: see on_recovery, or call it in the function.",
    "failure_callback_name": "Its on_failure callback is lost: see the option on_failure.",
    "stopped_callback_name": "Its on_stopped callback is lost.",
    "webhooks": "Its webhooks are lost: see the option notifications.",
    "group_id": "Its group is lost.",
}
"""Fields of a job's hash that a schedule cannot have, each with a sentence for the report."""
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]) end"


def open_source(address: str, reading: Reading) -> RqScheduler:
    """Open the Redis of rq-scheduler by its URL; raises ConfigError if the URL is not valid."""
    return RqScheduler(connect(address), reading)


class _Job(NamedTuple):
    """A job of rq-scheduler's set, or of the set of disabled jobs."""

    job_id: str
    next_at: datetime | None
    """When it is enqueued next; None if its score is not an instant."""
    enabled: bool

    @property
    def state(self) -> dict[str, Any]:
        """The fields of a SourceEntry that do not depend on the job's hash."""
        return {"enabled": self.enabled, "next_at": self.next_at, "is_taken": not self.enabled}


class RqScheduler:
    """The jobs of rq-scheduler in one Redis."""

    kind = KIND
    cannot_disable = None

    def __init__(self, redis: Redis, reading: Reading, clock: Clock | None = None) -> None:
        self._redis = redis
        self._reading = reading
        self._clock = clock or SystemClock()
        self._backup = redis_keys.disabled_entries(KIND)
        self.notes: list[str] = []
        """The notes that hold for each of its entries."""

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def entries(self) -> list[SourceEntry]:
        """Read the jobs of rq-scheduler's set, and the jobs that an import has moved out of it.

        Raises InvalidInputError if jobs are pickles and the source is not trusted.
        """
        jobs = {job.job_id: job for enabled in (False, True) for job in self._jobs(enabled)}
        hashes = self._hashes(list(jobs))
        pickles = (data for fields in hashes.values() for data in pickles_in(fields))
        unpickled = unpickle(pickles, is_trusted=self._reading.is_trusted)
        found = [self._entry(job, hashes.get(job.job_id, {}), unpickled) for job in jobs.values()]
        self.notes = [*self._notes(found)]
        return found

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        """Move jobs from rq-scheduler's set to the import's set in one step, while holding the lock of rqscheduler.

        If rqscheduler does not release the lock, raises ConflictError and moves nothing.
        """
        if not entries:
            return "There was nothing to disable."
        token = uuid4().hex
        self._take_lock(token)
        try:
            ids = [one.source_id for one in entries]
            moved = move_scored(self._redis, SCHEDULED, self._backup, ids, (LOCK, token))
        finally:
            self._redis.eval(_RELEASE, 1, LOCK, token)
        if moved < 0:
            raise ConflictError(
                f"the lock {LOCK} expired before the jobs were moved; nothing was moved, run this again."
            )
        back = f"ZUNIONSTORE {SCHEDULED} 2 {SCHEDULED} {self._backup}"
        return f"Moved {number_of(moved, 'job')} from {SCHEDULED} to {self._backup}; {back} puts them back."

    def _take_lock(self, token: str) -> None:
        until = time.monotonic() + _WAIT_SECONDS
        while not self._redis.set(LOCK, token, nx=True, ex=_LOCK_SECONDS):
            if self._redis.get(LOCK) == token.encode():  # the lock was set, but the answer was lost
                return
            if time.monotonic() > until:
                raise ConflictError(
                    f"rqscheduler has held its lock ({LOCK}) for more than {_WAIT_SECONDS} s: it is enqueuing jobs, or "
                    "it died while it did. Stop rqscheduler, or wait until the lock expires, and run this again."
                )
            time.sleep(_LOOK_SECONDS)

    def _jobs(self, enabled: bool) -> Iterator[_Job]:
        key = SCHEDULED if enabled else self._backup
        found = cast("list[tuple[bytes, float]]", self._redis.zrange(key, 0, -1, withscores=True))
        for job_id, score in found:
            yield _Job(job_id.decode(errors="replace"), _instant(score), enabled)

    def _hashes(self, job_ids: Sequence[str]) -> dict[str, dict[str, bytes]]:
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hgetall(f"rq:job:{job_id}")
            found = pipe.execute(raise_on_error=False)
        return {
            job_id: {name.decode(errors="replace"): value for name, value in fields.items()}
            for job_id, fields in zip(job_ids, found, strict=True)
            if isinstance(fields, dict)
        }

    def _entry(self, job: _Job, fields: Mapping[str, bytes], unpickled: Mapping[bytes, Any]) -> SourceEntry:
        def refused(reason: str) -> SourceEntry:
            return SourceEntry(job.job_id, None, (reason,), **job.state)

        if "data" not in fields:
            return refused("Its job is not in Redis any more; rq-scheduler will drop it too.")
        try:
            return self._read(job, fields, unpickled)
        except NotReadableError as error:
            return refused(f"It is not readable: {error}.")
        except (ValueError, TypeError, OverflowError) as error:  # an InvalidInputError, or a value that is no number
            return refused(f"It cannot become a schedule: {error}.")

    def _read(self, job: _Job, fields: Mapping[str, bytes], unpickled: Mapping[bytes, Any]) -> SourceEntry:
        call = call_in(fields, unpickled)
        meta = read_field(fields, "meta", unpickled) if fields.get("meta") else {}
        if not isinstance(meta, dict):
            raise NotReadableError("its meta is not a dict")
        if job.next_at is None:
            raise NotReadableError("its time is outside the supported years")
        timeout = int(fields["timeout"]) if fields.get("timeout") else None
        when, does, changed = self._when(meta, job.next_at)
        entry = {
            "schedule_id": _schedule_id(job.job_id, call, does),
            **entry_of(call, fields.get("origin", b"default").decode(), timeout),
            **described(fields.get("description", b"").decode(errors="replace"), call),
            **when,
        }
        if fields.get("enqueue_at_front") in {b"1", b"True"}:
            entry["priority"] = 1
        lost = [*call.lost, *changed, *lost_timeout(timeout), *_lost(fields, meta)]
        return SourceEntry(job.job_id, entry, tuple(lost), **job.state)

    def _when(self, meta: Mapping[str, Any], next_at: datetime) -> tuple[dict[str, Any], object, list[str]]:
        """Return the timing of a job as keys of an entry, the part of the timing that never changes, and the losses."""
        now = self._clock.now()
        repeat, interval, cron = meta.get("repeat"), meta.get("interval"), meta.get("cron_string")
        bound = {} if repeat is None else {"max_runs": max(int(repeat), 1)}
        if interval:
            every = int(interval)
            lost = ["Its interval counts from its next time. rq-scheduler counts from each fire, so its times drift."]
            return {"interval": every, "anchor": iso_utc(next_at), **not_before(next_at, now), **bound}, every, lost
        if cron:
            expression = unwrapped(_cron(str(cron)))
            if (library := crontab_expressions()) is not None:
                require_same_times(expression, str(cron), library, now, KIND)
            zone = self._reading.timezone or "UTC"
            changes = ClockChanges.of(expression, zone, next_at)
            when = {"cron": expression, "timezone": zone, **changes.keys(dst_gap="shift")}
            ours = Cron(expression, timezone=zone, seconds="first").next_after(now)
            if ours is not None and ours < next_at:  # the application set a later next time
                when |= not_before(next_at, now)
            if len(expression.split()) == 6:
                when["cron_seconds"] = "first"
            lost = [*_other_times(expression, zone, next_at), *changes.told_of(KIND)]
            return {**when, **bound}, ["cron", cron], lost
        return {"once": iso_utc(next_at)}, ["once", iso_utc(next_at)], []

    def _notes(self, found: Sequence[SourceEntry]) -> Iterator[str]:
        names = [key.decode(errors="replace") for key in self._redis.scan_iter(_INSTANCES, count=1000)]
        alive = [name for name in names if not self._redis.hexists(name, "death")]
        if alive:
            yield (
                f"{len(alive)} rqscheduler processes run. They may continue, and fire the jobs left in {SCHEDULED} "
                "and jobs that your application schedules with rq_scheduler.Scheduler from now on."
            )
        if taken := sum(one.is_taken for one in found):
            yield f"{taken} were disabled by an import: they are in {self._backup}."
        has_cron = any(one.entry and "cron" in one.entry for one in found)
        if has_cron and crontab_expressions() is None:
            yield not_compared("The package crontab", KIND)
        if has_cron and self._reading.timezone is None:
            yield (
                "rq-scheduler reads cron expressions in the zone of its host, with or without use_local_timezone. They "
                "are imported in UTC, unless --timezone names that zone."
            )


def _instant(score: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(score, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _schedule_id(job_id: str, call: Call, does: object) -> str:
    """Return the schedule id of a job. It is made from the job's id; if this is random, from the call and timing.

    If the application restarts, the same job may get another random id.
    """
    return (
        derived_id(KIND, call.workflow, call.args, call.kwargs, does) if _is_drawn(job_id) else named_id(KIND, job_id)
    )


def _is_drawn(job_id: str) -> bool:
    try:
        return UUID(job_id).version == 4
    except ValueError:
        return False


@cache
def crontab_expressions() -> Callable[[str], Following] | None:
    """Return a function that reads expressions as rq-scheduler does; None if the package crontab is not installed."""
    try:
        parse = import_module("crontab").CronTab
    except (ImportError, AttributeError):
        return None
    # The package python-crontab has a module and a class of the same names, but its class reads the host's crontab.
    return (lambda written: partial(_next_of, parse(written))) if hasattr(parse, "next") else None


def _next_of(read: Any, at: datetime) -> datetime | None:
    return cast("datetime | None", read.next(now=at, return_datetime=True, default_utc=True))


def _cron(written: str) -> str:
    """Translate an expression of the package crontab; raises InvalidCronError if no expression here means the same."""
    fields = written.split()
    if len(fields) in {6, 7} and fields.pop() != "*":
        raise InvalidCronError("cron", f"{written!r} names a year; use start_at and end_at")
    if len(fields) >= 5:
        day, weekday = fields[-3], fields[-1]
        if not {day, weekday} & {"*", "?"}:
            raise InvalidCronError(
                "cron",
                f"{written!r} fires on days that match both day fields, but in rqsched on days that match either; "
                "leave one field *, and let the function return on other days",
            )
    return " ".join(fields)


def _other_times(expression: str, zone: str, next_at: datetime) -> Iterator[str]:
    """Yield a sentence if the next time at the source is not a time of the expression."""
    ours = Cron(expression, timezone=zone, seconds="first").next_after(next_at - timedelta(microseconds=1))
    if ours != next_at:
        told = "never" if ours is None else iso_utc(ours)
        yield (
            f"rq-scheduler fires it next at {iso_utc(next_at)}, but the expression gives {told} in {zone}: name the "
            "zone of rqscheduler's host with --timezone."
        )


def _lost(fields: Mapping[str, bytes], meta: Mapping[str, Any]) -> Iterator[str]:
    for name, sentence in _LOST_FIELDS.items():
        if fields.get(name) not in {None, b"", b"[]"}:
            yield sentence
    if fields.get("result_ttl") not in {None, b"", b"-1"}:
        yield "Its result_ttl is lost: RQSCHED_RETENTION sets how long runs and their results are kept."
    if others := sorted(str(name) for name in meta if name not in _OWN_META):
        yield f"Its meta is lost ({', '.join(others)}): pass it as arguments."
