"""A builder: one decision about one schedule while it is being made, and the verbs all decisions share.

A builder is created, used and sealed inside one pure function: it touches no I/O and reads no clock. Sealing yields the
Change. The rule of positions lives here: `n` grows with every change of status or next time, so every older link is
stale (design §4).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rqsched.core import audit
from rqsched.core.audit import CommandContext, Event, with_context
from rqsched.core.due import COUNT_CAP, due_after
from rqsched.core.ids import iso_utc
from rqsched.core.model import Change, Run, RunKind, RunStatus, Schedule, ScheduleStatus, changed, dumps
from rqsched.core.overlap import StartRequest, StartResult, new_run, refused
from rqsched.core.policy import OverlapPolicy, judge_overlap

EXHAUSTED = "max_runs_exhausted"
SPEC_ENDED = "spec_ended"


class ChangeBuilder:
    """The schedule and its open runs as the decision so far wants them."""

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
        self._context = context
        self._read = {run.uid: run for run in runs}
        self._runs = dict(self._read)
        self._events: list[Event] = []
        self._drops_buffer = False
        self._drops_retries = False

    # ---- reading

    def unfinished(self, kind: RunKind = RunKind.SCHEDULED) -> list[Run]:
        """The runs in the way of a new one of this kind, oldest first: a backfill never blocks live runs."""
        sees_backfill = kind is RunKind.BACKFILL
        runs = [run for run in self._in_order() if run.is_unfinished]
        return [run for run in runs if sees_backfill or run.kind is not RunKind.BACKFILL]

    def run(self, uid: str) -> Run:
        """The run as the builder has it; KeyError when it was not read."""
        return self._runs[uid]

    def _in_order(self) -> list[Run]:
        return sorted(self._runs.values(), key=lambda run: run.number)

    # ---- small writes

    def set(self, **changes: Any) -> None:
        """Change fields of the schedule."""
        self.schedule = changed(self.schedule, **changes)

    def set_run(self, uid: str, **changes: Any) -> Run:
        """Change fields of a run; the schedule's counts of waiting and backfilled runs follow its status."""
        old = self._runs[uid]
        run = self._runs[uid] = changed(old, **changes)
        self._count(old, -1)
        self._count(run, +1)
        return run

    def _count(self, run: Run, step: int) -> None:
        is_backfill = run.kind is RunKind.BACKFILL
        if run.status is RunStatus.BUFFERED:
            name = "backfill_waiting" if is_backfill else "buffer_depth"
        elif is_backfill and run.is_unfinished:
            name = "backfill_unfinished"
        else:
            return
        self.set(**{name: getattr(self.schedule, name) + step})

    def record(self, event_type: str, run: Run | None = None, **payload: Any) -> None:
        """Add an audit event; keys without a value are left out, `next_fire_at` apart."""
        facts = {key: _fact(value) for key, value in payload.items() if value is not None or key == "next_fire_at"}
        event = Event(event_type, facts, run.uid if run else None, run.instance_id if run else None)
        self._events.append(with_context(event, self._context))

    # ---- occurrences

    def offer(self, request: StartRequest) -> StartResult:
        """Put an occurrence to the overlap policy: it starts, waits or is skipped, each with its event."""
        if self.schedule.remaining == 0:
            return self.skip(request.occurrence_at, "remaining_actions_exhausted")
        policies = self.schedule.policies
        overlap = request.overlap or policies.overlap
        decision = judge_overlap(
            overlap,
            unfinished=[run.uid for run in self.unfinished(request.kind)],
            buffered=self.schedule.buffer_depth,
            buffer_limit=policies.buffer_limit,
        )
        if decision.act == "skip":
            return self.skip(request.occurrence_at, decision.reason or "", blocking=decision.blocking)
        ended = self._end_others(request.kind, decision.ends) if decision.ends else []
        run = self._add_run(request, overlap)
        if decision.act == "buffer":
            return self._buffer(run, decision.blocking)
        started = self.begin(run.uid, outcome="triggered", ended=ended, ends=decision.ends)
        if self.schedule.awaiting_run_uid in ended:
            self.wait_for(run.uid)
        return StartResult("triggered", started)

    def enqueue(self, request: StartRequest) -> StartResult:
        """Let a run wait its turn whatever the policy says: a backfill under `skip` runs one after another."""
        if self.schedule.remaining == 0:
            return self.skip(request.occurrence_at, "remaining_actions_exhausted")
        return StartResult("buffered", self._add_run(request, request.overlap or self.schedule.policies.overlap))

    def skip(self, occurrence_at: datetime | None, reason: str, *, blocking: str | None = None) -> StartResult:
        """Record that an occurrence or trigger starts nothing."""
        count = self.schedule.skipped_count + 1
        self.set(skipped_count=count, last_skip_reason=reason, last_skipped_at=self.now)
        self.record(
            audit.SKIPPED,
            reason=reason,
            skipped_trigger_count=count,
            last_skipped_at=self.now,
            occurrence_time=occurrence_at,
            blocking_run_id=blocking,
        )
        return refused(reason)

    def _add_run(self, request: StartRequest, overlap: OverlapPolicy) -> Run:
        run = new_run(self.schedule, request, overlap, self.now)
        self._runs[run.uid] = run
        self._count(run, +1)
        self.set(run_number=run.number)
        return run

    def _buffer(self, run: Run, blocking: str | None) -> StartResult:
        depth = self.schedule.buffer_depth
        self.record(
            audit.BUFFERED,
            run,
            workflow_instance_id=run.instance_id,
            workflow_run_id=run.uid,
            outcome="buffered",
            effective_overlap_policy=run.overlap,
            occurrence_time=run.occurrence_at,
            buffer_depth=depth,
            blocking_run_id=blocking,
        )
        return StartResult("buffered", run, buffer_depth=depth)

    def begin(self, uid: str, *, outcome: str, ended: list[str] | None = None, ends: str | None = None) -> Run:
        """Make a run pending: it counts, uses up one of `max_runs`, and carries its lineage from now on."""
        number = self.schedule.run_count + 1
        remaining = self.schedule.remaining
        lineage = dumps(self._lineage(self._runs[uid], number))
        run = self.set_run(uid, status=RunStatus.PENDING, queued_at=self.now, trigger_number=number, lineage=lineage)
        self.set(
            run_count=number,
            remaining=None if remaining is None else remaining - 1,
            last_run_at=self.now,
            latest_run_uid=uid,
            latest_instance_id=run.instance_id,
        )
        self.record(
            audit.TRIGGERED,
            run,
            workflow_instance_id=run.instance_id,
            workflow_run_id=uid,
            outcome=outcome,
            effective_overlap_policy=run.overlap,
            trigger_number=number,
            occurrence_time=run.occurrence_at,
            **{f"{ends}_run_ids": ended} if ends else {},
        )
        if self.schedule.remaining == 0:
            self.exhaust()
        return run

    def _lineage(self, run: Run, trigger_number: int) -> dict[str, Any]:
        spec = self.schedule.spec
        return {
            "schedule_id": self.schedule.schedule_id,
            "schedule_ulid": self.schedule.uid,
            "cron_expression": spec.primary_cron,
            "timezone": spec.timezone,
            "overlap_policy": run.overlap,
            "trigger_number": trigger_number,
            "occurrence_time": iso_utc(run.occurrence_at),
        }

    # ---- ends

    def _end_others(self, kind: RunKind, how: str) -> list[str]:
        ended = [run.uid for run in self.unfinished(kind)]
        for uid in ended:
            self.end_run(uid, RunStatus(how))
        return ended

    def end_run(self, uid: str, status: RunStatus, **changes: Any) -> Run:
        """Give a run its last status."""
        return self.set_run(uid, status=status, ended_at=self.now, retry_at=None, **changes)

    def _drop_buffer(self) -> int | None:
        """Cancel every waiting run; returns how many, None when there was none."""
        waiting = self.schedule.buffer_depth + self.schedule.backfill_waiting
        self._drops_buffer = self._drops_buffer or waiting > 0
        self.set(buffer_depth=0, backfill_waiting=0)
        return waiting or None

    def drain(self) -> None:
        """Start the oldest waiting run that nothing is ahead of; a paused schedule drains its backfill only."""
        if self.unfinished():
            return
        if run := self._first_live_waiting() or self._first_backfill_waiting():
            self.begin(run.uid, outcome="drained")
        self.complete_if_over()

    # The counts tell what was dropped by this very decision: its rows still read as waiting.

    def _first_live_waiting(self) -> Run | None:
        if not self.schedule.is_active or not self.schedule.buffer_depth:
            return None
        return next((run for run in self._waiting() if run.kind is not RunKind.BACKFILL), None)

    def _first_backfill_waiting(self) -> Run | None:
        if self.schedule.backfill_unfinished or not self.schedule.backfill_waiting:
            return None
        return next((run for run in self._waiting() if run.kind is RunKind.BACKFILL), None)

    def _waiting(self) -> list[Run]:
        return [run for run in self._in_order() if run.status is RunStatus.BUFFERED]

    def exhaust(self) -> None:
        """End the schedule because `max_runs` is used up: done, or deleted where it was asked for."""
        if self.schedule.status not in {ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED}:
            self._end_backfill()
        elif self.schedule.policies.on_exhausted == "delete":
            self.delete(EXHAUSTED)
        else:
            self.complete(EXHAUSTED)

    def _end_backfill(self) -> None:
        """Drop what a backfill of a schedule that has ended cannot start any more."""
        if dropped := self._drop_buffer():
            self.record(audit.COMPLETED, reason=EXHAUSTED, completed_at=self.now, dropped_buffered=dropped)

    def complete(self, reason: str) -> None:
        """Set the schedule done and record why."""
        self.write_off("remaining_actions_exhausted")
        self._stop(ScheduleStatus.DONE, reason)
        dropped = self._drop_buffer()
        self.record(audit.COMPLETED, reason=reason, completed_at=self.now, dropped_buffered=dropped)

    def delete(self, reason: str | None) -> None:
        """Delete softly: waiting runs and waiting retries end, started ones go on (Open Job Spec).

        Retries end only when an owner deletes: the end of `max_runs` takes no attempt from the runs it allowed.
        """
        self.write_off("remaining_actions_exhausted" if reason == EXHAUSTED else "deleted")
        self._stop(ScheduleStatus.DELETED, reason)
        self.set(deleted_at=self.now)
        dropped = self._drop_buffer()
        self._drops_retries = reason != EXHAUSTED
        self.record(audit.DELETED, reason=reason, deleted_at=self.now, dropped_buffered=dropped)

    def die(self, run: Run, reason: str) -> None:
        """Set the schedule dead after `run` failed for good."""
        self.write_off("status_not_triggerable")
        self._stop(ScheduleStatus.DEAD, reason)
        dropped = self._drop_buffer()
        self.record(
            audit.DIED,
            run,
            reason=reason,
            died_at=self.now,
            error=run.error,
            workflow_run_id=run.uid,
            consecutive_failures=self.schedule.consecutive_failures,
            dropped_buffered=dropped,
        )

    def complete_if_over(self) -> None:
        """Set a schedule done whose spec has no further occurrence and whose buffer is empty."""
        schedule = self.schedule
        has_next = schedule.next_run_at is not None or schedule.awaiting_run_uid is not None
        if schedule.is_active and not has_next and not schedule.buffer_depth and not schedule.backfill_waiting:
            self.complete(SPEC_ENDED)

    def _stop(self, status: ScheduleStatus, reason: str | None) -> None:
        self.set(status=status, status_reason=reason, next_run_at=None, due_at=None, awaiting_run_uid=None)

    # ---- what is due when the schedule stops or its timing changes

    def write_off(self, reason: str) -> None:
        """Give what is already due its outcome, for no fire will: the first of it is skipped, what follows is missed.

        Already due means nominally, also inside the jitter. What this decision has evaluated itself is left alone.
        """
        if not self.schedule.is_active:
            return
        self.record_gaps(self.now)
        first = self._first_without_outcome()
        if first is not None and first <= self.now:
            self.set(next_run_at=first)
            self.skip(first, reason)
            self.miss_passed(kept=first, policy=reason)
            self.set(evaluated_to=self.now)

    def _first_without_outcome(self) -> datetime | None:
        """The stored next time, or what follows it when this decision fires it: that may be due inside its jitter."""
        schedule = self.schedule
        if schedule.next_run_at is None or schedule.next_run_at > schedule.evaluated_to:
            return schedule.next_run_at
        if schedule.spec.is_from_completion:
            return None
        return schedule.spec.next_after(max(schedule.evaluated_to, schedule.timing_changed_at))

    def miss_passed(self, *, kept: datetime, policy: str) -> None:
        """Count every occurrence from the stored one to now as missed, `kept` apart."""
        schedule, spec = self.schedule, self.schedule.spec
        stored = schedule.next_run_at
        if stored is None or spec.is_from_completion:
            return
        since = max(stored, schedule.timing_changed_at)
        count, is_capped = spec.count_between(since, self.now, cap=COUNT_CAP)
        if not count:
            return
        self.set(missed_count=schedule.missed_count + count)
        self.record(
            audit.MISSED,
            count=count,
            count_capped=is_capped or None,
            first=spec.next_after(since) if kept == stored else stored,
            last=spec.last_between(since, self.now, 1)[-1],
            fired=None if kept == stored else [iso_utc(kept)],
            policy=policy,
        )

    def record_gaps(self, until: datetime) -> None:
        """Record the readings that a change of the clocks skipped since the last evaluation."""
        schedule = self.schedule
        since = max(schedule.evaluated_to, schedule.timing_changed_at)
        for gap in schedule.spec.gaps_between(since, until):
            self.skip(gap.occurrence_at, "dst_skip")

    # ---- the next time

    def plan(self, after: datetime) -> None:
        """Set the next occurrence strictly after an instant; a spec that is over ends the schedule."""
        if not self.schedule.is_active:
            return
        due = due_after(self.schedule, after)
        self.set(next_run_at=due and due.nominal_at, due_at=due and due.due_at, awaiting_run_uid=None)
        self.complete_if_over()

    def wait_for(self, uid: str) -> None:
        """Leave the next time open until a run has ended (`from_completion`)."""
        if self.schedule.is_active:
            self.set(next_run_at=None, due_at=None, awaiting_run_uid=uid)

    # ---- done

    def build(self, operation: str | None = None) -> Change:
        """Close the builder: number its position, stamp it, and give the Change."""
        before, after = self._before, self.schedule
        new = tuple(run for run in self._in_order() if run.uid not in self._read)
        moved = tuple((old, run) for old in self._read.values() if (run := self._runs[old.uid]) != old)
        if not (new or self._events) and before == after:
            return Change(before, before, changed_runs=moved)
        has_moved = before is not None and _position(before) != _position(after)
        after = changed(
            after,
            n=after.n + has_moved,
            updated_at=self.now,
            event_sequence=after.event_sequence + len(self._events),
            operation=operation,
        )
        drops = (self._drops_buffer, self._drops_retries)
        return Change(before, after, new, moved, tuple(self._events), *drops)


def _position(schedule: Schedule) -> tuple[object, ...]:
    return (schedule.status, schedule.next_run_at, schedule.due_at, schedule.awaiting_run_uid)


def _fact(value: Any) -> Any:
    return iso_utc(value) if isinstance(value, datetime) else value
