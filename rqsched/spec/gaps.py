"""Gaps: the local times that a cron expression names and a change of the clocks leaves out (docs/cron.md)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from rqsched.spec.cron import CronExpression
from rqsched.spec.zones import FIRST_YEAR, spans_from

_DAWN = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)


class Gap(NamedTuple):
    """A reading of the local clock that an expression names and a change of offset skipped.

    `core/occurrences.py` records what the schedule does about it: a skipped occurrence, reason `dst_skip`.
    """

    occurrence_at: datetime
    """Aware UTC: the instant at which the reading would have been shown, had the clock not changed."""
    reading: datetime
    """Naive local: what the clock would have shown."""


def cron_gaps(expression: CronExpression, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[Gap]:
    """Yield the readings that changes of offset skipped, with `after < occurrence_at <= until`.

    An expression of all 24 hours counts real hours, of which none is missing, and has no gaps.
    """
    if expression.is_every_hour:
        return
    # A gap as wide as a day (Apia, 2011) may begin a day before `after` and still hold instants after it.
    for span in spans_from(zone, max(after, _DAWN).replace(tzinfo=None) - timedelta(days=2)):
        if span.start > until.replace(tzinfo=None):
            return
        if span.seen_until >= span.local_start:
            continue
        before = span.seen_until - span.start
        for reading in expression.readings(span.seen_until, span.local_start):
            occurrence_at = (reading - before).replace(tzinfo=UTC)
            if after < occurrence_at <= until:
                yield Gap(occurrence_at, reading)
