"""From a cron job's options, kept verbatim, to ours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rqsched.core.policy import Exhausted, RetryPolicy
from rqsched.http.ojs.errors import invalid
from rqsched.http.ojs.requests import Registration, number, require_object, whole
from rqsched.spec.duration import parse_span


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
    seconds = number("options.timeout", options.get("timeout"))
    milliseconds = number("options.timeout_ms", options.get("timeout_ms"))
    value = seconds if seconds is not None else None if milliseconds is None else milliseconds / 1000
    return None if value is None else max(1, round(value))


def _retry(form: Any) -> RetryPolicy:
    if form is None:
        return RetryPolicy(then=Exhausted.CONTINUE)
    form = require_object("options.retry", form)
    attempts = whole("options.retry.max_attempts", form.get("max_attempts"))
    if attempts is not None and attempts < 1:
        raise invalid("options.retry.max_attempts: must be at least 1.", field="options.retry.max_attempts")
    return RetryPolicy(
        max_retries=3 if attempts is None else attempts - 1,
        base=_interval(form, "initial_interval"),
        factor=float(number("options.retry.backoff_coefficient", form.get("backoff_coefficient")) or 2.0),
        cap=_interval(form, "max_interval"),
        then=Exhausted.CONTINUE,
    )


def _interval(form: Mapping[str, Any], name: str) -> timedelta | None:
    """Read an interval as ISO 8601, or in milliseconds under `{name}_ms`."""
    value, milliseconds = form.get(name), form.get(f"{name}_ms")
    if isinstance(value, str):
        return parse_span(value)
    length = number(f"options.retry.{name}", value if milliseconds is None else milliseconds)
    return None if length is None else timedelta(milliseconds=length)
