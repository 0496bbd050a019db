"""Stop a frozen namespace, or delete it: end its unfinished runs, or delete all its rows and jobs, in small steps.

Each step of a deletion deletes some hundred rows from SQL, and then the jobs of these rows from Redis. If it is
interrupted, the namespace is still frozen, and another deletion continues. The last step ends the freeze and writes one
line for the audit. If a job cannot be removed from Redis, a dispatcher or worker later finds no row for the job and
drops it.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import count, islice
from typing import NamedTuple

from redis.exceptions import RedisError

from rqsched.errors import BackendUnavailableError, ConflictError, RunNotFoundError, SchemaError
from rqsched.features.namespaces import store as namespaces
from rqsched.features.namespaces.store import OpenRuns
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.settle import end_run, reason_of, settle_run
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.results import MOST_EXECUTING, NamespaceData, number_of
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Connection

_log = logging.getLogger(__name__)

AT_ONCE = 100
"""The maximum number of runs that one part of a stop ends."""
PART_TIME = timedelta(seconds=2)
"""A part of a stop that takes longer ends after its current run."""
BATCH = 500
"""The maximum number of rows that one step deletes. The rows of schedules are not counted."""
_DELETING = "deleting"
"""The name of the stored value that holds the number of deleted rows of each table."""
_Done = tuple[namespaces.Step, dict[str, int]]


class Stopping(NamedTuple):
    """The progress of one step that stops a namespace."""

    ended: int
    """How many runs this part has cancelled or terminated."""
    left: int
    """How many runs the next parts have to end, up to the limit of the count."""
    failed: list[tuple[str, str]]
    """The runs that could not be ended, each with its uid and the reason."""


def count_open(runtime: Runtime, namespace: str, most: int) -> OpenRuns:
    """Count the unfinished runs of a namespace, each kind up to `most`."""
    return runtime.database.read(partial(namespaces.count_open, namespace=namespace, most=most))


def end_some(
    runtime: Runtime,
    namespace: str,
    context: CommandContext,
    *,
    terminates: bool,
    most: int,
    below: str | None = None,
) -> Stopping:
    """Cancel the next waiting runs of a frozen namespace, or terminate the next running ones (`terminates`).

    One call ends at most `AT_ONCE` runs in about `PART_TIME`. The newest runs end first, because the end of an older
    run would queue the buffered run behind it. A run whose status has changed meanwhile is left as it is.

    If a run cannot be ended because of an error, `failed` names it, and the call continues with the older runs. With
    `below`, only runs with a lower uid are ended. Pass the uid of the last failed run as `below`, so that the next part
    does not try that run again.

    Raises ConflictError if the namespace is not frozen, because other runs would begin in the places of the ended ones.
    Raises BackendUnavailableError or RedisError if SQL or Redis does not answer.
    """
    if runtime.database.read(partial(metadata.find_value, name=metadata.FREEZE, namespace=namespace)) is None:
        raise ConflictError(_not_frozen(namespace))
    statuses = namespaces.RUNNING if terminates else namespaces.WAITING
    outcome = AttemptOutcome.TERMINATED if terminates else AttemptOutcome.CANCELLED
    asked = AttemptResult(outcome, reason=context.reason, context=context)
    newest = partial(namespaces.newest_open, namespace=namespace, statuses=statuses)
    ended, failed, until = 0, list[tuple[str, str]](), runtime.now() + PART_TIME
    for uid in runtime.database.read(partial(newest, most=AT_ONCE, below=below)):
        try:
            change = settle_run(runtime, uid, asked, fence=lambda run: run.status in statuses)
            ended += change is not None
        except (BackendUnavailableError, SchemaError, RedisError):
            raise
        except Exception as error:  # noqa: BLE001 - one unreadable row must not keep the older runs from their end
            failed.append((uid, reason_of(error, uid)))
            below = uid
        if runtime.now() >= until:
            break
    return Stopping(ended, len(runtime.database.read(partial(newest, most=most, below=below))), failed)


def preview(runtime: Runtime, namespace: str, most: int | None = None) -> NamespaceData:
    """Return how many rows a deletion would delete, each kind up to `most`, and whether it may begin. Write nothing."""

    def read(connection: Connection) -> NamespaceData:
        is_frozen = metadata.find_value(connection, metadata.FREEZE, namespace) is not None
        executing = len(namespaces.executing(connection, namespace, MOST_EXECUTING))
        rows = namespaces.count(connection, namespace, most)
        return NamespaceData(namespace, is_frozen, executing, rows, is_over=False)

    return runtime.database.read(read)


def delete(
    runtime: Runtime,
    namespace: str,
    context: CommandContext,
    *,
    terminates: bool = False,
    steps: int | None = None,
) -> NamespaceData:
    """Delete a frozen namespace, or make at most `steps` steps.

    Return how many rows were deleted since the deletion began.

    Raises ConflictError if the namespace is not frozen, or if runs execute and `terminates` is not set.
    """
    if runtime.database.read(partial(metadata.find_value, name=metadata.FREEZE, namespace=namespace)) is None:
        raise ConflictError(_not_frozen(namespace))
    terminated = _end_executing(runtime, namespace, context, terminates=terminates)
    rows: dict[str, int] = {}
    is_over, tried = False, list[_Done]()

    def work(connection: Connection) -> _Done:
        if metadata.lock_value(connection, metadata.FREEZE, namespace) is None:
            if tried and tried[-1][0].is_over:  # the earlier try was committed, but its answer was lost
                return tried[-1]
            raise ConflictError(_not_frozen(namespace))
        tried.append(_step(connection, namespace, context, runtime.now))
        return tried[-1]

    for _ in islice(count(), steps):
        step, rows = runtime.database.transact(work)
        runtime.transport.forget(step.links, step.jobs)
        if is_over := step.is_over:
            break
    if is_over:
        try:
            runtime.freezes.share()
        except RedisError as error:
            _log.warning("Redis is not told what is frozen yet: %s", error, extra={"action": "freeze_not_copied"})
        who = context.principal or "a program"
        _log.warning("namespace %r is deleted by %s: %s", namespace, who, rows, extra={"action": "namespace_deleted"})
    return NamespaceData(namespace, not is_over, terminated, rows, is_over)


def _not_frozen(namespace: str) -> str:
    return f"namespace {namespace!r} is not frozen, so more may begin in it; run `rqsched freeze {namespace}` first."


def _end_executing(runtime: Runtime, namespace: str, context: CommandContext, *, terminates: bool) -> int:
    """Terminate the executing runs and return how many. Without `terminates`, raise ConflictError if any executes."""
    terminated = set[str]()
    find = partial(namespaces.executing, namespace=namespace)
    while found := {*runtime.database.read(partial(find, most=MOST_EXECUTING + len(terminated)))} - terminated:
        if not terminates:
            told = number_of(len(found), "executing run", "+" if len(found) >= MOST_EXECUTING else "")
            raise ConflictError(
                f"namespace {namespace!r} has {told}; wait until all have ended, or have them terminated."
            )
        for uid in sorted(found):
            try:
                end_run(runtime, uid, AttemptOutcome.TERMINATED, reason=context.reason, context=context)
            except RunNotFoundError:
                continue
        terminated |= found
    return len(terminated)


def _step(connection: Connection, namespace: str, context: CommandContext, now: Callable[[], datetime]) -> _Done:
    step = namespaces.delete_some(connection, namespace, BATCH)
    rows = Counter(json.loads(metadata.find_value(connection, _DELETING, namespace) or "{}")) + step.rows
    if not step.is_over:
        metadata.set_value(connection, _DELETING, json.dumps(rows), namespace)
        return step, dict(rows)
    metadata.forget_namespace(connection, namespace)
    told = ", ".join(f"{number} {name}" for name, number in sorted(rows.items())) or "nothing"
    metadata.record_altered(connection, f"namespace {namespace}: deleted ({told})", now, context, namespace)
    return step, dict(rows)
