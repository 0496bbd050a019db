"""One world: actors who own, fire, run, repair and break a few schedules, in an order that one seed decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import sqlalchemy as sa
from redis.exceptions import RedisError

from rqsched import After, RetryPolicy, Spec, jobs
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import BackendUnavailableError, LimitNotFoundError, RqschedError
from rqsched.features.after.decide import Followed, UpstreamEnd
from rqsched.features.fan_out import dispatch as fan_out
from rqsched.features.fan_out import execution as target_execution
from rqsched.features.fan_out.decide import TargetEnd
from rqsched.features.fan_out.store import Target
from rqsched.features.limits import store as limits
from rqsched.kernel.chain import execution, settle
from rqsched.kernel.chain.attempt import Claim
from rqsched.kernel.chain.reconcile.passes import iter_batches
from rqsched.kernel.chain.runtime import using
from rqsched.kernel.decide.freeze import Freeze
from rqsched.kernel.decide.ids import BatchJobId, TargetJobId, new_uid, parse_run_job_id, parse_target_job_id
from rqsched.kernel.decide.limit_options import MAX_NUMBER, Rate
from rqsched.kernel.decide.model import ScheduleStatus, TargetStatus
from rqsched.kernel.decide.policy import KEEPS_ALL, NO_TYPES
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import metadata, tables
from rqsched.kernel.store.database import Connection
from rqsched.kernel.store.rows import SELECT_SCHEDULES, to_schedules
from rqsched.when.members import ENDS
from tests.support.invariants import check_invariants, i8_executions, nothing_owed, read_ends
from tests.support.narrow import present
from tests.support.stories import read_stories
from tests.system.worlds.declarations import declaration, excluded_days, moving_declaration
from tests.system.worlds.faults import Crash, Faults, swallowed_errors
from tests.system.worlds.rest import check_rest, watched_links
from tests.system.worlds.stage import NAMES_TARGETS, TARGETS, WORKFLOW, Actor, Stage, seeded_uids

SCHEDULES = ("s0", "s1", "s2")
CALENDARS = ("breaks", "closed")
LIMIT = "default/shop"
RATES = ("1/min", "2/min", "2/90s", "5/3min")
CHECK_EVERY = 25
Ends: TypeAlias = dict[tuple[str, str], UpstreamEnd]
"""The ends that are or were owed, by the upstream run and the downstream schedule."""
T = TypeVar("T")
_THAWS: tuple[Literal["one", "all", "none"] | None, ...] = (None, "one", "all", "none")
_OF_TIMES = {"spec", "jitter", "spread", "exclude", "on_excluded"}
"""Options of the times of a schedule. A downstream has none of them."""
_OVERLAPS = (None, None, "allow_all", "skip", "buffer_all", "cancel_other", "terminate_other")


@dataclass(slots=True)
class Horse:
    """A process that executes an attempt of a run."""

    claim: Claim
    is_frozen: bool = False
    """It shows no life, but may wake up and report."""


class TargetHorse(NamedTuple):
    """A process that handles an attempt of a target."""

    target: Target
    token: str


class Start(NamedTuple):
    """A start that counts in the rate of its group."""

    started_at: datetime
    place: int
    """How many places were given before its own."""
    rate: Rate | None
    """The rate by which it got that; None when there was none yet."""


class Begun(NamedTuple):
    """The started runs, and the freezes that prevent further starts."""

    frozen: tuple[str, ...] = ()
    """The freezes that last."""
    running: int = 0
    """How many runs run."""
    live: int = 0
    """How many runs there are that are not of a backfill."""


class World:
    """Everything of one seed: `live` plays it, and ends in the invariants."""

    def __init__(self, stage: Stage, seed: int, *, is_skewed: bool = False) -> None:
        """`is_skewed`: clocks are far apart and jump often, owners pause and resume, and nobody reconciles."""
        self.seed = seed
        self.random = Random(seed)
        self.faults = Faults(self.random)
        self.faults.interrupt = self.step
        self.stage = stage
        self.network = stage.set(self.faults)
        self.horses: list[Horse] = []
        self.target_horses: list[TargetHorse] = []
        self.executed: Counter[tuple[str, int]] = Counter()
        self.handles: list[ScheduleHandle] = []
        self.links: list[str] = []
        self._names: list[str] = []
        self.log: list[str] = []
        self.skew = timedelta(0)
        self._idle = list(stage.crew)
        self._acting: list[Act] = []
        """The current act, and the acts that interrupt it."""
        self._seen_begun, self._seen_places = Begun(), (0, 0)
        self._patience = 8
        spread = self.random.choice((0, 0, 0.3, 4, 100))
        self._spread = timedelta(seconds=100 if is_skewed else spread)
        self._is_later = seed % 300 >= 200  # the first seeds stay the worlds that mutations name
        self._has_targets = 200 <= seed % 300 < 250 and seed % 4 == 1 and not is_skewed
        self._freezes = 200 <= seed % 300 < 250 and not is_skewed and not self._has_targets
        self.owes_in_freezes = self._freezes and seed % 4 == 3
        """Whether its schedules come after one another, and their runs end while nothing may begin."""
        self.owed = set[tuple[str, str]]()
        """The ends that were owed in a freeze: upstream run and downstream schedule."""
        self._moves = seed % 300 >= 280
        """Whether edits of the exclusions move the schedules' few daily occurrences to other days."""
        self._has_calendars = seed % 300 >= 250 and not is_skewed and not 280 <= seed % 300 < 290
        self._has_limits = self._is_later and seed % 2 == 1 and not self.owes_in_freezes
        # A start is kept for a minute more than its window: clocks are not further apart.
        self._has_rates = self._has_limits and seed % 3 == 0 and self._spread < timedelta(seconds=30)
        self._given: dict[tuple[str, datetime], tuple[int, Rate | None]] = {}
        self._starts: dict[tuple[str, datetime], Start] = {}
        usual = _EXCLUDING if self._has_calendars else _SKIPPING if self._is_later else _WEIGHTS
        usual = _MOVING if self._moves else usual
        usual = _MOVING_BY_CALENDARS if self._moves and self._has_calendars else usual
        usual = _FREEZING if self._freezes else _SKEWED if is_skewed else usual
        own: dict[Act, int] = {World.come_after: 20} if self._has_calendars else {}
        own |= (
            {World.come_after: 8, World.freeze: 2, World.start_run: 30, World.delete: 1} if self.owes_in_freezes else {}
        )
        own |= {World.set_limit: 8} if self._has_limits else {}
        own |= {World.trigger: 12, World.start_run: 50, World.end_run: 40} if self._has_targets else {}
        self._weights = [own.get(act, one) for act, one in zip(_ACTS, usual, strict=True)]

    def live(self, steps: int | None = None) -> None:
        """Play the world to its end; raises AssertionError when an invariant breaks."""
        with seeded_uids(Random(self.seed)), watched_links(), swallowed_errors() as swallowed:
            if self._has_calendars:
                self.step(World.set_calendar)
            for _ in range(self.random.randint(1, 2)):
                self.step(World.create)
            is_longer = self._moves or self._has_targets or self._has_calendars
            count = (steps or self.random.randint(20, 45)) * (3 if is_longer else 1)
            for number in range(1, 1 + count):
                self.step()
                if number % CHECK_EVERY == 0:
                    self._check()
                if number % 10 == 0:
                    self._end_in_a_freeze()
            self._come_to_rest()
            self._check_rest()
        assert not swallowed, f"swallowed: {swallowed}"

    def step(self, act: Act | None = None) -> None:
        """Some idle actor does something, or dies trying."""
        actor = self.random.choice(self._idle)
        act = act or self.random.choices(_ACTS, self._weights)[0]
        self.stage.clock.advance(timedelta(microseconds=self.random.randint(1, 20_000)))
        self._idle.remove(actor)
        self.log.append(f"{self.stage.clock.now():%H:%M:%S.%f} {actor.name} {actor.clock.offset} {act.__name__}")
        at = len(self.log) - 1
        self._look()
        self._acting.append(act)
        try:
            answer = act(self, actor)
            self.log[at] += f" {answer}" if answer is not None else ""
        except Crash:
            self.log[at] += " CRASHED"
            actor.restart()
        except (RqschedError, RedisError, BackendUnavailableError) as error:
            self.log[at] += f" -> {type(error).__name__}: {error}"
        finally:
            self._idle.append(actor)
        self._look()
        self._acting.pop()
        self.links = [*dict.fromkeys([*self.links, *self.network.scheduled, *self.network.control])][-60:]

    def _end_in_a_freeze(self) -> None:
        """Runs that others come after begin, and end in a freeze, one step after another."""
        for act in _OWING if self.owes_in_freezes else ():
            self.step(act)

    def _look(self) -> None:
        """See that nothing began since the last look that must not; an act in the midst of another is seen alone."""
        begun, places = self._begun(), self._places()
        self._require_frozen(self._seen_begun, begun)
        self._require_places(self._seen_places, places)
        self._seen_begun, self._seen_places = begun, places
        if begun.frozen:
            self.owed |= {key for key, end in self._ends().items() if end.due_at is not None}
        if self._has_rates:
            self._note_starts()
            self._require_rate()

    def _begun(self) -> Begun:
        """Return the freezes and the started runs, or nothing if the world never freezes."""
        if not self._freezes:
            return Begun()
        is_running, is_live = tables.runs.c.status == "running", tables.runs.c.kind != "backfill"
        counts = sa.select(sa.func.count().filter(is_running), sa.func.count().filter(is_live))

        def read(connection: Connection) -> Begun:
            frozen = [one for name, one in metadata.find_lasting(connection).items() if name != "*"]
            return Begun(tuple(frozen), *connection.execute(counts).one())

        return self._read(read)

    def _read(self, read: Callable[[Connection], T]) -> T:
        """Read as nobody in this world does: nothing goes wrong."""
        was_on, self.faults.is_on = self.faults.is_on, False
        found = self.stage.database.read(read)
        self.faults.is_on = was_on
        return found

    def _require_frozen(self, before: Begun, after: Begun) -> None:
        """While a freeze lasts no attempt begins and nothing starts a live run."""
        if before.frozen and before.frozen == after.frozen and World.thaw not in self._acting:
            assert after.running <= before.running, "an attempt has begun in a frozen namespace"
            # For a second a process may not have heard of the freeze. Requests of that second wait for the thaw.
            since = [Freeze.from_text(one).since or datetime.max.replace(tzinfo=UTC) for one in before.frozen]
            is_asked = World.trigger in self._acting or World.trigger_upstream in self._acting
            is_new = is_asked and self.stage.clock.now() - max(since) <= timedelta(seconds=1)
            assert after.live <= before.live + is_new, "a run was made in a frozen namespace"

    def _places(self) -> tuple[int, int]:
        """How many runs of the group may run at once, and how many do; where a world has one."""
        if not self._has_limits:
            return 0, 0
        runs, targets, groups = tables.runs, tables.targets, tables.limits
        begun = runs.c.status == "running", runs.c.dispatched_at.is_(None)
        running_runs = sa.select(sa.func.count()).where(runs.c.limit_group == LIMIT, *begun)
        handled = targets.c.limit_group == LIMIT, targets.c.status == "running"
        running_targets = sa.select(sa.func.count()).where(*handled)
        running = sa.select(running_runs.scalar_subquery() + running_targets.scalar_subquery())
        number = sa.select(sa.func.coalesce(groups.c.number, MAX_NUMBER)).where(groups.c.limit_group == LIMIT)
        return self._read(lambda c: (c.scalar(number) or 0, c.scalar(running) or 0))

    def _require_places(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Never more of the group run than its number, but for those that ran when it was lowered."""
        (_, ran), (number, running) = before, after
        assert running <= max(number, ran), f"{running} run of a group of {number}, and {ran} did before"

    def _note_starts(self) -> None:
        """Keep by which rate each place of the group was given, and which attempts started in it."""
        runs, targets, groups = tables.runs, tables.targets, tables.limits
        both = [
            sa.select(one.c.uid, one.c.granted_at, one.c.started_at, one.c.status).where(
                one.c.limit_group == LIMIT, one.c.is_rated, one.c.granted_at.is_not(None)
            )
            for one in (runs, targets)
        ]
        bounds = sa.select(groups.c.rate_number, groups.c.rate_seconds).where(groups.c.limit_group == LIMIT)
        found, has = self._read(lambda c: (c.execute(sa.union_all(*both)).all(), c.execute(bounds).first()))
        rate = None if has is None or has.rate_number is None else Rate(*has)
        if rate is None:
            self._starts.clear()
        for uid, granted_at, started_at, status in found:
            place = self._given.setdefault((uid, granted_at), (len(self._given), rate))
            if status == "running" and rate is not None:
                self._starts[uid, started_at] = Start(started_at, *place)

    def _require_rate(self) -> None:
        """In no window more started than the rate by which the last of them got its place says."""
        starts = sorted(self._starts.values())
        for last in starts:
            if last.rate is None:
                continue
            at = [one.started_at for one in starts if one.place <= last.place]
            for first, end in zip(at, at[last.rate.number :], strict=False):
                is_within = end - first < last.rate.period and first <= last.started_at <= end
                assert not is_within, f"more than {last.rate} started from {first} to {end}"

    def set_limit(self, actor: Actor) -> str:
        if self._has_rates and self.random.random() < 0.5:
            return str(actor.scheduler.limits.set("shop", rate=self.random.choice(RATES)))
        return str(actor.scheduler.limits.set("shop", self.random.choice((1, 1, 2, 3))))

    def freeze(self, actor: Actor) -> str:
        return str(actor.scheduler.freeze())

    def thaw(self, actor: Actor) -> str:
        missed, before, at = self.random.choice(_THAWS), self._ends(), len(self.log)
        ended = actor.scheduler.thaw(missed=missed, cancel_pending=self.random.random() < 0.2)
        if ended.freeze is not None and len(self.log) == at:  # else another one acted meanwhile
            self._require_thawed(actor, before, missed)
        return f"{missed} {ended}"

    def _ends(self) -> Ends:
        """Return the ends that are or were owed to downstream schedules."""
        if not self.owes_in_freezes:
            return {}
        return {(end.run_uid, end.schedule_uid): end for end in self._read(read_ends)}

    def _require_thawed(self, actor: Actor, before: Ends, missed: str | None) -> None:
        """Each end that was owed has an outcome; those are followed that the thaw says, and the others are missed."""
        now, after = actor.clock.now(), self._ends()
        settled = [(before.get(key), end) for key, end in after.items() if end.due_at is None]
        assert {*before} <= {(end.run_uid, end.schedule_uid) for _, end in settled}, "what was owed has no outcome"
        for schedule in self._read(lambda c: list(to_schedules(c, c.execute(SELECT_SCHEDULES).all()))):
            policies, fresh, followed = schedule.policies, list[str](), list[str]()
            of_it = [pair for pair in settled if pair[1].schedule_uid == schedule.uid and pair[0] != pair[1]]
            for was, end in sorted(of_it, key=lambda pair: (pair[1].ended_at, pair[1].run_uid)):
                is_of_resume = was is not None and was.followed is not None
                if is_of_resume or policies.allowed_lateness is None or now - end.ended_at <= policies.allowed_lateness:
                    fresh.append(end.run_uid)
                if end.followed in {Followed.STARTED, Followed.SKIPPED}:
                    followed.append(end.run_uid)
            said = {"one": "fire_once", None: policies.missed.value}.get(missed, missed)
            said = "fire_once" if said == "all" and policies.overlap not in KEEPS_ALL else said
            said = "none" if schedule.status in {ScheduleStatus.PAUSED, ScheduleStatus.DELETED} else said
            all_of_them = fresh[-policies.missed_limit :]
            allowed = {"none": [], "fire_once": fresh[:1], "skip": fresh[-1:], "all": all_of_them}[present(said)]
            assert followed == allowed, f"of {of_it} of {schedule.schedule_id} the thaw {missed} allows {allowed}"

    @property
    def _pace(self) -> int:
        """How much longer everything takes in a world of days."""
        return 1009 if self._moves else 1

    def _some_schedule(self, actor: Actor) -> ScheduleHandle:
        """A schedule by its id, or an old handle of an incarnation that may be gone."""
        if self.handles and self.random.random() < 0.15:
            old = self.random.choice(self.handles)
            return ScheduleHandle(actor.scheduler.runtime, old.state)
        name = self.random.choice(self._names or SCHEDULES)
        handle = actor.scheduler.get(name)
        self.handles = [*self.handles[-20:], handle]
        return handle

    def _declared(self) -> dict[str, Any]:
        options = moving_declaration(self.random) if self._moves else declaration(self.random)
        if self._is_later and self.random.random() < 0.4:
            options["start_within"] = timedelta(seconds=self.random.choice((20, 300)))
        if self._has_calendars and self.random.random() < 0.7:
            named, spec = self.random.sample(CALENDARS, 1), Spec.coerce(options["spec"])
            if self._moves:
                options["exclude"] += named
            else:
                options["spec"] = replace(spec, exclude=(*spec.exclude, *named))
        if self._has_limits and self.random.random() < 0.6:
            options |= {"limit": "shop", "limit_running": self.random.choice((1, 2, 2))}
            if self._has_rates:
                only = self.random.choice(({}, {"limit_rate": self.random.choice(RATES)}))
                options |= {"limit_running": None, **only} if self.random.random() < 0.7 else only
        if self._has_targets and self.random.random() < 0.7:
            again = RetryPolicy(self.random.choice((0, 2)), base=timedelta(seconds=1))
            most = self.random.choice((None, None, 1, 2))
            options |= {"targets": NAMES_TARGETS, "target_retry": again, "max_parallel": most}
        return options

    def come_after(self, actor: Actor) -> str:
        """One schedule comes after another from now on, or would: where that is not there, or makes a circle."""
        name, upstream = self.random.choice(SCHEDULES), self.random.choice(SCHEDULES)
        if self.owes_in_freezes:
            name, upstream = self.random.choice((("s1", "s0"), ("s2", "s0"), ("s2", "s1")))
        after = After(upstream, on=self.random.choice(ENDS))
        if self.random.random() < 0.5:
            actor.scheduler.get(name).update(spec=after, jitter=0, spread=0, exclude=[], on_excluded="skip")
            return f"{name} {after}"
        options = {key: value for key, value in self._declared().items() if key not in _OF_TIMES}
        self._names.append(name)
        _, outcome = actor.scheduler.upsert(name, WORKFLOW, after, **options)
        return f"{name} {after} {options} -> {outcome}"

    def create(self, actor: Actor) -> str:
        name = self.random.choice(SCHEDULES)
        options = self._declared()
        spec = options.pop("spec")
        self._names.append(name)
        actor.scheduler.create(name, WORKFLOW, spec, paused=self.random.random() < 0.1, **options)
        return f"{name} {spec} {options}"

    def upsert(self, actor: Actor) -> str:
        name = self.random.choice(SCHEDULES)
        options = self._declared()
        spec = options.pop("spec")
        paused = self.random.choice((None, None, True, False))
        _, outcome = actor.scheduler.upsert(name, WORKFLOW, spec, paused=paused, **options)
        return f"{name} {spec} {options} paused={paused} -> {outcome}"

    def update(self, actor: Actor) -> str:
        handle = self._some_schedule(actor)
        options = self._declared()
        names = self.random.sample(sorted(options), self.random.randint(1, 3))
        changes = {name: options[name] for name in names}
        handle.update(**changes)
        return f"{handle.schedule_id} {changes}"

    def pause(self, actor: Actor) -> str:
        return str(self._some_schedule(actor).pause())

    def skip_next(self, actor: Actor) -> str:
        count = self.random.choice((0, 1, 1, 2, 5))
        return f"{self._some_schedule(actor).skip_next(count)} {count}"

    def set_calendar(self, actor: Actor) -> str:
        name = self.random.choice(CALENDARS)
        if self._moves:
            held = excluded_days(self.random, self.stage.clock.now())
            return str(actor.scheduler.calendars.set(name, held).revision) + f" {name} {held}"
        now = self.stage.clock.now().replace(second=0, microsecond=0)
        length = timedelta(minutes=self.random.randint(1, 6))
        begin = now + timedelta(minutes=self.random.randint(-4, 12))
        held = [] if self.random.random() < 0.2 else [f"{begin:%H:%M}-{begin + length:%H:%M}"]
        return str(actor.scheduler.calendars.set(name, held).revision) + f" {name} {held}"

    def delete_calendar(self, actor: Actor) -> str:
        name = self.random.choice(CALENDARS)
        actor.scheduler.calendars.delete(name)
        return name

    def resume(self, actor: Actor) -> str:
        mode = self.random.choice((None, "next", "once", "once", "from_now"))
        return f"{self._some_schedule(actor).resume(mode)} {mode}"

    def restart(self, actor: Actor) -> str:
        return str(self._some_schedule(actor).restart())

    def delete(self, actor: Actor) -> str:
        return str(self._some_schedule(actor).delete())

    def trigger_upstream(self, actor: Actor) -> str:
        """A run of the first schedule, whatever runs of it; it is there then, and begins anew where it was over."""
        name = SCHEDULES[0]
        if name not in self._names:
            actor.scheduler.upsert(name, WORKFLOW, **self._declared())
            self._names.append(name)
        handle = actor.scheduler.get(name)
        if handle.status in {"done", "dead"}:
            handle.restart()
        return str(handle.trigger("allow_all", force=True).outcome)

    def trigger(self, actor: Actor) -> str:
        handle = self._some_schedule(actor)
        key = self.random.choice((None, None, "key-1", "key-2"))
        overlap, force = self.random.choice(_OVERLAPS), self.random.random() < 0.3
        result = handle.trigger(overlap, force=force, idempotency_key=key)
        return f"{handle.schedule_id} {overlap} force={force} {key} -> {result.outcome} {result.reason or ''}"

    def backfill(self, actor: Actor) -> str:
        handle = self._some_schedule(actor)
        end = actor.clock.now() - timedelta(seconds=self.random.choice((0, 0, 60)))
        start = end - timedelta(seconds=self.random.randint(30, 400)) * self._pace
        overlap = self.random.choice((None, "allow_all", "skip"))
        rows = handle.backfill(start, end, overlap=overlap).rows
        return f"{handle.schedule_id} [{start}, {end}) {overlap} -> {[row.outcome for row in rows]}"

    def fire(self, actor: Actor) -> str:
        return f"{actor.dispatcher.run_once()} links"

    def fire_one(self, actor: Actor) -> str | None:
        """As a plain `rq worker`: RQ has popped the link, and asks nobody whether it may be fired."""
        link = self.network.pop_link(actor.clock.now())
        if link is None:
            return None
        with using(actor.scheduler.runtime):
            retry = jobs.fire(link)
        if retry is not None:
            self.network.place(link, actor.clock.now() + timedelta(seconds=retry.intervals[0]))
        return f"{link} again={retry is not None}"

    def tick(self, actor: Actor) -> str:
        return str(actor.scheduler.tick(limit=self.random.randint(1, 4)))

    def start_run(self, actor: Actor) -> str | None:
        text = self.network.pop_job() or ""
        job = parse_run_job_id(text)
        if job is None:
            return self._start_target(actor, text) if text else None
        claim = execution.claim_run(actor.scheduler.runtime, job)
        if claim is None and self._has_limits:  # it may have been passed over
            claim = execution._leave(actor.scheduler.runtime, job, None)
        if claim is None:
            return f"{job} is stale"
        self._look()
        assert (claim.run.attempt, claim.run.delivery) == (job.attempt, job.delivery), f"{job} is stale and was started"
        self.executed[claim.run.uid, claim.run.attempt] += 1
        self.horses.append(Horse(claim, is_frozen=self.random.random() < 0.1))
        return f"{job} of run {claim.run.number} of {claim.schedule.schedule_id}"

    def _start_target(self, actor: Actor, text: str) -> str:
        job, runtime = parse_target_job_id(text), actor.scheduler.runtime
        if isinstance(job, BatchJobId):
            return f"{job} puts {fan_out.dispatch(runtime, job)} targets in line"
        token = new_uid(actor.clock.now())
        claimed = target_execution.claim_target(runtime, present(job), token, actor.name)
        if claimed is None:
            return f"{job} is stale"
        self._look()
        self.target_horses.append(TargetHorse(claimed.target, token))
        return f"{job} of target {claimed.target.target_id}"

    def _end_target(self, actor: Actor) -> str:
        horse = self.target_horses.pop(self.random.randrange(len(self.target_horses)))
        runtime, fate = actor.scheduler.runtime, self.random.random()
        if fate < 0.15:
            return f"target {horse.target.target_id} dies unseen"
        if fate < 0.25:
            target_execution.lose(runtime, horse.target.job_id, "its work horse died", token=horse.token)
            return f"target {horse.target.target_id} dies"
        if fate < 0.5:
            target_execution._fail(runtime, horse.target, horse.token, "it raised", NO_TYPES)
            return f"target {horse.target.target_id} fails"
        target_execution._finish(runtime, horse.target, horse.token, lambda *_: TargetEnd(TargetStatus.SUCCEEDED))
        return f"target {horse.target.target_id} succeeds"

    def _complete(self, actor: Actor, claim: Claim, attempt_result: AttemptResult) -> None:
        """End an attempt, or name the targets of its run."""
        runtime, outcome = actor.scheduler.runtime, attempt_result.outcome
        if claim.schedule.policies.targets is None or outcome is not AttemptOutcome.SUCCEEDED:
            execution._complete(runtime, claim, attempt_result)
            return
        fan_out.fan_out(runtime, fan_out.batch_of(runtime, claim.run.uid), [TARGETS[:2], TARGETS[2:]])
        execution._complete(runtime, claim, AttemptResult(AttemptOutcome.DISPATCHED))

    def end_run(self, actor: Actor) -> str | None:
        if self.target_horses and (not self.horses or self.random.random() < 0.6):
            return self._end_target(actor)
        if not self.horses:
            return None
        horse = self.horses.pop(self.random.randrange(len(self.horses)))
        failed = AttemptResult(AttemptOutcome.FAILED, error="it raised")
        attempt_result = self.random.choice(
            (AttemptResult(AttemptOutcome.SUCCEEDED), AttemptResult(AttemptOutcome.SUCCEEDED), failed)
        )
        self._complete(actor, horse.claim, attempt_result)
        return f"run {horse.claim.run.number} of {horse.claim.schedule.schedule_id} {attempt_result.outcome}"

    def horse_dies(self, actor: Actor) -> str | None:
        if not self.horses:
            return None
        run = self.horses.pop(self.random.randrange(len(self.horses))).claim.run
        if self.random.random() < 0.5:  # else its worker died with it, and nobody has seen it
            job = present(parse_run_job_id(f"run-{run.uid}-a{run.attempt}-d{run.delivery}"))
            settle.lose_run(actor.scheduler.runtime, job, "its work horse died")
        return f"run {run.number} of {run.schedule_uid}"

    def stop_run(self, actor: Actor) -> str | None:
        handle = self._some_schedule(actor)
        found = handle.runs(limit=5).items
        if not found:
            return None
        run = self.random.choice(found)
        stopped = run.cancel() if self.random.random() < 0.6 else run.terminate()
        return f"run {stopped.number} of {handle.schedule_id} -> {stopped.status}"

    def recover(self, actor: Actor) -> str:
        self._beat(actor)
        return str(actor.scheduler.recover(deep=self.random.random() < 0.2))

    def reconcile_some(self, actor: Actor) -> str:
        """One batch of a pass; the rest comes after others have acted."""
        self._beat(actor)
        if actor.passes is None:
            actor.passes = iter_batches(actor.scheduler.runtime)
        try:
            return str(next(actor.passes))
        except StopIteration:
            actor.passes = None
            return "over"
        except (RqschedError, RedisError):
            actor.passes = None
            raise

    def _beat(self, actor: Actor) -> None:
        for horse in self.horses:
            if not horse.is_frozen:
                execution._send_heartbeat(actor.scheduler.runtime, horse.claim)

    def time_passes(self, actor: Actor) -> str:
        span = self.random.choices((30.0, 90.0, 700.0, 7000.0), (40, 40, 15, 5))[0]
        passed = timedelta(microseconds=self.random.randint(1, int(span * 1e6)) | 1)
        return str(self.stage.clock.advance(passed * self._pace))

    def clock_jumps(self, actor: Actor) -> str:
        actor.clock.offset = self._spread * self.random.choice((-1, -0.4, 0, 0.5, 1))
        offsets = [other.clock.offset for other in self.stage.crew]
        self.skew = max(self.skew, 2 * self._spread, max(offsets) - min(offsets))
        return str(actor.clock.offset)

    def message_arrives(self, actor: Actor) -> None:
        self.network.arrive()

    def old_link_arrives(self, actor: Actor) -> str | None:
        """A link is put on the list: once more, or before its time, as RQ's tools let a person do."""
        if not self.links:
            return None
        link = self.random.choice(self.links)
        self.network.scheduled.pop(link, None)
        self.network.place(link, None)
        return link

    def redis_forgets(self, actor: Actor) -> None:
        self.network.flush()

    def _check(self) -> None:
        was_on, self.faults.is_on = self.faults.is_on, False
        check_invariants(
            self._first.scheduler.runtime, with_redis=False, skew=self.skew, lowers_limits=self._has_limits
        )
        self.faults.is_on = was_on

    @property
    def _first(self) -> Actor:
        return self.stage.crew[0]

    def _come_to_rest(self) -> None:
        """Stop the faults, finish the running work, and give reconcile time to find the rest."""
        self.faults.is_on = False
        for actor in self.stage.crew:
            actor.clock.offset = timedelta(0)
        self.network.in_flight.clear()
        if self._freezes:
            self.thaw(self._first)
        self.stage.clock.advance(self.skew)
        self._lose_targets()
        self._work_off()
        self._repair()
        while self._has_lost_runs():
            self._repair()
        if self._has_rates:
            self._wait_for_rate()

    def _wait_for_rate(self) -> None:
        """While the clock goes on some start in each window, by their links alone; a higher rate lets all begin."""
        for _ in range(3):
            waiting, began = self._in_line(), {*self._starts}
            self.stage.clock.advance(timedelta(minutes=3))
            self._work_off()
            assert not waiting or began != {*self._starts} or self._in_line() < waiting, (
                f"{waiting} wait for ever in line of a rate"
            )
        with suppress(LimitNotFoundError):
            self._first.scheduler.limits.set("shop", rate="100000/s")
        self._work_off()
        assert not self._in_line(), "some wait in line of a rate that was raised"
        self._repair()

    def _in_line(self) -> int:
        """How many of the group wait for a place, and are not too late to start."""
        runtime = self._first.scheduler.runtime
        return len(runtime.database.read(partial(limits.first_in_line, group=LIMIT, most=99, now=runtime.now())))

    def _lose_targets(self) -> None:
        """Lose targets whose process died with its worker: nobody waits for their deadlines here."""
        targets, held = tables.targets, [horse.token for horse in self.target_horses]
        running = sa.select(targets.c.uid, targets.c.delivery).where(targets.c.status == "running")
        gone = running.where(targets.c.token.not_in(held))
        for uid, delivery in self.stage.database.read(lambda connection: connection.execute(gone).all()):
            target_execution.lose(self._first.scheduler.runtime, TargetJobId(uid, delivery), "its worker is gone")

    def _repair(self) -> None:
        self.stage.clock.advance(timedelta(seconds=16, microseconds=14))
        found = self._first.scheduler.recover()
        assert found.failed == 0, f"reconcile could not repair: {found}"
        self._work_off()

    def _has_lost_runs(self) -> bool:
        """Whether a run is with a process that is no more, and reconcile has not seen enough of that yet."""
        self._patience -= 1
        assert self._patience > 0, "a run without a sign of life is never lost"
        # A run that has named its targets ends with them.
        running = sa.select(sa.exists().where(tables.runs.c.status == "running", tables.runs.c.dispatched_at.is_(None)))
        return bool(self.stage.database.read(lambda connection: connection.execute(running).scalar_one()))

    def _work_off(self) -> None:
        for _ in range(400):
            fired = self._first.dispatcher.run_once()
            while self.network.jobs:
                self.start_run(self._first)
            while self.horses:
                self._complete(self._first, self.horses.pop().claim, AttemptResult(AttemptOutcome.SUCCEEDED))
            while self.target_horses:
                target, token = self.target_horses.pop()
                runtime = self._first.scheduler.runtime
                target_execution._finish(runtime, target, token, lambda *_: TargetEnd(TargetStatus.SUCCEEDED))
            if not fired and not self.network.jobs:
                return
        raise AssertionError("the work never ends")

    def _check_rest(self) -> None:
        runtime = self._first.scheduler.runtime
        check_invariants(runtime, with_redis=False, skew=self.skew, lowers_limits=self._has_limits)
        i8_executions(runtime, self.executed.elements())
        check_rest(runtime, self.network)
        assert [*nothing_owed(runtime, read_stories(runtime))] == []
        stuck = sa.select(tables.targets).where(tables.targets.c.status.in_(["pending", "running"]))
        assert runtime.database.read(lambda connection: connection.execute(stuck).all()) == []


Act = Callable[[World, Actor], str | None]
_CHANCES: dict[Act, int] = {
    World.create: 4,
    World.upsert: 4,
    World.update: 4,
    World.pause: 4,
    World.skip_next: 0,
    World.resume: 5,
    World.restart: 3,
    World.delete: 2,
    World.trigger: 6,
    World.backfill: 2,
    World.fire: 16,
    World.fire_one: 6,
    World.tick: 4,
    World.start_run: 12,
    World.end_run: 9,
    World.horse_dies: 2,
    World.stop_run: 2,
    World.recover: 3,
    World.reconcile_some: 5,
    World.time_passes: 18,
    World.clock_jumps: 4,
    World.message_arrives: 4,
    World.old_link_arrives: 4,
    World.redis_forgets: 1,
    World.freeze: 0,
    World.thaw: 0,
    World.set_calendar: 0,
    World.delete_calendar: 0,
    World.come_after: 0,
    World.set_limit: 0,
}
_OWING: tuple[Act, ...] = (
    World.thaw,
    World.trigger_upstream,
    *(World.come_after,) * 3,
    *(World.trigger_upstream,) * 2,
    *(World.start_run,) * 5,
    World.freeze,
    *(World.end_run,) * 4,
)
_ACTS, _WEIGHTS = list(_CHANCES), list(_CHANCES.values())
_SKIPPING = list({**_CHANCES, World.skip_next: 8}.values())
_FREEZING = list({**_CHANCES, World.skip_next: 4, World.freeze: 6, World.thaw: 10}.values())
_MOVING = list({**_CHANCES, World.skip_next: 2, World.update: 20, World.tick: 20, World.time_passes: 24}.values())
_MOVING_BY_CALENDARS = list(
    {**_CHANCES, World.update: 12, World.tick: 20, World.time_passes: 24, World.set_calendar: 12}.values()
)
_EXCLUDING = list({**_CHANCES, World.skip_next: 3, World.set_calendar: 12, World.delete_calendar: 1}.values())
_SKEWED = list(
    {
        **_CHANCES,
        World.clock_jumps: 12,
        World.pause: 10,
        World.resume: 10,
        World.recover: 0,
        World.skip_next: 4,
    }.values()
)
