"""A simulation of a world agrees with the real store after the same span on a manual clock.

The real chain fires, claims and settles. The end and the outcome of an attempt are drawn as the simulation draws
them. Links are delivered one by one, retries first, as by one dispatcher with nothing else to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeAlias

import pytest

from rqsched import After, Every, RetryPolicy
from rqsched.features.limits import chain as limits
from rqsched.features.limits.decide import Bounds, Waiting, old_at
from rqsched.kernel.chain import execution, fire, settle
from rqsched.kernel.chain.attempt import Claim
from rqsched.kernel.chain.reconcile.schedules import end_pauses
from rqsched.kernel.decide.ids import LinkId, parse_link_id, parse_run_job_id
from rqsched.kernel.decide.limit_options import Rate, split_key
from rqsched.kernel.decide.model import OPEN, Change, Run, RunStatus, Schedule
from rqsched.kernel.decide.settle_decision import AttemptResult
from rqsched.kernel.store.rows import SELECT_RUNS, SELECT_SCHEDULES, to_run, to_schedules
from rqsched.simulate.decide import Expected, Simulated, Spans, Walk, begin, walk
from tests.support.narrow import present
from tests.support.sizes import sized
from tests.system.worlds.declarations import declaration
from tests.system.worlds.faults import Faults
from tests.system.worlds.play import memory_folder
from tests.system.worlds.stage import START, WORKFLOW, Stage, seeded_uids

WORLDS = sized(60, 400)
CROWDED = sized(40, 400)
BUSY = sized(12, 100)
FEW = sized(4, 40)
ONCE = 4
SPAN, SHORT = timedelta(minutes=25), timedelta(minutes=5)
QUEUES = ("default", "slow")
_UNTOLD = ("token", "worker", "heartbeat_at")
"""Fields of a run that its process draws."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with memory_folder() as folder:
        stage = Stage(folder or tmp_path_factory.mktemp("simulated"))
        yield stage
        stage.close()


class Real:
    """One world on the real store: the next event happens, until the end of the span."""

    def __init__(
        self, stage: Stage, seed: int, workers: dict[str, int], given: Sequence[Simulated], span: timedelta
    ) -> None:
        self.stage, self.seed, self.workers, self.until = stage, seed, workers, START + span
        self.given = {one.name: one for one in given}
        self.by_uid = {one.schedule.uid: one for one in given}
        self.runtime = stage.crew[0].scheduler.runtime
        self.horses: list[tuple[datetime, int, str, Claim, AttemptResult]] = []
        self.started = 0
        self.looked = set[tuple[str, datetime]]()
        self.free = dict(workers)
        self.read: dict[str, Run] | None = None
        """The runs by uid as they were read, until something is done."""

    def play(self) -> None:
        while self._happen():
            pass

    def _happen(self) -> bool:
        """Perform one due action, or move the clock to the next one. Return False at the end of the span."""
        now = self.stage.clock.now()
        for act in (self._fire, self._resume, self._end, self._expire, self._look, self._start):
            is_done = act(now)
            self.read = None
            if is_done:
                return True
        ahead = [datetime.fromtimestamp(at, START.tzinfo) for at in self.stage.network.scheduled.values()]
        ahead += [at for at, *_ in self.horses]
        ahead += [one.resume_at for one in schedules_of(self.stage) if one.resume_at is not None]
        ahead += [run.start_by for run in self._runs() if run.status is RunStatus.PENDING and run.start_by is not None]
        ahead += [at for _, at, _ in self._grants()]
        following = min((at for at in ahead if at > now), default=self.until)
        if following >= self.until:
            return False
        self.stage.clock.set(following)
        return True

    def _fire(self, now: datetime) -> bool:
        network = self.stage.network
        due = [*network.control, *(link for link, at in network.scheduled.items() if at <= now.timestamp())]
        if not due:
            return False
        link = min(due, key=lambda one: (isinstance(parse_link_id(one), LinkId), one))
        network.scheduled.pop(link, None)
        network.control = [one for one in network.control if one != link]
        [fired] = fire.fire(self.runtime, [link])
        assert fired.outcome in {"fired", "stale"}, fired
        if fired.again_at is not None:
            network.scheduled[link] = fired.again_at.timestamp()
        return True

    def _resume(self, now: datetime) -> bool:
        is_due = any(one.resume_at is not None and one.resume_at <= now for one in schedules_of(self.stage))
        return is_due and sum(found.resumed for found in end_pauses(self.runtime)) > 0

    def _end(self, now: datetime) -> bool:
        due = [horse for horse in self.horses if horse[0] <= now]
        if not due:
            return False
        horse = min(due, key=lambda one: one[:2])
        self.horses.remove(horse)
        _, _, queue, claim, result = horse
        self.free[queue] += 1
        execution._complete(self.runtime, claim, result)
        return True

    def _expire(self, now: datetime) -> bool:
        late = sorted((run for run in self._runs() if run.is_late(now)), key=lambda run: (run.schedule_uid, run.number))
        return bool(late) and settle.expire_run(self.runtime, late[0])

    def _grants(self) -> list[tuple[str, datetime, str]]:
        """Return the runs with unclaimed grants, the instants at which these pass to others, and their groups."""
        granted = [run for run in self._runs() if run.status is RunStatus.PENDING and run.granted_at is not None]
        waiting = [Waiting(run.uid, run.created_at, run.number, run.granted_at, run.passed_count) for run in granted]
        return [
            (run.uid, present(old_at(one)), present(run.limit_group)) for run, one in zip(granted, waiting, strict=True)
        ]

    def _look(self, now: datetime) -> bool:
        """A pass of reconcile comes when a grant is old, if somebody waits."""
        old = [(uid, at, group) for uid, at, group in self._grants() if at <= now and (uid, at) not in self.looked]
        waiting = {run.limit_group for run in self._runs() if run.is_in_line}
        self.looked |= {(uid, at) for uid, at, _ in old}
        groups = {group for _, _, group in old} & waiting
        limits.grant(self.runtime, groups)
        return bool(groups)

    def _start(self, now: datetime) -> bool:
        known = {run.uid: run for run in self._runs()}
        running = {run.uid for run in known.values() if run.status is RunStatus.RUNNING}
        for horse in list(self.horses):  # one that was terminated is gone, one that was cancelled works on
            claim = horse[3]
            if claim.run.uid in running:
                continue
            if self.known()[claim.run.uid].status is RunStatus.TERMINATED:
                self.horses.remove(horse)
                self.free[horse[2]] += 1
        for queue in sorted(self.workers):
            jobs = [job for job in self.stage.network.jobs if self._queue_of(job) == queue]
            urgent = [job for job in jobs if self._run_of(job).priority]
            if jobs and self.free[queue]:  # RQ puts an urgent job at the front, before those that are there
                job = urgent[-1] if urgent else jobs[0]
                self.stage.network.jobs.remove(job)
                self._claim(queue, job, now)
                return True
        return False

    def _claim(self, queue: str, text: str, now: datetime) -> None:
        job = present(parse_run_job_id(text))
        claim = execution.claim_run(self.runtime, job)
        self.read = None
        run = self._run_of(text)
        if claim is None and run.needs_grant and limits.ask(self.runtime, run.uid, present(run.limit_group)):
            claim = execution.claim_run(self.runtime, job)
        if claim is None:  # it has been ended in favour of a newer run
            return
        name = claim.schedule.schedule_id
        took, result = self.given[name].expected.draw(self.seed, claim.run, name)
        self.free[queue] -= 1
        self.started += 1
        self.horses.append((now + took, self.started, queue, claim, result))

    def _queue_of(self, job: str) -> str:
        return self._run_of(job).queue or "default"

    def _run_of(self, job: str) -> Run:
        return self.known()[present(parse_run_job_id(job)).uid]

    def known(self) -> dict[str, Run]:
        if self.read is None:
            self.read = {run.uid: run for run in self.all_runs()}
        return self.read

    def _runs(self) -> list[Run]:
        return [run for run in self.known().values() if run.status in OPEN]

    def all_runs(self) -> list[Run]:
        return [to_run(row) for row in self.stage.database.read(lambda c: c.execute(SELECT_RUNS).all())]


def schedules_of(stage: Stage) -> list[Schedule]:
    return stage.database.read(lambda c: list(to_schedules(c, c.execute(SELECT_SCHEDULES).all())))


World: TypeAlias = dict[str, Expected]
"""The expected attempts of each schedule."""


def declare(stage: Stage, random: Random, bounds: dict[str, Bounds]) -> World:
    """A few schedules on two queues, with attempts that take as long as their intervals, more or less."""
    expected = World()
    for name in ("s0", "s1", "s2", "s3", "s4", "s5")[: random.randint(1, 6)]:
        options = declaration(random)
        if expected and random.random() < 0.5:
            options = {key: options[key] for key in ("overlap", "retry", "max_runs") if key in options}
            options["spec"] = After(random.choice([*expected]), random.choice(("success", "failure", "end", "end")))
            options |= random.choice(({}, {}, {"overlap": "cancel_other", "max_runs": None}))
        if random.random() < 0.3:
            options["start_within"] = timedelta(seconds=random.choice((20, 90)))
        if random.random() < 0.2:
            options["priority"] = 1
        spec = options.pop("spec")
        if random.random() < 0.5:
            options |= limited(random.choice(("narrow", "narrow", "wide", "rated", "both")), bounds)
        made = stage.crew[0].scheduler.create(name, WORKFLOW, spec, queue=random.choice(QUEUES), **options)
        if random.random() < 0.2:
            until = START + timedelta(minutes=random.randint(2, 15))
            made.pause(until=until, on_resume=random.choice((None, "once", "next", "from_now")))
        measured = Spans.of({random.randint(30, 55): 3, random.randint(30, 48): 5})
        given = timedelta(seconds=random.choice((0, 5, 20, 30, 60, 90, 200)))
        rate = random.choice((0.0, 0.0, 0.3, 0.8))
        timeout = random.choice((None, None, timedelta(seconds=60)))
        expected[name] = Expected(random.choice((given, present(measured))), rate, timeout)
    return expected


def limited(group: str, bounds: dict[str, Bounds]) -> dict[str, Any]:
    """The options of a schedule whose runs need places of a group."""
    number, rate = bounds[group]
    return {"limit": group, "limit_running": number, "limit_rate": rate and str(rate)}


def crowd(stage: Stage, random: Random, bounds: dict[str, Bounds]) -> World:
    """More runs than there are places and workers, on a grid of ten seconds, so that much happens at one instant."""
    expected = World()
    for name in ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7")[: random.randint(4, 8)]:
        options: dict[str, Any] = {
            "overlap": random.choice(("allow_all", "allow_all", "allow_all", "skip", "buffer_all", "cancel_other")),
            "retry": RetryPolicy(max_retries=random.choice((0, 0, 2)), base=timedelta(seconds=10)),
        }
        if random.random() < 0.4:
            options["start_within"] = timedelta(seconds=random.choice((10, 20, 30, 60)))
        if random.random() < 0.8:
            options |= limited(random.choice(("narrow", "wide", "wide", "wide", "rated", "both")), bounds)
        spec = Every(timedelta(seconds=random.choice((10, 20, 30, 60))), offset="0s")
        stage.crew[0].scheduler.create(name, WORKFLOW, spec, queue=random.choice(QUEUES), **options)
        given = timedelta(seconds=random.choice((0, 0, 10, 20, 30, 50, 100)))
        expected[name] = Expected(given, random.choice((0.0, 0.0, 0.3)))
    return expected


def passed_over(stage: Stage, random: Random, bounds: dict[str, Bounds]) -> World:
    """Runs whose worker is busy when they get a place, and comes when the group is full; the next is kept longer."""
    of_group = limited(random.choice(("narrow", "narrow", "wide", "both")), bounds)
    drawn: tuple[tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]], ...] = (
        ("slow", {}, (60, 90), (40, 50, 70)),
        ("slow", of_group, (40, 60), (0, 10)),
        ("default", of_group, (10, 20), (10, 20, 30)),
        ("default", of_group, (20, 30), (0, 10, 50)),
    )
    expected = World()
    for number, (queue, options, every, took) in enumerate(drawn):
        spec = Every(timedelta(seconds=random.choice(every)), offset="0s")
        more = {"overlap": "allow_all", "queue": queue, **options}
        stage.crew[0].scheduler.create(f"s{number}", WORKFLOW, spec, **more)
        expected[f"s{number}"] = Expected(timedelta(seconds=random.choice(took)))
    return expected


def seldom(stage: Stage, random: Random, bounds: dict[str, Bounds]) -> World:
    """Runs wait for a rate, and nobody joins them for long; of the first in line it is too late then."""
    expected, late = World(), {"start_within": timedelta(seconds=random.choice((10, 20)))}
    for number, is_late in enumerate((False, True, random.random() < 0.5, False)):
        spec = Every(timedelta(seconds=150), offset=timedelta(seconds=number))
        options = {"overlap": "allow_all", "queue": "default", **limited("rare", bounds), **(late if is_late else {})}
        stage.crew[0].scheduler.create(f"s{number}", WORKFLOW, spec, **options)
        expected[f"s{number}"] = Expected(timedelta(seconds=random.choice((0, 5))))
    return expected


def told(run: Run) -> dict[str, Any]:
    return {name: value for name, value in asdict(run).items() if name not in _UNTOLD}


def check_told(found: Walk, given: list[Simulated], runs: list[Run], stored: dict[str, Schedule]) -> None:
    """Check the simulation's figures of each schedule against its rows."""
    for one in given:
        said, mine = found.told[one.name], [run for run in runs if run.schedule_uid == one.schedule.uid]
        assert said.ended == Counter(run.shown_status for run in mine if run.status not in OPEN)
        assert said.open == sum(run.status in OPEN for run in mine)
        row = stored[one.schedule.uid]
        assert (said.skipped.total(), said.missed, said.started) == (row.skipped_count, row.missed_count, row.run_count)


def _seeds(count: int) -> list[Any]:
    """Make the cases of so many worlds, the first of them for `make test`."""
    return [pytest.param(seed, marks=[pytest.mark.once] if seed < ONCE else []) for seed in range(count)]


@pytest.mark.parametrize("seed", _seeds(WORLDS))
def test_a_simulation_says_what_the_real_store_has_afterwards(stage: Stage, seed: int) -> None:
    compare(stage, seed, declare, SPAN)


@pytest.mark.parametrize("seed", _seeds(CROWDED))
def test_a_simulation_of_a_crowd_says_what_the_real_store_has_afterwards(stage: Stage, seed: int) -> None:
    compare(stage, seed, crowd, SHORT)


@pytest.mark.parametrize("seed", _seeds(BUSY))
def test_a_simulation_of_who_is_passed_over_says_what_the_real_store_has_afterwards(stage: Stage, seed: int) -> None:
    compare(stage, seed, passed_over, SHORT)


@pytest.mark.parametrize("seed", _seeds(FEW))
def test_a_simulation_of_a_line_that_few_join_says_what_the_real_store_has_afterwards(stage: Stage, seed: int) -> None:
    compare(stage, seed, seldom, SHORT)


def compare(
    stage: Stage,
    seed: int,
    declare: Callable[[Stage, Random, dict[str, Bounds]], World],
    span: timedelta,
) -> None:
    """Play a world on the real store, simulate it, and compare every row."""
    random = Random(seed)
    with seeded_uids(Random(seed)):
        faults = Faults(random)
        faults.is_on = False
        stage.set(faults)
        bounds = {
            "narrow": Bounds(random.choice((1, 1, 2))),
            "wide": Bounds(random.choice((2, 3, 5, 8))),
            "rated": Bounds(None, Rate(random.choice((1, 2, 5)), random.choice((20, 60, 90)))),
            "rare": Bounds(None, Rate(1, 30)),
            "both": Bounds(random.choice((1, 2)), Rate(random.choice((2, 3)), random.choice((40, 60)))),
        }
        expected = declare(stage, random, bounds)
        workers = {"default": random.choice((1, 2, 3, 6)), "slow": random.choice((1, 1, 2))}
        given = [
            Simulated(
                begin(one, START, START), one.schedule_id, one.definition.queue or "default", expected[one.schedule_id]
            )
            for one in schedules_of(stage)
        ]
        real = Real(stage, seed, workers, given, span)
        real.play()

    runs: dict[str, Run] = {}
    rows = {one.schedule.uid: one.schedule for one in given}

    def watch(_: datetime, change: Change) -> None:
        rows[change.after.uid] = change.after
        runs.update({run.uid: run for run in (*change.new_runs, *(after for _, after in change.changed_runs))})
        if change.drops_buffer:
            for run in [one for one in runs.values() if one.schedule_uid == change.after.uid]:
                if run.status is RunStatus.BUFFERED:
                    del runs[run.uid]

    limits = {group: bounds[split_key(group)[1]] for one in given if (group := one.schedule.limit_group)}
    found = walk(given, START, START + span, seed=seed, workers=workers, limits=limits, watch=watch)
    stored = {one.uid: one for one in schedules_of(stage)}
    for uid, row in rows.items():
        assert asdict(row) | {"operation": None} == asdict(stored[uid]) | {"operation": None}
    for run in real.all_runs():
        if run.status in {RunStatus.PENDING, RunStatus.RUNNING}:
            assert runs[run.uid].status is RunStatus.PENDING
        elif run.status is not RunStatus.CANCELLED or run.uid in runs:
            assert told(runs[run.uid]) == told(run)
    assert set(runs) <= {run.uid for run in real.all_runs()}
    check_told(found, given, real.all_runs(), stored)
    check_lines(found, real)


def check_lines(found: Walk, real: Real) -> None:
    """Check the numbers of runs that wait for a worker and for a place against the store."""
    waiting = [(run, run.is_in_line) for run in real.all_runs() if run.status is RunStatus.PENDING]
    for name, line in found.lines.items():
        assert line.waiting == [one.queue or "default" for one, is_waiting in waiting if not is_waiting].count(name)
    for name, line in found.groups.items():
        assert line.waiting == [one.limit_group for one, is_waiting in waiting if is_waiting].count(name)
