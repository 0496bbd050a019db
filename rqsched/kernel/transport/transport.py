"""The transport: stores links (RQ jobs that fire schedules) and run jobs in Redis, in RQ's own format. It knows no SQL.

To arm a link is to write its job to Redis. Every write here may be lost or repeated without harm, because SQL decides
what is executed. One script writes a job's hash together with its place (list or scheduled set), so no reader finds an
id without its hash.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import tenacity
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq import Queue, Retry
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.serializers import resolve_serializer

from rqsched.config import Settings, serializer_path
from rqsched.errors import ConfigError
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.decide.ids import LinkId, RetryLinkId, RunJobId
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule
from rqsched.kernel.patience import call_patiently
from rqsched.kernel.transport import redis_keys
from rqsched.kernel.transport.breaker import RedisAwayError
from rqsched.kernel.transport.client import require_no_cluster
from rqsched.kernel.transport.job_label import JobLabel
from rqsched.kernel.transport.job_queue import CHUNK, JobKind, JobQueue, JobSpec
from rqsched.kernel.transport.lua import (
    CLAIM_IDENTITY,
    DROP_FREEZE,
    FOREIGN,
    LEASE,
    NEXT_LOOK,
    PUSH_MARK,
    RECORD_DATABASE_ID,
    SET_FREEZE,
    TRY_WRITE,
)
from rqsched.kernel.transport.redelivery import mark_failed
from rqsched.kernel.transport.refusal import is_transient, word_of

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

FIRE = "rqsched.jobs.fire"
EXECUTE = "rqsched.jobs.execute"
"""The functions that RQ calls; their paths are stored in Redis, so they are API."""
LINK_TIMEOUT = 600
"""How many seconds RQ lets a link run."""
REDIS_TIMER = 0.1
"""Redis, at its default `hz`, checks once in this many seconds whether timeouts of blocked clients have passed."""
_WAKE_SLICE = 0.01
"""How many seconds pass between two checks for a wake shortly before a link is due."""
FIRST_LOOK_LIFE = 1_000
"""How many milliseconds a dispatcher stays the first dispatcher after it asked. An idle dispatcher asks five times in
this time."""
FLUSH_MARKER_LIFE = 60 * 60 * 1000
"""How many milliseconds a full pass may take. After this time its flush marker expires, even if the pass was killed."""
_PROBE_LIFE = 60_000
"""Milliseconds after which the key of `try_write` expires."""
MARKS_KEPT = 1_001
"""How many marks Redis keeps: the newest, and at least four hours of earlier marks."""
_MARKS_LIFE = 90 * 24 * 60 * 60
"""If nobody uses a database any more, its marks expire after this many seconds."""
_ATTEMPTS = 3
_PATIENCE_SECONDS = 5
"""Seconds after which a call is not repeated any more. The client itself repeats a call that timed out."""
LINK_STARTED_GRACE = timedelta(seconds=10)
"""How long a link that RQ started counts as live. A link takes milliseconds. If a link takes longer than this, the same
link may be delivered again meanwhile, and one of the two deliveries is stale
(docs/proofs/architecture-details.md, "Live links")."""
LONGEST_RETRY = timedelta(seconds=30)
"""The longest time that RQ waits before it repeats a link that raised. Apart from such a wait, only a lease puts off a
link."""
_LINK_RETRY = Retry(max=60, interval=[1, 2, 5, 10, int(LONGEST_RETRY.total_seconds())])


Names = Mapping[str, tuple[str, str]]
"""Namespace and id of schedules by their uid."""
NO_NAMES: Names = MappingProxyType({})


class Arm(NamedTuple):
    """A link to arm, and when it is due."""

    id: LinkId | RetryLinkId
    """The main link of a schedule, or the retry link of a run."""
    due_at: datetime
    """When the link fires. A link whose time is past is put on the list at once."""


class Recorded(NamedTuple):
    """The owner of a control queue as Redis has it."""

    database_id: str | None
    """The id of the database; None after a flush."""
    server: str | None
    """The identity of the database's server; None after a flush, and for SQLite."""


class Standing(NamedTuple):
    """The result of comparing a server with the recorded one (`CLAIM_IDENTITY`)."""

    outcome: str
    """The outcome, such as 'same' or 'older'."""
    recorded: str
    """The identity that is recorded now."""
    before: str = ""
    """The identity that was recorded before; empty for none."""


class NextLook(NamedTuple):
    """When a dispatcher should look for due links again."""

    due_at: float | None
    """When the earliest link is due, in Unix seconds; None when there is none."""
    is_first: bool
    """Whether this dispatcher looks first. The others look soon after, so that they do not all compete for one link."""


class Transport:
    """One control queue in one Redis, and the queues of runs there and on named connections."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        connections: Mapping[str, Redis] | None = None,
    ) -> None:
        """Open the queues; raises ConfigError for a serializer that cannot be used."""
        for name in {settings.serializer, *settings.queue_serializers.values()}:
            _require_serializer(name)
        self.settings = settings
        self.owner: Callable[[], str | None] | None = None
        """Returns the id of the database whose runs and targets are enqueued; None while it is not known."""
        self.server = ""
        """The identity of this process's database server; empty while it is not known, and on SQLite."""
        self.claim: Callable[[], object] | None = None
        """Called if another server is recorded. It raises WrongDatabaseError, or changes `server` or the record."""
        self.on_refused: Callable[[str, RedisError, str], object] = _do_nothing
        """Called after a refusal that does not pass by itself. The arguments are the name of the refused queue or
        process, the error, and a text about the error's keys."""
        self.on_accepted: Callable[[str], object] = _do_nothing
        """While `refused` is not empty, called with the name of each queue or process that Redis accepts."""
        self.refused: Collection[str] = ()
        """The queues and processes that Redis refuses at present."""
        self.redis = redis
        self.connections = dict(connections or {})
        ttl = int(settings.rq_failure_ttl.total_seconds())
        name = settings.control_queue
        self.wake_key = redis_keys.wake(name)
        """The list on which idle dispatchers wait (BLPOP)."""
        self.database_id_key = redis_keys.database_id(name)
        """The key that names the database this control queue belongs to; missing after a flush."""
        self.server_key = redis_keys.identity(name)
        """The key that holds the identity of that database's server."""
        self.first_look_key = redis_keys.first_look(name)
        """The key that names the dispatcher that looks first when something is due."""
        self.freeze_key = redis_keys.freeze(name)
        """The key of the hash of freezes. While it has the field `*`, everything is frozen."""
        self.interval_key = redis_keys.reconcile_interval(name)
        """The key that exists from the beginning of a reconcile pass until the next pass is due."""
        kind = JobKind(FIRE, 0, ttl, _LINK_RETRY)
        serializer = settings.serializer_for(name)
        self._latest = settings.repair_grace + max(LONGEST_RETRY, settings.link_lease)
        self._links = JobQueue(
            redis, name, serializer, kind,
            grace=settings.repair_grace, latest=self._latest, started_grace=LINK_STARTED_GRACE,
            server_key=self.server_key, wake_key=self.wake_key,
        )  # fmt: skip
        self.scheduled_key = self._links.scheduled_key
        """The scheduled set of the control queue, where future links wait."""
        self.list_key = self._links.list_key
        """The list of the control queue, where late links wait."""
        self._run_kind = JobKind(EXECUTE, int(settings.rq_result_ttl.total_seconds()), ttl)
        self._target_kind = JobKind(EXECUTE, 0, ttl)  # SQL records how each target ended, and there are many targets
        self.is_all_frozen = False
        """Whether everything was frozen at the last call of `lease`."""
        self._is_alone = False
        self._job_queues: dict[tuple[str | None, str, JobKind], JobQueue] = {}
        self._lease_script: Any = redis.register_script(LEASE)
        self._set_freeze_script: Any = redis.register_script(SET_FREEZE)
        self._drop_freeze_script: Any = redis.register_script(DROP_FREEZE)
        self._next_look_script: Any = redis.register_script(NEXT_LOOK)
        self._record_database_id_script: Any = redis.register_script(RECORD_DATABASE_ID)
        self._claim_identity_script: Any = redis.register_script(CLAIM_IDENTITY)
        self._try_write_script: Any = redis.register_script(TRY_WRITE)
        self._push_mark_script: Any = redis.register_script(PUSH_MARK)

    @property
    def control(self) -> Queue:
        """The control queue as RQ knows it. Code that reads RQ's other keys uses the `connection` of this queue."""
        return self._links.queue

    def follow(self, changes: Sequence[Change], *, now: datetime) -> None:
        """Make Redis follow committed Changes: write the links, then the run jobs of each queue. Idempotent.

        Raises RedisError after short retries. The Changes are committed in SQL, and reconcile repeats this.
        """
        arms, ready = list[Arm](), list[Run]()
        for change in changes:
            before, after = change.before, change.after
            # A link that does not change is armed already. Arm it again if the Change has the same object before and
            # after.
            if before is None or before is after or before.n != after.n:
                arms += link_of(after)
            for run in (*change.new_runs, *(run for _, run in change.changed_runs)):
                if run.status is RunStatus.RETRYING or is_waiting(run, now):
                    arms.append(retry_of(run))
                elif (
                    run.status is RunStatus.PENDING
                    and run.executor == "rq"
                    and (run.limit_group is None or not run.is_in_line)
                ):
                    ready.append(run)
        self.arm(arms, now=now)
        names = {change.after.uid: (change.after.namespace, change.after.schedule_id) for change in changes}
        self.deliver(ready, names, now=now)
        for was, run in (pair for change in changes for pair in change.changed_runs):
            has_job = was.executor == "rq" and not was.is_in_line
            if run.status in {RunStatus.CANCELLED, RunStatus.TERMINATED} and has_job:
                self._withdraw(was, run)

    def arm(self, arms: Sequence[Arm], *, now: datetime) -> int:
        """Arm the links that have no live job; returns how many were written."""
        jobs = [JobSpec(str(arm.id), LINK_TIMEOUT, arm.due_at) for arm in arms]
        if not jobs:
            return 0
        try:
            written = self._patiently(self._links.put, jobs, now=now, server=self.server)
        except ResponseError as error:
            if not str(error).startswith(FOREIGN):
                self._refuse(f"links of {self.name}", error, self._links)
            self._claim_queue(error)
            return self.arm(arms, now=now)
        if self.refused:
            self.on_accepted(f"links of {self.name}")
        return written

    @property
    def name(self) -> str:
        """The name of the control queue for messages."""
        return f"control queue {self.control.name!r}"

    def _refuse(self, what: str, error: RedisError, job_queue: JobQueue) -> None:
        if not is_transient(error):
            self.on_refused(what, error, self.keys_of(error, job_queue))

    def keys_of(self, error: RedisError, job_queue: JobQueue | None = None, *, lists: Sequence[str] = ()) -> str:
        """Return a text, perhaps empty, about the keys that an error may be about. Redis names no keys in errors.

        For an error about rights, the text names the keys of the queue. For an error about types, it names the keys
        that have a wrong type, among the keys of the queue, of the control queue and in `lists`.
        """
        one, name = job_queue or self._links, self.settings.control_queue
        if word_of(error) == "NOPERM" and "a key" in str(error):
            return f" (it needs {one.list_key}, {one.scheduled_key}, {Queue.redis_queues_keys} and the jobs' hashes)"
        if word_of(error) != "WRONGTYPE":
            return ""
        types = dict.fromkeys(lists, "list") | {
            one.scheduled_key: "zset", one.list_key: "list", Queue.redis_queues_keys: "set",
            self.scheduled_key: "zset", self.list_key: "list", self.wake_key: "list", self.freeze_key: "hash",
            redis_keys.dispatchers(name): "set", redis_keys.passes(name): "hash",
        }  # fmt: skip
        try:
            pipe = one.redis.pipeline(transaction=False)
            for key in types:
                pipe.type(key)
            found = [_text(answer) for answer in pipe.execute()]
        except RedisError:
            return ""
        rows = zip(types.items(), found, strict=True)
        odd = [f"{key} is a {is_now}, not a {type_}" for (key, type_), is_now in rows if is_now not in {type_, "none"}]
        return f" ({'; '.join(odd)})" if odd else ""

    def _claim_queue(self, refusal: ResponseError) -> None:
        """Call `claim` if Redis refused this process's server; else raise the refusal."""
        if self.claim is None or not str(refusal).startswith(FOREIGN):
            raise refusal
        self.claim()

    def bring_forward(self, link: LinkId | RetryLinkId, due_at: datetime) -> None:
        """Make an armed link due at this time, if the time is earlier."""
        score = {str(link): due_at.timestamp()}
        self._patiently(self.redis.zadd, self.scheduled_key, score, xx=True, lt=True)

    def live_links(self, arms: Sequence[Arm], *, now: datetime) -> list[bool]:
        """Return for each link whether it is live."""
        links = [(str(arm.id), arm.due_at) for arm in arms]
        return self._patiently(self._links.live, links, now=now) if links else []

    def deliver(self, runs: Iterable[Run], names: Names = NO_NAMES, *, now: datetime) -> int:
        """Enqueue the jobs of pending runs that have no live job; returns how many were written.

        `names` has the names of the runs' schedules, which RQ's tools show. If a named connection does not answer or a
        queue takes no job, this is logged, and the other queues get their jobs.
        """
        timeout = int(self.settings.run_timeout.total_seconds())
        more = int(self.settings.completion_outage.total_seconds())  # RQ's timeout covers recording the end, too
        written = 0
        for job_queue, some in self._by_queue(runs):
            jobs = []
            for run in some:
                namespace, schedule_id = names.get(run.schedule_uid, (None, None))
                label = JobLabel(
                    run.workflow, run.uid, schedule_id, namespace, run.occurrence_at, run.attempt, run.traceparent
                )
                seconds = (run.timeout or timeout) + more
                jobs.append(JobSpec(str(job_id_of(run)), seconds, is_front=run.priority > 0, label=label))
            written += self._put(job_queue, some[0].connection, jobs, now)
        return written

    def _put(self, job_queue: JobQueue | None, connection: str | None, jobs: Sequence[JobSpec], now: datetime) -> int:
        """Put jobs on a queue. If the connection of the queue is not configured, log this and put no job."""
        if job_queue is None:
            _log.error("no connection %r is configured", connection, extra={"action": "connection_unknown"})
            return 0
        try:
            written = self._patiently(job_queue.put, jobs, now=now, server=self.server)
        except RedisError as error:
            if isinstance(error, ResponseError) and str(error).startswith(FOREIGN):
                self._claim_queue(error)
                return self._put(job_queue, connection, jobs, now)
            if job_queue.redis is self.redis and is_transient(error):
                raise
            text, where = "%d jobs wait for queue %s on connection %s: %s", connection or "default"
            _log.error(text, len(jobs), job_queue.queue.name, where, error, extra={"action": "deliver_failed"})
            self._refuse(queue_in_words(job_queue.queue.name, connection), error, job_queue)
            return 0
        if self.refused and jobs:
            self.on_accepted(queue_in_words(job_queue.queue.name, connection))
        return written

    def live_deliveries(self, runs: Sequence[Run], *, now: datetime) -> list[bool]:
        """Return for each pending run whether its current delivery is live.

        If a connection is not configured or does not answer, all its deliveries count as live and are left alone.
        """
        found: dict[str, bool] = {}
        for job_queue, some in self._by_queue(runs):
            found |= dict(zip((run.uid for run in some), self._live(job_queue, some, now), strict=True))
        return [found[run.uid] for run in runs]

    def _live(self, job_queue: JobQueue | None, runs: Sequence[Run], now: datetime) -> list[bool]:
        if job_queue is None:
            return [True] * len(runs)
        try:
            return self._patiently(job_queue.live, [(str(job_id_of(run)), None) for run in runs], now=now)
        except RedisError as error:
            if job_queue.redis is self.redis and is_transient(error):
                raise
            _log.warning(
                "jobs of queue %s are not compared: %s", job_queue.queue.name, error, extra={"action": "compare_failed"}
            )
            self._refuse(queue_in_words(job_queue.queue.name, runs[0].connection), error, job_queue)
            return [True] * len(runs)

    def _by_queue(self, runs: Iterable[Run]) -> list[tuple[JobQueue | None, list[Run]]]:
        grouped: dict[tuple[str | None, str], list[Run]] = {}
        for run in runs:
            grouped.setdefault((run.connection, run.queue or self.settings.default_queue), []).append(run)
        return [(self._job_queue(*key, self._run_kind), some) for key, some in grouped.items()]

    def _job_queue(self, connection: str | None, name: str, kind: JobKind) -> JobQueue | None:
        redis = self.redis if connection is None else self.connections.get(connection)
        if redis is None:
            return None
        key = (connection, name, kind)
        if key not in self._job_queues:
            serializer, grace = self.settings.serializer_for(name), self.settings.repair_grace
            self._job_queues[key] = JobQueue(
                redis, name, serializer, kind, grace=grace, latest=self._latest, is_exact=True, owner=self.owner,
                server_key=self.server_key if redis is self.redis else "",
            )  # fmt: skip
        return self._job_queues[key]

    def enqueue(self, jobs: Sequence[JobSpec], queue: str | None, connection: str | None, *, now: datetime) -> int:
        """Put jobs of targets on a queue, in order, unless they are live; returns how many were written.

        Raises RedisError after short retries. If a named connection is not configured or does not answer, this is
        logged, and no job is put on its queue.
        """
        job_queue = self._job_queue(connection, queue or self.settings.default_queue, self._target_kind)
        return self._put(job_queue, connection, jobs, now)

    def withdraw(self, runs: Iterable[Run]) -> None:
        """Remove the jobs of pending runs from their queues; a job that cannot be removed now is logged."""
        for run in runs:
            self._withdraw(run, run)

    def mark_failed(self, run: Run) -> None:
        """Mark the job of a lost run that gets no other attempt, so that a person may requeue it like a failed job."""
        job_queue, job_id = self._by_queue([run])[0][0], str(job_id_of(run))
        if job_queue is None:
            return
        try:
            mark_failed(Job.fetch(job_id, connection=job_queue.queue.connection, serializer=job_queue.queue.serializer))
        except NoSuchJobError:
            return
        except RedisError as error:
            _log.warning("job %s is not marked as failed: %s", job_id, error, extra={"action": "mark_failed"})

    def stop(self, run: Run) -> None:
        """Ask the worker that executes a running attempt to kill its work horse; a failure to ask is logged."""
        self._withdraw(run, replace(run, status=RunStatus.TERMINATED))

    def _withdraw(self, before: Run, after: Run) -> None:
        """Withdraw the job of a run that was ended from outside: remove it from its queue, or stop its work horse."""
        job_queue, job_id = self._by_queue([before])[0][0], str(job_id_of(before))
        if job_queue is None:
            return
        try:
            if before.status is RunStatus.PENDING:
                job_queue.remove(job_id)
            elif before.status is RunStatus.RUNNING and after.status is RunStatus.TERMINATED:
                send_stop_job_command(job_queue.queue.connection, job_id, serializer=job_queue.queue.serializer)
        except (NoSuchJobError, InvalidJobOperation, RedisError) as error:
            # The run has ended in SQL: a job that starts or returns now can write nothing.
            _log.warning(
                "the job of run %s is not withdrawn: %s", before.uid, error, extra={"action": "withdraw_failed"}
            )

    def lease(self, *, now: datetime, lease: timedelta, limit: int) -> list[str]:
        """Lease due links and the entries of the list. At the end of the lease they become due again by themselves.

        While everything is frozen, nothing is leased, and `is_all_frozen` is True.
        """
        until = (now + lease).timestamp()
        keys = [self.scheduled_key, self.list_key, self.server_key, self.freeze_key]
        args = [now.timestamp(), until, limit, self.server]
        try:
            taken = self._patiently(self._lease_script, keys=keys, args=args)
        except ResponseError as error:
            self._claim_queue(error)
            return self.lease(now=now, lease=lease, limit=limit)
        self.is_all_frozen = taken is None
        return [_text(entry) for entry in taken or ()]

    def read_freeze(self, redis: Redis | None = None) -> tuple[str | None, str | None]:
        """Return what `set_freeze` stored and what `tell_frozen` announced last, each None if missing.

        If `redis` is given, this client reads them instead of the transport's own client.
        """
        found: Any = (redis or self.redis).hmget(self.freeze_key, ["*", "*:frozen"])
        freeze, frozen = (None if one is None else _text(one) for one in found)
        return freeze, frozen

    def tell_frozen(self, told: str | None) -> None:
        """Announce a change of the frozen namespaces in SQL.

        `told` names all of them; None means that none is frozen.
        """
        if told is None:
            self._patiently(lambda: self.redis.hdel(self.freeze_key, "*:frozen"))
        else:
            self._patiently(lambda: self.redis.hset(self.freeze_key, "*:frozen", told))

    def set_freeze(self, uid: str, text: str) -> None:
        """Freeze everything, unless it is frozen already or this freeze was thawed."""
        self._patiently(self._set_freeze_script, keys=[self.freeze_key], args=[uid, text])

    def drop_freeze(self, uids: Sequence[str], *, text: str = "") -> None:
        """Remove the freeze of everything, and remember `uids` as thawed.

        If `text` is given, only a freeze with this text is removed.
        """
        self._patiently(self._drop_freeze_script, keys=[self.freeze_key], args=[" ".join(uids), text])

    def drop(self, ids: Iterable[str]) -> None:
        """Remove links that have fired: their entries in the scheduled set together with their hashes."""
        names = list(ids)
        hashes = [Job.key_for(name) for name in names]
        if names:
            pipeline = cast("Callable[[], Any]", self.redis.pipeline)
            self._patiently(lambda: pipeline().zrem(self.scheduled_key, *names).delete(*hashes).execute())

    def forget(self, links: Sequence[str], jobs: Mapping[tuple[str | None, str | None], Sequence[str]]) -> None:
        """Remove links, and jobs with their results and their entries in RQ's registries.

        `jobs` has the ids of jobs by connection and queue. If a connection does not answer, this is only logged. A
        worker drops a job that stays, because SQL no longer has its row.
        """
        try:
            self.drop(links)
            for (connection, queue), ids in jobs.items():
                job_queue = self._job_queue(connection, queue or self.settings.default_queue, self._run_kind)
                if job_queue is None:
                    continue
                for chunk in chunks(ids, CHUNK):
                    found = Job.fetch_many(chunk, job_queue.queue.connection, job_queue.queue.serializer)
                    for job in filter(None, found):
                        job.delete()
        except RedisError as error:
            _log.warning("jobs of deleted rows stay in Redis: %s", error, extra={"action": "jobs_not_removed"})

    def put_back(self, due: Mapping[str, datetime]) -> None:
        """Set the times at which leased links are due again."""
        if due:
            scores = {job_id: instant.timestamp() for job_id, instant in due.items()}
            self._patiently(self.redis.zadd, self.scheduled_key, scores, xx=True)

    def next_look(self, dispatcher: str, *, is_woken: bool = False) -> NextLook:
        """Read when the earliest link is due, and whether the `dispatcher` with this name should look for it first.

        The first dispatcher stays first while it asks. When the first dispatcher is silent for `FIRST_LOOK_LIFE`, the
        next dispatcher that asks takes over. A woken dispatcher becomes first at once, because only it knows of the
        earlier link.
        """
        keys, args = [self.scheduled_key, self.first_look_key], [dispatcher, FIRST_LOOK_LIFE, int(is_woken)]
        is_first, *due = self._patiently(self._next_look_script, keys=keys, args=args)
        return NextLook(float(due[0]) if due else None, bool(is_first))

    def wait_for_wake(self, seconds: float) -> bool:
        """Block until a link becomes the earliest (True), or about `seconds` have passed (False).

        Redis ends blocked waits by a timer that runs ten times a second, so a wait may last `REDIS_TIMER` too long.
        Therefore this asks Redis for a wait that is shorter by `REDIS_TIMER`, and may return early. If `seconds` is at
        most `REDIS_TIMER`, this process itself looks for a wake every few milliseconds.
        """
        if seconds > REDIS_TIMER:
            return self.redis.blpop([self.wake_key], timeout=seconds - REDIS_TIMER) is not None
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.redis.lpop(self.wake_key) is not None:
                return True
            time.sleep(min(left, _WAKE_SLICE))
        return False

    def try_write(self, redis: Redis | None = None) -> None:
        """Make the writes of arming and enqueueing to a key that nothing reads; raises RedisError if Redis refuses.

        If `redis` is given, this client makes the writes. They are not tried again.
        """
        key = redis_keys.write_probe(self.settings.control_queue)
        self._try_write_script(keys=[key], args=[_PROBE_LIFE], client=redis)

    def count_armed(self) -> int:
        """Return how many links are in the scheduled set, leased ones included."""
        return int(cast(Any, self.redis.zcard(self.scheduled_key)))

    def count_due(self, *, now: datetime) -> int:
        """Return how many links are due and not leased."""
        waiting = cast(Any, self.redis.llen(self.list_key))
        return int(waiting) + int(cast(Any, self.redis.zcount(self.scheduled_key, "-inf", now.timestamp())))

    def was_reconciled(self, *, now: datetime) -> bool:
        """Return whether a pass of reconcile was begun within its interval, and no link is due."""
        return bool(self.redis.exists(self.interval_key)) and not self.count_due(now=now)

    def acquire_interval(self, interval: timedelta) -> bool:
        """Take this interval's pass of reconcile for this process; returns True for only one process in an interval."""
        milliseconds = int(interval.total_seconds() * 1000)
        return bool(self.redis.set(self.interval_key, 1, nx=True, px=milliseconds))

    def ask_for_pass(self) -> None:
        """End the interval, so that the next worker that looks makes a pass of reconcile at once."""
        self.redis.delete(self.interval_key)

    def acquire_pruning(self, interval: timedelta) -> bool:
        """Take this interval's pruning for this process; returns True for only one process in an interval."""
        key = redis_keys.pruning_interval(self.control.name)
        return bool(self.redis.set(key, 1, nx=True, px=int(interval.total_seconds() * 1000)))

    def database_id(self, *, attempts: int = _ATTEMPTS) -> str | None:
        """Return the id of the database that this control queue belongs to; None after a flush.

        Raises ConfigError if this Redis is a node of a cluster. If Redis has answered once that it is not, the process
        does not ask this again.
        """
        self._require_alone(attempts)
        owner: Any = call_patiently(_retrying(attempts), partial(self.redis.get, self.database_id_key))
        return None if owner is None else _text(owner)

    def _require_alone(self, attempts: int) -> None:
        if not self._is_alone:
            call_patiently(_retrying(attempts), partial(require_no_cluster, self.redis))
            self._is_alone = True

    def recorded(self, *, attempts: int = _ATTEMPTS) -> Recorded:
        """Return the database that this control queue belongs to, and its server; raises as `database_id` does."""
        self._require_alone(attempts)
        keys = [self.database_id_key, self.server_key]
        found: Any = call_patiently(_retrying(attempts), partial(self.redis.mget, keys))
        return Recorded(*(None if one is None else _text(one) for one in found))

    def claim_identity(self, database_id: str, server: Sequence[str], *options: str | float) -> Standing:
        """Compare the identity of a server with the recorded one, and record it if allowed (`CLAIM_IDENTITY`)."""
        name = self.settings.control_queue
        keys = [self.database_id_key, self.server_key, redis_keys.identity_seen(name), redis_keys.identity_heir(name)]
        found = self._patiently(self._claim_identity_script, keys=keys, args=[database_id, *server, *options])
        return Standing(*(_text(one) for one in found))

    def leave_flush_marker(self, uid: str) -> str:
        """Set a key that a flush removes and that `record_database_id` requires; returns its name."""
        flush_marker = redis_keys.flush_marker(self.settings.control_queue, uid)
        self._patiently(self.redis.set, flush_marker, 1, px=FLUSH_MARKER_LIFE)
        return flush_marker

    def record_database_id(self, owner: str, flush_marker: str) -> bool:
        """Record which database this control queue belongs to, unless one is recorded already.

        Returns False if the flush marker is gone: Redis was flushed, or more than `FLUSH_MARKER_LIFE` has passed.
        """
        keys = [self.database_id_key, flush_marker]
        return bool(self._patiently(self._record_database_id_script, keys=keys, args=[owner]))

    def newest_mark(self, database_id: str) -> str | None:
        """Return the newest mark of a database; None after a flush, and before the first mark."""
        found: Any = self._patiently(self.redis.lindex, redis_keys.marks(self.settings.control_queue, database_id), 0)
        return None if found is None else _text(found)

    def marks(self, database_id: str) -> list[str]:
        """Return the marks of a database, the newest first."""
        key = redis_keys.marks(self.settings.control_queue, database_id)
        return [_text(one) for one in self._patiently(cast(Any, self.redis.lrange), key, 0, -1)]

    def push_mark(self, database_id: str, mark: str, *, follows: str) -> bool:
        """Make a mark the newest, if the newest mark is `follows` or there is none; else return False."""
        keys = [redis_keys.marks(self.settings.control_queue, database_id)]
        args = [mark, follows, MARKS_KEPT, _MARKS_LIFE]
        return bool(self._patiently(self._push_mark_script, keys=keys, args=args))

    def _patiently(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return call_patiently(_retrying(_ATTEMPTS), partial(call, *args, **kwargs))


@lru_cache(maxsize=8)
def _retrying(attempts: int) -> tenacity.Retrying:
    """Return the loop that repeats a call. It can be reused, because it keeps nothing between two uses."""
    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(attempts) | tenacity.stop_after_delay(_PATIENCE_SECONDS),
        wait=tenacity.wait_exponential(multiplier=0.05, max=0.5) + tenacity.wait_random(0, 0.05),
        retry=tenacity.retry_if_exception(lambda e: is_transient(e) and not isinstance(e, RedisAwayError)),
        reraise=True,
    )


def link_of(schedule: Schedule) -> list[Arm]:
    """Return the main link of an active schedule that has a next time; an empty list for any other schedule."""
    if not schedule.is_active or schedule.due_at is None:
        return []
    return [Arm(LinkId(schedule.uid, schedule.n), schedule.due_at)]


def retry_of(run: Run) -> Arm:
    """Return the retry link of a retrying run, or of a blocked run, which the link delivers."""
    due_at = run.queued_at if run.is_blocked else run.retry_at
    if due_at is None:
        raise ValueError(f"run {run.uid} is not retrying")
    return Arm(RetryLinkId(run.schedule_uid, run.number, run.attempt), due_at)


def is_waiting(run: Run, now: datetime) -> bool:
    """Return whether a run is blocked and must not be delivered yet."""
    is_later = run.blocked_at is not None and run.queued_at is not None and run.queued_at > now
    return is_later and run.status is RunStatus.PENDING


def queue_in_words(name: str, connection: str | None) -> str:
    """Return the name of a queue of runs for messages."""
    return f"queue {name!r}" + ("" if connection is None else f" of connection {connection!r}")


def job_id_of(run: Run) -> RunJobId:
    """Return the id of the RQ job of a run's current delivery."""
    return RunJobId(run.uid, run.attempt, run.delivery)


def _require_serializer(name: str) -> None:
    """Raise ConfigError unless a serializer exists and reads its own output.

    Without a serializer no job can be written.
    """
    try:
        found: Any = resolve_serializer(serializer_path(name))
        found.loads(found.dumps((EXECUTE, None, [], {})))
    except Exception as error:
        raise ConfigError(
            f"the serializer {name!r} cannot be used: {type(error).__name__}: {error}. Write pickle, json, or the "
            "dotted path of a class with dumps and loads, into RQSCHED_SERIALIZER and RQSCHED_QUEUE_SERIALIZERS."
        ) from error


def _do_nothing(*_: object) -> None:
    """Do nothing, because nobody records refusals."""


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
