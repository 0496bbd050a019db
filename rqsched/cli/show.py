"""Commands that show schedules: list, describe. Apart from those that change them, whose many options cost a start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from rqsched.api.build_description import describe as describe_schedule
from rqsched.api.build_description import last_outcome
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.cli import parsing
from rqsched.cli.arguments import ScheduleId, Texts
from rqsched.cli.command import command
from rqsched.cli.completion import workflow_names
from rqsched.cli.output import shown
from rqsched.cli.session import Session
from rqsched.core.model import LastOutcome, ScheduleStatus
from rqsched.core.page import MAX_PAGE
from rqsched.core.policy import Policies
from rqsched.spec.words import in_words

app = typer.Typer(add_completion=False)

COLUMNS = ("Schedule ID", "Workflow Type", "Status", "Next Fire", "Last Fire", "Last Outcome", "Timing")
_UPCOMING = 5


class Sort(StrEnum):
    """The order of a list."""

    CREATED = "created"
    """The oldest first."""
    CREATED_LAST = "-created"
    """The newest first."""
    NEXT = "next"
    """Those that fire, the soonest first."""
    NEXT_LAST = "-next"
    """Those that fire, the latest first."""
    ID = "id"
    """By id."""
    ID_LAST = "-id"
    """By id, from its end."""


@command(app, "list")
def list_schedules(
    session: Session,
    status: Annotated[
        list[ScheduleStatus] | None,
        typer.Option(
            "--status", help="Only schedules of this status; may be repeated. Deleted ones are shown only with it."
        ),
    ] = None,
    outcome: Annotated[
        list[LastOutcome] | None,
        typer.Option("--outcome", help="Only schedules whose newest run ended so; may be repeated."),
    ] = None,
    workflow: Annotated[
        str | None,
        typer.Option(
            "--workflow", "--workflow-type", help="Only schedules of this workflow.", autocompletion=workflow_names
        ),
    ] = None,
    label: Annotated[Texts, typer.Option("--label", "-l", help="name=value; all must match.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only schedules of this owner.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Only schedules whose id contains this.")] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            help='An AND of equalities, such as \'WorkflowType = "invoice-sync" AND region = "eu"\': ScheduleId, '
            "Status, WorkflowType, TaskQueue, Note and search attributes.",
        ),
    ] = None,
    overdue: Annotated[
        bool | None, typer.Option("--overdue/--not-overdue", help="Without a success for as long as expected, or not.")
    ] = None,
    created_since: Annotated[
        str | None, typer.Option("--created-since", help="Created at this instant or later.")
    ] = None,
    created_until: Annotated[str | None, typer.Option("--created-until", help="Created before this instant.")] = None,
    next_since: Annotated[str | None, typer.Option("--next-since", help="Fires next at this instant or later.")] = None,
    next_until: Annotated[str | None, typer.Option("--next-until", help="Fires next before this instant.")] = None,
    sort: Annotated[
        Sort, typer.Option("--sort", help="By created, next (those that fire) or id; -id is the other way round.")
    ] = Sort.CREATED,
    limit: Annotated[int, typer.Option("--limit", "--page-size", min=1, max=MAX_PAGE, help="The size of a page.")] = 50,
    page_token: Annotated[
        str | None, typer.Option("--page-token", help="The token of the next page, from the page before.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
) -> None:
    """List schedules in the order they were created, or as --sort says."""
    times = {
        "created_since": created_since,
        "created_until": created_until,
        "next_since": next_since,
        "next_until": next_until,
    }
    filters: dict[str, Any] = {
        "namespace": session.namespace,
        "status": [one.value for one in status or ()],
        "outcome": [one.value for one in outcome or ()],
        "workflow": parsing.given_text("--workflow", workflow),
        "labels": parsing.pairs("--label", label or ()),
        "owner": parsing.given_text("--owner", owner),
        "text": parsing.given_text("--text", text),
        "query": parsing.given_text("--query", query),
        "overdue": overdue,
        **{name: parsing.instant(f"--{name.replace('_', '-')}", text) for name, text in times.items() if text},
    }
    if every:
        _show(session, session.scheduler.iter(sort=sort.value, **filters), None)
    else:
        page = session.scheduler.list(
            limit=limit, cursor=parsing.given_text("--page-token", page_token), sort=sort.value, **filters
        )
        _show(session, page.items, page.next_cursor)


def _show(session: Session, handles: Iterable[ScheduleHandle], token: str | None) -> None:
    writer, namespace = session.writer, session.namespace or session.scheduler.settings.namespace
    if writer.is_lines:
        writer.lines(_fields(handle) for handle in handles)
    elif not writer.is_table:
        found = [_fields(handle) for handle in handles]
        writer.json({"namespace": namespace, "schedules": found, "next_page_token": token})
    else:
        rows = [_row(handle) for handle in handles]
        writer.say(f"Namespace: {namespace}")
        if not rows:
            writer.say("No schedules.")
            return
        writer.table(COLUMNS, rows)
        if token:
            writer.say(f"Next page token: {token}")


def _fields(handle: ScheduleHandle) -> dict[str, Any]:
    return describe_schedule(handle.state).to_dict()


def _row(handle: ScheduleHandle) -> tuple[Any, ...]:
    state = handle.state
    status = f"{handle.status}, no success" if handle.overdue_since else handle.status
    shown_first = handle.schedule_id, handle.workflow, status, state.due_at, state.last_run_at
    return *shown_first, last_outcome(state), in_words(state.spec)


@command(app)
def describe(session: Session, schedule_id: ScheduleId) -> None:
    """Show everything about a schedule."""
    handle = session.schedule(schedule_id)
    fields = handle.describe().to_dict()
    upcoming = handle.upcoming(_UPCOMING)
    if not session.writer.is_table:
        session.writer.json(fields | {"upcoming": upcoming})
        return
    shown_fields = fields | {
        "policies": _unusual(fields["policies"]),
        "last_error": (fields["last_error"] or "").partition("\n")[0],
        "upcoming": ", ".join(shown(at) for at in upcoming),
    }
    session.writer.table(("Field", "Value"), _worth_showing(shown_fields))


def _unusual(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the policies that differ from their defaults."""
    usual = Policies().plain()
    return {name: value for name, value in policies.items() if value != usual.get(name)}


_BLANK: tuple[Any, ...] = (None, "", [], {})
_FOR_PROGRAMS = frozenset({"uid", "position", "latest_run_uid", "spec"})


def _worth_showing(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Leave out blank fields, and those that only programs need."""
    return [(name, value) for name, value in fields.items() if name not in _FOR_PROGRAMS and value not in _BLANK]
