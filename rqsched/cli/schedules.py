"""Commands that create and change schedules: create, upsert, update."""

from __future__ import annotations

from typing import Annotated

import typer

from rqsched.cli.arguments import NewId, Note, ScheduleId, Texts
from rqsched.cli.command import command
from rqsched.cli.completion import workflow_names
from rqsched.cli.schedule_options import Given, Timing, blanked
from rqsched.cli.session import Session
from rqsched.core.option_table import Options
from rqsched.errors import InvalidInputError

app = typer.Typer(add_completion=False)

Workflow = Annotated[
    str,
    typer.Argument(metavar="WORKFLOW", help="A registered name or a dotted path.", autocompletion=workflow_names),
]


@command(app)
def create(
    session: Session,
    schedule_id: NewId,
    workflow: Workflow,
    timing: Timing,
    given: Given,
    note: Note = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
) -> None:
    """Create a schedule; refused when its id is taken."""
    handle = session.scheduler.create(
        schedule_id,
        workflow,
        timing.spec(),
        note=note,
        namespace=session.namespace,
        paused=paused,
        context=session.context,
        **given.options(),
    )
    session.report(handle, "created")


@command(app)
def upsert(
    session: Session,
    schedule_id: ScheduleId,
    workflow: Workflow,
    timing: Timing,
    given: Given,
    note: Note = None,
    paused: Annotated[
        bool | None, typer.Option("--paused/--active", help="Default: an existing schedule stays as it is.")
    ] = None,
) -> None:
    """Create a schedule, or change the existing one to exactly these options."""
    handle, outcome = session.scheduler.upsert(
        schedule_id,
        workflow,
        timing.spec(),
        note=note,
        namespace=session.namespace,
        paused=paused,
        context=session.context,
        **given.options(),
    )
    session.report(handle, outcome)


@command(app)
def update(
    session: Session,
    schedule_id: ScheduleId,
    timing: Timing,
    given: Given,
    note: Note = None,
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", help="A registered name or a dotted path.", autocompletion=workflow_names),
    ] = None,
    unset: Annotated[Texts, typer.Option("--unset", help="An option to make blank, such as max-runs.")] = None,
    if_version: Annotated[
        int | None, typer.Option("--if-version", help="Refuse unless the schedule is at this version.")
    ] = None,
    paused: Annotated[
        bool | None, typer.Option("--paused/--active", help="Also pause it, or make a paused or dead one fire again.")
    ] = None,
) -> None:
    """Change the given options and leave the rest. The next time moves only with the timing."""
    blank = blanked(unset or ())
    handle = session.schedule(schedule_id)
    before = handle.state.version
    options: Options = {**blank, **given.options(handle.state.definition.parsed_notifications)}
    spec = timing.changed(handle.state.spec, unset or ())
    if not options and spec is None and workflow is None and note is None and paused is None:
        raise InvalidInputError("update", "has nothing to change; give at least one option, such as --cron or --note")
    handle.update(workflow, spec, note=note, context=session.context, if_version=if_version, paused=paused, **options)
    session.report(handle, "unchanged" if handle.state.version == before else "updated")
