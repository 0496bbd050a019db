"""The commands `calendar ...`: named exclusions for many schedules, written by hand or imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any

import typer

from rqsched.cli import arguments
from rqsched.cli.arguments import DryRun
from rqsched.cli.command import Session, command
from rqsched.cli.output import shown
from rqsched.errors import InvalidInputError
from rqsched.features.calendars.sources import MAX_BYTES, FoundDays, public_holidays, read_icalendar
from rqsched.kernel.decide.results import number_of
from rqsched.when.calendars import Calendar

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Named exclusions that many schedules use.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the calendar.")]
Shared = Annotated[bool, typer.Option("--shared", help="The one that all namespaces share.")]
Description = Annotated[str | None, typer.Option("--description", help="What it is for.")]
Revision = Annotated[
    int | None, typer.Option("--revision", min=0, help="Refuse unless it is at this revision; 0: there is none.")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="TEXT", help="A date, FIRST/LAST, or a weekly window; repeat it for several."),
]
Reaches = Annotated[
    str | None, typer.Option("--reaches", metavar="DATE", help="The last day about which it says anything.")
]
_SHOWN = 12
"""The maximum number of exclusions of a calendar that are listed. The others are only counted."""


@app.callback()
def calendar() -> None:
    """Manage named exclusions that many schedules use."""


@command(app, "list")
def list_calendars(session: Session) -> None:
    """List the calendars that schedules of the namespace may name."""
    of = session.scheduler.calendars
    found = of.list(namespace=session.namespace)
    if not session.writer.is_table:
        for one in found:
            session.writer.json(one.to_dict() | {"used_by": len(of.used_by(one))})
        return
    columns = ("Name", "Shared", "Revision", "Holds", "Reaches", "Used by", "Description")
    rows = [
        (one.name, shown(one.is_shared), one.revision, len(one.exclude), one.reaches, len(of.used_by(one)),
         shown(one.description))
        for one in found
    ]  # fmt: skip
    session.writer.table(columns, rows)


@command(app)
def show(session: Session, name: Name) -> None:
    """Show what a calendar holds, who names it, and who changed it."""
    of = session.scheduler.calendars
    found = of.get(name, namespace=session.namespace)
    used, history = of.used_by(found), of.history(found)
    if not session.writer.is_table:
        users = [{"namespace": namespace, "schedule_id": schedule_id} for namespace, schedule_id in used]
        session.writer.json({**found.to_dict(), "used_by": users, "history": history})
        return
    here = [one if namespace == session.named else f"{namespace}/{one}" for namespace, one in used]
    fields = found.to_dict() | {"exclude": ", ".join(found.exclude), "used_by": ", ".join(here)}
    told = [
        f"{change['at']} {shown(change.get('by'))}: +{len(change['added'])} -{len(change['removed'])}"
        f" {change.get('reason') or ''}".rstrip()
        for change in history
    ]
    session.writer.table(("Field", "Value"), [*((key, shown(value)) for key, value in fields.items())])
    for line in told:
        session.writer.say(line)


@command(app, "set")
def set_calendar(
    session: Session,
    name: Name,
    exclude: Exclude = None,
    shared: Shared = False,
    description: Description = None,
    reaches: Reaches = None,
    revision: Revision = None,
) -> None:
    """Create a calendar, or replace what it holds; schedules that name it are planned again."""
    if not exclude:  # an empty list by mistake would remove exclusions that many schedules need
        raise InvalidInputError(
            "--exclude", "is missing; say all that the calendar is to hold, or --exclude '' for nothing"
        )
    last = None if reaches is None else arguments.day("--reaches", reaches)
    found = session.scheduler.calendars.set(
        name, [one for one in exclude if one], shared=shared, namespace=_namespace(session, shared=shared),
        description=description, reaches=last, revision=revision, context=session.context,
    )  # fmt: skip
    _record(session, found)


@command(app)
def delete(session: Session, name: Name, shared: Shared = False, revision: Revision = None) -> None:
    """Delete a calendar that no schedule names."""
    namespace = _namespace(session, shared=shared)
    session.scheduler.calendars.delete(
        name, shared=shared, namespace=namespace, revision=revision, context=session.context
    )
    session.writer.record({"name": name, "deleted": True}, f"Deleted calendar {name}.")


@command(app, "import")
def import_calendar(
    session: Session,
    name: Name,
    ics: Annotated[
        Path | None,
        typer.Option("--ics", metavar="FILE", allow_dash=True, help="An iCalendar file; `-` reads standard input."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="DATE", help="Follow recurrences up to this day; default five years ahead."),
    ] = None,
    country: Annotated[
        str | None, typer.Option("--country", metavar="CODE", help="The public holidays of a country: its ISO code.")
    ] = None,
    subdivision: Annotated[
        str | None, typer.Option("--subdivision", metavar="CODE", help="Those of a state or region of it, such as BY.")
    ] = None,
    years: Annotated[
        str | None,
        typer.Option("--years", metavar="FIRST-LAST", help="Of these years; default this one and the next two."),
    ] = None,
    shared: Shared = False,
    description: Description = None,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    """Fill a calendar from an iCalendar file or with public holidays; run it again to renew it."""
    if (ics is None) == (country is None):
        raise InvalidInputError("import", "takes --ics FILE or --country CODE; give one of them")
    today = session.scheduler.runtime.now().astimezone(UTC).date()
    if ics is not None:
        found = read_icalendar(_read(ics), today, None if until is None else arguments.day("--until", until))
        source = f"iCalendar {shown(ics.name)[:200]}"
    else:
        first, last = _years(years, today.year)
        found = public_holidays(str(country), subdivision, range(first, last + 1))
        region = f"{country}-{subdivision}" if subdivision else country
        source = f"public holidays {region} {first}-{last}"
    for line in _told(found):
        session.writer.say(line)
    if dry_run:
        fields: dict[str, Any] = {
            "name": name,
            "exclude": list(found.exclude),
            "reaches": str(found.reaches),
            "source": source,
        }
        fields["left_out"] = [one._asdict() for one in found.left_out]
        session.writer.record(fields, f"Would be: {_listed(found.exclude)}.")
        return
    done = session.scheduler.calendars.set(
        name, found.exclude, shared=shared, namespace=_namespace(session, shared=shared), description=description,
        source=source, reaches=found.reaches, revision=revision, context=session.context,
    )  # fmt: skip
    _record(session, done, left_out=[one._asdict() for one in found.left_out])


def _read(path: Path) -> bytes:
    """Read a file, up to the accepted size."""
    if str(path) == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInputError("--ics", f"cannot be read ({error.strerror}); name a file") from None


def _told(found: FoundDays) -> list[str]:
    told = [f"It reaches until {found.reaches}" + (", and recurrences go on" if found.is_cut else "") + "."]
    if found.left_out:
        told.append(f"Only whole days are taken. Left out: {number_of(len(found.left_out), 'event')}.")
        named = found.left_out[:_SHOWN]
        told += [f"  {shown(one.starts)} {shown(one.summary)} ({one.why})" for one in named]
        if len(found.left_out) > _SHOWN:
            told.append(f"  and {len(found.left_out) - _SHOWN} more: -o json lists them all")
    return told


def _listed(exclude: Sequence[str]) -> str:
    more = len(exclude) - _SHOWN
    return ", ".join(exclude[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _record(session: Session, found: Calendar, **more: Any) -> None:
    fields: dict[str, Any] = found.to_dict() | more
    text = f"Calendar {found.name} is at revision {found.revision}: {_listed(found.exclude) or 'nothing'}."
    session.writer.record(fields, text)


def _namespace(session: Session, *, shared: bool) -> str | None:
    if shared and session.namespace is not None:
        raise InvalidInputError("--shared", "is of all namespaces; leave --namespace out")
    return None if shared else session.namespace


def _years(text: str | None, this: int) -> tuple[int, int]:
    if text is None:
        return this, this + 2
    first, _, last = text.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise InvalidInputError("--years", f"{text[:32]!r} are no years; write 2027 or 2027-2029") from None
