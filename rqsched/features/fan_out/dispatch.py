"""Fan-out: record the targets of a run, enqueue a job for each, and read their progress.

The run of a workflow with targets calls a function, the resolver, which names the targets. The resolver is called
without arguments. Its result is read and recorded in chunks, so that no process holds more than one chunk in memory. No
target is dispatched before the resolver has ended. If the resolver raises, the attempt of the run fails, and the next
attempt calls the resolver again.

Then the first chunk is put on its queue, and behind it a job that puts the next chunk there. Workers take a queue in
order, so they reach this job only when they have taken the targets before it. SQL is written before Redis: if a process
dies between the two, reconcile enqueues the missing jobs. With `max_parallel` at most that many targets are on the
queue or handled at once, and each target that ends puts the next target on the queue. If the schedule has the option
`limit`, its targets wait in the line of that limit instead, and go to the queue when they get a place
(`features/limits`).

Each target is dispatched once, because the id of its job is computed from run and target. It is claimed once, and its
failure does not end the other targets (`execution`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from redis.exceptions import RedisError

from rqsched.errors import BackendUnavailableError, InvalidInputError, InvalidLimitError, RunNotFoundError
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.jobs import batch_job, enqueue, jobs_of
from rqsched.features.fan_out.progress import WINDOW, TargetDescription, TargetProgress, progress_of
from rqsched.features.fan_out.store import Batch, RunName, Target
from rqsched.features.limits import chain as limits
from rqsched.kernel.chain.ownership import UnknownJobError
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import BatchJobId
from rqsched.kernel.decide.model import Run, TargetStatus
from rqsched.kernel.decide.payload import ARGUMENT_BYTES, json_text
from rqsched.kernel.decide.results import MAX_PAGE, MOST_COUNTED, Page
from rqsched.kernel.fork_guard import ForkGuard
from rqsched.kernel.queries.pages import bind_cursor, unbind_number
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection
from rqsched.workflows import FannedOut, Workflow, surroundings

_log = logging.getLogger(__name__)

MAX_ID = 255
"""The maximum number of characters of a target's id."""
PAGE = 500
"""The maximum number of targets that one transaction of a repair changes."""
_CHUNK_BYTES = 1_048_576
"""The total length of payloads, in characters, at which a chunk ends even if it has few targets."""
_END = object()

Named: TypeAlias = tuple[str, str | None]
"""The id of a target, and the JSON of its payload or None."""


def find_resolver(runtime: Runtime, workflow: Workflow, targets: str | Callable[..., Any]) -> Workflow:
    """Return the resolver, the function that names the targets of a run of `workflow`.

    Raises UnknownWorkflowError as `Imports.resolve` does, and InvalidInputError if the workflow names its targets
    itself, as the workflow of a state machine does.
    """
    if workflow.each is not None:
        raise InvalidInputError("targets", f"workflow {workflow.name!r} names its targets itself; leave targets out")
    if isinstance(targets, str):
        return runtime.imports.resolve(targets)
    return Workflow(f"targets of {workflow.name}", targets)


def name_targets(runtime: Runtime, run: Run, resolver: Workflow, checkpoint: Callable[[], None]) -> FannedOut:
    """Record the targets of a run and put the first ones on their queue."""
    size = runtime.settings.target_chunk
    with surroundings():
        chunks = iter_chunks(lambda: resolver.perform([], {}), size)
        return FannedOut(targets=fan_out(runtime, batch_of(runtime, run.uid), chunks, checkpoint))


def iter_chunks(resolve: Callable[[], Any], size: int) -> Iterator[list[Named]]:
    """Call a resolver and yield its targets in chunks; raises TypeError or InvalidInputError for an invalid result."""
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
    """Yield the targets of a resolver. A child process that the resolver forks ends before it can yield or return."""
    with ForkGuard():
        found = resolve()
        if isinstance(found, Mapping):
            found = found.items()
        elif isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
            raise TypeError(f"targets must be an iterable of ids, such as a list, not {type(found).__name__}")
        entries = iter(found)
    while True:
        with ForkGuard():
            one = next(entries, _END)
        if one is _END:
            return
        yield one


def _named(one: Any) -> Named:
    """Read a target: an id, a row of a query with only an id, or an id and a payload."""
    values = one if isinstance(one, tuple) else (one,)
    if not 1 <= len(values) <= 2:
        raise InvalidInputError("targets", f"{one!r:.200} is neither an id nor an id and a payload; return one of them")
    target_id = str(values[0])
    if values[0] is None or not 1 <= len(target_id) <= MAX_ID or not target_id.isprintable():
        raise InvalidInputError("targets", f"{values[0]!r:.300} is not an id; use 1 to {MAX_ID} printable characters")
    if len(values) == 1:
        return target_id, None
    return target_id, json_text(f"the payload of target {target_id}", values[1], ARGUMENT_BYTES)


def batch_of(runtime: Runtime, run_uid: str, workflow: str | None = None) -> Batch:
    """Return the values that all targets of a run share. The present policies of the run's schedule contain them."""
    found = runtime.database.read(lambda connection: changes.find_with_schedule(connection, run_uid))
    if found is None:
        raise RunNotFoundError(run_uid)
    schedule, run = found
    usual = run.timeout or max(1, int(runtime.settings.run_timeout.total_seconds()))
    return Batch(
        run_uid=run.uid,
        workflow=workflow or run.workflow,
        at=run.occurrence_at,
        timeout=schedule.policies.target_timeout or usual,
        schedule_uid=run.schedule_uid,
        queue=run.queue,
        connection=run.connection,
        max_parallel=schedule.policies.max_parallel,
        is_named=run.has_named_targets,
        limit_group=run.limit_group,
    )


def fan_out(
    runtime: Runtime,
    batch: Batch,
    chunks: Iterable[Sequence[str | tuple[str, str | None]]],
    checkpoint: Callable[[], None] | None = None,
) -> int:
    """Record the targets of a run chunk by chunk, dispatch the first targets, and return the number of all targets.

    A repetition after a crash adds the missing targets and dispatches no target twice. If an earlier attempt has
    recorded all targets, `chunks` is not read. `checkpoint` is called between chunks.
    """
    number = 1 + runtime.database.read(lambda connection: fan_out_targets.last_number(connection, batch.run_uid))
    for chunk in () if batch.is_named else chunks:
        runtime.database.transact(partial(_record, runtime, batch, chunk, number))
        number += len(chunk)
        if checkpoint is not None:
            checkpoint()
    dispatch_first(runtime, batch.run_uid)
    counts = runtime.database.read(lambda connection: fan_out_targets.count(connection, batch.run_uid))
    return sum(counts.values())


def _record(
    runtime: Runtime, batch: Batch, chunk: Sequence[str | tuple[str, str | None]], first: int, connection: Connection
) -> None:
    fan_out_targets.record(connection, batch, chunk, first, runtime.now())


def dispatch_first(runtime: Runtime, run_uid: str) -> None:
    """Put the first waiting targets of a run on their queue. Do nothing if no target waits."""
    first = runtime.database.read(lambda connection: fan_out_targets.first_waiting(connection, run_uid))
    if first is None:
        return
    number, max_parallel = first
    if max_parallel is None:
        dispatch(runtime, BatchJobId(run_uid, number))
    else:
        fill(runtime, run_uid)


def dispatch(runtime: Runtime, job: BatchJobId) -> int:
    """Put the next chunk of a run's targets on its queue, and behind it the job for the next chunk.

    Returns the number of targets. If the job was delivered twice, the second delivery does nothing. If Redis is down,
    this is logged, and reconcile enqueues the targets. Raises UnknownJobError if this database has no target of that
    run.
    """
    size = runtime.settings.target_chunk

    def take(connection: Connection) -> tuple[list[Target], int | None, dict[str, RunName]]:
        fan_out_targets.lock_waiting(connection, job.run_uid, size + 1)
        chunk, following = fan_out_targets.take_chunk(connection, job, size, runtime.now())
        return chunk, following, fan_out_targets.names_of(connection, [job.run_uid]) if chunk else {}

    chunk, following, names = runtime.database.transact(take)
    if not chunk:
        if not runtime.database.read(lambda connection: fan_out_targets.exists_of(connection, job.run_uid)):
            raise UnknownJobError("no such target in this database.")
        return 0
    jobs = jobs_of(runtime.settings, [target for target in chunk if target.limit_group is None], names)
    if following is not None:
        jobs.append(batch_job(BatchJobId(job.run_uid, following)))
    try:
        runtime.transport.enqueue(jobs, chunk[0].queue, chunk[0].connection, now=runtime.now())
    except RedisError as error:
        text = "%d targets of run %s follow later: %s"
        _log.warning(text, len(chunk), job.run_uid, error, extra={"action": "follow_failed"})
    if groups := _groups_of(chunk):
        limits.give(runtime, groups)
    return len(chunk)


def enqueue_soon(runtime: Runtime, pending: list[Target]) -> None:
    """Put targets that have become pending on their queues. Targets under a limit need a place of their group first.

    If Redis is down, reconcile enqueues the targets.
    """
    if groups := _groups_of(pending):
        limits.give(runtime, groups)
        pending = [target for target in pending if target.limit_group is None]
    try:
        enqueue(runtime, pending)
    except (RedisError, BackendUnavailableError) as error:
        told = len(pending), pending[0].run_uid, error
        _log.warning("%d targets of run %s follow later: %s", *told, extra={"action": "follow_failed"})


def _groups_of(found: Iterable[Target]) -> set[str]:
    return {target.limit_group for target in found if target.limit_group is not None}


def fill(runtime: Runtime, run_uid: str) -> int:
    """Put as many targets of a run on the queue as its `max_parallel` allows. Return their number."""

    def take(connection: Connection) -> list[Target]:
        fan_out_targets.lock_first(connection, run_uid)
        return fan_out_targets.take_free(connection, run_uid, runtime.settings.target_chunk, runtime.now())

    taken = runtime.database.transact(take)
    if taken:
        enqueue_soon(runtime, taken)
    return len(taken)


def promote(runtime: Runtime, run_uid: str | None = None) -> int:
    """Make a page of due retrying and blocked targets pending again, of one run or of all runs.

    Returns their number; if it is PAGE, there may be more.
    """
    ready, limited = runtime.database.transact(lambda c: fan_out_targets.promote(c, runtime.now(), PAGE, run_uid))
    if ready:
        enqueue_soon(runtime, ready)
    for uid in sorted({target.run_uid for target in limited}):
        fill(runtime, uid)
    return len(ready) + len(limited)


def read_progress(runtime: Runtime, run: Run) -> TargetProgress | None:
    """Return the progress of a run's targets; None if it has no targets."""
    now = runtime.now()
    count = partial(fan_out_targets.count_lately, run_uid=run.uid, since=now - WINDOW)
    counts, lately = runtime.database.read(count)
    return progress_of(counts, lately, run.dispatched_at or run.started_at, now) if counts else None


def read_shown_progress(connection: Connection, run: Run, now: datetime) -> tuple[TargetProgress | None, bool]:
    """Return the progress as a page shows it, and whether its numbers are exact. None if the run has no targets.

    Targets are counted up to `MOST_COUNTED` of each status. If there are more, the numbers are not exact, and no pace
    is computed. The end of a run stores exact counts.
    """
    counts, lately = json.loads(run.target_counts or "{}"), 0
    is_exact = bool(counts)
    if not is_exact:
        counts = fan_out_targets.count_each_to(connection, run.uid, MOST_COUNTED)
        is_exact = max(counts.values(), default=0) < MOST_COUNTED
        if counts and is_exact:
            counts, lately = fan_out_targets.count_lately(connection, run.uid, now - WINDOW)
    return progress_of(counts, lately, run.dispatched_at or run.started_at, now) if counts else None, is_exact


def read_targets(
    runtime: Runtime, run: Run, limit: int = 100, cursor: str | None = None, status: str | None = None
) -> Page[TargetDescription]:
    """Read a page of a run's targets, in the order in which they were named."""
    if status is not None and status not in list(TargetStatus):
        raise InvalidInputError("status", f"{status!r} is not one of {', '.join(TargetStatus)}")
    if isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InvalidLimitError("limit", f"must be from 1 to {MAX_PAGE}")
    of = "targets", run.uid
    after = unbind_number(cursor, *of) or 0
    page = partial(fan_out_targets.describe_page, run_uid=run.uid, status=status, after=after, limit=limit)
    items = runtime.database.read(page)
    return Page(items, bind_cursor(str(items[-1].number), *of) if len(items) == limit else None)
