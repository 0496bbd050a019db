"""Members: the parts of a spec, as values: `Cron`, `Every` and `Once`.

All are frozen, comparable timelines of their own. A member that counts from the registration waits for its `anchor`;
evaluated before it has one, it counts from the instant asked about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TypeAlias

from rqsched.errors import InvalidCronError, InvalidSpecError
from rqsched.spec.cron import parse_cron
from rqsched.spec.duration import format_short, parse_duration, parse_span, require_interval
from rqsched.spec.timeline import Grid, Moment, Source, Timeline, ZonedCron, require_utc
from rqsched.spec.zones import require_timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EVERY = re.compile(r"[ \t]*@every[ \t]+(?P<length>[^ \t]+)[ \t]*", re.IGNORECASE)


@dataclass(frozen=True)
class Cron(Timeline):
    """A cron expression of five fields, six (seconds first), or an alias; `@every 1h30m` is an anchored interval.

    >>> Cron("0 2 * * *", timezone="America/New_York")
    Cron(expression='0 2 * * *', timezone='America/New_York', anchor=None)

    Raises InvalidCronError or InvalidTimezoneError, which say what to write instead. Alone it is read in its own
    timezone, UTC by default; in a Spec, in its own or else in the Spec's.
    """

    expression: str
    """The expression as written."""
    timezone: str | None = None
    """An IANA area name; None takes the Spec's."""
    anchor: datetime | None = None
    """Where the steps of `@every` count from; None until it is registered. Other expressions have none."""

    def __post_init__(self) -> None:
        """Refuse what could not be evaluated."""
        if self.every is None:
            parse_cron(self.expression)
        if self.timezone is not None:
            require_timezone(self.timezone)
        if self.anchor is not None:
            if self.every is None:
                raise InvalidSpecError("anchor", "only @every counts from an anchor; remove it, or use Every")
            object.__setattr__(self, "anchor", require_utc(self.anchor, "anchor"))

    @cached_property
    def every(self) -> timedelta | None:
        """The length of `@every`, None for every other expression."""
        match = _EVERY.fullmatch(self.expression) if isinstance(self.expression, str) else None
        if match is None:
            return None
        if match["length"].startswith("P"):
            raise InvalidCronError(
                "cron", f"{self.expression!r} is refused; write hours, minutes, seconds: @every 1h30m"
            )
        return parse_duration(match["length"])

    @property
    def is_anchored(self) -> bool:
        """Its instants do not depend on when it is registered."""
        return self.every is None or self.anchor is not None

    def sources(self, anchor: datetime, timezone: str = "UTC") -> tuple[Source, ...]:
        """Return the expression on the clocks of its zone, or the steps of `@every`."""
        if self.every is not None:
            return (Grid(self.every, self.anchor or anchor),)
        return (ZonedCron(parse_cron(self.expression), require_timezone(self.timezone or timezone)),)

    def describe(self, timezone: str = "UTC") -> str:
        """Return a short text for people."""
        return (
            f"every {format_short(self.every)}" if self.every else f"cron {self.expression} {self.timezone or timezone}"
        )


@dataclass(frozen=True, init=False)
class Every(Timeline):
    """An interval: `Every(timedelta(minutes=30))`, `Every("PT30M")`, `Every("30m")`.

    Anchored by default: it counts from `anchor`, else from its registration. Giving `offset`, also zero, aligns it to
    the epoch instead: `Every("1h", offset="5m")` is five past each UTC hour. `from_completion=True` counts from the
    end of each run, and is then alone in its Spec.
    Evaluated alone and without an anchor, it counts from the instant asked about.
    """

    every: timedelta
    """The step, at least one second."""
    offset: timedelta | None
    """The phase of an aligned interval, under one step; None for an anchored one."""
    anchor: datetime | None
    """Where an anchored interval counts from; None until it is registered."""
    from_completion: bool
    """The step begins when a run ends."""

    def __init__(
        self,
        every: timedelta | str,
        *,
        offset: timedelta | str | None = None,
        anchor: datetime | None = None,
        from_completion: bool = False,
    ) -> None:
        object.__setattr__(self, "every", require_interval(every))
        phase = offset if offset is None or isinstance(offset, timedelta) else parse_span(offset)
        object.__setattr__(self, "offset", phase)
        object.__setattr__(self, "anchor", None if anchor is None else require_utc(anchor, "anchor"))
        object.__setattr__(self, "from_completion", from_completion)
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
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
        """Its instants do not depend on when it is registered."""
        return self.offset is not None or self.anchor is not None or self.from_completion

    def sources(self, anchor: datetime, timezone: str = "UTC") -> tuple[Source, ...]:
        """Return the steps; a timezone does not matter to them."""
        del timezone
        return (Grid(self.every, self.anchor or anchor if self.offset is None else _EPOCH + self.offset),)

    def describe(self, timezone: str = "UTC") -> str:
        """Return a short text for people."""
        del timezone
        phase = f" offset {format_short(self.offset)}" if self.offset else ""
        return f"every {format_short(self.every)}{phase}{' after completion' if self.from_completion else ''}"


@dataclass(frozen=True)
class Once(Timeline):
    """One instant, aware. `Once(datetime(2026, 1, 1, tzinfo=UTC))`."""

    instant: datetime
    """When, in UTC whatever zone it was given in."""
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


Member: TypeAlias = Cron | Every | Once
"""One part of a Spec."""


def is_plain(cron: Cron) -> bool:
    """Return whether the text alone says all: no timezone and no anchor of its own."""
    return cron.timezone is None and cron.anchor is None


def is_from_completion(member: Member) -> bool:
    """Return whether the member counts from the end of each run."""
    return isinstance(member, Every) and member.from_completion


def anchored(member: Member, anchor: datetime) -> Member:
    """Return the member counting from `anchor` if it waits for one, else the member itself."""
    return member if isinstance(member, Once) or member.is_anchored else replace(member, anchor=anchor)


def iso_text(at: datetime) -> str:
    """Return ISO 8601 with Z, and microseconds only when there are some."""
    return at.isoformat().replace("+00:00", "Z")


def require_member(value: Member | str | timedelta) -> Member:
    """Return the member that `value` stands for: cron text, an interval, or a member itself."""
    if isinstance(value, (Cron, Every, Once)):
        return value
    if isinstance(value, timedelta):
        return Every(value)
    if isinstance(value, str):
        return Cron(value)
    raise InvalidSpecError("spec", f"{type(value).__name__} is not part of a spec; give Cron, Every or Once")
