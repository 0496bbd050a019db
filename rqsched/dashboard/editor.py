"""Creating and editing a schedule: one form, checked as one types, with the next fires before anything is saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from starlette.responses import Response

from rqsched.chain import operations
from rqsched.core.model import Schedule
from rqsched.core.payload import loads
from rqsched.core.policy import MissedPolicy, OverlapPolicy
from rqsched.dashboard import notification_fields, option_fields
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, RqschedError, UnknownWorkflowError
from rqsched.spec.spec import Cron, Every, Once, Spec
from rqsched.spec.words import in_words
from rqsched.spec.zones import known_timezones
from rqsched.store import registered_workflows

_FIRES = 5
KINDS = {"cron": "Cron expression", "every": "Interval", "once": "Once", "keep": "As it is"}
"""The kinds of timing, and what the form calls them."""


def new(visit: Visit) -> Response:
    """Show an empty form."""
    values = {"kind": "cron", "timing": "0 2 * * *", "timezone": visit.zone.key, **option_fields.shown(None)}
    return _form(visit, values, None)


def edit(visit: Visit) -> Response:
    """Show the form with a schedule's values."""
    schedule = visit.schedule().state
    return _form(visit, _values(schedule), schedule)


def preview(visit: Visit) -> Response:
    """Return what a timing means and when it would fire; the form asks while one types."""
    given = {name: visit.query(name) for name in ("kind", "timing", "timezone")}
    try:
        spec = _spec(visit, given)
    except RqschedError as error:
        return visit.page("preview.html", problem=str(error), words="", fires=[], zone=visit.zone)
    fires = list(islice(_fires(spec.anchored_at(visit.now), visit.now), _FIRES))
    return visit.page("preview.html", problem="", words=in_words(spec), fires=fires, zone=ZoneInfo(spec.timezone))


def _fires(spec: Spec, after: datetime) -> Iterator[datetime]:
    at = spec.next_after(after)
    while at is not None:
        yield at
        at = spec.next_after(at)


def create(visit: Visit) -> Response:
    """Create what the form says; shows it again, with the problem, when something is refused."""
    form = visit.form
    try:
        workflow = _registered(visit, form.get("workflow", ""))
        handle = visit.scheduler.create(
            form.get("schedule_id", "").strip(), workflow, _spec(visit, form), namespace=visit.namespace,
            paused="paused" in form, context=visit.context, **_options(visit, form, None),
        )  # fmt: skip
    except RqschedError as error:
        return _form(visit, form, None, error)
    return visit.done(f"{handle.schedule_id} is created.", f"/schedules/{handle.schedule_id}")


def update(visit: Visit) -> Response:
    """Save a schedule's form; refuses when somebody changed it meanwhile."""
    form, handle = visit.form, visit.schedule()
    try:
        version = form.get("version", "")
        spec = None if form.get("kind") == "keep" else _spec(visit, form)
        handle.update(
            _registered(visit, form.get("workflow", "")), spec, context=visit.context,
            if_version=int(version) if version.isdigit() else None,
            **_options(visit, form, handle.state),
        )  # fmt: skip
    except RqschedError as error:
        return _form(visit, form, handle.state, error)
    return visit.done(f"{handle.schedule_id} is saved.", f"/schedules/{handle.schedule_id}")


def _form(
    visit: Visit, values: Mapping[str, str], schedule: Schedule | None, error: RqschedError | None = None
) -> Response:
    refused = error.field if isinstance(error, InvalidInputError) else ""
    groups = option_fields.groups(is_new=schedule is None)
    return visit.page(
        "editor.html", 200 if error is None else 422, values=values, schedule=schedule, problem=str(error or ""),
        refused=refused, kinds=KINDS, workflows=_workflows(visit), overlaps=list(OverlapPolicy),
        missed=list(MissedPolicy), zones=sorted(known_timezones()), groups=groups,
        more={field.name for fields in groups.values() for field in fields},
    )  # fmt: skip


def _values(schedule: Schedule) -> dict[str, str]:
    definition, policies = schedule.definition, schedule.policies
    action = loads(definition.action)
    return {
        **_timing(schedule.spec), "workflow": definition.workflow,
        "kwargs": json.dumps(action["kwargs"]), "args": json.dumps(action["args"]),
        "labels": "\n".join(f"{name}:{value}" for name, value in loads(definition.labels).items()),
        "overlap": policies.overlap.value, "missed": policies.missed.value,
        "timeout": str(definition.timeout or ""), "queue": definition.queue or "",
        "description": definition.description or "", "owner": definition.owner or "",
        "jitter": f"{definition.jitter.total_seconds():g}" if definition.jitter else "",
        "max_runs": str(definition.max_runs or ""),
        **option_fields.shown(schedule), **notification_fields.shown(schedule),
    }  # fmt: skip


def _timing(spec: Spec) -> dict[str, str]:
    """Return the fields of a spec that the form can show; anything else stays as it is."""
    keep = {"kind": "keep", "timing": spec.describe(), "timezone": spec.timezone}
    if len(spec.members) != 1 or spec.start_at or spec.end_at:
        return keep
    member = spec.members[0]
    if isinstance(member, Cron) and member.timezone is None:
        return keep | {"kind": "cron", "timing": member.expression}
    return keep


def _spec(visit: Visit, given: Mapping[str, str]) -> Spec:
    kind, text, timezone = given.get("kind", ""), given.get("timing", "").strip(), given.get("timezone", "").strip()
    if kind == "cron":
        return Spec(Cron(text, seconds="first"), timezone or "UTC")
    if kind == "every":
        return Spec(Every(text), timezone or "UTC")
    if kind == "once":
        return Spec(Once(_moment(visit, text, timezone)), timezone or "UTC")
    raise InvalidInputError("kind", f"{kind[:32]!r} is not one of {', '.join(KINDS)}")


def _moment(visit: Visit, text: str, timezone: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError("timing", f"{text[:64]!r} is not a time; write one such as 2026-12-24 18:00") from None
    zone = ZoneInfo(timezone) if timezone in known_timezones() else visit.zone
    return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)


def _options(visit: Visit, form: Mapping[str, str], schedule: Schedule | None) -> Any:
    listed = option_fields.options_of(form, schedule)
    if (targets := listed.get("targets")) and not operations.is_registered(visit.scheduler.runtime, targets):
        raise InvalidInputError("targets", f"no workflow named {targets[:64]!r} is registered; choose one of the list")
    return {**_laid_out(form), **listed, **notification_fields.options_of(visit, form, schedule)}


def _laid_out(form: Mapping[str, str]) -> dict[str, Any]:
    text = {name: form.get(name, "").strip() for name in form}
    options: dict[str, Any] = {
        "args": _json(text, "args", list, []),
        "kwargs": _json(text, "kwargs", dict, {}),
        "labels": _labels(text.get("labels", "")),
        "overlap": text.get("overlap") or "skip",
        "missed": text.get("missed") or "fire_once",
        "timeout": _number(text, "timeout"),
        "queue": text.get("queue") or None,
        "description": text.get("description") or None,
        "owner": text.get("owner") or None,
        "max_runs": _number(text, "max_runs"),
    }
    jitter = _number(text, "jitter")
    return options | {"jitter": timedelta(seconds=jitter or 0)}


def _json(text: Mapping[str, str], name: str, kind: type, default: Any) -> Any:
    given = text.get(name, "")
    if not given:
        return default
    try:
        value = json.loads(given)
    except ValueError as error:
        raise InvalidInputError(name, f"is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise InvalidInputError(name, f"must be a JSON {'object' if kind is dict else 'list'}")
    return value


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, separator, value = line.partition(":")
        if not (name and separator):
            raise InvalidInputError("labels", f"{line[:64]!r} is refused; write name:value, one a line")
        labels[name.strip()] = value.strip()
    return labels


def _number(text: Mapping[str, str], name: str) -> int | None:
    given = text.get(name, "")
    if not given:
        return None
    if not (given.isascii() and given.isdigit()) or len(given) > 9:
        raise InvalidInputError(name, f"{given[:32]!r} is not a whole number")
    return int(given)


def _workflows(visit: Visit) -> list[str]:
    """Return the names that are proposed: all for who sees every namespace, else those that this one uses."""
    known = {*visit.read(registered_workflows.read_all), *(one.name for one in visit.scheduler.runtime.registered())}
    if visit.principal.namespaces is None:
        return sorted(known)
    return sorted(known & visit.read(lambda connection: registered_workflows.names_in_use(connection, visit.namespace)))


def _registered(visit: Visit, name: str) -> str:
    """Refuse workflows that would be imported by path: over HTTP only registered names run."""
    if not operations.is_registered(visit.scheduler.runtime, name):
        raise UnknownWorkflowError(name, f"no workflow named {name[:64]!r} is registered; choose one of the list.")
    return name
