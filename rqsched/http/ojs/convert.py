"""From a cron job's options, kept verbatim, to ours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rqsched.core.policy import Exhausted, RetryPolicy
from rqsched.http.ojs.errors import invalid
from rqsched.http.ojs.requests import Registration, number, require_object, whole
from rqsched.spec.duration import parse_span


def job_options(registration: Registration, known: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the new job options, `meta` included; None when the request contains none."""
    if registration.options is None and registration.meta is None:
        return None
    options = dict(known if registration.options is None else registration.options)
    if registration.meta is not None:
        beside = {} if registration.options is None else registration.options.get("meta") or {}
        options["meta"] = {**beside, **registration.meta}
    return options


def our_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return job options as ours; those without an equivalent are only kept verbatim."""
    meta = options.get("meta") or {}
    return {
        "queue": options.get("queue"),
        "timeout": _timeout(options),
        "retry": _retry(options.get("retry")),
        "priority": whole("options.priority", options.get("priority")) or 0,
        "memo": {**meta, "cron_name": name},
    }


def _timeout(options: Mapping[str, Any]) -> int | None:
    seconds = number("options.timeout", options.get("timeout"))
    milliseconds = number("options.timeout_ms", options.get("timeout_ms"))
    value = seconds if seconds is not None else None if milliseconds is None else milliseconds / 1000
    return None if value is None else max(1, round(value))


def _retry(fields: Any) -> RetryPolicy:
    if fields is None:
        return RetryPolicy(then=Exhausted.CONTINUE)
    fields = require_object("options.retry", fields)
    attempts = whole("options.retry.max_attempts", fields.get("max_attempts"))
    if attempts is not None and attempts < 1:
        raise invalid("options.retry.max_attempts: must be at least 1.", field="options.retry.max_attempts")
    return RetryPolicy(
        max_retries=3 if attempts is None else attempts - 1,
        base=_interval(fields, "initial_interval"),
        factor=float(number("options.retry.backoff_coefficient", fields.get("backoff_coefficient")) or 2.0),
        cap=_interval(fields, "max_interval"),
        then=Exhausted.CONTINUE,
    )


def _interval(fields: Mapping[str, Any], name: str) -> timedelta | None:
    """Read an interval as ISO 8601, or in milliseconds under `{name}_ms`."""
    value, milliseconds = fields.get(name), fields.get(f"{name}_ms")
    if isinstance(value, str):
        return parse_span(value)
    length = number(f"options.retry.{name}", value if milliseconds is None else milliseconds)
    return None if length is None else timedelta(milliseconds=length)
