"""A worker writes to SQL for its work horse (RQ's process for a job), so a short run needs no connection of its own.

The horse sends the worker two requests over a pair of sockets: to claim its run, and to record the run's success. The
horse itself does everything else: heartbeats, failures, queries of the workflow, and writes that the worker does not
make in time. If the worker does not answer, the horse repeats the write with the same token. The token in the row of
the run shows whether the worker has written already.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import struct
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from rqsched.kernel.chain.attempt import Claim, End, NotAnsweredError
from rqsched.kernel.chain.execution import write_claim
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import write_end
from rqsched.kernel.decide.ids import RunJobId
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store.database import Patience
from rqsched.run.work_horse import undisturbed

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long a horse waits for its worker. After that time the horse does the write itself."""
LONGEST = 1 << 16
"""The maximum number of bytes of a message. Such a message fits into the socket's buffer, so neither side ever waits to
send."""
_BUFFER = 4 * LONGEST
_HEAD = struct.Struct("!I")
_ONCE = Patience(total=timedelta(milliseconds=1))
"""The worker tries once, and again on a new connection if its connection is lost. The horse itself tries for longer."""


class WorkerSide:
    """The worker's end of the sockets. The worker opens them before it forks the horse of a run."""

    answer_seconds = ANSWER_SECONDS
    """How long the horse waits for an answer."""

    def __init__(self, runtime: Runtime, job: RunJobId) -> None:
        self._runtime, self._job = runtime, job
        runtime.database.keep_connection()
        self._own, self._horses = socket.socketpair()
        for end in (self._own, self._horses):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._own.setblocking(False)
        self._heard = b""
        self._claim: Claim | None = None

    @property
    def descriptor(self) -> int | None:
        """The descriptor that becomes readable when the horse sends a request; None if no more requests come."""
        return None if self._own.fileno() < 0 else self._own.fileno()

    def after_fork_in_worker(self) -> None:
        """Close the horse's end."""
        self._horses.close()

    def after_fork_in_horse(self) -> None:
        """Close the worker's end and its connection to SQL, and let the horse's runtime ask the worker."""
        self._own.close()
        self._runtime.database.leave_to_parent()
        self._runtime.parent = HorseSide(self._runtime, self._horses, self.answer_seconds)

    def close(self) -> None:
        """Stop answering."""
        self._own.close()
        self._horses.close()

    def answer(self) -> None:
        """Answer a request of the horse once it is complete; called when the descriptor is readable."""
        with undisturbed():
            try:
                heard = self._own.recv(LONGEST)
            except BlockingIOError:
                return
            except OSError:
                heard = b""
            if not heard:
                self.close()
                return
            self._heard += heard
            if (asked := self._next_request()) is None:
                return
            self._send(self._perform(asked))
            try:
                # This measures the clock if that is due. Otherwise a horse would have to connect to SQL for it.
                self._runtime.now()
            except Exception as error:  # noqa: BLE001 - the next answer tries again
                _log.debug("the clock is not measured: %s", error, extra={"action": "clock_unmeasured"})

    def _next_request(self) -> Mapping[str, Any] | None:
        if len(self._heard) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(self._heard)
        end = _HEAD.size + length
        if length > LONGEST:
            self.close()
            return None
        if len(self._heard) < end:
            return None
        text, self._heard = self._heard[_HEAD.size : end], self._heard[end:]
        try:
            asked: Mapping[str, Any] = json.loads(text)
        except ValueError:  # the workflow's code wrote to this descriptor
            self.close()
            return None
        return asked

    def _perform(self, asked: Mapping[str, Any]) -> bytes:
        """Perform a request of the horse; returns the answer, or nothing if the outcome is unknown."""
        try:
            if "at" in asked:
                answer: object = self._end(asked)
            else:
                self._claim = write_claim(self._runtime, self._job, asked["token"], asked["worker"], patience=_ONCE)
                answer = self._claim, self._runtime.time.clock.measured
        except Exception as error:  # noqa: BLE001 - the horse does the write itself, and reports the error
            _log.debug("not written for a horse: %s", error, extra={"action": "horse_not_served"})
            return b""
        found = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        return found if len(found) <= LONGEST else b""

    def _send(self, answer: bytes) -> None:
        try:
            self._own.send(_HEAD.pack(len(answer)) + answer)
        except OSError:  # the horse is gone, or has not read the last answer
            self.close()

    def _end(self, asked: Mapping[str, Any]) -> End:
        if self._claim is None:
            raise NotAnsweredError("this worker has not claimed it")
        succeeded = AttemptResult(AttemptOutcome.SUCCEEDED, result=asked["result"])
        at = datetime.fromisoformat(asked["at"])
        return write_end(self._runtime, self._claim, succeeded, at=at, patience=_ONCE)


class HorseSide:
    """The horse's end: it asks its worker to claim its run, and to record its success."""

    def __init__(self, runtime: Runtime, to_worker: socket.socket, seconds: float = ANSWER_SECONDS) -> None:
        self._runtime, self._socket, self._pid = runtime, to_worker, os.getpid()
        self._socket.settimeout(seconds)
        self._is_over = False

    def claim(self, job: RunJobId, token: str, worker: str) -> Claim | None:
        """Claim the run that this process was forked for."""
        del job  # the worker knows it
        claim: Claim | None
        claim, measured = self._ask({"token": token, "worker": worker})
        if measured is not None:
            self._runtime.time.clock.measured = measured
        return claim

    def end(self, attempt_result: AttemptResult, at: datetime) -> End:
        """Record that the run succeeded."""
        end: End = self._ask({"result": attempt_result.result, "at": at.isoformat()})
        return end

    def _ask(self, request: Mapping[str, Any]) -> Any:
        """Send a request to the worker and wait for the answer. After one failure no more requests are sent."""
        if self._is_over or os.getpid() != self._pid:
            raise NotAnsweredError("the worker is not asked any more")
        text = json.dumps(request).encode()
        if len(text) > LONGEST:
            raise NotAnsweredError("the request is too long")
        self._is_over = True  # set it first: a timeout of the job may interrupt this call halfway
        try:
            self._socket.sendall(_HEAD.pack(len(text)) + text)
            (length,) = _HEAD.unpack(self._read(_HEAD.size))
            answer = self._read(length)
        except OSError as error:
            raise NotAnsweredError(str(error)) from error
        self._is_over = False
        if not answer:
            raise NotAnsweredError("the worker could not do it")
        return pickle.loads(answer)  # noqa: S301 - comes from the process that forked this one

    def _read(self, length: int) -> bytes:
        found = b""
        while len(found) < length:
            more = self._socket.recv(length - len(found))
            if not more:
                raise ConnectionError("the worker is gone")
            found += more
        return found
