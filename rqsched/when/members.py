"""Members, the parts of a spec: `Cron`, `Every`, `Once`, and `After`, which has no times of its own.

Each member is frozen, comparable, and a timeline by itself. Some members count from the registration of their schedule,
which sets their `anchor`. Before the registration, they count from the instant that a call gives, such as
`next_after(instant)`.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import InitVar, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Literal, TypeAlias

from rqsched.errors import InvalidCronError, InvalidSpecError
from rqsched.when.cron import ClockChoice, CronExpression, parse_cron
from rqsched.when.duration import SpanLike, format_short, is_duration, parse_duration, require_interval, to_span
from rqsched.when.places import has_place, placed
from rqsched.when.timeline import Grid, Moment, Source, Timeline, ZonedCron, require_utc
from rqsched.when.zones import require_timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EVERY = re.compile(r"[ \t]*@every[ \t]+(?P<length>[^ \t]+)[ \t]*", re.IGNORECASE)


@dataclass(frozen=True)
class Cron(Timeline):
    """A cron expression: five fields, six fields (seconds first), or an alias. `@every 1h30m` is an anchored interval.

    >>> Cron("0 2 * * *", timezone="America/New_York")
    Cron(expression='0 2 * * *', timezone='America/New_York', anchor=None)

    RQ's own cron and croniter write six fields with the seconds last; `seconds="last"` reads them that way. Without
    `seconds`, six fields cause a warning if they would mean something else with the seconds last; `seconds="first"`
    avoids it.

    `H` in a field stands for a number that is computed from the namespace and the id of a schedule (docs/spreading.md).
    `Spec.placed_for` fills the numbers in; before that, such an expression has no instants.

    The expression is read in its `timezone`. Without one, it is read in the timezone of its Spec, or in UTC if it has
    no Spec. Raises InvalidCronError or InvalidTimezoneError, which say what to write instead.
    """

    expression: str
    """The expression as written, with seconds first."""
    timezone: str | None = None
    """An IANA area name; None means the timezone of the Spec."""
    anchor: datetime | None = None
    """The instant from which the steps of `@every` count; None before the registration and for other expressions."""
    seconds: InitVar[Literal["first", "last"] | None] = None
    """The position of the seconds among six fields: `first` or `last`. None means `first`, and warns if `last` would
    mean something else."""
    numbers: str | None = field(default=None, repr=False)
    """The expression with a number for each `H`; None if it has no `H`, or if no schedule has given the numbers yet."""

    def __post_init__(self, seconds: Literal["first", "last"] | None) -> None:
        """Refuse an expression or option that cannot be evaluated."""
        if seconds not in (None, "first", "last"):  # a file may give a list here
            raise InvalidSpecError("seconds", f"{seconds!r} is not a place; write 'first' or 'last'")
        fields = self.expression.split() if isinstance(self.expression, str) else []
        if seconds == "last" and len(fields) == 6:
            object.__setattr__(self, "expression", " ".join([fields[5], *fields[:5]]))
        if self.numbers is not None and not (isinstance(self.expression, str) and self.has_place):
            raise InvalidSpecError("written", f"{self.expression!r} has no H, which alone needs numbers; leave it out")
        if self.every is None:
            parsed = parse_cron(self.numbers or _sample(self.expression))
            if seconds is None and len(fields) == 6 and _read_seconds_last(fields) not in {None, parsed}:
                text = f"{self.expression!r} is read with its seconds first, and RQ's cron reads them last"
                warnings.warn(f"{text}; choose with Cron(..., seconds='first') or 'last'", stacklevel=3)
        if self.timezone is not None:
            require_timezone(self.timezone)
        if self.anchor is not None:
            if self.every is None:
                raise InvalidSpecError("anchor", "only @every counts from an anchor; remove it, or use Every")
            object.__setattr__(self, "anchor", require_utc(self.anchor, "anchor"))

    @cached_property
    def every(self) -> timedelta | None:
        """The length of an `@every`; None for other expressions."""
        match = _EVERY.fullmatch(self.expression) if isinstance(self.expression, str) else None
        if match is None:
            return None
        if match["length"].startswith("P") or re.search(r"[0-9][wd]", match["length"]):
            raise InvalidCronError("cron", f"{self.expression!r} is refused; write units from h to ms: @every 1h30m")
        return parse_duration(match["length"])

    @property
    def is_anchored(self) -> bool:
        """Whether its instants do not depend on when it is registered."""
        return self.every is None or self.anchor is not None

    @property
    def has_place(self) -> bool:
        """Whether a field of the expression has an `H`."""
        return has_place(self.expression)

    @property
    def plain(self) -> str:
        """The expression with its numbers in place of `H`, or as written if it has no numbers."""
        return self.numbers or self.expression

    def sources(self, anchor: datetime, timezone: str = "UTC") -> tuple[Source, ...]:
        """Return the expression on the clocks of its zone, or the steps of `@every`."""
        if self.every is not None:
            return (Grid(self.every, self.anchor or anchor),)
        if self.numbers is None and self.has_place:
            raise InvalidSpecError("cron", f"{self.expression!r} needs a schedule's id for its H; name the schedule")
        zone = require_timezone(self.timezone or timezone)
        return (ZonedCron(parse_cron(self.plain), zone, ClockChoice(is_shift=True)),)

    def describe(self, timezone: str = "UTC") -> str:
        """Return a short text for people."""
        if self.every:
            return f"every {format_short(self.every)}"
        numbers = f" ({self.numbers})" if self.numbers else ""
        return f"cron {self.expression}{numbers} {self.timezone or timezone}"


@dataclass(frozen=True, init=False)
class Every(Timeline):
    """An interval: `Every(timedelta(minutes=30))`, `Every("30m")`, `Every("PT30M")`, `Every(1800)` in seconds.

    By default, the interval is anchored: it is measured from `anchor`, or from its registration if no anchor is given.
    It extends in both directions: a daily interval with an anchor in ten days also fires tomorrow, unless `start_at` of
    its Spec is later. An `offset`, even zero, aligns it to the epoch instead: `Every("1h", offset="5m")` fires five
    minutes past each UTC hour. `from_completion=True` measures from the end of each run; such an interval must be alone
    in its Spec. Before an interval has an anchor, it is measured from the instant that a call gives, such as
    `next_after(instant)`.
    """

    every: timedelta
    """The step, at least one second."""
    offset: timedelta | None
    """The offset of an aligned interval from the epoch, less than one step; None for any other interval."""
    anchor: datetime | None
    """The instant from which an anchored interval is measured, forwards and backwards; None before the registration."""
    from_completion: bool
    """Whether each step begins when a run ends."""

    def __init__(
        self,
        every: SpanLike,
        *,
        offset: SpanLike | None = None,
        anchor: datetime | None = None,
        from_completion: bool = False,
    ) -> None:
        object.__setattr__(self, "every", require_interval(every))
        phase = None if offset is None else to_span(offset, "offset")
        object.__setattr__(self, "offset", phase)
        object.__setattr__(self, "anchor", None if anchor is None else require_utc(anchor, "anchor"))
        object.__setattr__(self, "from_completion", from_completion)
        if not isinstance(self.from_completion, bool):
            raise InvalidSpecError("from_completion", f"{self.from_completion!r} is not a boolean; write true or false")
        if self.offset is not None and self.anchor is not None:
            raise InvalidSpecError("offset", "an interval has an offset or an anchor, not both; remove one")
        if self.from_completion and (self.offset is not None or self.anchor is not None):
            raise InvalidSpecError("from_completion", "it counts from the end of a run; remove offset and anchor")
        if self.offset is not None and not timedelta(0) <= self.offset < self.every:
            raise InvalidSpecError("offset", f"{self.offset} is outside the interval; write one from 0 to {self.every}")

    @property
    def is_anchored(self) -> bool:
        """Whether its instants do not depend on when it is registered."""
        return self.offset is not None or self.anchor is not None or self.from_completion

    def sources(self, anchor: datetime, timezone: str = "UTC") -> tuple[Source, ...]:
        """Return the steps, which are the same in every timezone."""
        del timezone
        return (Grid(self.every, self.anchor or anchor if self.offset is None else _EPOCH + self.offset),)

    def describe(self, timezone: str = "UTC") -> str:
        """Return a short text for people."""
        del timezone
        phase = f" offset {format_short(self.offset)}" if self.offset else ""
        return f"every {format_short(self.every)}{phase}{' after completion' if self.from_completion else ''}"


@dataclass(frozen=True)
class Once(Timeline):
    """A single aware instant: `Once(datetime(2026, 1, 1, tzinfo=UTC))`."""

    instant: datetime
    """The instant, converted to UTC."""
    is_anchored = True

    def __post_init__(self) -> None:
        """Refuse a naive instant."""
        object.__setattr__(self, "instant", require_utc(self.instant))

    def sources(self, anchor: datetime, timezone: str = "UTC") -> tuple[Source, ...]:
        """Return the instant."""
        del anchor, timezone
        return (Moment(self.instant),)

    def describe(self, timezone: str = "UTC") -> str:
        """Return a short text for people."""
        del timezone
        return f"once {iso_text(self.instant)}"


ENDS = ("success", "failure", "end")
"""The kinds of ends that may start another schedule's run."""


@dataclass(frozen=True)
class After(Timeline):
    """The ends of the runs of another schedule: `After("nightly")` starts a run after each success of `nightly`.

    `on` says which ends count: `success`, `failure` (every end that is no success) or `end` (all). It must be alone in
    its spec, and has no known future times. The other schedule must be in the same namespace.
    """

    schedule_id: str
    """The id of the other schedule."""
    on: str = "success"
    """The ends that count: `success`, `failure` or `end`."""
    is_anchored = True

    def __post_init__(self) -> None:
        """Refuse an empty id and an unknown `on`."""
        if not isinstance(self.schedule_id, str) or not self.schedule_id:
            raise InvalidSpecError("after", f"{self.schedule_id!r} is not the id of a schedule; write After('nightly')")
        if self.on not in ENDS:  # a file may give a list here
            raise InvalidSpecError("on", f"{self.on!r} is not one of {', '.join(ENDS)}")

    def sources(self, anchor: datetime, timezone: str = "UTC") -> tuple[Source, ...]:
        """Return nothing: the ends of the other schedule's runs are not known in advance."""
        del anchor, timezone
        return ()

    def describe(self, timezone: str = "UTC") -> str:
        """Return a short text for people."""
        del timezone
        return f"after each {self.on} of {self.schedule_id}"


Member: TypeAlias = Cron | Every | Once | After
"""One part of a Spec."""
MemberLike: TypeAlias = Member | str | timedelta | datetime
"""The forms of a member: a member, a length, an aware instant, or text such as `0 2 * * *` or `10m`."""


def _read_seconds_last(fields: list[str]) -> CronExpression | None:
    """Return six fields parsed with the seconds last; None if they are invalid in that order."""
    try:
        return parse_cron(_sample(" ".join([fields[5], *fields[:5]])))
    except InvalidCronError:
        return None


def _sample(expression: str) -> str:
    """Return an expression with an arbitrary number for each `H`, to check that it can be parsed."""
    return placed(expression, "") if isinstance(expression, str) else expression


def is_plain(cron: Cron) -> bool:
    """Return whether a cron consists of its expression alone, without timezone, anchor and numbers."""
    return cron.timezone is None and cron.anchor is None and cron.numbers is None


def is_from_completion(member: Member) -> bool:
    """Return whether the member is measured from the end of each run."""
    return isinstance(member, Every) and member.from_completion


def has_one_time(member: Member) -> bool:
    """Return whether the member is one instant, or a cron with one time of day."""
    if isinstance(member, Cron) and member.every is None:
        parsed = parse_cron(member.numbers or _sample(member.expression))
        return len(parsed.hours) == len(parsed.seconds_of_hour) == 1
    return isinstance(member, Once)


def anchored(member: Member, anchor: datetime) -> Member:
    """Return the member with this anchor if it needs an anchor, else the member itself."""
    return member if isinstance(member, Once | After) or member.is_anchored else replace(member, anchor=anchor)


def iso_text(at: datetime) -> str:
    """Return ISO 8601 text with `Z`, and with microseconds if they are not zero."""
    return at.isoformat().replace("+00:00", "Z")


def parse_instant(value: object, field: str) -> datetime:
    """Return an aware datetime, which may be given as ISO 8601 text; raises InvalidSpecError for anything else."""
    try:
        return require_utc(datetime.fromisoformat(value) if isinstance(value, str) else value, field)  # type: ignore[arg-type]
    except ValueError as error:
        if isinstance(error, InvalidSpecError):
            raise
        raise InvalidSpecError(
            field, f"{value!r} is not a valid instant; write ISO 8601 such as 2026-01-01T00:00:00Z"
        ) from error


def require_member(value: MemberLike) -> Member:
    """Return the member that `value` stands for; see MemberLike."""
    if isinstance(value, (Cron, Every, Once, After)):
        return value
    if isinstance(value, timedelta) or (isinstance(value, str) and is_duration(value)):
        return Every(value)
    if isinstance(value, datetime):
        return Once(value)
    if isinstance(value, str):
        return Once(parse_instant(value, "spec")) if _DATE.match(value) else Cron(value)
    raise InvalidSpecError("spec", f"{type(value).__name__} is not part of a spec; give Cron, Every, Once or After")
