"""The one request builder: each operation as an Ask, which says what to send, how to read it, and if it may repeat."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from rqsched.api.describe import Description
from rqsched.client import responses as answers
from rqsched.client.responses import BackfillProgress, RunFacts
from rqsched.core.ids import iso_utc
from rqsched.core.options import Options
from rqsched.core.policy import RetryPolicy
from rqsched.spec.spec import Spec, SpecLike
from rqsched.store.listing import AuditRecord, Page

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_BASE = "/api/v1/"
_SCHEDULES = f"{_BASE}schedules/"


@dataclass(frozen=True)
class Ask(Generic[T_co]):
    """One request and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx.Response], T_co]
    body: Mapping[str, Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    may_repeat: bool = False
    """Sending it twice is as good as once, so that a lost answer is asked for again."""


@dataclass(frozen=True, slots=True)
class Triggered:
    """What a manual trigger did."""

    outcome: str
    """`triggered`, `buffered`, `buffer_full` or `skipped`."""
    reason: str | None
    instance_id: str | None
    run: RunFacts | None
    buffer_depth: int | None


# ---- the collection


def create(schedule_id: str, body: Mapping[str, Any], key: str | None) -> Ask[Description]:
    """Ask for a new schedule, under a key so that it may be repeated."""
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    body = {"schedule_id": schedule_id, **body}
    return Ask("POST", _SCHEDULES, _description, body, headers=headers, may_repeat=True)


def upsert(schedule_id: str, body: Mapping[str, Any]) -> Ask[tuple[Description, str]]:
    """Ask for a schedule to be as declared."""

    def with_outcome(response: httpx.Response) -> tuple[Description, str]:
        return _description(response), response.headers["x-outcome"]

    return Ask("PUT", _path(schedule_id), with_outcome, body, may_repeat=True)


def get(schedule_id: str) -> Ask[Description]:
    """Ask for a schedule."""
    return _get(_path(schedule_id), _description)


def listed(filters: Mapping[str, Any]) -> Ask[Page[Description]]:
    """Ask for a page of schedules."""
    labels = [f"{name}:{value}" for name, value in (filters.get("labels") or {}).items()]
    plain = {name: value for name, value in filters.items() if name != "labels" and value is not None}
    text = {"q": plain.pop("text")} if "text" in plain else {}
    return _get(_SCHEDULES, lambda r: _page(r, answers.description), {**plain, **text, "label": labels})


def count(filters: Mapping[str, Any]) -> Ask[int]:
    """Ask how many schedules a list would show in all."""
    ask = listed({**filters, "limit": 1})
    return _get(_SCHEDULES, lambda r: int(r.json()["total"]), {**ask.params, "total": "true"})


def batch_delete(schedule_ids: Sequence[str]) -> Ask[None]:
    """Ask for schedules to be gone; those that are not there are passed over."""
    body = {"schedule_ids": list(schedule_ids)}
    return Ask("POST", f"{_SCHEDULES}batch-delete/", _nothing, body, may_repeat=True)


def workflows() -> Ask[list[dict[str, Any]]]:
    """Ask which workflows may be named."""
    return _get(f"{_BASE}workflows/", lambda r: list(r.json()["items"]))


# ---- one schedule


def update(schedule_id: str, body: Mapping[str, Any], match: str | None) -> Ask[Description]:
    """Ask for a change. With a condition it is not repeated: a lost answer would look like somebody else's change."""
    headers = {} if match is None else {"If-Match": match}
    return Ask("PATCH", _path(schedule_id), _description, body, headers=headers, may_repeat=match is None)


def change(schedule_id: str, operation: str, body: Mapping[str, Any]) -> Ask[Description]:
    """Ask for pause, resume or restart."""
    return Ask("POST", _path(schedule_id, operation), _description, _said(body))


def delete(schedule_id: str, *, purge: bool, reason: str | None) -> Ask[None]:
    """Ask for a schedule to be gone."""
    params = {"purge": "true"} if purge else {}
    return Ask("DELETE", _path(schedule_id), _nothing, params=params | _said({"reason": reason}), may_repeat=True)


def trigger(schedule_id: str, body: Mapping[str, Any], key: str | None) -> Ask[Triggered]:
    """Ask for a run now, under a key so that it may be repeated."""

    def read(response: httpx.Response) -> Triggered:
        facts = response.json()
        return Triggered(**facts | {"run": facts["run"] and answers.run_facts(facts["run"])})

    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    return Ask("POST", _path(schedule_id, "trigger"), read, _said(body), headers=headers, may_repeat=True)


def backfill(
    schedule_id: str, start: datetime, end: datetime, *, overlap: str | None, dry_run: bool, bound: int
) -> Ask[BackfillProgress]:
    """Ask for a past range to be fired."""
    body = {"start": iso_utc(start), "end": iso_utc(end), "overlap": overlap, "dry_run": dry_run, "bound": bound}
    return Ask("POST", _path(schedule_id, "backfill"), _progress, _said(body), may_repeat=dry_run)


def backfill_progress(uid: str) -> Ask[BackfillProgress]:
    """Ask how far a backfill is."""
    return _get(f"{_BASE}backfills/{quote(uid, safe='')}/", _progress)


def history(schedule_id: str, limit: int, after_sequence: int) -> Ask[list[AuditRecord]]:
    """Ask for audit events after a sequence."""
    params = {"limit": limit, "after_sequence": after_sequence}
    return _get(_path(schedule_id, "history"), lambda r: _page(r, answers.event).items, params)


def upcoming(schedule_id: str, count: int) -> Ask[list[datetime]]:
    """Ask for the next fires."""
    return _get(_path(schedule_id, "upcoming"), lambda r: answers.instants(r.json()), {"count": count})


def runs(schedule_id: str, limit: int, cursor: str | None, statuses: Sequence[str]) -> Ask[Page[RunFacts]]:
    """Ask for a page of runs."""
    params = _said({"limit": limit, "cursor": cursor, "status": list(statuses)})
    return _get(_path(schedule_id, "runs"), lambda r: _page(r, answers.run_facts), params)


def run(schedule_id: str, uid: str) -> Ask[RunFacts]:
    """Ask for one run."""
    return _get(_path(schedule_id, "runs", uid), _run)


def end_run(schedule_id: str, uid: str, operation: str) -> Ask[RunFacts]:
    """Ask for a run to be cancelled or terminated."""
    return Ask("POST", _path(schedule_id, "runs", uid, operation), _run, may_repeat=True)


# ---- bodies


def declaration(workflow: str, spec: SpecLike, options: Options, more: Mapping[str, Any]) -> dict[str, Any]:
    """Give the body that declares a schedule; a spec that makes no sense is refused here."""
    timezone = options.get("timezone")
    said = {name: plain(name, value) for name, value in options.items() if name != "timezone" and value is not None}
    return {"workflow": workflow, "spec": Spec.coerce(spec, timezone).to_json(), **said, **_said(more)}


def changes(workflow: str | None, spec: SpecLike | None, options: Options, more: Mapping[str, Any]) -> dict[str, Any]:
    """Give the body that changes a schedule; an option that is None takes its default."""
    said = {name: plain(name, value) for name, value in options.items()}
    if spec is not None:
        said["spec"] = Spec.coerce(spec, said.pop("timezone", None)).to_json()
    return {**said, **_said({"workflow": workflow, **more})}


def plain(name: str, value: Any) -> Any:
    """Give an option as JSON; spans are seconds."""
    if isinstance(value, RetryPolicy):
        return {key: plain(key, inner) for key, inner in asdict(value).items()}
    if isinstance(value, timedelta):
        return value.total_seconds()
    if name in {"environments", "args"}:
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _said(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


# ---- answers


def _get(path: str, read: Callable[[httpx.Response], T], params: Mapping[str, Any] | None = None) -> Ask[T]:
    return Ask("GET", path, read, params=params or {}, may_repeat=True)


def _path(schedule_id: str, *parts: str) -> str:
    return _SCHEDULES + "".join(f"{quote(part, safe=':')}/" for part in (schedule_id, *parts))


def _nothing(response: httpx.Response) -> None:
    del response


def _description(response: httpx.Response) -> Description:
    return answers.description(response.json())


def _run(response: httpx.Response) -> RunFacts:
    return answers.run_facts(response.json())


def _progress(response: httpx.Response) -> BackfillProgress:
    return answers.progress(response.json())


def _page(response: httpx.Response, read: Callable[[Mapping[str, Any]], T]) -> Page[T]:
    facts = response.json()
    return Page([read(item) for item in facts["items"]], facts["next_cursor"])
