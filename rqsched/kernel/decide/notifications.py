"""Notifications: which events a schedule reports about its runs, and to which destinations. Values only.

The row of a schedule holds them as one JSON text with the values that differ from the defaults. docs/alerts.md
describes the options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.audit import (
    CONTRACT,
    DIED,
    FIRE_FAILED,
    OVERDUE,
    RUN_BLOCKED,
    RUN_EXPIRED,
    RUN_FAILED,
    RUN_LONG,
    RUN_LOST,
    RUN_SUCCEEDED,
)
from rqsched.kernel.decide.payload import dumps

ALARMS = (RUN_FAILED, RUN_LOST, RUN_EXPIRED, RUN_BLOCKED, RUN_LONG, RUN_SUCCEEDED, OVERDUE, DIED, FIRE_FAILED)
"""The events that a webhook gets if `events` is not given."""
MAX_EXPECTATION = timedelta(days=3660)
"""The maximum of `expect_success_within` and `expect_duration`."""
EXPECTATIONS = ("expect_success_within", "expect_duration")
"""The options that are durations."""
MAX_URL = 2_000
"""The maximum length of a URL, in characters."""
_URL = re.compile(r"[\x21-\x7e]+")
_PLACE = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORTS = {"http": 80, "https": 443}
_WORKFLOW = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,254}")
_SLUG = re.compile(r"[A-Za-z0-9_-]{1,128}")
TARGETS = ("webhook", "events", "heartbeat", "sentry")
"""The keys of the option `notifications`."""


@dataclass(frozen=True, slots=True)
class Notifications:
    """The notifications of one schedule."""

    on_failure: str | None = None
    """The workflow that runs when a run failed, was lost or takes too long, and when the schedule is overdue."""
    on_recovery: str | None = None
    """The workflow that runs at the first success after a run of `on_failure`."""
    expect_success_within: timedelta | None = None
    """The schedule is overdue when no run has succeeded for this long; None expects nothing."""
    expect_duration: timedelta | None = None
    """A run that takes longer than this is reported; None expects nothing."""
    webhook: str | None = None
    """The URL that events are posted to; None means the URL of the settings."""
    events: tuple[str, ...] = ()
    """The events that the webhook gets; empty means ALARMS."""
    heartbeat: str | None = None
    """The URL that is pinged when a run starts, succeeds or fails; None means the URL of the settings."""
    sentry: str | None = None
    """The slug of the monitor in Sentry that gets check-ins; None means the slug of the settings."""

    def dumps(self) -> str:
        """Return canonical JSON text for the schedule's row. It has only the values that differ from the defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | {"events": list(self.events)}
        values |= {name: span.total_seconds() for name in EXPECTATIONS if (span := getattr(self, name)) is not None}
        return dumps({name: value for name, value in values.items() if value})

    @staticmethod
    @lru_cache(maxsize=4096)
    def loads(text: str) -> Notifications:
        """Read the text of `dumps`. The same text gives the same object. Fields of a newer release are ignored."""
        known = {field.name for field in fields(Notifications)}
        given = {name: value for name, value in json.loads(text).items() if name in known}
        given |= {name: timedelta(seconds=given[name]) for name in EXPECTATIONS if name in given}
        return Notifications(**given | {"events": tuple(given.get("events", ()))})

    def plain(self) -> dict[str, Any]:
        """Return the option `notifications` for display. URLs may hold a secret, so only scheme and host are shown."""
        if self is _NONE:
            return {}
        urls = {name: hidden(url) for name in ("webhook", "heartbeat") if (url := getattr(self, name))}
        others = {"events": list(self.events), "sentry": self.sentry}
        return urls | {name: value for name, value in others.items() if value}

    def with_options(self, options: Mapping[str, Any]) -> Notifications:
        """Return these notifications with changed options; raises InvalidInputError for a refused option."""
        changes: dict[str, Any] = {
            name: workflow_name(name, options[name]) for name in ("on_failure", "on_recovery") if name in options
        }
        changes |= {name: _expectation(name, options[name]) for name in EXPECTATIONS if name in options}
        if "notifications" in options:
            changes |= _targets(options["notifications"])
        return replace(self, **changes)


_NONE = Notifications.loads("{}")
"""No notifications. `loads` returns this object for most schedules."""
OPTIONS = frozenset({"on_failure", "on_recovery", *EXPECTATIONS, "notifications"})
"""The options of a schedule that this module reads."""


def hidden(url: str) -> str:
    """Return the scheme and host of a URL, without path and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/..."


def workflow_name(name: str, value: Any) -> str | None:
    """Check the name of a workflow that a notification runs; raises InvalidInputError."""
    if value is None:
        return None
    if not isinstance(value, str) or not _WORKFLOW.fullmatch(value):
        raise InvalidInputError(name, f"{value!r} is not the name of a workflow; write one, such as 'alert_team'")
    return value


def checked_url(name: str, value: Any) -> str:
    """Check the URL of a destination: http or https, a plain host, no password; raises InvalidInputError."""
    if not isinstance(value, str) or not _URL.fullmatch(value) or len(value) > MAX_URL:
        raise InvalidInputError(name, f"must be a URL of at most {MAX_URL} printable characters without blanks")
    try:
        parts = urlsplit(value)
    except ValueError:
        raise InvalidInputError(name, _NOT_PLAIN) from None
    if not parts.netloc or parts.scheme not in _PORTS:
        raise InvalidInputError(name, "must be a whole URL, such as https://example.com/hook")
    if "@" in parts.netloc or parts.fragment:
        raise InvalidInputError(name, "must hold neither a user and password nor a fragment")
    if _place(parts.netloc) is None:
        raise InvalidInputError(name, _NOT_PLAIN)
    return value


_NOT_PLAIN = (
    "must have a plain host: a host name of letters, digits, - and _, such as example.com, or an IP address, such as "
    "192.0.2.7 or [2001:db8::7]; a port must be from 1 to 65535"
)


def _place(text: str) -> tuple[str, int | None] | None:
    """Return host and port of a `host:port` text, in a form that can be compared.

    Return None if resolvers and parsers may read the host differently: an encoded or zoned host, empty labels, or an
    address in an unusual form such as 127.1.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 0 < port < 65_536:
        return None
    name = (found["name"] or "").lower().removesuffix(".")
    if not _NUMBER.fullmatch(name.rpartition(".")[2]) and found["name"]:
        return (name, port) if len(name) <= 253 and _HOST_NAME.fullmatch(name) else None
    try:
        address = ip_address(found["address"] or found["name"])
    except ValueError:
        return None
    return (str(address), port) if (address.version == 6) == bool(found["address"]) else None


def refused_url(notifications: Any, hosts: Sequence[str]) -> tuple[str, str] | None:
    """Return the key and host of the first URL in `notifications` that `hosts` does not allow; None if all are allowed.

    `*.example.com` allows every name below example.com. A host with a port allows only that port.
    """
    given = notifications if isinstance(notifications, Mapping) else {}
    for name in ("webhook", "heartbeat"):
        if given.get(name) is None:
            continue
        parts = urlsplit(checked_url(f"notifications.{name}", given[name]))
        host, port = _place(parts.netloc) or ("", None)
        if not any(_covers(allowed, host, port or _PORTS[parts.scheme]) for allowed in hosts):
            return name, parts.netloc
    return None


def _covers(allowed: str, host: str, port: int) -> bool:
    place = _place(allowed.removeprefix("*."))
    if place is None or place[1] not in {None, port}:
        return False
    return host.endswith(f".{place[0]}") if allowed.startswith("*.") else host == place[0]


def _expectation(name: str, value: Any) -> timedelta | None:
    if value is None:
        return None
    if not isinstance(value, timedelta) or not timedelta(0) < value <= MAX_EXPECTATION:
        raise InvalidInputError(name, f"must be a duration above 0, at most {MAX_EXPECTATION.days} days")
    return value


def _targets(value: Any) -> dict[str, Any]:
    """Read the option `notifications`. If a key is absent, its value comes from the settings."""
    if not isinstance(value, Mapping | None):
        raise InvalidInputError("notifications", f"must be an object, not {type(value).__name__}")
    given = dict(value or {})
    if unknown := sorted(set(map(str, given)) - set(TARGETS)):
        raise InvalidInputError(f"notifications.{unknown[0]}", f"is not known; use one of {', '.join(TARGETS)}")
    urls = {name: given.get(name) for name in ("webhook", "heartbeat")}
    return {
        **{name: None if url is None else checked_url(f"notifications.{name}", url) for name, url in urls.items()},
        "events": _events(given.get("events")),
        "sentry": _slug(given.get("sentry")),
    }


def _events(names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    is_list = isinstance(names, Sequence) and not isinstance(names, str | bytes)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise InvalidInputError("notifications.events", f"must be a list of events, such as {list(ALARMS[:2])}")
    if unknown := [name for name in names if name not in CONTRACT]:
        known = ", ".join(sorted(CONTRACT))
        raise InvalidInputError("notifications.events", f"{unknown[0]!r} is not an event; the events are {known}")
    return tuple(dict.fromkeys(names))


def _slug(value: Any) -> str | None:
    if value is None or value is False:
        return None
    if not isinstance(value, str) or not _SLUG.fullmatch(value):
        raise InvalidInputError("notifications.sentry", "must be a monitor's slug: 1 to 128 of A-Z a-z 0-9 _ -")
    return value
