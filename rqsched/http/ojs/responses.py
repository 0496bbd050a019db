"""What this surface answers: cron jobs and jobs, in one superset that serves every published shape."""

from __future__ import annotations

import json
from typing import Any

from rqsched.chain.external import Claimed
from rqsched.core.ids import uid_to_uuid
from rqsched.core.model import Run, RunStatus, Schedule, ScheduleStatus
from rqsched.core.payload import loads
from rqsched.core.policy import OverlapPolicy
from rqsched.http.ojs.errors import at
from rqsched.spec.duration import format_short
from rqsched.spec.spec import Every, Spec

_POLICIES = {
    OverlapPolicy.ALLOW_ALL: "allow",
    OverlapPolicy.CANCEL_OTHER: "cancel_previous",
    OverlapPolicy.BUFFER_ALL: "enqueue",
}
_STATES = {
    RunStatus.PENDING: "available",
    RunStatus.RUNNING: "active",
    RunStatus.RETRYING: "retryable",
    RunStatus.BUFFERED: "pending",
    RunStatus.SUCCEEDED: "completed",
    RunStatus.CANCELLED: "cancelled",
    RunStatus.TERMINATED: "cancelled",
    RunStatus.FAILED: "discarded",
    RunStatus.LOST: "discarded",
}


def sent(schedule: Schedule) -> dict[str, Any]:
    """Give what the client sent last: expression and options, verbatim."""
    found: dict[str, Any] = loads(schedule.definition.surface).get("ojs", {})
    return found


def expression_of(schedule: Schedule) -> str:
    """Give the expression as it was sent, while it still says when; a schedule of another surface gets one made."""
    said, spec = sent(schedule).get("expression"), schedule.spec
    if said is not None and Spec.coerce(said, spec.timezone).anchored_like(spec) == spec:
        return str(said)
    if len(spec.members) == 1 and isinstance(every := spec.members[0], Every):
        return f"@every {format_short(every.every)}"
    return spec.primary_cron or spec.describe()


def cron_job(schedule: Schedule) -> dict[str, Any]:
    """Give a cron job."""
    definition, expression = schedule.definition, expression_of(schedule)
    options = sent(schedule).get("options", {})
    args = loads(definition.action)["args"]
    is_enabled = schedule.status is ScheduleStatus.ACTIVE
    return {
        "name": schedule.schedule_id,
        "cron": expression,
        "expression": expression,
        "timezone": schedule.spec.timezone,
        "type": definition.workflow,
        "args": args,
        "options": options,
        "job_template": {"type": definition.workflow, "args": args, "options": options},
        "overlap_policy": _POLICIES.get(schedule.policies.overlap, schedule.policies.overlap.value),
        "enabled": is_enabled,
        "status": schedule.status.value,
        "description": definition.description,
        "last_run_at": at(schedule.last_run_at),
        "next_run_at": at(schedule.due_at) if is_enabled else None,
        "run_count": schedule.run_count,
        "created_at": at(schedule.created_at),
    }


def one(schedule: Schedule) -> dict[str, Any]:
    """Give the answer about one cron job, under both published names."""
    job = cron_job(schedule)
    return {"cron_job": job, "cron": job}


def state_of(run: Run) -> str:
    """Give a run's state in the spec's words."""
    return _STATES[run.status]


def job(claimed: Claimed, default_queue: str) -> dict[str, Any]:
    """Give a run as the job it is for a worker."""
    run, schedule = claimed.run, claimed.schedule
    action, options = loads(run.action), sent(schedule).get("options", {})
    # A retry is queued anew; the cron triggered when the run was made.
    meta = {**loads(run.memo), "cron_name": schedule.schedule_id, "cron_triggered_at": at(run.created_at)}
    known = {
        "tags": options.get("tags"),
        "timeout": run.timeout,
        "kwargs": action["kwargs"] or None,
        "result": None if run.result is None else json.loads(run.result),
        "error": None if run.error is None else {"message": run.error},
        "started_at": at(run.started_at),
        "completed_at": at(run.ended_at),
    }
    return {
        "specversion": "1.0",
        "id": uid_to_uuid(run.uid),
        "type": run.workflow,
        "queue": run.queue or default_queue,
        "args": action["args"],
        "meta": meta,
        "state": state_of(run),
        "attempt": run.attempt,
        "max_attempts": schedule.policies.retry.max_retries + 1,
        "priority": run.priority,
        "created_at": at(run.created_at),
        "scheduled_at": at(run.occurrence_at),
        "enqueued_at": at(run.queued_at),
        **{name: value for name, value in known.items() if value is not None},
    }
