"""Render templates, and the values in them: instants, lengths, statuses, omissions. The engine escapes everything."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

import rqsched
from rqsched.api.edits import can_undo
from rqsched.api.runs import RunOutline
from rqsched.api.states import (
    ENDED_IN_VAIN,
    EVENTS,
    MISSED,
    NOTHING_FIRED,
    RUN_FILTERS,
    SKIPPED,
    end_in_words,
    instant_of,
    miss_in_words,
    skip_in_words,
    tone_of,
)
from rqsched.api.values import counted, iso_utc, loads
from rqsched.errors import error_line
from rqsched.features.list import FOLDER as FEATURES
from rqsched.types import AuditRecord, Freeze
from rqsched.when.words import in_words, length_in_words, zone_in_words

_FOLDER = Path(__file__).parent
STATIC = _FOLDER / "static"
"""The folder of style sheet, script and icon."""
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of every page. It allows nothing inline and nothing from other hosts."""
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
"""The headers of every page. If no referrer were sent, browsers would send forms with the origin `null`."""
_COMPRESSION = 5
"""The level of compression. It makes 8 kB of a page of 90 kB, in a millisecond. Higher levels save 1 % more."""
_YEAR = 31_536_000
MENU = {
    "Overview": "/",
    "Schedules": "/schedules",
    "Calendars": "/calendars",
    "Runs": "/runs",
    "Timeline": "/timeline",
    "Workers": "/system",
    "Audit": "/audit",
}
"""The menu of every page: the path of each page by its name."""
NOTHING = "\N{EN DASH}"
"""The text that is shown if there is no value."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_KINDS = {
    "scheduled": "scheduled",
    "manual": "started by hand",
    "backfill": "of a backfill",
    "after": "after another schedule",
}
"""The origin of a run in words."""


def html(request: Request, text: str, status: int) -> Response:
    """Return a page as a response, compressed if the browser accepts it."""
    body, headers = text.encode(), {**HEADERS, "Vary": "Accept-Encoding"}
    if _takes_gzip(request):
        body, headers = gzip.compress(body, _COMPRESSION), {**headers, "Content-Encoding": "gzip"}
    return HTMLResponse(body, status, headers=headers)


_TYPES = {"app.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}


def static(request: Request, name: str) -> Response:
    """Return a style sheet, script or icon, compressed like pages. Browsers cache it if its address has a version."""
    if name not in _TYPES:
        return Response("not found", 404)
    keep = f"public, max-age={_YEAR}, immutable" if "v" in request.query_params else "no-cache"
    headers, is_small = {"Cache-Control": keep, "Vary": "Accept-Encoding"}, _takes_gzip(request)
    if is_small:
        headers["Content-Encoding"] = "gzip"
    return Response(_static_bytes(name, is_small=is_small), headers=headers, media_type=_TYPES[name])


@cache
def _static_bytes(name: str, *, is_small: bool) -> bytes:
    content = (STATIC / name).read_bytes()
    return gzip.compress(content) if is_small else content


def _takes_gzip(request: Request) -> bool:
    """Return whether the browser lists gzip and does not refuse it (RFC 9110, 12.5.3)."""
    for coding in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = coding.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


def ago(at: datetime | None, now: datetime) -> str:
    """Return the distance of an instant from now: `3 min ago`, `in 2 d`, `in 47 h`."""
    if at is None:
        return "never"
    seconds = (at - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    # `1 h ago` could be 119 minutes, so up to two of a unit the next smaller one is used.
    text = next(f"{int(abs(seconds) // size)} {unit}" for size, unit in _UNITS if abs(seconds) >= 2 * size or size == 1)
    return f"in {text}" if seconds > 0 else f"{text} ago"


def duration(value: timedelta | float | None) -> str:
    """Return a length as short text: `850 ms`, `12.4 s`, `3 min 20 s`, `2 h`."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    large, small = next(pair for pair in pairwise(_UNITS) if seconds >= pair[0][0])
    rest = int(seconds % large[0] // small[0])
    return f"{int(seconds // large[0])} {large[1]}" + (f" {rest} {small[1]}" if rest else "")


def instant(at: datetime | None, now: datetime, zone: ZoneInfo | None = None) -> Markup:
    """Return a `time` element with the distance from now. It shows the instant itself on hover."""
    if at is None:
        return Markup('<span class="muted">{}</span>').format(NOTHING)
    shown = at.astimezone(zone or UTC)
    exact = f"{shown:%a %Y-%m-%d %H:%M:%S} {shown.tzname()}"
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(iso_utc(at), exact, ago(at, now))


def exact(at: datetime | None, zone: ZoneInfo | None = None) -> Markup:
    """Return a `time` element with the instant in a zone."""
    if at is None:
        return Markup('<span class="muted">{}</span>').format(NOTHING)
    shown = at.astimezone(zone or UTC)
    seconds = ":%S" if shown.second else ""
    text = shown.strftime(f"%a %d %b %Y %H:%M{seconds} %Z")
    return Markup('<time datetime="{}">{}</time>').format(iso_utc(at), text)


def field_text(at: datetime, zone: ZoneInfo) -> str:
    """Return an instant as the text of a form field, by the clock of a zone, without seconds."""
    return f"{at.astimezone(zone):%Y-%m-%dT%H:%M}"


def lines(text: str) -> list[str]:
    """Return the lines of a form field that are not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def clock(at: datetime, zone: ZoneInfo, viewer: ZoneInfo, now: datetime) -> str:
    """Return an instant by the clock of its zone. If the viewer's zone differs, also return it by the viewer's clock.

    A line may break only between the two times.
    """
    shown, here = at.astimezone(zone), at.astimezone(viewer)
    text = f"{shown:{_day(shown, now)} %H:%M} {shown.tzname()}"
    other = f"{here:%H:%M}" if here.date() == shown.date() else f"{here:{_day(here, now)} %H:%M}"
    parts = [text] if zone.key == viewer.key else [f"{text},", f"{other} your time"]
    return " ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts)


def _day(shown: datetime, now: datetime) -> str:
    """Return the format of a day. In the next seven days, the weekday is enough."""
    today = now.astimezone(shown.tzinfo).date()
    if 0 <= (shown.date() - today).days < 7:
        return "%a"
    return "%d %b" if shown.year == today.year else "%d %b %Y"


def strip_of(outlines: Sequence[RunOutline], slots: int, base: str) -> Markup:
    """Return the outcomes of the newest runs as a strip of links, the oldest first.

    No template is used, because it would be too slow for all strips of a page. `base` is the address of runs, with or
    without a query.
    """
    path, mark, query = base.partition("?")
    before, after = escape(path), escape(mark + query)
    told = ", ".join(run.status for run in outlines) or "none yet"
    links = "".join(
        f'<a class="{tone_of(run.status)}" href="{before}{run.uid}{after}"'
        f' title="#{run.number} {run.status}" tabindex="-1"></a>'
        for run in outlines
    )
    empty = "<i></i>" * (slots - len(outlines))
    name = f"{len(outlines)} newest runs: {told}"
    return Markup(f'<span class="strip" role="group" aria-label="{name}">{empty}{links}</span>')  # noqa: S704 - escaped


@dataclass(frozen=True, slots=True)
class Omission:
    """One skipped occurrence, or missed occurrences in a row."""

    is_missed: bool
    """True for missed occurrences, False for a skipped one."""
    count: str
    """How many occurrences were omitted, with a `+` if there are more that were not counted."""
    first: datetime
    """The nominal time of the first occurrence."""
    last: datetime
    """The nominal time of the last occurrence. It equals `first` if there is only one."""
    why: str
    """The reason in words."""
    blocking_run: str | None
    """The uid of the run that blocked the occurrence."""
    recorded_at: datetime
    """When the omission was recorded."""

    def label(self, zone: ZoneInfo) -> str:
        """Return the omission as one line, with times in a zone."""
        first, last = (f"{at.astimezone(zone):%a %d %b %H:%M}" for at in (self.first, self.last))
        times = first if first == last else f"{first} to {last}"
        return f"missed {self.count}, {times}: {self.why}" if self.is_missed else f"skipped {times}: {self.why}"


def gap_of(event: AuditRecord) -> Omission | None:
    """Read an omission from its audit event; None for any other event."""
    payload = event.payload
    if event.event_type == SKIPPED:
        at = instant_of(event, "occurrence_time") or event.recorded_at
        why = skip_in_words(str(payload.get("reason", "")))
        return Omission(False, "1", at, at, why, payload.get("blocking_run_id"), event.recorded_at)
    if event.event_type == MISSED:
        first = instant_of(event, "first") or event.recorded_at
        count = f"{payload.get('count')}{'+' if payload.get('count_capped') else ''}"
        why = miss_in_words(str(payload.get("policy", "")), has_fired=bool(payload.get("fired")))
        return Omission(True, count, first, instant_of(event, "last") or first, why, None, event.recorded_at)
    return None


def under_freezes(gap: Omission, freezes: Sequence[Freeze], zone: ZoneInfo) -> Omission:
    """Return the omission. If a freeze lasted at its time, its reason names the freeze."""
    for freeze in freezes if gap.is_missed else ():
        if (
            freeze.since is None
            or freeze.since > gap.last
            or (freeze.thawed_at is not None and freeze.thawed_at <= gap.first)
        ):
            continue
        told = freeze.told(lambda at: f"{at.astimezone(zone):%a %d %b %H:%M}") + (
            f" ({freeze.reason})" if freeze.reason else ""
        )
        is_whole = freeze.covers(gap.first) and freeze.covers(gap.last)
        why = gap.why.replace(NOTHING_FIRED, told, 1) if is_whole and NOTHING_FIRED in gap.why else f"{gap.why}; {told}"
        return replace(gap, why=why)
    return gap


def filters_in_words(given: Mapping[str, str], words: Mapping[str, str]) -> str:
    """Return the values of filters in one line, each after its words. Filters without a value are left out."""
    found = ((word, given.get(name, "").strip()) for name, word in words.items())
    return _seen(", ".join(f"{word} {value}" for word, value in found if value))


def ticked(text: str) -> Markup:
    """Return a text as HTML, in which parts in backticks are code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


def pretty(value: Any) -> str:
    """Return a JSON value, indented. Characters that are invisible, or change the direction of text, are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def typed(text: Any) -> Markup:
    """Return a user's text in an element that isolates it, so that it cannot change the direction of other text."""
    return Markup("<bdi>{}</bdi>").format(_seen(str(text)))


def _seen(text: str) -> str:
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


@cache
def asset(name: str) -> str:
    """Return the address of a static file with a hash of its content, so that browsers may cache the file forever."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([_FOLDER / "templates", FEATURES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": duration, "pretty": pretty, "ticked": ticked, "words": in_words, "zone_words": zone_in_words,
        "length_words": length_in_words, "iso": iso_utc, "json": loads,
        "moment": datetime.fromisoformat, "end_words": end_in_words, "skip_words": skip_in_words,
        "error_line": error_line, "typed": typed, "counted": counted,
    }  # fmt: skip
    environment.globals |= {
        "instant": instant,
        "exact": exact,
        "clock": clock,
        "field_text": field_text,
        "zone_of": ZoneInfo,
        "gap_of": gap_of,
        "can_undo": can_undo,
        "asset": asset,
        "pages": MENU,
        "strip_of": strip_of,
        "tone_of": tone_of,
        "run_filters": RUN_FILTERS,
        "retryable": ENDED_IN_VAIN,
        "events_in_words": EVENTS,
        "kinds_in_words": _KINDS,
        "version": rqsched.__version__,
    }
    return environment


def render(template: str, /, **values: Any) -> str:
    """Render a template of the dashboard, such as `runs.html`, or of a feature, such as `limits/limit.html`."""
    return _environment().get_template(template).render(**values)
