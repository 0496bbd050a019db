"""A cron job as it is sent: checked, kept verbatim, and said in our options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rqsched.core.policy import Exhausted, RetryPolicy
from rqsched.http.ojs.errors import invalid
from rqsched.spec.duration import parse_span
from rqsched.spec.zones import require_timezone

_NAME = re.compile(r"[a-z0-9][a-z0-9\-.]{0,254}")
_TYPE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_QUEUE = re.compile(r"[a-z0-9][a-z0-9\-.]{0,127}")
_POLICIES = ("skip", "allow", "cancel_previous", "enqueue")
_TEMPLATE = ("type", "args", "options", "meta")
KNOWN = frozenset(
    {
        "cron", "expression", "timezone", "type", "args", "options", "job_template", "meta", "overlap_policy",
        "enabled", "description",
    }
)  # fmt: skip
"""What a client may say beside the name; system fields it sends are ignored."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What one request says of a cron job; None is what it does not say."""

    expression: str | None = None
    timezone: str | None = None
    type: str | None = None
    args: list[Any] | None = None
    options: Mapping[str, Any] | None = None
    """Verbatim."""
    meta: Mapping[str, Any] | None = None
    """What was sent beside the options; it belongs into them."""
    overlap_policy: str | None = None
    enabled: bool | None = None
    description: str | None = None
    has_description: bool = False


def read(body: Any) -> Registration:
    """Read any of the published shapes: flat, or with a `job_template`; `cron` or `expression`."""
    form = _object("body", body)
    template = _object("job_template", form.get("job_template") or {})
    flat = {key: template.get(key) if form.get(key) is None else form[key] for key in _TEMPLATE}
    expression, other = form.get("cron"), form.get("expression")
    if expression is not None and other is not None and expression != other:
        raise invalid("cron and expression contradict each other; send one of them.")
    return Registration(
        expression=_text("cron", expression if expression is not None else other),
        timezone=_timezone(form.get("timezone")),
        type=_type(flat["type"]),
        args=_args(flat["args"]),
        options=_options(flat["options"]),
        meta=None if flat["meta"] is None else _object("meta", flat["meta"]),
        overlap_policy=_overlap(form.get("overlap_policy")),
        enabled=_enabled(form),
        description=_text("description", form.get("description")),
        has_description="description" in form,
    )


def require_name(name: Any) -> str:
    """Check a cron job's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid("name: use 1 to 255 of a-z 0-9 - . with a letter or digit first.", field="name")
    return name


def require_queue(name: Any) -> str:
    """Check a queue's name."""
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise invalid("queue: use 1 to 128 of a-z 0-9 - . with a letter or digit first.", field="queue")
    return name


def _object(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid(f"{field}: must be an object.", field=field)
    return value


def _text(field: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise invalid(f"{field}: must be text.", field=field)
    return value


def _timezone(value: Any) -> str | None:
    name = _text("timezone", value)
    return None if name is None else require_timezone(name).key


def _type(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 255 or not _TYPE.fullmatch(value):
        raise invalid("type: write dot-separated segments of a-z 0-9 _, such as report.generate.", field="type")
    return value


def _args(value: Any) -> list[Any] | None:
    if value is not None and not isinstance(value, list):
        raise invalid("args: must be an array.", field="args")
    return value


def _overlap(value: Any) -> str | None:
    if value is not None and value not in _POLICIES:
        raise invalid(f"overlap_policy: {value!r} is not one of {', '.join(_POLICIES)}.", field="overlap_policy")
    return value  # type: ignore[no-any-return]


def _enabled(form: Mapping[str, Any]) -> bool | None:
    value = form.get("enabled")
    if "enabled" in form and not isinstance(value, bool):
        raise invalid("enabled: must be true or false.", field="enabled")
    return value


def _options(options: Any) -> Mapping[str, Any] | None:
    if options is None:
        return None
    form = _object("options", options)
    if form.get("queue") is not None:
        require_queue(form["queue"])
    _object("options.meta", form.get("meta") or {})
    tags = form.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise invalid("options.tags: must be an array of texts.", field="options.tags")
    return form


# ---- in our options


def job_options(said: Registration, known: Mapping[str, Any]) -> dict[str, Any] | None:
    """Give the job options that hold from now on, `meta` among them; None when the request says nothing of them."""
    if said.options is None and said.meta is None:
        return None
    options = dict(known if said.options is None else said.options)
    if said.meta is not None:
        beside = {} if said.options is None else said.options.get("meta") or {}
        options["meta"] = {**beside, **said.meta}
    return options


def our_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Say job options in ours; what we have no word for is kept in the verbatim copy."""
    meta = options.get("meta") or {}
    return {
        "queue": options.get("queue"),
        "timeout": _timeout(options),
        "retry": _retry(options.get("retry")),
        "priority": whole("options.priority", options.get("priority")) or 0,
        "memo": {**meta, "cron_name": name},
    }


def _timeout(options: Mapping[str, Any]) -> int | None:
    seconds = _number("options.timeout", options.get("timeout"))
    milliseconds = _number("options.timeout_ms", options.get("timeout_ms"))
    value = seconds if seconds is not None else None if milliseconds is None else milliseconds / 1000
    return None if value is None else max(1, round(value))


def _retry(form: Any) -> RetryPolicy:
    if form is None:
        return RetryPolicy(then=Exhausted.CONTINUE)
    form = _object("options.retry", form)
    attempts = whole("options.retry.max_attempts", form.get("max_attempts"))
    if attempts is not None and attempts < 1:
        raise invalid("options.retry.max_attempts: must be at least 1.", field="options.retry.max_attempts")
    return RetryPolicy(
        max_retries=3 if attempts is None else attempts - 1,
        base=_interval(form, "initial_interval"),
        factor=float(_number("options.retry.backoff_coefficient", form.get("backoff_coefficient")) or 2.0),
        cap=_interval(form, "max_interval"),
        then=Exhausted.CONTINUE,
    )


def _interval(form: Mapping[str, Any], name: str) -> timedelta | None:
    """Read an interval as ISO 8601, or in milliseconds under `{name}_ms`."""
    value, milliseconds = form.get(name), form.get(f"{name}_ms")
    if isinstance(value, str):
        return parse_span(value)
    number = _number(f"options.retry.{name}", value if milliseconds is None else milliseconds)
    return None if number is None else timedelta(milliseconds=number)


def _number(field: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**31 * 1000:
        raise invalid(f"{field}: must be a positive number.", field=field)
    return value


def whole(field: str, value: Any) -> int | None:
    """Check a whole number, where there is one."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 10_000:
        raise invalid(f"{field}: must be a whole number.", field=field)
    return value
