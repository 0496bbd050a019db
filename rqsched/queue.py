"""The transport: how links and run jobs lie in Redis, as RQ itself reads them. It knows nothing of SQL.

Everything here may be repeated, lost or done twice without harm; SQL decides. A job's hash and its place (list or
scheduled set) are written by one script, so no id is ever seen without its hash.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar, cast

import tenacity
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import BusyLoadingError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq import Queue, Retry
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job

from .config import Settings
from .ids import LinkId, RetryLinkId, RunJobId
from .scripts import ARM, IS_LIVE, LEASE
from .state import Change, Run, RunStatus, Schedule

_log = logging.getLogger(__name__)
T = TypeVar("T")

FIRE = "rqsched.jobs.fire"
EXECUTE = "rqsched.jobs.execute"
"""The functions that RQ calls; their paths are stored in Redis, so they are API."""
LINK_TIMEOUT = 600
STARTED_GRACE = timedelta(seconds=30)
"""How long a job that RQ has marked started counts as alive (design §3)."""
_LINK_RETRY = Retry(max=60, interval=[1, 2, 5, 10, 30])
_TRANSIENT = (RedisConnectionError, RedisTimeoutError, BusyLoadingError, ReadOnlyError)
_WAKE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Arm:
    """A link to arm, and when it is due."""

    id: LinkId | RetryLinkId
    due_at: datetime


def is_transient(error: BaseException) -> bool:
    """Tell whether Redis may answer the next time."""
    return isinstance(error, _TRANSIENT)


def rq_time(instant: datetime) -> str:
    """Render an instant as RQ does; such texts sort."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Transport:
    """One control queue in one Redis, and the queues of runs there and on named connections."""

    def __init__(self, settings: Settings, redis: Redis, connections: Mapping[str, Redis] | None = None) -> None:
        self.settings = settings
        self.redis = redis
        self.connections = dict(connections or {})
        self.control = Queue(
            settings.control_queue, connection=redis, serializer=settings.serializer_for(settings.control_queue)
        )
        self._templates: dict[tuple[str, str], dict[str, Any]] = {}

    # ---- names

    @cached_property
    def scheduled_key(self) -> str:
        """The scheduled set of the control queue, where future links wait."""
        return str(self.control.scheduled_job_registry.key)

    @property
    def list_key(self) -> str:
        """The list of the control queue, where overdue links wait."""
        return str(self.control.key)

    @property
    def wake_key(self) -> str:
        """The list dispatchers block on."""
        return f"rqsched:wake:{self.control.name}"

    @property
    def epoch_key(self) -> str:
        """The key that names the database this control queue belongs to; missing after a flush."""
        return f"rqsched:epoch:{self.control.name}"

    @property
    def turn_key(self) -> str:
        """The key that spreads periodic reconcile passes over workers."""
        return f"rqsched:reconcile:{self.control.name}"

    # ---- following SQL

    def follow(self, changes: Sequence[Change], *, now: datetime) -> None:
        """Make Redis follow committed Changes: one pipeline for links, one a connection for run jobs. Idempotent.

        Raises redis errors after short retries; what SQL holds is durable and reconcile catches up.
        """
        self.arm([arm for change in changes for arm in arms_of(change)], now=now)
        self.deliver([run for change in changes for run in deliveries_of(change)], now=now)
        for before, after in (pair for change in changes for pair in change.changed_runs):
            self._withdraw(before, after)

    def arm(self, arms: Sequence[Arm], *, now: datetime) -> int:
        """Arm links that have no live job; returns how many were written."""
        if not arms:
            return 0

        def write(pipe: Pipeline) -> None:
            for arm in arms:
                self._arm_one(pipe, arm, now)

        return sum(int(result) for result in self._pipeline(self.redis, write))

    def _arm_one(self, pipe: Pipeline, arm: Arm, now: datetime) -> None:
        job_id = str(arm.id)
        fields = self._fields(self.control, FIRE, job_id, timeout=LINK_TIMEOUT, now=now)
        score = arm.due_at.timestamp() if arm.due_at > now else ""
        self._arm_script(
            keys=self._keys(self.control, job_id), args=self._args(job_id, score, now, fields), client=pipe
        )

    def deliver(self, runs: Iterable[Run], *, now: datetime) -> int:
        """Enqueue the jobs of pending runs that have no live one; returns how many were written."""
        by_connection: dict[str | None, list[Run]] = {}
        for run in runs:
            by_connection.setdefault(run.connection, []).append(run)
        return sum(self._deliver(name, some, now) for name, some in by_connection.items())

    def _deliver(self, name: str | None, runs: Sequence[Run], now: datetime) -> int:
        redis = self._connection(name)
        if redis is None:
            _log.error("no connection %r is configured", name, extra={"action": "connection_unknown"})
            return 0

        def write(pipe: Pipeline) -> None:
            for run in runs:
                self._deliver_one(pipe, run, self._queue(redis, run), now)

        return sum(int(result) for result in self._pipeline(redis, write))

    def _deliver_one(self, pipe: Pipeline, run: Run, queue: Queue, now: datetime) -> None:
        job_id = str(job_id_of(run))
        fields = self._fields(queue, EXECUTE, job_id, timeout=self._job_timeout(run), now=now)
        front = run.priority > 0
        args = self._args(job_id, "", now, fields, front=front, exact=True)
        self._arm_script(keys=self._keys(queue, job_id), args=args, client=pipe)

    def _job_timeout(self, run: Run) -> int:
        """Give RQ's bound of the whole job: the attempt, and then the time to record how it ended."""
        timeout = run.timeout or int(self.settings.run_timeout.total_seconds())
        return timeout + int(self.settings.completion_outage.total_seconds())

    def live_deliveries(self, runs: Sequence[Run], *, now: datetime) -> list[bool]:
        """Tell for each pending run whether its current delivery is live; a missing connection counts as live."""
        found: dict[str, bool] = {}
        for name in {run.connection for run in runs}:
            redis, some = self._connection(name), [run for run in runs if run.connection == name]
            if redis is None:
                found |= {run.uid: True for run in some}
                continue
            found |= self._live(redis, some, now)
        return [found[run.uid] for run in runs]

    def _live(self, redis: Redis, runs: Sequence[Run], now: datetime) -> dict[str, bool]:
        def ask(pipe: Pipeline) -> None:
            for run in runs:
                job_id = str(job_id_of(run))
                args = self._args(job_id, "", now, {}, exact=True)
                self._live_script(keys=self._keys(self._queue(redis, run), job_id), args=args, client=pipe)

        return {run.uid: bool(answer) for run, answer in zip(runs, self._pipeline(redis, ask), strict=True)}

    def _withdraw(self, before: Run, after: Run) -> None:
        """Take back the job of a run that ended from outside: out of its queue, or its horse is told to die."""
        if after.status not in {RunStatus.CANCELLED, RunStatus.TERMINATED} or before.executor != "rq":
            return
        redis = self._connection(before.connection)
        if redis is None:
            return
        try:
            if before.status is RunStatus.PENDING:
                self._cancel(redis, before)
            elif before.status is RunStatus.RUNNING and after.status is RunStatus.TERMINATED:
                send_stop_job_command(redis, str(job_id_of(before)), serializer=self._queue(redis, before).serializer)
        except (NoSuchJobError, InvalidJobOperation, RedisError) as error:
            # The row has ended already: a job that starts or returns is fenced out.
            _log.warning("job of run %s not withdrawn: %s", before.uid, error, extra={"action": "withdraw_failed"})

    def _cancel(self, redis: Redis, run: Run) -> None:
        queue, job_id = self._queue(redis, run), str(job_id_of(run))
        with redis.pipeline() as pipe:
            pipe.lrem(queue.key, 1, job_id)
            pipe.delete(Job.key_for(job_id))
            pipe.execute()

    # ---- the dispatcher's side

    def lease(self, *, now: datetime, lease: timedelta, limit: int) -> list[str]:
        """Take due links and the list's entries; they return by themselves when the lease is over."""
        until = (now + lease).timestamp()
        keys = [self.scheduled_key, self.list_key]
        taken = self._patiently(lambda: self._lease_script(keys=keys, args=[now.timestamp(), until, limit]))
        return [_text(entry) for entry in taken]

    def drop(self, ids: Iterable[str]) -> None:
        """Remove links that have done their work."""

        def remove(pipe: Pipeline) -> None:
            for job_id in ids:
                pipe.zrem(self.scheduled_key, job_id)
                pipe.delete(Job.key_for(job_id))

        self._pipeline(self.redis, remove)

    def put_back(self, due: Mapping[str, datetime]) -> None:
        """Let leased links become due at another time."""
        if due:
            scores = {job_id: instant.timestamp() for job_id, instant in due.items()}
            self._patiently(lambda: self.redis.zadd(self.scheduled_key, scores, xx=True))

    def next_due(self) -> float | None:
        """Read the score of the earliest link, in Unix seconds; None when there is none."""
        head = self._patiently(lambda: self.redis.zrange(self.scheduled_key, 0, 0, withscores=True))
        return float(cast(Any, head)[0][1]) if head else None

    def wait_for_wake(self, seconds: float) -> None:
        """Block until a link earlier than the earliest is armed, at most so long."""
        self.redis.blpop([self.wake_key], timeout=max(seconds, 0.001))

    def epoch(self) -> str | None:
        """Read which database this control queue belongs to; None after a flush."""
        owner = self._patiently(lambda: self.redis.get(self.epoch_key))
        return None if owner is None else _text(owner)

    # ---- building jobs

    @cached_property
    def _arm_script(self) -> Any:
        return self.redis.register_script(ARM)

    @cached_property
    def _live_script(self) -> Any:
        return self.redis.register_script(IS_LIVE)

    @cached_property
    def _lease_script(self) -> Any:
        return self.redis.register_script(LEASE)

    def _keys(self, queue: Queue, job_id: str) -> list[str]:
        wake = self.wake_key if queue.name == self.control.name else ""
        return [Job.key_for(job_id), queue.scheduled_job_registry.key, queue.key, Queue.redis_queues_keys, wake]

    @staticmethod
    def _args(
        job_id: str,
        score: float | str,
        now: datetime,
        fields: Mapping[str, Any],
        *,
        front: bool = False,
        exact: bool = False,
    ) -> list[Any]:
        flat = [part for pair in fields.items() for part in pair]
        started_after = rq_time(now - STARTED_GRACE)
        prefix = Job.redis_job_namespace_prefix
        return [job_id, score, rq_time(now), started_after, prefix, int(front), int(exact), _WAKE_SECONDS, *flat]

    def _fields(self, queue: Queue, func: str, job_id: str, *, timeout: int, now: datetime) -> dict[str, Any]:
        """Build the hash that RQ would write for this job, from one template per queue and function."""
        template = self._templates.get((queue.name, func))
        if template is None:
            template = self._templates[queue.name, func] = self._template(queue, func)
        data = queue.serializer.dumps((func, None, [job_id], {}))
        return template | {
            "data": zlib.compress(data, 1),
            "created_at": rq_time(now),
            "description": f"{func}({job_id!r})",
            "timeout": timeout,
        }

    def _template(self, queue: Queue, func: str) -> dict[str, Any]:
        is_link = func == FIRE
        job = queue.create_job(
            func,
            args=(),
            timeout=LINK_TIMEOUT,
            result_ttl=0 if is_link else int(self.settings.run_ttl.total_seconds()),
            failure_ttl=int(self.settings.run_ttl.total_seconds()),
            retry=_LINK_RETRY if is_link else None,
        )
        fields = job.to_dict(include_meta=False, include_result=False)
        return {name: value for name, value in fields.items() if value != "" and name not in {"status", "enqueued_at"}}

    def _queue(self, redis: Redis, run: Run) -> Queue:
        name = run.queue or self.settings.default_queue
        return Queue(name, connection=redis, serializer=self.settings.serializer_for(name))

    def _connection(self, name: str | None) -> Redis | None:
        return self.redis if name is None else self.connections.get(name)

    # ---- talking

    def _pipeline(self, redis: Redis, fill: Callable[[Pipeline], None]) -> list[Any]:
        def send() -> list[Any]:
            with redis.pipeline(transaction=False) as pipe:
                fill(pipe)
                return list(pipe.execute())

        return self._patiently(send)

    @staticmethod
    def _patiently(call: Callable[[], T]) -> T:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(3),
            wait=tenacity.wait_exponential_jitter(initial=0.05, max=0.5, jitter=0.05),
            retry=tenacity.retry_if_exception(is_transient),
            reraise=True,
        )
        return retrying(call)


def arms_of(change: Change) -> list[Arm]:
    """Name the links a committed Change wants armed."""
    arms = link_of(change.after)
    touched = [*change.new_runs, *(run for _, run in change.changed_runs)]
    return arms + [retry_of(run) for run in touched if run.status is RunStatus.RETRYING]


def link_of(schedule: Schedule) -> list[Arm]:
    """Name the main link of a schedule that has a next time."""
    if not schedule.is_active or schedule.due_at is None:
        return []
    return [Arm(LinkId(schedule.uid, schedule.n), schedule.due_at)]


def retry_of(run: Run) -> Arm:
    """Name the retry link of a retrying run."""
    if run.retry_at is None:
        raise ValueError(f"run {run.uid} is not retrying")
    return Arm(RetryLinkId(run.schedule_uid, run.number, run.attempt), run.retry_at)


def deliveries_of(change: Change) -> list[Run]:
    """Name the runs a committed Change wants on their queues."""
    touched = [*change.new_runs, *(run for _, run in change.changed_runs)]
    return [run for run in touched if run.status is RunStatus.PENDING and run.executor == "rq"]


def job_id_of(run: Run) -> RunJobId:
    """Name the RQ job of a run's current delivery."""
    return RunJobId(run.uid, run.attempt, run.delivery)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
