"""Commands about schedules that exist: list, describe, upcoming; pause, resume, restart, delete, trigger.

The commands that declare schedules are in `create`, because their many options slow the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from heapq import merge
from itertools import islice
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from rqsched.api.list_filters import read_page
from rqsched.cli import arguments
from rqsched.cli.arguments import Listed, Note, Overlap, PageToken, ScheduleId, Until, Yes, schedule_ids
from rqsched.cli.command import CONFLICT, Session, command, confirm
from rqsched.cli.output import notice, shown
from rqsched.errors import error_line
from rqsched.kernel.decide.audit import NOT_TRIGGERABLE
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.decide.policy import OnResume, Policies
from rqsched.kernel.decide.results import MAX_PAGE, pages
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.when.duration import format_short
from rqsched.when.words import after_in_words, in_words

app = typer.Typer(add_completion=False)

COLUMNS = ("Schedule ID", "Workflow Type", "Status", "Next Fire", "Last Fire", "Last Outcome", "Timing")
FIRES = ("Fires At", "In", "Schedule ID", "Workflow Type")
WIDTH = 60
"""Columns of a timeline."""
_UPCOMING = 5
_MOST_LINES = 20
_LABEL = 24
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
    """By id."""
    ID_LAST = "-id"
    """By id, from its end."""


@command(app, "list")
def list_schedules(
    session: Session,
    listed: Listed,
    sort: Annotated[
        Sort,
        typer.Option(
            "--sort", help="By created, next (only those that fire) or id; -created, -next and -id reverse it."
        ),
    ] = Sort.CREATED,
    limit: Annotated[int, typer.Option("--limit", "--page-size", min=1, max=MAX_PAGE, help="The size of a page.")] = 50,
    page_token: PageToken = None,
    every: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
) -> None:
    """List schedules in the order they were created, or as --sort says."""
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


Fire = tuple[datetime, str, str]
"""When it fires, its schedule, its workflow."""


@command(app)
def upcoming(
    session: Session,
    schedule_id: Annotated[
        str | None,
        typer.Argument(metavar="SCHEDULE_ID", help="Default: all active schedules.", autocompletion=schedule_ids),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-c", min=1, max=1_000, help="How many fires.")] = 10,
) -> None:
    """Show the next fires of one schedule, or of all.

    Local times in between that the clocks leave out are named, too.
    """
    now, writer = session.scheduler.runtime.now(), session.writer
    if schedule_id is None:  # by its first fire, a schedule can or cannot be among the next `count`
        schedules = session.scheduler.runtime.database.read(lambda c: schedule_queries.soonest(c, session.named, count))
    else:
        schedules = [session.schedule(schedule_id).state]
    fires = list(islice(merge(*(_fires(schedule, now) for schedule in schedules)), count))
    rows = [{"fires_at": at, "schedule_id": name, "workflow": workflow} for at, name, workflow in fires]
    left_out = list(_left_out(schedules, now, fires[-1][0])) if fires else []
    gaps = [{"schedule_id": name, "local_time": reading.isoformat()} for name, reading in left_out]
    if writer.for_programs(rows, {"now": now, "upcoming": rows, "left_out": gaps}):
        return
    if not fires:
        after = schedules[0].spec.after if schedule_id is not None else None
        writer.say("Nothing will fire." if after is None else f"It fires {after_in_words(after)}: no times ahead.")
        return
    writer.table(FIRES, [(at, until(now, at), name, workflow) for at, name, workflow in fires])
    for line in draw(fires, now):
        writer.say(line)
    for name, reading in left_out:
        writer.say(f"{name}: {reading:%H:%M:%S on %a %d %b %Y} is left out: the clocks go forward over it.")


def _fires(schedule: Schedule, now: datetime) -> Iterator[Fire]:
    from rqsched.api.build_description import iter_upcoming  # noqa: PLC0415 - as above

    for at in iter_upcoming(schedule, now):
        yield at, schedule.schedule_id, schedule.definition.workflow


def _left_out(schedules: Sequence[Schedule], now: datetime, end: datetime) -> Iterator[tuple[str, datetime]]:
    """Yield the local times up to `end` that match a schedule's timing but do not exist, with the schedule's id."""
    for schedule in schedules:
        for gap in schedule.spec.gaps_between(now, end):
            yield schedule.schedule_id, gap.reading


def until(now: datetime, at: datetime) -> str:
    """Return the time from `now` until an instant: to the second within a day, to the hour beyond."""
    if at <= now:
        return "due"
    left = timedelta(seconds=max(1, round((at - now).total_seconds())))
    hours = left.seconds // 3600
    return f"{left.days}d{f'{hours}h' if hours else ''}" if left.days else format_short(left)


def draw(fires: Sequence[Fire], now: datetime) -> list[str]:
    """Draw fires over time from `now` to the last one: a line per schedule, a digit where several coincide."""
    end = max(at for at, _, _ in fires)
    names = list(dict.fromkeys(name for _, name, _ in fires))
    label = min(max(len(name) for name in names), _LABEL)
    step = max(end - now, timedelta(seconds=1)) / (WIDTH - 1)
    left, right = f"now {now:%H:%M:%S}", f"{end:%Y-%m-%d %H:%M:%S} UTC"
    lines = ["", " " * (label + 1) + left + right.rjust(WIDTH - len(left))]
    for name in names[:_MOST_LINES]:
        cells = [max(0, int((at - now) / step)) for at, whose, _ in fires if whose == name]
        counts = [cells.count(cell) for cell in range(WIDTH)]
        line = "".join("·" if n == 0 else "●" if n == 1 else str(n) if n < 10 else "+" for n in counts)
        lines.append(f"{shown(name)[:label]:<{label}} {line}")
    more = len(names) - _MOST_LINES
    return lines + ([f"... and {more} more schedules"] if more > 0 else [])


@command(app)
def pause(
    session: Session,
    schedule_id: ScheduleId,
    note: Note = None,
    until: Until = None,
    on_resume: Annotated[
        str | None, typer.Option("--on-resume", help=f"With --until: where it continues, {', '.join(OnResume)}.")
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

    Idempotent: a repeat skips no further ones.
    """
    handle = session.schedule(schedule_id).skip_next(count, reason=session.reason, context=session.context)
    session.report(handle, "changed")


@command(app)
def resume(
    session: Session,
    schedule_id: ScheduleId,
    note: Note = None,
    on_resume: Annotated[
        str | None, typer.Option("--on-resume", help=f"Where it continues: {', '.join(OnResume)}.")
    ] = None,
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
    """Delete a schedule; its history stays readable, its id is free again."""
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
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="The same key starts the same run only once.")
    ] = None,
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
        if session.writer.is_table and result.reason == NOT_TRIGGERABLE:
            notice("Nothing was started: the schedule is not active. --force triggers a paused one.")
        raise typer.Exit(CONFLICT)
