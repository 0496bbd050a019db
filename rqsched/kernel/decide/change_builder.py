"""The builder of one decision: it collects the changes of a schedule and its runs, and the audit events. Pure.

A decision creates a ChangeBuilder, changes it and returns the result of `build`. The builder knows no policy. It
numbers the events. If the status of a run changes, the builder updates the counters of waiting runs. If the status or
the next time of the schedule changes, the builder increases the position `n`. Then every older link (a delayed job that
fires the schedule) is stale (docs/architecture.md, "Protocol").
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter
from typing import Any

from rqsched.kernel.decide.audit import CONTRACT, CommandContext, Event
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.limit_options import key_of, name_of
from rqsched.kernel.decide.model import (
    EXPECTING,
    Change,
    Occurrence,
    Run,
    RunKind,
    RunStatus,
    Schedule,
    changed,
    dump_moves,
)
from rqsched.kernel.decide.policy import OverlapUntil
from rqsched.when.calendars import stamp_of

_NAMING = {
    "workflow_instance_id": "instance_id",
    "workflow_run_id": "uid",
    "occurrence_time": "occurrence_at",
    "upstream_run_id": "upstream_run_uid",
    "upstream_schedule_id": "upstream_schedule_id",
    "attempt": "attempt",
}
"""The payload keys with which an event identifies a run, and the field of the run for each key."""
_NAMED = {
    event_type: {key: name for key, name in _NAMING.items() if key in contract}
    for event_type, contract in CONTRACT.items()
}
"""For each event type, the entries of `_NAMING` that its contract allows."""


class ChangeBuilder:
    """The schedule and its open runs, with the changes that the decision has made so far."""

    def __init__(
        self,
        schedule: Schedule,
        runs: Iterable[Run] = (),
        *,
        now: datetime,
        context: CommandContext | None = None,
        is_new: bool = False,
    ) -> None:
        self.now = now
        self.schedule = schedule
        self._before = None if is_new else schedule
        self.context = context
        """The actor and the reason; None if they are not known."""
        self._read = {run.uid: run for run in runs}
        self._runs = dict(self._read)
        self._events: list[Event] = []
        self._drops_buffer = False
        self.drops_retries = False
        """Whether every run that waits for its next attempt is cancelled."""
        self.dead_letters: list[str] = []
        """The uids of the failed runs that are kept among the dead letters."""
        self.owed_again: tuple[str, datetime] | None = None
        """An upstream run that ended during a pause, and the time of its end. After the resume, this upstream run
        starts a run of the schedule."""

    def unfinished(self, kind: RunKind = RunKind.SCHEDULED) -> list[Run]:
        """Return the runs that block a new run of this kind, oldest first. Backfilled runs never block live runs."""
        sees_backfill = kind is RunKind.BACKFILL
        # A run with `dispatched_at` only waits for its targets. If overlap_until is "dispatched", such a run blocks no
        # other run.
        sees_dispatched = self.schedule.policies.overlap_until is OverlapUntil.FINISHED
        return [
            run
            for run in self._in_order()
            if run.is_unfinished
            and (sees_backfill or run.kind is not RunKind.BACKFILL)
            and (sees_dispatched or run.dispatched_at is None)
        ]

    def waiting(self) -> list[Run]:
        """Return the buffered runs, oldest first. The runs that `drop_buffer` cancelled are still among them."""
        return [run for run in self._in_order() if run.status is RunStatus.BUFFERED]

    def run(self, uid: str) -> Run:
        """Return the run with the changes of this decision; raises KeyError if the run was not read."""
        return self._runs[uid]

    def _in_order(self) -> list[Run]:
        return sorted(self._runs.values(), key=_by_number)

    def set(self, **changes: Any) -> None:
        """Change fields of the schedule."""
        self.schedule = changed(self.schedule, **changes)

    def plan(self, occurrence: Occurrence | None) -> None:
        """Set the next time of an active schedule; None if its spec is over. Other schedules have no next time."""
        if self.schedule.is_active:
            nominal, due, nominals = occurrence or (None, None, ())
            self.set(next_run_at=nominal, due_at=due, awaiting_run_uid=None)
            if nominals or self.schedule.moves is not None:
                self.set(moves=dump_moves(self.schedule.parsed_moves._replace(nominals=nominals)))
        if self.schedule.contents:
            self.note_calendars()

    def wait_for(self, uid: str) -> None:
        """Leave the next time of an active schedule open until a run has ended (`from_completion`)."""
        if self.schedule.is_active:
            self.set(next_run_at=None, due_at=None, awaiting_run_uid=uid)
        if self.schedule.contents:
            self.note_calendars()

    def note_calendars(self) -> None:
        """Record the revisions of the calendars with which the next time is planned."""
        self.set(calendars=stamp_of(self.schedule.contents))

    def put_run(self, run: Run) -> Run:
        """Keep a new or changed run. Adjust the schedule's counters of waiting and backfilled runs to the new status of
        the run.

        A run that was not read is new. Its number becomes the schedule's `run_number`.
        """
        old = self._runs.get(run.uid)
        if old is None:
            if run.number != self.schedule.run_number + 1:
                raise KeyError(f"run {run.number} ({run.uid}) is not new, but the builder has not read it")
            self.set(run_number=run.number)
        self._runs[run.uid] = run
        for one, step in ((old, -1), (run, +1)):
            if one is not None and (name := _counter_of(one)) is not None:
                self.set(**{name: getattr(self.schedule, name) + step})
        return run

    def set_run(self, uid: str, **changes: Any) -> Run:
        """Change fields of a run."""
        return self.put_run(changed(self._runs[uid], **changes))

    def queue_run(self, run: Run, **changes: Any) -> Run:
        """Make a new or an existing run pending. If the schedule has `start_within`, set when it must start."""
        within = self.schedule.start_within
        start_by = None if within is None else self.now + within
        if run.limit_group is not None:
            changes |= {"limit_at": run.limit_at or self.now, "granted_at": None, "passed_at": None}
        pending = {"status": RunStatus.PENDING, "queued_at": self.now, "start_by": start_by}
        return self.put_run(changed(run, **pending, **changes))

    def end_run(self, uid: str, status: RunStatus, **changes: Any) -> Run:
        """Set the final status of a run."""
        ended = {"ended_at": self.now, "retry_at": None, "blocked_at": None, "blocked_reason": None}
        return self.set_run(uid, status=status, **ended, **changes)

    def drop_buffer(self) -> int | None:
        """Cancel every waiting run. Return their number for the payload of an event; None if no run waited."""
        waiting = self.schedule.buffer_depth + self.schedule.backfill_waiting
        self._drops_buffer = self._drops_buffer or waiting > 0
        self.set(buffer_depth=0, backfill_waiting=0)
        return waiting or None

    def record(self, event_type: str, run: Run | None = None, **payload: Any) -> None:
        """Add an audit event, with the keys of `_NAMED` if it is about a run.

        Keys without a value are left out, except `next_fire_at`.
        """
        if run is not None:
            payload |= {key: getattr(run, name) for key, name in _NAMED[event_type].items()}
        stored = {
            key: iso_utc(value) if isinstance(value, datetime) else value
            for key, value in payload.items()
            if value is not None or key == "next_fire_at"
        }
        if self.context is not None and (given := self.context.to_json()):
            stored["command_context"] = given
        self._events.append(Event(event_type, stored, run.uid if run else None, run.instance_id if run else None))

    def build(self, operation: str | None = None) -> Change:
        """Return the Change, with the new position `n`. `operation` is the uid of the call that caused it, if any."""
        if self.schedule.moves is not None and self.schedule.next_run_at is None:
            self.set(moves=dump_moves(self.schedule.parsed_moves._replace(nominals=())))
        before, after = self._before, self.schedule
        new = tuple(run for run in self._in_order() if run.uid not in self._read)
        moved = tuple((old, run) for old in self._read.values() if (run := self._runs[old.uid]) != old)
        if not (new or self._events) and before == after:
            return Change(before, before, changed_runs=moved)
        if before is None or before.status is not after.status or before.definition is not after.definition:
            after = changed(after, **_expectation(before, after, self.now))
        if before is None or before.definition is not after.definition:
            template, labels = after.limit, after.definition.labels
            group = None if template is None else key_of(after.namespace, name_of(template, after.namespace, labels))
            after = changed(after, limit_group=group)
        has_moved = before is not None and _position(before) != _position(after)
        after = changed(
            after,
            n=after.n + has_moved,
            updated_at=self.now,
            event_sequence=after.event_sequence + len(self._events),
            operation=operation,
        )
        drops = self._drops_buffer, self.drops_retries
        return Change(before, after, new, moved, tuple(self._events), *drops, tuple(self.dead_letters), self.owed_again)


def _counter_of(run: Run) -> str | None:
    """Return the field of the schedule that counts runs such as this one; None if they are not counted."""
    is_backfill = run.kind is RunKind.BACKFILL
    if run.status is RunStatus.BUFFERED:
        return "backfill_waiting" if is_backfill else "buffer_depth"
    return "backfill_unfinished" if is_backfill and run.is_unfinished else None


_by_number = attrgetter("number")
_position = attrgetter("status", "next_run_at", "due_at", "awaiting_run_uid")
"""The fields of a schedule whose change makes its older links stale."""


def _expectation(before: Schedule | None, after: Schedule, now: datetime) -> dict[str, Any]:
    """Return the new `overdue_at` and `overdue_since` after a change of status or expectation; else an empty dict.

    The time is measured from now if the schedule is new or becomes active again, else from the last known success.
    """
    span = after.expect_success_within
    if before is not None and before.status is after.status and before.expect_success_within == span:
        return {}
    if span is None or after.status not in EXPECTING:
        is_set = after.overdue_at is not None or after.overdue_since is not None
        return {"overdue_at": None, "overdue_since": None} if is_set else {}
    if before is not None and before.status in EXPECTING and before.expect_success_within == span:
        return {}  # the schedule became dead: its expectation continues
    starts_anew = before is None or before.status not in EXPECTING
    since = now if starts_anew else (after.last_success_at or now)
    if after.overdue_since is not None and since + span <= now:
        return {}  # it was reported as overdue, and still is
    return {"overdue_at": since + span + after.skips_over(now), "overdue_since": None}


def combined(first: Change, second: Change) -> Change:
    """Combine two successive decisions about one schedule into one Change. They must change different runs."""
    if first.is_empty or second.is_empty:
        return second if first.is_empty else first
    return Change(
        first.before,
        second.after,
        (*first.new_runs, *second.new_runs),
        (*first.changed_runs, *second.changed_runs),
        (*first.events, *second.events),
        first.drops_buffer or second.drops_buffer,
        first.drops_retries or second.drops_retries,
        (*first.dead_letters, *second.dead_letters),
        second.owed_again or first.owed_again,
    )
