"""A process that receives RQ's commands for all runners of a worker, and keeps RQ's scheduler alive.

RQ's worker does both itself, with a thread and a child. A runner (a process that executes one run after another) does
neither, because a command to stop a run must be received even if that run blocks the interpreter. So this process notes
each command in the runner's slot, which is shared memory, and the supervisor obeys it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.command import PUBSUB_CHANNEL_TEMPLATE
from rq.defaults import DEFAULT_WORKER_TTL
from rq.scheduler import RQScheduler
from rq.utils import now, utcformat

from rqsched.kernel.transport.client import AskingPubSub
from rqsched.kernel.transport.refusal import is_transient
from rqsched.run.rq_worker import end_scheduler_with
from rqsched.run.runner_slot import Slot
from rqsched.run.supervisor import Progress

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 1.0
_KEEP_SECONDS = 15.0
"""How often this process checks RQ's scheduler and the scheduler's lock, and shows RQ that the runners live."""


class CommandListener:
    """Receives RQ's commands to the runners of these slots."""

    def __init__(
        self,
        redis: Redis,
        queues: Sequence[Queue],
        slots: Sequence[Slot],
        progress: Progress,
        *,
        keeps_scheduler: bool = True,
    ) -> None:
        """Receive over a separate client. With `keeps_scheduler`, keep RQ's scheduler of `queues` alive."""
        self.pid: int | None = os.getpid()
        self._redis = redis
        self._progress = progress
        self._slots = {PUBSUB_CHANNEL_TEMPLATE % slot.name: slot for slot in slots}
        self._pubsub = AskingPubSub(redis.connection_pool)
        self._scheduler = RQScheduler(queues, redis, logging_level="WARNING", serializer=queues[0].serializer)
        self._keeps_scheduler = keeps_scheduler
        self._keep_at = 0.0
        self._is_stopping = False

    def run(self) -> None:
        """Listen until SIGTERM or SIGINT."""
        end_scheduler_with(self)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self._is_stopping:
            self._progress.turn()
            try:
                self._turn()
            except RedisError as error:
                if not is_transient(error):
                    raise
                _log.warning("RQ's commands wait for Redis: %s", error, extra={"action": "rq_commands_wait"})
                time.sleep(_WAIT_SECONDS)
        if self._has_scheduler():
            process: Any = self._scheduler._process
            process.terminate()
            process.join()

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    def _turn(self) -> None:
        if not self._pubsub.subscribed:
            self._pubsub.subscribe(*self._slots)
        if time.monotonic() >= self._keep_at:
            self._keep_at = time.monotonic() + _KEEP_SECONDS
            if self._keeps_scheduler and not self._has_scheduler():
                self._scheduler.acquire_locks(auto_start=True)
            self._show_runners()
        message = self._pubsub.get_message(timeout=_WAIT_SECONDS)
        if message is not None and message["type"] == "message":
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        slot = self._slots.get(message["channel"].decode())
        try:
            heard = json.loads(message["data"])
            asked = {"number": time.monotonic_ns(), "command": heard["command"], "job_id": heard.get("job_id")}
        except (ValueError, TypeError, KeyError):
            _log.warning("a command of RQ cannot be read", extra={"action": "rq_command_unknown"})
            return
        if slot is not None:
            _log.info("%s hears %s", slot.name, asked["command"], extra={"action": "rq_command"})
            slot.request = asked

    def _has_scheduler(self) -> bool:
        process: Any = self._scheduler._process
        return process is not None and process.is_alive()

    def _show_runners(self) -> None:
        """Show RQ that the registered runners live, because a runner that executes a job cannot do so itself."""
        keys = [Worker.redis_worker_namespace_prefix + slot.name for slot in self._slots.values()]
        with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(key, "birth", "death")
            known = [key for key, (birth, death) in zip(keys, pipe.execute(), strict=True) if birth and not death]
            for key in known:
                pipe.hset(key, "last_heartbeat", utcformat(now()))
                pipe.expire(key, DEFAULT_WORKER_TTL + 60)
            pipe.execute()
