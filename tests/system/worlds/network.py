"""A network in place of Redis: its messages are lost, repeated, late or out of order, as a seed says.

It keeps the same data as a Redis (scheduled set, control list, run queue, single keys) and speaks through the
public methods of `rqsched.kernel.transport.transport.Transport`, so the chain above it is the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from rqsched.clock import Clock
from rqsched.config import Settings
from rqsched.kernel.decide.ids import LinkId, RetryLinkId
from rqsched.kernel.decide.model import Run, RunStatus
from rqsched.kernel.transport.job_queue import JobSpec
from rqsched.kernel.transport.transport import NO_NAMES, Arm, Names, NextLook, Recorded, Transport, job_id_of
from tests.system.worlds.faults import Faults

Message = Callable[[], None]


class Network:
    """The Redis that all actors share, and the messages on their way to it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.flush()

    faults: Faults
    """The faults of the current world."""

    def flush(self) -> None:
        """Everything is forgotten, as after FLUSHALL or a failover that dropped writes."""
        self.scheduled: dict[str, float] = {}
        self.control: list[str] = []
        self.jobs: list[str] = []
        self.keys: dict[str, tuple[object, datetime | None]] = {}
        self.in_flight: list[Message] = []

    def send(self, message: Message) -> None:
        """Apply a message now, never, later, or twice."""
        fate = self.faults.random.random() if self.faults.is_on else 1.0
        if fate < 0.04:
            return
        if fate < 0.12:
            self.in_flight.append(message)
            return
        if fate < 0.16:
            self.in_flight.append(message)
        message()

    def arrive(self) -> None:
        """Some message that was on its way arrives."""
        if self.in_flight:
            self.in_flight.pop(self.faults.random.randrange(len(self.in_flight)))()

    def is_armed(self, job_id: str) -> bool:
        return job_id in self.scheduled or job_id in self.control

    def place(self, job_id: str, due_at: datetime | None) -> None:
        """Arm a link unless it is live; without a due time it goes on the list."""
        if self.is_armed(job_id):
            return
        if due_at is None:
            self.control.append(job_id)
        else:
            self.scheduled[job_id] = due_at.timestamp()

    def bring_forward(self, job_id: str, due_at: datetime) -> None:
        """Let a link that is armed be due at this time, if that is earlier."""
        if job_id in self.scheduled:
            self.scheduled[job_id] = min(self.scheduled[job_id], due_at.timestamp())

    def enqueue(self, job_id: str) -> None:
        if job_id not in self.jobs:
            self.jobs.append(job_id)

    def lease(self, now: datetime, until: datetime, limit: int) -> list[str]:
        """Take the due links in any order; some of it twice, some of it gone for good."""
        random = self.faults.random
        listed, self.control = self.control[:limit], self.control[limit:]
        due = [job_id for job_id, score in self.scheduled.items() if score <= now.timestamp()]
        taken = [*listed, *due[: limit - len(listed)]]
        for job_id in taken:
            self.scheduled[job_id] = until.timestamp()
        if self.faults.is_on:
            random.shuffle(taken)
            gone = [job_id for job_id in taken if random.random() < 0.03]
            for job_id in gone:
                del self.scheduled[job_id]
            taken = [job_id for job_id in taken if job_id not in gone] + [j for j in taken if random.random() < 0.05]
        return taken

    def pop_link(self, now: datetime) -> str | None:
        """Take one due link as RQ's scheduler and a plain `rq worker` do: it is gone once it is taken."""
        due = [*self.control, *(job_id for job_id, score in self.scheduled.items() if score <= now.timestamp())]
        if not due:
            return None
        job_id = self.faults.random.choice(due)
        self.scheduled.pop(job_id, None)
        if job_id in self.control:
            self.control.remove(job_id)
        return job_id

    def pop_job(self) -> str | None:
        """Take one run job, in any order; now and then it is delivered again later."""
        if not self.jobs:
            return None
        job_id = self.faults.random.choice(self.jobs) if self.faults.is_on else self.jobs[0]
        self.jobs.remove(job_id)
        if self.faults.happens(0.05):
            self.in_flight.append(lambda: self.enqueue(job_id))
        return job_id


class Keys:
    """The single keys the chain reads and sets on its connection."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def get(self, name: str) -> object | None:
        value, expires_at = self._network.keys.get(name, (None, None))
        return None if expires_at is not None and expires_at <= self._network.clock.now() else value

    def set(self, name: str, value: object, *, nx: bool = False, px: int | None = None) -> bool:
        self._network.faults.redis()
        if nx and self.get(name) is not None:
            return False
        expires_at = None if px is None else self._network.clock.now() + timedelta(milliseconds=px)
        self._network.keys[name] = (value, expires_at)
        return True

    def delete(self, name: str) -> None:
        self._network.faults.redis()
        self._network.keys.pop(name, None)

    def pipeline(self) -> None:
        """Fail: this network loses the counters that only metrics read."""
        raise RedisConnectionError("the network keeps no telemetry")


class NetworkTransport(Transport):
    """The transport of one actor over the shared network."""

    def __init__(self, settings: Settings, network: Network) -> None:
        super().__init__(settings, Redis())
        self._network = network
        self.redis = Keys(network)  # type: ignore[assignment]

    def _patiently(self, call: Callable[..., object], *args: object, **kwargs: object) -> object:  # type: ignore[override]
        return call(*args, **kwargs)

    def _step(self) -> None:
        self._network.faults.between_steps()
        self._network.faults.redis()

    def arm(self, arms: Sequence[Arm], *, now: datetime) -> int:
        self._step()
        written = sum(not self._network.is_armed(str(arm.id)) for arm in arms)
        for arm in arms:
            due_at = arm.due_at if arm.due_at > now else None
            self._network.send(partial(self._network.place, str(arm.id), due_at))
        self._answer()
        return written

    def bring_forward(self, link: LinkId | RetryLinkId, due_at: datetime) -> None:
        self._step()
        self._network.send(partial(self._network.bring_forward, str(link), due_at))
        self._answer()

    def deliver(self, runs: Iterable[Run], names: Names = NO_NAMES, *, now: datetime) -> int:
        self._step()
        wanted = [str(job_id_of(run)) for run in runs]
        for job_id in wanted:
            self._network.send(partial(self._network.enqueue, job_id))
        self._answer()
        return len(wanted)

    def enqueue(self, jobs: Sequence[JobSpec], queue: str | None, connection: str | None, *, now: datetime) -> int:
        self._step()
        for job in jobs:
            self._network.send(partial(self._network.enqueue, job.id))
        self._answer()
        return len(jobs)

    def live_deliveries(self, runs: Sequence[Run], *, now: datetime) -> list[bool]:
        self._step()
        return [str(job_id_of(run)) in self._network.jobs for run in runs]

    def lease(self, *, now: datetime, lease: timedelta, limit: int) -> list[str]:
        self._step()
        taken = self._network.lease(now, now + lease, limit)
        self._answer()
        return taken

    def drop(self, ids: Iterable[str]) -> None:
        self._step()
        for job_id in ids:
            self._network.scheduled.pop(job_id, None)
        self._answer()

    def put_back(self, due: Mapping[str, datetime]) -> None:
        self._step()
        for job_id, instant in due.items():
            if job_id in self._network.scheduled:
                self._network.scheduled[job_id] = instant.timestamp()
        self._answer()

    def next_look(self, dispatcher: str, *, is_woken: bool = False) -> NextLook:
        return NextLook(min(self._network.scheduled.values(), default=None), is_first=True)

    def database_id(self, *, attempts: int = 3) -> str | None:
        self._step()
        owner = self.redis.get(self.database_id_key)
        return None if owner is None else str(owner)

    def recorded(self, *, attempts: int = 3) -> Recorded:
        return Recorded(self.database_id(), None)

    def leave_flush_marker(self, uid: str) -> str:
        self._step()
        flush_marker = super().leave_flush_marker(uid)
        self._answer()
        return flush_marker

    def record_database_id(self, owner: str, flush_marker: str) -> bool:
        self._step()
        is_there = self._network.keys.pop(flush_marker, None) is not None
        if is_there:
            self.redis.set(self.database_id_key, owner, nx=True)
        self._answer()
        return is_there

    def newest_mark(self, database_id: str) -> str | None:
        """Keep no mark: SQL never goes back here, and tests/kernel/chain/test_rollback_marks.py interleaves passes."""
        raise RedisConnectionError("the network keeps no marks")

    def mark_failed(self, run: Run) -> None:
        """Jobs are only ids here: there is no hash to mark, and no user requeues."""

    def _withdraw(self, before: Run, after: Run) -> None:
        job_id = str(job_id_of(before))
        if before.status is RunStatus.PENDING and after.status is RunStatus.CANCELLED and job_id in self._network.jobs:
            self._network.send(lambda: self._network.jobs.remove(job_id) if job_id in self._network.jobs else None)

    def _answer(self) -> None:
        """The answer may be lost after everything was done."""
        if self._network.faults.happens(0.015):
            raise RedisConnectionError("no answer")
