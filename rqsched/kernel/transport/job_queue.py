"""One RQ queue in one Redis. It takes many jobs in one call, in the format that RQ itself reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple

from redis import Redis
from rq import Queue, Retry
from rq.job import Job

from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.transport.client import for_rq
from rqsched.kernel.transport.job_label import DATABASE, SERVER, JobLabel, call_of, function_of
from rqsched.kernel.transport.lua import ARM, IS_LIVE

STARTED_GRACE = timedelta(seconds=30)
"""How long a job that RQ marked as started counts as live (docs/architecture.md, "Protocol")."""
CHUNK = 100
"""How many jobs one call of a script takes at most, so that it blocks Redis for less than two milliseconds."""
_WAKE_SECONDS = 60
"""Seconds after which a wake expires if no dispatcher took it."""


class JobSpec(NamedTuple):
    """One job to put on a queue."""

    id: str
    """The id of the RQ job. It is deterministic, so that the same job is never there twice."""
    timeout: int
    """How many seconds RQ lets the job run."""
    due_at: datetime | None = None
    """When an RQ scheduler moves the job to the list; None puts the job on the list now."""
    is_front: bool = False
    """Whether the job is pushed in front of the jobs that wait."""
    label: JobLabel | None = None
    """The label in RQ's tools; None to show only the function and the database."""


class JobKind(NamedTuple):
    """The properties that the jobs of one queue share."""

    func: str
    """Dotted path of the function that RQ calls without arguments, because the job's id names the run or the link. A
    job with a label has the path of its workflow instead."""
    result_ttl: int
    """Seconds RQ keeps a job that succeeded."""
    failure_ttl: int
    """Seconds RQ keeps a job that failed."""
    retry: Retry | None = None
    """RQ's own retries of a job that raised; None for no retries."""


class JobQueue:
    """One queue, and the rules that say which of its jobs are live.

    If a job in the scheduled set is late by more than `grace`, the job is not live, because no scheduler moves it. A
    job is also not live if its score in the scheduled set is later than its due time and later than `latest` from now.
    The reason is that no due job is put off for so long. So SQL must have gone back to an older state, and SQL now has
    another time for the job's id. A job that RQ started is live for `started_grace`. With `is_exact` the list is
    searched for a job, which is necessary if jobs are pushed in front.

    `wake_key` names the list that wakes the queue's dispatchers. `owner` returns the id of the database to which the
    jobs belong, or None while the id is not known. The id is written into the meta of the jobs. `server_key` names the
    key with the identity of that database's server. It is empty for a Redis that does not have this key.
    """

    def __init__(
        self,
        redis: Redis,
        name: str,
        serializer: str,
        kind: JobKind,
        *,
        grace: timedelta,
        latest: timedelta,
        started_grace: timedelta = STARTED_GRACE,
        is_exact: bool = False,
        owner: Callable[[], str | None] | None = None,
        server_key: str = "",
        wake_key: str = "",
    ) -> None:
        self.redis = redis
        self._grace = grace
        self._latest = latest
        self._started_grace = started_grace
        self.queue = Queue(name, connection=for_rq(redis), serializer=serializer)
        self._serializer: Any = self.queue.serializer
        self.kind = kind
        self._is_exact = is_exact
        self._owner = owner
        self.scheduled_key = str(self.queue.scheduled_job_registry.key)
        """The scheduled set, where future jobs wait."""
        self.list_key = str(self.queue.key)
        """The list, where jobs wait for a worker."""
        # Leave out empty names, because Redis refuses them if its user has rights only to certain keys.
        more = [key for key in (server_key, wake_key) if key]
        self._keys = [self.scheduled_key, self.list_key, Queue.redis_queues_keys, *more]
        self._has_server = bool(server_key)

    def put(self, jobs: Sequence[JobSpec], *, now: datetime, server: str = "") -> int:
        """Write each job, unless a live job has its id; returns how many were written. Idempotent.

        `server` is the identity of this process's database server. Raises ResponseError (`FOREIGN`) if another server
        is recorded.
        """
        if not jobs:
            return 0
        columns = self._columns(jobs, server)
        alike = {name: values[0] for name, values in columns.items() if values.count(values[0]) == len(jobs)}
        shared = [*self._shared, *chain.from_iterable(alike.items())]
        own = {name: values for name, values in columns.items() if name not in alike}
        head = [*self._head(now), _WAKE_SECONDS, server if self._has_server else "", len(shared), *shared]
        rows = [*zip([job.id for job in jobs], [_place(job, now) for job in jobs], *own.values(), strict=True)]
        calls = [[*head, len(own), *own, *chain.from_iterable(some)] for some in chunks(rows, CHUNK)]
        if len(calls) == 1:  # a pipeline would ask first whether Redis knows the script
            return sum(self._arm(keys=self._keys, args=calls[0]))
        with self.redis.pipeline(transaction=False) as pipe:
            for arguments in calls:
                self._arm(keys=self._keys, args=arguments, client=pipe)
            return sum(sum(answers) for answers in pipe.execute())

    def live(self, jobs: Sequence[tuple[str, datetime | None]], *, now: datetime) -> list[bool]:
        """Return for each job whether it is live. A job is given by its id and its due time; None means now."""
        with self.redis.pipeline(transaction=False) as pipe:
            for chunk in chunks(jobs, CHUNK):
                flat = [text for name, due_at in chunk for text in (name, due_at.timestamp() if due_at else "")]
                self._is_live(keys=self._keys, args=[*self._head(now), *flat], client=pipe)
            return [bool(answer) for answers in pipe.execute() for answer in answers]

    def remove(self, job_id: str) -> None:
        """Remove a waiting job from the list, and its hash."""
        with self.redis.pipeline() as pipe:
            pipe.lrem(self.list_key, 1, job_id)
            pipe.delete(Job.key_for(job_id))
            pipe.execute()

    def _head(self, now: datetime) -> list[Any]:
        bounds = [(now - self._grace).timestamp(), (now + self._latest).timestamp()]
        started_after = rq_time(now - self._started_grace)
        return [Job.redis_job_namespace_prefix, rq_time(now), started_after, int(self._is_exact), *bounds]

    def _columns(self, jobs: Sequence[JobSpec], server: str) -> dict[str, list[Any]]:
        """Return by name the fields of the jobs' hashes that may differ in jobs of this kind, the longest first.

        The meta names the job's database and its server, so that a worker with another database can refuse the job.
        Links have no meta, to save memory.
        """
        owner = None if self._owner is None else self._owner()
        named = {} if owner is None else {DATABASE: owner, SERVER: server} if server else {DATABASE: owner}
        text = self._serializer.dumps(named)  # once for all jobs without a label
        labels = [job.label for job in jobs]
        metas = [named if label is None else label.meta(owner, server or None) for label in labels]
        functions = [self.kind.func if label is None else function_of(label.workflow) for label in labels]
        columns: dict[str, list[Any]] = {
            "data": [call_of(function, self._serializer) for function in functions],
            "description": [self.kind.func if label is None else label.description for label in labels],
            "meta": [text if meta is named else self._serializer.dumps(meta) for meta in metas] if any(metas) else [],
            "timeout": [job.timeout for job in jobs],
        }
        return {name: values for name, values in columns.items() if values}

    @cached_property
    def _arm(self) -> Any:
        return self.redis.register_script(ARM)

    @cached_property
    def _is_live(self) -> Any:
        return self.redis.register_script(IS_LIVE)

    @cached_property
    def _shared(self) -> list[Any]:
        """The names and values that RQ itself writes for every job of this kind.

        No value is longer than 64 bytes, so that Redis stores the hashes of links in half the memory.
        """
        job = self.queue.create_job(
            self.kind.func,
            timeout=1,
            description=self.kind.func,
            result_ttl=self.kind.result_ttl,
            failure_ttl=self.kind.failure_ttl,
            retry=self.kind.retry,
        )
        fields = job.to_dict(include_meta=False, include_result=False)
        return [text for name, value in fields.items() if value != "" and name not in _OWN for text in (name, value)]


_OWN = frozenset({"timeout", "created_at", "status", "enqueued_at", "data", "description"})
"""Fields that may differ from job to job. The script writes them, or `_columns` returns them."""


def _place(job: JobSpec, now: datetime) -> str:
    """Return the place of a job in the form that ARM expects."""
    if job.due_at is not None and job.due_at > now:
        return repr(job.due_at.timestamp())
    return "front" if job.is_front else "back"


@lru_cache(maxsize=64)
def rq_time(instant: datetime) -> str:
    """Render an instant as RQ does; these texts sort by time."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
