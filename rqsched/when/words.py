"""Specs in words for people: `at 02:00, Monday to Friday, New York time`. No program parses the words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import itemgetter
from zoneinfo import ZoneInfo

from rqsched.when.cron import ALIASES, Gap
from rqsched.when.exclusion import Dates, is_name, parse_exclusion
from rqsched.when.members import After, Cron, Every, Member
from rqsched.when.moved import FURTHEST
from rqsched.when.spec import Spec
from rqsched.when.timeline import Excluded, ZonedCron

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_ORDINALS = ("first", "second", "third", "fourth", "fifth")
_MOST_OF_A_UNIT = 120
"""The greatest number of one unit, as in `90 minutes`. A longer length has several units, as in `1 day 6 hours`."""
_MOST_TIMES = 4
"""The maximum number of times of day that are listed one by one."""
_MOST_EXCLUDED = 6
"""The maximum number of exclusions that are listed. The others are only counted."""
_EVERY_DAY = "every day"
_INSTEAD = {"next": ", but on the next other day", "previous": ", but on the last other day before"}
_AHEAD = timedelta(days=372)
"""How far ahead `clock_warnings` looks. There may be 53 weeks from one spring change to the next."""
_LAST = datetime.max.replace(tzinfo=UTC)
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def in_words(spec: Spec) -> str:
    """Return a spec as a phrase: `every 30 minutes`, `at 02:00, Monday to Friday, New York time`."""
    newer = [f"of a newer release ({spec.newer})"] if spec.newer else []
    phrase = "; ".join([*(_member(member, spec.timezone) for member in spec.members), *newer])
    edges = ((" from", spec.start_at), (" until", spec.end_at))
    window = "".join(f"{word} {at:%Y-%m-%d %H:%M} UTC" for word, at in edges if at is not None)
    twice = ", twice where the clock shows it twice" if spec.dst_fold == "both" else ""
    return phrase + twice + window + _except(spec.exclude) + (_INSTEAD[spec.on_excluded] if spec.is_moving else "")


def clock_warnings(spec: Spec, now: datetime) -> list[str]:
    """Return warnings about the effect of clock changes and excluded days on a spec in the next 53 weeks; usually none.

    There are at most three lines: about the first local time that the clocks skip, about the first local time that
    occurs twice, and about excluded occurrences that cannot move to another day.
    """
    if not spec.is_known:
        return []
    after, until = max(now, spec.start_at or now), min(now + _AHEAD, spec.end_at or _LAST)
    exclusion = spec.exclusion
    found: list[list[tuple[Gap, ZoneInfo]]] = [[], []]
    for one in spec.nominal_sources(now):
        if isinstance(one, ZonedCron):
            for kind, gaps in enumerate((one.expression.gaps, one.expression.repeats)):
                met = (
                    gap
                    for gap in gaps(after, until, one.zone)
                    if not (exclusion and exclusion.holds(gap.occurrence_at))
                )
                found[kind] += [(gap, one.zone) for gap in islice(met, 1)]
    told = (_left_out, _shown_twice)
    lines = [words(spec, *min(met, key=itemgetter(0))) for met, words in zip(found, told, strict=True) if met]
    lost = spec.excluded_between(after, until) if spec.is_moving and after < until else None
    return lines if lost is None else [*lines, _moved_nowhere(spec, lost)]


def _moved_nowhere(spec: Spec, lost: Excluded) -> str:
    first = f"{lost.first.astimezone(ZoneInfo(spec.timezone)):%H:%M on %Y-%m-%d}"
    others = f" and {lost.number.total - 1} more" if lost.number.total > 1 else ""
    days = f"the {FURTHEST.days} days {'before' if spec.on_excluded == 'previous' else 'after'} it"
    return f"{first}{others} {'are' if others else 'is'} excluded and skipped, because no day of {days} is free"


def _left_out(spec: Spec, gap: Gap, zone: ZoneInfo) -> str:
    at = gap.occurrence_at.astimezone(zone)
    other = "" if at.date() == gap.reading.date() else f" on {at.date()}"
    fires = f"fires at {_time(at)}{other} (dst_gap=shift)"
    told = fires if spec.is_shifting else "does not fire (dst_gap=skip)"
    return f"{_time(gap.reading)} does not occur on {gap.reading.date()} in {zone.key}; {told}"


def _shown_twice(spec: Spec, gap: Gap, zone: ZoneInfo) -> str:
    told = "both times (dst_fold=both)" if spec.dst_fold == "both" else "the first time (dst_fold=first)"
    return f"{_time(gap.reading)} occurs twice on {gap.reading.date()} in {zone.key}; fires {told}"


def _time(at: datetime) -> str:
    return f"{at:%H:%M:%S}" if at.second else f"{at:%H:%M}"


def _except(exclude: Sequence[str]) -> str:
    """Return the exclusions in words, such as `, not on 2026-12-25, nor on Saturday and Sunday`."""
    shown = [_excluded(text) for text in exclude[:_MOST_EXCLUDED]]
    more = len(exclude) - len(shown)
    return f", not {', nor '.join([*shown, *([f'at {more} more'] if more else [])])}" if exclude else ""


def _excluded(text: str) -> str:
    if is_name(text):
        return f"as the calendar {text} says"
    one = parse_exclusion(text)
    if isinstance(one, Dates):
        return f"on {one.first}" if one.first == one.last else f"from {one.first} to {one.last}"
    days = "" if len(one.days) == 7 else f"on {_listed(_spans(one.days, lambda day: _DAYS[(day + 1) % 7]))}"
    times = "" if one.is_whole_days else "from {} to {}".format(*str(one).rpartition(" ")[2].split("-"))
    return f"{days} {times}".strip()


def zone_in_words(timezone: str) -> str:
    """Return an IANA name in the form that people use: `New York time`, `UTC`."""
    city = timezone.rpartition("/")[2].replace("_", " ")
    return city if city in {"UTC", "GMT"} else f"{city} time"


def length_in_words(length: timedelta) -> str:
    """Return a length in its largest units: `minute`, `90 minutes`, `1 day 6 hours`."""
    seconds = length.total_seconds()
    for unit, size in _UNITS:
        if size <= seconds <= _MOST_OF_A_UNIT * size and seconds % size == 0:
            return unit if seconds == size else f"{seconds / size:g} {unit}s"
    parts = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count:g} {unit}{'s' if count != 1 else ''}")
    return " ".join(parts) or f"{length.total_seconds():g} seconds"


def _member(member: Member, timezone: str) -> str:
    if isinstance(member, Cron):
        if member.every is not None:
            return f"every {length_in_words(member.every)}"
        if member.numbers is None and member.has_place:
            return f"at the times of {member.expression}, with H computed from the id"
        return cron_in_words(member.plain, member.timezone or timezone)
    if isinstance(member, Every):
        phase = f", {length_in_words(member.offset)} past" if member.offset else ""
        return f"every {length_in_words(member.every)}{phase}{' after the last run ended' * member.from_completion}"
    if isinstance(member, After):
        return after_in_words(member)
    return f"once, at {member.instant:%Y-%m-%d %H:%M:%S} UTC"


def after_in_words(after: After) -> str:
    """Return an After in words: `after each success of nightly`."""
    which = "end of a run" if after.on == "end" else after.on
    return f"after each {which} of {after.schedule_id}"


def cron_in_words(expression: str, timezone: str) -> str:
    """Return a valid cron expression as a phrase, with its zone."""
    fields = ALIASES.get(expression.strip().lower(), expression).upper().replace("?", "*").split()
    second, minute, hour, monthday, month, weekday = fields if len(fields) == 6 else ["0", *fields]
    times, is_clock_time = _times(second, minute, hour)
    parts = [times, _days(monthday, weekday, is_daily=is_clock_time), _months(month)]
    if is_clock_time or any(parts[1:]):
        parts.append(zone_in_words(timezone))
    if parts[0].startswith("every") and parts[1] == _EVERY_DAY:
        parts[1] = ""
    return ", ".join(part for part in parts if part)


def _times(second: str, minute: str, hour: str) -> tuple[str, bool]:
    """Return the times of day in words, and whether they depend on the zone."""
    seconds, minutes, hours = _values(second, 0, 59), _values(minute, 0, 59), _values(hour, 0, 23)
    if len(hours) * len(minutes) * len(seconds) <= _MOST_TIMES:
        colon = "" if seconds == [0] else ":"
        shown = [f"{h:02}:{m:02}{f':{s:02}' * bool(colon)}" for h in hours for m in minutes for s in seconds]
        return f"at {_listed(shown)}", True
    of_hours = "" if len(hours) == 24 else f" of {_hours(hours)}"
    if len(seconds) > 1 or seconds != [0]:
        return _seconds(seconds, minutes) + of_hours, bool(of_hours)
    if len(minutes) > 1:
        steps = _steps(minutes, 60, "minute")
        phrase = f"every {steps}" if steps else f"at minutes {_listed(_spans(minutes, str))}"
        return phrase + of_hours, bool(of_hours)
    if (step := _step(hours, 24)) and minutes == [0]:
        return f"every {step} hours", True
    past = f"{minutes[0]} minute{'s' * (minutes[0] != 1)} past "
    return past * (minutes != [0]) + _hours(hours), bool(of_hours)


def _seconds(seconds: Sequence[int], minutes: Sequence[int]) -> str:
    steps = _steps(seconds, 60, "second")
    phrase = f"every {steps}" if steps else f"at seconds {_listed(_spans(seconds, str))}"
    return phrase if len(minutes) == 60 else f"{phrase} of minutes {_listed(_spans(minutes, str))}"


def _hours(hours: Sequence[int]) -> str:
    if len(hours) == 24:
        return "every hour"
    if len(hours) > 1 and hours[-1] - hours[0] == len(hours) - 1:
        return f"the hours {hours[0]:02} to {hours[-1]:02}"
    return f"the hours {_listed([f'{hour:02}' for hour in hours])}"


def _steps(values: Sequence[int], size: int, unit: str) -> str:
    if len(values) == size:
        return unit
    step = _step(values, size)
    return f"{step} {unit}s" if step else ""


def _step(values: Sequence[int], size: int) -> int | None:
    """Return the step if the values go from zero through the whole range in equal steps; else None."""
    step = values[1] - values[0] if len(values) > 1 else 0
    is_even = step > 1 and size % step == 0 and list(values) == list(range(0, size, step))
    return step if is_even else None


def _days(monthday: str, weekday: str, *, is_daily: bool) -> str:
    """Return the days in words. If both fields restrict the days, `or` joins their words."""
    named = [words for words in (_monthdays(monthday), _weekdays(weekday)) if words]
    if not named or _EVERY_DAY in named:
        return _EVERY_DAY if is_daily or named else ""
    return " or ".join(named)


def _monthdays(text: str) -> str:
    if text == "*":
        return ""
    plain, others = [], []
    for item in text.split(","):
        match = re.fullmatch(r"(L)?(\d+)?(W)?", item)
        if match and match[3]:
            nearest = "the last weekday of the month" if match[1] else f"the weekday nearest the {_nth(int(match[2]))}"
            others.append(nearest)
        elif item == "L":
            others.append("the last day of the month")
        else:
            plain += _item(item, 1, 31)
    if len(set(plain)) == 31:
        return _EVERY_DAY
    if text.startswith("*/"):
        return f"on every {_nth(int(text[2:]))} day of the month from the 1st"
    return f"on {_listed([*(f'the {days}' for days in [_listed(_spans(sorted(set(plain)), _nth))] if days), *others])}"


def _weekdays(text: str) -> str:
    if text == "*":
        return ""
    plain, others = set[int](), []
    for item in text.split(","):
        if nth := re.fullmatch(r"(\w+)#(\d)", item):
            others.append(f"the {_ORDINALS[int(nth[2]) - 1]} {_DAYS[_weekday(nth[1])]} of the month")
        elif last := re.fullmatch(r"L(\w+)|(\w+)L", item):
            others.append(f"the last {_DAYS[_weekday(last[1] or last[2])]} of the month")
        else:
            plain |= {day % 7 for day in _item(item, 0, 7 if "7" in item else 6, _weekday_number)}
    if len(plain) == 7:
        return _EVERY_DAY
    # Weekdays are listed from Monday on.
    days = _spans(sorted((day - 1) % 7 for day in plain), lambda place: _DAYS[(place + 1) % 7])
    return _listed([*days, *(f"on {other}" for other in others)])


def _months(text: str) -> str:
    values = _values(text, 1, 12, _month_number)
    if len(values) == 12:
        return ""
    return f"in {_listed(_spans(values, lambda month: _MONTHS[month - 1]))}"


def _values(text: str, low: int, high: int, number: Callable[[str], int] = int) -> list[int]:
    return sorted({value for item in text.split(",") for value in _item(item, low, high, number)})


def _item(item: str, low: int, high: int, number: Callable[[str], int] = int) -> list[int]:
    """Return the values of a valid item: a value, a range or `*`, each with an optional step."""
    body, _, step = item.partition("/")
    if body == "*":
        first, last = low, high
    else:
        begin, _, end = body.partition("-")
        first = number(begin)
        last = number(end) if end else high if step else first
    return list(range(first, last + 1, int(step or 1)))


def _weekday(text: str) -> int:
    return _weekday_number(text) % 7


def _weekday_number(text: str) -> int:
    return int(text) if text.isdigit() else [name[:3].upper() for name in _DAYS].index(text)


def _month_number(text: str) -> int:
    return int(text) if text.isdigit() else [name[:3].upper() for name in _MONTHS].index(text) + 1


def _spans(values: Sequence[int], show: Callable[[int], str]) -> list[str]:
    """Return sorted values as words. Three or more values in a row become a range."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    found: list[str] = []
    for run in runs:
        names = [show(value) for value in run]
        found += [f"{names[0]} to {names[-1]}"] if len(names) > 2 else names
    return found


def _nth(number: int) -> str:
    ending = "th" if number in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _listed(words: Sequence[object]) -> str:
    texts = [str(word) for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""
