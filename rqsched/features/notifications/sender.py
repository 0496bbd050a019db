"""Send notifications: an event to a webhook, a ping to a heartbeat URL, a check-in to Sentry.

Redirects are not followed. Only the status of an answer counts. The caller sets the time limit.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from http.client import HTTPException
from importlib.metadata import version
from typing import Any

from rqsched.config import Settings
from rqsched.errors import ConfigError, InvalidInputError
from rqsched.features.notifications import timed_http
from rqsched.features.notifications.decide import FAILED, STARTED, Delivery, DeliveryKind
from rqsched.kernel.chain.option_checks import SENTRY_MISSING, has_sentry
from rqsched.kernel.decide.ids import uid_to_uuid
from rqsched.kernel.decide.notifications import checked_url, hidden

_READ_BYTES = 4_096
_SENTRY_STATUS = {STARTED: "in_progress", FAILED: "error"}


class SendingError(Exception):
    """A message was refused; the text says why."""


class NoAnswerError(SendingError):
    """The receiver could not be reached or did not answer in time."""


def send(delivery: Delivery, message: Mapping[str, Any], *, settings: Settings, now: datetime, seconds: float) -> None:
    """Send a message over HTTP or to Sentry. Raises SendingError, or ConfigError if a setting is missing."""
    if delivery.kind is DeliveryKind.WEBHOOK:
        _post(delivery.destination, delivery.payload.encode(), _signed(delivery, settings, now), seconds)
    elif delivery.kind is DeliveryKind.HEARTBEAT:
        url, mark, query = delivery.destination.partition("?")
        suffix = {STARTED: "/start", FAILED: "/fail"}.get(delivery.event_type)  # none for a success
        url = f"{url.rstrip('/')}{suffix}{mark}{query}" if suffix else delivery.destination
        error = str(message["data"].get("error", ""))
        _post(url, error.encode(), {"Content-Type": "text/plain; charset=utf-8"}, seconds)
    else:
        _check_in(delivery, message, seconds)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Compute the signature that a receiver checks: the hexadecimal HMAC-SHA256 of `timestamp.body`."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _signed(delivery: Delivery, settings: Settings, now: datetime) -> dict[str, str]:
    if settings.webhook_secret is None:
        raise ConfigError("RQSCHED_WEBHOOK_SECRET is not set in this process, so webhooks cannot be signed; set it.")
    timestamp = str(int(now.timestamp()))
    signed = signature(settings.webhook_secret.get_secret_value(), timestamp, delivery.payload.encode())
    return {
        "Content-Type": "application/json",
        "Rqsched-Event": delivery.event_type,
        "Rqsched-Delivery": delivery.uid,
        "Rqsched-Timestamp": timestamp,
        "Rqsched-Signature": f"sha256={signed}",
    }


def _post(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> None:
    try:
        checked_url("its URL", url)  # an older release may have stored it unchecked, and placeholders were filled in
    except InvalidInputError as error:
        raise SendingError(str(error)) from None
    request = urllib.request.Request(url, body, {**headers, "User-Agent": _agent()}, method="POST")  # noqa: S310 - checked above
    try:
        with timed_http.opener().open(request, timeout=seconds) as answer:
            answer.read(_READ_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        raise SendingError(f"{hidden(url)} answers {error.code}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            reason = f"no whole answer within {seconds:g} s"
        raise NoAnswerError(f"{hidden(url)}: {reason or type(error).__name__}") from None


@lru_cache(maxsize=1)
def _agent() -> str:
    return f"rqsched/{version('rqsched')}"


def _check_in(delivery: Delivery, message: Mapping[str, Any], seconds: float) -> None:
    if not has_sentry():
        raise ConfigError(SENTRY_MISSING)
    sentry: Any = importlib.import_module("sentry_sdk")
    if not sentry.get_client().is_active():
        raise ConfigError("Sentry is not set up in this worker: call sentry_sdk.init in a module of RQSCHED_IMPORTS.")
    data = message["data"]
    crons: Any = importlib.import_module("sentry_sdk.crons")
    crons.capture_checkin(
        monitor_slug=delivery.destination,
        check_in_id=uid_to_uuid(delivery.run_uid or delivery.uid).replace("-", ""),
        status=_SENTRY_STATUS.get(delivery.event_type, "ok"),
        duration=data.get("duration_seconds"),
        monitor_config=data.get("monitor"),
    )
    sentry.flush(timeout=seconds)
