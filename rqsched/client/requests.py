"""Each operation as a Request: what to send, how to read the response, and whether it may be repeated."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx

from rqsched.api.description import DeliveryDescription, Description
from rqsched.client import responses
from rqsched.client.responses import (
    BackfillProgress,
    BulkRow,
    EventRecord,
    RetriedRun,
    RunDescription,
    TriggerResult,
)
from rqsched.core.audit import AuditRecord
from rqsched.core.ids import iso_utc
from rqsched.core.page import MAX_PAGE, Page
from rqsched.core.policy import RetryPolicy
from rqsched.core.quota import RESOURCES, Quota, Usage
from rqsched.core.target_progress import TargetDescription, TargetProgress
from rqsched.errors import InvalidInputError

if TYPE_CHECKING:
    from rqsched.core.option_table import Options
    from rqsched.spec.spec import SpecLike

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
BASE = "/api/v1/"
"""The path of the native surface."""
_SCHEDULES = f"{BASE}schedules/"


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
    """Sent as JSON; None sends no body."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The query."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers beside those of every request."""
    is_repeatable: bool = False
    """Sending it twice has the effect of sending it once, so that it is sent again when the response is lost."""

    def then(self, convert: Callable[[T_co], T]) -> Request[T]:
        """Return the same request, whose result is converted."""
        return replace(cast("Request[T]", self), read=lambda response: convert(self.read(response)))


def create(schedule_id: str, body: Mapping[str, Any], key: str | None) -> Request[Description]:
    """Create a schedule, with a key so that the request may be repeated."""
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    body = {"schedule_id": schedule_id, **body}
    return Request("POST", _SCHEDULES, _description, body, headers=headers, is_repeatable=True)


def upsert(schedule_id: str, body: Mapping[str, Any]) -> Request[tuple[Description, str]]:
    """Create a schedule or replace its definition."""

    def with_outcome(response: httpx.Response) -> tuple[Description, str]:
        return _description(response), response.headers["x-outcome"]

    return Request("PUT", _path(schedule_id), with_outcome, body, is_repeatable=True)


def get(schedule_id: str) -> Request[Description]:
    """Read a schedule."""
    return _get(_path(schedule_id), _description)


def list_schedules(filters: Mapping[str, Any]) -> Request[Page[Description]]:
    """Read a page of schedules."""
    labels = [f"{name}:{value}" for name, value in (filters.get("labels") or {}).items()]
    plain = {name: value for name, value in filters.items() if name != "labels" and value is not None}
    text = {"q": plain.pop("text")} if "text" in plain else {}
    words = {name: _word(name, value) for name, value in plain.items()}
    return _get(_SCHEDULES, lambda r: _page(r, responses.description), {**words, **text, "label": labels})


def _word(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return _instant(name, value)
    return str(value).lower() if isinstance(value, bool) else value


def count(filters: Mapping[str, Any]) -> Request[int]:
    """Count the schedules that a list shows."""
    request = list_schedules({**filters, "limit": 1})
    return _get(_SCHEDULES, lambda r: int(r.json()["total"]), {**request.params, "total": "true"})


def batch_delete(schedule_ids: Sequence[str]) -> Request[None]:
    """Delete schedules; ids that do not exist are ignored."""
    body = {"schedule_ids": list(schedule_ids)}
    return Request("POST", f"{_SCHEDULES}batch-delete/", _nothing, body, is_repeatable=True)


def workflows() -> Request[list[dict[str, Any]]]:
    """List the registered workflows."""
    return _get(f"{BASE}workflows/", lambda r: list(r.json()["items"]))


def usage() -> Request[Usage]:
    """Read what the namespace holds."""

    def read(response: httpx.Response) -> Usage:
        given = response.json()
        used, limits = ({name: given[name][part] for name in RESOURCES} for part in ("used", "limit"))
        return Usage(given["namespace"], **used, limits=Quota(**limits))

    return _get(f"{BASE}usage/", read)


def update(schedule_id: str, body: Mapping[str, Any], match: str | None) -> Request[Description]:
    """Change a schedule. With a condition it is not repeatable: its own lost change would look like another's."""
    headers, is_repeatable = _if_match(match), match is None
    return Request("PATCH", _path(schedule_id), _description, body, headers=headers, is_repeatable=is_repeatable)


def operate(schedule_id: str, operation: str, body: Mapping[str, Any], match: str | None) -> Request[Description]:
    """Pause, resume or restart a schedule."""
    return Request("POST", _path(schedule_id, operation), _description, _given(body), headers=_if_match(match))


def delete(schedule_id: str, *, purge: bool, reason: str | None, match: str | None) -> Request[None]:
    """Delete a schedule."""
    params = ({"purge": "true"} if purge else {}) | _given({"reason": reason})
    return Request("DELETE", _path(schedule_id), _nothing, params=params, headers=_if_match(match), is_repeatable=True)


def _if_match(match: str | None) -> dict[str, str]:
    return {} if match is None else {"If-Match": match}


def trigger(schedule_id: str, body: Mapping[str, Any], key: str | None) -> Request[TriggerResult]:
    """Start a run now, with a key so that the request may be repeated."""

    def read(response: httpx.Response) -> TriggerResult:
        fields = response.json()
        return TriggerResult(**fields | {"run": fields["run"] and responses.run(fields["run"])})

    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    return Request("POST", _path(schedule_id, "trigger"), read, _given(body), headers=headers, is_repeatable=True)


def backfill(schedule_id: str, start: datetime, end: datetime, options: Mapping[str, Any]) -> Request[BackfillProgress]:
    """Fire a past range."""
    span = {"start": _instant("start", start), "end": _instant("end", end)}
    body, is_read = {**span, **options}, bool(options["dry_run"])
    return Request("POST", _path(schedule_id, "backfill"), _progress, _given(body), is_repeatable=is_read)


def backfill_progress(uid: str) -> Request[BackfillProgress]:
    """Read the progress of a backfill."""
    return _get(f"{BASE}backfills/{quote(uid, safe='')}/", _progress)


def cancel_backfill(uid: str, reason: str | None) -> Request[BackfillProgress]:
    """Stop a backfill."""
    body = _given({"reason": reason}) or None
    return Request("POST", f"{BASE}backfills/{quote(uid, safe='')}/cancel/", _progress, body, is_repeatable=True)


def backfills(filters: Mapping[str, Any], limit: int, cursor: str | None) -> Request[Page[BackfillProgress]]:
    """Read a page of backfills."""
    params = _given({**filters, "limit": limit, "cursor": cursor})
    return _get(f"{BASE}backfills/", lambda r: _page(r, responses.progress), params)


def history(schedule_id: str, limit: int, after_sequence: int) -> Request[list[AuditRecord]]:
    """Read audit events after a sequence."""
    params = {"limit": limit, "after_sequence": after_sequence}
    return _get(_path(schedule_id, "history"), lambda r: _page(r, responses.event).items, params)


def events(params: Mapping[str, Any], cursor: str | None) -> Request[Page[EventRecord]]:
    """Read a page of the audit events of the namespace."""
    given = _given({**params, "limit": MAX_PAGE, "cursor": cursor})
    return _get(f"{BASE}events/", lambda r: _page(r, responses.found_event), given)


def event_params(after: str | int | None, since: datetime | None, event_types: Sequence[str]) -> dict[str, Any]:
    """Return the query of events."""
    start = None if since is None else _instant("since", since)
    return _given({"after": after, "since": start, "event_type": list(event_types) or None})


def stream(schedule_id: str | None) -> str:
    """Return the path of the stream of audit events of the namespace, or of one schedule."""
    return f"{BASE}events/stream/" if schedule_id is None else _path(schedule_id, "history", "stream")


def deliveries(
    schedule_id: str, limit: int, cursor: str | None, status: str | None
) -> Request[Page[DeliveryDescription]]:
    """Read a page of notifications, newest first."""
    params = _given({"limit": limit, "cursor": cursor, "status": status})
    return _get(_path(schedule_id, "deliveries"), lambda r: _page(r, responses.delivery), params)


def upcoming(schedule_id: str, count: int) -> Request[list[datetime]]:
    """Read the next fires."""
    return _get(_path(schedule_id, "upcoming"), lambda r: responses.instants(r.json()), {"count": count})


def runs(schedule_id: str, limit: int, cursor: str | None, statuses: Sequence[str]) -> Request[Page[RunDescription]]:
    """Read a page of runs."""
    params = _given({"limit": limit, "cursor": cursor, "status": list(statuses)})
    return _get(_path(schedule_id, "runs"), lambda r: _page(r, responses.run), params)


def run(schedule_id: str, uid: str) -> Request[RunDescription]:
    """Read one run."""
    return _get(_path(schedule_id, "runs", uid), _run)


def end_run(schedule_id: str, uid: str, operation: str, reason: str | None) -> Request[RunDescription]:
    """Cancel or terminate a run."""
    body = _given({"reason": reason}) or None
    return Request("POST", _path(schedule_id, "runs", uid, operation), _run, body, is_repeatable=True)


def retry_run(schedule_id: str, uid: str, reason: str | None, *, failed_targets: bool) -> Request[RunDescription]:
    """Retry a run; one that is being retried is left as it is, but one that failed again would be retried twice."""
    body = _given({"reason": reason, "failed_targets": failed_targets or None})
    return Request("POST", _path(schedule_id, "runs", uid, "retry"), _run, body)


def targets(
    schedule_id: str, uid: str, limit: int, cursor: str | None, status: str | None
) -> Request[Page[TargetDescription]]:
    """Read a page of the targets of a run."""
    params = _given({"limit": limit, "cursor": cursor, "status": status})
    path = _path(schedule_id, "runs", uid, "targets")
    return _get(path, lambda r: _page(r, lambda item: responses.read(TargetDescription, item)), params)


def progress(schedule_id: str, uid: str) -> Request[TargetProgress | None]:
    """Read how far the targets of a run are."""

    def read(response: httpx.Response) -> TargetProgress | None:
        found = response.json()["progress"]
        return None if found is None else responses.read(TargetProgress, found)

    return _get(_path(schedule_id, "runs", uid, "targets"), read, {"limit": 1})


def retry_failed(since: datetime | timedelta, body: Mapping[str, Any]) -> Request[list[RetriedRun]]:
    """Retry what failed since an instant, or so long ago."""
    start = since.total_seconds() if isinstance(since, timedelta) else _instant("since", since)
    given = {name: _instant(name, value) if isinstance(value, datetime) else value for name, value in body.items()}
    path, is_read = f"{BASE}runs/retry/", bool(body.get("dry_run"))
    return Request("POST", path, _retried, _given({"since": start, **given}), is_repeatable=is_read)


def bulk(operation: str, body: Mapping[str, Any]) -> Request[list[BulkRow]]:
    """Pause, resume or trigger what matches; a trigger is repeatable with a key, the others go on."""
    words = {name: body.get(name) for name in ("status", "outcome")}
    lists = {name: [one] if isinstance(one, str) else one and list(one) for name, one in words.items()}
    plain = {name: value for name, value in body.items() if name not in {*words, "text"}}
    body = _given({**plain, "q": body.get("text"), **lists})
    is_repeatable = operation != "trigger" or "idempotency_key" in body
    return Request("POST", f"{BASE}bulk/{quote(operation, safe='')}/", _bulk, body, is_repeatable=is_repeatable)


def _bulk(response: httpx.Response) -> list[BulkRow]:
    return [responses.read(BulkRow, item) for item in response.json()["items"]]


def _retried(response: httpx.Response) -> list[RetriedRun]:
    return [responses.read(RetriedRun, item) for item in response.json()["items"]]


def declaration(workflow: str, spec: SpecLike, options: Options, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that declares a schedule; raises InvalidSpecError before anything is sent."""
    timezone = options.get("timezone")
    given = {name: plain(name, value) for name, value in options.items() if name != "timezone" and value is not None}
    return {"workflow": workflow, "spec": _spec(spec, timezone), **given, **_given(more)}


def changes(workflow: str | None, spec: SpecLike | None, options: Options, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that changes a schedule; an option that is None takes its default."""
    given = {name: plain(name, value) for name, value in options.items()}
    if spec is not None:
        given["spec"] = _spec(spec, given.pop("timezone", None))
    return {**given, **_given({"workflow": workflow, **more})}


def _spec(spec: SpecLike, timezone: str | None) -> dict[str, Any]:
    from rqsched.spec.spec import Spec  # noqa: PLC0415 - croniter is loaded only when a spec is sent

    return Spec.coerce(spec, timezone).to_json()


def plain(name: str, value: Any) -> Any:
    """Return an option as JSON; durations are seconds."""
    if isinstance(value, RetryPolicy):
        fields = {key: plain(key, inner) for key, inner in asdict(value).items()}
        # What a target's retries do not have is sent only when it is given, for the server to refuse.
        return _given(fields) if name == "target_retry" else fields
    if isinstance(value, timedelta):
        return value.total_seconds()
    if name in {"environments", "args"}:
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _instant(field: str, value: datetime) -> str:
    """Write an instant; raises InvalidInputError for a naive one, which would mean this host's zone."""
    if value.tzinfo is None:
        raise InvalidInputError(field, "is naive; give an aware datetime, such as one with tzinfo=UTC")
    return iso_utc(value)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _get(path: str, read: Callable[[httpx.Response], T], params: Mapping[str, Any] | None = None) -> Request[T]:
    return Request("GET", path, read, params=params or {}, is_repeatable=True)


def _path(schedule_id: str, *parts: str) -> str:
    return _SCHEDULES + "".join(f"{quote(part, safe=':')}/" for part in (schedule_id, *parts))


def _nothing(response: httpx.Response) -> None:
    del response


def _description(response: httpx.Response) -> Description:
    return responses.description(response.json())


def _run(response: httpx.Response) -> RunDescription:
    return responses.run(response.json())


def _progress(response: httpx.Response) -> BackfillProgress:
    return responses.progress(response.json())


def _page(response: httpx.Response, read: Callable[[Mapping[str, Any]], T]) -> Page[T]:
    page = response.json()
    return Page([read(item) for item in page["items"]], page["next_cursor"])
