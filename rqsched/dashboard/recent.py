"""Charts of the newest runs (their outcomes, and how late they started), and the most frequent failures.

At most `MOST` runs and `MOST_FAILED` failures are read. If the last day has more runs, the charts cover a shorter span,
all of whose runs are read. Therefore a bar always shows all of its runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import quantiles
from typing import NamedTuple
from zoneinfo import ZoneInfo

from rqsched.api import runs as run_queries
from rqsched.api.database import Connection
from rqsched.api.runs import FailedRun, FailureMark
from rqsched.api.states import EXPIRED, FAILURES, OPEN, tone_of
from rqsched.dashboard.charts import WIDTH
from rqsched.errors import error_line
from rqsched.types import RunStatus

DAY = timedelta(days=1)
"""The longest span."""
SPANS = tuple(timedelta(minutes=minutes) for minutes in (1440, 720, 360, 180, 60, 30, 12, 6, 2))
"""The spans that may be shown, the longest first. Each divides into slots of whole seconds."""
SLOTS = 24
"""How many bars, or slots of time, a span has."""
MOST = 3_000
"""How many runs are read at most."""
MOST_FAILED = 1_000
"""How many failures are read at most."""
GROUPS = 8
"""How many groups of failures are shown."""
_HEIGHT = 100.0
_LEAST = 2.0
"""The least height of a block. A lower block would not be visible."""
_NUMBER = re.compile(r"\b(?:0x)?[0-9a-f]*\d[0-9a-f]*\b|\d+", re.IGNORECASE)
_SEARCHED = 60
"""A link searches for at most this many characters of an error."""


class Block(NamedTuple):
    """A part of a bar."""

    y: float
    """Its upper edge, from 0 (top) to 100."""
    height: float
    """Its height, from 0 to 100."""
    tone: str
    """Its tone."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The runs that were created within one bar of the chart."""

    start: datetime
    """Its start."""
    until: datetime
    """Its end."""
    x: float
    """Its left edge."""
    counts: Counter[str]
    """How many runs had each outcome: `succeeded`, `failed` (or lost), `expired`, `stopped` or `open`."""
    p50: float | None
    """The median lateness of runs, in seconds from due to started; None if no run started."""
    p95: float | None
    """The 95th percentile of this lateness."""
    blocks: Sequence[Block]
    """The bar that shows the outcomes."""
    waits: Sequence[Block]
    """The bar that shows how late runs started."""

    def label(self, zone: ZoneInfo) -> str:
        """Return the slot's text on hover: how many runs had each outcome."""
        told = [f"{self.counts[kind]} {_SAID[kind]}" for kind in _KINDS if self.counts[kind]]
        return f"{self.start.astimezone(zone):%H:%M} to {self.until.astimezone(zone):%H:%M}: {', '.join(told)}"


@dataclass(frozen=True, slots=True)
class Recent:
    """The runs of a span up to now."""

    span: timedelta
    """The length of the span: a day, or less if a day has more runs than are read."""
    is_whole: bool
    """Whether all runs of the span were read. Even the shortest span may have more runs than are read."""
    slots: Sequence[Slot]
    """The slots of the span, the oldest first."""
    counts: Counter[str]
    """How many runs of all slots had each outcome."""
    backfilled: int
    """The number of backfilled runs. The charts do not show these runs."""
    most: int
    """The number of runs that a bar of full height shows in the chart of outcomes."""
    longest: float | None
    """The seconds that a bar of full height shows in the chart of lateness; None if no run started."""

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """Each outcome with its text and its tone."""
        return [(kind, words, _TONES[kind]) for kind, words in _SAID.items()]

    @property
    def width(self) -> float:
        """The width of a slot."""
        return WIDTH / SLOTS


_KINDS = ("succeeded", "open", "stopped", "expired", "failed")
"""The order of outcomes from the top of a bar to its foot. Failures are at the foot, where they are seen first."""
_SAID = {
    "succeeded": "succeeded",
    "failed": "failed or lost",
    "expired": "expired",
    "stopped": "stopped",
    "open": "not ended",
}
_TONES = {"succeeded": "ok", "failed": "bad", "expired": tone_of(EXPIRED), "stopped": "idle", "open": "info"}


def read_recent(connection: Connection, namespace: str, now: datetime) -> Recent:
    """Read the runs of a namespace in the last day."""
    begin = _start(DAY, now)
    is_among, since = run_queries.newest(connection, begin, MOST)
    whole = [span for span in SPANS if since == begin or since < _start(span, now)]
    span = whole[0] if whole else SPANS[-1]
    start, width = _start(span, now), span / SLOTS
    counted = [Counter[str]() for _ in range(SLOTS)]
    late: list[list[int]] = [[] for _ in range(SLOTS)]
    backfilled = 0
    slot = run_queries.slot_of_creation(connection, start, width)
    for one in run_queries.outcomes(connection, namespace, is_among, slot):
        if one.is_backfilled:
            backfilled += one.runs if one.key >= 0 else 0
        elif 0 <= one.key < SLOTS:
            counted[one.key][_kind(one.status)] += one.runs
            late[one.key] += one.late
    latenesses = [lateness(some) for some in late]
    most = max(counts.total() for counts in counted)
    longest = max((p95 for _, p95 in latenesses if p95 is not None), default=None)
    return Recent(
        span,
        bool(whole),
        [
            Slot(
                start + n * width, start + (n + 1) * width, round(n * WIDTH / SLOTS, 1), counts, p50, p95,
                _stacked(counts, most), _compared(p50, p95, longest),
            )
            for n, (counts, (p50, p95)) in enumerate(zip(counted, latenesses, strict=True))
        ],
        sum(counted, Counter()),
        backfilled,
        most,
        longest,
    )  # fmt: skip


def _start(span: timedelta, now: datetime) -> datetime:
    """Return the start of the span whose last slot contains `now`. Slots begin at whole multiples of their width."""
    width = span / SLOTS
    return now - (now - datetime.fromtimestamp(0, UTC)) % width + width - span


def _kind(status: str) -> str:
    if status in {RunStatus.SUCCEEDED, EXPIRED}:
        return status
    return "failed" if status in FAILURES else "open" if status in OPEN else "stopped"


def lateness(late: Sequence[int]) -> tuple[float | None, float | None]:
    """Return the median and the 95th percentile of lateness, in seconds. The given lateness is in microseconds.

    If there is no run, both are None. Both are between the least and the greatest lateness.
    """
    cuts = quantiles(late, n=20, method="inclusive") if len(late) > 1 else [*late] * 19
    return (max(cuts[9] / 1_000_000, 0.0), max(cuts[18] / 1_000_000, 0.0)) if cuts else (None, None)


def _stacked(counts: Counter[str], most: int) -> list[Block]:
    """Return the bar of a slot's outcomes. Even a single run is visible in it."""
    heights = {kind: max(counts[kind] / most * _HEIGHT, _LEAST) for kind in _KINDS if counts[kind]}
    blocks, y = list[Block](), _HEIGHT
    for kind in reversed(heights):
        y = max(y - heights[kind], 0.0)
        blocks.append(Block(round(y, 1), round(heights[kind], 1), _TONES[kind]))
    return blocks


def _compared(p50: float | None, p95: float | None, longest: float | None) -> list[Block]:
    found = []
    for value, tone in ((p95, "info light"), (p50, "info")):
        if value is not None and longest is not None:
            height = max(value / longest * _HEIGHT if longest else 0.0, 1.0)
            found.append(Block(round(_HEIGHT - height, 1), round(height, 1), tone))
    return found


class Failure(NamedTuple):
    """Runs that failed with similar errors."""

    schedule_id: str
    """The schedule that has the most of these runs."""
    others: int
    """How many other schedules have runs in this group."""
    error: str
    """The meaningful line of the newest run's error."""
    runs: int
    """How many of the failures that were read belong to this group."""
    newest: FailedRun
    """The newest run."""
    searched: str
    """A text that is a part of all their errors, to search for them. It is empty if the error begins with a number."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The most frequent failures since an instant."""

    since: datetime
    """The instant: a day ago, or later if the last day has more failures than are read."""
    is_cut: bool
    """Whether this instant is later than a day ago."""
    count: int
    """How many runs failed or were lost. At most MOST_FAILED are counted."""
    groups: Sequence[Failure]
    """The largest groups, the largest first."""


def read_failures(connection: Connection, namespace: str, now: datetime) -> Failures:
    """Read a namespace's most frequent failures of the last day, grouped by error.

    Errors that differ only in numbers belong to one group, even if their schedules differ.
    """
    found, since = run_queries.failed_since(connection, namespace, now - DAY, MOST_FAILED)
    meant = {text: numberless(text) for text in {run.error for run in found}}  # most texts occur many times
    groups: dict[str, list[FailureMark]] = {}
    for run in found:
        groups.setdefault(meant[run.error] or run.schedule_uid, []).append(run)
    largest = sorted(groups.values(), key=len, reverse=True)[:GROUPS]
    named = [(alike, _of_most_frequent(alike)) for alike in largest]
    read = run_queries.failures_of(connection, [one.uid for alike, named_by in named for one in (alike[0], named_by)])
    shown = [
        _failure(read[named_by.uid].schedule_id, read[alike[0].uid], alike)
        for alike, named_by in named
        if {alike[0].uid, named_by.uid} <= read.keys()
    ]
    return Failures(since, since > now - DAY, len(found), shown)


def _of_most_frequent(alike: Sequence[FailureMark]) -> FailureMark:
    """Return a failure of the schedule that has the most of these failures."""
    ((uid, _),) = Counter(one.schedule_uid for one in alike).most_common(1)
    return next(one for one in alike if one.schedule_uid == uid)


def _failure(schedule_id: str, newest: FailedRun, alike: Sequence[FailureMark]) -> Failure:
    others = len({one.schedule_uid for one in alike}) - 1
    error = error_line(newest.error)
    searched = re.split(r"\d", error, maxsplit=1)[0][:_SEARCHED].strip()
    return Failure(schedule_id, others, error, len(alike), newest, searched)


def numberless(text: str) -> str:
    """Return the beginning or end of an error without numbers, ids and addresses, so that similar errors are equal."""
    told = text.strip()
    meant = told if told.startswith("Traceback ") else told.partition("\n")[0]
    return _NUMBER.sub("#", meant)
