"""Random walks through the pure decisions, held to the invariants of the design by a model in memory.

A walk does to one schedule what owners, links, workers and reconcile do, at random times and in any order. The model
keeps its own book of the instants that were due while the schedule was active. A failing seed replays by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.fire_decision import FireContext, decide_fire, decide_fire_failed, decide_retry, is_stale
from rqsched.kernel.decide.model import (
    ENDED_IN_VAIN,
    Change,
    Definition,
    Run,
    RunKind,
    RunStatus,
    Schedule,
    ScheduleStatus,
)
from rqsched.kernel.decide.policy import MissedPolicy, OnResume, OverlapPolicy, Policies, RetryPolicy
from rqsched.kernel.decide.runs_on_request import (
    Copy,
    Trigger,
    decide_backfill,
    decide_copy,
    decide_retry_on_request,
    decide_trigger,
)
from rqsched.kernel.decide.schedule_repair import decide_drain
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from rqsched.when.spec import Every, Once, Spec, SpecLike
from tests.support.decisions import IDENTITY, Memory, definition
from tests.support.env import MINUTE, SECOND

TICK = timedelta(microseconds=1)
START = datetime(2026, 3, 8, 5, tzinfo=UTC)  # two hours before the clocks of New York jump
END = START + timedelta(hours=9)
SPECS: list[SpecLike] = [
    "*/5 * * * *",
    Every("7m"),
    Spec(["*/20 * * * *", Every("9m", offset="4m"), Once(START + timedelta(hours=3))]),
    Spec("*/15 1-4 * * *", "America/New_York"),
    Spec("*/10 * * * *", end_at=END),
    Spec(["*/4 * * * *", Every("9m")], "America/New_York", exclude=["Sun 01:20-04:10", "05:00-05:30"]),
]
DELAYED = Spec(Every("6m", from_completion=True))
OPEN = {RunStatus.PENDING, RunStatus.RUNNING, RunStatus.RETRYING, RunStatus.BUFFERED}
LIVE_POLICIES = ["skip", "buffer_one", "buffer_all", "allow_all", "cancel_other", "terminate_other"]


class Walk:
    """One schedule, its model and the checks after each step."""

    def __init__(self, seed: str, *, is_delayed: bool) -> None:
        self.random = Random(seed)
        self.is_delayed = is_delayed
        self.now = START + 7 * TICK
        self.expected: list[datetime] = []
        self.excused: set[datetime] = set()
        self.asked: set[datetime] = set()
        self.missed: Counter[datetime] = Counter()
        self.active_since = self.now
        self.memory = Memory(lifecycle.decide_create(IDENTITY, self.definition(), now=self.now))
        self.started_since_restart = self.skipped_since_restart = 0
        self.check_row()

    @property
    def schedule(self) -> Schedule:
        return self.memory.schedule

    def definition(self) -> Definition:
        overlap = "skip" if self.is_delayed else self.random.choice(LIVE_POLICIES)
        many = overlap in {"buffer_all", "allow_all"} and self.random.random() < 0.5
        is_spread = not self.is_delayed and self.random.random() < 0.4
        policies = Policies(
            overlap=OverlapPolicy(overlap),
            spread=self.random.choice([timedelta(0), 90 * SECOND, 3600 * SECOND]) if is_spread else timedelta(0),
            missed=MissedPolicy("all" if many else self.random.choice(["fire_once", "fire_once", "skip"])),
            missed_limit=self.random.choice([2, 100]) if many else 100,
            fire_within=self.random.choice([None, None, 12 * MINUTE]),
            buffer_limit=self.random.choice([None, 2]) if overlap == "buffer_all" else None,
            on_max_runs=self.random.choice(["done", "done", "delete"]),
            max_successes=self.random.choice([None, None, None, 12]),
            environments=self.random.choice([(), (), ("production",)]),
            retry=RetryPolicy(
                self.random.choice([0, 1, 3]),
                then=self.random.choice(["dead", "continue", "continue"]),
                max_consecutive_failures=self.random.choice([None, 2]),
            ),
        )
        jitter = timedelta(0) if self.is_delayed else self.random.choice([timedelta(0), 90 * SECOND, 3600 * SECOND])
        spec = DELAYED if self.is_delayed else self.random.choice(SPECS)
        return definition(spec, policies=policies, jitter=jitter, max_runs=self.random.choice([None, None, 9]))

    def step(self) -> None:
        self.now += self.random.choice([TICK, 20 * SECOND, 3 * MINUTE, 11 * MINUTE]) * self.random.random()
        names = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
        operation = self.random.choice(names)
        change = getattr(self, operation)()
        if change is not None:
            self.write(operation, change)

    def fire(self, now: datetime | None = None) -> Change | None:
        schedule, now = self.schedule, now or self.now
        if is_stale(schedule, schedule.n) or schedule.due_at is None or schedule.due_at > now:
            return None
        assert schedule.is_active
        env = self.random.choice(["production", "laptop"])
        context = FireContext(env, frozenset(at for at in self.memory.ran() if at >= (schedule.next_run_at or at)))
        decided = decide_fire(schedule, self.memory.open_runs(), now=now, context=context)
        if schedule.policies.overlap is OverlapPolicy.ALLOW_ALL and not schedule.spec.is_from_completion:
            assert decide_fire(schedule, [], now=now, context=context) == decided, "no open run matters"
        return decided

    def fire_failed(self) -> Change | None:
        if self.fire() is None or self.schedule.fire_failures > 2:
            return None
        return decide_fire_failed(self.schedule, "boom", now=self.now)

    def settle(self) -> Change | None:
        runs = self.open(OPEN)
        if not runs:
            return None
        run = self.random.choice(runs)
        executes = run.status in {RunStatus.PENDING, RunStatus.RUNNING}
        ending = self.random.choice(
            list(AttemptOutcome) if executes else [AttemptOutcome.CANCELLED, AttemptOutcome.TERMINATED]
        )
        others = [other for other in self.memory.open_runs() if other.uid != run.uid]
        decided, with_all = (
            decide_settle(self.schedule, [run, *seen], run, AttemptResult(ending), now=self.now)
            for seen in (self.memory.runs_at_end(run), others)
        )
        assert decided == with_all, "no other open run matters"
        return decided

    def retry(self) -> Change | None:
        due = [run for run in self.open({RunStatus.RETRYING}) if run.retry_at and run.retry_at <= self.now]
        return decide_retry(self.schedule, due[:1], due[0], now=self.now) if due else None

    def ask(self) -> Change | None:
        """An operator has a run that ended without success run again."""
        ended = [run for run in self.memory.runs.values() if run.status in ENDED_IN_VAIN]
        if not ended or self.schedule.status is ScheduleStatus.DELETED:
            return None
        run = self.random.choice(ended)
        others = self.memory.open_runs(with_backfill=run.kind is RunKind.BACKFILL)
        decided = decide_retry_on_request(self.schedule, others, run, now=self.now)
        if self.schedule.policies.overlap is OverlapPolicy.ALLOW_ALL:
            assert decide_retry_on_request(self.schedule, [], run, now=self.now) == decided
        return decided

    def copy(self) -> Change | None:
        """An operator has a run that ended, however, run again as a new run."""
        ended = [run for run in self.memory.runs.values() if run.status not in OPEN]
        if not ended or self.schedule.status is ScheduleStatus.DELETED:
            return None
        request, run = Copy(f"copy {len(self.memory.runs)}"), self.random.choice(ended)
        decided = decide_copy(self.schedule, self.memory.open_runs(), run, request, now=self.now)
        if self.schedule.policies.overlap is OverlapPolicy.ALLOW_ALL:
            assert decide_copy(self.schedule, [], run, request, now=self.now) == decided
        return decided

    def drain(self) -> Change:
        change = decide_drain(self.schedule, self.memory.open_runs(), now=self.now)
        assert change.is_empty, "nothing waits without need: a drain is only ever made up for after a crash"
        return change

    def trigger(self) -> Change:
        overlap = self.random.choice([None, None, None, *OverlapPolicy])
        number = self.schedule.event_sequence
        self.asked.add(self.now)
        request = Trigger(f"01KM{number:022d}", overlap, is_forced=self.random.random() < 0.5)
        decided = decide_trigger(self.schedule, self.memory.open_runs(), request, now=self.now)
        if (overlap or self.schedule.policies.overlap) is OverlapPolicy.ALLOW_ALL:
            assert decide_trigger(self.schedule, [], request, now=self.now) == decided
        return decided[0]

    def pause(self) -> Change | None:
        return lifecycle.decide_pause(self.schedule, now=self.now) if self.schedule.is_active else None

    def skip_next(self) -> Change | None:
        if not self.schedule.is_active or self.is_delayed or self.schedule.spec.next_after(self.now) is None:
            return None
        return lifecycle.decide_skip_next(self.schedule, self.random.choice([0, 1, 1, 3]), now=self.now)

    def resume(self) -> Change | None:
        if self.schedule.status is not ScheduleStatus.PAUSED:
            return None
        on_resume = self.random.choice([None, *OnResume])
        return lifecycle.decide_resume(self.schedule, self.memory.open_runs(), now=self.now, on_resume=on_resume)

    def update(self) -> Change | None:
        if self.schedule.status is ScheduleStatus.DELETED:
            return None
        new = self.definition()
        if self.random.random() < 0.5:
            new = replace(new, spec=self.schedule.definition.spec)
        return lifecycle.decide_update(self.schedule, new, now=self.now)

    def restart(self) -> Change | None:
        over = self.schedule.status in {ScheduleStatus.DONE, ScheduleStatus.DEAD}
        if not over or self.schedule.spec.next_after(self.now) is None:
            return None
        self.started_since_restart = self.skipped_since_restart = 0
        return lifecycle.decide_restart(self.schedule, self.memory.open_runs(), now=self.now)

    def backfill(self) -> Change | None:
        if self.is_delayed or self.schedule.status is ScheduleStatus.DEAD:
            return None
        start = self.now - self.random.randrange(60) * MINUTE
        chunk = list(self.schedule.spec.between(start, min(start + 25 * MINUTE, self.now)))
        return decide_backfill(
            self.schedule,
            self.memory.open_runs(with_backfill=True),
            chunk,
            now=self.now,
            backfill_uid="B",
            ran=self.memory.ran(),
            overlap=self.random.choice([None, None, OverlapPolicy.ALLOW_ALL]),
        )[0]

    def delete(self) -> Change | None:
        if self.schedule.status is ScheduleStatus.DELETED or self.random.random() < 0.8:
            return None
        return lifecycle.decide_delete(self.schedule, now=self.now)

    def open(self, statuses: set[RunStatus]) -> list[Run]:
        return [run for run in self.memory.runs.values() if run.status in statuses]

    def write(self, operation: str, change: Change) -> None:
        before, unfinished = self.schedule, self.live_unfinished()
        self.check_missed(operation, before, change)
        self.keep_book(operation, before, change)
        self.memory.write(change)
        self.check_change(operation, before, change, unfinished)
        self.check_row()

    def keep_book(self, operation: str, before: Schedule, change: Change) -> None:
        after = change.after
        stops = before.is_active and not after.is_active
        if stops or (before.is_active and before.definition.spec != after.definition.spec):
            self.close_book(before)
        if after.is_active and not before.is_active:
            self.active_since = self.now
            if after.next_run_at is not None and after.next_run_at <= self.now:
                self.expected.append(after.next_run_at)  # resumed with on_resume="once"
        if operation == "fire" and stops and after.status_reason == "max_runs_exhausted":
            newest = max(new.occurrence_at for new in change.new_runs)
            self.excused |= {at for at in self.expected if at > newest}

    def close_book(self, before: Schedule) -> None:
        self.expected += before.spec.between(self.active_since + TICK, self.now + TICK)
        self.active_since = self.now

    def live_unfinished(self) -> set[str]:
        live = (run for run in self.memory.runs.values() if run.kind is not RunKind.BACKFILL)
        return {run.uid for run in live if run.is_unfinished}

    def check_row(self) -> None:
        schedule, runs = self.schedule, list(self.memory.runs.values())
        if schedule.is_active and schedule.awaiting_run_uid:
            assert self.memory.runs[schedule.awaiting_run_uid].is_unfinished, "I3: waits for a run that has ended"
        elif schedule.is_active and not (schedule.buffer_depth or schedule.backfill_waiting or schedule.skips):
            assert schedule.next_run_at is not None, "I3: no next time"
        if schedule.next_run_at is not None:
            assert schedule.is_active, "I4: only an active schedule fires"
            assert schedule.due_at is not None
            assert schedule.due_at >= schedule.next_run_at, "I4: due before its time"
            assert schedule.next_run_at > schedule.evaluated_to, "I1: it has an outcome already"
            assert schedule.awaiting_run_uid is None
        if schedule.status is not ScheduleStatus.DELETED:
            waiting = [run for run in runs if run.status is RunStatus.BUFFERED]
            backfilled = [run for run in runs if run.kind is RunKind.BACKFILL]
            assert schedule.buffer_depth == sum(run.kind is not RunKind.BACKFILL for run in waiting)
            assert schedule.backfill_waiting == sum(run.kind is RunKind.BACKFILL for run in waiting)
            assert schedule.backfill_unfinished == sum(run.is_unfinished for run in backfilled)
        if schedule.status is ScheduleStatus.DELETED:
            assert schedule.buffer_depth == schedule.backfill_waiting == 0
        if schedule.status is ScheduleStatus.DEAD:
            assert all(run.is_asked for run in runs if run.status is RunStatus.BUFFERED), (
                "only what was asked for waits"
            )
        assert schedule.run_count == self.started_since_restart
        assert schedule.skipped_count == self.skipped_since_restart
        if schedule.definition.max_runs is not None:
            assert schedule.remaining == max(schedule.definition.max_runs - schedule.run_count, 0)
        assert (schedule.remaining is None) == (schedule.definition.max_runs is None)
        assert schedule.run_number == len(runs)

    def check_change(self, operation: str, before: Schedule, change: Change, unfinished: set[str]) -> None:
        after = change.after
        moved = any(getattr(before, name) != getattr(after, name) for name in POSITION)
        assert after.n == before.n + moved, "older links are stale exactly when the position changed"
        assert before.status is after.status or change.events, "I6"
        sequences = [sequence for sequence, _, _ in self.memory.events]
        assert sequences == list(range(1, len(sequences) + 1)), "I6: a gap"
        assert after.event_sequence == len(sequences)
        self.check_starts(operation, before, change, unfinished)

    def check_starts(self, operation: str, before: Schedule, change: Change, unfinished: set[str]) -> None:
        new = {run.uid for run in change.new_runs}
        begun = [event for event in change.events if event.type in STARTS and event.payload["outcome"] != "buffered"]
        gone = {old.uid for old, run in change.changed_runs if not run.is_unfinished}
        ahead = unfinished - gone
        for event in begun:
            run = self.memory.runs[str(event.run_uid)]
            assert before.status is not ScheduleStatus.DELETED, "I4"
            is_live = run.kind is not RunKind.BACKFILL
            if run.kind is RunKind.SCHEDULED and run.uid in new:
                assert operation == "fire", "I4"
            if is_live and before.status is not ScheduleStatus.ACTIVE and not run.is_asked:
                assert operation in {"trigger", "resume"}, "I4: it started while paused"
            if is_live and not run.is_override and run.overlap in {"skip", "buffer_one", "buffer_all"}:
                assert not ahead, f"I5: {run.number} started while {ahead} were unfinished"
            if is_live:
                ahead.add(run.uid)

    def check_missed(self, operation: str, before: Schedule, change: Change) -> None:
        self.started_since_restart += sum(event.type == "ScheduleTriggered" for event in change.events)
        self.skipped_since_restart += sum(event.type == "ScheduleTriggerSkipped" for event in change.events)
        for event in change.events:
            if event.type == "ScheduleMissed" and before.next_run_at is not None:
                first, last, fired = span_of(event)
                since = max(before.next_run_at, before.timing_changed_at)
                grid = {before.next_run_at, *before.timeline.between(since + TICK, last + TICK)}
                ran = self.memory.ran() if operation == "fire" else frozenset()
                missed = {at for at in grid if first <= at <= last} - fired - ran
                assert event.payload["count"] == len(missed), "I1: miscounted"
                self.missed.update({at for at in grid if first <= at <= last} - fired)

    def finish(self) -> None:
        """Fire the remaining occurrences up to now, then settle the book."""
        until = self.now
        if self.schedule.is_active:
            self.close_book(self.schedule)
        while self.schedule.next_run_at is not None and self.schedule.next_run_at <= until:
            self.now = max(self.now, self.schedule.due_at or self.now)
            self.active_since = self.now
            change = self.fire()
            assert change is not None
            self.write("fire", change)
        self.check_outcomes(until)

    def check_outcomes(self, until: datetime) -> None:
        runs = [run for run in self.memory.runs.values() if run.kind is not RunKind.MANUAL]
        assert max(Counter(run.occurrence_at for run in runs).values(), default=1) == 1, "I2"
        if self.is_delayed:
            return
        outcomes = Counter(run.occurrence_at for run in runs if run.kind is RunKind.SCHEDULED)
        expected = set(self.expected)
        assert len(expected) == len(self.expected)
        outcomes += self.missed
        for _, _, event in self.memory.events:
            outcomes.update(self.skipped_by(event))
        backfilled = {run.occurrence_at for run in runs if run.kind is RunKind.BACKFILL}
        told_later = {at for at in self.schedule.skipped_at if at > self.schedule.evaluated_to}  # by the next fire
        for occurrence in expected - self.excused - told_later:
            found = outcomes[occurrence]
            assert found == 1 or (found == 0 and occurrence in backfilled), f"I1: {occurrence} has {found} outcomes"
        ghosts = {at for at in outcomes if at <= until} - expected
        assert not ghosts, f"I1: {ghosts} were never due"

    def skipped_by(self, event: Event) -> list[datetime]:
        skipped = event.payload.get("occurrence_time")
        if event.type != "ScheduleTriggerSkipped" or event.payload["reason"] == "dst_skip" or skipped is None:
            return []
        at = datetime.fromisoformat(skipped)
        return [] if at in self.asked else [at]


STARTS = {"ScheduleTriggered", "RunRetryRequested", "RunRetryStarted", "RunCopied"}
POSITION = ("status", "next_run_at", "due_at", "awaiting_run_uid")
WEIGHTS: dict[str, int] = {
    "fire": 12,
    "fire_failed": 1,
    "settle": 8,
    "retry": 4,
    "ask": 2,
    "copy": 2,
    "drain": 1,
    "trigger": 2,
    "pause": 1,
    "skip_next": 2,
    "resume": 3,
    "update": 2,
    "restart": 3,
    "backfill": 2,
    "delete": 1,
}


def span_of(event: Event) -> tuple[datetime, datetime, set[datetime]]:
    first, last = (datetime.fromisoformat(event.payload[name]) for name in ("first", "last"))
    return first, last, {datetime.fromisoformat(at) for at in event.payload.get("fired", [])}


@pytest.mark.parametrize("is_delayed", [False, True], ids=["on a grid", "from completion"])
@pytest.mark.parametrize("seed", range(10))
def test_the_invariants_hold_on_every_walk(seed: int, is_delayed: bool) -> None:
    for nth in range(12):
        walk = Walk(f"{seed} {nth}", is_delayed=is_delayed)
        try:
            for _ in range(70):
                walk.step()
            walk.finish()
        except AssertionError as error:
            error.add_note(f"seed {seed}, walk {nth}, at {walk.now}")
            raise
