"""Commands about schedules that exist: list, describe, why, pause, skip, resume, restart, delete and trigger.

The commands that declare schedules are in the module `create`, because their many options make its import slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from rqsched.api.list_filters import read_page
from rqsched.api.options import Policies
from rqsched.api.states import SkipReason
from rqsched.api.values import MAX_PAGE, pages
from rqsched.cli import arguments
from rqsched.cli.arguments import (
    IdempotencyKey,
    Listed,
    Note,
    Overlap,
    PageToken,
    ScheduleId,
    Until,
    WhereResumed,
    Yes,
)
from rqsched.cli.command import CONFLICT, Session, command, confirm
from rqsched.cli.output import notice, shown
from rqsched.errors import error_line
from rqsched.types import Schedule
from rqsched.when.words import in_words

app = typer.Typer(add_completion=False)

COLUMNS = ("Schedule ID", "Workflow Type", "Status", "Next Fire", "Last Fire", "Last Outcome", "Timing")
_UPCOMING = 5
_BLANK: tuple[Any, ...] = (None, "", [], {})
_FOR_PROGRAMS = frozenset({"uid", "position", "last_run_uid", "spec"})
"""The fields of a description that people do not need."""


class Sort(StrEnum):
    """The order of a list."""

    CREATED = "created"
    """The oldest first."""
    CREATED_LAST = "-created"
    """The newest first."""
    NEXT = "next"
    """Schedules that fire, the soonest first."""
    NEXT_LAST = "-next"
    """Schedules that fire, the latest first."""
    ID = "id"
    """By id, from A to Z."""
    ID_LAST = "-id"
    """By id, from Z to A."""


@command(app, "list")
def list_schedules(
    session: Session,
    listed: Listed,
    sort: Annotated[
        Sort,
        typer.Option("--sort", metavar="ORDER", help="created, next or id; -next reverses it."),
    ] = Sort.CREATED,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MAX_PAGE, metavar="N", help="The size of a page.")] = 50,
    page_token: PageToken = None,
    every: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
) -> None:
    """List schedules, the oldest first or as --sort says."""
    read = partial(read_page, session.database, session.named, sort=sort.value, **listed.all_filters())
    if every:
        _show(session, pages(lambda cursor: read(limit=MAX_PAGE, cursor=cursor)), None)
    else:
        page = read(limit=limit, cursor=arguments.given_text("--page-token", page_token))
        _show(session, page.items, page.next_cursor)


def _show(session: Session, schedules: Iterable[Schedule], token: str | None) -> None:
    writer, namespace = session.writer, session.namespace or session.settings.namespace
    if not writer.is_table:
        from rqsched.api.build_description import describe  # noqa: PLC0415 - a table needs no description

        rows = (describe(schedule).to_dict() for schedule in schedules)
        found = rows if writer.is_lines else list(rows)
        writer.for_programs(found, {"namespace": namespace, "schedules": found, "next_page_token": token})
        return
    cells = [_row(schedule) for schedule in schedules]
    writer.say(f"Namespace: {namespace}")
    if not cells:
        writer.say("No schedules.")
        return
    writer.table(COLUMNS, cells)
    writer.say_next_page(token)


def _row(schedule: Schedule) -> tuple[Any, ...]:
    status = f"{schedule.status.value}, no success" if schedule.overdue_since else schedule.status.value
    first = schedule.schedule_id, schedule.definition.workflow, status, schedule.due_at, schedule.last_run_at
    return *first, schedule.last_outcome, in_words(schedule.spec)


@command(app)
def describe(session: Session, schedule_id: ScheduleId) -> None:
    """Show everything about a schedule."""
    handle = session.schedule(schedule_id)
    fields = handle.describe().to_dict()
    upcoming = handle.upcoming(_UPCOMING)
    if not session.writer.is_table:
        session.writer.json(fields | {"upcoming": upcoming})
        return
    usual = Policies().plain()
    shown_fields = fields | {
        "policies": {name: value for name, value in fields["policies"].items() if value != usual.get(name)},
        "last_error": error_line(fields["last_error"]),
        "upcoming": ", ".join(shown(at) for at in upcoming),
        "skips": ", ".join(fields["skips"]),
    }
    told = ((name, value) for name, value in shown_fields.items() if name not in _FOR_PROGRAMS and value not in _BLANK)
    session.writer.table(("Field", "Value"), list(told))


@command(app)
def why(
    session: Session,
    schedule_id: ScheduleId,
    at: Annotated[
        str | None,
        typer.Argument(
            metavar="TIME",
            help="Such as '2026-01-31 08:00' in the schedule's zone, or 2026-01-31T08:00Z; default: the newest "
            "occurrence up to now.",
        ),
    ] = None,
) -> None:
    """Say why a schedule ran, or did not run, at an instant."""
    handle = session.newest(schedule_id)
    told = handle.why(None if at is None else arguments.instant("TIME", at, ZoneInfo(handle.spec.timezone)))
    if not session.writer.is_table:
        session.writer.json(told.to_dict())
        return
    session.writer.say(f"{shown(told.occurrence_at or told.at)}  {told.answer}")
    session.writer.say(told.text)


@command(app)
def pause(
    session: Session,
    schedule_id: ScheduleId,
    note: Note = None,
    until: Until = None,
    on_resume: Annotated[
        str | None, typer.Option("--on-resume", metavar="WHERE", help="With --until: where it continues.")
    ] = None,
) -> None:
    """Stop firing; runs and retries continue, buffered runs wait. With --until it fires again by itself then."""
    handle = session.schedule(schedule_id)
    handle.pause(
        note,
        reason=session.reason,
        until=None if until is None else arguments.instant_ahead("--until", until, handle.runtime.now()),
        on_resume=on_resume,
        context=session.context,
    )
    session.report(handle, "paused")


@command(app)
def skip(
    session: Session,
    schedule_id: ScheduleId,
    count: Annotated[int, typer.Argument(metavar="N", help="How many, 1 to 100; 0 takes back what is skipped.")] = 1,
) -> None:
    """Skip the next N occurrences that are not due yet.

    A repeated command skips no further occurrences.
    """
    handle = session.schedule(schedule_id).skip_next(count, reason=session.reason, context=session.context)
    session.report(handle, "changed")


@command(app)
def resume(
    session: Session,
    schedule_id: ScheduleId,
    note: Note = None,
    on_resume: WhereResumed = None,
) -> None:
    """Start firing again."""
    handle = session.schedule(schedule_id).resume(on_resume, note=note, context=session.context)
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
    """Delete a schedule; its history stays, its id is free again."""
    handle = session.newest(schedule_id) if purge else session.schedule(schedule_id)
    if purge:
        confirm(f"Remove {schedule_id!r} with all its runs and history for good?", yes)
    handle.delete(purge=purge, reason=session.reason, context=session.context)
    session.report(handle, "purged" if purge else "deleted")


@command(app)
def trigger(
    session: Session,
    schedule_id: ScheduleId,
    overlap: Overlap = None,
    force: Annotated[bool, typer.Option("--force", help="Trigger a paused schedule too.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Start a run now; the schedule's times do not move. Exit code 4 when nothing was started."""
    from rqsched.api.build_description import describe_run  # noqa: PLC0415 - as above

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
        "run": describe_run(result.run.state) if result.run else None,
    }
    why = f" ({result.reason})" if result.reason else ""
    if result.buffer_depth is not None:
        why = f" (waiting, {result.buffer_depth} in line)"
    session.writer.record(fields, f"[{schedule_id}] → {result.instance_id or result.outcome}{why}")
    if not result:
        if session.writer.is_table and result.reason == SkipReason.STATUS:
            notice("Nothing was started: the schedule is not active. --force triggers a paused one.")
        raise typer.Exit(CONFLICT)
