"""Convert the body of a request to the scheduler's parameters: spec, options, and fields of this surface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rqsched import OnResume
from rqsched.api.options import OPTIONS
from rqsched.api.values import loads
from rqsched.errors import InvalidInputError, InvalidSpecError
from rqsched.http.native.requests import (
    DeclareRequest,
    DefinitionRequest,
    NotificationsRequest,
    RetryRequest,
    TimingRequest,
)
from rqsched.types import Options, Schedule
from rqsched.when.spec import After, Cron, Every, Member, Once, Spec

_RETRIES = ("retry", "target_retry")
DEFAULTS: Mapping[str, Any] = {
    name: option.default for name, option in OPTIONS.items() if name not in {"timezone", *_RETRIES}
}
"""For each field of a change, the value that null means. Retry policies are changed field by field instead."""
_ALIASES = {
    "kwargs": "trigger_payload",
    "max_successes": "total_repeats",
    "timeout": "timeout_seconds",
    "owner": "user_profile_id",
    "workflow": "workflow_id",
}
_MEMBERS = ("spec", "cron", "interval", "interval_seconds", "once", "offset", "from_completion", "after", "on")
_WINDOW = ("start_at", "end_at")
_OF_SURFACE = ("name", "trigger_node_id", "user_profile_id")


@dataclass(frozen=True, slots=True)
class Declaration:
    """The definition that a body contains."""

    workflow: str | None
    """None keeps the schedule's workflow."""
    spec: Spec | None
    """None keeps the schedule's spec."""
    options: Options
    """The options that the body contains."""


def statuses_of(texts: Sequence[str] | None, known: Iterable[str], field: str = "status") -> tuple[str, ...]:
    """Read a status filter, repeated or comma-separated; raises InvalidInputError for an unknown status."""
    statuses = tuple(name for text in texts or () for name in text.split(",") if name)
    if unknown := [name for name in statuses if name not in list(known)]:
        raise InvalidInputError(field, f"{unknown[0]!r} is not one of {', '.join(known)}")
    return statuses


def declaration_of(body: DeclareRequest) -> Declaration:
    """Read a complete declaration; raises InvalidInputError when workflow or timing is missing."""
    workflow = _value(body, "workflow")
    if workflow is None:
        raise InvalidInputError("workflow", "is missing; name a registered workflow")
    options = {name: value for name, value in _options(body).items() if value is not None}
    if body.interval_seconds is not None:
        options.setdefault("on_resume", OnResume.FROM_NOW)  # the default of the Pipelit document
    return Declaration(workflow, _spec(body, None), _typed(options | _retries(body), _surface(body, {})))


def update_of(body: DefinitionRequest, current: Schedule) -> Declaration:
    """Read a change: only the fields that the body contains. Null means the default of a field."""
    options = {name: DEFAULTS[name] if value is None else value for name, value in _options(body).items()}
    if (body.has("workflow") or body.has("workflow_id")) and _value(body, "workflow") is None:
        raise InvalidInputError("workflow", "cannot be null; name a registered workflow")
    options |= _retries(body)
    surface = _surface(body, loads(current.definition.surface)) if any(map(body.has, _OF_SURFACE)) else None
    spec = _spec(body, current.spec) if any(map(body.has, (*_MEMBERS, *_WINDOW, "timezone"))) else None
    return Declaration(_value(body, "workflow"), spec, _typed(options, surface))


def _typed(options: dict[str, Any], surface: Mapping[str, Any] | None) -> Options:
    given: Any = options
    typed: Options = given if surface is None else given | {"surface": surface}
    return typed


def _value(body: Any, name: str) -> Any:
    """Return a field or its alias; raises InvalidInputError when both are sent and differ."""
    alias = _ALIASES.get(name)
    own, other = getattr(body, name), getattr(body, alias) if alias else None
    if alias == "total_repeats":
        other = other or None  # 0 means no limit
    if own is not None and other is not None and own != other:
        raise InvalidInputError(name, f"contradicts {alias}; send one of them")
    return other if own is None else own


def _options(body: DefinitionRequest) -> dict[str, Any]:
    """Return the options that the body contains, null included."""
    names = [name for name in DEFAULTS if body.has(name) or body.has(_ALIASES.get(name, name))]
    return {name: _plain(_value(body, name)) for name in names}


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if isinstance(value, NotificationsRequest) else value


def _retries(body: DefinitionRequest) -> dict[str, Any]:
    """Return the retry policies of the body, each with the fields that are sent. Null means the default policy."""
    given = {name: getattr(body, name) for name in _RETRIES if body.has(name)}
    said: dict[str, Any] = {name: one and one.model_dump(exclude_unset=True) for name, one in given.items()}
    if body.max_retries is not None:
        changes = said.get("retry") or (dict.fromkeys(RetryRequest.model_fields) if "retry" in said else {})
        if changes.get("max_retries") not in {None, body.max_retries}:
            raise InvalidInputError("max_retries", "contradicts retry.max_retries; send one of them")
        said["retry"] = changes | {"max_retries": body.max_retries}
    return said


def _surface(body: DefinitionRequest, kept: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that only this surface has: the display name, and the ids of the Pipelit document."""
    given = {name: getattr(body, name) for name in _OF_SURFACE if body.has(name)}
    return {name: value for name, value in (kept | given).items() if value is not None}


def _spec(body: TimingRequest, current: Spec | None) -> Spec:
    """Return the declared spec; fields that the body does not contain keep their current value."""
    if body.spec is not None:
        others = [name for name in (*_MEMBERS[1:], *_WINDOW) if getattr(body, name) is not None]
        if others:
            raise InvalidInputError(others[0], "cannot be combined with spec, which is complete; send one of them")
        return Spec.coerce(body.spec, body.timezone)
    members = _members(body)
    if current is None or body.after is not None:
        if not members:
            raise InvalidSpecError("spec", "is missing; send cron, interval, interval_seconds, once, after or spec")
        return Spec(members, body.timezone, body.start_at, body.end_at)
    return Spec(
        members or current.members,
        body.timezone if body.has("timezone") else current.timezone,
        body.start_at if body.has("start_at") else current.start_at,
        body.end_at if body.has("end_at") else current.end_at,
    )


def _members(body: TimingRequest) -> list[Member]:
    interval = _interval(body)
    if interval is None and (body.offset is not None or body.from_completion):
        raise InvalidInputError("interval", "is missing; offset and from_completion need an interval")
    if body.on is not None and body.after is None:
        raise InvalidInputError(
            "after", "is missing; on says which ends of the runs of that schedule count, so name it"
        )
    every = [Every(interval, offset=body.offset, from_completion=bool(body.from_completion))] if interval else []
    return [
        *(Cron(text, seconds="first") for text in body.cron or ()),
        *every,
        *(Once(instant) for instant in body.once or ()),
        *([] if body.after is None else [After(body.after, body.on or "success")]),
    ]


def _interval(body: TimingRequest) -> timedelta | None:
    if body.interval_seconds is None:
        return body.interval
    seconds = timedelta(seconds=body.interval_seconds)
    if body.interval not in {None, seconds}:
        raise InvalidInputError("interval", "contradicts interval_seconds; send one of them")
    return seconds
