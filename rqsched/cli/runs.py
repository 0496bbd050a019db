"""Commands about runs, their targets, and the records of a schedule.

The commands are history, runs, cancel, terminate, run show, run again, run targets and run deliveries.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from rqsched.api.build_description import describe_run
from rqsched.api.run_handle import RunHandle
from rqsched.api.states import BLOCKED, EXCLUDED, EXPIRED, MISSED, OPEN, miss_in_words
from rqsched.api.values import iso_utc
from rqsched.cli.arguments import (
    IdempotencyKey,
    Limit,
    PageToken,
    RunName,
    ScheduleId,
    ScheduleOfRun,
    given_text,
    instant,
    instant_or_age,
    json_of,
    schedule_ids,
    workflow_names,
)
from rqsched.cli.command import CONFLICT, Session, command
from rqsched.cli.output import Writer, dump, progress_bar
from rqsched.errors import error_line
from rqsched.types import AuditRecord, DeliveryStatus, Page, Run, RunStatus, TargetProgress, TargetStatus

app = typer.Typer(add_completion=False)
of_run = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show one run whole, its targets or notifications; run it again."
)
app.add_typer(of_run, name="run")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's uid, number or instance id.")]
HISTORY = ("Seq", "Event", "Recorded At", "Workflow Refs", "Reason")
DELIVERIES = ("Created", "Event", "To", "Status", "Attempt", "Error")
RUNS = ("#", "Kind", "Occurrence", "Status", "Attempt", "Started", "Took", "Error")
TARGETS = ("#", "Target", "Status", "Attempt", "Ended", "Error")
ATTEMPTS = ("Attempt", "Outcome", "Started", "Ended", "Error")
_BLANK: tuple[Any, ...] = (None, "", [], {})
_LOOK_SECONDS = 1.0
"""Seconds between two reads of a followed run."""


class _RunFilter(StrEnum):
    """The values of `--status`: the statuses of runs, `blocked` (pending without code) and `expired` (cancelled)."""

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
    EXPIRED = EXPIRED


@command(app)
def history(
    session: Session,
    schedule_id: ScheduleId,
    limit: Limit = 100,
    after_sequence: Annotated[int, typer.Option("--after-sequence", min=0, help="Only events after this one.")] = 0,
    every: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
) -> None:
    """Show a schedule's audit events, oldest first. They stay readable after the schedule was deleted."""
    handle, writer = session.newest(schedule_id), session.writer
    found: Iterable[AuditRecord] = (
        handle.iter_history(after_sequence) if every else handle.history(limit, after_sequence)
    )
    if writer.is_lines:
        writer.lines(asdict(event) for event in found)
        return
    events = list(found)
    has_more = not every and len(events) == limit and bool(handle.history(1, events[-1].sequence))
    cursor = events[-1].sequence if has_more else None
    if not writer.is_table:
        named = {"schedule_id": handle.schedule_id, "namespace": handle.namespace}
        page = {"events": [asdict(event) for event in events], "next_cursor": cursor, "has_more": has_more}
        writer.json(named | page)
        return
    if not events:
        writer.say(f"No audit events recorded for schedule {handle.schedule_id}.")
        return
    writer.table(HISTORY, [(e.sequence, e.event_type, e.recorded_at, _refs(e), _reason(e)) for e in events])
    if has_more:
        writer.say(f"More events available: continue with --after-sequence={cursor} or --all.")


def _refs(event: AuditRecord) -> str:
    refs = (("wf", event.workflow_instance_id), ("run", event.workflow_run_id))
    return " ".join(f"{name}={value}" for name, value in refs if value)


def _reason(event: AuditRecord) -> str:
    """Return the cause of an event: a rule, the caller's reason, an error's line, or how many times were missed."""
    asked = event.payload.get("command_context") or {}
    by = event.payload.get("asked_by")
    given = (
        event.payload.get("reason"),
        by and f"asked by {by}",
        event.payload.get("asked_reason"),
        asked.get("reason"),
        error_line(event.payload.get("error")),
        _missed(event),
    )
    return "; ".join(dict.fromkeys(str(one) for one in given if one))


def _missed(event: AuditRecord) -> str:
    """Return how many occurrences were missed and why, or how many are excluded."""
    if event.event_type not in {MISSED, EXCLUDED}:
        return ""
    told = event.payload
    at_least = "+" if told.get("count_capped") else ""
    if event.event_type == EXCLUDED:
        return f"{told['count']}{at_least} excluded"
    why = miss_in_words(str(told.get("policy", "")), has_fired=bool(told.get("fired")))
    return f"{told['count']}{at_least} missed: {why}"


@command(app)
def runs(
    session: Session,
    schedule_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCHEDULE_ID]",
            help="The id in the namespace; without it the runs of all schedules.",
            autocompletion=schedule_ids,
        ),
    ] = None,
    status: Annotated[
        list[_RunFilter] | None,
        typer.Option("--status", help="Only runs of this status; may be repeated. blocked: no worker has their code."),
    ] = None,
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", help="Only runs of this workflow.", autocompletion=workflow_names),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Created since this instant, or so long ago (1h); with --error: ended."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Created, or ended, before this instant.")] = None,
    error: Annotated[
        str | None,
        typer.Option(
            "--error", help="Only runs that failed or were lost, and whose error contains this; by their end."
        ),
    ] = None,
    limit: Limit = 50,
    page_token: PageToken = None,
) -> None:
    """Show the runs of a schedule, or of all of them, newest first. Runs of deleted schedules are included."""
    statuses, now = tuple(one.value for one in status or ()), session.scheduler.runtime.now
    handle = None if schedule_id is None else session.newest(schedule_id)
    if handle is not None and workflow is since is until is error is None:
        found = handle.runs(limit, page_token, statuses)
        page = found.map(lambda run: (handle.schedule_id, run))
    else:
        page = session.scheduler.runs.list(
            status=statuses,
            schedule_id=schedule_id,
            workflow=given_text("--workflow", workflow),
            since=None if since is None else instant_or_age("--since", since, now()),
            until=None if until is None else instant("--until", until),
            error=given_text("--error", error),
            namespace=session.namespace,
            limit=limit,
            cursor=page_token,
        )
    _show_runs(session.writer, page, schedule_id)


def _show_runs(writer: Writer, page: Page[tuple[str, RunHandle]], schedule_id: str | None) -> None:
    """Write a page of runs. If the runs belong to several schedules, each row has the schedule's id."""
    of = {} if schedule_id is None else {"schedule_id": schedule_id}
    rows = [describe_run(run.state) | ({} if of else {"schedule_id": name}) for name, run in page.items]
    if writer.for_programs(rows, {**of, "runs": rows, "next_page_token": page.next_cursor}):
        return
    if not rows:
        writer.say("No runs.")
        return
    cells = [(*(() if of else (name,)), *_row(run.state)) for name, run in page.items]
    writer.table(RUNS if of else ("Schedule", *RUNS), cells)
    writer.say_next_page(page.next_cursor)


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
        error_line(run.blocked_reason or run.error),
    )


@command(of_run)
def show(
    session: Session,
    run: RunName,
    schedule: ScheduleOfRun = None,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for its end, with a bar of its targets in a terminal.")
    ] = False,
) -> None:
    """Show one run whole: its attempts, the error with its traceback, and its result."""
    found = session.run(run, schedule)
    if is_followed:
        _follow(found)
    progress = found.progress() if found.dispatched_at is not None else None
    writer, fields = session.writer, describe_run(found.state)
    if not writer.is_table:
        writer.json(fields if progress is None else fields | {"progress": progress.to_dict()})
        return
    attempts, error, result = fields.pop("attempts") or [], fields.pop("error"), fields.pop("result")
    writer.table(("Field", "Value"), [(name, value) for name, value in fields.items() if value not in _BLANK])
    if progress is not None:
        writer.say(f"\n{_in_words(progress)}")
    if attempts:
        shown = ("attempt", "outcome", "started_at", "ended_at")
        writer.say("")
        writer.table(ATTEMPTS, [(*map(one.get, shown), error_line(one.get("error"))) for one in attempts])
    for name, text in (("Error", error), ("Result", None if result is None else dump(result, indent=2))):
        if text:
            writer.say(f"\n{name}:\n{text.rstrip()}")


@command(of_run)
def again(
    session: Session,
    run: RunName,
    schedule: ScheduleOfRun = None,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="A list: other arguments. Needs --reason.")
    ] = None,
    kwargs: Annotated[
        str | None, typer.Option("--kwargs", metavar="JSON", help="An object: other arguments. Needs --reason.")
    ] = None,
    downstream: Annotated[
        bool, typer.Option("--downstream", help="Also start the schedules that run after this one.")
    ] = False,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Run an ended run again, also a successful one, as a new run.

    The new run is for the same occurrence, moves no time of the schedule, and starts when the overlap policy allows. To
    give a failed run one more attempt, use `rqsched retry`.
    """
    new = session.run(run, schedule).run_again(
        session.reason,
        args=None if args is None else json_of("--args", args, list),
        kwargs=None if kwargs is None else json_of("--kwargs", kwargs, dict),
        downstream=downstream,
        idempotency_key=idempotency_key,
        context=session.context,
    )
    waits = " waits for the run ahead of it" if new.status == RunStatus.BUFFERED else f" is {new.status}"
    session.writer.record(describe_run(new.state), f"Run {new.instance_id}{waits}.")


@command(of_run)
def targets(
    session: Session,
    run: RunName,
    schedule: ScheduleOfRun = None,
    status: Annotated[TargetStatus | None, typer.Option("--status", help="Only targets of this status.")] = None,
    limit: Limit = 100,
    page_token: PageToken = None,
) -> None:
    """Show the targets of a run in the order they were named, and its progress."""
    found = session.run(run, schedule)
    page, progress = found.targets(limit, page_token, status=status and status.value), found.progress()
    writer, rows = session.writer, [target.to_dict() for target in page.items]
    plain = progress and progress.to_dict()
    document = {"run": found.uid, "progress": plain, "targets": rows, "next_page_token": page.next_cursor}
    if writer.for_programs(rows, document):
        return
    if progress is None:
        writer.say("No targets.")
        return
    cells = [(t.number, t.target_id, t.status, t.attempt, t.ended_at, error_line(t.error)) for t in page.items]
    writer.table(TARGETS, cells)
    writer.say(_in_words(progress))
    writer.say_next_page(page.next_cursor)


@command(of_run)
def deliveries(
    session: Session,
    schedule_id: ScheduleId,
    status: Annotated[
        DeliveryStatus | None, typer.Option("--status", help="Only notifications of this status.")
    ] = None,
    limit: Limit = 50,
    before: Annotated[str | None, typer.Option("--before", help="Only those before this uid.")] = None,
) -> None:
    """Show the notifications of a schedule, newest first; also after it was deleted."""
    found = session.newest(schedule_id).deliveries(limit, before, status=status and status.value).items
    writer, rows = session.writer, [one.to_dict() for one in found]
    if writer.for_programs(rows, {"deliveries": rows}):
        return
    if not found:
        writer.say("No notifications.")
        return
    cells = [
        (d.created_at, d.event_type, f"{d.kind} {d.destination}", d.status, d.attempt, error_line(d.error))
        for d in found
    ]
    writer.table(DELIVERIES, cells)


def _in_words(progress: TargetProgress) -> str:
    """Return the progress of a run's targets in words."""
    counts = ", ".join(f"{count} {status}" for status, count in progress.counts.items())
    pace = "" if progress.per_second is None else f"; {progress.per_second:.1f} a second"
    end = "" if progress.ends_at is None else f", until about {iso_utc(progress.ends_at.replace(microsecond=0))}"
    return f"{progress.ended} of {progress.total} targets have ended: {counts}{pace}{end}."


def _follow(run: RunHandle) -> None:
    """Refresh a run until it has ended, while a bar shows the progress of its targets."""
    while run.refresh().state.status in OPEN and (progress := run.progress()) is None:
        time.sleep(_LOOK_SECONDS)
    if run.state.status not in OPEN or progress is None:
        return
    with progress_bar(f"Targets of {run.instance_id}", progress.total) as advance:
        advance(done := progress.ended)
        while run.refresh().state.status in OPEN:
            time.sleep(_LOOK_SECONDS)
            progress = run.progress() or progress
            advance(progress.ended - done)
            done = progress.ended


@command(app)
def cancel(session: Session, schedule_id: ScheduleId, run: RunId) -> None:
    """End a run, a running one at its next checkpoint. A waiting run never starts."""
    _end(session, session.newest(schedule_id).run(run).cancel(session.reason, context=session.context), "cancelled")


@command(app)
def terminate(session: Session, schedule_id: ScheduleId, run: RunId) -> None:
    """End a run and kill its process."""
    _end(session, session.newest(schedule_id).run(run).terminate(session.reason, context=session.context), "terminated")


def _end(session: Session, run: RunHandle, wanted: str) -> None:
    """Write the new status of the run. If it had already ended in another status, exit with the code of a conflict."""
    is_done = run.status == wanted
    text = f"Run {run.instance_id} is {run.status}{'' if is_done else '; it had already ended'}."
    session.writer.record(describe_run(run.state), text)
    if not is_done:
        raise typer.Exit(CONFLICT)
