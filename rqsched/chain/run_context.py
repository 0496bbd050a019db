"""What `current_run()` returns to a workflow: of a run, and of one target of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

from rqsched.core.model import Run, RunStatus, Schedule, fence_of
from rqsched.workflows import RunContext


def make_context(
    run: Run,
    schedule: Schedule,
    *,
    started_at: datetime,
    timeout: int,
    checkpoint: Callable[[], None],
    attempt: int | None = None,
    target_id: str | None = None,
) -> RunContext:
    """Return what a workflow may know of its run; `attempt` is that of the target with `target_id`."""
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
        scheduled_at=run.due_at or run.occurrence_at,
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
    )
