"""Convert a trigger of APScheduler 3, from a pickle, to the timing of a schedule that fires at the same instants.

A trigger is given as an `Object`: its class and attributes, as described by the process that loaded the pickle.
APScheduler counts weekdays from Monday, and its crons fire when all their fields match. If no spec of rqsched has the
same instants, the trigger is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from importlib import import_module
from typing import Any, NamedTuple, cast
from zoneinfo import ZoneInfo

from rqsched.errors import InvalidSpecError
from rqsched.importers.cron_fields import (
    HOURS,
    LAST,
    MINUTES,
    MONTHDAYS,
    MONTHS,
    SECONDS,
    WEEKDAY_NAMES,
    WEEKDAYS,
    ClockChanges,
    CronFields,
    Following,
    Position,
    fixed_offset,
    require_same_times,
    zone_name,
)
from rqsched.importers.unpickle import NotReadableError, Object, what_is
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.options import MAX_DELAY
from rqsched.when.duration import format_duration, require_interval
from rqsched.when.members import Cron, Once
from rqsched.when.spec import Spec

_TRIGGERS = "apscheduler.triggers"
_CRON = f"{_TRIGGERS}.cron.CronTrigger"
_INTERVAL = f"{_TRIGGERS}.interval.IntervalTrigger"
_DATE = f"{_TRIGGERS}.date.DateTrigger"
_CALENDAR = f"{_TRIGGERS}.calendarinterval.CalendarIntervalTrigger"
_AND, _OR = f"{_TRIGGERS}.combining.AndTrigger", f"{_TRIGGERS}.combining.OrTrigger"
_FIELDS = ("BaseField", "MonthField", "WeekField", "DayOfMonthField", "DayOfWeekField")
_ALL, _DAY_POSITION, _LAST_DAY = "AllExpression", "WeekdayPositionExpression", "LastDayOfMonthExpression"
_RANGES = ("RangeExpression", "MonthRangeExpression", "WeekdayRangeExpression")
OWN = frozenset({_CRON, _INTERVAL, _DATE, _CALENDAR, _AND, _OR}).union(
    (f"{_TRIGGERS}.cron.fields.{name}" for name in _FIELDS),
    (f"{_TRIGGERS}.cron.expressions.{name}" for name in (_ALL, _DAY_POSITION, _LAST_DAY, *_RANGES)),
)
"""The classes whose attributes are read."""
_YEARS, _WEEKS = range(1970, 10000), range(1, 54)
_COMPARED = ("month", "day", "day_of_week", "hour", "minute", "second")
"""The fields that become a cron expression. The field `year` becomes a window. A `week` other than `*` is refused."""
_POSITIONS = ("1st", "2nd", "3rd", "4th", "5th", "last")
_MOST_EXPRESSIONS = 500
_DAY, _TICK = timedelta(days=1), timedelta(microseconds=1)


class Timing(NamedTuple):
    """The timing of a job, as keys of an entry for `rqsched sync`."""

    keys: Mapping[str, Any]
    """The keys and their values."""
    lost: tuple[str, ...] = ()
    """A sentence for each thing that is lost or changes."""


class Window(NamedTuple):
    """The span in which occurrences may lie."""

    start_at: datetime | None = None
    """The first instant that may be an occurrence; None means no limit."""
    end_at: datetime | None = None
    """No occurrence is at or after this instant; None means no limit."""

    def within(self, other: Window) -> Window:
        """Return the window of the instants that both windows allow."""
        starts = [at for at in (self.start_at, other.start_at) if at is not None]
        ends = [at for at in (self.end_at, other.end_at) if at is not None]
        return Window(max(starts, default=None), min(ends, default=None))

    def keys(self) -> dict[str, str]:
        """Return the window as keys of an entry."""
        return {name: iso_utc(at) for name, at in self._asdict().items() if at is not None}


def timing_of(trigger: object, next_at: datetime | None, now: datetime) -> Timing:
    """Return the timing of a job. `next_at` is when APScheduler runs the job next, if this is known.

    Raises NotReadableError if the object is not a trigger of APScheduler. Raises InvalidSpecError if no spec has the
    same instants.
    """
    if not isinstance(trigger, Object) or trigger.name not in OWN:
        raise NotReadableError(f"its trigger is {what_is(trigger)}")
    state = _state_of(trigger)
    if trigger.name == _DATE:
        return Timing({"once": iso_utc(next_at or _instant(state["run_date"]))})
    if trigger.name == _INTERVAL:
        first = next_at or _instant(state["start_date"])
        every = format_duration(require_interval(state["interval"]))
        window = Window(first, _after(state["end_date"]))
        spec = {"intervals": [{"every": every, "anchor": iso_utc(first)}], **window.keys()}
        return Timing({"spec": spec, **_jitter(state.get("jitter"))})
    return _timing_of_crons(_crons_of(trigger, now), next_at, now)


class _Crons(NamedTuple):
    """The crons by which a trigger fires."""

    members: tuple[Cron | Once, ...]
    """The crons, each with its zone, and the single instants."""
    window: Window
    """The window in which all members fire."""
    clocks: Mapping[str, str]
    """The options for clock changes."""
    lost: tuple[str, ...] = ()
    """A sentence for each thing that is lost or changes."""
    jitter: float = 0
    """The longest delay, in seconds."""


def _crons_of(trigger: Object, now: datetime) -> _Crons:
    state = _state_of(trigger)
    if trigger.name == _AND:
        raise InvalidSpecError("spec", "it is an AndTrigger, which no spec can express: see exclude")
    if trigger.name == _OR:
        found = _any_of(state, now)
    elif trigger.name == _CRON:
        found = _cron(state, now)
    else:
        found = _calendar_interval(state, now)
    return found._replace(jitter=found.jitter + (state.get("jitter") or 0))


def _any_of(state: Mapping[str, Any], now: datetime) -> _Crons:
    """Read an OrTrigger. It fires whenever one of its triggers does. Each trigger counts from the last fire of any."""
    parts = [_part(name, kept) for name, kept in state["triggers"]]
    if any(one.name in {_INTERVAL, _CALENDAR} for one in parts):
        text = "an interval among its triggers counts from each fire of the others, which no spec can express"
        raise InvalidSpecError("spec", f"{text}: create a schedule for each trigger")
    # A date trigger fires only if its date is earlier than the first fire of every other trigger.
    dates = [_instant(_state_of(one)["run_date"]) for one in parts if one.name == _DATE]
    crons = [_crons_of(one, now) for one in parts if one.name != _DATE]
    if not crons:
        raise InvalidSpecError("spec", "its triggers are dates, and only the first one fires: make it a single date")
    if len({(one.window, one.jitter) for one in crons}) > 1:
        text = "its triggers differ in start, end, years or jitter, but a spec has one value for each"
        raise InvalidSpecError("spec", f"{text}: create a schedule for each trigger")
    members = tuple(member for one in crons for member in one.members)
    window, told = crons[0].window, {sentence: None for one in crons for sentence in one.lost}
    if window.start_at is not None and window.start_at > now:
        raise InvalidSpecError("start_at", "a start_date in the future applies only to the first of its triggers")
    spec, firsts = Spec(members, **window._asdict()), [at for at in dates if at > now]
    following = spec.next_after(now)
    if firsts and (following is None or min(firsts) <= following):
        members = (*members, Once(min(firsts)))
    clocks = {name: value for one in crons for name, value in one.clocks.items()}
    return _Crons(members, window, clocks, tuple(told), crons[0].jitter)


def _part(name: str, state: Any) -> Object:
    """Return a part of a combined trigger. APScheduler stores each part as its class name and state."""
    part = Object(str(name).replace(":", "."), state)
    if part.name not in OWN:
        raise NotReadableError(f"one of its triggers is a {part.name}")
    return part


def _timing_of_crons(crons: _Crons, next_at: datetime | None, now: datetime) -> Timing:
    """Return the timing of crons. `next_at` is the next fire, which the application may have set to any time."""
    members, window, lost = crons.members, crons.window, [*crons.lost]
    if next_at is not None:
        earliest = next_at.astimezone(UTC) - timedelta(seconds=crons.jitter)
        gap, fold = crons.clocks.get("dst_gap"), crons.clocks.get("dst_fold")
        spec = Spec(members, **window._asdict(), dst_gap=gap, dst_fold=fold)
        if earliest > now and (found := spec.next_after(now)) is not None and found < earliest:
            window = window.within(Window(earliest))
        found = spec.next_after(earliest - _TICK)
        if found is None or found > next_at:
            told = "never" if found is None else f"at {iso_utc(found)}"
            lost.append(f"APScheduler fires it next at {iso_utc(next_at)}, but by its trigger rqsched fires it {told}.")
    if len(members) == 1 and isinstance(cron := members[0], Cron):
        keys: dict[str, Any] = {"cron": cron.expression, "timezone": cron.timezone, **window.keys()}
        if len(cron.expression.split()) == 6:
            keys["cron_seconds"] = "first"
    else:
        kept = [one for one in members if isinstance(one, Cron)]
        form = {"crons": [{"expression": one.expression, "timezone": one.timezone} for one in kept]}
        instants = [iso_utc(one.instant) for one in members if isinstance(one, Once)]
        keys = {"spec": {**form, **({"instants": instants} if instants else {}), **window.keys()}}
    return Timing({**keys, **crons.clocks, **_jitter(crons.jitter)}, tuple(lost))


def _cron(state: Mapping[str, Any], now: datetime) -> _Crons:
    fields = {_state_of(field)["name"]: _state_of(field)["expressions"] for field in state["fields"]}
    if sum(map(len, fields.values())) > _MOST_EXPRESSIONS:
        raise NotReadableError(f"its trigger has more than {_MOST_EXPRESSIONS} expressions")
    if set(_WEEKS) - _values(fields["week"], _WEEKS):
        raise InvalidSpecError("cron", "it names weeks of the year, which no cron can express")
    zone = _zone(state["timezone"])
    start_date = state["start_date"]
    own = Window(None if start_date is None else _instant(start_date), _after(state["end_date"]))
    window = own.within(_window_of_years(_values(fields["year"], _YEARS), zone))
    days = [_name(one) for one in fields["day"]]
    cron = CronFields(
        minutes=_values(fields["minute"], MINUTES),
        hours=_values(fields["hour"], HOURS),
        monthdays=_values(fields["day"], MONTHDAYS),
        months=_values(fields["month"], MONTHS),
        weekdays={_from_sunday(value) for value in _values(fields["day_of_week"], WEEKDAYS)},
        seconds=_values(fields["second"], SECONDS),
        positions=[_position(one) for one in fields["day"] if _name(one) == _DAY_POSITION],
        has_last_day=_LAST_DAY in days,
    )
    found, changes = _crons(cron, zone, window, now, dst_gap="shift", dst_fold="both")
    written = tuple((name, ",".join(map(_text, fields[name]))) for name in _COMPARED)
    require_same_times(cron.expression(), written, _as_apscheduler, now, "APScheduler")
    return found._replace(lost=tuple(_other_times(cron, changes)))


def _crons(cron: CronFields, zone: str, window: Window, now: datetime, **options: str) -> tuple[_Crons, ClockChanges]:
    expression = cron.expression()
    changes = ClockChanges.of(expression, zone, now)
    return _Crons((Cron(expression, zone, seconds="first"),), window, changes.keys(**options)), changes


def _as_apscheduler(written: tuple[tuple[str, str], ...]) -> Following:
    """Read the fields of a CronTrigger with APScheduler. It is installed, because it loaded the trigger."""
    trigger = import_module(f"{_TRIGGERS}.cron").CronTrigger(**dict(written), timezone=UTC)
    return lambda at: cast("datetime | None", trigger.get_next_fire_time(at, at))


def _text(expression: Object) -> str:
    """Return an expression of a field as text, as an application writes it."""
    name, state = _name(expression), _state_of(expression)
    if name == _LAST_DAY:
        return "last"
    if name == _DAY_POSITION:
        return f"{_POSITIONS[state['option_num']]} {WEEKDAY_NAMES[_from_sunday(state['weekday'])]}"
    values = "*" if name == _ALL else str(state["first"])
    if name != _ALL and state["last"] is not None:
        values += f"-{state['last']}"
    return f"{values}/{state['step']}" if state["step"] else values


def _other_times(cron: CronFields, changes: ClockChanges) -> Iterator[str]:
    is_hour_by_hour = changes.is_every_hour and cron.names_every_day
    if changes.go_forward and 0 in cron.hours and not is_hour_by_hour:
        # APScheduler computes the next day or month by a difference of local times. It errs by an hour at the change.
        yield "When the clocks went forward, APScheduler may skip the next midnight; rqsched does not."
    is_once_a_day = len({*cron.hours}) == len({*cron.minutes}) == len({*cron.seconds}) == 1
    if changes.skips and not changes.is_every_hour and not is_once_a_day:
        yield "When the clocks go forward over its times, APScheduler may skip some; rqsched runs each of them later."


def _calendar_interval(state: Mapping[str, Any], now: datetime) -> _Crons:
    """Read a calendar interval that a cron can express: a day, a week, a year, or a divisor of twelve months."""
    years, months, weeks, days = state["interval"]
    start = state["start_date"]
    if not isinstance(start, date):
        raise NotReadableError(f"its start is {what_is(start)}")
    hour, minute, second = state["time"]
    cron = CronFields([minute], [hour], MONTHDAYS, MONTHS, WEEKDAYS, [second])
    months += 12 * years
    days += 7 * weeks
    if months and not days and 12 % months == 0:
        cron = cron._replace(
            monthdays=[start.day], months=[(start.month + n - 1) % 12 + 1 for n in range(0, 12, months)]
        )
    elif not months and days == 7:
        cron = cron._replace(weekdays=[_from_sunday(start.weekday())])
    elif months or days != 1:
        raise InvalidSpecError(
            "spec", "it counts days or months in a way that no cron can express: make it an interval"
        )
    zone = _zone(state["timezone"])
    end = state["end_date"]
    window = Window(_midnight(start, zone), _midnight(end + _DAY, zone) if end else None)
    found, _ = _crons(cron, zone, window, now, dst_gap="skip")  # APScheduler skips a time that does not exist
    return found


def _window_of_years(years: set[int], zone: str) -> Window:
    if years == set(_YEARS):
        return Window()
    first, last = min(years, default=0), max(years, default=0)
    if years != set(range(first, last + 1)):
        raise InvalidSpecError(
            "cron", "it names years with gaps between them: create a schedule for each span of years"
        )
    until = _midnight(date(last + 1, 1, 1), zone) if last < _YEARS[-1] else None
    return Window(_midnight(date(first, 1, 1), zone), until)


def _midnight(day: date, zone: str) -> datetime:
    return datetime.combine(day, time.min, ZoneInfo(zone)).astimezone(UTC)


def _values(expressions: Iterable[Object], field: range) -> set[int]:
    """Return the numbers that the expressions of a field name. Days by name, such as the last day, are left out."""
    return {value for one in expressions for value in _values_of(one, field)}


def _values_of(expression: Object, field: range) -> Iterator[int]:
    name, state = _name(expression), _state_of(expression)
    if name in {_DAY_POSITION, _LAST_DAY}:
        return iter(())
    step = state["step"] or 1
    if name == _ALL:
        return iter(field[::step])
    first, last = state["first"], state["last"]
    return (v for v in field if first <= v and (last is None or v <= last) and (v - first) % step == 0)


def _position(expression: Object) -> Position:
    state = _state_of(expression)
    return Position(range(1, LAST + 1)[state["option_num"]], _from_sunday(state["weekday"]))


def _from_sunday(weekday: int) -> int:
    return WEEKDAYS[(weekday + 1) % 7]


def _name(expression: object) -> str:
    if not isinstance(expression, Object) or expression.name not in OWN:
        raise NotReadableError(f"its trigger holds {what_is(expression)}")
    return expression.name.rpartition(".")[2]


def _state_of(kept: object) -> Mapping[str, Any]:
    """Return the attributes of an object. APScheduler 3.0 stored those of a trigger as the pair (None, attributes)."""
    state = kept.state if isinstance(kept, Object) else None
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1]
    if not isinstance(state, dict):
        raise NotReadableError(f"{what_is(kept)} is not in the form that APScheduler writes")
    return state


def _instant(kept: object) -> datetime:
    if not isinstance(kept, datetime) or kept.utcoffset() is None:
        raise NotReadableError(f"a time of its trigger is {what_is(kept)}, or has no zone")
    return kept.astimezone(UTC)


def _after(end: object) -> datetime | None:
    """Return the end of a window, which is exclusive. APScheduler's end is inclusive."""
    return None if end is None else _instant(end) + _TICK


def _zone(kept: object) -> str:
    told = kept.state if isinstance(kept, Object) else None
    if isinstance(told, str):
        return zone_name(told)
    if isinstance(told, timedelta):
        return fixed_offset(told)
    raise NotReadableError(f"its time zone is {what_is(kept)}, which has neither a name nor an offset")


def _jitter(seconds: Any) -> dict[str, Any]:
    if not seconds:
        return {}
    length = timedelta(seconds=seconds)
    if not timedelta(0) < length <= MAX_DELAY:
        raise InvalidSpecError("jitter", f"its jitter of {seconds} s is more than {MAX_DELAY.days} day")
    return {"jitter": format_duration(length)}
