"""Commands about runs and audit events: history, deliveries, runs, run, cancel, terminate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from rqsched.api.description import DeliveryDescription
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.cli.arguments import ScheduleId
from rqsched.cli.command import CONFLICT, command
from rqsched.cli.output import dump
from rqsched.cli.session import Session
from rqsched.cli.target_commands import find_run, follow, in_words
from rqsched.core.audit import AuditRecord
from rqsched.core.deliveries import DeliveryStatus
from rqsched.core.model import BLOCKED, Run, RunStatus
from rqsched.core.page import MAX_PAGE
from rqsched.core.payload import loads

app = typer.Typer(add_completion=False)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's uid, number or instance id.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MAX_PAGE, help="The size of a page.")]
HISTORY = ("Seq", "Event", "Recorded At", "Workflow Refs", "Reason")
DELIVERIES = ("Created", "Event", "To", "Status", "Attempt", "Error")
RUNS = ("#", "Kind", "Occurrence", "Status", "Attempt", "Started", "Took", "Error")
_JSON_FIELDS = ("action", "labels", "memo", "search_attributes", "lineage", "attempts", "result", "target_counts")
_PRIVATE = ("token",)
_BLANK: tuple[Any, ...] = (None, "", [], {})
ATTEMPTS = ("Attempt", "Outcome", "Started", "Ended", "Error")


class _RunFilter(StrEnum):
    """What `--status` takes: the statuses of runs, and `blocked` for those of the pending ones."""

    PENDING = RunStatus.PENDING
    BLOCKED = BLOCKED
    RUNNING = RunStatus.RUNNING
    RETRYING = RunStatus.RETRYING
    BUFFERED = RunStatus.BUFFERED
    SUCCEEDED = RunStatus.SUCCEEDED
    FAILED = RunStatus.FAILED
    CANCELLED = RunStatus.CANCELLED
    TERMINATED = RunStatus.TERMINATED
    LOST = RunStatus.LOST


@command(app)
def history(
    session: Session,
    schedule_id: ScheduleId,
    limit: Limit = 100,
    after_sequence: Annotated[int, typer.Option("--after-sequence", min=0, help="Only events after this one.")] = 0,
    every: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
) -> None:
    """Show a schedule's audit events, oldest first; also after it was deleted."""
    handle = session.newest(schedule_id)
    if every:
        _show_events(session, handle, handle.iter_history(after_sequence), has_more=False)
        return
    events = handle.history(limit, after_sequence)
    has_more = len(events) == limit and bool(handle.history(1, events[-1].sequence))
    _show_events(session, handle, events, has_more=has_more)


@command(app)
def deliveries(
    session: Session,
    schedule_id: ScheduleId,
    status: Annotated[
        DeliveryStatus | None, typer.Option("--status", help="Only notifications of this status.")
    ] = None,
    limit: Limit = 50,
    before: Annotated[str | None, typer.Option("--before", help="Only those before this uid.")] = None,
) -> None:
    """Show what a schedule owed to whom, newest first; also after it was deleted."""
    found = session.newest(schedule_id).deliveries(limit, before, status=status and status.value).items
    writer = session.writer
    if writer.is_lines:
        writer.lines(one.to_dict() for one in found)
    elif not writer.is_table:
        writer.json({"deliveries": [one.to_dict() for one in found]})
    elif not found:
        writer.say("No notifications.")
    else:
        writer.table(DELIVERIES, [_delivery_row(one) for one in found])


def _delivery_row(delivery: DeliveryDescription) -> tuple[Any, ...]:
    where = f"{delivery.kind} {delivery.destination}"
    error = (delivery.error or "").partition("\n")[0]
    return delivery.created_at, delivery.event_type, where, delivery.status, delivery.attempt, error


def _show_events(
    session: Session, handle: ScheduleHandle, events: list[AuditRecord] | Iterator[AuditRecord], *, has_more: bool
) -> None:
    writer = session.writer
    if writer.is_lines:
        writer.lines(_event(event) for event in events)
        return
    events = list(events)
    if not writer.is_table:
        cursor = events[-1].sequence if has_more else None
        named = {"schedule_id": handle.schedule_id, "namespace": handle.namespace}
        page = {"events": [_event(event) for event in events], "next_cursor": cursor, "has_more": has_more}
        writer.json(named | page)
        return
    if not events:
        writer.say(f"No audit events recorded for schedule {handle.schedule_id}.")
        return
    writer.table(HISTORY, [(e.sequence, e.event_type, e.recorded_at, _refs(e), _reason(e)) for e in events])
    if has_more:
        writer.say(f"More events available: continue with --after-sequence={events[-1].sequence} or --all.")


def _event(event: AuditRecord) -> dict[str, Any]:
    return asdict(event)


def _refs(event: AuditRecord) -> str:
    refs = (("wf", event.workflow_instance_id), ("run", event.workflow_run_id))
    return " ".join(f"{name}={value}" for name, value in refs if value)


def _reason(event: AuditRecord) -> str:
    """Return why it happened: the rule's word, who asked and what for, the error's first line."""
    asked = event.payload.get("command_context") or {}
    given = (event.payload.get("reason"), asked.get("reason"), _first_line(event.payload.get("error")))
    return "; ".join(dict.fromkeys(str(one) for one in given if one))


def _first_line(error: str | None) -> str:
    return (error or "").strip().partition("\n")[0]


@command(app)
def runs(
    session: Session,
    schedule_id: ScheduleId,
    status: Annotated[
        list[_RunFilter] | None,
        typer.Option("--status", help="Only runs of this status; may be repeated. Blocked ones lack a worker's code."),
    ] = None,
    limit: Limit = 50,
    page_token: Annotated[
        str | None, typer.Option("--page-token", help="The token of the next page, from the page before.")
    ] = None,
) -> None:
    """Show a schedule's runs, newest first; also after it was deleted."""
    page = session.newest(schedule_id).runs(limit, page_token, tuple(one.value for one in status or ()))
    writer, rows = session.writer, [run_fields(run.state) for run in page.items]
    if writer.is_lines:
        writer.lines(rows)
    elif not writer.is_table:
        writer.json({"schedule_id": schedule_id, "runs": rows, "next_page_token": page.next_cursor})
    elif not rows:
        writer.say("No runs.")
    else:
        writer.table(RUNS, [_row(run.state) for run in page.items])
        if page.next_cursor:
            writer.say(f"Next page token: {page.next_cursor}")


def run_fields(run: Run) -> dict[str, Any]:
    """Return every field of a run as a JSON-native object."""
    fields = {name: value for name, value in asdict(run).items() if name not in _PRIVATE}
    return fields | {name: fields[name] and loads(fields[name]) for name in _JSON_FIELDS}


def _row(run: Run) -> tuple[Any, ...]:
    took = run.ended_at - run.started_at if run.ended_at and run.started_at else None
    return (
        run.number,
        run.kind.value,
        run.occurrence_at,
        run.shown_status,
        run.attempt,
        run.started_at,
        None if took is None else f"{took.total_seconds():.2f}s",
        _first_line(run.blocked_reason or run.error),
    )


@command(app, "run")
def show_run(
    session: Session,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Its uid; with --schedule its number or instance id too.")],
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="ID", help="The schedule it is one of.")] = None,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for its end, with a bar of its targets in a terminal.")
    ] = False,
) -> None:
    """Show one run whole: its attempts, the error with its traceback, and its result."""
    found = find_run(session, run, schedule)
    if is_followed:
        follow(found)
    progress = found.progress() if found.dispatched_at is not None else None
    writer, fields = session.writer, run_fields(found.state)
    if not writer.is_table:
        writer.json(fields if progress is None else fields | {"progress": progress.to_dict()})
        return
    attempts, error, result = fields.pop("attempts") or [], fields.pop("error"), fields.pop("result")
    writer.table(("Field", "Value"), [(name, value) for name, value in fields.items() if value not in _BLANK])
    if progress is not None:
        writer.say(f"\n{in_words(progress)}")
    if attempts:
        writer.say("")
        writer.table(ATTEMPTS, [_attempt(attempt) for attempt in attempts])
    for name, text in (("Error", error), ("Result", None if result is None else dump(result, indent=2))):
        if text:
            writer.say(f"\n{name}:\n{text.rstrip()}")


def _attempt(attempt: dict[str, Any]) -> tuple[Any, ...]:
    named = (attempt.get(name) for name in ("attempt", "outcome", "started_at", "ended_at"))
    return *named, _first_line(attempt.get("error"))


@command(app)
def cancel(session: Session, schedule_id: ScheduleId, run: RunId) -> None:
    """End a run: a waiting one never starts, a running one sees it at a checkpoint."""
    _end(session, session.newest(schedule_id).run(run).cancel(session.reason, context=session.context), "cancelled")


@command(app)
def terminate(session: Session, schedule_id: ScheduleId, run: RunId) -> None:
    """End a run and kill its process."""
    _end(session, session.newest(schedule_id).run(run).terminate(session.reason, context=session.context), "terminated")


def _end(session: Session, run: RunHandle, wanted: str) -> None:
    """Write what the run is now; one that had already ended otherwise is a conflict."""
    is_done = run.status == wanted
    text = f"Run {run.instance_id} is {run.status}{'' if is_done else '; it had already ended'}."
    session.writer.record(run_fields(run.state), text)
    if not is_done:
        raise typer.Exit(CONFLICT)
