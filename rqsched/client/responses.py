"""Read responses as values: as the dataclasses of the in-process API where they are plain data, else as equivalents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import httpx

from rqsched import Quota
from rqsched.api.description import RunDescription
from rqsched.types import AuditRecord, Freeze, Page, Thawed, ThawPreview, Usage
from rqsched.when.calendars import Calendar

_RESOURCES = tuple(field.name for field in fields(Quota))
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EventRecord(AuditRecord):
    """An audit event with the id of its schedule and its position among all events."""

    schedule_id: str
    """The id of its schedule."""
    id: str
    """Its position among all events. `Client.events(after=...)` continues after this position."""


def read(kind: Callable[..., T], json: Mapping[str, Any]) -> T:
    """Build a dataclass from JSON: instants are parsed, unknown fields are ignored."""
    known = {name: json[name] for name in _names(kind) if name in json}
    for name in _instants(kind):
        if known.get(name) is not None:
            known[name] = datetime.fromisoformat(known[name])
    for name in _lists_of_instants(kind):
        if name in known:
            known[name] = [*map(datetime.fromisoformat, known[name])]
    for name, row in _rows(kind):
        if name in known:
            known[name] = [read(row, one) for one in known[name]]
    return kind(**known)


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@lru_cache
def _instants(kind: Any) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in _names(kind) if hints[name] in (datetime, datetime | None))


@lru_cache
def _lists_of_instants(kind: Any) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in _names(kind) if hints[name] == list[datetime])


@lru_cache
def _rows(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields that are lists of dataclasses, each with its dataclass."""
    hints = get_type_hints(kind)
    lists = ((name, get_args(hints[name])[0]) for name in _names(kind) if get_origin(hints[name]) is list)
    return tuple((name, item) for name, item in lists if is_dataclass(item))


def one(kind: Callable[..., T]) -> Callable[[httpx.Response], T]:
    """Return a function that reads a response with one value."""
    return lambda response: read(kind, response.json())


def listed(kind: Callable[..., T]) -> Callable[[httpx.Response], list[T]]:
    """Return a function that reads a response with a complete list."""
    return lambda response: [read(kind, item) for item in response.json()["items"]]


def page(kind: Callable[..., T]) -> Callable[[httpx.Response], Page[T]]:
    """Return a function that reads a response with a page of a list."""
    return lambda response: Page(listed(kind)(response), response.json()["next_cursor"])


def found_runs(response: httpx.Response) -> Page[tuple[str, RunDescription]]:
    """Read a page of runs, each with the id of its schedule."""
    page = response.json()
    return Page([(one["schedule_id"], read(RunDescription, one)) for one in page["items"]], page["next_cursor"])


def instants(response: httpx.Response) -> list[datetime]:
    """Read a list of instants."""
    return [*map(datetime.fromisoformat, response.json()["items"])]


def nothing(response: httpx.Response) -> None:
    """Read a response without content."""


def freeze(response: httpx.Response) -> Freeze:
    """Read a freeze. Its uid is empty, because the server does not send it."""
    return _freeze(response.json())


def freezes(response: httpx.Response) -> list[Freeze]:
    """Read freezes."""
    return [_freeze(one) for one in response.json()["items"]]


def _freeze(json: Mapping[str, Any]) -> Freeze:
    return read(Freeze, {"uid": "", **json, "kept_in": tuple(json["kept_in"])})


def calendar(response: httpx.Response) -> Calendar:
    """Read a calendar."""
    return _calendar(response.json())


def calendars(response: httpx.Response) -> list[Calendar]:
    """Read calendars."""
    return [_calendar(one) for one in response.json()["items"]]


def calendar_users(response: httpx.Response) -> list[tuple[str, str]]:
    """Read the namespace and id of the schedules that name a calendar."""
    return [(one["namespace"], one["schedule_id"]) for one in response.json()["used_by"]]


def _calendar(json: Mapping[str, Any]) -> Calendar:
    reaches = json["reaches"] and date.fromisoformat(json["reaches"])
    return read(Calendar, {**json, "exclude": tuple(json["exclude"]), "reaches": reaches})


def thaw_preview(response: httpx.Response) -> ThawPreview:
    """Read the effect that a thaw would have."""
    json = response.json()
    return read(ThawPreview, json | {"freeze": json["freeze"] and _freeze(json["freeze"])})


def thawed(response: httpx.Response) -> Thawed:
    """Read the effect of a thaw."""
    json = response.json()
    return read(Thawed, json | {"freeze": json["freeze"] and _freeze(json["freeze"])})


def usage(response: httpx.Response) -> Usage:
    """Read the usage and the quota of a namespace."""
    json = response.json()
    used, limits = ({name: json[name][part] for name in _RESOURCES} for part in ("used", "limit"))
    return Usage(json["namespace"], **used, limits=Quota(**limits))
