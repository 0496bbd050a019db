"""The requests of the client: their content as JSON, how to read their responses, and whether they may be repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx

from rqsched import RetryPolicy
from rqsched.api.values import MAX_PAGE, MEMO_BYTES, iso_utc, json_text
from rqsched.client import responses
from rqsched.client.responses import EventRecord
from rqsched.errors import InvalidInputError
from rqsched.types import BulkProgress, Page, Synced
from rqsched.when.exclusion import require_exclusions

if TYPE_CHECKING:
    from rqsched import Declaration
    from rqsched.api.list_filters import ListFilters, RunListFilters
    from rqsched.types import Options
    from rqsched.when.spec import SpecLike

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_MOST_KEPT = 20_000
_MOST_SENT = 200
_MOST_CHARACTERS = 256 * 1024
"""How many schedules and characters one request has at most. By default, a server accepts 1 MiB."""


@dataclass(frozen=True)
class Request(Generic[T_co]):
    """One request and how its response is read."""

    method: str
    """The HTTP method."""
    path: str
    """The path below the client's base URL."""
    read: Callable[[httpx.Response], T_co]
    """Reads a successful response."""
    body: Mapping[str, Any] | None = None
    """The body, which is sent as JSON; None means no body."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers in addition to the common ones."""
    is_repeatable: bool = False
    """Whether the request is idempotent. If so, it is sent again when its response is lost."""

    def then(self, convert: Callable[[T_co], T]) -> Request[T]:
        """Return the same request with a conversion of its result."""
        return replace(cast("Request[T]", self), read=lambda response: convert(self.read(response)))


def get(path: str, read: Callable[[httpx.Response], T], params: Mapping[str, Any] | None = None) -> Request[T]:
    """Return a GET request. Parameters that are None are left out."""
    return Request("GET", path, read, params=given(params or {}), is_repeatable=True)


def path_of(*parts: str) -> str:
    """Return a path of the native surface."""
    return "/api/v1/" + "".join(f"{quote(part, safe=':')}/" for part in parts)


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def sent(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None, as JSON; raises InvalidInputError for a naive instant."""
    return {name: _sent(name, one) for name, one in given(fields).items()}


def _sent(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return instant(name, value) if isinstance(value, datetime) else value


def many(texts: Sequence[str]) -> list[str] | None:
    """Return texts as a list. A single text becomes a list of one; no texts become None."""
    return ([texts] if isinstance(texts, str) else [*texts]) or None


def instant(field: str, value: datetime) -> str:
    """Write an instant; raises InvalidInputError for a naive datetime, which would depend on this host's time zone."""
    if value.tzinfo is None:
        raise InvalidInputError(field, "is naive; give an aware datetime, such as one with tzinfo=UTC")
    return iso_utc(value)


def list_params(filters: ListFilters, **more: Any) -> dict[str, Any]:
    """Return the query that lists schedules."""
    params = _filters(filters)
    labels = [f"{name}:{value}" for name, value in params.pop("labels", {}).items()]
    if "search_attributes" in params:
        params["search_attributes"] = json.dumps(params["search_attributes"])
    return params | {"label": labels} | given(more)


def bulk_body(filters: ListFilters | RunListFilters, **more: Any) -> dict[str, Any]:
    """Return the body of a bulk operation, in which `status` and `outcome` are lists."""
    body = _filters(filters)
    for name in body.keys() & {"status", "outcome"}:
        body[name] = [body[name]] if isinstance(body[name], str) else list(body[name])
    return body | given(more)


def next_chunk(chunk: Request[BulkProgress], done: BulkProgress) -> Request[BulkProgress] | None:
    """Return the request for the chunk that follows a response; None after the last chunk."""
    if done.next_cursor is None:
        return None
    return replace(chunk, body={**(chunk.body or {}), "cursor": done.next_cursor})


def _filters(filters: ListFilters | RunListFilters) -> dict[str, Any]:
    """Return the filters under the server's names."""
    json_text("search_attributes", filters.get("search_attributes") or {}, MEMO_BYTES)
    named = {"q" if name == "text" else name: value for name, value in filters.items() if value is not None}
    return {name: instant(name, value) if isinstance(value, datetime) else value for name, value in named.items()}


def event_params(
    after: str | None, since: datetime | None, event_types: Sequence[str], principal: str | None
) -> dict[str, Any]:
    """Return the query of events."""
    start = None if since is None else instant("since", since)
    return given({"after": after, "since": start, "event_type": list(event_types) or None, "principal": principal})


def events(params: Mapping[str, Any], cursor: str | None) -> Request[Page[EventRecord]]:
    """Return the request that reads a page of the audit events of the namespace."""
    return get(path_of("events"), responses.page(EventRecord), {**params, "limit": MAX_PAGE, "cursor": cursor})


def declaration(workflow: str, spec: SpecLike, options: Options, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that declares a schedule; raises InvalidSpecError."""
    timezone = options.get("timezone")
    shown = {name: plain(name, value) for name, value in options.items() if name != "timezone" and value is not None}
    return {"workflow": workflow, "spec": _spec(spec, timezone), **shown, **given(more)}


def changes(workflow: str | None, spec: SpecLike | None, options: Options, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that changes a schedule. An option that is None gets its default."""
    changed = {name: plain(name, value) for name, value in options.items()}
    if spec is not None:
        changed["spec"] = _spec(spec, changed.pop("timezone", None))
    return {**changed, **given({"workflow": workflow, **more})}


def _spec(spec: SpecLike, timezone: str | None) -> dict[str, Any]:
    from rqsched.when.spec import Spec  # noqa: PLC0415 - croniter is loaded only when a spec is sent

    made = Spec.coerce(spec, timezone)
    form = made.to_json()
    return form if made.names_timezone else {name: value for name, value in form.items() if name != "timezone"}


def plain(name: str, value: Any) -> Any:
    """Return an option as JSON; durations are seconds."""
    if isinstance(value, RetryPolicy):
        fields = {key: plain(key, inner) for key, inner in asdict(value).items()}
        # A target's policy lacks some fields. Send such a field only if it is set, so that the server refuses it.
        return given(fields) if name == "target_retry" else fields
    if isinstance(value, timedelta):
        return value.total_seconds()
    if name == "exclude":
        return list(require_exclusions(() if value is None else value))
    if name in {"environments", "args"}:
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def sync_requests(declarations: Iterable[Declaration], *, delete_removed: bool) -> list[Request[Synced]]:
    """Return the requests that write a set of declarations. The last request also deletes, if `delete_removed`."""
    found: dict[str, dict[str, Any]] = {}
    for declared in declarations:
        if declared.schedule_id in found:
            raise InvalidInputError("schedule_id", f"{declared.schedule_id!r} is declared twice; declare it once")
        if not isinstance(declared.workflow, str):
            raise InvalidInputError("workflow", "must be a registered name; a server knows no function of this process")
        when: Any = declared.spec
        body = declaration(
            declared.workflow, when, declared.options, {"note": declared.note, "paused": declared.paused}
        )
        found[declared.schedule_id] = {"schedule_id": declared.schedule_id, **body}
    if delete_removed and len(found) > _MOST_KEPT:
        told = f"takes a set of at most {_MOST_KEPT} schedules over HTTP, not {len(found)}"
        raise InvalidInputError("delete_removed", told)
    bodies: list[dict[str, Any]] = [{"schedules": part} for part in _parts(found.values()) or [[]]]
    if delete_removed:
        here = {one["schedule_id"] for one in bodies[-1]["schedules"]}
        bodies[-1] |= {"delete_removed": True, "keep": [id_ for id_ in found if id_ not in here]}
    return [
        Request("POST", path_of("sync"), lambda response: Synced(**response.json()), body, is_repeatable=True)
        for body in bodies
    ]


def _parts(schedules: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    parts: list[list[dict[str, Any]]] = []
    size = 0
    for schedule in schedules:
        length = len(json.dumps(schedule))
        if not parts or len(parts[-1]) == _MOST_SENT or size + length > _MOST_CHARACTERS:
            parts.append([])
            size = 0
        parts[-1].append(schedule)
        size += length
    return parts


def rehearsed(requests: Iterable[Request[Synced]]) -> Iterator[Request[Synced]]:
    """Yield the same requests as dry runs."""
    return (replace(request, body={**(request.body or {}), "dry_run": True}) for request in requests)


def joined(parts: Iterable[Synced]) -> Synced:
    """Return the combined outcome of all parts of a set."""
    done = [asdict(part) for part in parts]
    return Synced(**{name: [id_ for one in done for id_ in one[name]] for name in Synced.__dataclass_fields__})


def told(synced: Synced, progress: Callable[[str, str], None] | None) -> Synced:
    """Call `progress` with each declared id and its outcome."""
    if progress is not None:
        for outcome in ("created", "updated", "unchanged"):
            for schedule_id in getattr(synced, outcome):
                progress(schedule_id, outcome)
    return synced
