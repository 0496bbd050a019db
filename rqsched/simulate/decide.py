"""Play the fires of a span on a virtual clock, with the functions that decide fires in production.

Links (the delayed jobs that fire and retry) are never late, and come in the order in which a dispatcher takes them. An
attempt begins as soon as a worker of its queue is free. The durations and failures of attempts are given, or drawn at
random from measurements. A random value is a hash of the seed, the schedule, the occurrence and the attempt. Therefore
a schedule has the same values for the same seed, whichever other schedules are simulated.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from rqsched.features.after.decide import TOGETHER, Followed, UpstreamEnd, counts_for, decide_after, ended_runs
from rqsched.features.hours.decide import BOUNDS
from rqsched.features.limits.decide import Bounds, by_place
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.change_builder import ChangeBuilder
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.decide.delays import fraction
from rqsched.kernel.decide.fire_decision import FireContext, decide_fire, decide_retry
from rqsched.kernel.decide.ids import RetryLinkId
from rqsched.kernel.decide.lifecycle import decide_end_pause
from rqsched.kernel.decide.model import (
    OPEN,
    Change,
    Occurrence,
    Run,
    RunStatus,
    Schedule,
    changed,
)
from rqsched.kernel.decide.occurrences import TICK, longest_delay, next_occurrence, occurrence_at
from rqsched.kernel.decide.policy import NO_TYPES, TIMEOUT, ErrorTypes
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from rqsched.simulate.lines import GroupLine, Line, QueueLine, place_of

MINUTE = timedelta(minutes=1)
_RETRY, _FIRE, _RESUME, _END, _EXPIRY, _LOOK = range(6)
"""The order of events at one instant. Fires come before ends. So if a run ends at the time of a fire, they overlap."""
_OUTCOMES = {True: AttemptOutcome.FAILED, False: AttemptOutcome.SUCCEEDED}
_PROGRESS = 1_000


class Spans(NamedTuple):
    """Measured durations as a histogram. Its buckets are those of the table of hours."""

    places: tuple[int, ...]
    """The numbers of the buckets that are not empty, in order."""
    totals: tuple[int, ...]
    """The cumulative count up to each of these buckets."""

    @classmethod
    def of(cls, buckets: Mapping[int, int]) -> Spans | None:
        """Return the histogram of counts by bucket; None if it is empty."""
        places = tuple(sorted(place for place, count in buckets.items() if count > 0))
        return cls(places, tuple(accumulate(buckets[place] for place in places))) if places else None

    def at(self, share: float) -> timedelta:
        """Return the quantile `share` of the durations. It is interpolated within a bucket, as in `hours`."""
        rank = share * self.totals[-1]
        found = min(bisect_left(self.totals, rank), len(self.places) - 1)
        before = self.totals[found - 1] if found else 0
        place = self.places[found]
        lower, upper = BOUNDS[place - 1] if place else 0, BOUNDS[min(place, len(BOUNDS) - 1)]
        part = (rank - before) / (self.totals[found] - before)
        return timedelta(microseconds=round(lower + (upper - lower) * min(max(part, 0.0), 1.0)))


class Expected(NamedTuple):
    """The durations and failures to expect of one schedule's attempts."""

    duration: timedelta | Spans = timedelta(0)
    """How long an attempt takes: always the same time, or drawn from measured durations."""
    failure_rate: float = 0.0
    """The fraction of the attempts that fails."""
    timeout: timedelta | None = None
    """The timeout of an attempt; None means no timeout."""

    def draw(self, seed: int, run: Run, name: str) -> tuple[timedelta, AttemptResult]:
        """Return how long an attempt of a run takes, and how it ends. `name` is the name of the schedule."""
        asked = (seed, name, run.occurrence_at, run.attempt)
        duration = self.duration
        took = duration if isinstance(duration, timedelta) else duration.at(fraction("takes", *asked))
        if self.timeout is not None and took >= self.timeout:
            return self.timeout, AttemptResult(AttemptOutcome.FAILED, error="timeout", error_types=TIMEOUT)
        is_failure = self.failure_rate > 0 and fraction("fails", *asked) < self.failure_rate
        return took, AttemptResult(_OUTCOMES[is_failure], error="simulated" if is_failure else None)


class Simulated(NamedTuple):
    """One schedule that takes part."""

    schedule: Schedule
    """The schedule at the start of the simulation (from `begin`)."""
    name: str
    """Its name in reports: the id, with the namespace if several are simulated."""
    queue: str
    """The queue of its runs."""
    expected: Expected
    """How long its attempts take, and how many fail."""


@dataclass(slots=True)
class Told:
    """The outcome of one schedule."""

    fires: int = 0
    """How many occurrences came due."""
    started: int = 0
    """How many runs were queued."""
    overlapped: int = 0
    """How many occurrences came due while a run was unfinished, under any overlap policy."""
    waited: int = 0
    """How many of these occurrences got a run that waited for the run ahead of it."""
    replaced: int = 0
    """How many runs were cancelled or terminated for a newer run."""
    missed: int = 0
    """How many occurrences were counted as missed."""
    excluded: int = 0
    """How many instants of the timing were excluded."""
    retries: int = 0
    """How many retries were made."""
    skipped: Counter[str] = field(default_factory=Counter)
    """How many occurrences started nothing, by reason."""
    ended: Counter[str] = field(default_factory=Counter)
    """How many runs have ended, by shown status."""
    open: int = 0
    """How many runs are unfinished at the end of the simulation."""
    status: str = ""
    """The status of the schedule at the end."""


@dataclass(slots=True)
class Walk:
    """What a simulation found."""

    told: dict[str, Told] = field(default_factory=dict)
    """The outcome of each schedule, by its name."""
    lines: dict[str, Line] = field(default_factory=dict)
    """The waits and load of each queue, by name."""
    groups: dict[str, Line] = field(default_factory=dict)
    """The waits and load of each group with a limit, by name."""
    minutes: array[int] = field(default_factory=lambda: array("L"))
    """The minute of each fire, counted from the start of the span."""
    firing: array[int] = field(default_factory=lambda: array("L"))
    """The schedule of each fire, as an index into the order of `told`."""


Watch = Callable[[datetime, Change], None]
"""A function that is called with each decision and its instant. Tests use it."""


def begin(schedule: Schedule, start: datetime, now: datetime) -> Schedule:
    """Return the state of a schedule at the start of a simulation: without open runs, and with its next time.

    Occurrences between `now` and `start` are not simulated, but `max_runs` counts them.
    """
    idle = {"buffer_depth": 0, "backfill_waiting": 0, "backfill_unfinished": 0, "fire_failures": 0}
    schedule = changed(schedule, **idle, awaiting_run_uid=None, evaluated_to=max(schedule.evaluated_to, start - TICK))
    if not schedule.is_active or (schedule.due_at is not None and schedule.due_at >= start):
        return schedule
    if schedule.remaining is not None and start > now and not schedule.spec.is_from_completion:
        used = schedule.timeline.count_between(now, start - TICK, cap=schedule.remaining).total
        schedule = changed(schedule, remaining=max(schedule.remaining - used, 0))
    builder = ChangeBuilder(schedule, now=start)
    builder.plan(None if schedule.remaining == 0 else _first(schedule, start))
    return builder.schedule


def _first(schedule: Schedule, start: datetime) -> Occurrence | None:
    """Return the first occurrence that is due at `start` or later.

    Its nominal time may be before `start`, because jitter or spread delay an occurrence.
    """
    delay = longest_delay(schedule)
    if delay and not schedule.spec.is_from_completion:
        for nominal in schedule.timeline.between(start - delay, start):
            if (found := occurrence_at(schedule, nominal)).due_at >= start:
                return found
    return next_occurrence(schedule, start - TICK)


def walk(
    schedules: Sequence[Simulated],
    start: datetime,
    end: datetime,
    *,
    seed: int,
    workers: Mapping[str, int] | None = None,
    limits: Mapping[str, Bounds] | None = None,
    env: str = "",
    progress: Callable[[int], None] | None = None,
    watch: Watch | None = None,
) -> Walk:
    """Decide every fire, start, retry and end of the span [start, end). All workers are idle at its start.

    `workers` says how many attempts a queue executes at once. A queue that it does not name executes any number.
    `limits` contains the number and the rate of each group. A group that it does not name has no limit. `progress` is
    called about every thousand fires, with the number of fires since the last call.
    """
    course = _Course(
        schedules, start, end, seed=seed, workers=workers or {}, limits=limits or {}, env=env, progress=progress,
        watch=watch,
    )  # fmt: skip
    return course.play()


@dataclass(slots=True)
class _State:
    """The current state of one schedule and its open runs."""

    place: int
    given: Simulated
    schedule: Schedule
    told: Told
    open: dict[str, Run] = field(default_factory=dict)
    """The unfinished runs, by uid."""
    waiting: dict[str, Run] = field(default_factory=dict)
    """The runs that wait for the run ahead of them, oldest first."""
    followers: list[tuple[_State, str]] = field(default_factory=list)
    """The downstream schedules, each with the kind of ends that it follows."""

    def seen(self) -> list[Run]:
        """Return the runs on which a decision depends: all started runs, and the first waiting run.

        In production, `kernel.store.changes.open_runs` reads these runs.
        """
        first = next(iter(self.waiting.values()), None)
        return [*self.open.values(), *([] if first is None else [first])]


class _Course:
    """A running simulation: the clock, the heap of coming events, the queues and the groups."""

    def __init__(
        self,
        schedules: Iterable[Simulated],
        start: datetime,
        end: datetime,
        *,
        seed: int,
        workers: Mapping[str, int],
        limits: Mapping[str, Bounds],
        env: str,
        progress: Callable[[int], None] | None,
        watch: Watch | None,
    ) -> None:
        self._start, self._end, self._seed = start, end, seed
        self._context = FireContext(env)
        self._progress, self._watch = progress, watch
        self._heap: list[tuple[datetime, int, str, int, Any]] = []
        self._seq = 0
        self._queues: dict[str, QueueLine] = {}
        self._touched = set[str]()
        """The queues to which something happened at the current instant."""
        self._groups = {group: GroupLine(bounds) for group, bounds in limits.items()}
        self._moved = set[str]()
        """The groups with runs that changed at the current instant."""
        self._armed = dict[tuple[str, int], datetime]()
        """When retry links are due, by run and attempt. A link retries its run. If the link was armed for the rate of a
        group, it gives places in the group instead, when an earlier start leaves the window of the rate."""
        self.walk = Walk()
        self._states: list[_State] = []
        self._busy_until: dict[str, datetime] = {}
        """When each executing attempt ends, by the uid of its run."""
        for given in schedules:
            told = self.walk.told[given.name] = Told()
            state = _State(len(self._states), given, given.schedule, told)
            self._states.append(state)
            if given.queue not in self._queues:
                self._queues[given.queue] = QueueLine(workers.get(given.queue))
            self._arm(state)
        self._tie()

    def _tie(self) -> None:
        """Add each downstream schedule to the `followers` of its upstream."""
        following = [state for state in self._states if state.schedule.upstream_id is not None]
        if not following:
            return
        by_id = {(one.schedule.namespace, one.schedule.schedule_id): one for one in self._states}
        for state in following:
            schedule, after = state.schedule, state.schedule.spec.after
            upstream = by_id.get((schedule.namespace, schedule.upstream_id or ""))
            if upstream is not None and after is not None:
                upstream.followers.append((state, after.on))
                known = upstream.schedule
                upstream.schedule = changed(known, followed_at=known.followed_at or known.created_at)

    def play(self) -> Walk:
        """Process all events before the end of the span, and return what was found."""
        heap, fires = self._heap, 0
        acts = (self._retry, self._fire, self._resume, self._finish, self._expire, self._look)
        while heap and heap[0][0] < self._end:
            now, what, _, _, given = heappop(heap)
            acts[what](now, *given)
            if self._progress is not None and len(self.walk.minutes) - fires >= _PROGRESS:
                self._progress(len(self.walk.minutes) - fires)
                fires = len(self.walk.minutes)
            if self._touched and (not heap or heap[0][0] > now):
                self._start_all(now)
        if self._progress is not None:
            self._progress(len(self.walk.minutes) - fires)
        for name, queue in sorted(self._queues.items()):
            self.walk.lines[name] = queue.end(self._end)
        for name, group in sorted(self._groups.items()):
            self.walk.groups[name] = group.end(self._end)
        for state in self._states:
            state.told.open = len(state.open) + len(state.waiting)
            state.told.status = state.schedule.status.value
        return self.walk

    def _push(self, at: datetime, what: int, uid: str, given: Any) -> None:
        self._seq += 1
        heappush(self._heap, (at, what, uid, self._seq, given))

    def _arm(self, state: _State) -> None:
        """Plan the next fire of a schedule, or the end of its pause."""
        schedule = state.schedule
        if schedule.is_active and schedule.due_at is not None:
            self._push(schedule.due_at, _FIRE, schedule.uid, (state, schedule.n))
        elif schedule.resume_at is not None:
            self._push(max(schedule.resume_at, self._start), _RESUME, schedule.uid, (state,))

    def _resume(self, now: datetime, state: _State) -> None:
        self._apply(state, decide_end_pause(state.schedule, state.seen(), now=now), now)

    def _fire(self, now: datetime, state: _State, n: int) -> None:
        before = state.schedule
        if not before.is_active or before.n != n:
            return
        self._note_fire(now, state)
        self._apply(state, decide_fire(before, state.seen(), now=now, context=self._context), now)

    def _note_fire(self, now: datetime, state: _State) -> None:
        told = state.told
        told.fires += 1
        told.overlapped += any(run.is_unfinished for run in state.open.values()) or bool(state.waiting)
        self.walk.minutes.append((now - self._start) // MINUTE)
        self.walk.firing.append(state.place)

    def _retry(self, now: datetime, state: _State, uid: str, attempt: int, group: str | None) -> None:
        """Process a retry link: retry its run. If there is nothing to retry, give places in the run's group.

        There is nothing to retry if the run has ended, or if the link was armed for the rate of the group. In
        production, `kernel.chain.fire` does this.
        """
        if self._armed.get((uid, attempt)) != now:
            return  # the link was moved to an earlier time, and processed then
        del self._armed[uid, attempt]
        run = state.open.get(uid)
        if run is not None and run.status is RunStatus.RETRYING and run.attempt == attempt:
            state.told.retries += 1
            self._apply(state, decide_retry(state.schedule, [run], run, now=now), now)
            return
        if group in self._groups and (run is None or run.status is not RunStatus.PENDING or run.is_in_line):
            self._grant(now, [group])

    def _finish(self, now: datetime, state: _State, uid: str, attempt: int, result: AttemptResult) -> None:
        if self._busy_until.pop(uid, None) is None:  # the run was terminated
            return
        self._free(state)
        run = state.open.get(uid)
        if run is not None and run.status is RunStatus.RUNNING and run.attempt == attempt:  # otherwise it was cancelled
            self._settle(now, state, run, result)

    def _settle(self, now: datetime, state: _State, run: Run, result: AttemptResult) -> None:
        others = [other for other in state.seen() if other.uid != run.uid]
        self._apply(state, decide_settle(state.schedule, [run, *others], run, result, now=now), now)

    def _expire(self, now: datetime, state: _State, uid: str, attempt: int) -> None:
        run = state.open.get(uid)
        if run is not None and run.attempt == attempt and run.is_late(now):
            self._settle(now, state, run, AttemptResult(AttemptOutcome.EXPIRED))

    def _free(self, state: _State) -> None:
        queue = self._queues[state.given.queue]
        if queue.free is not None:
            queue.free += 1
        self._touched.add(state.given.queue)

    def _apply(self, state: _State, change: Change, now: datetime) -> None:
        """Apply a Change, and then start the downstream runs of all runs that it ends.

        The downstream runs of one run start together. If runs end because of this, their downstream runs start next.
        """
        self._take(state, change, now)
        if self._groups:
            self._give_places(now, [change])
        todo = _owed([(state, change)]) if state.followers or change.owed_again else []
        while todo:
            taken = list[tuple[_State, Change]]()
            for follower, ends in sorted(todo.pop(), key=lambda one: one[0].schedule.uid):
                if follower.schedule.is_active:
                    for _ in ends:
                        self._note_fire(now, follower)
                follows, _ = decide_after(follower.schedule, follower.seen(), ends, now=now, env=self._context.env)
                self._take(follower, follows, now)
                taken.append((follower, follows))
            if self._groups:
                self._give_places(now, [follows for _, follows in taken])
            todo += _owed(taken)

    def _take(self, state: _State, change: Change, now: datetime) -> None:
        """Apply one Change to the simulated store and queues."""
        if self._watch is not None:
            self._watch(now, change)
        before, state.schedule = state.schedule, change.after
        self._tell(state.told, change)
        for run in change.new_runs:
            self._put(now, state, None, run)
        for old, run in change.changed_runs:
            self._put(now, state, old, run)
        if change.drops_buffer:
            state.told.ended[RunStatus.CANCELLED.value] += len(state.waiting)
            state.waiting.clear()
        if change.after.n != before.n or change.after.resume_at != before.resume_at:
            self._arm(state)

    def _tell(self, told: Told, change: Change) -> None:
        for event in change.events:
            kind, payload = event.type, event.payload
            if kind == audit.TRIGGERED:
                told.started += 1
                ended = payload.get("cancelled_run_ids") or payload.get("terminated_run_ids") or ()
                told.replaced += len(ended)
            elif kind == audit.SKIPPED:
                told.skipped[payload["reason"]] += 1
            elif kind == audit.BUFFERED:
                told.waited += 1
            elif kind == audit.MISSED:
                told.missed += payload["count"]
            elif kind == audit.EXCLUDED:
                told.excluded += payload["count"]

    def _put(self, now: datetime, state: _State, old: Run | None, run: Run) -> None:
        """Store the new state of a run, and act on its status."""
        uid = run.uid
        queue = self._queues[state.given.queue]
        group = self._group_of(run)
        if old is not None and old.status is RunStatus.PENDING and run.status is not RunStatus.PENDING:
            if group is None or not old.is_in_line:
                queue.waiting -= 1  # its entry stays in the line and is ignored later
            self._touched.add(state.given.queue)
        if group is not None:
            group.move(run, state, now)
        if run.status not in OPEN:
            state.open.pop(uid, None)
            state.waiting.pop(uid, None)
            state.told.ended[run.shown_status] += 1
            if run.status is RunStatus.TERMINATED and (until := self._busy_until.pop(uid, None)) is not None:
                queue.told.busy -= min(until, self._end) - now
                self._free(state)
            return
        if run.status is RunStatus.BUFFERED:
            state.waiting[uid] = run
            return
        state.waiting.pop(uid, None)
        state.open[uid] = run
        self._await(now, state, run, has_line=group is not None)

    def _await(self, now: datetime, state: _State, run: Run, *, has_line: bool) -> None:
        """Plan what happens next to an unfinished run: its retry, or its start and its expiry."""
        place = state, run.uid, run.attempt
        if run.status is RunStatus.RETRYING and run.retry_at is not None:
            self._arm_retry(state, run, run.attempt, run.retry_at)
        elif run.status is RunStatus.PENDING:
            self._touched.add(state.given.queue)
            if not has_line:
                self._enqueue(now, state, run)
            if run.start_by is not None:
                self._push(run.start_by, _EXPIRY, run.schedule_uid, place)

    def _enqueue(self, now: datetime, state: _State, one: Run) -> None:
        """Put the job of a run on its queue."""
        queue = self._queues[state.given.queue]
        if one.priority > 0:
            queue.line.appendleft((state, one.uid, one.attempt, now))
        else:
            queue.line.append((state, one.uid, one.attempt, now))
        queue.waiting += 1
        self._touched.add(state.given.queue)

    def _group_of(self, run: Run) -> GroupLine | None:
        """Return the group in which a run needs a place; None if it needs none."""
        if run.limit_group is None or (group := self._groups.get(run.limit_group)) is None:
            return None
        self._moved.add(run.limit_group)
        return group

    def _give_places(self, now: datetime, changes: Iterable[Change]) -> None:
        """Give places in the groups with changed runs (in production, `features.limits.chain.Limits.follow`)."""
        joined, left = set[str](), set[str]()
        moved = [pair for one in changes for pair in (*((run, run) for run in one.new_runs), *one.changed_runs)]
        for old, run in moved:
            if run.limit_group is None or run.limit_group not in self._groups:
                continue
            if run.is_in_line:
                joined.add(run.limit_group)
            elif not run.takes_place and (old.takes_place or old.is_in_line):
                left.add(run.limit_group)
        unclaimed = {group: self._groups[group].wants(now) for group in left - joined}
        first = joined | {group for group, count in unclaimed.items() if count == 0}
        for names in (first, {group for group, count in unclaimed.items() if count}):
            if names:
                self._grant(now, names)

    def _grant(self, now: datetime, names: Iterable[str], asked: Run | None = None) -> None:
        """Give the free places of groups to the first runs in their lines.

        `asked` is a run without a place that a worker has taken. In production this is `features.limits.store.grant`.
        """
        granted, looks = list[tuple[_State, Run]](), list[tuple[_State, Run, datetime]]()
        for name in sorted(names):
            group = self._groups[name]
            self._moved.add(name)
            grants, left = group.decide(now, asked)
            for uid in grants.passed:
                self._change(now, group, uid, granted_at=None, passed_at=now)
            given = {"granted_at": now, "passed_at": None, "is_rated": group.bounds.rate is not None}
            granted += [self._change(now, group, uid, **given) for uid in grants.given]
            if left and (at := group.rate_frees_at(now)) is not None:
                looks.append((*group.takers[min(left, key=by_place).uid], at))
            if asked is not None and asked.uid not in grants.given:
                again = {"passed_count": (asked.passed_count or 0) + 1, "delivery": asked.delivery + 1}
                self._change(now, group, asked.uid, passed_at=None, **again)
            self._plan_look(now, name, group, grants.given)
        for state, run in sorted(granted, key=lambda pair: place_of(pair[1])):
            if asked is None or run.uid != asked.uid:
                self._enqueue(now, state, run)
        for state, run, at in looks:
            self._arm_retry(state, run, run.attempt - 1, at)

    def _arm_retry(self, state: _State, run: Run, attempt: int, at: datetime) -> None:
        """Arm a retry link of a run. If the link is armed already, move it to `at` if that is earlier."""
        armed = self._armed.get((run.uid, attempt))
        if armed is None or at < armed:
            self._armed[run.uid, attempt] = at
            link = RetryLinkId(run.schedule_uid, run.number, attempt)
            self._push(at, _RETRY, str(link), (state, run.uid, attempt, run.limit_group))

    def _change(self, now: datetime, group: GroupLine, uid: str, **changes: Any) -> tuple[_State, Run]:
        state, _ = group.takers[uid]
        run = state.open[uid] = changed(state.open[uid], **changes)
        group.move(run, state, now)
        return state, run

    def _plan_look(self, now: datetime, name: str, group: GroupLine, given: Iterable[str] = ()) -> None:
        """Plan a check of the places that no worker claims. It happens when the next of these places becomes old.

        In production, a reconcile pass makes this check.
        """
        if (at := group.next_look(now, given)) is not None:
            group.look_at = at
            self._push(at, _LOOK, "", (name,))

    def _look(self, now: datetime, name: str) -> None:
        """Check all groups in which an unclaimed place becomes old now, together, as one reconcile pass does."""
        names = {name}
        while self._heap and self._heap[0][:2] == (now, _LOOK):
            names.update(heappop(self._heap)[4])
        due = [one for one in sorted(names) if self._groups[one].look_at == now]
        for one in due:
            self._groups[one].look_at = None
        self._grant(now, [one for one in due if self._groups[one].waiting and self._groups[one].has_old(now)])
        for one in due:
            self._plan_look(now, one, self._groups[one])

    def _start_all(self, now: datetime) -> None:
        """Let the free workers take waiting attempts.

        If an attempt ends at once, stop, so that its end is settled before another attempt begins.
        """
        heap = self._heap
        while self._touched:
            name = min(self._touched)
            queue = self._queues[name]
            while queue.line and queue.free != 0:
                self._take_next(now, queue)
                if heap and heap[0][0] <= now:
                    return
            queue.note(now)
            self._touched.discard(name)
        for name in self._moved:
            self._groups[name].note(now)
        self._moved.clear()

    def _take_next(self, now: datetime, queue: QueueLine) -> None:
        """Let a worker take the first attempt of its queue. If the run has lost its place in a group, it asks again."""
        state, uid, attempt, since = queue.line.popleft()
        run = state.open.get(uid)
        if run is None or run.attempt != attempt or run.status is not RunStatus.PENDING:
            return
        queue.waiting -= 1
        if run.passed_at is not None and run.limit_group is not None:
            self._grant(now, [run.limit_group], run)
            run = state.open[uid]
            if run.is_in_line:
                return
        if queue.free is not None:
            queue.free -= 1
        self._begin(now, state, run, queue, since)

    def _begin(self, now: datetime, state: _State, waiting: Run, queue: QueueLine, since: datetime) -> None:
        changes: dict[str, Any] = {"status": RunStatus.RUNNING, "started_at": now, "worker": "simulated"}
        run = state.open[waiting.uid] = changed(waiting, **changes)
        if (group := self._group_of(run)) is not None:
            group.move(run, state, now)
            group.start(now)
        queue.began(now - since)
        took, result = state.given.expected.draw(self._seed, run, state.given.name)
        retried: Any = state.schedule.policies.retry.retry_on
        if retried and result.outcome is AttemptOutcome.FAILED and result.error_types == NO_TYPES:
            result = result._replace(error_types=ErrorTypes((retried[0],)))  # every simulated failure is retried
        self._busy_until[run.uid] = now + took
        queue.told.busy += min(took, self._end - now)
        self._push(now + took, _END, "", (state, run.uid, run.attempt, result))


_Owed: TypeAlias = list[tuple[_State, list[UpstreamEnd]]]
"""Downstream schedules, each with the ends of upstream runs to which it must react."""


def _owed(taken: Sequence[tuple[_State, Change]]) -> list[Sequence[tuple[_State, list[UpstreamEnd]]]]:
    """Return the downstream schedules of the runs that Changes end, in groups.

    The schedules of one group start together. The last group starts first.
    """
    resumed, found = _Owed(), _Owed()
    for state, change in taken:
        if change.owed_again is not None:  # a pause is over: react to the newest end that it missed
            run_uid, ended_at = change.owed_again
            again = UpstreamEnd(run_uid, state.schedule.uid, "", "", ended_at, None, followed=Followed.MISSED.value)
            resumed.append((state, [again]))
        ended = ended_runs(change) if state.followers else []
        for follower, on in state.followers if ended else ():
            ends = [
                UpstreamEnd(run.uid, follower.schedule.uid, run.schedule_uid, run.shown_status, run.ended_at, None)
                for run in ended
                if run.ended_at is not None and counts_for(on, run.status)
            ]
            if ends:
                found.append((follower, ends))
    found.sort(key=lambda one: one[0].schedule.uid)
    return [*chunks([*resumed, *found], TOGETHER)][::-1]
