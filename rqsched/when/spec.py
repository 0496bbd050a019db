"""Specs: values that say when a schedule fires.

A `Spec` is any mixture of members with a timezone, a start and an end. It is frozen and comparable, and a round trip
through JSON does not change it. The JSON has the form of a spec in the Durable Workflow document. This file reads no
clock: `Spec.anchored_at` takes the instant of the registration. A nominal instant is an instant that the members name.
If it is excluded, it may move to another day (`on_excluded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar, cast

from rqsched.errors import InvalidCronError, InvalidDurationError, InvalidSpecError, NewerReleaseError
from rqsched.when.calendars import Calendar, require_name
from rqsched.when.cron import ClockChoice, Gap
from rqsched.when.duration import format_duration
from rqsched.when.exclusion import ExcludeLike, Exclusion, exclusion_of, is_name, require_exclusions
from rqsched.when.members import (
    After,
    Cron,
    Every,
    Member,
    MemberLike,
    Once,
    anchored,
    has_one_time,
    is_from_completion,
    is_plain,
    iso_text,
    parse_instant,
    require_member,
)
from rqsched.when.moved import ON_EXCLUDED, Moved, at_time_of, on_every_day, require_on_excluded, require_whole_days
from rqsched.when.places import placed
from rqsched.when.timeline import Source, Timeline, ZonedCron, just_before, named_beside, require_utc
from rqsched.when.zones import require_choice, require_timezone

__all__ = ["After", "Cron", "Every", "Gap", "Member", "Once", "Spec", "SpecLike"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK, _LAST = timedelta(microseconds=1), datetime.max.replace(tzinfo=UTC)
_MOST_GAPS = 1000
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, init=False)
class Spec(Timeline):
    """Any mixture of members, in a timezone, from `start_at` (inclusive) to `end_at` (exclusive).

    >>> spec = Spec([Cron("0 12 * * *"), Every("6h", offset="0s")], timezone="America/Chicago")
    >>> spec.next_after(datetime(2026, 1, 1, 1, tzinfo=UTC))
    datetime.datetime(2026, 1, 1, 6, 0, tzinfo=datetime.timezone.utc)

    An instant that several members yield is one occurrence. Members are sorted: crons, intervals, instants.
    """

    members: tuple[Member, ...]
    """The parts that yield the occurrences, at least one."""
    timezone: str
    """The zone of the Cron members that name no zone."""
    start_at: datetime | None
    """The first instant that may be an occurrence; None sets no limit."""
    end_at: datetime | None
    """No occurrence is at or after this instant; None sets no limit."""
    exclude: tuple[str, ...]
    """The excluded times: dates, ranges of dates and weekly windows, read in `timezone`, and names of calendars. A spec
    that names a calendar can be evaluated only with the calendar's contents (`with_calendars`)."""
    dst_gap: str | None
    """The rule for a local time that the clock leaves out: shift it by the change (`shift`), or do not fire (`skip`).
    None means `shift`."""
    dst_fold: str | None
    """The rule for a local time that the clock shows twice: fire the `first` time, or `both` times. None means
    `first`."""
    on_excluded: str
    """The rule for an occurrence on an excluded day: it does not happen (`skip`), or it happens on the `next` or the
    `previous` day that is not excluded, at the same local time."""
    newer: str
    """The part of a stored spec that this release does not know; else empty. This release shows such a spec, but never
    evaluates or writes it."""
    settled = frozenset[datetime]()
    """Nominal instants whose outcome is already recorded. They yield no occurrence any more."""
    contents: tuple[Calendar, ...] = field(init=False, repr=False, compare=False, default=())
    """The calendars that `with_calendars` has given: all or some of the named calendars."""
    names_timezone: bool = field(init=False, repr=False, compare=False)
    """Whether the caller gave a timezone. If not, `timezone` is UTC, and a new schedule gets the project's timezone."""

    def __init__(
        self,
        members: MemberLike | Iterable[MemberLike],
        timezone: str | None = None,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        exclude: ExcludeLike = (),
        dst_gap: str | None = None,
        dst_fold: str | None = None,
        on_excluded: str | None = None,
        newer: str = "",
    ) -> None:
        object.__setattr__(self, "dst_gap", require_choice("dst_gap", dst_gap))
        object.__setattr__(self, "dst_fold", require_choice("dst_fold", dst_fold))
        object.__setattr__(self, "on_excluded", require_on_excluded(on_excluded))
        object.__setattr__(self, "newer", newer)
        object.__setattr__(self, "members", () if newer and not members else _ordered(members))
        object.__setattr__(self, "names_timezone", timezone is not None)
        object.__setattr__(self, "timezone", "UTC" if timezone is None else timezone)
        object.__setattr__(self, "start_at", None if start_at is None else require_utc(start_at, "start_at"))
        object.__setattr__(self, "end_at", None if end_at is None else require_utc(end_at, "end_at"))
        object.__setattr__(self, "exclude", require_exclusions(exclude))
        zone = require_timezone(self.timezone)
        if own := self._own_exclude:
            self._exclude_by(exclusion_of(own, zone))
        if self.start_at and self.end_at and self.start_at >= self.end_at:
            raise InvalidSpecError("end_at", "must be after start_at, or nothing would ever happen")
        if any(is_from_completion(member) for member in self.members) and len(self.members) > 1:
            raise InvalidSpecError("from_completion", "must be the only member of its spec; remove the others")
        if self.on_excluded != ON_EXCLUDED[0]:
            self._require_movable()
        if any(isinstance(member, After) for member in self.members):
            self._require_alone()

    def _require_alone(self) -> None:
        """Check that an After is the only member and that no other field is set; raises InvalidSpecError."""
        if len(self.members) > 1:
            raise InvalidSpecError("after", "must be the only member; put the other times into another schedule")
        said: dict[str, object] = {"timezone": self.timezone != "UTC", "start_at": self.start_at, "end_at": self.end_at}
        said |= {"exclude": self.exclude, "dst_gap": self.dst_gap, "dst_fold": self.dst_fold}
        for name, value in said.items():
            if value:
                told = "does not apply, because a schedule that comes after another has no times of its own; remove it"
                raise InvalidSpecError(name, told)

    def _exclude_by(self, exclusion: Exclusion) -> None:
        object.__setattr__(self, "exclusion", exclusion)
        object.__setattr__(self, "is_moving", self.on_excluded != ON_EXCLUDED[0])

    def _require_movable(self) -> None:
        """Check that all its members can be moved; raises InvalidSpecError, which names the kinds of members to use."""
        for member in self.members:
            if not has_one_time(member):
                what = f"{self.on_excluded!r} moves Once and crons with one time of day, such as '0 9 25 * *'"
                what += f", and {member.describe(self.timezone)!r} is neither"
                raise InvalidSpecError("on_excluded", f"{what}; leave it at 'skip', or split the schedule")
        require_whole_days(self._own_exclude, self.on_excluded)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first instant strictly after `instant`, aware UTC and without jitter, or None.

        Raises InvalidSpecError for a naive `instant`.
        """
        after = require_utc(instant)
        known = self.__dict__.get("_next")
        if known is not None and known[1] is not None and known[0] <= after < known[1] and self._is_fixed:
            return cast(datetime, known[1])
        return self._remembered("_next", after, partial(super().next_after, after))

    @cached_property
    def _is_fixed(self) -> bool:
        """Whether the sources do not depend on the instant that a call gives."""
        return self.is_anchored and not self.is_from_completion

    def _remembered(self, question: str, key: object, answer: Callable[[], _Answer]) -> _Answer:
        """Return the last answer if `key` is the same again; schedules that share a spec are often due together."""
        known = self.__dict__.get(question)
        if known is None or known[0] != key:
            known = self.__dict__[question] = (key, answer())
        return cast(_Answer, known[1])

    def sources(self, anchor: datetime) -> tuple[Source, ...]:
        """Return the sources of all members."""
        return self._sources if self._is_fixed else self._sources_at(anchor)

    @cached_property
    def _sources(self) -> tuple[Source, ...]:
        return self._sources_at(_EPOCH)

    def _sources_at(self, anchor: datetime) -> tuple[Source, ...]:
        self.require_known()
        self.require_calendars()
        found = (source for member in self.members for source in member.sources(anchor, self.timezone))
        choice = ClockChoice(self.is_shifting, self.dst_fold == "both")
        found = (replace(one, choice=choice) if isinstance(one, ZonedCron) else one for one in found)
        return tuple(map(self._moved, found)) if self.is_moving else tuple(found)

    def _moved(self, source: Source) -> Source:
        """Return a source that moves its excluded instants to other days."""
        if self.exclusion is None:
            return source
        zone = source.zone if isinstance(source, ZonedCron) else require_timezone(self.timezone)
        fraction = timedelta(0)
        if isinstance(source, ZonedCron):
            clock_time = on_every_day(source.expression)
            source = named_beside(source, self.exclusion)
        else:
            local = next(source.descending(_LAST)).astimezone(zone)
            clock_time, fraction = at_time_of(local), timedelta(microseconds=local.microsecond)
        settled = frozenset(at for at in self.settled if source.count(at - _TICK, at))
        is_back, is_shift = self.on_excluded == "previous", self.is_shifting
        return Moved(source, clock_time, zone, self.exclusion, is_back, is_shift, fraction, settled)

    def nominal_sources(self, anchor: datetime) -> list[Source]:
        """Return the sources of all members, before excluded instants are moved."""
        return [one.source if isinstance(one, Moved) else one for one in self.sources(anchor)]

    def _moving_sources(self, anchor: datetime) -> list[Moved]:
        return [one for one in self.sources(anchor) if isinstance(one, Moved)] if self.is_moving else []

    def moved_from(self, instant: datetime) -> tuple[datetime, ...]:
        """Return the nominal instants that were moved to an occurrence, in order."""
        return tuple(sorted({at for source in self._moving_sources(instant) for at in source.nominals_of(instant)}))

    def nominals_of(self, instant: datetime) -> tuple[datetime, ...]:
        """Return the nominal instants that an occurrence stands for, in order; empty if none was moved to it."""
        if not (moved_from := self.moved_from(instant)):
            return ()
        is_own = self.is_nominal(instant) and instant not in self.settled
        return tuple(sorted({*moved_from, *([instant] if is_own else [])}))

    @cached_property
    def can_move(self) -> bool:
        """Whether `on_excluded` may move its occurrences: all members are instants or crons with one time of day."""
        return all(map(has_one_time, self.members))

    def early(self, instant: datetime) -> set[datetime]:
        """Return the nominal instants after `instant` that are moved to `instant` or earlier."""
        return {at for source in self._moving_sources(instant) for at in source.early(instant)}

    def late(self, instant: datetime) -> set[datetime]:
        """Return the nominal instants at or before `instant` that are moved to a later time than `instant`."""
        return {at for source in self._moving_sources(instant) for at in source.late(instant)}

    def is_nominal(self, instant: datetime) -> bool:
        """Return whether an instant is nominal: a member names it, even if it is excluded."""
        return any(source.count(instant - _TICK, instant) for source in self.nominal_sources(instant))

    def nominal_in(self, start: datetime, end: datetime) -> datetime | None:
        """Return the first nominal instant in [start, end), excluded or not; None if there is none."""
        if self.is_from_completion:
            return None
        found = [next(source.ascending(start - _TICK), end) for source in self.nominal_sources(start)]
        return min(found) if min(found) < end else None

    def moved_to(self, nominal: datetime) -> datetime | None:
        """Return the instant at which a nominal instant happens, after any move; None if it never happens."""
        if not self.is_moving:
            return nominal if self.names(nominal) else None
        sources = self._moving_sources(nominal)
        found = (one.target(nominal) for one in sources if one.count_nominals(nominal - _TICK, nominal))
        return next((at for at in found if at is not None and self.admits(at)), None)

    def require_known(self) -> None:
        """Check that this release knows the whole spec; raises NewerReleaseError."""
        if self.newer:
            raise NewerReleaseError(self.newer)

    @cached_property
    def calendars(self) -> tuple[str, ...]:
        """The names of the calendars that it excludes."""
        return tuple(filter(is_name, self.exclude))

    @property
    def _own_exclude(self) -> tuple[str, ...]:
        return tuple(text for text in self.exclude if not is_name(text))

    @property
    def is_shifting(self) -> bool:
        """Whether a local time that the clock leaves out fires later, shifted by the change."""
        return self.dst_gap != "skip"

    def with_clocks(self, dst_gap: str | None, dst_fold: str | None) -> Spec:
        """Return the spec with these two rules for clock changes."""
        if (dst_gap, dst_fold) == (self.dst_gap, self.dst_fold):
            return self
        said = {"dst_gap": dst_gap, "dst_fold": dst_fold}
        return self._remembered("_with_clocks", (dst_gap, dst_fold), partial(replace, self, **said))

    def with_calendars(self, calendars: Iterable[Calendar]) -> Spec:
        """Return an equal spec that also excludes the contents of the calendars that it names.

        If one of them is missing from `calendars`, an evaluation raises InvalidSpecError (`missing_calendars`).
        """
        if not self.calendars or self.newer:
            return self
        named = {one.name: one for one in calendars}
        contents = tuple(named[name] for name in self.calendars if name in named)
        texts = self._own_exclude + tuple(text for one in contents for text in one.exclude)
        found = replace(self)
        for name, value in (("contents", contents), ("settled", self.settled), ("left_out", self.left_out)):
            object.__setattr__(found, name, value)
        if texts:
            found._exclude_by(exclusion_of(texts, require_timezone(self.timezone)))
        return found

    @property
    def missing_calendars(self) -> list[str]:
        """The names of the excluded calendars whose contents are missing."""
        known = {one.name for one in self.contents}
        return [name for name in self.calendars if name not in known]

    @property
    def is_known(self) -> bool:
        """Whether it can be evaluated: this release knows all of it, and the contents of its calendars are present."""
        return not self.newer and len(self.contents) == len(self.calendars)

    def require_whole_days(self) -> None:
        """If excluded occurrences move, check that its calendars hold only whole days; raises InvalidSpecError."""
        if self.on_excluded != ON_EXCLUDED[0]:
            for one in self.contents:
                require_whole_days(one.exclude, self.on_excluded)

    def require_calendars(self) -> None:
        """Check that it has the contents of the calendars that it names; raises InvalidSpecError."""
        if missing := self.missing_calendars:
            raise InvalidSpecError(
                "exclude",
                f"names the calendar {missing[0]!r}, which does not exist; create it, or exclude something else. For "
                "a Spec in your own code, give its calendars to Spec.with_calendars",
            )

    def free_after(self, nominal: datetime) -> timedelta | None:
        """Return the time from an occurrence to the next occurrence, excluded stretch or end of the spec.

        Return None if none of these follows.
        """
        following = self.next_after(nominal)
        stretch = None if self.exclusion is None else self.exclusion.stretch_after(nominal)
        ends = [at for at in (following, stretch and stretch.start, self.end_at) if at is not None]
        return min(ends) - nominal if ends else None

    def excluded_by(self, instant: datetime) -> str | None:
        """Return the first entry of `exclude` that excludes an instant, or None.

        If a calendar excludes it, return the name of the calendar and its entry as `name: entry`.
        """
        zone = require_timezone(self.timezone)
        held = {one.name: one.exclude for one in self.contents}
        for text in self.exclude:
            entries = held.get(text, (text,))
            if exclusion_of(entries, zone).holds(instant):
                found = next((one for one in entries if exclusion_of((one,), zone).holds(instant)), text)
                return f"{text}: {found}" if text in held else found
        return None

    def is_all_excluded_after(self, instant: datetime) -> bool:
        """Return whether it has later occurrences, but all of them in the next ten years are excluded."""
        if not self.exclude or self.next_after(instant) is not None:
            return False
        plain = replace(self, exclude=()).settled_at(self.settled | self.early(instant))
        return plain.next_after(instant) is not None

    def names(self, instant: datetime) -> bool:
        """Return whether an aware UTC instant is an occurrence."""
        return next(self._ascending(just_before(instant), anchor=instant), None) == instant

    def without(self, instants: Iterable[datetime]) -> Spec:
        """Return an equal spec that leaves these instants out."""
        if self.newer:
            return self
        fewer = self._with()
        object.__setattr__(fewer, "settled", self.settled)
        left_out = frozenset(at for at in instants if self.names(at))
        object.__setattr__(fewer, "left_out", left_out | self.left_out)
        return fewer

    def settled_at(self, nominals: Iterable[datetime]) -> Spec:
        """Return an equal spec without the occurrences that stand only for these nominal instants."""
        if self.newer:
            return self
        fewer = self._with()
        object.__setattr__(fewer, "settled", frozenset(nominals))
        return fewer if fewer.is_moving else fewer.without(fewer.settled)

    @cached_property
    def is_anchored(self) -> bool:
        """Whether every member is anchored, so that no member needs the instant of the registration."""
        return all(member.is_anchored for member in self.members)

    @cached_property
    def has_places(self) -> bool:
        """Whether a cron has an `H`."""
        return any(isinstance(member, Cron) and member.has_place for member in self.members)

    def placed_for(self, namespace: str, schedule_id: str) -> Spec:
        """Return the spec with a number for each `H`, computed from a schedule's namespace and id.

        A schedule that is deleted and created again gets the same numbers. Raises InvalidCronError if an expression
        never fires with its numbers.
        """
        if not self.has_places:
            return self
        salt = f"{namespace}/{schedule_id}"
        placing = (
            replace(one, numbers=placed(one.expression, salt), seconds="first")
            if isinstance(one, Cron) and one.has_place
            else one
            for one in self.members
        )
        return self._with(members=tuple(placing))

    def in_numbers(self) -> Spec:
        """Return the spec with its numbers written instead of `H`, for systems that do not know `H`."""
        if not self.has_places:
            return self
        plain = (
            replace(one, expression=one.numbers, numbers=None, seconds="first")
            if isinstance(one, Cron) and one.numbers is not None
            else one
            for one in self.members
        )
        return self._with(members=tuple(plain))

    def anchored_at(self, instant: datetime) -> Spec:
        """Return the spec with `instant` as the anchor of each member that still needs an anchor."""
        if self.is_anchored:
            return self
        anchor = require_utc(instant, "anchor")
        return self._with(members=tuple(anchored(member, anchor) for member in self.members))

    def anchored_like(self, registered: Spec) -> Spec:
        """Return `registered` if this spec equals it except for missing anchors, else this spec unchanged."""
        anchors = {member.anchor for member in registered.members if isinstance(member, Cron | Every) and member.anchor}
        return registered if any(self.anchored_at(anchor) == registered for anchor in anchors) else self

    @cached_property
    def is_from_completion(self) -> bool:
        """Whether the time of each occurrence is measured from the end of the previous run."""
        return any(is_from_completion(member) for member in self.members)

    @cached_property
    def after(self) -> After | None:
        """The After member, which names the upstream and its ends; None for a spec with its own times."""
        first = self.members[0] if self.members else None
        return first if isinstance(first, After) else None

    @cached_property
    def primary_cron(self) -> str | None:
        """The first cron expression, with numbers for `H`; None without a cron."""
        return next((member.plain for member in self.members if isinstance(member, Cron)), None)

    def gaps_between(self, after: datetime, until: datetime, limit: int = _MOST_GAPS) -> list[Gap]:
        """Return the first `limit` local times in (after, until] that the crons name but a clock change leaves out.

        With `dst_gap="shift"` each of them fires at its `occurrence_at`; another occurrence may be at the same instant.
        They are sorted by instant. The call takes only microseconds if the zones have no clock change in the range.
        """
        span = (max(require_utc(after), self._opens_after), require_utc(until), limit)
        return [*self._remembered("_gaps", span, partial(self._gaps_between, *span))]

    def _gaps_between(self, after: datetime, until: datetime, limit: int) -> list[Gap]:
        crons = [source for source in self.nominal_sources(after) if isinstance(source, ZonedCron)]
        gaps = set[Gap]()
        for cron in crons:
            named = cron.expression.gaps(after, until, cron.zone)
            gaps.update(islice((gap for gap in named if not self._excludes_gap(cron, gap)), limit))
        return sorted(gap for gap in gaps if self.end_at is None or gap.occurrence_at < self.end_at)[:limit]

    def _excludes_gap(self, cron: ZonedCron, gap: Gap) -> bool:
        """Return whether a left-out local time is on an excluded day, which overrides the clock-change rules."""
        if self.exclusion is None:
            return False
        is_on_day = cron.zone is self.exclusion.zone and self.exclusion.takes_day(gap.reading.date())
        is_held = self.exclusion.holds(gap.occurrence_at)
        return (is_on_day and (is_held or not self.is_moving)) or (is_held and self.is_shifting)

    def describe(self) -> str:
        """Return a short text for people: `cron 0 2 * * * America/New_York; every 30m`."""
        window = "".join(f" {w} {iso_text(at)}" for w, at in (("from", self.start_at), ("until", self.end_at)) if at)
        excluded = f" except {', '.join(self.exclude)}" if self.exclude else ""
        moved = f", then on the {self.on_excluded} other day" if self.is_moving else ""
        parts = [member.describe(self.timezone) for member in self.members]
        newer = [f"of a newer release ({self.newer})"] if self.newer else []
        return "; ".join([*parts, *newer]) + window + excluded + moved

    @classmethod
    def coerce(cls, value: SpecLike, timezone: str | None = None) -> Spec:
        """Return the Spec that `value` stands for; see SpecLike.

        `timezone` applies if `value` names no timezone. Raises InvalidSpecError if `value` is a Spec with another
        timezone.
        """
        if isinstance(value, Mapping):
            value = cls.from_json(value)
        if isinstance(value, Spec):
            return value._in_timezone(timezone)
        if isinstance(value, Cron) and value.every is None and timezone is None and value.timezone:
            return cls([replace(value, timezone=None, seconds="first")], value.timezone)
        return cls(value, timezone or None)

    def _in_timezone(self, timezone: str | None) -> Spec:
        if timezone is None or timezone == self.timezone:
            return self
        if self.timezone != "UTC":
            raise InvalidSpecError("timezone", f"{timezone!r} contradicts {self.timezone!r} of the spec; give one")
        return self._with(timezone=timezone)

    def _with(self, **changes: Any) -> Spec:
        """Return the spec with some fields changed and with the same contents of calendars."""
        return replace(self, **changes).with_calendars(self.contents)

    def to_json(self) -> dict[str, Any]:
        """Return the durable-workflow spec form, from which `Spec.from_json` makes an equal spec.

        These keys are added to that form: `crons` (objects) for crons with a timezone, an anchor or an `H`; `instants`;
        `after`; the `anchor` of an interval, null before the registration; and `calendars`, the names of excluded
        calendars. An older release does not evaluate a spec with a key that it does not know. Raises NewerReleaseError
        if this release does not know a part of the spec.
        """
        self.require_known()
        if self.after is not None:
            return {"after": {"schedule": self.after.schedule_id, "on": self.after.on}}
        crons = [member for member in self.members if isinstance(member, Cron)]
        form: dict[str, Any] = {
            "cron_expressions": [cron.expression for cron in crons if is_plain(cron)],
            "crons": [_cron_to_json(cron) for cron in crons if not is_plain(cron)],
            "intervals": [_interval_to_json(member) for member in self.members if isinstance(member, Every)],
            "instants": [iso_text(member.instant) for member in self.members if isinstance(member, Once)],
            "timezone": self.timezone,
            "start_at": self.start_at and iso_text(self.start_at),
            "end_at": self.end_at and iso_text(self.end_at),
            "exclude": list(self._own_exclude),
            "calendars": list(self.calendars),
            "dst_gap": self.dst_gap,
            "dst_fold": self.dst_fold,
            "on_excluded": None if self.on_excluded == ON_EXCLUDED[0] else self.on_excluded,
        }
        return {key: value for key, value in form.items() if value}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Spec:
        """Return the Spec of a durable-workflow spec form. An interval with `every` alone is aligned to the epoch.

        Raises InvalidSpecError for unknown keys and wrong types.
        """
        form = _known(form, "spec", _SPEC_KEYS)
        members: list[Member] = [Cron(text, seconds="first") for text in _list(form, "cron_expressions")]
        members += [_cron_from_json(cron) for cron in _list(form, "crons")]
        members += [_interval_from_json(interval) for interval in _list(form, "intervals")]
        members += [Once(parse_instant(at, "instants")) for at in _list(form, "instants")]
        members += [_after_from_json(form["after"])] if form.get("after") is not None else []
        start_at, end_at = (form.get(key) and parse_instant(form[key], key) for key in ("start_at", "end_at"))
        others = form.get("dst_gap"), form.get("dst_fold"), form.get("on_excluded")
        exclude = [*_list(form, "exclude"), *map(require_name, _list(form, "calendars"))]
        return cls(members, form.get("timezone") or None, start_at, end_at, exclude, *others)

    @classmethod
    def from_stored(cls, form: Mapping[str, Any]) -> Spec:
        """Return the Spec of a form that this or a newer release wrote. Its `newer` names an unknown part."""
        try:
            return cls.from_json(form)
        except InvalidSpecError as error:
            if not form:  # no release writes an empty form
                raise
            return cls._of_newer_release(form, str(error).partition(";")[0])

    @classmethod
    def _of_newer_release(cls, form: Mapping[str, Any], newer: str) -> Spec:
        lists = {"crons": _CRON_KEYS, "intervals": _INTERVAL_KEYS}
        if "after" in form:  # such a spec has no times of its own, whatever else the form contains
            return cls((), newer=newer)
        known = {key: value for key, value in form.items() if key in _SPEC_KEYS}
        try:
            for name in lists.keys() & known.keys():
                known[name] = [{key: one[key] for key in lists[name] if key in one} for one in known[name]]
            return replace(cls.from_json(known), newer=newer)
        except (InvalidSpecError, TypeError):
            return cls((), newer=newer)


SpecLike: TypeAlias = Spec | MemberLike | Mapping[str, Any] | Iterable[MemberLike]
"""The forms of a spec that `Spec.coerce` takes: a Spec, a MemberLike, several of these, or the JSON form."""


_CRON_KEYS = ("expression", "timezone", "anchor", "seconds", "written")
_INTERVAL_KEYS = ("every", "offset", "anchor", "from_completion")
_SPEC_KEYS = (
    "cron_expressions", "crons", "intervals", "instants", "timezone", "start_at", "end_at", "exclude", "calendars",
    "dst_gap", "dst_fold", "on_excluded", "after",
)  # fmt: skip
_AFTER_KEYS = ("schedule", "on")


def _ordered(members: MemberLike | Iterable[MemberLike]) -> tuple[Member, ...]:
    given = [members] if isinstance(members, (str, timedelta, datetime, Timeline)) else members
    if not isinstance(given, Iterable):
        raise InvalidSpecError(
            "spec", f"{type(given).__name__} is not part of a spec; give Cron, Every, Once, After or a list of them"
        )
    distinct = dict.fromkeys(require_member(member) for member in given)
    if not distinct:
        raise InvalidSpecError(
            "spec", "is empty, so nothing would ever happen; give at least one Cron, Every, Once or After"
        )
    return tuple(sorted(distinct, key=_rank))


def _rank(member: Member) -> int:
    """Return the position of a member's kind in the JSON form. A round trip does not change members in this order."""
    if isinstance(member, Cron):
        return 0 if is_plain(member) else 1
    return 2 if isinstance(member, Every) else 3 if isinstance(member, Once) else 4


def require_no_place(spec: Spec) -> Spec:
    """Return the spec if no cron has an `H`; raises InvalidCronError otherwise."""
    if spec.has_places:
        raise InvalidCronError("cron", "H is refused here; name the value")
    return spec


def _known(form: object, field: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(form, Mapping):
        raise InvalidSpecError(field, f"{type(form).__name__} is not an object; write one with {', '.join(keys)}")
    if unknown := [str(key) for key in form if key not in keys]:
        raise InvalidSpecError(field, f"unknown key {unknown[0]!r}; the keys are {', '.join(keys)}")
    return form


def _list(form: Mapping[str, Any], key: str) -> list[Any]:
    value = form.get(key)
    if value is not None and not isinstance(value, (list, tuple)):
        raise InvalidSpecError(key, f"{type(value).__name__} is not a list; write [...]")
    return list(value or ())


def _cron_to_json(cron: Cron) -> dict[str, str]:
    anchor = iso_text(cron.anchor) if cron.anchor else None
    # `expression` holds the numbers, so that a reader that does not know `H` can use it.
    written = None if cron.numbers is None else cron.expression
    form = {"expression": cron.plain, "timezone": cron.timezone, "anchor": anchor, "written": written}
    return {key: value for key, value in form.items() if value is not None}


def _cron_from_json(form: object) -> Cron:
    given = _known(form, "crons", _CRON_KEYS)
    anchor = given.get("anchor")
    at = anchor and parse_instant(anchor, "anchor")
    expression, written = given.get("expression", ""), given.get("written")
    numbers = None if written is None else expression
    return Cron(written or expression, given.get("timezone"), at, given.get("seconds") or "first", numbers)


def _after_from_json(form: object) -> After:
    given = _known(form, "after", _AFTER_KEYS)
    return After(given.get("schedule", ""), given.get("on") or "success")


def _interval_to_json(interval: Every) -> dict[str, Any]:
    form: dict[str, Any] = {"every": format_duration(interval.every)}
    if interval.offset:
        return form | {"offset": format_duration(interval.offset)}
    if interval.from_completion:
        return form | {"from_completion": True}
    return form if interval.offset is not None else form | {"anchor": interval.anchor and iso_text(interval.anchor)}


def _interval_from_json(form: object) -> Every:
    """Read an interval. With `every` alone it is aligned, as in the durable-workflow form. With an `anchor`, even null,
    it is anchored.
    """
    given = _known(form, "intervals", _INTERVAL_KEYS)
    anchor, offset, from_completion = given.get("anchor"), given.get("offset"), given.get("from_completion", False)
    if not all(isinstance(length, str) for length in (given.get("every"), offset) if length is not None):
        raise InvalidDurationError("intervals", "a length must be text in this form, such as PT30M or 30m")
    is_aligned = offset is None and "anchor" not in given and not from_completion
    return Every(
        given.get("every", ""),
        offset=timedelta(0) if is_aligned else offset,
        anchor=anchor and parse_instant(anchor, "anchor"),
        from_completion=from_completion,
    )
