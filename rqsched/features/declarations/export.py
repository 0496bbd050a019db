"""The command `export`: write the existing schedules as a file that `sync` reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from rqsched.cli.arguments import Listed
from rqsched.cli.command import Session, command
from rqsched.cli.output import Output, notice
from rqsched.config import Settings
from rqsched.errors import InvalidInputError
from rqsched.features.declarations import schedule_file
from rqsched.features.declarations.schedule_file import Format
from rqsched.kernel.decide.model import TASK, Schedule, ScheduleStatus
from rqsched.kernel.decide.results import number_of
from rqsched.when.calendars import Calendar

app = typer.Typer(add_completion=False)

_MOST_NAMED = 10
"""The maximum number of schedules that a notice names."""


class _Exported(NamedTuple):
    entries: list[dict[str, Any]]
    """The entries of the schedules in the file."""
    untold: dict[str, Iterable[str]]
    """The parts that a file cannot hold, by the id of the schedule that is left out because of them."""
    tasks: list[str]
    """Ids of schedules that are left out because they are tasks of Django."""
    done: list[str]
    """Ids of schedules that are left out because they are done."""
    urls: list[str]
    """Ids of schedules with URLs, which may be secrets."""
    calendars: dict[str, Calendar]
    """The namespace's calendars that schedules in the file name."""


@command(app)
def export(
    session: Session,
    listed: Listed,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", dir_okay=False, help="Ends in .toml, .yaml or .json; default: standard output."),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: as FILE ends, else toml; json under -o json.")
    ] = None,
) -> None:
    """Write schedules as a file that `sync` reads. Keep the file in Git, or use it to move schedules."""
    form = _format(file, form, session.output)
    if ScheduleStatus.DELETED in (listed.status or ()):
        raise InvalidInputError("--status", "is deleted, but a file cannot hold deleted schedules; leave it out")
    handles = session.scheduler.iter(sort="id", namespace=session.namespace, **listed.all_filters())
    is_done_wanted = ScheduleStatus.DONE in (listed.status or ())
    found = _exported((handle.state for handle in handles), session.settings, is_done_wanted=is_done_wanted)
    told = [
        f"{schedule_id} is left out, because a file cannot hold: {', '.join(names)}."
        for schedule_id, names in found.untold.items()
    ]
    for line in told:
        notice(line)
    if found.tasks:
        notice(f"Left out because they are tasks of Django: {_named(found.tasks)}.")
    if found.done:
        notice(f"Left out because done (--status done writes them): {_named(found.done)}.")
    if found.urls:
        notice(f"The file holds URLs of notifications, which may be secrets: {_named(found.urls)}.")
    if file is None and session.writer.is_lines:
        session.writer.lines(found.entries)
        return
    text = schedule_file.text_of(found.entries, form, head=told, calendars=found.calendars.values())
    if file is None:
        session.writer.document(text)
        return
    schedule_file.write(file, text)
    fields = {
        "file": str(file),
        "schedules": len(found.entries),
        "left_out": sorted([*found.untold, *found.tasks, *found.done]),
    }
    session.writer.record(fields, f"{number_of(len(found.entries), 'schedule')} written to {file}.")


def _format(file: Path | None, given: Format | None, output: Output) -> Format:
    """Return the format to write; raises InvalidInputError if FILE, --format and --output contradict each other."""
    if file is None:
        usual = Format.TOML if output is Output.TABLE else Format.JSON
        if usual is Format.JSON and given not in {None, usual}:
            raise InvalidInputError("--format", f"is {given}, but -o {output} is JSON; name a FILE, or leave out -o")
        return given or usual
    named = schedule_file.require_format(file)
    if given not in {None, named}:
        raise InvalidInputError("--format", f"is {given}, but sync reads {file.name} as {named}; leave it out")
    return named


def _exported(schedules: Iterable[Schedule], settings: Settings, *, is_done_wanted: bool) -> _Exported:
    found = _Exported([], {}, [], [], [], {})
    for schedule in schedules:
        named = schedule.schedule_id
        if schedule.definition.managed_by == TASK:
            found.tasks.append(named)
        elif schedule.status is ScheduleStatus.DONE and not is_done_wanted:
            found.done.append(named)
        elif untold := schedule_file.untold(schedule.definition, settings):
            found.untold[named] = untold
        else:
            entry = schedule_file.entry_of(schedule, settings)
            found.entries.append(entry)
            found.calendars.update({one.name: one for one in schedule.contents if not one.is_shared})
            if {"webhook", "heartbeat"} & entry.get("notifications", {}).keys():
                found.urls.append(named)
    return found


def _named(ids: list[str]) -> str:
    more = len(ids) - _MOST_NAMED
    return ", ".join(ids[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
