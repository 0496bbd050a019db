"""Helpers for tests of decisions: schedules and runs in a few words, and a store in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.fire_decision import FireContext, decide_fire
from rqsched.kernel.decide.model import Change, Definition, Run, RunKind, RunStatus, Schedule, dump_spec
from rqsched.kernel.decide.policy import OverlapPolicy, Policies
from rqsched.when.calendars import Calendar
from rqsched.when.spec import Cron, Spec, SpecLike
from tests.support.env import MINUTE, NOON, ONCE
from tests.support.narrow import present

UID = "01KF0000000000000000000000"
IDENTITY = lifecycle.Identity(UID, "default", "nightly")


def definition(spec: SpecLike = "@hourly", *, policies: Policies | None = None, **fields: Any) -> Definition:
    policies = policies or Policies(retry=ONCE)
    return Definition(dump_spec(Spec.coerce(spec)), "report", policies=policies.dumps(), **fields)


HEAVY = tuple(Cron(f"{minute} 9 * * *", "Asia/Tokyo") for minute in range(20))
"""Crons of another time zone than their spec's: what such a spec excludes is found by walking."""
MORNING = "00:00-03:00"
"""Excludes all of `HEAVY` in Europe/Berlin; that this is so for ten years takes three times MOST_STEPS to find out."""
WINDOWS = tuple(f"{hour:02}:{minute:02}-{hour:02}:{minute + 1:02}" for hour in range(24) for minute in range(0, 59, 3))
"""Counting their occurrences of ten years by walking takes seventy times MOST_STEPS."""


def active(
    spec: SpecLike = "@hourly", *, now: datetime = NOON, calendars: tuple[Calendar, ...] = (), **fields: Any
) -> Schedule:
    """A schedule created at `now`; its first occurrence is later than that."""
    return lifecycle.decide_create(IDENTITY, definition(spec, **fields), now=now, calendars=calendars).after


def overlapping(overlap: str, spec: SpecLike = "@hourly", **fields: Any) -> Schedule:
    policies = Policies(overlap=OverlapPolicy(overlap), buffer_limit=fields.pop("buffer_limit", None), retry=ONCE)
    return active(spec, policies=policies, **fields)


def run(number: int, status: str = "running", kind: str = "scheduled", **fields: Any) -> Run:
    """The schedule's run of this number, for an occurrence long ago."""
    values: dict[str, Any] = {
        "uid": f"01KF{number:022d}",
        "schedule_uid": UID,
        "number": number,
        "instance_id": f"schedule:nightly:{number}",
        "occurrence_at": NOON - timedelta(days=1) + number * MINUTE,
        "created_at": NOON,
        "workflow": "report",
    }
    return Run(**values | {"status": RunStatus(status), "kind": RunKind(kind)} | fields)


def holding(schedule: Schedule, *runs: Run) -> Schedule:
    """The schedule with the counts that its runs make."""
    waiting = [r for r in runs if r.status is RunStatus.BUFFERED]
    backfilled = [r for r in runs if r.kind is RunKind.BACKFILL]
    return replace(
        schedule,
        run_number=max([schedule.run_number, *(r.number for r in runs)]),
        buffer_depth=sum(r.kind is not RunKind.BACKFILL for r in waiting),
        backfill_waiting=sum(r.kind is RunKind.BACKFILL for r in waiting),
        backfill_unfinished=sum(r.is_unfinished for r in backfilled),
    )


def fire(
    schedule: Schedule, *runs: Run, now: datetime | None = None, env: str = "", ran: Iterable[datetime] = ()
) -> Change:
    """Fire a schedule, at its due time unless told otherwise."""
    at = present(now or schedule.due_at)
    return decide_fire(schedule, runs, now=at, context=FireContext(env, frozenset(ran)))


def types(change: Change) -> list[str]:
    """The events' types, without the common beginning."""
    return [event.type.removeprefix("Schedule") for event in change.events]


def event(change: Change, name: str) -> dict[str, Any]:
    """The payload of the one event of this type."""
    found = [event for event in change.events if event.type in {name, f"Schedule{name}"}]
    assert len(found) == 1, types(change)
    return found[0].payload


def ended(change: Change) -> dict[int, str]:
    """By number, the new status of runs that were open before."""
    return {new.number: new.status.value for old, new in change.changed_runs if old.status is not new.status}


class Memory:
    """A store in memory for one schedule, with the reads and writes of the real store."""

    def __init__(self, change: Change) -> None:
        self.schedule = change.after
        self.runs: dict[str, Run] = {}
        self.events: list[tuple[int, datetime, Event]] = []
        self.write(change)

    def write(self, change: Change) -> Change:
        first = change.after.event_sequence - len(change.events) + 1
        self.events += [(first + i, change.after.updated_at, event) for i, event in enumerate(change.events)]
        self.schedule = change.after
        for new in change.new_runs:
            assert new.uid not in self.runs
            self.runs[new.uid] = new
        for old, new in change.changed_runs:
            assert self.runs[old.uid] == old
            self.runs[new.uid] = new
        dropped = {RunStatus.BUFFERED} if change.drops_buffer else set()
        dropped |= {RunStatus.RETRYING} if change.drops_retries else set()
        for uid, kept in self.runs.items():
            if kept.status in dropped:
                self.runs[uid] = replace(kept, status=RunStatus.CANCELLED)
        return change

    def open_runs(self, *, with_backfill: bool = False) -> list[Run]:
        """Return the runs that a decision reads: the unfinished ones, and the first waiting one of each kind."""
        in_order = sorted(self.runs.values(), key=lambda found: found.number)
        unfinished = [r for r in in_order if r.is_unfinished and (with_backfill or r.kind is not RunKind.BACKFILL)]
        waiting = [r for r in in_order if r.status is RunStatus.BUFFERED]
        live = [r for r in waiting if r.kind is not RunKind.BACKFILL][:1]
        return unfinished + live + [r for r in waiting if r.kind is RunKind.BACKFILL][:1]

    def runs_at_end(self, run: Run) -> list[Run]:
        """Return the other runs that the decision about the end of an attempt reads."""
        if not (self.schedule.buffer_depth or self.schedule.backfill_waiting):
            return []
        others = [other for other in self.open_runs() if other.uid != run.uid]
        unfinished = sorted((r for r in others if r.is_unfinished), key=lambda r: r.dispatched_at is not None)
        return [*unfinished[:1], *(r for r in others if r.status is RunStatus.BUFFERED)]

    def ran(self) -> frozenset[datetime]:
        return frozenset(r.occurrence_at for r in self.runs.values() if r.kind is not RunKind.MANUAL)
