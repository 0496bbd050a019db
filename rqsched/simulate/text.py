"""The texts of a simulation's report: table rows and sentences, for the terminal and the HTML page."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from rqsched.kernel.decide.results import Peak
from rqsched.simulate.report import (
    ClockEffect,
    LimitOutcome,
    QueueOutcome,
    ScheduleOutcome,
    Simulation,
    SimulationOutcome,
)

QUEUE = ("Queue", "Workers", "Attempts", "Wait p50", "p95", "Longest", "Busy", "Keeps up")
LIMIT = (
    "Limit", "At once", "Rate", "Places", "Wait p50", "p95", "Longest", "Most in line", "Full", "Rate waited for",
    "Keeps up",
)  # fmt: skip
BEHIND = ("Line never empty", "From", "For", "Most waiting", "Longest wait")
SCHEDULE = ("Schedule", "Fires", "Overlaps", "Outcome")
NIGHT = ("Clocks change", "Change", "Effect", "Schedules")
_MOST_BEHIND = 5


def at_minute(at: datetime) -> str:
    """Return an instant as text for people, to the minute."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def from_to(one: Simulation) -> str:
    """Return the span of a simulation as text for people."""
    return f"{at_minute(one.start)} to {at_minute(one.end)}"


def makers(peak: Peak) -> str:
    """Return the schedules of a peak as text."""
    return ", ".join([*peak.schedules, *([f"{peak.others} more"] if peak.others else [])])


def queue_row(one: QueueOutcome) -> tuple[object, ...]:
    """Return the row of a queue."""
    waits = (seconds(wait) for wait in (one.wait_p50_seconds, one.wait_p95_seconds, one.wait_max_seconds))
    busy = "-" if one.busy is None else f"{one.busy:.0%}"
    keeps_up = "yes" if one.keeps_up else f"no, {one.waiting} wait at the end"
    return one.queue, one.workers or "any", one.attempts, *waits, busy, keeps_up


def limit_row(one: LimitOutcome) -> tuple[object, ...]:
    """Return the row of a group with a limit."""
    waits = (seconds(wait) for wait in (one.wait_p50_seconds, one.wait_p95_seconds, one.wait_max_seconds))
    keeps_up = "yes" if one.keeps_up else f"no, {one.waiting} wait at the end"
    held = ("-" if part is None else f"{part:.0%}" for part in (one.full, one.held_by_rate))
    return one.limit, one.number or "any", one.rate or "any", one.places, *waits, one.most_waiting, *held, keeps_up


def behind_rows(outcome: SimulationOutcome) -> list[tuple[object, ...]]:
    """Return rows of the longest periods during which a line was never empty."""
    behind = [(queue.queue, one) for queue in outcome.queues for one in queue.behind if queue.workers is not None]
    behind += [(f"limit {limit.limit}", one) for limit in outcome.limits for one in limit.behind]
    longest = sorted(behind, key=lambda pair: (pair[1].start - pair[1].end, pair[0]))[:_MOST_BEHIND]
    return [
        (name, one.start, length(one.end - one.start), one.most_waiting, seconds(one.longest_wait_seconds))
        for name, one in longest
    ]


def schedule_rows(outcome: SimulationOutcome) -> list[tuple[object, ...]]:
    """Return rows of the schedules with other outcomes than successful runs. Schedules with overlaps come first."""
    told = sorted(outcome.schedules, key=lambda one: (-one.overlapped, -sum(one.skipped.values()), one.name))
    return [(one.name, one.fires, one.overlapped, outcome_in_words(one)) for one in told]


def night_rows(found: Simulation) -> list[tuple[object, ...]]:
    """Return rows of the effects of clock changes."""
    rows: list[tuple[object, ...]] = []
    for night in found.nights:
        by = length(timedelta(seconds=abs(night.seconds)))
        how = f"{night.zone} {'forward' if night.seconds > 0 else 'back'} {by}"
        if not night.effects:
            rows.append((night.at, how, "nothing is shifted, skipped or doubled", ""))
        rows += [(night.at, how, _effect_in_words(one, night.zone), _names(one)) for one in night.effects]
    return rows


def outcome_in_words(one: ScheduleOutcome) -> str:
    """Return the outcome of a schedule as one line."""
    parts = [f"{one.started} started"]
    parts += [f"{number} skipped ({reason})" for reason, number in one.skipped.items()]
    parts += [f"{number} {status}" for status, number in one.ended.items()]
    for number, word in (
        (one.waited, "waited for the run ahead"),
        (one.replaced, "replaced by a newer run"),
        (one.missed, "missed"),
        (one.excluded, "excluded"),
        (one.retries, "retries"),
        (one.open, "open at the end"),
    ):
        if number:
            parts.append(f"{number} {word}")
    if one.status not in {"", "active"}:
        parts.append(f"{one.status} at the end")
    return ", ".join(parts)


def seconds(value: float) -> str:
    """Return a number of seconds as text for people."""
    return length(timedelta(seconds=value)) if value >= 60 else f"{value:.1f} s"


def length(span: timedelta) -> str:
    """Return a span in its two largest units."""
    left, parts = int(span.total_seconds()), []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2]) or "0 s"


def _effect_in_words(one: ClockEffect, zone: str) -> str:
    """Return the effect of a clock change on a timing, with times in its zone."""
    if one.effect == "skipped":
        return f"{one.local[11:]} does not fire"
    if one.effect == "doubled":
        return f"{one.local[11:]} fires twice"
    return f"{one.local[11:]} fires at {one.fires_at[0].astimezone(ZoneInfo(zone)):%H:%M}"


def _names(one: ClockEffect) -> str:
    names = one.schedules[:3]
    more = len(one.schedules) - len(names) + one.others
    return ", ".join([*names, *([f"{more} more"] if more else [])])
