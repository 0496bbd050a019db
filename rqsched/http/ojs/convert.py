"""From a cron job's options, kept verbatim, to ours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rqsched.core.payload import dumps
from rqsched.core.policy import MAX_DELAY, Exhausted, RetryPolicy
from rqsched.core.settle_decision import AttemptOutcome, AttemptResult
from rqsched.http.ojs.errors import invalid
from rqsched.http.ojs.requests import Registration, number, require_object, whole
from rqsched.spec.duration import parse_span

MAX_ATTEMPTS = 3
INITIAL_INTERVAL = timedelta(seconds=1)
COEFFICIENT = 2.0
MAX_INTERVAL = timedelta(minutes=5)
SPREAD = 0.5
"""With jitter a delay is between a half and one and a half of what the backoff says."""
MAX_ERROR_TYPES = 100
MAX_ERROR = 8_192
"""Characters of the JSON of an error that are kept with its attempt."""
MAX_TEXT = 2_000
"""Characters of each of its texts that are kept when that is exceeded."""


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
    return {
        "queue": options.get("queue"),
        "timeout": timeout_seconds(options),
        **_retry(options.get("retry")),
        "priority": whole("options.priority", options.get("priority")) or 0,
        "memo": memo_of(name, options),
    }


def memo_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the memo of a cron job's runs: its `meta` and its name."""
    return {**(options.get("meta") or {}), "cron_name": name}


def timeout_seconds(options: Mapping[str, Any]) -> int | None:
    """Return the `timeout` in whole seconds, at least one; None when the options name none."""
    seconds = number("options.timeout", options.get("timeout"))
    milliseconds = number("options.timeout_ms", options.get("timeout_ms"))
    value = seconds if seconds is not None else None if milliseconds is None else milliseconds / 1000
    return None if value is None else max(1, round(value))


def _retry(given: Any) -> dict[str, Any]:
    """Read a retry policy; each field that is absent has the spec's default."""
    fields = require_object("options.retry", given or {})
    attempts = whole("options.retry.max_attempts", fields.get("max_attempts"))
    if attempts is not None and attempts < 0:
        raise invalid("options.retry.max_attempts: must be at least 0.", field="options.retry.max_attempts")
    cap = _interval(fields, "max_interval") or MAX_INTERVAL
    factor = number("options.retry.backoff_coefficient", fields.get("backoff_coefficient"))
    return {
        "retry": RetryPolicy(
            max_retries=max(0, (MAX_ATTEMPTS if attempts is None else attempts) - 1),
            base=min(_interval(fields, "initial_interval") or INITIAL_INTERVAL, cap),
            factor=COEFFICIENT if factor is None else float(factor),
            cap=cap,
            then=Exhausted.CONTINUE,
        ),
        "retry_spread": SPREAD if _choice(fields, "jitter", (True, False)) else 0.0,
        "final_errors": _error_types(fields.get("non_retryable_errors")),
        "dead_letter": _choice(fields, "on_exhaustion", ("discard", "dead_letter")) == "dead_letter",
    }


def _choice(fields: Mapping[str, Any], name: str, allowed: tuple[Any, ...]) -> Any:
    """Return one of the allowed values, the first when the field is absent."""
    value = fields.get(name)
    if value is None:
        return allowed[0]
    if not any(type(value) is type(one) and value == one for one in allowed):
        words = " or ".join(str(one).lower() for one in allowed)
        raise invalid(f"options.retry.{name}: must be {words}.", field=f"options.retry.{name}")
    return value


def _error_types(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    is_list = isinstance(value, list) and len(value) <= MAX_ERROR_TYPES
    if not is_list or not all(isinstance(one, str) and 0 < len(one) <= 255 for one in value):
        name = "options.retry.non_retryable_errors"
        raise invalid(f"{name}: must be an array of at most {MAX_ERROR_TYPES} error types.", field=name)
    return tuple(value)


def _interval(fields: Mapping[str, Any], name: str) -> timedelta | None:
    """Read an interval as ISO 8601, or in milliseconds under `{name}_ms`."""
    value, milliseconds = fields.get(name), fields.get(f"{name}_ms")
    if isinstance(value, str):
        span: timedelta | None = parse_span(value)
    else:
        length = number(f"options.retry.{name}", value if milliseconds is None else milliseconds)
        span = None if length is None else timedelta(milliseconds=length)
    if span is not None and span > MAX_DELAY:
        raise invalid(f"options.retry.{name}: must be at most {MAX_DELAY.days} days.", field=f"options.retry.{name}")
    return span


def error_of(given: Any) -> dict[str, Any]:
    """Return the error of an attempt as it was sent, an object whatever it was; what is too large to keep is cut."""
    error = dict(given) if isinstance(given, Mapping) else {"message": str(given) if given else "failed"}
    if len(dumps(error)) <= MAX_ERROR:
        return error
    kept = {name: error[name] for name in ("code", "type", "message", "retryable") if name in error}
    return {name: value[:MAX_TEXT] if isinstance(value, str) else value is True for name, value in kept.items()} | {
        "x_cut": True
    }


def failure(error: Mapping[str, Any]) -> AttemptResult:
    """Read what a reported error means: whether there is another attempt, and what is kept of it."""
    types = tuple(one for one in (error.get("type"), error.get("code")) if isinstance(one, str) and one)
    message = error.get("message")
    code = error["code"] if isinstance(error.get("code"), str) else ""
    return AttemptResult(
        AttemptOutcome.FAILED,
        error=": ".join([*types[:1], *([str(message)] if message else [])]) or "failed",
        is_final=error.get("retryable") is False or code in _FINAL_CODES,
        error_types=types,
        details=dumps(error),
        dead_letter=_FINAL_CODES.get(code),
    )


_FINAL_CODES = {"DISCARD": False, "FAIL": False, "DEAD_LETTER": True}
"""The codes by which a handler ends its job, and whether the job is a dead letter then."""
