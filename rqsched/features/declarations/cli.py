"""The command `sync`: create and update the schedules that a file, or the application, declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rqsched.cli.arguments import DryRun
from rqsched.cli.command import DIFFERENT, Session, command
from rqsched.cli.output import dump, progress_bar, shown
from rqsched.config import Settings
from rqsched.errors import InvalidInputError
from rqsched.features.declarations import schedule_file
from rqsched.features.declarations.api import PlannedSync, plan_sync
from rqsched.kernel.decide.model import Change, Schedule
from rqsched.kernel.decide.notifications import hidden
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.decide.results import Synced
from rqsched.when.calendars import Calendar

app = typer.Typer(add_completion=False)

_MARKS = {"created": "+", "updated": "~", "removed": "-"}
_DEFAULTS = "workflow_defaults"
"""The key of the defaults that a schedule got from its workflow when it was declared."""
_URLS = (("notifications", "webhook"), ("notifications", "heartbeat"))

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="TOML, YAML or JSON; default: the schedules of imported modules (RQSCHED_IMPORTS, Django's schedules.py).",
    ),
]


@command(app)
def sync(
    session: Session,
    file: File = None,
    delete_removed: Annotated[
        bool, typer.Option("--delete-removed", help="Delete schedules that an earlier sync made and this one lacks.")
    ] = False,
    dry_run: DryRun = False,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="Show the differences, field by field; write nothing. Exit code 6 if there are any."
        ),
    ] = False,
) -> None:
    """Create or update what a file or the application declares."""
    calendars, has_other = list[Calendar](), False
    if file is None:
        declared = session.scheduler.declarations.all()
        if not declared:  # with --delete-removed, an empty set would delete everything
            raise InvalidInputError(
                "file", "is not given and the imported modules declare no schedule; name a file, or see RQSCHED_IMPORTS"
            )
    else:
        declared, calendars = schedule_file.read(file)
        has_other = _calendars(session, calendars, is_preview=dry_run or diff)
    if diff or dry_run:
        plan = plan_sync(
            session.scheduler,
            declared,
            delete_removed=delete_removed,
            namespace=session.namespace,
            calendars=calendars,
        )
        if not diff:
            _show(session, plan.synced, "Would be: ")
        elif _show_differences(session, plan) or has_other:
            raise typer.Exit(DIFFERENT)
        return
    with progress_bar("Synchronising", len(declared)) as advance:
        synced = session.scheduler.sync(
            declared,
            delete_removed=delete_removed,
            namespace=session.namespace,
            context=session.context,
            progress=lambda *_: advance(1),
        )
    _show(session, synced, "")


def _calendars(session: Session, declared: Sequence[Calendar], *, is_preview: bool) -> bool:
    """Set the calendars of a file, before the schedules that name them. Calendars that the file lacks stay.

    Return whether a calendar is, or would be, created or changed.
    """
    of = session.scheduler.calendars
    known = {one.name: one for one in of.list(namespace=session.namespace)}
    told = {name: schedule_file.calendar_of(one) for name, one in known.items()}
    other = [one for one in declared if told.get(one.name) != schedule_file.calendar_of(one)]
    if shared := next((one.name for one in other if one.name in known and known[one.name].is_shared), None):
        how = "is shared by all namespaces, but a file sets calendars of one namespace; choose another name"
        raise InvalidInputError(f"calendars.{shared}", f"{how}, or change it with `rqsched calendar set --shared`")
    for one in other:
        outcome = "changed" if one.name in known else "created"
        session.writer.say(f"Calendar {one.name}: {'would be ' if is_preview else ''}{outcome}.")
        if not is_preview:
            of.set(
                one.name, one.exclude, namespace=session.namespace, description=one.description, source=one.source,
                reaches=one.reaches, context=session.context,
            )  # fmt: skip
    return bool(other)


def _show(session: Session, synced: Synced, intro: str) -> None:
    outcomes = asdict(synced)
    changed = [(schedule_id, name) for name, ids in outcomes.items() for schedule_id in ids]
    if session.writer.is_lines:
        session.writer.lines({"schedule_id": schedule_id, "outcome": name} for schedule_id, name in changed)
        return
    rows = [row for row in changed if row[1] != "unchanged"]
    if session.writer.is_table and rows:
        session.writer.table(("Schedule ID", "Outcome"), rows)
    session.writer.record(outcomes, intro + _counts(synced))


def _counts(synced: Synced) -> str:
    return ", ".join(f"{len(ids)} {name}" for name, ids in asdict(synced).items()) + "."


def _show_differences(session: Session, plan: PlannedSync) -> bool:
    """Show the changes of a sync; returns whether there are any."""
    writer, settings = session.writer, session.settings
    found: list[dict[str, Any]] = [
        {
            "schedule_id": change.after.schedule_id,
            "outcome": "created" if change.before is None else "updated",
            "fields": _fields_changed(change, settings),
        }
        for change in plan.changes
    ]
    found += [{"schedule_id": removed, "outcome": "removed", "fields": []} for removed in plan.synced.removed]
    if writer.for_programs(found, asdict(plan.synced) | {"differences": found}):
        return bool(found)
    for one in found:
        writer.say(f"{_MARKS[one['outcome']]} {one['schedule_id']}")
        for row in one["fields"]:
            before = "" if one["outcome"] == "created" else f"{_in_words(row['before'])} -> "
            writer.say(f"    {row['field']}: {before}{_in_words(row['after'])}")
    writer.say(f"Would be: {_counts(plan.synced)}")
    return bool(found)


def _fields_changed(change: Change, settings: Settings) -> list[dict[str, Any]]:
    """Return a row for each field that differs: `field`, `before` and `after`, named and written as in a file."""
    is_new = change.before is None
    before = {} if change.before is None else _fields(change.before, settings)
    after = {
        field: value
        for field, value in _fields(change.after, settings).items()
        if not (is_new and field[0] == _DEFAULTS)
    }
    rows = []
    for field in dict.fromkeys([*after, *before]):
        usual = None if is_new else schedule_file.usual(*field)
        was, becomes = before.get(field, usual), after.get(field, usual)
        if was != becomes and not (is_new and field[0] == _DEFAULTS):
            rows.append({"field": ".".join(field), "before": _safe(field, was), "after": _safe(field, becomes)})
    return rows


def _fields(schedule: Schedule, settings: Settings) -> dict[tuple[str, ...], Any]:
    """Return every field that a sync may change. Each value in an object is a separate field."""
    definition = schedule.definition
    entry = schedule_file.entry_of(schedule, settings) | schedule_file.untold(definition, settings)
    told = entry | {"status": schedule.status.value, _DEFAULTS: loads(definition.defaults)}
    found: dict[tuple[str, ...], Any] = {}
    for name, value in told.items():
        if isinstance(value, dict):
            found |= {(name, key): one for key, one in value.items()}
        elif name not in {"schedule_id", "paused"}:  # the status shows a pause
            found[name,] = value
    return found


def _safe(field: tuple[str, ...], value: Any) -> Any:
    """Return a value for display. A URL may hold a secret, so only its host is shown."""
    return hidden(value) if field in _URLS and value else value


def _in_words(value: Any) -> str:
    return shown(value if value is None or (isinstance(value, str) and value) else dump(value))
