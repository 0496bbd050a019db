"""One schedule after another: which ends of upstream runs count, and what each of them starts. Pure.

An end that counts has one outcome for each downstream schedule: a run, or a record of why there is no run. This module
also checks that schedules that come after each other form no cycle.
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
"""The maximum number of downstream schedules whose runs one transaction starts."""
MAX_ERROR = 600
"""If a try to follow an end fails, at most this many characters of the error are stored."""


class Followed(StrEnum):
    """The outcome of an upstream end for a downstream schedule."""

    STARTED = "started"
    """The end created a run. The run may wait for an earlier run of its schedule."""
    SKIPPED = "skipped"
    """The end started no run. An event of the downstream schedule has the reason."""
    MISSED = "missed"
    """The end came during a pause or a freeze, or it was too old. An event of the downstream schedule records this."""
    DELETED = "deleted"
    """The downstream schedule was already deleted."""


@dataclass(frozen=True)
class UpstreamEnd:
    """The row about the end of an upstream's run, for one downstream schedule."""

    run_uid: str
    """The run that ended."""
    schedule_uid: str
    """The downstream schedule."""
    upstream_uid: str
    """The uid of the upstream, the schedule of the run that ended."""
    outcome: str
    """How the run ended: a `RunStatus`, or `expired`."""
    ended_at: datetime
    """When the run ended."""
    due_at: datetime | None
    """When the end is to be followed; None if it has its outcome."""
    tries: int = 0
    """How many tries to follow the end have failed."""
    error: str | None = None
    """The error of the last failed try; None without a failed try."""
    followed: str | None = None
    """The outcome, a `Followed`; None while the end has no outcome. If a resume makes a missed end due again, this is
    still `missed`."""
    followed_at: datetime | None = None
    """When the end got its outcome; None while it waits."""
    upstream_id: str | None = None
    """The id of the upstream; None if it is not known any more."""

    @property
    def upstream(self) -> Upstream:
        """The run that ended, with the id of its schedule."""
        return Upstream(self.run_uid, self.upstream_id)


class Thaw(NamedTuple):
    """The options of a thaw for the ends that came during the freeze."""

    missed: MissedPolicy | None = None
    """The policy for the ends that came during the freeze; None means the policy of each schedule."""
    is_missed: bool = False
    """Whether all these ends are recorded as missed."""


def owes(change: Change) -> bool:
    """Return whether a Change may write ends for downstream schedules, or (after a pause) for the changed schedule."""
    return change.after.followed_at is not None or change.owed_again is not None


def ended_runs(change: Change) -> list[Run]:
    """Return the runs that end in a Change and may start downstream runs (`may_be_followed`)."""
    if change.after.followed_at is None:  # nearly all schedules have no downstream
        return []
    return [
        run
        for before, run in change.changed_runs
        if before.status in OPEN and run.status not in OPEN and may_be_followed(run)
    ]


def may_be_followed(run: Run) -> bool:
    """Return whether the end of a run may start downstream runs.

    The end of a backfilled run, or of a run that never began, starts none. The end of a copy starts them on request.
    """
    if run.copied_from is not None:
        return run.starts_downstream and run.queued_at is not None
    return run.kind is not RunKind.BACKFILL and run.trigger_number is not None


def counts_for(on: str, status: RunStatus) -> bool:
    """Return whether a run's end with `status` counts for a schedule whose `After` has `on`."""
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
    """Decide the outcome of each end owed to a schedule. Return the Change, and the outcomes by uid of the ended run.

    Each end starts a run if the overlap policy allows it. A paused schedule stores the newest end for its resume. After
    a freeze (`thaw`), all ends that came during the freeze count as one. `runs` are the schedule's open runs.
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
    """Apply the overlap policy to an end. A schedule that has ended starts no run."""
    if builder.schedule.has_ended and builder.schedule.remaining != 0:
        refuse(builder, end.ended_at, SkipReason.STATUS, upstream=end.upstream)
        return Followed.SKIPPED
    start = StartRequest(RunKind.AFTER, end.ended_at, due_at=end.ended_at, upstream=end.upstream)
    return Followed.SKIPPED if apply_overlap(builder, start).run is None else Followed.STARTED


def _keep_newest(builder: ChangeBuilder, ends: Sequence[UpstreamEnd]) -> tuple[Change, dict[str, Followed]]:
    """Store the newest end that came during a pause, for the resume. Record earlier ends as missed."""
    schedule = builder.schedule
    if ends:
        known = missed_end(schedule)
        # The stored end may be the newest, because ends do not always come in the order of their times.
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
    is_of_resume = end.followed == Followed.MISSED  # a resume starts a run after this end, however old it is
    return is_of_resume or lateness is None or now - end.ended_at <= lateness


def _miss(
    builder: ChangeBuilder, ends: Sequence[tuple[datetime, Upstream]], policy: str, fired: Iterable[UpstreamEnd] = ()
) -> None:
    """Record in one event the ends that start nothing."""
    (first, _), (last, newest) = min(ends, key=_in_order), max(ends, key=_in_order)
    missed = Missed(min(len(ends), COUNT_CAP), len(ends) > COUNT_CAP, first, last)
    record_missed(builder, missed, fired=[end.ended_at for end in fired], policy=policy, upstream=newest)


def next_try_at(end: UpstreamEnd, now: datetime) -> datetime:
    """Return when an end is tried again after a failed try. There is no limit of tries."""
    return now + backoff(FIRE_BACKOFF, end.tries + 1, interval=timedelta(seconds=1))


def require_no_cycle(upstreams: Mapping[str, str], schedule_ids: Iterable[str]) -> None:
    """Check that none of these schedules comes after itself. Raises UpstreamError, which names the cycle.

    `upstreams` maps the id of each of these schedules, and of each schedule upstream of them, to the id of its
    upstream.
    """
    in_none = set[str]()
    for first in schedule_ids:
        walked, at = dict[str, None](), cast("str | None", first)
        while at is not None and at not in walked and at not in in_none:
            walked[at] = None
            at = upstreams.get(at)
        if at is None or at in in_none:  # no schedule of `in_none` leads to a cycle
            in_none |= walked.keys()
        elif at == first:
            circle = " after ".join([*walked, first])
            raise UpstreamError("after", f"{circle} is a cycle, in which no run would ever begin; remove one of them")
