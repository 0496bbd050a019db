"""The command `bulk`: pause, resume or trigger every schedule that matches."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from rqsched.api.bulk import DEFAULT_BOUND
from rqsched.cli import outcomes, parsing
from rqsched.cli.arguments import Note, Texts
from rqsched.cli.command import command
from rqsched.cli.completion import workflow_names
from rqsched.cli.session import Session
from rqsched.core.model import LastOutcome, ScheduleStatus

app = typer.Typer(add_completion=False)

COLUMNS = {"Schedule": "schedule_id", "Outcome": "outcome", "Reason": "reason"}


class Operation(StrEnum):
    """What is done to each schedule."""

    PAUSE = "pause"
    """Stop firing."""
    RESUME = "resume"
    """Fire again."""
    TRIGGER = "trigger"
    """Start a run now."""


@command(app)
def bulk(
    session: Session,
    operation: Annotated[Operation, typer.Argument(help="What is done to each.")],
    status: Annotated[
        list[ScheduleStatus] | None, typer.Option("--status", help="Default: active; paused for resume.")
    ] = None,
    outcome: Annotated[
        list[LastOutcome] | None, typer.Option("--outcome", help="Only those whose newest run ended so.")
    ] = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Only of this workflow.", autocompletion=workflow_names)
    ] = None,
    label: Annotated[Texts, typer.Option("--label", "-l", help="name=value; all must match.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only of this owner.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Only those whose id contains this.")] = None,
    overdue: Annotated[
        bool | None, typer.Option("--overdue/--not-overdue", help="Without a success for as long as expected, or not.")
    ] = None,
    note: Note = None,
    catch_up: Annotated[str | None, typer.Option("--catch-up", help="Where resume continues.")] = None,
    overlap: Annotated[str | None, typer.Option("--overlap", help="Of a trigger, instead of their own policy.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Of a trigger: repeated it starts nothing twice.")
    ] = None,
    bound: Annotated[int, typer.Option("--bound", min=1, help="Refuse more schedules than this.")] = DEFAULT_BOUND,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")] = False,
) -> None:
    """Pause, resume or trigger every schedule that matches. Exit code 4 when one was skipped."""
    rows = session.scheduler.bulk(
        operation.value,
        reason=session.reason,
        note=note,
        catch_up=catch_up,
        overlap=overlap,
        idempotency_key=idempotency_key,
        dry_run=dry_run,
        bound=bound,
        context=session.context,
        namespace=session.namespace,
        status=[one.value for one in status or ()],
        outcome=[one.value for one in outcome or ()],
        workflow=parsing.given_text("--workflow", workflow),
        labels=parsing.pairs("--label", label or ()),
        owner=parsing.given_text("--owner", owner),
        text=parsing.given_text("--text", text),
        overdue=overdue,
    )
    outcomes.show(session.writer, "Done", rows, COLUMNS, noun="schedules", dry_run=dry_run)
