"""The place of one runner, in memory that forks share: what it executes, what is asked of it, and why it was killed.

It outlives the runner, so that the next supervisor knows which attempt died with it, whatever its pid was.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_SIZE = 4096
_HEAD = struct.Struct("QI")
_READS = 3


class Note:
    """A small JSON object in memory that forks share: one process writes it, others read it whole or not at all."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)

    def write(self, content: Mapping[str, Any] | None) -> None:
        """Replace what is noted; None, and what is too long, leaves nothing."""
        text = b"" if content is None else json.dumps(content, separators=(",", ":")).encode()
        if len(text) > _SIZE - _HEAD.size:
            text = b""
        number, _ = _HEAD.unpack_from(self._memory)
        begun = number + 1 if number % 2 == 0 else number + 2  # a writer may have died halfway
        _HEAD.pack_into(self._memory, 0, begun, 0)
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, begun + 1, len(text))

    def read(self) -> dict[str, Any] | None:
        """Return what is noted; None when that is nothing, or is being written."""
        for _ in range(_READS):
            number, length = _HEAD.unpack_from(self._memory)
            text = self._memory[_HEAD.size : _HEAD.size + length]
            if number % 2 == 0 and _HEAD.unpack_from(self._memory)[0] == number:
                found: dict[str, Any] | None = json.loads(text) if text else None
                return found
        return None


@dataclass(frozen=True, slots=True)
class Job:
    """What a runner executes."""

    id: str
    """The id of RQ's job."""
    pid: int
    """The runner's, by which a cause of death is known to be its own."""
    queue: str
    """The queue it was taken from."""
    is_ours: bool
    """Whether it is executed in the runner's own process; any other has a work horse."""
    kill_at: float | None = None
    """When it has taken far too long, by the host's monotonic clock; None for never, or when RQ sees to it."""
    execution_id: str | None = None
    """RQ's id of this execution."""
    token: str | None = None
    """What the attempt is claimed under; None before the claim."""
    horse_pid: int | None = None
    """The pid of its work horse."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a runner ended, or its work horse."""

    pid: int
    """The runner's."""
    why: str
    """In words, for the error of a run."""
    job_id: str | None = None
    """What it executed."""
    is_stopped: bool = False
    """Whether a person stopped the job by RQ's command."""

    def is_of(self, job: Job) -> bool:
        """Return whether this is why that job ended: a runner outlives the work horse that was killed for another."""
        return self.pid == job.pid and self.job_id == job.id


class Slot:
    """One runner's place: its name at RQ, and three notes, each written by one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The runner's name at RQ; its successors have it too."""
        self._job = Note()
        self._request = Note()
        self._cause = Note()
        self._flags = mmap.mmap(-1, 1)

    @property
    def job(self) -> Job | None:
        """What the runner executes, or executed when it died; written by it."""
        found = self._job.read()
        return None if found is None else Job(**found)

    @job.setter
    def job(self, job: Job | None) -> None:
        self._job.write(None if job is None else asdict(job))

    @property
    def request(self) -> dict[str, Any] | None:
        """RQ's newest command for the runner, with a `number` that tells it from the one before."""
        return self._request.read()

    @request.setter
    def request(self, request: Mapping[str, Any]) -> None:
        self._request.write(request)

    @property
    def cause(self) -> Cause | None:
        """Why the runner ended; written by the supervisor."""
        found = self._cause.read()
        return None if found is None else Cause(**found)

    @cause.setter
    def cause(self, cause: Cause) -> None:
        self._cause.write(asdict(cause))

    @property
    def is_closing(self) -> bool:
        """Whether the supervisor ends: the next runner does nothing but settle what the one before left."""
        return self._flags[0] == 1

    def close(self) -> None:
        """Say that the supervisor ends."""
        self._flags[0] = 1
