"""A periodic task of Celery beat from any store, and the schedule that it becomes.

Crontabs are read by Celery's grammar. Intervals count from the last run, as in Celery. If Celery is installed, the
times of two years are compared with those of its class `crontab`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

from rqsched.clock import SystemClock
from rqsched.errors import InvalidCronError, InvalidInputError, InvalidPayloadError, InvalidSpecError
from rqsched.importers.cron_fields import (
    HOURS,
    MINUTES,
    MONTH_NAMES,
    MONTHDAYS,
    MONTHS,
    WEEKDAY_NAMES,
    WEEKDAYS,
    ClockChanges,
    CronFields,
    Following,
    require_same_times,
    zone_name,
)
from rqsched.importers.source import AS_BEFORE, MOST_DESCRIBED, SourceEntry, named_id, not_before
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.options import OPTIONS
from rqsched.kernel.decide.payload import MEMO_BYTES, json_text
from rqsched.when.duration import format_duration, require_interval
from rqsched.when.spec import Spec

KIND = "celery-beat"
_ITEM = re.compile(r"(?:\*|(?P<first>\w{1,9})(?:-(?P<last>\w{1,9}))?)(?:/(?P<step>\d{1,9}))?")
_OWN_TASKS = frozenset({"celery.backend_cleanup"})
_DAY, _TICK = timedelta(days=1), timedelta(microseconds=1)
_RESOLUTIONS = (_DAY, timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNSURE, _IMMINENT = timedelta(minutes=5), timedelta(minutes=1)
"""The spans before and after now for which it is unknown whether beat has run a task. Beat stores its last runs only
every 3 minutes, so the stored times may lack runs of the last 5 minutes. Beat may be about to run a task that is due
within a minute."""


class Crontab(NamedTuple):
    """A crontab of Celery with its fields as stored: texts, numbers or lists of numbers."""

    minute: object
    """Minutes of the hour."""
    hour: object
    """Hours of the day."""
    day_of_month: object
    """Days of the month."""
    month_of_year: object
    """Months of the year."""
    day_of_week: object
    """Days of the week; 0 is Sunday."""
    timezone: str | None
    """The name of its zone; None if the source does not store it."""

    @classmethod
    def of(cls, kept: Callable[[str], object], timezone: str | None) -> Crontab:
        """Return a crontab. `kept` is a function that returns the stored value of a field by its name."""
        days = kept("day_of_month"), kept("month_of_year"), kept("day_of_week")
        return cls(kept("minute"), kept("hour"), *days, timezone)

    def fields(self) -> CronFields:
        """Read the fields; raises InvalidCronError for a field that Celery would refuse, too."""
        return CronFields(
            _values("minute", self.minute, MINUTES),
            _values("hour", self.hour, HOURS),
            _values("day_of_month", self.day_of_month, MONTHDAYS),
            _values("month_of_year", self.month_of_year, MONTHS, MONTH_NAMES),
            _values("day_of_week", self.day_of_week, WEEKDAYS, WEEKDAY_NAMES),
        )

    def written(self) -> tuple[str, ...]:
        """Return the five fields as texts, in the order in which this class has them."""
        return tuple(
            ",".join(map(str, kept)) if isinstance(kept, Iterable) and not isinstance(kept, str) else str(kept)
            for kept in self[:5]
        )

    def ours(self) -> tuple[str, str]:
        """Return the rqsched expression and its zone; raises InvalidSpecError if no expression has the same times."""
        return self.fields().expression(), zone_name(self.timezone or "UTC")


@cache
def celery_crontab() -> Callable[[tuple[str, ...]], Following] | None:
    """Return a function that reads the fields of a `Crontab` with Celery; None if Celery is not installed."""
    try:
        crontab = import_module("celery.schedules").crontab
    except ImportError:
        return None

    def read(written: tuple[str, ...]) -> Following:
        # Without `nowfun`, a crontab of Celery asks an application for the time.
        kept = crontab(**dict(zip(Crontab._fields[:5], written, strict=True)), nowfun=SystemClock().now)
        return partial(_next_of, kept)

    return read


def _next_of(crontab: Any, at: datetime) -> datetime:
    last, delta, _ = crontab.remaining_delta(at, tz=UTC)
    found: datetime = last + delta
    return found


class Interval(NamedTuple):
    """An interval of Celery, which counts from the last run."""

    every: timedelta
    """Its length."""
    is_rounded: bool = False
    """Whether its times are rounded down to its resolution. Celery calls this `relative`."""

    @property
    def resolution(self) -> timedelta:
        """The largest unit (day, hour, minute or second) that is not longer than the interval."""
        return next((one for one in _RESOLUTIONS if one <= self.every), _RESOLUTIONS[-1])


class Clocked(NamedTuple):
    """One instant."""

    at: datetime
    """The instant."""


class Unknown(NamedTuple):
    """A timing that no schedule can have."""

    reason: str
    """The reason, as a sentence."""


When: TypeAlias = Crontab | Interval | Clocked | Unknown
"""The timing of a periodic task."""


class PeriodicTask(NamedTuple):
    """One periodic task of Celery beat."""

    name: str
    """Its name, unique in its source."""
    task: str
    """The name of the Celery task."""
    when: When
    """When it runs."""
    args: object
    """Positional arguments, decoded."""
    kwargs: object
    """Keyword arguments, decoded."""
    options: Mapping[str, Any]
    """Further options of the task's message."""
    is_enabled: bool
    """Whether beat runs it."""
    last_run_at: datetime | None = None
    """When beat last sent the task, or the instant from which beat counts instead."""
    start_at: datetime | None = None
    """The first instant at which it may run."""
    end_at: datetime | None = None
    """It may not run at or after this instant."""
    is_one_off: bool = False
    """Whether it runs only once."""
    run_count: int = 0
    """How often it ran."""
    description: str = ""
    """Text for people."""
    remarks: tuple[str, ...] = ()
    """Sentences that the source adds to the report about the task."""

    def becomes(self, now: datetime, timezone: str) -> SourceEntry:
        """Return the entry that the task becomes. `timezone` is the zone of crontabs that are stored without a zone."""
        when = self.when
        if isinstance(when, Crontab) and when.timezone is None:
            when = when._replace(timezone=timezone)
        if isinstance(when, Interval) and when.is_rounded:
            when = when._replace(every=max(when.every - when.every % when.resolution, when.resolution))
            if when.every == _DAY:
                when = Crontab("0", "0", "*", "*", "*", timezone)
        told = self._replace(when=when)
        lost = [*self.remarks]
        try:
            entry, next_at = told._entry(now, timezone, lost), told._next_at(timezone)
        except (InvalidInputError, OverflowError) as error:
            reason = error.reason if isinstance(error, InvalidInputError) else "its interval is too long"
            reason = f"It cannot become a schedule: {reason}."
            return SourceEntry(self.name, None, (reason, *self.remarks), self.is_enabled)
        is_open = next_at is not None and now - _UNSURE < next_at <= now
        return SourceEntry(self.name, entry, tuple(lost), self.is_enabled, None if is_open else next_at)

    def _entry(self, now: datetime, timezone: str, lost: list[str]) -> dict[str, Any]:
        if self.task in _OWN_TASKS:
            raise InvalidSpecError("workflow", "it is an internal task of Celery; leave it to Celery")
        if self.is_one_off and self.run_count:
            raise InvalidSpecError("max_runs", "it is a one-off task that has run already")
        if self.end_at is not None and self.end_at <= now:
            raise InvalidSpecError("end_at", f"it expired at {iso_utc(self.end_at)}")
        entry: dict[str, Any] = {"schedule_id": named_id(KIND, self.name), "workflow": self.task, **AS_BEFORE}
        entry |= self._timing(now, timezone, lost)
        entry |= _arguments(self.args, self.kwargs)
        if self.is_one_off and not isinstance(self.when, Clocked):
            entry["max_runs"] = 1
        if self.description:
            entry["description"] = self.description[:MOST_DESCRIBED]
        return entry | _routing(self.options, lost)

    def _timing(self, now: datetime, timezone: str, lost: list[str]) -> dict[str, Any]:
        """Return the timing of the task as keys of an entry."""
        bounds = (("start_at", self.start_at), ("end_at", self.end_at))
        window = {name: iso_utc(at) for name, at in bounds if at is not None}
        when = self.when
        if isinstance(when, Unknown):
            raise InvalidSpecError("spec", when.reason)
        if isinstance(when, Clocked):
            if self.is_enabled and now - _UNSURE < when.at <= now + _IMMINENT:
                raise InvalidSpecError(
                    "once", f"beat may be running it now ({iso_utc(when.at)}): run this again in a few minutes"
                )
            return {"once": iso_utc(when.at), **window}
        if isinstance(when, Crontab):
            expression, zone = when.ours()
            if (library := celery_crontab()) is not None:
                require_same_times(expression, when.written(), library, now, "Celery")
            changes = ClockChanges.of(expression, zone, now)
            lost += changes.told_of("Celery")
            return {"cron": expression, "timezone": zone, **changes.keys(dst_gap="shift"), **window}
        every, first = format_duration(require_interval(when.every)), self._first_of(when, timezone)
        if first is not None:
            window |= not_before(first, now)
            return {"spec": {"intervals": [{"every": every, "anchor": iso_utc(first)}], **window}}
        if when.is_rounded:
            return {"interval": every, "offset": "0s", **window}
        return {"interval": every, **window}

    def _first_of(self, when: Interval, timezone: str) -> datetime | None:
        """Return when beat runs the task next: an interval after its last run, but not before its start."""
        known = [self.last_run_at + when.every] if self.last_run_at else []
        if self.start_at is not None:
            known.append(self.start_at)
        if not known:
            return None
        return _rounded_down(max(known), when.resolution, timezone) if when.is_rounded else max(known)

    def _next_at(self, timezone: str) -> datetime | None:
        """Return when beat runs the task next. Return None if this depends on a last run that is not known."""
        if isinstance(self.when, Clocked):
            return self.when.at
        if isinstance(self.when, Interval):
            return self._first_of(self.when, timezone)
        starts = [at for at in (self.last_run_at, self.start_at and self.start_at - _TICK) if at is not None]
        if not isinstance(self.when, Crontab) or not starts:
            return None
        return Spec(*self.when.ours()).next_after(max(starts))


def _rounded_down(at: datetime, resolution: timedelta, timezone: str) -> datetime:
    """Round an instant down to the resolution. Days begin at midnight of the zone; shorter units are those of UTC."""
    if resolution < _DAY:
        return at - (at - _EPOCH) % resolution
    local = at.astimezone(ZoneInfo(zone_name(timezone)))
    return local.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)


def _values(name: str, kept: object, field: range, names: Collection[str] = ()) -> set[int]:
    """Return the values of a field."""
    if isinstance(kept, str):
        found = {value for item in kept.split(",") for value in _item(name, item.strip(), field, tuple(names))}
    elif isinstance(kept, int) and not isinstance(kept, bool):
        found = {kept}
    elif isinstance(kept, Iterable):
        found = {value for value in kept if isinstance(value, int)}
    else:
        raise InvalidCronError("cron", f"its {name} is a {type(kept).__name__}")
    if wrong := sorted(found - set(field)):
        raise InvalidCronError("cron", f"its {name} names {wrong[0]}, but Celery allows {field[0]}-{field[-1]}")
    return found


def _item(name: str, item: str, field: range, names: tuple[str, ...]) -> list[int]:
    match = _ITEM.fullmatch(item)
    is_stepped_value = match and match["first"] and match["step"] and not match["last"]
    if match is None or is_stepped_value or match["step"] == "0":
        raise InvalidCronError("cron", f"its {name} has {item[:64]!r}, which Celery does not read")
    values = list(field)
    if match["first"]:
        first = _number(name, match["first"], field, names)
        last = _number(name, match["last"], field, names) if match["last"] else first
        upwards, wrapped = range(first, last + 1), (*range(first, field.stop), *range(field.start, last + 1))
        values = [*upwards] if first <= last else [*wrapped]
    return values[:: int(match["step"] or 1)]


def _number(name: str, text: str, field: range, names: tuple[str, ...]) -> int:
    if text[:3].lower() in names:
        return names.index(text[:3].lower()) + field[0]
    if not (text.isascii() and text.isdigit()) or int(text) not in field:
        raise InvalidCronError("cron", f"its {name} has {text!r}, but Celery allows {field[0]}-{field[-1]}")
    return int(text)


def _arguments(args: object, kwargs: object) -> dict[str, Any]:
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
        raise InvalidPayloadError("args", "its arguments are not a list and an object")
    given = {"args": list(args), "kwargs": dict(kwargs)}
    for name, value in given.items():
        json_text(name, value, MEMO_BYTES)
        _refuse_typed(value)
    return {name: value for name, value in given.items() if value}


def _refuse_typed(value: object) -> None:
    """Refuse an object that means a date, a UUID or the like in Celery's JSON, because a run would not decode it."""
    if isinstance(value, Mapping):
        if "__type__" in value:
            kind = value["__type__"]
            raise InvalidPayloadError("args", f"an argument is a {kind}; pass text instead (docs/concepts.md)")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            _refuse_typed(one)


def _routing(options: Mapping[str, Any], lost: list[str]) -> dict[str, Any]:
    """Return the queue as a key of an entry. For every other option of the message, add a sentence to `lost`."""
    given = {name: value for name, value in options.items() if value not in (None, "", {})}
    entry: dict[str, Any] = {}
    queue = given.pop("queue", None)
    if queue is not None:
        try:
            check = OPTIONS["queue"].check
            entry["queue"] = check("queue", queue) if check else queue
        except InvalidInputError as error:
            lost.append(f"Its queue is left out: {error.reason}.")
    if "priority" in given:
        lost.append(
            f"Its priority {given.pop('priority')} is left out, because RabbitMQ and Redis order priorities in "
            "opposite ways. In rqsched, a priority above 0 puts runs to the front of their queue."
        )
    if "expires" in given:
        lost.append(f"Its expires ({given.pop('expires')}) is left out: a run that waits in its queue does not expire.")
    lost.extend(f"Its {name} is left out: {value!r}."[:255] for name, value in sorted(given.items()))
    return entry
