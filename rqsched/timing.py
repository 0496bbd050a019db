"""A fluent builder of timings. It yields a Spec and options, like the registrations of the event-machine document.

>>> Timing().daily_at("00:10").timezone("Europe/Istanbul").without_overlapping().spec().describe()
'cron 10 0 * * * Europe/Istanbul'
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar, cast

from rqsched.errors import InvalidSpecError
from rqsched.kernel.decide.options import Options
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.when.duration import SpanLike, require_interval
from rqsched.when.spec import Cron, Every, Member, Spec, SpecLike

_Self = TypeVar("_Self", bound="Timing")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_DAY_MINUTES = 24 * 60


class Timing:
    """A timing, described step by step; each step returns the same builder.

    `daily_at`, `twice_daily`, `hourly_at`, `weekly_on`, `monthly_on`, `every` and `cron` set the times. `between`,
    `weekdays`, `weekends` and `days` narrow them down. `timezone`, `environments`, `without_overlapping`, `jitter`,
    `spread`, `sentry_monitor` and `option` set options. `on_one_server` and `run_in_background` change nothing, because
    they state what always holds.

    Subclass it, or add a step with `Timing.extend`.
    """

    def __init__(self) -> None:
        self._minutes: set[int] | None = None
        self._interval: timedelta | None = None
        self._cron: str | None = None
        self._window: tuple[int, int] | None = None
        self._weekdays: tuple[int, ...] = ()
        self._month_days: tuple[str, ...] = ()
        self._timezone: str | None = None
        self._options: dict[str, Any] = {}

    @classmethod
    def extend(cls, name: str, step: Callable[..., Any]) -> None:
        """Add a step of your own: `builder.name(*args)` calls `step(builder, *args)` and returns the builder."""
        if not name.isidentifier() or hasattr(cls, name):
            raise InvalidSpecError("timing", f"{name!r} is not an identifier, or is taken; choose another name")

        def call(self: Timing, *args: Any, **kwargs: Any) -> Timing:
            step(self, *args, **kwargs)
            return self

        setattr(cls, name, call)

    def daily_at(self: _Self, *times: str) -> _Self:
        """Happen each day at local times such as `"00:10"`."""
        self._minutes = {_minute_of_day(time) for time in times}
        return self

    def twice_daily(self: _Self, first: int = 1, second: int = 13) -> _Self:
        """Happen each day at two full hours."""
        return self.daily_at(f"{first}:00", f"{second}:00")

    def hourly_at(self: _Self, *minutes: int) -> _Self:
        """Happen each hour at these minutes."""
        if not minutes or not all(0 <= minute <= 59 for minute in minutes):
            raise InvalidSpecError("hourly_at", "takes minutes from 0 to 59")
        self._minutes = {hour * 60 + minute for hour in range(24) for minute in minutes}
        return self

    def weekly_on(self: _Self, day: str, at: str = "00:00") -> _Self:
        """Happen each week on a day such as `"mon"`, at a local time."""
        self._weekdays = (_weekday(day),)
        return self.daily_at(at)

    def monthly_on(self: _Self, day: int | str = 1, at: str = "00:00") -> _Self:
        """Happen each month on a day (1 to 31, or `"L"` for the last), at a local time."""
        self._month_days = (str(day),)
        return self.daily_at(at)

    def every(self: _Self, interval: SpanLike) -> _Self:
        """Happen at an interval, counted from the registration; with `between` or days, counted from local midnight."""
        self._interval = require_interval(interval)
        return self

    def cron(self: _Self, expression: str) -> _Self:
        """Happen as a cron expression says; it cannot be narrowed further."""
        self._cron = expression
        return self

    def between(self: _Self, start: str, end: str) -> _Self:
        """Keep only times from one local time of day (inclusive) to another (exclusive) of the same day."""
        self._window = (_minute_of_day(start), _minute_of_day(end))
        if self._window[0] >= self._window[1]:
            raise InvalidSpecError("between", f"{end} is not after {start}; write two builders for a night")
        return self

    def weekdays(self: _Self) -> _Self:
        """Keep only Monday to Friday."""
        return self.days("mon", "tue", "wed", "thu", "fri")

    def weekends(self: _Self) -> _Self:
        """Keep only Saturday and Sunday."""
        return self.days("sat", "sun")

    def days(self: _Self, *days: str) -> _Self:
        """Keep only these days of the week."""
        self._weekdays = tuple(sorted({_weekday(day) for day in days}))
        return self

    def timezone(self: _Self, name: str) -> _Self:
        """Read times of day in an IANA timezone."""
        self._timezone = name
        return self

    def environments(self: _Self, *names: str | list[str]) -> _Self:
        """Fire only where RQSCHED_ENVIRONMENT is one of these names, given one by one or as a list."""
        flat = [name for given in names for name in ([given] if isinstance(given, str) else given)]
        return self.option(environments=flat)

    def without_overlapping(self: _Self) -> _Self:
        """Skip an occurrence while an earlier run is unfinished."""
        return self.option(overlap=OverlapPolicy.SKIP)

    def on_one_server(self: _Self) -> _Self:
        """Change nothing: an occurrence always fires once, however many servers there are."""
        return self

    def run_in_background(self: _Self) -> _Self:
        """Change nothing: runs are always executed on their queues, never where they fire."""
        return self

    def jitter(self: _Self, most: SpanLike) -> _Self:
        """Delay each fire by up to `most`."""
        return self.option(jitter=most)

    def spread(self: _Self, over: SpanLike) -> _Self:
        """Delay each fire by the same part of `over`, which the schedule's namespace and id determine."""
        return self.option(spread=over)

    def sentry_monitor(self: _Self, slug: str) -> _Self:
        """Send check-ins to Sentry's monitor of this slug, in addition to the option `notifications`."""
        return self.option(notifications={**self._options.get("notifications", {}), "sentry": slug})

    def option(self: _Self, **options: Any) -> _Self:
        """Set any other option that `Scheduler.create` takes."""
        self._options |= options
        return self

    def spec(self) -> Spec:
        """Return the Spec; raises InvalidSpecError if the steps contradict each other."""
        return Spec(self._members(), timezone=self._timezone)

    def options(self) -> Options:
        """Return the options to create the schedule with."""
        return cast("Options", dict(self._options))

    def _members(self) -> list[Member]:
        is_narrowed = bool(self._window or self._weekdays or self._month_days)
        if self._cron is not None:
            if is_narrowed or self._minutes is not None or self._interval is not None:
                raise InvalidSpecError("cron", "is complete; write the other conditions into the expression")
            return [Cron(self._cron)]
        if self._interval is not None and not is_narrowed:
            return [Every(self._interval)]
        return [Cron(expression) for expression in self._expressions()]

    def _expressions(self) -> list[str]:
        minutes = self._times_of_day()
        if self._window is not None:
            minutes = {minute for minute in minutes if self._window[0] <= minute < self._window[1]}
        if not minutes:
            raise InvalidSpecError("timing", "no time of day remains; widen between(...)")
        month_days = ",".join(self._month_days) or "*"
        weekdays = ",".join(str(day) for day in self._weekdays) or "*"
        if month_days != "*" and weekdays != "*":
            raise InvalidSpecError("monthly_on", "cannot be narrowed to days of the week; use cron(...)")
        return [f"{times} {month_days} * {weekdays}" for times in _fields(minutes)]

    def _times_of_day(self) -> set[int]:
        if self._minutes is not None:
            return self._minutes
        if self._interval is None:
            raise InvalidSpecError("timing", "has no time; begin with daily_at, hourly_at, weekly_on, every or cron")
        step, rest = divmod(self._interval, timedelta(minutes=1))
        if rest or _DAY_MINUTES % step:
            raise InvalidSpecError("every", "can be narrowed only when it is whole minutes that divide a day")
        return set(range(0, _DAY_MINUTES, step))


When: TypeAlias = SpecLike | Timing
"""A timing: a spec in any form, or a builder."""


def unfold(when: When, options: Mapping[str, Any]) -> tuple[SpecLike, dict[str, Any]]:
    """Return the spec, and the options of a builder merged with `options`, which take precedence."""
    if not isinstance(when, Timing):
        return when, dict(options)
    return when.spec(), {**when.options(), **options}


def _minute_of_day(time: str) -> int:
    match = _TIME.fullmatch(time.strip())
    if match is None:
        raise InvalidSpecError("time", f"{time!r} is not a time of day; write 00:10 or 17:05")
    return int(match[1]) * 60 + int(match[2])


def _weekday(day: str) -> int:
    short = day.strip().lower()[:3]
    if short not in _DAYS:
        raise InvalidSpecError("day", f"{day!r} is not a day; write mon, tue, wed, thu, fri, sat or sun")
    return _DAYS.index(short)


def _fields(minutes: set[int]) -> list[str]:
    """Write times of day as minute and hour fields: hours with the same minutes share one expression."""
    by_hour: dict[int, set[int]] = defaultdict(set)
    for minute in minutes:
        by_hour[minute // 60].add(minute % 60)
    by_minutes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for hour in sorted(by_hour):
        by_minutes[tuple(sorted(by_hour[hour]))].append(hour)
    return [f"{_join(few)} {'*' if len(hours) == 24 else _join(hours)}" for few, hours in sorted(by_minutes.items())]


def _join(numbers: tuple[int, ...] | list[int]) -> str:
    return ",".join(map(str, numbers))
