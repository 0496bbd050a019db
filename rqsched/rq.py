"""RQ's worker classes with a dispatcher: `rq worker -w rqsched.rq.Worker rqsched default`.

Each is RQ's own class, with all its options. It imports the application's workflows once, repairs the effects of a
crash or a flush at its start, and keeps a dispatcher as a child process: schedules fire on time even while this worker
executes a long job, and after any of these processes has died. It survives an absent or silent Redis, and settles a run
at once if its horse dies. Any number of workers may use these classes, also in `rq worker-pool`; docs/rq.md describes
the differences.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import rq
import rq.worker
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.job import Job

from rqsched.config import Settings, export, is_in_environment, variable_of
from rqsched.errors import BackendUnavailableError
from rqsched.features.list import make_runtime
from rqsched.kernel.chain.imports import import_workflows
from rqsched.kernel.chain.runtime import Runtime, using
from rqsched.kernel.chain.time_limit import end_by_itself
from rqsched.kernel.transport.redis_url import url_of
from rqsched.run.dispatcher_keeper import KeptDispatcher
from rqsched.run.rq_worker import PatientWorker, WritesForHorse, end_scheduler_with
from rqsched.run.spawned_horse import client_for_horse
from rqsched.run.warm_up import warm_up
from rqsched.run.worker import make_one_pass, prepare

__all__ = ["SimpleWorker", "SpawnWorker", "Worker"]

_log = logging.getLogger(__name__)


class _WithDispatcher(PatientWorker):
    """A mixin that comes before RQ's worker class in the list of bases."""

    _spawns = False
    """Whether children are spawned instead of forked."""
    _kept: KeptDispatcher | None = None

    def work(self, burst: bool = False, logging_level: str | None = None, *arguments: Any, **options: Any) -> bool:
        """Work as RQ does, with a dispatcher beside it. With `burst`, make one pass of a dispatcher first instead.

        Raises ConfigError if the settings, the database or the imports cannot be used, or if the control queue belongs
        to another database. If a server is only down, the worker starts and waits.
        """
        if self._spawns:
            export()
        self.runtime = _open_runtime(self.connection, warms_up=not burst)
        self.runtime.watch = end_by_itself  # a horse has `_deadline.watch` instead
        self._leave_to_dispatcher(self.runtime.settings.control_queue)
        end_scheduler_with(self)
        with using(self.runtime):  # the work horses inherit it
            if burst:
                make_one_pass(self.runtime, spawns=self._spawns)
                if any(queue.count for queue in self.queues):
                    warm_up(self.runtime)
                return super().work(burst, logging_level, *arguments, **options)
            self._kept = KeptDispatcher(
                self.runtime.settings, spawns=self._spawns, log_level=logging_level or logging.INFO
            )
            self._kept.start()
            try:
                return super().work(burst, logging_level, *arguments, **options)
            finally:
                self._kept.stop()

    def on_turn(self) -> None:
        """Start the dispatcher and its keeper again if both died; called in each turn of RQ's loop."""
        if self._kept is not None and not self._stop_requested:
            self._kept.keep()
        super().on_turn()

    def beside_horse(self) -> dict[int, Callable[[], object]]:
        """Return the descriptors to watch while a horse works, each with its callback; the keeper is watched, too."""
        return super().beside_horse() | ({} if self._kept is None else self._kept.beside_horse())

    def _leave_to_dispatcher(self, control_queue: str) -> None:
        """If the worker serves other queues, too, take no links: the dispatcher fires them faster, in batches."""
        others = [queue for queue in self.queues if queue.name != control_queue]
        if others:
            self.queues, self._ordered_queues = others, others[:]


def _open_runtime(connection: Redis, *, warms_up: bool) -> Runtime:
    """Open the runtime that horses inherit, without a connection; a server that is only down is no error."""
    if not is_in_environment("redis_url"):
        os.environ[variable_of("redis_url")] = url_of(connection)  # children and horses read it
    runtime = make_runtime(Settings())
    try:
        prepare(runtime)
        if warms_up:
            warm_up(runtime)
    except (BackendUnavailableError, RedisError) as error:
        import_workflows(runtime.settings)
        _log.warning("a backend is away, the dispatcher waits for it: %s", error, extra={"action": "backend_wait"})
    finally:
        runtime.close()
    return runtime


class Worker(_WithDispatcher, WritesForHorse, rq.Worker):
    """RQ's default worker, which forks a work horse for every job, with a dispatcher."""


class SimpleWorker(_WithDispatcher, rq.SimpleWorker):
    """RQ's worker that executes jobs in its own process, with a dispatcher beside it."""


class SpawnWorker(_WithDispatcher, rq.worker.SpawnWorker):
    """RQ's worker for systems where forking is unsafe, with a dispatcher that is spawned, too."""

    _spawns = True

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Start the horse. With Sentinels, TLS or a UNIX socket, it connects to the same URL."""
        own = self.connection
        self.connection = client_for_horse(own)
        try:
            super().fork_work_horse(job, queue)
        finally:
            self.connection = own
