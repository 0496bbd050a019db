"""Decide an owner's operations on a schedule: create, update, pause, skip, resume, restart, delete. Pure functions.

Each operation returns a Change. No operation fires a due occurrence itself. If an operation drops a due occurrence, it
records an outcome for this occurrence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain, compress, islice, repeat
from operator import attrgetter, ne
from typing import Any, NamedTuple

from rqsched.errors import InvalidInputError, InvalidSpecError, ScheduleStateError
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import CommandContext, Event
from rqsched.kernel.decide.change_builder import ChangeBuilder, combined
from rqsched.kernel.decide.delays import later
from rqsched.kernel.decide.edits import changes
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import (
    DEFINITION,
    Change,
    Definition,
    Occurrence,
    Run,
    RunKind,
    Schedule,
    ScheduleStatus,
    Skips,
    changed,
    dump_moves,
    dump_skips,
    dump_spec,
    unchanged,
)
from rqsched.kernel.decide.moves import RanOf, carry_over, evaluate_to
from rqsched.kernel.decide.occurrences import (
    TICK,
    classify_due,
    drop_skips,
    due_within,
    leave_out,
    miss_end,
    miss_passed,
    missed_end,
    next_occurrence,
    occurrence_at,
    planned_from,
    record_skips,
    set_skips,
    stored_due_of,
    write_off,
)
from rqsched.kernel.decide.overlap import StartRequest, apply_overlap, drain
from rqsched.kernel.decide.policy import OnResume
from rqsched.kernel.decide.reasons import SkipReason
from rqsched.kernel.decide.schedule_endings import complete_if_over, delete, end_if_exhausted
from rqsched.when.calendars import Calendar, holding_since
from rqsched.when.spec import After, Member, Once, Spec
from rqsched.when.steps import Steps, answered, bounded, first_of

RunsOf = Callable[[Schedule], Sequence[Run]]
"""Read the runs that a decision about a schedule needs."""
_TIMING = frozenset({"spec", "jitter"})
_LIVE = [status for status in ScheduleStatus if status is not ScheduleStatus.DELETED]
_declared_in = attrgetter(*DEFINITION)
MAX_SKIPS = 100
"""The maximum number of occurrences that one call of `skip_next` may skip."""


class Identity(NamedTuple):
    """The names of a schedule: its uid, namespace and id."""

    uid: str
    """A ULID. A schedule that is deleted and created again gets a new one."""
    namespace: str
    """The namespace of the schedule."""
    schedule_id: str
    """The id that the owner chose."""


def registered(spec: Spec, named: tuple[str, str], now: datetime, like: Spec | None = None) -> Spec:
    """Return a spec in the form in which a schedule stores it: each `H` is a number, and intervals have an anchor.

    `named` is the namespace and id of the schedule; they determine the number of each `H`. `like` is the spec that was
    stored before. If the timing is the same, the anchor of `like` is kept; otherwise the anchor is `now`. If the spec
    has no clock-change rules, it gets the rules of `like`.
    """
    if spec.after is not None:  # a schedule that follows another one has no times of its own
        return spec
    placed = with_clocks(spec, like).placed_for(*named)
    return (placed if like is None else placed.anchored_like(like)).anchored_at(now)


def with_clocks(spec: Spec, stored: Spec | None) -> Spec:
    """Return a spec with its clock-change rules (`dst_gap`, `dst_fold`) set.

    A rule comes from the spec, else from the stored spec, else from the defaults. The defaults shift an occurrence out
    of a gap, and fire once at a time that the clock shows twice.
    """
    gap, fold = ("shift", None) if stored is None or stored.after is not None else (stored.dst_gap, stored.dst_fold)
    if spec.dst_gap not in {None, gap}:
        gap = spec.dst_gap
    if spec.dst_fold not in {None, fold or "first"}:
        fold = spec.dst_fold
    return spec.with_clocks(gap, fold)


def decide_create(
    identity: Identity,
    definition: Definition,
    *,
    now: datetime,
    paused: bool = False,
    note: str | None = None,
    tzdata: str = "",
    context: CommandContext | None = None,
    operation: str | None = None,
    starts_past: bool = False,
    calendars: tuple[Calendar, ...] = (),
) -> Change:
    """Create a schedule. If its spec has no occurrence after `now`, its status is `done` at once.

    With `starts_past`, such a schedule starts one run first, like a trigger. `calendars` are the calendars that the
    spec names. Raises InvalidSpecError if all occurrences are excluded.
    """
    declared = definition.parsed_spec
    if (spec := registered(declared, (identity.namespace, identity.schedule_id), now)) is not declared:
        definition = changed(definition, spec=dump_spec(spec))
    _refuse_all_excluded(spec.with_calendars(calendars), now)
    schedule = Schedule(
        uid=identity.uid,
        namespace=identity.namespace,
        schedule_id=identity.schedule_id,
        definition=definition,
        created_at=now,
        updated_at=now,
        timing_changed_at=now,
        evaluated_to=now,
        status=ScheduleStatus.PAUSED if paused else ScheduleStatus.ACTIVE,
        paused_at=now if paused else None,
        remaining=definition.max_runs,
        note=note,
        tzdata=tzdata,
        traceparent=None if context is None else context.traceparent,
        contents=calendars,
        upstream_id=_upstream_of(spec),
    )
    builder = ChangeBuilder(schedule, now=now, context=context, is_new=True)
    builder.plan(next_occurrence(schedule, now))
    builder.record(audit.CREATED, **_declared_payload(builder.schedule))
    if paused:
        builder.record(audit.PAUSED, reason=note, paused_at=now)
    elif starts_past and builder.schedule.next_run_at is None:
        apply_overlap(builder, StartRequest(RunKind.MANUAL, now, due_at=now))
    complete_if_over(builder)
    return builder.build(operation)


def _upstream_of(spec: Spec) -> str | None:
    return None if spec.after is None else spec.after.schedule_id


def is_shared(definition: Definition) -> bool:
    """Return whether schedules that are created at one instant with this definition differ only in their identity."""
    return not (definition.jitter or definition.parsed_policies.spread or definition.parsed_spec.has_places)


def created_alike(made: Change, identity: Identity, definition: Definition, operation: str | None) -> Change:
    """Return a copy of the Change that `decide_create` made, for a schedule with another identity.

    `is_shared` must be true for the definition. The definitions of the two schedules may differ only in their `action`.
    """
    named = {"uid": identity.uid, "namespace": identity.namespace, "schedule_id": identity.schedule_id}
    first, events = made.after.definition, made.events
    if definition.action == first.action:
        return Change(None, changed(made.after, **named, operation=operation), events=events)
    if definition.spec != first.spec:
        definition = changed(definition, spec=first.spec)  # `first.spec` already has its anchor
    events = tuple(_with_action(event, json.loads(definition.action)) for event in events)
    return Change(None, changed(made.after, **named, definition=definition, operation=operation), events=events)


def _with_action(event: Event, action: dict[str, Any]) -> Event:
    """Return a ScheduleCreated event with the arguments of another action. Return any other event as it is."""
    if event.type != audit.CREATED:
        return event
    payload = event.payload | {"action": event.payload["action"] | action}
    return Event(event.type, payload, event.run_uid, event.instance_id)


def require_future(spec: Spec, named: tuple[str, str], now: datetime, calendars: tuple[Calendar, ...] = ()) -> None:
    """Refuse a spec that has no occurrence after `now`. `named` is the namespace and id of the schedule.

    Raises InvalidSpecError, or TooMuchWorkError if the search takes too many steps.
    """
    future = registered(spec, named, now).with_calendars(calendars)
    _refuse_all_excluded(future, now)
    if future.next_after(now) is None and future.after is None:
        raise InvalidSpecError("spec", f"has no occurrence after {now.isoformat()}; give a later time or end_at")


def _refuse_all_excluded(spec: Spec, now: datetime) -> None:
    spec.require_whole_days()
    with bounded(Steps()):
        # The search for the next occurrence is bounded here. Its answer is cached, so planning the next time is cheap.
        is_over = spec.next_after(now) is None and spec.is_all_excluded_after(now)
    if is_over:
        raise InvalidSpecError(
            "exclude", "covers every occurrence of the next ten years; remove some of it, or pause the schedule"
        )


def _declared_payload(schedule: Schedule) -> dict[str, Any]:
    definition = schedule.definition
    action = {"workflow": definition.workflow, **json.loads(definition.action)}
    routing = {"queue": definition.queue, "connection": definition.connection, "timeout": definition.timeout}
    return {
        "spec": json.loads(definition.spec),
        "action": action | {name: value for name, value in routing.items() if value is not None},
        "overlap_policy": schedule.policies.overlap.value,
        "next_fire_at": schedule.due_at,
    }


def decide_update(
    schedule: Schedule,
    definition: Definition,
    *,
    now: datetime,
    note: str | None = None,
    tzdata: str = "",
    context: CommandContext | None = None,
    operation: str | None = None,
    keep_next: bool = False,
    calendars: tuple[Calendar, ...] = (),
    ran_of: RanOf | None = None,
) -> Change:
    """Change the definition of a schedule.

    The next time moves only if spec, jitter or spread changed. An occurrence that is already due still fires. If an
    occurrence was moved off an excluded day and already has its outcome, it gets no second outcome. If the new timing
    puts an occurrence that was ahead into the past, this occurrence is due at once. With `keep_next` the next time
    stays even if the timing changed (re-registration in the Waymark document). `calendars` are the calendars that the
    new spec names.

    Raises ScheduleStateError if the schedule is deleted, NewerReleaseError if this release does not know its timing,
    and InvalidSpecError if a changed spec excludes all occurrences.
    """
    _require(schedule, "update", *_LIVE)
    schedule.spec.require_known()
    named = schedule.namespace, schedule.schedule_id
    spec = registered(definition.parsed_spec, named, now, like=schedule.spec)
    stored = schedule.policies
    policies = definition.parsed_policies.kept_from(stored)
    same = policies is stored or policies == stored  # another release may have written equal policies as another text
    told = schedule.definition.policies if same else policies.dumps()
    definition = changed(definition, spec=dump_spec(spec), policies=told)
    fields = [*compress(DEFINITION, map(ne, _declared_in(definition), _declared_in(schedule.definition)))]
    if note is not None and note != schedule.note:
        fields.append("note")
    if not fields:
        return unchanged(schedule)
    builder = ChangeBuilder(schedule, now=now, context=context)
    note = schedule.note if note is None else note
    declared: dict[str, Any] = {"definition": definition, "version": schedule.version + 1, "note": note}
    if "spec" in fields:
        _refuse_all_excluded(spec.with_calendars(calendars), now)
        declared |= {"upstream_id": _upstream_of(spec), "contents": calendars}
        _change_timing(builder, now, tzdata=tzdata, keep_next=keep_next, ran_of=ran_of, **declared)
    else:
        builder.set(**declared)
        if _TIMING & set(fields) or policies.spread != stored.spread:
            _move(builder, now, keep_next=keep_next)
    if "max_runs" in fields:
        limit = definition.max_runs
        builder.set(remaining=None if limit is None else max(limit - schedule.run_count, 0))
    edited = changes(schedule.definition, definition, (schedule.note, note)) or None
    builder.record(audit.UPDATED, changed_fields=fields, changes=edited, **_declared_payload(builder.schedule))
    complete_if_over(builder)
    end_if_exhausted(builder)
    return builder.build(operation)


def decide_apply_calendars(
    schedule: Schedule,
    *,
    now: datetime,
    before: Sequence[Calendar] = (),
    operation: str | None = None,
    ran_of: RanOf | None = None,
) -> Change:
    """Plan a schedule again if one of its calendars was changed since its next time was planned.

    The effect is the same as if the schedule's own `exclude` had been changed when the calendar was changed. So an
    occurrence that was due by then still fires. The schedule stays active even if all its further occurrences are
    excluded now.

    `before` are the earlier contents of the calendars, if they are known. They show which instants were excluded before
    the change, so that these are recorded. The Change is empty if there is nothing to plan, or if a calendar was
    deleted.
    """
    if not schedule.has_old_plan or schedule.has_ended or not schedule.spec.is_known:
        return unchanged(schedule)
    planned_with = (schedule.calendars or "").split()  # ignore contents that no plan used
    known = {one.name: one for one in before if one.edit in planned_with}
    since = holding_since(schedule.contents, schedule.calendars, now)
    at = min(now, max(since, schedule.evaluated_to, schedule.timing_changed_at))
    was = tuple(known.get(one.name, one) for one in schedule.contents)
    builder = ChangeBuilder(changed(schedule, contents=was), now=now)
    _change_timing(builder, at, contents=schedule.contents, why="calendar_changed", ran_of=ran_of)
    after = builder.schedule
    if after.next_run_at != schedule.next_run_at:
        newest = max(schedule.contents, key=lambda one: (one.changed_at or now, one.name))
        builder.record(
            audit.CALENDAR_CHANGED, calendar=newest.name, revision=newest.revision, changed_by=newest.changed_by,
            next_fire_at=after.due_at,
        )  # fmt: skip
    complete_if_over(builder)
    return builder.build(operation)


def planned_first(
    schedule: Schedule, decide: Callable[[Schedule], Change], *, now: datetime, ran_of: RanOf | None = None
) -> Change:
    """If the calendars changed, plan the schedule again. Then call `decide`. Return both Changes as one."""
    if not schedule.has_old_plan:
        return decide(schedule)
    planned = decide_apply_calendars(schedule, now=now, ran_of=ran_of)
    return combined(planned, decide(planned.after))


def _change_timing(
    builder: ChangeBuilder,
    at: datetime,
    *,
    tzdata: str = "",
    keep_next: bool = False,
    why: str = "timing_changed",
    ran_of: RanOf | None = None,
    **timing: Any,
) -> None:
    """Set a new timing that holds from `at` on: a new definition, or new contents of the calendars.

    `at` is not after now. Every change of a timing calls this function. Occurrences that were due by `at` get an
    outcome or still fire, and the next time is computed again.
    """
    before = builder.schedule
    at = planned_from(before, at)
    _close_timing(builder, at, tzdata, keep_next=keep_next)
    builder.set(**timing)
    if builder.schedule.contents or builder.schedule.calendars is not None:
        builder.note_calendars()
    due = carry_over(builder, before, at=at, keep_next=keep_next, ran_of=ran_of)
    drop_skips(builder, at, why)
    _move(builder, at, keep_next=keep_next, due=due)


def _close_timing(builder: ChangeBuilder, at: datetime, tzdata: str, *, keep_next: bool) -> None:
    """End the old timing: one due occurrence still fires, and the other due occurrences are recorded as missed.

    The missed occurrences must be recorded now, because no later fire could count them: the new timing does not contain
    them.
    """
    schedule = builder.schedule
    if schedule.is_active:
        leave_out(builder, at)
        if schedule.skips is not None:
            record_skips(builder, at)
        stored = schedule.next_run_at
        if stored is not None and stored <= at and schedule.spec.is_known:
            kept = next(iter(classify_due(schedule, at).fires), stored)
            miss_passed(builder, schedule.timeline, kept=kept, policy=schedule.policies.missed.value, until=at)
            builder.set(next_run_at=kept, due_at=stored_due_of(schedule, kept))
            if kept != stored and schedule.spec.is_moving:
                nominals = schedule.spec.nominals_of(kept)
                builder.set(moves=dump_moves(schedule.parsed_moves._replace(nominals=nominals)))
    missed = schedule.paused_next_run_at
    # If an upstream run ended during the pause, keep the record of this, even if its time is ahead of this process's
    # clock.
    is_kept = missed is not None and (missed <= at or keep_next or schedule.missed_run_uid is not None)
    builder.set(
        timing_changed_at=at,
        tzdata=tzdata or schedule.tzdata,
        paused_next_run_at=missed if is_kept else None,
    )


def _move(builder: ChangeBuilder, at: datetime, *, keep_next: bool, due: Occurrence | None = None) -> None:
    """Compute the next time again, or take it from `due`.

    If the stored next time was due by `at`, it stays. With `keep_next` it always stays.
    """
    schedule = builder.schedule
    at, stored = planned_from(schedule, at), schedule.next_run_at
    if not schedule.is_active or (keep_next and stored is not None):
        return
    if stored is not None and stored <= at:
        # The due occurrence still fires. If it would fire at or after the next occurrence of the new timing, shorten
        # its delay.
        following = answered(schedule.timeline.next_after, at, otherwise=None)
        if following is not None and schedule.due_at is not None and schedule.due_at >= following:
            builder.set(due_at=due_within(schedule, stored, following - stored))
        return
    if schedule.awaiting_run_uid is not None and schedule.spec.is_from_completion:
        return
    builder.plan(due or next_occurrence(schedule, at))


def decide_pause(
    schedule: Schedule,
    *,
    now: datetime,
    note: str | None = None,
    reason: str | None = None,
    until: datetime | None = None,
    on_resume: OnResume | None = None,
    context: CommandContext | None = None,
    operation: str | None = None,
) -> Change:
    """Stop firing. An occurrence that is already due is recorded as skipped (`disabled`).

    With `until` the pause ends by itself at that time. `on_resume` then determines where the schedule continues; the
    default is its policy. A paused schedule can be paused again only with `until`, which replaces the end of its pause.
    If the status does not allow the pause, raises ScheduleStateError.
    """
    if until is not None and until <= now:
        raise InvalidInputError("until", f"{iso_utc(until)} has passed; name a later time")
    if on_resume is not None and until is None:
        raise InvalidInputError("on_resume", "needs `until`: add `until`, or pass on_resume to resume")
    _require(schedule, "pause", ScheduleStatus.ACTIVE, *([] if until is None else [ScheduleStatus.PAUSED]))
    builder = ChangeBuilder(schedule, now=now, context=context)
    if schedule.is_active:
        upcoming = schedule.next_run_at
        write_off(builder, SkipReason.PAUSED)
        builder.set(
            status=ScheduleStatus.PAUSED,
            paused_at=now,
            paused_next_run_at=upcoming if upcoming is not None and upcoming > now else None,
            next_run_at=None,
            due_at=None,
            awaiting_run_uid=None,
        )
    mode = None if until is None else (on_resume or schedule.policies.on_resume).value
    why = reason or note or (None if schedule.is_active else schedule.status_reason)
    builder.set(
        status_reason=why,
        resume_at=until,
        resume_mode=mode,
        note=schedule.note if note is None else note,
        version=schedule.version + 1,
    )
    paused_at = builder.schedule.paused_at
    builder.record(audit.PAUSED, reason=why, paused_at=paused_at, until=until, on_resume=mode)
    return builder.build(operation)


def require_skips(count: int) -> None:
    """Check the number of occurrences to skip; raises InvalidInputError."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_SKIPS:
        raise InvalidInputError("count", f"must be a whole number from 0 to {MAX_SKIPS}; pause it to skip more")


def decide_skip_next(
    schedule: Schedule,
    count: int,
    *,
    now: datetime,
    reason: str | None = None,
    context: CommandContext | None = None,
    operation: str | None = None,
) -> Change:
    """Skip exactly the next `count` occurrences of the current timing. This replaces an earlier skip; 0 removes it.

    An occurrence that is already due does not count. If the same occurrences are skipped already, nothing changes.

    Raises ScheduleStateError if the schedule is not active; with a `count` of 0 it may also be paused. Raises
    InvalidInputError if the schedule does not know its times in advance (`from_completion`, `After`), if it has no
    further occurrence, or if `count` is out of range.
    """
    require_skips(count)
    _require(schedule, "skip_next", ScheduleStatus.ACTIVE, *([] if count else [ScheduleStatus.PAUSED]))
    if schedule.spec.is_from_completion or schedule.spec.after is not None:
        what = "a schedule that comes after another" if schedule.spec.after else "a from_completion interval"
        raise InvalidInputError("count", f"has no effect on {what}, which has no times ahead; use pause(until=...)")
    is_over = partial(_is_due, schedule, now)
    *ahead, following = islice(chain(_ahead(schedule, now), repeat(None)), count + 1)
    skipped = tuple(at for at in ahead if at is not None)
    if count and not skipped:
        raise InvalidInputError(
            "count", "has no effect, because the schedule has no further occurrence; leave it as it is"
        )
    passed = [asked._replace(occurrences=tuple(filter(is_over, asked.occurrences))) for asked in schedule.parsed_skips]
    builder = ChangeBuilder(schedule, now=now, context=context)
    by, why = (context.principal, context.reason) if context else (None, None)
    set_skips(builder, [*passed, Skips(skipped, now, by, reason or why)])
    if builder.schedule.skipped_at == schedule.skipped_at:
        return unchanged(schedule)
    stored = schedule.next_run_at
    if stored is None or (following != stored and not is_over(stored)):
        builder.plan(None if following is None else occurrence_at(schedule, following))
    builder.set(version=schedule.version + 1)
    builder.record(
        audit.SKIPS_SET,
        occurrences=[*map(iso_utc, skipped)],
        reason=reason,
        next_fire_at=builder.schedule.due_at,
    )
    return builder.build(operation)


def _ahead(schedule: Schedule, now: datetime) -> Iterator[datetime]:
    """Yield the occurrences that are not due yet, in order, including those that are skipped on request."""
    since, stored = planned_from(schedule, now), schedule.next_run_at
    known = {*schedule.skipped_at, *([] if stored is None else [stored])}
    for at in sorted(known):
        # Yield an occurrence that waits for its jitter, or that the current timing does not contain.
        if (at <= since and not _is_due(schedule, now, at)) or (at > since and not schedule.spec.names(at)):
            yield at
            since = max(since, at)
    while (following := schedule.spec.next_after(since)) is not None:
        yield following
        since = following


def _is_due(schedule: Schedule, now: datetime, nominal: datetime) -> bool:
    return stored_due_of(schedule, nominal) <= now


def decide_resume(
    schedule: Schedule,
    runs: Iterable[Run],
    *,
    now: datetime,
    on_resume: OnResume | None = None,
    note: str | None = None,
    context: CommandContext | None = None,
    operation: str | None = None,
    keep_next: bool = False,
    until: datetime | None = None,
) -> Change:
    """End a pause: fire again from the time that `on_resume` determines, and start waiting runs.

    `keep_next` restores the next time that the schedule had when it was paused, if that time is still ahead
    (re-registration in the Waymark document). `until` is the planned end of the pause. Occurrences that were due after
    `until` fire late, by the schedule's policies. Raises ScheduleStateError unless the schedule is paused.
    """
    _require(schedule, "resume", ScheduleStatus.PAUSED)
    builder, at = ChangeBuilder(schedule, runs, now=now, context=context), until or now
    since = _activate(builder, note, at)
    mode = on_resume or schedule.policies.on_resume
    if (end := missed_end(schedule)) is not None:
        if mode is OnResume.ONCE:
            ended_at, upstream = end
            builder.owed_again = (upstream.run_uid, ended_at)  # the resume starts the run that the pause prevented
        else:
            miss_end(builder, end, mode.value)
    if mode is OnResume.FROM_NOW:
        spec = reanchored(schedule.spec, at)
        definition = replace(schedule.definition, spec=dump_spec(spec))
        builder.set(definition=definition, timing_changed_at=planned_from(schedule, at))
        drop_skips(builder, at, "timing_changed")
    upcoming = schedule.paused_next_run_at if schedule.missed_run_uid is None else None
    if keep_next and upcoming is not None and upcoming > now:
        builder.plan(occurrence_at(schedule, upcoming))
    else:
        _plan_anew(builder, since, missed=_missed_while_paused(schedule, at) if mode is OnResume.ONCE else None)
    reason = mode.value if mode is OnResume.FROM_NOW else None
    builder.record(audit.RESUMED, next_fire_at=builder.schedule.due_at, reason=reason, until=until)
    drain(builder)
    return builder.build(operation)


def decide_end_pause(schedule: Schedule, runs: Iterable[Run], *, now: datetime) -> Change:
    """Resume a schedule if its pause was planned to end by now; otherwise return an empty Change."""
    at = schedule.resume_at
    if schedule.status is not ScheduleStatus.PAUSED or at is None or at > now:
        return unchanged(schedule)
    if not schedule.spec.is_known:
        return unchanged(schedule)
    on_resume = None if schedule.resume_mode is None else OnResume.of(schedule.resume_mode)
    return decide_resume(schedule, runs, now=now, on_resume=on_resume, until=at)


def _activate(builder: ChangeBuilder, note: str | None, at: datetime) -> datetime:
    """Make a schedule active. Return the instant after which to search for its next time."""
    since = planned_from(builder.schedule, at)
    builder.set(
        status=ScheduleStatus.ACTIVE,
        status_reason=None,
        paused_at=None,
        paused_next_run_at=None,
        missed_run_uid=None,
        resume_at=None,
        resume_mode=None,
        skips=dump_skips(asked.after(since) for asked in builder.schedule.parsed_skips),
        note=builder.schedule.note if note is None else note,
        version=builder.schedule.version + 1,
    )
    evaluate_to(builder, since)
    return since


def _missed_while_paused(schedule: Schedule, now: datetime) -> datetime | None:
    """Return the newest occurrence that passed during the pause. Earlier occurrences already have an outcome."""
    upcoming = schedule.paused_next_run_at if schedule.missed_run_uid is None else None
    since = max(planned_from(schedule, schedule.paused_at or now), schedule.timing_changed_at)
    newest: list[datetime] = []
    if not schedule.spec.is_from_completion:
        timeline = schedule.timeline
        # If the search for the newest occurrence takes too many steps, use the oldest.
        oldest = first_of(islice(timeline.between(later(since, TICK), later(now, TICK)), 1))
        newest = answered(timeline.last_between, since, now, 1, otherwise=oldest) if oldest else []
    return max((at for at in (upcoming, *newest) if at is not None and at <= now), default=None)


def _plan_anew(builder: ChangeBuilder, since: datetime, missed: datetime | None = None) -> None:
    """Set the next time of a resumed schedule: now for a `missed` occurrence, else its first time after `since`."""
    spec = builder.schedule.spec
    if missed is not None:
        builder.plan(Occurrence(missed, builder.now, spec.nominals_of(missed)))
        evaluate_to(builder, missed - TICK)
    elif spec.is_from_completion and (unfinished := builder.unfinished()):
        builder.wait_for(unfinished[-1].uid)
    else:
        builder.plan(next_occurrence(builder.schedule, since))


def reanchored(spec: Spec, now: datetime) -> Spec:
    """Return a spec whose intervals are measured from `now`."""

    def move(member: Member) -> Member:
        return member if isinstance(member, Once | After) or member.anchor is None else replace(member, anchor=now)

    return replace(spec, members=tuple(move(member) for member in spec.members))


def decide_restart(
    schedule: Schedule,
    runs: Iterable[Run],
    *,
    now: datetime,
    note: str | None = None,
    context: CommandContext | None = None,
    operation: str | None = None,
) -> Change:
    """Make a done or dead schedule active with counters at zero.

    Raises ScheduleStateError if the schedule has another status, or if its spec has no further occurrence.
    """
    _require(schedule, "restart", ScheduleStatus.DONE, ScheduleStatus.DEAD)
    if not _has_more(schedule, now):
        raise ScheduleStateError(
            schedule.schedule_id, schedule.status.value, "restart", "Its spec has no further occurrence: update it."
        )
    builder = ChangeBuilder(schedule, runs, now=now, context=context)
    since = _activate(builder, note, now)
    builder.set(
        remaining=schedule.definition.max_runs,
        run_count=0,
        success_count=0,
        error_count=0,
        consecutive_failures=0,
        fire_failures=0,
        skipped_count=0,
        missed_count=0,
        last_error=None,
    )
    _plan_anew(builder, since)
    builder.record(audit.RESUMED, next_fire_at=builder.schedule.due_at, reason="restart")
    return builder.build(operation)


def decide_switch(
    change: Change,
    runs_of: RunsOf,
    *,
    paused: bool | None,
    revives: Collection[ScheduleStatus],
    now: datetime,
    context: CommandContext | None,
    operation: str,
    keep_next: bool = False,
) -> Change:
    """Add a pause or a resume to a Change.

    If `paused` is True, pause an active schedule. If `paused` is False, resume a paused schedule, or restart a schedule
    whose status is in `revives`. If `paused` is None, add nothing.
    """
    schedule = change.after
    if paused:
        if not schedule.is_active:
            return change
        return combined(change, decide_pause(schedule, now=now, context=context, operation=operation))
    if paused is None:
        return change
    if schedule.status is ScheduleStatus.PAUSED:
        resumed = decide_resume(
            schedule, runs_of(schedule), now=now, context=context, operation=operation, keep_next=keep_next
        )
        return combined(change, resumed)
    if schedule.status in revives:
        restarted = decide_restart(schedule, runs_of(schedule), now=now, context=context, operation=operation)
        return combined(change, restarted)
    return change


def can_continue(schedule: Schedule, now: datetime) -> bool:
    """Return whether a done schedule could run again: an occurrence is ahead, and no maximum of runs is reached."""
    enough = schedule.policies.max_successes
    return (
        schedule.status is ScheduleStatus.DONE
        and schedule.remaining != 0
        and (enough is None or schedule.success_count < enough)
        and _has_more(schedule, now)
    )


def _has_more(schedule: Schedule, now: datetime) -> bool:
    """Return whether the schedule may have an occurrence ahead. This is always true for a schedule with an upstream."""
    if schedule.upstream_id is not None:
        return True
    return answered(schedule.timeline.next_after, planned_from(schedule, now), otherwise=now) is not None


def decide_continue(
    schedule: Schedule,
    runs: Iterable[Run],
    *,
    now: datetime,
    context: CommandContext | None = None,
    operation: str | None = None,
) -> Change:
    """Make a done schedule active again, because its owner declared a later end. Its counters continue.

    `can_continue` must be true for the schedule.
    """
    _require(schedule, "continue", ScheduleStatus.DONE)
    builder = ChangeBuilder(schedule, runs, now=now, context=context)
    since = _activate(builder, None, now)
    _plan_anew(builder, since)
    builder.record(audit.RESUMED, next_fire_at=builder.schedule.due_at, reason="declared_again")
    return builder.build(operation)


def decide_delete(
    schedule: Schedule,
    *,
    now: datetime,
    reason: str | None = None,
    context: CommandContext | None = None,
    operation: str | None = None,
) -> Change:
    """Delete a schedule softly: its row stays. An occurrence that is already due is recorded as skipped (`deleted`).

    Raises ScheduleStateError if the schedule is already deleted.
    """
    _require(schedule, "delete", *_LIVE)
    builder = ChangeBuilder(schedule, now=now, context=context)
    delete(builder, reason)
    builder.set(version=schedule.version + 1)
    return builder.build(operation)


def _require(schedule: Schedule, operation: str, *statuses: ScheduleStatus) -> None:
    if schedule.status not in statuses:
        hint = _HINTS.get((operation, schedule.status), "")
        raise ScheduleStateError(schedule.schedule_id, schedule.status.value, operation, hint)


_HINTS = {
    ("resume", ScheduleStatus.DONE): "Use restart() to run it again from zero.",
    ("resume", ScheduleStatus.DEAD): "Use restart() to revive it.",
    ("restart", ScheduleStatus.PAUSED): "Use resume().",
    ("restart", ScheduleStatus.ACTIVE): "Only a done or dead one restarts; use trigger() for a run now.",
}
