"""One schedule after another: which ends of runs count, what each end starts, and the check for cycles. Pure.

An end that counts has one outcome for each downstream schedule: a run, or a record of why there is no run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, cast

from rqsched.errors import UpstreamError
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.delays import FIRE_BACKOFF, backoff
from rqsched.kernel.decide.model import OPEN, Change, Run, RunKind, RunStatus, Schedule, ScheduleStatus, unchanged
from rqsched.kernel.decide.occurrences import (
    COUNT_CAP,
    Missed,
    Upstream,
    missed_end,
    reason_not_to_start,
    record_missed,
)
from rqsched.kernel.decide.overlap import StartRequest, apply_overlap, refuse
from rqsched.kernel.decide.policy import KEEPS_ALL, MissedPolicy
from rqsched.kernel.decide.reasons import SkipReason

TOGETHER = 50
"""The most downstream schedules whose runs one transaction starts."""
MAX_ERROR = 600
"""The most characters that are stored of the error of a failed try to follow an end."""


class Followed(StrEnum):
    """The outcome of an upstream end for a downstream schedule."""

    STARTED = "started"
    """The end started a run, which may wait for the run ahead."""
    SKIPPED = "skipped"
    """The end started no run; an event of the downstream schedule tells why."""
    MISSED = "missed"
    """The end came during a pause or a freeze, or was too old; an event of the downstream schedule records it."""
    DELETED = "deleted"
    """The downstream schedule was already deleted."""


@dataclass(frozen=True)
class UpstreamEnd:
    """The end of an upstream's run for one downstream schedule: a row of the outbox."""

    run_uid: str
    """The run that ended."""
    schedule_uid: str
    """The downstream schedule."""
    upstream_uid: str
    """The upstream: the schedule of the run that ended."""
    outcome: str
    """How the run ended: a `RunStatus`, or `expired`."""
    ended_at: datetime
    """When the run ended."""
    due_at: datetime | None
    """When the downstream schedule is to follow the end; None if the end has its outcome."""
    tries: int = 0
    """How often following the end has failed."""
    error: str | None = None
    """The last error of following the end; None if there was none."""
    followed: str | None = None
    """The outcome, a `Followed`; None while the end waits for it, and `missed` if it waits again after a pause."""
    followed_at: datetime | None = None
    """When the end got its outcome; None while it waits."""
    upstream_id: str | None = None
    """The id of the upstream; None if it is not known any more."""

    @property
    def upstream(self) -> Upstream:
        """The run that ended, with the id of its schedule."""
        return Upstream(self.run_uid, self.upstream_id)


class Thaw(NamedTuple):
    """The end of a freeze."""

    missed: MissedPolicy | None = None
    """The policy for the ends that came during the freeze; None means the policy of each schedule."""
    is_missed: bool = False
    """Whether all these ends are missed."""


def owes(change: Change) -> bool:
    """Return whether a Change may write owed ends: to downstream schedules, or after a pause to its own schedule."""
    return change.after.followed_at is not None or change.owed_again is not None


def ended_runs(change: Change) -> list[Run]:
    """Return the runs that end in a Change and that other runs may follow (`may_be_followed`)."""
    if change.after.followed_at is None:  # nearly all schedules have no downstream
        return []
    return [
        run
        for before, run in change.changed_runs
        if before.status in OPEN and run.status not in OPEN and may_be_followed(run)
    ]


def may_be_followed(run: Run) -> bool:
    """Return whether downstream runs may follow a run. A run of a backfill, or that never began, has none."""
    return run.kind is not RunKind.BACKFILL and run.trigger_number is not None


def counts_for(on: str, status: RunStatus) -> bool:
    """Return whether the end of a run with `status` counts for a schedule that comes after ends of the kind `on`."""
    return on == "end" or (status is RunStatus.SUCCEEDED) is (on == "success")


def decide_after(
    schedule: Schedule,
    runs: Iterable[Run],
    ends: Iterable[UpstreamEnd],
    *,
    now: datetime,
    env: str = "",
    asked: CommandContext | None = None,
    thaw: Thaw | None = None,
) -> tuple[Change, dict[str, Followed]]:
    """Give each end that is owed to a schedule its outcome; return the outcomes by the uid of the run that ended.

    Each end starts a run if the overlap policy allows it. A paused schedule remembers the newest end for its resume.
    After a freeze (`thaw`), all ends that came during it count as one. `runs` are the schedule's open runs.
    """
    waiting = sorted(ends, key=lambda end: (end.ended_at, end.run_uid))
    if schedule.status is ScheduleStatus.DELETED:
        return unchanged(schedule), {end.run_uid: Followed.DELETED for end in waiting}
    builder = ChangeBuilder(schedule, runs, now=now, context=asked)
    if schedule.status is ScheduleStatus.PAUSED:
        return _keep_newest(builder, waiting)
    fires: Sequence[UpstreamEnd] = [end for end in waiting if _is_fresh(schedule, end, now)]
    policy = schedule.policies.missed.value
    if thaw is not None:
        policy, missed = SkipReason.FROZEN.value, thaw.missed or schedule.policies.missed
        if missed is MissedPolicy.ALL and schedule.policies.overlap not in KEEPS_ALL:
            missed = MissedPolicy.FIRE_ONCE
        fires = [] if thaw.is_missed else _one_of(schedule, fires, missed)
    outcomes = dict.fromkeys((end.run_uid for end in waiting), Followed.MISSED)
    if late := [(end.ended_at, end.upstream) for end in waiting if end not in fires]:
        _miss(builder, late, policy, fired=fires)
    refused = reason_not_to_start(schedule, env)
    for end in fires:
        if refused is not None:
            refuse(builder, end.ended_at, refused, upstream=end.upstream)
            outcomes[end.run_uid] = Followed.SKIPPED
            continue
        outcomes[end.run_uid] = _follow(builder, end)
    return builder.build(), outcomes


def _follow(builder: ChangeBuilder, end: UpstreamEnd) -> Followed:
    """Apply the overlap policy to an end; a schedule that has ended starts nothing."""
    if builder.schedule.has_ended and builder.schedule.remaining != 0:
        refuse(builder, end.ended_at, SkipReason.STATUS, upstream=end.upstream)
        return Followed.SKIPPED
    start = StartRequest(RunKind.AFTER, end.ended_at, due_at=end.ended_at, upstream=end.upstream)
    return Followed.SKIPPED if apply_overlap(builder, start).run is None else Followed.STARTED


def _keep_newest(builder: ChangeBuilder, ends: Sequence[UpstreamEnd]) -> tuple[Change, dict[str, Followed]]:
    """Remember the newest end that came during a pause, for the resume; earlier ends are missed."""
    schedule = builder.schedule
    if ends:
        known = missed_end(schedule)
        # The remembered end may be the newest: ends are not always followed in the order of their times.
        all_of_them = [*([] if known is None else [known]), *((end.ended_at, end.upstream) for end in ends)]
        *passed, (ended_at, newest) = sorted(all_of_them, key=_in_order)
        if passed:
            _miss(builder, passed, SkipReason.MISSED_WHILE_PAUSED.value)
        builder.set(missed_run_uid=newest.run_uid, paused_next_run_at=ended_at)
    return builder.build(), {end.run_uid: Followed.MISSED for end in ends}


def _in_order(end: tuple[datetime, Upstream]) -> tuple[datetime, str]:
    ended_at, upstream = end
    return ended_at, upstream.run_uid


def _one_of(schedule: Schedule, ends: Sequence[UpstreamEnd], missed: MissedPolicy) -> Sequence[UpstreamEnd]:
    if missed is MissedPolicy.ALL:
        return ends[-schedule.policies.missed_limit :]
    return ends[-1:] if missed is MissedPolicy.SKIP else ends[:1]


def _is_fresh(schedule: Schedule, end: UpstreamEnd, now: datetime) -> bool:
    lateness = schedule.policies.allowed_lateness
    is_of_resume = end.followed == Followed.MISSED  # a resume fires this end whatever its age
    return is_of_resume or lateness is None or now - end.ended_at <= lateness


def _miss(
    builder: ChangeBuilder, ends: Sequence[tuple[datetime, Upstream]], policy: str, fired: Iterable[UpstreamEnd] = ()
) -> None:
    """Record in one event the ends that start nothing."""
    (first, _), (last, newest) = min(ends, key=_in_order), max(ends, key=_in_order)
    missed = Missed(min(len(ends), COUNT_CAP), len(ends) > COUNT_CAP, first, last)
    record_missed(builder, missed, fired=[end.ended_at for end in fired], policy=policy, upstream=newest)


def next_try_at(end: UpstreamEnd, now: datetime) -> datetime:
    """Return when a failed end is tried again. There is no limit of tries."""
    return now + backoff(FIRE_BACKOFF, end.tries + 1, interval=timedelta(seconds=1))


def require_no_cycle(upstreams: Mapping[str, str], schedule_ids: Iterable[str]) -> None:
    """Check that none of these schedules comes after itself; raises UpstreamError, which names the cycle.

    `upstreams` maps each of them, and each schedule upstream of them, to the id of its upstream.
    """
    in_none = set[str]()
    for first in schedule_ids:
        walked, at = dict[str, None](), cast("str | None", first)
        while at is not None and at not in walked and at not in in_none:
            walked[at] = None
            at = upstreams.get(at)
        if at is None or at in in_none:  # `in_none` makes the walk of a long chain linear
            in_none |= walked.keys()
        elif at == first:
            circle = " after ".join([*walked, first])
            raise UpstreamError("after", f"{circle} is a cycle, in which no run would ever begin; remove one of them")
