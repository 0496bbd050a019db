"""Explain why a schedule ran or did not run at an instant, from its row, its runs and its history.

This module only reads. If history was pruned, the answer says so, and nothing is concluded from missing records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from rqsched.errors import InvalidSpecError, NewerReleaseError, error_line
from rqsched.features.after import store as upstream_ends
from rqsched.features.after.decide import UpstreamEnd
from rqsched.features.calendars import store as calendars
from rqsched.features.limits.chain import told_of_line, told_of_targets
from rqsched.kernel.chain.refusals import find_all
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import AuditRecord, instant_of
from rqsched.kernel.decide.freeze import Freeze
from rqsched.kernel.decide.lifecycle import decide_end_pause, reanchored
from rqsched.kernel.decide.model import Run, RunKind, RunStatus, Schedule, ScheduleStatus, Skips
from rqsched.kernel.decide.occurrences import COUNT_CAP, TICK, due_of, stored_due_of
from rqsched.kernel.decide.policy import OnResume
from rqsched.kernel.decide.reasons import SkipReason, end_in_words, miss_in_words, skip_in_words
from rqsched.kernel.decide.results import Answer, Why
from rqsched.kernel.queries import events as event_queries
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.store import changes, metadata
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport.transport import queue_in_words
from rqsched.when.cron import Gap
from rqsched.when.moved import FURTHEST
from rqsched.when.spec import After, Spec
from rqsched.when.steps import MOST_STEPS, answered
from rqsched.when.words import after_in_words, length_in_words

LOOKED_AT = 5_000
"""The maximum number of events that one search of the history reads; older events are not considered."""
_SKEW = timedelta(seconds=5)
"""How far a process's clock may be slow. The search for the event of an occurrence begins this long before the
occurrence."""
_LATE = timedelta(seconds=1)
"""A run is late if it starts this long after it was due."""
_MOST_DAYS = 3
"""At most this many moved instants are listed. The others are only counted."""
_STATUSES = {
    audit.CREATED: ScheduleStatus.ACTIVE,
    audit.RESUMED: ScheduleStatus.ACTIVE,
    audit.PAUSED: ScheduleStatus.PAUSED,
    audit.COMPLETED: ScheduleStatus.DONE,
    audit.DIED: ScheduleStatus.DEAD,
    audit.DELETED: ScheduleStatus.DELETED,
}
_ANSWERS = {
    ScheduleStatus.PAUSED: Answer.PAUSED,
    ScheduleStatus.DONE: Answer.DONE,
    ScheduleStatus.DEAD: Answer.DEAD,
    ScheduleStatus.DELETED: Answer.DELETED,
}
_NO_RUN = frozenset({*_ANSWERS.values(), Answer.SKIPPED, Answer.MISSED, Answer.FROZEN})
"""The answers for an occurrence that got no run when it was due."""
_UNFIRED = frozenset({Answer.FIRES, Answer.LATE})
_NOT_FIRED = frozenset({Answer.MISSED, Answer.NOT_KEPT, Answer.NOT_RECORDED})
"""The answers for a passed occurrence without a run. If there was a freeze at its time, FROZEN replaces them."""
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC) + timedelta(days=1), datetime.max.replace(tzinfo=UTC)
_TIMING = (audit.CREATED, audit.UPDATED)
_OUTCOMES = (audit.SKIPPED, audit.MISSED, audit.PAUSED, audit.DELETED, audit.FIRE_FAILED)


def why(
    connection: Connection, schedule: Schedule, at: datetime | None, now: datetime, default_queue: str = "default"
) -> Why:
    """Return the answer for an aware UTC instant; without an instant, for the newest occurrence up to now.

    `default_queue` is the queue of a run whose schedule names no queue.
    """
    asked = _Question(connection, schedule, now, now if at is None else at)
    try:
        told = _found(asked, schedule, at, now)
        refused = asked.refused(told, default_queue)
        return replace(told, text=told.text + asked.shifted(told.occurrence_at) + refused)
    except NewerReleaseError as error:
        text = f"Its timing is of a newer release ({error.unknown}), whose processes fire it; ask one of them."
        return asked.say(Answer.NEWER_RELEASE, text)
    except InvalidSpecError:
        if not (gone := schedule.spec.missing_calendars):
            raise
        if not schedule.is_active:
            return asked.because_of_status(schedule.status, asked.newest_status)
        text = f"It excludes the calendar {gone[0]}, which is not there, so that nothing fires"
        return asked.say(Answer.EXCLUDED, f"{text}; set that calendar again, or exclude something else.")


def _found(asked: _Question, schedule: Schedule, at: datetime | None, now: datetime) -> Why:
    if at is not None:
        return asked.after_pause() or asked.answer()
    if not schedule.is_active:
        return asked.because_of_status(schedule.status, asked.newest_status)
    if schedule.spec.after is not None:
        end = upstream_ends.read_one(asked.connection, schedule.uid)
        return asked.about_the_next() if end is None else replace(asked, at=end.ended_at).answer()
    since = max(schedule.created_at, schedule.timing_changed_at)
    newest = [] if schedule.spec.is_from_completion else schedule.spec.last_between(since, now, 1)
    if newest:
        return replace(asked, at=newest[-1]).answer()
    return asked.about_the_next()


@dataclass(frozen=True)
class _Question:
    connection: Connection
    schedule: Schedule
    now: datetime
    at: datetime

    def answer(self) -> Why:
        """Answer for the instant: from the run of its occurrence, else from the history."""
        run = run_queries.run_of_occurrence(self.connection, self.schedule.uid, self.at, self.end)
        if run is None and (end := self.upstream_end) is not None:
            run = upstream_ends.run_after(self.connection, end)
        if run is None:
            return self.without_run()
        told = self.about_run(run)
        if run.upstream_run_uid is not None and (end := self.upstream_end) is not None:
            told = replace(told, text=f"{told.text} It came after {self.ended(end)}.")
        is_live = run.kind is not RunKind.BACKFILL
        freeze = self.freeze_at(self.now if told.answer == Answer.WAITS else None, run.due_at if is_live else None)
        if freeze is not None and (run.started_at is None or not freeze.covers(run.started_at)):
            told = replace(told, text=f"{told.text} {self.told_of(freeze)}")
        if is_live:
            return told
        live = self.without_run()  # the outcome that the occurrence had before the backfill
        return replace(told, text=f"{told.text} When it was due: {live.text}") if live.answer in _NO_RUN else told

    def refused(self, told: Why, default_queue: str) -> str:
        """Return text if Redis permanently refuses a waiting run or fire; else an empty text."""
        if told.answer not in {Answer.WAITS, Answer.LATE}:
            return ""
        run = None if told.run_uid is None else changes.find_run(self.connection, told.run_uid)
        queue = None
        if run is not None and run.status is RunStatus.PENDING:
            queue = queue_in_words(run.queue or default_queue, run.connection)
        found = [one for one in find_all(self.connection, self.now) if one.what == queue or "control" in one.what]
        return f" {found[-1].text}. {found[-1].advice}" if found else ""

    def shifted(self, occurrence: datetime | None) -> str:
        """Return text if an occurrence was shifted, because its local time was left out; else return empty text."""
        spec = self.schedule.spec
        if occurrence is None or not spec.is_known or spec.dst_gap != "shift":
            return ""
        if occurrence <= self.schedule.timing_changed_at:
            return ""
        gaps = [gap for gap in spec.gaps_between(occurrence - TICK, occurrence) if gap.occurrence_at == occurrence]
        text = f" The clock left out {_readings(gaps)} that day: it is shifted to this time (dst_gap=shift)."
        return text if gaps else ""

    def after_pause(self) -> Why | None:
        """Answer for an instant after the planned end of the schedule's pause. For any other instant, return None."""
        until = self.schedule.resume_at
        if until is None or self.end <= max(until, self.now):
            return None
        resumed = decide_end_pause(self.schedule, [], now=max(until, self.now)).after
        if not resumed.is_active:
            return None
        told = replace(self, schedule=resumed).answer()
        return replace(told, text=f"It is paused until {self.clock(until)}. {told.text}")

    def without_run(self) -> Why:
        """Answer for an instant whose occurrence has no run: give the first answer that applies."""
        return self.under_freeze(next(found for found in self._answers() if found is not None))

    @cached_property
    def upstream_end(self) -> UpstreamEnd | None:
        """The first recorded end of an upstream's run within the time asked about, or None."""
        return upstream_ends.read_one(self.connection, self.schedule.uid, self.at, self.end)

    def ended(self, end: UpstreamEnd) -> str:
        """Return text on which upstream run ended, when and how."""
        upstream = changes.find(self.connection, end.upstream_uid)
        name = end.upstream_id or "a schedule that was purged"
        run = None if upstream is None else run_queries.find_run_of(self.connection, upstream.uid, end.run_uid)
        which = f"run #{run.number}" if run is not None else "a run"
        return f"{which} of {name}, which ended on {self.clock(end.ended_at)}: {end.outcome}"

    def owed(self, end: UpstreamEnd) -> Why | None:
        """Answer for an upstream end that has no outcome yet; return None if it has one."""
        if end.due_at is None:
            return None
        text = f"It comes after {self.ended(end)}. Its run has not started yet"
        if end.error is not None:
            text += f": {end.error}. That is tried again on {self.clock(end.due_at)}, and is never given up"
        return self.say(Answer.LATE, _ended(text), occurrence_at=end.ended_at, since=end.ended_at)

    def _answers(self) -> Iterator[Why | None]:
        spec, occurrence = self.timing_then
        if occurrence is None and self.at < self.schedule.created_at:
            yield self.before_creation()
        status, event = self.status_at(occurrence or self.at)
        if status in _ANSWERS:
            yield self.because_of_status(status, event)
        if (end := self.upstream_end) is not None:
            yield self.owed(end)
            yield self.recorded(None)
        if spec is None:
            yield self.not_kept()
        elif occurrence is None:
            yield self.recorded(None)
            yield self.without_occurrence(spec)
        elif occurrence in self.schedule.skipped_at:
            asked = next(asked for asked in self.schedule.parsed_skips if occurrence in asked.occurrences)
            verb = "is" if occurrence > self.now else "was"
            yield self.on_request(occurrence, asked, verb)
        elif occurrence > self.now:
            yield self.ahead(occurrence)
        else:
            yield self.recorded(occurrence)
            yield self.not_fired(occurrence)
            yield self.not_kept(occurrence)
            yield self.say(Answer.NOT_RECORDED, "No run, skip or miss of it is recorded.", occurrence_at=occurrence)

    @cached_property
    def freezes(self) -> list[Freeze]:
        """The recorded freezes of everything and of the schedule's namespace, newest first."""
        return metadata.find_freezes(self.connection, None, self.schedule.namespace)

    def freeze_at(self, *instants: datetime | None) -> Freeze | None:
        """Return the freeze for the first of these instants that any freeze covers, or None."""
        return next((one for at in instants if at is not None for one in self.freezes if one.covers(at)), None)

    def under_freeze(self, told: Why) -> Why:
        """If a freeze lasts now, or lasted when the occurrence was due, add the freeze to the answer `told`."""
        occurrence, is_unfired = told.occurrence_at, told.answer in _UNFIRED
        if occurrence is None or told.answer not in {*_UNFIRED, *_NOT_FIRED, Answer.SKIPPED}:
            return told
        freeze = self.freeze_at(self.now if is_unfired else None, occurrence)
        if freeze is None:
            return told
        text = f"{told.text} {self.told_of(freeze)}"
        if told.answer in _NOT_FIRED or (is_unfired and freeze.thawed_at is None):
            answer = Answer.FROZEN.value
            return replace(told, answer=answer, text=text, since=freeze.since, by=freeze.by, reason=freeze.reason)
        return replace(told, text=text)

    def told_of(self, freeze: Freeze) -> str:
        """Describe a freeze in a sentence."""
        told = freeze.told(self.clock)
        if freeze.thawed_at is None:
            end = f"thaw {freeze.namespace or '--everything'}"
            told += f", and nothing begins before `rqsched {end}`"
        return _ended(told[0].upper() + told[1:] + ("" if freeze.reason is None else f": {freeze.reason}"))

    def before_creation(self) -> Why:
        """Answer for an instant before the schedule was created: from an earlier schedule with its id, if any."""
        told = self.say(Answer.NOT_CREATED, f"It was created on {self.clock(self.schedule.created_at)}.")
        before = schedule_queries.find_before(self.connection, self.schedule, self.at)
        if before is None:
            return told
        of_it = replace(self, schedule=before).answer()
        text = f"{told.text} An earlier schedule had this id: {of_it.text}"
        return replace(of_it, text=text, event_sequence=None)  # the event is in the earlier schedule's history

    @cached_property
    def span(self) -> timedelta:
        """The length of the time asked about: a second if `at` has seconds, else a minute."""
        return timedelta(seconds=1) if self.at.second or self.at.microsecond else timedelta(minutes=1)

    @cached_property
    def end(self) -> datetime:
        """The end of the time asked about, exclusive."""
        return self.at + self.span if self.at < _LAST - self.span else _LAST

    @cached_property
    def zone(self) -> ZoneInfo:
        """The zone in which answers show times."""
        return ZoneInfo(self.schedule.spec.timezone)

    @property
    def delay(self) -> str:
        """The options that may delay the schedule's fires."""
        schedule = self.schedule
        delays = (("spread", schedule.policies.spread), ("jitter", schedule.definition.jitter))
        return " and ".join(name for name, length in delays if length)

    def clock(self, at: datetime) -> str:
        """Return an instant as text in the schedule's zone."""
        # Near the first and the last `datetime`, a conversion to local time overflows.
        is_within = _FIRST < at < _LAST - timedelta(days=1)
        shown = at.astimezone(self.zone) if is_within else at
        return f"{shown:%a %d %b %Y} at {shown:{'%H:%M:%S' if shown.second else '%H:%M'}} {shown.tzname()}"

    def up_to(self, at: datetime) -> int:
        """Return the sequence number of the newest event up to an instant."""
        schedule = self.schedule
        return event_queries.sequence_at(self.connection, schedule.uid, at, newest=schedule.event_sequence)

    def newest(self, types: Any, up_to: int) -> AuditRecord | None:
        """Read the newest event of some types up to a sequence number."""
        return event_queries.newest_of_types(self.connection, self.schedule.uid, [*types], up_to, LOOKED_AT)

    @cached_property
    def newest_status(self) -> AuditRecord | None:
        """The event that set the schedule's current status; None if the history does not hold it."""
        return self.newest(_STATUSES, self.schedule.event_sequence)

    def say(self, answer: Answer, text: str, event: AuditRecord | None = None, **fields: Any) -> Why:
        """Build the answer; `event` gives its time, principal and reason."""
        if event is not None:
            context = event.payload.get("command_context") or {}
            reason = context.get("reason") or event.payload.get("reason")
            told = {"since": event.recorded_at, "by": context.get("principal"), "reason": reason}
            fields = told | {"event_sequence": event.sequence} | fields
        return Why(self.at, answer.value, text, **fields)

    def status_at(self, moment: datetime) -> tuple[ScheduleStatus | None, AuditRecord | None]:
        """Return the status at a moment and the event that set it; each is None if the history does not say."""
        schedule = self.schedule
        if moment >= self.now:
            return schedule.status, self.newest_status
        event = self.newest(_STATUSES, self.up_to(moment))
        if event is None:
            is_paused = schedule.paused_at is not None and schedule.paused_at <= moment
            return (ScheduleStatus.PAUSED if is_paused else None), None
        return _STATUSES[event.event_type], event

    @cached_property
    def timing_then(self) -> tuple[Spec | None, datetime | None]:
        """The timing at the instant, and its first occurrence in the time asked about.

        The timing is None if the history does not have it. If the timing has no occurrence in that time, the stored
        next occurrence is used if it is in that time; else the occurrence is None. The stored occurrence may have been
        computed from the end of a run, or with an earlier timing.
        """
        schedule = self.schedule
        spec: Spec | None
        start, changed = max(self.at, schedule.created_at + TICK), schedule.timing_changed_at + TICK
        if start >= changed or schedule.timing_changed_at == schedule.created_at:
            spec, found = schedule.spec, _first_in(schedule.spec, start, self.end)
        else:
            spec = self.spec_before
            found = None if spec is None else _first_in(spec, start, min(self.end, changed))
            if found is None and (later := _first_in(schedule.spec, changed, self.end)) is not None:
                spec, found = schedule.spec, later
        stored = schedule.next_run_at
        is_stored = found is None and stored is not None and start <= stored < self.end
        return spec, stored if is_stored else found

    @cached_property
    def spec_before(self) -> Spec | None:
        """The timing at the instant, which a later timing has replaced; None if the history does not have it."""
        up_to = self.up_to(self.at)
        event = self.newest(_TIMING, up_to)
        if event is None or "spec" not in event.payload:
            return None
        spec = Spec.from_stored(event.payload["spec"])
        if spec.calendars:
            held = calendars.as_of(self.connection, self.schedule.namespace, spec.calendars, self.at)
            if len(held) < len(spec.calendars):
                return None
            spec = spec.with_calendars(held)
        resumes = event_queries.next_of_types(
            self.connection, self.schedule.uid, [audit.RESUMED], event.sequence, LOOKED_AT
        )
        for one in resumes:
            if one.sequence <= up_to and one.payload.get("reason") == OnResume.FROM_NOW.value:
                spec = reanchored(spec, instant_of(one, "until") or one.recorded_at)
        return spec

    def because_of_status(self, status: ScheduleStatus, event: AuditRecord | None) -> Why:
        """Answer for an instant at which the schedule does not fire because of its status."""
        is_past = status is not self.schedule.status or (event is not None and event != self.newest_status)
        since = None if event is None else event.recorded_at
        if status is ScheduleStatus.PAUSED:
            paused_at = None if event is None else instant_of(event, "paused_at")
            since = paused_at or since or self.schedule.paused_at
        told = self.say(_ANSWERS[status], "", event, since=since)
        if since is None:
            text = f"It was {status.value} then" if is_past else f"It is {status.value}"
        else:
            verb = f"was {status.value} then," if is_past else f"has been {status.value}"
            text = f"It {verb} since {self.clock(since)}"
        if told.by is not None:
            text += f", by {told.by}"
        if told.reason is not None:
            text += f": {end_in_words(told.reason)}"
        if status is ScheduleStatus.DEAD and event is not None and (error := event.payload.get("error")):
            text += f". The error: {error_line(error)}"
        if not is_past and (until := self.schedule.resume_at) is not None:
            text += f". Its pause ends by itself on {self.clock(until)}"
        run = event.workflow_run_id if event is not None else None
        return replace(told, text=_ended(text), run_uid=run)

    def awaited_by(self, run: Run) -> str:
        """Return text on what a pending run waits for, or on its position in line."""
        if run.is_blocked:
            return f"for its workflow: {run.blocked_reason}"
        if self.freeze_at(self.now) is not None:
            return "for a thaw"
        line = told_of_line(self.connection, run, self.now, self.clock) or "a worker of its queue"
        return line if run.is_in_line else f"for {line}"

    def about_run(self, run: Run) -> Why:
        """Answer for an occurrence that has a run."""
        number = f"run #{run.number}" + (" of a backfill" if run.kind is RunKind.BACKFILL else "")
        name = f"Its {number}"
        started = None if run.started_at is None else self.clock(run.started_at)
        waits = {
            RunStatus.BUFFERED: f"{name} waits for the run ahead of it",
            RunStatus.PENDING: f"{name} waits {self.awaited_by(run)}",
            RunStatus.RETRYING: f"Attempt {run.attempt} of its run #{run.number} failed: {error_line(run.error)}. "
            f"The next begins on {self.clock(run.retry_at or self.now)}",
        }
        since = run.blocked_at or (run.limit_at if run.needs_grant else None) or run.queued_at or run.created_at
        fields: dict[str, Any] = {
            "occurrence_at": run.occurrence_at,
            "run_uid": run.uid,
            "since": run.started_at or since,
        }
        if run.status in waits:
            text = waits[run.status]
            if run.status is not RunStatus.RETRYING:
                text += f", since {self.clock(since)}"
            return self.say(Answer.WAITS, _ended(text), **fields)
        text, answer = f"It ran: {number}, {run.status.value}", Answer.RAN
        if run.expired_at is not None:
            text, answer = f"{name} expired", Answer.NOT_STARTED
        elif started is None:
            text, answer = f"{name} was {run.status.value} before it started", Answer.NOT_STARTED
        elif run.status is RunStatus.RUNNING:
            text = f"It runs: {number}, started on {started}"
            if waiting := told_of_targets(self.connection, run, self.now, self.clock):
                text += f"; {waiting}"
        elif run.ended_at is not None:
            text += f", started on {started}, ended on {self.clock(run.ended_at)}"
        if run.moved_from:
            text += f", moved from {self.days(run.moved_from)}"
        text += _lateness(run)
        if run.error and run.status is not RunStatus.SUCCEEDED:
            text += f": {run.error}" if run.expired_at is not None else f". The error: {error_line(run.error)}"
        return self.say(answer, _ended(text), **fields)

    def days(self, instants: Sequence[datetime]) -> str:
        """List the nominal instants of a moved occurrence in words."""
        shown = [self.clock(at) for at in instants[:_MOST_DAYS]]
        more = [f"{len(instants) - len(shown)} more"] if len(instants) > len(shown) else []
        return f"{' and '.join([*shown, *more])}, which {'is' if len(instants) == 1 else 'are'} excluded"

    def moved(self, spec: Spec) -> Why | None:
        """Answer for an excluded instant whose occurrence moved to another day; else return None."""
        nominal = spec.nominal_in(self.at, self.end)
        if nominal is None:
            return None
        run = run_queries.run_standing_for(self.connection, self.schedule.uid, nominal)
        then = spec.moved_to(nominal) if run is None else run.occurrence_at
        if then is None or then == nominal:
            return None
        told = replace(self, at=then).answer()
        by = spec.excluded_by(nominal)
        why = f"excluded ({by})" if by is not None else "excluded when it was planned"
        return replace(told, at=self.at, text=f"It is moved to {self.clock(then)}, as {why}. {told.text}")

    def recorded(self, occurrence: datetime | None) -> Why | None:
        """Answer from the event that gave a passed occurrence its outcome; return None if there is no such event.

        Without `occurrence`, look for an event about any occurrence at the instant. The timing may not contain that
        occurrence: the clocks may have left out its local time, it may have been computed from the end of a run, or the
        timing may have changed since.
        """
        after = self.up_to((occurrence or self.at) - _SKEW)
        events = event_queries.next_of_types(self.connection, self.schedule.uid, _OUTCOMES, after, LOOKED_AT)
        for number, event in enumerate(events):
            meant = occurrence or _recorded_in(event, self.at, self.end)
            if meant is None or not _concerns(event, meant):
                continue
            code = str(event.payload.get("reason" if event.event_type == audit.SKIPPED else "policy", ""))
            stops = {SkipReason.PAUSED.value: audit.PAUSED, SkipReason.DELETED.value: audit.DELETED}
            stop = next((one for one in events[number:] if one.event_type == stops.get(code)), None)
            if stop is not None:  # it was due, and a pause or a delete came before it fired
                told = self.because_of_status(_STATUSES[stop.event_type], stop)
                return replace(told, occurrence_at=meant)
            return self.omitted(meant, event, code)
        return None

    def omitted(self, occurrence: datetime, event: AuditRecord, code: str) -> Why:
        """Answer for an occurrence that was skipped or missed."""
        payload = event.payload
        if event.event_type == audit.MISSED:
            told = miss_in_words(code, has_fired=bool(payload.get("fired")))
            recorded = self.clock(event.recorded_at)
            text = f"It was missed: {told}. No worker fired it; the miss was recorded on {recorded}."
            return self.say(Answer.MISSED, text, event, occurrence_at=occurrence, reason=code)
        if code == SkipReason.ON_REQUEST:
            asked_at = instant_of(event, "asked_at") or event.recorded_at
            asked = Skips((occurrence,), asked_at, payload.get("asked_by"), payload.get("asked_reason"))
            return replace(self.on_request(occurrence, asked, "was"), event_sequence=event.sequence)
        text = f"It was skipped: {skip_in_words(code)}"
        blocking = payload.get("blocking_run_id")
        run = None if blocking is None else run_queries.find_run_of(self.connection, self.schedule.uid, str(blocking))
        if run is not None:
            text += f", #{run.number}"
        return self.say(Answer.SKIPPED, f"{text}.", event, occurrence_at=occurrence, run_uid=blocking, reason=code)

    def on_request(self, occurrence: datetime, asked: Skips, verb: str) -> Why:
        """Answer for an occurrence that somebody asked to skip."""
        text = f"It {verb} skipped: {asked.by or 'somebody'} asked for that on {self.clock(asked.asked_at)}"
        if asked.reason is not None:
            text += f": {asked.reason}"
        told = self.say(Answer.SKIPPED, _ended(text), occurrence_at=occurrence, since=asked.asked_at)
        return replace(told, by=asked.by, reason=asked.reason)

    def without_occurrence(self, spec: Spec) -> Why:
        """Answer for an instant at which the timing has no occurrence."""
        if spec.start_at is not None and self.at < spec.start_at:
            return self.say(Answer.OUTSIDE_WINDOW, f"Its window begins on {self.clock(spec.start_at)}.")
        if spec.end_at is not None and self.at >= spec.end_at:
            word = "ends" if spec.end_at > self.now else "ended"
            return self.say(Answer.OUTSIDE_WINDOW, f"Its window {word} on {self.clock(spec.end_at)}.")
        if spec.dst_gap != "shift" and (gaps := spec.gaps_between(self.at - TICK, self.end - TICK)):
            verb = "left" if self.at < self.now else "leaves"
            text = f"The clock {verb} out {_readings(gaps)} that day, and it does not fire then (dst_gap=skip)."
            return self.say(
                Answer.SKIPPED, text, occurrence_at=gaps[0].occurrence_at, reason=SkipReason.CLOCK_CHANGE.value
            )
        if (elsewhere := self.moved(spec) or self.excluded(spec)) is not None:
            return elsewhere
        today = self.schedule.spec
        if spec != today and _first_in(today, self.at, self.end) is not None:
            event = self.newest(_TIMING, self.up_to(self.schedule.timing_changed_at))
            changed = self.clock(self.schedule.timing_changed_at)
            text = f"Its timing was changed on {changed}; the one before had no occurrence then: {spec.describe()}."
            return self.say(Answer.CHANGED, text, event)
        if spec.after is not None:
            when = "none of these was then" if self.at < self.now else "when that will be is not known yet"
            return self.say(Answer.NO_OCCURRENCE, f"{self.comes_after(spec.after)}; {when}.")
        if spec.is_from_completion:
            told = "it was not due then" if self.at < self.now else "when that will be is not known yet"
            if (upcoming := self.schedule.next_run_at) is not None and upcoming > self.now:
                told = f"it is due next on {self.clock(upcoming)}"
            if self.at < self.now and (cut := self.not_kept(self.at)) is not None:
                return replace(cut, occurrence_at=None)
            return self.say(Answer.NO_OCCURRENCE, f"It fires some time after the end of each run; {told}.")
        before, after = _last_before(spec, self.at - TICK), spec.next_after(self.at)
        near = " and ".join(
            f"{word} it on {self.clock(at)}" for word, at in (("before", before), ("after", after)) if at is not None
        )
        return self.say(Answer.NO_OCCURRENCE, f"No occurrence is then; {near or 'it has none'}.")

    def comes_after(self, after: After) -> str:
        """Return text on the upstream of the schedule, and whether the upstream is missing or does not fire."""
        text = f"It comes {after_in_words(after)}"
        upstream = changes.find_named(self.connection, self.schedule.namespace, after.schedule_id)
        if upstream is None:
            return f"{text}, which is not there any more"
        return text if upstream.is_active else f"{text}, which is {upstream.status.value}"

    def excluded(self, spec: Spec) -> Why | None:
        """Answer for an instant that the timing names and excludes; else return None."""
        occurrence = _excluded_in(spec, self.at, self.end)
        if occurrence is None:
            return None
        following = spec.next_after(occurrence)
        upcoming = "all of the next ten years are" if following is None else f"the next is on {self.clock(following)}"
        nowhere = f", and no other day within {FURTHEST.days} can be taken" if spec.is_moving else ""
        text = f"It is excluded ({spec.excluded_by(occurrence)}){nowhere}; {upcoming}."
        return self.say(Answer.EXCLUDED, text, occurrence_at=occurrence)

    def ahead(self, occurrence: datetime) -> Why:
        """Answer for a future occurrence."""
        schedule, spec = self.schedule, self.schedule.spec
        if schedule.remaining is not None and schedule.next_run_at is not None and occurrence > schedule.next_run_at:
            before, _ = schedule.timeline.count_between(schedule.next_run_at, occurrence, cap=COUNT_CAP)
            if before >= schedule.remaining:
                text = f"Its max_runs end before: {schedule.remaining} of {schedule.definition.max_runs} are left."
                return self.say(Answer.DONE, text, occurrence_at=occurrence)
        due = stored_due_of(schedule, occurrence)
        text = f"It fires on {self.clock(due)}" + (f", {self.delay} included" if due != occurrence else "")
        if moved_from := schedule.moved_from if occurrence == schedule.next_run_at else spec.moved_from(occurrence):
            text += f", moved from {self.days(moved_from)}"
        if environments := schedule.policies.environments:
            text += f", where RQSCHED_ENVIRONMENT is {' or '.join(sorted(environments))}"
        return self.say(Answer.FIRES, f"{text}.", occurrence_at=occurrence)

    def about_the_next(self) -> Why:
        """Answer for an active schedule that has no passed occurrence, or that waits for the end of a run."""
        schedule = self.schedule
        if schedule.next_run_at is not None:
            return replace(self, at=schedule.next_run_at).answer()
        if schedule.spec.after is not None:
            return self.say(Answer.FIRES, f"{self.comes_after(schedule.spec.after)}; none has ended yet.")
        is_excluded = answered(schedule.spec.is_all_excluded_after, self.now, otherwise=None)
        if schedule.awaiting_run_uid is None and is_excluded is not False:
            text = "All its occurrences of the next ten years are excluded."
            if is_excluded is None:
                text = f"Its next time is not found in {MOST_STEPS} steps; each pass of reconcile looks again."
            return self.say(Answer.EXCLUDED, text)
        if schedule.skips is not None:
            return replace(self, at=schedule.skipped_at[-1]).answer()
        text = "It fires some time after the end of its unfinished run."
        return self.say(Answer.FIRES, text, run_uid=schedule.awaiting_run_uid)

    def not_fired(self, occurrence: datetime) -> Why | None:
        """Answer for a passed occurrence that the schedule has not evaluated yet; return None if it has."""
        schedule = self.schedule
        is_ahead = schedule.next_run_at is not None and occurrence >= schedule.next_run_at
        if occurrence <= schedule.evaluated_to or not is_ahead:
            return None
        due = due_of(schedule, occurrence)
        if due > self.now:
            return self.say(Answer.FIRES, f"It fires on {self.clock(due)}: its {self.delay}.", occurrence_at=occurrence)
        text = f"It has been due since {self.clock(due)}, and nothing has fired it yet"
        if schedule.fire_failures:
            text += f": its fire failed, {schedule.fire_failures} in a row ({error_line(schedule.last_error)})"
        return self.say(Answer.LATE, f"{text}.", occurrence_at=occurrence, since=due)

    def not_kept(self, occurrence: datetime | None = None) -> Why | None:
        """Answer if the needed record was pruned or is too far back; else return None."""
        oldest = event_queries.oldest_event(self.connection, self.schedule.uid)
        pruned_to = changes.read_pruned_to(self.connection, self.schedule.uid)
        is_cut = oldest is None or (oldest.sequence > 1 and occurrence is not None and oldest.recorded_at > occurrence)
        if occurrence is None or is_cut:
            since = None if oldest is None else oldest.recorded_at
            if oldest is not None and oldest.sequence == 1 and occurrence is None:
                text = f"What its timing was is recorded more than {LOOKED_AT} events before, further than is looked."
                return self.say(Answer.NOT_RECORDED, text)
            told = "at all" if since is None else f"from before {self.clock(since)}"
            return self.say(Answer.NOT_KEPT, f"Its history is not kept {told}.", occurrence_at=occurrence, since=since)
        if pruned_to is not None and pruned_to >= occurrence:
            text = f"Its runs are not kept up to the occurrence on {self.clock(pruned_to)}."
            return self.say(Answer.NOT_KEPT, text, occurrence_at=occurrence, since=pruned_to)
        return None


def _first_in(spec: Spec, start: datetime, end: datetime) -> datetime | None:
    if spec.is_from_completion:
        return None
    found = spec.next_after(start - TICK)
    return found if found is not None and found < end else None


def _excluded_in(spec: Spec, start: datetime, end: datetime) -> datetime | None:
    found = None if spec.is_from_completion else spec.excluded_between(start - TICK, end - TICK)
    return None if found is None else found.first


def _readings(gaps: Iterable[Gap]) -> str:
    return " and ".join(f"{gap.reading:%H:%M}" for gap in gaps)


def _last_before(spec: Spec, at: datetime) -> datetime | None:
    return next(iter(spec.last_between(at - timedelta(days=3_660), at, 1)), None)


def _concerns(event: AuditRecord, occurrence: datetime) -> bool:
    if event.event_type == audit.SKIPPED:
        return instant_of(event, "occurrence_time") == occurrence
    if event.event_type != audit.MISSED:
        return False
    if occurrence in map(datetime.fromisoformat, event.payload.get("fired") or ()):
        return False
    first, last = instant_of(event, "first"), instant_of(event, "last")
    return first is not None and last is not None and first <= occurrence <= last


def _recorded_in(event: AuditRecord, start: datetime, end: datetime) -> datetime | None:
    at = instant_of(event, "occurrence_time" if event.event_type == audit.SKIPPED else "first")
    return at if at is not None and start <= at < end else None


def _lateness(run: Run) -> str:
    """Return text on how late the first attempt of a run started, and on the reasons; empty if it was not late."""
    if run.due_at is None or run.started_at is None or run.attempt > 1 or run.kind is RunKind.BACKFILL:
        return ""
    if run.started_at - run.due_at < _LATE:
        return ""
    queued_at = run.queued_at or run.created_at
    granted_at = queued_at if run.granted_at is None else max(run.granted_at, queued_at)
    queue = "the default queue" if run.queue is None else f"queue {run.queue}"
    spent = (
        ("until a dispatcher fired it", run.created_at - run.due_at),
        ("behind the run ahead of it", queued_at - run.created_at),
        (f"in line for limit {run.limit}", granted_at - queued_at),
        (f"for a worker of {queue}", run.started_at - granted_at),
    )
    parts = [f"{_rounded(length)} {where}" for where, length in spent if length >= _LATE]
    return f", {_rounded(run.started_at - run.due_at)} late" + (f" ({', '.join(parts)})" if parts else "")


def _rounded(length: timedelta) -> str:
    text = length_in_words(timedelta(seconds=round(length.total_seconds())))
    return text if text[0].isdigit() else f"1 {text}"


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
