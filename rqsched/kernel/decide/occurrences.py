"""Occurrences: when each is due, which passed occurrences fire now, and the record of the others. Pure.

Every search for times takes at most MOST_STEPS steps (`answered`), because the row is locked meanwhile. Missed
occurrences are counted by arithmetic if the spec allows it. Otherwise they are enumerated, up to 1 000 or until the
steps are used up; if the count is incomplete, its event has `count_capped`. If the steps do not reach the next time of
a schedule, the schedule stays active without a next time, and each pass of reconcile searches again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice, pairwise, takewhile
from typing import NamedTuple

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.delays import jittered, later, spread_out
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import Occurrence, Schedule, Skips, dump_skips
from rqsched.kernel.decide.moves import evaluate_to
from rqsched.kernel.decide.policy import MissedPolicy
from rqsched.kernel.decide.reasons import SkipReason
from rqsched.when.spec import Spec
from rqsched.when.steps import answered, first_of
from rqsched.when.timeline import Count, Excluded

COUNT_CAP = 1_000
"""The maximum number of missed occurrences that are counted by enumeration."""
LONGEST_SKEW = timedelta(hours=1)
"""The maximum difference between the clocks of two processes. If a schedule was evaluated further than this ahead of
this clock, the clock of the other process was wrong."""
_UNCOUNTED = "uncounted"
"""Returned in place of a count that takes too many steps."""
TICK = timedelta(microseconds=1)
"""The smallest difference between two instants."""


def next_occurrence(schedule: Schedule, after: datetime) -> Occurrence | None:
    """Compute the next occurrence strictly after an instant, with its delay.

    Returns None if the spec is over, or if MOST_STEPS steps do not find the next occurrence.
    """
    nominal = answered(schedule.timeline.next_after, after, otherwise=None)
    if nominal is None:
        return None
    spec = schedule.spec
    return Occurrence(nominal, due_of(schedule, nominal), spec.nominals_of(nominal) if spec.is_moving else ())


def occurrence_at(schedule: Schedule, nominal: datetime) -> Occurrence:
    """Return an occurrence with its delay, and the nominal instants that it stands for."""
    return Occurrence(nominal, due_of(schedule, nominal), schedule.spec.nominals_of(nominal))


def planned_from(schedule: Schedule, now: datetime) -> datetime:
    """Return the instant after which an owner's operation plans: now, or the last evaluated instant if that is later.

    A process whose clock is ahead may have evaluated an active schedule, or changed its timing, beyond now. Planning
    from now could then fire an occurrence a second time. If the instant is more than LONGEST_SKEW ahead, the clock was
    wrong, and the schedule is planned from now.
    """
    settled = (schedule.evaluated_to, *([schedule.timing_changed_at] if schedule.is_active else []))
    return max([now, *(one for one in settled if one - now <= LONGEST_SKEW)])


def due_of(schedule: Schedule, nominal: datetime) -> datetime:
    """Compute when an occurrence fires: its nominal time plus its shares of spread and jitter."""
    if not longest_delay(schedule):
        return nominal
    # If the search for the gap takes too many steps, assume a gap of zero. Then nothing delays the fire past the next
    # one.
    return due_within(schedule, nominal, answered(schedule.spec.free_after, nominal, otherwise=timedelta(0)))


def due_times(schedule: Schedule, nominals: Iterator[datetime]) -> Iterator[datetime]:
    """Compute when each of many successive occurrences fires."""
    spec = schedule.spec
    if not longest_delay(schedule):
        yield from nominals
    elif spec.exclusion is not None or schedule.skips is not None:
        yield from (due_of(schedule, nominal) for nominal in nominals)
    else:  # the next occurrence is known here; `due_of` would search for it
        for nominal, following in pairwise(chain(nominals, (None,))):
            ends = [at for at in (following, spec.end_at) if at is not None]
            if nominal is not None:
                yield due_within(schedule, nominal, min(ends) - nominal if ends else None)


def longest_delay(schedule: Schedule) -> timedelta:
    """Return the longest possible delay of a fire after its nominal time."""
    return schedule.definition.jitter + schedule.policies.spread


def due_within(schedule: Schedule, nominal: datetime, gap: timedelta | None) -> datetime:
    """Compute when an occurrence fires, within `gap` after its nominal time; a gap of None is unlimited.

    The delay by spread comes first. The delay by jitter fits into the rest of the gap.
    """
    offset = spread_out((schedule.namespace, schedule.schedule_id), schedule.policies.spread, gap)
    at = jittered(schedule.uid, nominal, schedule.definition.jitter, None if gap is None else gap - offset)
    return later(at, offset)


def stored_due_of(schedule: Schedule, nominal: datetime) -> datetime:
    """Return the due time of an occurrence. It is stored for the schedule's next occurrence, else computed.

    After a failed fire, the stored due time is the time of the next try, so the due time is computed.
    """
    is_stored = nominal == schedule.next_run_at and not schedule.fire_failures
    return schedule.due_at if is_stored and schedule.due_at is not None else due_of(schedule, nominal)


@dataclass(frozen=True, slots=True)
class Missed:
    """Occurrences that get no run."""

    count: int
    """The number of occurrences."""
    is_capped: bool
    """Whether the counting stopped early, so that the true number is at least `count`."""
    first: datetime
    """The nominal time of the oldest missed occurrence."""
    last: datetime
    """The nominal time of the newest passed occurrence, which may have fired."""


class Upstream(NamedTuple):
    """A run of an upstream schedule. After its end, a run of the downstream schedule starts."""

    run_uid: str
    """The uid of the run."""
    schedule_id: str | None = None
    """The id of the upstream schedule; None if it is not known any more."""


def missed_end(schedule: Schedule) -> tuple[datetime, Upstream] | None:
    """Return the end time of the last upstream run that ended during a pause, and this run; None without one.

    If the timing was changed since, the schedule may have another upstream now. Then the id of the upstream is None.
    """
    uid, at = schedule.missed_run_uid, schedule.paused_next_run_at
    if uid is None or at is None:
        return None
    return at, Upstream(uid, schedule.upstream_id if at > schedule.timing_changed_at else None)


class DueOccurrences(NamedTuple):
    """The passed occurrences of one schedule, classified."""

    fires: tuple[datetime, ...]
    """Nominal times to fire now, oldest first."""
    missed: Missed | None
    """The occurrences that are counted as missed instead; None when all fire."""
    last: datetime
    """The newest passed occurrence. After the fire, every occurrence up to it has its outcome."""
    upcoming: Occurrence | None = None
    """The next occurrence, if it is already known."""


def classify_due(schedule: Schedule, now: datetime, *, missed: MissedPolicy | None = None) -> DueOccurrences:
    """Classify the occurrences from the schedule's stored next time (which must be due) up to now.

    After a change of timing, the stored time may be no occurrence of the new timing. Occurrences of the new timing
    count from the change on. `missed` replaces the policy of the schedule: it fires the oldest occurrence or all,
    however late.
    """
    stored = schedule.next_run_at
    if stored is None:
        raise ValueError("a schedule without a next time has no due occurrence")
    since = max(stored, schedule.timing_changed_at)
    following = None if schedule.spec.is_from_completion else next_occurrence(schedule, since)
    if following is None or following.due_at > now:
        if missed is not None or _is_fresh(schedule, stored, now):
            return DueOccurrences((stored,), None, stored, following)
        return DueOccurrences((), Missed(1, False, stored, stored), stored, following)
    passed = _Passed(stored, since, _last_due(schedule, since, following.nominal_at, now))
    beyond, capped = _count(schedule.timeline, since, passed.last)
    fires = _choose(schedule, passed, now) if missed is None else _newest(schedule, passed)
    fires = (stored,) if missed is MissedPolicy.FIRE_ONCE else fires
    rest = max(beyond + 1 - len(fires), int(capped))
    first = following.nominal_at if stored in fires else stored
    return DueOccurrences(fires, Missed(rest, capped, first, passed.last) if rest > 0 else None, passed.last)


def _last_due(schedule: Schedule, since: datetime, first: datetime, now: datetime) -> datetime:
    """Return the newest occurrence after `since` that is due by now. `first` is the oldest such occurrence.

    The search goes back from `now`. In a long excluded range it may take too many steps. Then a second search goes
    forward from `first` as far as the steps reach, and the next fire handles the later occurrences.
    """
    timeline, last = schedule.timeline, first

    def walk() -> None:
        nonlocal last
        for at in takewhile(lambda at: due_of(schedule, at) <= now, timeline.between(first, later(now, TICK))):
            last = at

    newest = answered(timeline.last_between, since, now, 2, otherwise=None)
    if newest is not None:
        return next(nominal for nominal in reversed(newest) if due_of(schedule, nominal) <= now)
    answered(walk, otherwise=None)
    return last


def _count(timeline: Spec, since: datetime, until: datetime) -> Count:
    """Count the occurrences in (since, until]: all by arithmetic, or up to COUNT_CAP, or as far as MOST_STEPS reach."""
    count = answered(timeline.count_between, since, until, COUNT_CAP, otherwise=None)
    if count is not None:
        return count
    total, _, _ = _walked(timeline.between(later(since, TICK), later(until, TICK)))
    return Count(max(total, 1), is_capped=True)


def _walked(instants: Iterator[datetime]) -> tuple[int, datetime | None, datetime | None]:
    """Read up to COUNT_CAP instants, or as many as MOST_STEPS reach. Return their number, the first and the last."""
    found = first_of(islice(instants, COUNT_CAP))
    return len(found), found[0] if found else None, found[-1] if found else None


class _Passed(NamedTuple):
    """The passed occurrences: the stored next time, and the occurrences of the timing in (since, last]."""

    stored: datetime
    since: datetime
    last: datetime


def _choose(schedule: Schedule, passed: _Passed, now: datetime) -> tuple[datetime, ...]:
    policies = schedule.policies
    if policies.missed is MissedPolicy.ALL:
        return tuple(nominal for nominal in _newest(schedule, passed) if _is_fresh(schedule, nominal, now))
    if policies.missed is MissedPolicy.SKIP:
        return (passed.last,) if _is_fresh(schedule, passed.last, now) else ()
    if policies.allowed_lateness is None or _is_fresh(schedule, passed.stored, now):
        return (passed.stored,)
    return _oldest_fresh(schedule, passed, now - policies.allowed_lateness)


def _newest(schedule: Schedule, passed: _Passed) -> tuple[datetime, ...]:
    limit = schedule.policies.missed_limit
    newest = first_of(islice(schedule.timeline.backwards(passed.since, passed.last), limit))
    return tuple([passed.stored, *reversed(newest)][-limit:])


def _oldest_fresh(schedule: Schedule, passed: _Passed, edge: datetime) -> tuple[datetime, ...]:
    """Find the oldest occurrence that is due at or after `edge`. With jitter its nominal time may be before `edge`."""
    spec, before = schedule.timeline, max(edge - TICK, passed.since)
    candidates = answered(
        lambda: [*spec.last_between(passed.since, before, 1), spec.next_after(before)], otherwise=[passed.last]
    )
    fresh = (nominal for nominal in candidates if nominal is not None and nominal <= passed.last)
    return next(((nominal,) for nominal in fresh if due_of(schedule, nominal) >= edge), ())


def _is_fresh(schedule: Schedule, nominal: datetime, now: datetime) -> bool:
    lateness = schedule.policies.allowed_lateness
    return lateness is None or now - stored_due_of(schedule, nominal) <= lateness


def record_missed(
    builder: ChangeBuilder, missed: Missed, *, fired: Iterable[datetime], policy: str, upstream: Upstream | None = None
) -> None:
    """Count missed occurrences and record them in one event. The event also lists the occurrences that fire, `fired`.

    A downstream schedule has no occurrences: it counts the upstream runs whose end started nothing. `upstream` is the
    newest of these runs.
    """
    builder.set(missed_count=builder.schedule.missed_count + missed.count)
    builder.record(
        audit.MISSED,
        count=missed.count,
        count_capped=missed.is_capped or None,
        first=missed.first,
        last=missed.last,
        fired=[iso_utc(nominal) for nominal in fired] or None,
        policy=policy,
        upstream_run_id=upstream and upstream.run_uid,
        upstream_schedule_id=upstream and upstream.schedule_id,
    )


def miss_end(builder: ChangeBuilder, end: tuple[datetime, Upstream], policy: str) -> None:
    """Record that no run starts after the upstream run that ended during a pause. `end` is from `missed_end`."""
    at, upstream = end
    record_missed(builder, Missed(1, False, at, at), fired=(), policy=policy, upstream=upstream)


def miss_passed(
    builder: ChangeBuilder, timeline: Spec, *, kept: datetime, policy: str, until: datetime | None = None
) -> None:
    """Count as missed the occurrences of `timeline` from the stored time to `until` (default: now), except `kept`."""
    until = until or builder.now
    schedule = builder.schedule
    stored = schedule.next_run_at
    if stored is None or timeline.is_from_completion or not timeline.is_known:
        return
    since = max(stored, schedule.timing_changed_at)
    count, is_capped = _count(timeline, since, until)
    if not count:
        return
    fired = () if kept == stored else (kept,)
    first = stored if fired else answered(timeline.next_after, since, otherwise=None) or stored
    last = answered(timeline.last_between, since, until, 1, otherwise=[until])[-1]
    missed = Missed(count, is_capped, first, last)
    record_missed(builder, missed, fired=fired, policy=policy)


def write_off(builder: ChangeBuilder, reason: SkipReason) -> None:
    """Record an outcome for due occurrences that will not fire: the first is skipped, the others are missed.

    Here an occurrence is due from its nominal time on, even if jitter delays its fire. Occurrences that this decision
    has evaluated already keep their outcome. If this release does not know the timing, only the stored next time gets
    an outcome.
    """
    schedule = builder.schedule
    if not schedule.is_active:
        return
    leave_out(builder, builder.now)
    if schedule.skips is not None:
        record_skips(builder, builder.now)
    first = _first_without_outcome(schedule)
    if first is not None and first <= builder.now:
        builder.set(next_run_at=first)
        skip(builder, first, reason)
        miss_passed(builder, schedule.timeline, kept=first, policy=reason.value)
        evaluate_to(builder, builder.now)


def _first_without_outcome(schedule: Schedule) -> datetime | None:
    """Return the stored next time. If this decision has fired it already, return the occurrence after it."""
    if schedule.next_run_at is None or schedule.next_run_at > schedule.evaluated_to:
        return schedule.next_run_at
    if schedule.spec.is_from_completion or not schedule.spec.is_known:
        return None
    since = max(schedule.evaluated_to, schedule.timing_changed_at)
    return answered(schedule.timeline.next_after, since, otherwise=None)


def skip(
    builder: ChangeBuilder,
    occurrence_at: datetime | None,
    reason: SkipReason,
    *,
    blocking: str | None = None,
    asked: Skips | None = None,
    upstream: Upstream | None = None,
) -> None:
    """Record that an occurrence, a trigger or the end of an `upstream` run starts no run.

    `blocking` is the uid of the run that prevented the start. `asked` is the request to skip.
    """
    count = builder.schedule.skipped_count + 1
    builder.set(skipped_count=count, last_skip_reason=reason.value, last_skipped_at=builder.now)
    builder.record(
        audit.SKIPPED,
        reason=reason.value,
        skipped_trigger_count=count,
        last_skipped_at=builder.now,
        occurrence_time=occurrence_at,
        blocking_run_id=blocking,
        upstream_run_id=upstream and upstream.run_uid,
        upstream_schedule_id=upstream and upstream.schedule_id,
        asked_at=asked and asked.asked_at,
        asked_by=asked and asked.by,
        asked_reason=asked and asked.reason,
    )


def reason_not_to_start(schedule: Schedule, env: str | None) -> SkipReason | None:
    """Return why a process in the environment `env` starts no run of a schedule; None if it may start one.

    It is called for due occurrences and for upstream ends, before the overlap policy decides. A new condition on the
    schedule belongs here.
    """
    allowed = schedule.policies.environments
    return SkipReason.ENVIRONMENT if allowed and env not in allowed else None


def leave_out(builder: ChangeBuilder, until: datetime) -> None:
    """Record the instants since the last evaluation that were excluded or fell into a clock gap.

    One event records all excluded instants, and no counter includes them. Each instant in a clock gap is recorded as
    skipped with the reason `dst_skip` (docs/times.md, "Daylight saving").
    """
    spec = builder.schedule.spec
    if not spec.is_known:
        return
    since = max(builder.schedule.evaluated_to, builder.schedule.timing_changed_at)
    if spec.exclusion is not None and not spec.is_from_completion:
        _record_excluded(builder, since, until)
    if spec.primary_cron is None or spec.dst_gap == "shift":  # only crons follow the clocks
        return
    for gap in spec.gaps_between(since, until):
        skip(builder, gap.occurrence_at, SkipReason.CLOCK_CHANGE)


def _record_excluded(builder: ChangeBuilder, since: datetime, until: datetime) -> None:
    """Record the excluded instants in (since, until] in one event, if there are any."""
    spec = builder.schedule.spec
    excluded = answered(spec.excluded_between, since, until, COUNT_CAP, otherwise=_UNCOUNTED)
    if isinstance(excluded, Excluded):
        (total, is_capped), first, last = excluded
        builder.record(audit.EXCLUDED, count=total, count_capped=is_capped or None, first=first, last=last)
    elif excluded is _UNCOUNTED:
        total, oldest, newest = _walked(spec.excluded(since, until))
        if total:
            builder.record(audit.EXCLUDED, count=total, count_capped=True, first=oldest, last=newest)


def record_skips(builder: ChangeBuilder, until: datetime) -> None:
    """Record each requested skip up to `until` as a skipped occurrence. Keep the skips of later occurrences."""
    left = []
    for asked in builder.schedule.parsed_skips:
        for at in asked.occurrences:
            if at <= until:
                skip(builder, at, SkipReason.ON_REQUEST, asked=asked)
        left.append(asked.after(until))
    builder.set(skips=dump_skips(left))


def set_skips(builder: ChangeBuilder, skips: Iterable[Skips]) -> None:
    """Set the occurrences to skip on request. If this delays the next fire, delay `overdue_at` by the same length."""
    before = builder.schedule
    builder.set(skips=dump_skips(skips))
    if before.overdue_at is not None:
        later = builder.schedule.skips_over(builder.now) - before.skips_over(builder.now)
        builder.set(overdue_at=before.overdue_at + later)


def drop_skips(builder: ChangeBuilder, since: datetime, reason: str) -> None:
    """Drop skips on request after `since` if their instant is no occurrence any more. The event records `reason`."""
    schedule = builder.schedule
    spec = schedule.spec
    left = [
        asked._replace(
            occurrences=tuple(at for at in asked.occurrences if at <= since or answered(spec.names, at, otherwise=True))
        )
        for asked in schedule.parsed_skips
    ]
    if dump_skips(left) != schedule.skips:
        set_skips(builder, left)
        occurrences = [iso_utc(at) for at in builder.schedule.skipped_at if at > builder.now]
        builder.record(audit.SKIPS_SET, occurrences=occurrences, reason=reason)
