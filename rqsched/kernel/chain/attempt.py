"""A claimed attempt, the context that its workflow gets, and the parent that may write to SQL for this process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol, TypeAlias

from rqsched.kernel.chain.commit import Decided
from rqsched.kernel.decide.ids import RunJobId
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule, fence_of
from rqsched.kernel.decide.settle_decision import AttemptResult
from rqsched.workflows import RunContext


class Claim(NamedTuple):
    """A run attempt that this process executes."""

    run: Run
    """The run as it was started."""
    schedule: Schedule
    """The schedule that started it."""
    token: str
    """The token that this process drew for the attempt. Only its holder may end the attempt."""
    owed: tuple[str, ...] = ()
    """The uids of the pings to send for the start."""
    version: str | None = None
    """The version of the schedule's row, as the claim read it (`StartedRun`)."""


def make_context(
    run: Run,
    schedule: Schedule,
    *,
    started_at: datetime,
    timeout: int,
    checkpoint: Callable[[], None],
    attempt: int | None = None,
    target_id: str | None = None,
    traceparent: str | None = None,
) -> RunContext:
    """Return the context that a workflow gets about its run. For a target, give `target_id` and the target's `attempt`.

    `traceparent` is the span of the attempt. If the attempt is not traced (None), the context has the span of the
    request for the run.
    """
    copied_from = None if run.asked_attempt is None else run.copied_from  # nobody requested an ordinary run
    return RunContext(
        uid=run.uid,
        instance_id=run.instance_id,
        schedule_uid=schedule.uid,
        schedule_id=schedule.schedule_id,
        namespace=schedule.namespace,
        workflow=run.workflow,
        kind=run.kind.value,
        status=RunStatus.RUNNING.value,
        occurrence_at=run.occurrence_at,
        attempt=run.attempt if attempt is None else attempt,
        fence=fence_of(started_at),
        # A copy is made for the time of the copied run, although it is due now.
        scheduled_at=(run.due_at if copied_from is None else None) or run.occurrence_at,
        started_at=started_at,
        deadline_at=started_at + timedelta(seconds=timeout),
        trigger_number=run.trigger_number,
        repeat_number=schedule.success_count,
        labels=json.loads(run.labels),
        memo=json.loads(run.memo),
        search_attributes=json.loads(run.search_attributes),
        payload=json.loads(run.action)["kwargs"],
        _checkpoint=checkpoint,
        error=run.error if target_id is None else None,
        target_id=target_id,
        traceparent=traceparent or run.traceparent,
        copied_from=copied_from,
    )


End: TypeAlias = Decided[Change | None]
"""A recorded end: the Changes to publish. Its `result` is the Change if this process decided it, else None."""


def process_name() -> str:
    """Return the name of this process for the column `worker`."""
    return f"{socket.gethostname()}:{os.getpid()}"[-255:]


class NotAnsweredError(Exception):
    """The parent did not write the claim or the end, or its answer was lost.

    This process then does the write itself.
    """


class ParentWorker(Protocol):
    """The worker that forked this process. It writes to SQL for this process over a connection that is open already.

    Both methods may raise NotAnsweredError. Then this process repeats the write with the same token, which shows
    whether the parent has written already.
    """

    def claim(self, job: RunJobId, token: str, worker: str) -> Claim | None:
        """Claim the attempt that this process was forked for; None when it could not be claimed."""
        ...

    def end(self, attempt_result: AttemptResult, at: datetime) -> End:
        """Record how the claimed attempt ended; returns the same as `write_end`. Nothing is published."""
        ...
