"""Resolving: a run whose workflow is called for many targets asks a function which they are.

The function is called with nothing, and what it returns is read in chunks that are recorded one by one: however many
targets there are, no process holds more than a chunk. Nothing is dispatched before it has come to its end: when it
raises, the attempt of the run fails, and the next one asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from rqsched.chain.fan_out.dispatch import batch_of, fan_out
from rqsched.chain.runtime import Runtime
from rqsched.core.model import Run, Schedule
from rqsched.core.payload import ARGUMENT_BYTES, json_text
from rqsched.errors import InvalidInputError
from rqsched.fork_guard import ForkGuard
from rqsched.workflows import FannedOut, Workflow, surroundings

MAX_ID = 255
"""The most characters of a target's id."""
_CHUNK_BYTES = 1_048_576
"""A chunk is recorded when its payloads are longer than this, however few they are."""
_END = object()

Named: TypeAlias = tuple[str, str | None]
"""The id of a target and the JSON of its payload; None without one."""


def find_resolver(runtime: Runtime, schedule: Schedule, workflow: Workflow) -> Workflow | None:
    """Return what names the targets of a run: the schedule's, else the workflow's own; None for a run without targets.

    Raises UnknownWorkflowError as `Runtime.resolve` does, and InvalidInputError for a workflow that names its targets
    itself, as a state machine's does.
    """
    wanted = schedule.policies.targets or workflow.targets
    if wanted is None:
        return None
    if workflow.each is not None:
        raise InvalidInputError("targets", f"workflow {workflow.name!r} names its targets itself; leave targets out")
    return runtime.resolve(wanted) if isinstance(wanted, str) else Workflow(f"targets of {workflow.name}", wanted)


def name_targets(runtime: Runtime, run: Run, resolver: Workflow, checkpoint: Callable[[], None]) -> FannedOut:
    """Record the targets of a run and put the first ones on their queue."""
    size = runtime.settings.target_chunk
    with surroundings():
        chunks = iter_chunks(lambda: resolver.perform([], {}), size)
        return FannedOut(targets=fan_out(runtime, batch_of(runtime, run.uid), chunks, checkpoint))


def iter_chunks(resolve: Callable[[], Any], size: int) -> Iterator[list[Named]]:
    """Call a resolver, and yield what it names in chunks; raises TypeError and InvalidInputError for anything else."""
    chunk: list[Named] = []
    length = 0
    for one in _each(resolve):
        named = _named(one)
        chunk.append(named)
        length += len(named[1] or "")
        if len(chunk) >= size or length >= _CHUNK_BYTES:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk


def _each(resolve: Callable[[], Any]) -> Iterator[Any]:
    """Yield what a resolver names; a process that it forks ends there, also between two of them."""
    with ForkGuard():
        entries = iter(_entries(resolve()))
    while True:
        with ForkGuard():
            one = next(entries, _END)
        if one is _END:
            return
        yield one


def _entries(found: Any) -> Iterable[Any]:
    if isinstance(found, Mapping):
        return found.items()
    if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
        raise TypeError(f"targets must be an iterable of ids, such as a list, not {type(found).__name__}")
    return found


def _named(one: Any) -> Named:
    """Read an id, a row of a query with an id alone, or an id and a payload."""
    values = one if isinstance(one, tuple) else (one,)
    if not 1 <= len(values) <= 2:
        raise InvalidInputError("targets", f"{one!r:.200} is neither an id nor an id and a payload")
    target_id = str(values[0])
    if values[0] is None or not 1 <= len(target_id) <= MAX_ID or not target_id.isprintable():
        raise InvalidInputError("targets", f"{values[0]!r:.300} is not an id; use 1 to {MAX_ID} printable characters")
    if len(values) == 1:
        return target_id, None
    return target_id, json_text(f"the payload of target {target_id}", values[1], ARGUMENT_BYTES)
