"""Commands that say what schedules there are to be, and show them: create, upsert, update, list, describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from rqsched.api.describe import describe as describe_schedule
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.cli import parsing as values
from rqsched.cli.command import command
from rqsched.cli.completion import workflow_names
from rqsched.cli.options import Action, Facts, NewId, Note, Policy, ScheduleId, Texts, Timing, blanked
from rqsched.cli.output import shown
from rqsched.cli.session import Session
from rqsched.core.model import ScheduleStatus
from rqsched.core.options import Options
from rqsched.core.payload import loads
from rqsched.core.policy import Policies
from rqsched.store.listing import MAX_PAGE

app = typer.Typer(add_completion=False)

Workflow = Annotated[
    str,
    typer.Argument(metavar="WORKFLOW", help="A registered name or a dotted path.", autocompletion=workflow_names),
]
COLUMNS = ("Schedule ID", "Workflow Type", "Status", "Next Fire", "Last Fire")
_UPCOMING = 5


@command(app)
def create(
    session: Session,
    schedule_id: NewId,
    workflow: Workflow,
    timing: Timing,
    action: Action,
    policy: Policy,
    facts: Facts,
    note: Note = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
) -> None:
    """Create a schedule; refused when its id is taken."""
    spec, options = timing.spec(), _options(timing, action, policy, facts)
    handle = session.scheduler.create(
        schedule_id,
        workflow,
        spec,
        note=note,
        namespace=session.namespace,
        paused=paused,
        context=session.context,
        **options,
    )
    session.report(handle, "created")


@command(app)
def upsert(
    session: Session,
    schedule_id: ScheduleId,
    workflow: Workflow,
    timing: Timing,
    action: Action,
    policy: Policy,
    facts: Facts,
    note: Note = None,
    paused: Annotated[
        bool | None, typer.Option("--paused/--active", help="Default: a known schedule stays as it is.")
    ] = None,
) -> None:
    """Create a schedule, or make the known one exactly what is declared here."""
    spec, options = timing.spec(), _options(timing, action, policy, facts)
    handle, outcome = session.scheduler.upsert(
        schedule_id,
        workflow,
        spec,
        note=note,
        namespace=session.namespace,
        paused=paused,
        context=session.context,
        **options,
    )
    session.report(handle, outcome)


def _options(timing: Timing, action: Action, policy: Policy, facts: Facts) -> Options:
    return {**timing.options(), **action.options(), **policy.options(), **facts.options()}


@command(app)
def update(
    session: Session,
    schedule_id: ScheduleId,
    timing: Timing,
    action: Action,
    policy: Policy,
    facts: Facts,
    note: Note = None,
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", help="A registered name or a dotted path.", autocompletion=workflow_names),
    ] = None,
    unset: Annotated[Texts, typer.Option("--unset", help="An option to make blank, such as max-runs.")] = None,
    if_version: Annotated[int | None, typer.Option("--if-version", help="Refuse unless it is at this version.")] = None,
) -> None:
    """Change what is given and leave the rest. The next time moves only with the timing."""
    blank = blanked(unset or ())
    handle = session.schedule(schedule_id)
    before = handle.state.version
    options: Options = {
        **blank,
        **timing.options(),
        **action.options(),
        **policy.options(handle.state.policies.retry),
        **facts.options(),
    }
    spec = timing.changed(handle.state.spec, unset or ())
    handle.update(workflow, spec, note=note, context=session.context, if_version=if_version, **options)
    session.report(handle, "unchanged" if handle.state.version == before else "updated")


@command(app, "list")
def list_schedules(
    session: Session,
    status: Annotated[
        list[ScheduleStatus] | None, typer.Option("--status", help="Only these; deleted ones only so.")
    ] = None,
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", "--workflow-type", help="Only of this one.", autocompletion=workflow_names),
    ] = None,
    label: Annotated[Texts, typer.Option("--label", "-l", help="name=value; all must match.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only of this one.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="A part of the id.")] = None,
    limit: Annotated[int, typer.Option("--limit", "--page-size", min=1, max=MAX_PAGE, help="Of a page.")] = 50,
    page_token: Annotated[str | None, typer.Option("--page-token", help="Where the next page starts.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
) -> None:
    """List schedules in the order they were created."""
    filters: dict[str, Any] = {
        "namespace": session.namespace,
        "status": [one.value for one in status or ()],
        "workflow": workflow,
        "labels": values.pairs("--label", label or ()),
        "owner": owner,
        "text": text,
    }
    if every:
        _show(session, session.scheduler.iter(**filters), None)
    else:
        page = session.scheduler.list(limit=limit, cursor=page_token, **filters)
        _show(session, page.items, page.next_cursor)


def _show(session: Session, handles: Iterable[ScheduleHandle], token: str | None) -> None:
    writer = session.writer
    if writer.is_lines:
        writer.lines(_facts(handle) for handle in handles)
    elif not writer.is_table:
        writer.json({"schedules": [_facts(handle) for handle in handles], "next_page_token": token})
    else:
        rows = [_row(handle) for handle in handles]
        if not rows:
            writer.say("No schedules.")
            return
        writer.table(COLUMNS, rows)
        if token:
            writer.say(f"Next page token: {token}")


def _facts(handle: ScheduleHandle) -> dict[str, Any]:
    return describe_schedule(handle.state).to_dict()


def _row(handle: ScheduleHandle) -> tuple[Any, ...]:
    state = handle.state
    return handle.schedule_id, handle.workflow, handle.status, state.due_at, state.last_run_at


@command(app)
def describe(session: Session, schedule_id: ScheduleId) -> None:
    """Show everything there is to know of a schedule."""
    handle = session.schedule(schedule_id)
    facts = handle.describe().to_dict()
    upcoming = handle.upcoming(_UPCOMING)
    if not session.writer.is_table:
        session.writer.json(facts | {"upcoming": upcoming})
        return
    told = facts | {
        "policies": _unusual(facts["policies"]),
        "last_error": (facts["last_error"] or "").partition("\n")[0],
        "upcoming": ", ".join(shown(at) for at in upcoming),
    }
    session.writer.table(("Field", "Value"), _told(told))


def _unusual(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the policies that are not what they are by default."""
    usual = loads(Policies().dumps())
    return {name: value for name, value in policies.items() if value != usual.get(name)}


_BLANK: tuple[Any, ...] = (None, "", [], {})
_BORING = frozenset({"uid", "position", "latest_run_uid", "spec"})


def _told(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Leave out what says nothing: blanks, and what only programs want."""
    return [(name, value) for name, value in facts.items() if name not in _BORING and value not in _BLANK]
