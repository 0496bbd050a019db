"""From a body to what the scheduler takes: a spec, options, and what this surface keeps for itself. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from rqsched.core.model import Schedule
from rqsched.core.options import Options
from rqsched.core.payload import loads
from rqsched.core.policy import CatchUp, RetryPolicy
from rqsched.errors import InvalidInputError, InvalidSpecError
from rqsched.http.native.requests import DeclareBody, DefinitionBody, RetryBody, TimingBody
from rqsched.spec.spec import Cron, Every, Member, Once, Spec

DEFAULTS: Mapping[str, Any] = {
    "args": [], "kwargs": {}, "overlap": "skip", "buffer_limit": None, "missed": "fire_once", "catch_up_window": None,
    "catch_up_limit": 100, "catch_up": "next", "jitter": timedelta(0), "max_runs": None, "on_exhausted": "done",
    "total_repeats": None, "environments": (), "timeout": None, "queue": None, "connection": None, "priority": 0,
    "labels": {}, "memo": {}, "search_attributes": {}, "description": None, "owner": None, "executor": "rq",
}  # fmt: skip
"""What null means in a change."""
_ALIASES = {
    "kwargs": "trigger_payload",
    "overlap": "overlap_policy",
    "timeout": "timeout_seconds",
    "owner": "user_profile_id",
    "workflow": "workflow_id",
}
_MEMBERS = ("spec", "cron", "interval", "interval_seconds", "once", "offset", "from_completion")
_WINDOW = ("start_at", "end_at")


@dataclass(frozen=True, slots=True)
class Declared:
    """What a body says."""

    workflow: str | None
    spec: Spec | None
    options: Options


def declared(body: DeclareBody) -> Declared:
    """Read a whole declaration; raises InvalidInputError when workflow or timing is missing."""
    workflow = _value(body, "workflow")
    if workflow is None:
        raise InvalidInputError("workflow", "is missing; name a registered workflow")
    options = {name: value for name, value in _options(body).items() if value is not None}
    if body.interval_seconds is not None:
        options.setdefault("catch_up", CatchUp.FROM_NOW)  # resume as the Pipelit document has it
    retry = _retry(body, RetryPolicy())
    return Declared(workflow, _spec(body, None), _typed(options, retry, _surface(body, {})))


def changed(body: DefinitionBody, current: Schedule) -> Declared:
    """Read a change: only what is said, null as the default."""
    options = {name: DEFAULTS[name] if value is None else value for name, value in _options(body).items()}
    if body.said("workflow") or body.said("workflow_id"):
        _require_not_null(body, "workflow")
    says_retry = body.said("retry") or body.said("max_retries")
    is_reset = body.said("retry") and body.retry is None
    retry = _retry(body, RetryPolicy() if is_reset else current.policies.retry) if says_retry else None
    says_surface = body.said("name") or body.said("trigger_node_id")
    surface = _surface(body, loads(current.definition.surface)) if says_surface else None
    spec = _spec(body, current.spec) if any(map(body.said, (*_MEMBERS, *_WINDOW, "timezone"))) else None
    return Declared(_value(body, "workflow"), spec, _typed(options, retry, surface))


def _typed(options: dict[str, Any], retry: RetryPolicy | None, surface: Mapping[str, Any] | None) -> Options:
    given: Any = options | {"retry": retry} if retry is not None else options
    typed: Options = given if surface is None else given | {"surface": surface}
    return typed


def _require_not_null(body: DefinitionBody, name: str) -> None:
    if _value(body, name) is None:
        raise InvalidInputError(name, "cannot be null")


# ---- single values


def _value(body: Any, name: str) -> Any:
    """Give a field or its alias; raises InvalidInputError when both are given and differ."""
    alias = _ALIASES.get(name)
    own, other = getattr(body, name), getattr(body, alias) if alias else None
    if own is not None and other is not None and own != other:
        raise InvalidInputError(name, f"contradicts {alias}; give one of them")
    return other if own is None else own


def _options(body: DefinitionBody) -> dict[str, Any]:
    """Give the options the body says, null included."""
    said = [name for name in DEFAULTS if body.said(name) or body.said(_ALIASES.get(name, name))]
    return {name: _value(body, name) for name in said}


def _retry(body: DefinitionBody, base: RetryPolicy) -> RetryPolicy:
    given = body.retry or RetryBody()
    changes = {name: getattr(given, name) for name in given.model_fields_set}
    if body.max_retries is not None:
        if changes.get("max_retries", body.max_retries) != body.max_retries:
            raise InvalidInputError("max_retries", "contradicts retry.max_retries; give one of them")
        changes["max_retries"] = body.max_retries
    blank = RetryPolicy()
    return replace(base, **{name: getattr(blank, name) if v is None else v for name, v in changes.items()})


def _surface(body: DefinitionBody, kept: dict[str, Any]) -> dict[str, Any]:
    """Give what this surface keeps of a schedule: its name for people, and Pipelit's trigger node."""
    said = {name: getattr(body, name) for name in ("name", "trigger_node_id") if body.said(name)}
    return {name: value for name, value in (kept | said).items() if value is not None}


# ---- timing


def _spec(body: TimingBody, current: Spec | None) -> Spec:
    """Give the declared spec; beside a current one, what is not said stays."""
    if body.spec is not None:
        _require_alone(body)
        return Spec.coerce(body.spec, body.timezone)
    members = _members(body)
    if current is None:
        if not members:
            raise InvalidSpecError("spec", "is missing; give cron, interval, interval_seconds, once or spec")
        return Spec(members, body.timezone or "UTC", body.start_at, body.end_at)
    return Spec(
        members or current.members,
        (body.timezone or "UTC") if body.said("timezone") else current.timezone,
        body.start_at if body.said("start_at") else current.start_at,
        body.end_at if body.said("end_at") else current.end_at,
    )


def _require_alone(body: TimingBody) -> None:
    others = [name for name in (*_MEMBERS[1:], *_WINDOW) if getattr(body, name) is not None]
    if others:
        raise InvalidInputError(others[0], "is said beside spec, which says everything; give one of them")


def _members(body: TimingBody) -> list[Member]:
    interval = _interval(body)
    if interval is None and (body.offset is not None or body.from_completion):
        raise InvalidInputError("interval", "is missing; offset and from_completion are about one")
    every = [Every(interval, offset=body.offset, from_completion=bool(body.from_completion))] if interval else []
    return [*(Cron(text) for text in body.cron or ()), *every, *(Once(instant) for instant in body.once or ())]


def _interval(body: TimingBody) -> timedelta | None:
    if body.interval_seconds is None:
        return body.interval
    seconds = timedelta(seconds=body.interval_seconds)
    if body.interval not in {None, seconds}:
        raise InvalidInputError("interval", "contradicts interval_seconds; give one of them")
    return seconds
