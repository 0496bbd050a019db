"""The pages of calendars: the list with the schedules that name them, one calendar as a year, and its form."""

from __future__ import annotations

import calendar as months
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched.api.options import require_note
from rqsched.dashboard.edits import Changed, merge, seen
from rqsched.dashboard.equivalent import (
    Equivalent,
    call,
    command,
    flag,
    in_namespace,
    line,
    reason_in_context,
    with_imports,
)
from rqsched.dashboard.frame import form, page
from rqsched.dashboard.rendering import lines
from rqsched.dashboard.visit import Visit
from rqsched.errors import CalendarNotFoundError, InvalidInputError, RqschedError
from rqsched.features.calendars.api import MAX_USERS
from rqsched.http.auth import Role
from rqsched.http.errors import ForbiddenError
from rqsched.when.calendars import Calendar, require_entries, require_name
from rqsched.when.exclusion import exclusion_of

_DAY = timedelta(days=1)
_MOST_SHOWN = 50
"""The maximum number of schedules that a page names; it says how many more there are."""
_SHARED = "it is shared by all namespaces, and you see only some; use a token of all of them."
_YEARS = range(1970, 2200)


class Day(NamedTuple):
    """One day of a year."""

    date: date
    """The date."""
    is_out: bool
    """Whether the whole day is excluded."""
    is_part: bool
    """Whether a part of the day is excluded."""


_LABELS = {
    "name": "Name", "exclude": "What it excludes", "description": "Description", "reaches": "Last day",
    "reason": "Reason, for the history",
}  # fmt: skip


def show_all(visit: Visit, problems: Mapping[str, str] | None = None) -> Response:
    """Show the calendars that schedules of the namespace may name, and a form for a new one."""
    of = visit.scheduler.calendars
    found = [(one, len(_users(visit, one))) for one in of.list(namespace=visit.namespace)]
    return visit.page(
        "calendars/calendars.html", 422 if problems else 200, found=found, problems=problems or {}, labels=_LABELS,
        values=visit.form, is_unsaved=bool(visit.form), same=Equivalent(),
    )  # fmt: skip


def show(visit: Visit) -> Response:
    """Show one calendar: a year, the schedules that name it, its changes, and its form."""
    return _one(visit, _found(visit))


def _one(
    visit: Visit, found: Calendar, problems: Mapping[str, str] | None = None, changed: Sequence[Changed] = ()
) -> Response:
    text = visit.query("year")
    is_year = text.isascii() and text.isdigit() and len(text) == 4 and int(text) in _YEARS
    year = int(text) if is_year else visit.now.astimezone(visit.zone).year
    users = _users(visit, found)
    told = visit.scheduler.calendars.history(found)
    history = [one | {"at": datetime.fromisoformat(one["at"])} for one in told]
    return visit.page(
        "calendars/calendar.html", 409 if changed else 422 if problems else 200, calendar=found, year=year,
        months=_months(found, year), users=users[:_MOST_SHOWN], more=max(len(users) - _MOST_SHOWN, 0),
        users_are_cut=len(users) >= MAX_USERS,
        history=history, may_change=_may_change(visit, found), problems=problems or {}, changed=changed,
        labels=_LABELS, values={**_values(found), **visit.form}, is_unsaved=bool(visit.form),
        month_names=months.month_abbr, same=_equivalent(visit, found, {"name": found.name, **_values(found)}),
    )  # fmt: skip


def _values(found: Calendar) -> dict[str, str]:
    """Return the values of a calendar's form, with its revision and their digests."""
    reaches = "" if found.reaches is None else found.reaches.isoformat()
    own = {"exclude": "\n".join(found.exclude), "description": found.description or "", "reaches": reaches}
    return {**own, "revision": str(found.revision), "was": seen(own)}


def change(visit: Visit) -> Response:
    """Create or replace a calendar. If it is refused, show the form as it was filled in, with all problems.

    If somebody has changed the calendar meanwhile, show the form with both changes.
    """
    name, found = visit.form.get("name", "").strip(), None
    try:
        if "revision" in visit.form:
            found = _found(visit, name)
    except CalendarNotFoundError as error:
        return visit.done(f"Not done: {error}", "/calendars")
    if found is not None and not _may_change(visit, found):
        return _one(visit, found, {"": _SHARED})
    if found is not None and _revision(visit) != found.revision:
        now = _values(found)
        stored = {field: now[field] for field in ("exclude", "description", "reaches")}
        merged, changed = merge(visit.form, stored, visit.form.get("was", ""))
        visit = replace(visit, form=merged | {field: now[field] for field in ("revision", "was")})
        if changed:
            return _one(visit, found, changed=changed)
    problems, reaches = _problems(visit, name)
    is_shared = found is not None and found.is_shared
    try:
        if not problems:
            done = visit.scheduler.calendars.set(
                name, lines(visit.form.get("exclude", "")), shared=is_shared,
                namespace=None if is_shared else visit.namespace,
                description=visit.form.get("description", "").strip() or None,
                source=None if found is None else found.source, reaches=reaches, revision=_revision(visit),
                context=visit.context,
            )  # fmt: skip
            return visit.done(f"Calendar {done.name} is at revision {done.revision}.", f"/calendars/{done.name}")
    except CalendarNotFoundError as error:
        return visit.done(f"Not done: {error}", "/calendars")
    except InvalidInputError as error:
        problems[error.field if error.field in _LABELS else ""] = error.reason
    except RqschedError as error:
        problems[""] = str(error)
    return show_all(visit, problems) if found is None else _one(visit, found, problems)


def _problems(visit: Visit, name: str) -> tuple[dict[str, str], date | None]:
    """Return the problem of each refused field by its name, and the last day that the calendar covers."""
    problems, reaches = dict[str, str](), None
    checks: dict[str, Callable[[], object]] = {
        "name": lambda: require_name(name),
        "exclude": lambda: require_entries(lines(visit.form.get("exclude", ""))),
        "description": lambda: require_note(visit.form.get("description", "").strip(), "description"),
    }
    for field, check in checks.items():
        try:
            check()
        except InvalidInputError as error:
            problems[field] = error.reason
    try:
        reaches = _reaches(visit)
    except InvalidInputError as error:
        problems["reaches"] = error.reason
    return problems, reaches


def show_again(visit: Visit) -> Response:
    """Show the form as it was filled in, after a login has interrupted it."""
    return _one(visit, _found(visit, visit.form.get("name", ""))) if "revision" in visit.form else show_all(visit)


def delete(visit: Visit) -> Response:
    """Delete a calendar that no schedule names."""
    found = _found(visit)
    try:
        _require_may_change(visit, found)
        namespace = None if found.is_shared else visit.namespace
        visit.scheduler.calendars.delete(
            found.name, shared=found.is_shared, namespace=namespace, revision=_revision(visit), context=visit.context
        )
    except RqschedError as error:
        return visit.done(f"Not done: {error}", f"/calendars/{found.name}")
    return visit.done(f"Calendar {found.name} is deleted.", "/calendars")


def equivalent(visit: Visit) -> Equivalent:
    """Return the creation or the replacement of a calendar as a command and in Python."""
    name = visit.form.get("name", "").strip()
    return _equivalent(visit, _found(visit, name) if "revision" in visit.form else None, visit.form)


def _equivalent(visit: Visit, found: Calendar | None, fields: Mapping[str, str]) -> Equivalent:
    name, exclude = fields.get("name", "").strip(), lines(fields.get("exclude", ""))
    is_shared, description = found is not None and found.is_shared, fields.get("description", "").strip() or None
    told: dict[str, Any] = {"description": description, "reaches": _day(fields.get("reaches", ""))}
    where: dict[str, Any] = {"shared": True} if is_shared else in_namespace(visit)
    source = None if found is None else found.source
    code = call(
        "scheduler.calendars.set", name, exclude, **told, source=source, **where, context=reason_in_context(visit)
    )
    if source is not None:  # no flag can say it
        return Equivalent("", with_imports(code))
    words = ["calendar", "set", name, *flag("--exclude", exclude or [""])]
    if not is_shared:
        return Equivalent(command(visit, *words, **told), with_imports(code))
    words += [*flag("--shared", True), *(word for key, value in told.items() for word in flag(f"--{key}", value))]
    return Equivalent(line(["rqsched", *words, *flag("--reason", visit.context.reason)]), with_imports(code))


def equivalent_of_delete(visit: Visit) -> Equivalent:
    """Return the deletion of a calendar as a command and in Python."""
    found = _found(visit)
    where: dict[str, Any] = {"shared": True} if found.is_shared else in_namespace(visit)
    code = call("scheduler.calendars.delete", found.name, **where)
    if found.is_shared:
        return Equivalent(line(["rqsched", "calendar", "delete", found.name, "--shared"]), code)
    return Equivalent(command(visit, "calendar", "delete", found.name), code)


def _found(visit: Visit, name: str | None = None) -> Calendar:
    named = str(visit.request.path_params["name"]) if name is None else name
    return visit.scheduler.calendars.get(named, namespace=visit.namespace)


def _users(visit: Visit, calendar: Calendar) -> list[tuple[str, str]]:
    """Return the schedules that name a calendar, in namespaces that the viewer sees."""
    return visit.scheduler.calendars.used_by(calendar, namespaces=visit.principal.namespaces)


def _may_change(visit: Visit, calendar: Calendar) -> bool:
    return visit.principal.role >= Role.ADMIN and (visit.sees_all or not calendar.is_shared)


def _require_may_change(visit: Visit, calendar: Calendar) -> None:
    if not _may_change(visit, calendar):
        raise ForbiddenError(_SHARED)


def _months(calendar: Calendar, year: int) -> list[list[Day]]:
    """Return the days of each month of a year, in UTC, which has no clock changes."""
    first, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    out: dict[date, timedelta] = {}
    if calendar.exclude:
        stretches = exclusion_of(calendar.exclude, ZoneInfo("UTC")).stretches(first - _DAY, end)
        for start, last in stretches:
            at = start
            while at < min(last, end):
                midnight = datetime.combine(at.date(), time.min, tzinfo=UTC) + _DAY
                out[at.date()] = out.get(at.date(), timedelta(0)) + (min(midnight, last) - at)
                at = midnight
    days = [(first + number * _DAY).date() for number in range((end - first).days)]
    told = [Day(day, out.get(day) == _DAY, day in out and out[day] < _DAY) for day in days]
    return [[one for one in told if one.date.month == month] for month in range(1, 13)]


def _reaches(visit: Visit) -> date | None:
    return _day(visit.form.get("reaches", ""))


def _day(text: str) -> date | None:
    text = text.strip()
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidInputError("reaches", f"{text[:32]!r} is not a date; write 2028-12-31") from None


def _revision(visit: Visit) -> int:
    """Return the revision that the form was made from; 0 for a new calendar."""
    text = visit.form.get("revision", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


ROUTES = (
    page("/calendars", show_all),
    page("/calendars/{name}", show),
    form("/calendars", change, Role.ADMIN, again=show_again, equivalent=equivalent),
    form("/calendars/{name}/delete", delete, Role.ADMIN, equivalent=equivalent_of_delete),
)
"""The addresses of these pages in the dashboard."""
