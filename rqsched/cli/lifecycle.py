"""Commands that change what a schedule does: pause, resume, restart, delete, trigger."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rqsched.api.schedule_handle import RunHandle, TriggerResult
from rqsched.cli.arguments import Note, Overlap, ScheduleId
from rqsched.cli.command import CONFLICT, command
from rqsched.cli.output import notice
from rqsched.cli.runs import run_fields
from rqsched.cli.session import Session
from rqsched.core.audit import NOT_TRIGGERABLE
from rqsched.core.policy import CatchUp
from rqsched.errors import InvalidInputError

app = typer.Typer(add_completion=False)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@command(app)
def pause(session: Session, schedule_id: ScheduleId, note: Note = None) -> None:
    """Stop firing; runs and retries continue, buffered runs wait."""
    handle = session.schedule(schedule_id).pause(note, reason=session.reason, context=session.context)
    session.report(handle, "paused")


@command(app)
def resume(
    session: Session,
    schedule_id: ScheduleId,
    note: Note = None,
    catch_up: Annotated[
        str | None, typer.Option("--catch-up", help=f"Where it continues: {', '.join(CatchUp)}.")
    ] = None,
) -> None:
    """Start firing again."""
    handle = session.schedule(schedule_id).resume(catch_up, note=note, context=session.context)
    session.report(handle, "resumed")


@command(app)
def restart(session: Session, schedule_id: ScheduleId, note: Note = None) -> None:
    """Restart a done or dead schedule with its counters at zero."""
    handle = session.schedule(schedule_id).restart(note=note, context=session.context)
    session.report(handle, "restarted")


@command(app)
def delete(
    session: Session,
    schedule_id: ScheduleId,
    purge: Annotated[bool, typer.Option("--purge", help="Remove runs and history too, for good.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a schedule; its history stays readable, its id is free again."""
    handle = session.newest(schedule_id) if purge else session.schedule(schedule_id)
    if purge:
        confirm(f"Remove {schedule_id!r} with all its runs and history for good?", yes)
    handle.delete(purge=purge, reason=session.reason, context=session.context)
    session.report(handle, "purged" if purge else "deleted")


def confirm(question: str, is_agreed: bool) -> None:
    """Ask before something is removed for good; without a terminal --yes is required."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise InvalidInputError("--yes", "is missing; without a terminal there is nobody to ask")
    typer.confirm(question, abort=True, err=True)


@command(app)
def trigger(
    session: Session,
    schedule_id: ScheduleId,
    overlap: Overlap = None,
    force: Annotated[bool, typer.Option("--force", help="Trigger a paused schedule too.")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="The same key starts the same run only once.")
    ] = None,
) -> None:
    """Start a run now; the schedule's times do not move. Exit code 4 when nothing was started."""
    result = session.schedule(schedule_id).trigger(
        overlap, force=force, idempotency_key=idempotency_key, context=session.context
    )
    fields = {
        "schedule_id": schedule_id,
        "outcome": result.outcome,
        "reason": result.reason,
        "buffer_depth": result.buffer_depth,
        "instance_id": result.instance_id,
        "run_id": result.run.uid if result.run else None,
        "run": run_fields(result.run.state) if result.run else None,
    }
    session.writer.record(fields, f"[{schedule_id}] → {result.instance_id or result.outcome}{_because(result)}")
    if not result:
        if session.writer.is_table and result.reason == NOT_TRIGGERABLE:
            notice("Nothing was started: the schedule is not active. --force triggers a paused one.")
        raise typer.Exit(CONFLICT)


def _because(result: TriggerResult[RunHandle]) -> str:
    if result.buffer_depth is not None:
        return f" (waiting, {result.buffer_depth} in line)"
    return f" ({result.reason})" if result.reason else ""
