"""Decisions about occurrences that are moved off excluded days: each nominal instant gets one outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime
from random import Random
from typing import Any

import pytest

from rqsched.errors import InvalidSpecError
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.model import Moves, Run, RunStatus, Schedule, dump_moves, read_instants
from rqsched.kernel.decide.policy import MissedPolicy, OnResume, OverlapPolicy, Policies
from rqsched.kernel.decide.runs_on_request import decide_backfill, preview_backfill
from rqsched.when.spec import Once, Spec
from tests.support.decisions import Memory, active, definition, fire, types
from tests.support.env import DAY, HOUR, MINUTE
from tests.support.narrow import present


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-{text}+00:00")


PAYDAY, EVE = at("12-25T09:00"), at("12-24T09:00")
NOVEMBER, JANUARY = at("11-25T09:00"), PAYDAY.replace(year=2027, month=1)


def payroll(on_excluded: str, exclude: Iterable[str] = ("2026-12-25",), **fields: Any) -> Schedule:
    """After November's run; December's is ahead."""
    spec = Spec("0 9 25 * *", exclude=exclude, on_excluded=on_excluded)
    return fire(active(spec, now=at("11-01T00:00"), **fields)).after


def edit(schedule: Schedule, now: datetime, *, ran: Iterable[datetime] = (), **options: Any) -> Schedule:
    """Change options, such as the exclusions; `ran` are nominal instants whose runs are there."""
    wanted = define(schedule.definition, options)
    return lifecycle.decide_update(schedule, wanted, now=now, ran_of=lambda *_: frozenset(ran)).after


# The nominal instants of a run.


def test_a_run_records_what_it_was_moved_from_and_others_record_nothing() -> None:
    november = active(Spec("0 9 25 * *", exclude="2026-12-25", on_excluded="previous"), now=at("11-01T00:00"))
    [plain] = fire(november).new_runs
    december = fire(november).after
    assert (december.next_run_at, december.parsed_moves.nominals) == (EVE, (PAYDAY,))

    change = fire(december)

    [run] = change.new_runs
    assert (run.occurrence_at, run.moved_from, plain.nominals) == (EVE, [PAYDAY], None)
    assert types(change) == ["Triggered"]
    assert change.after.parsed_moves == Moves(early=(PAYDAY,))


def test_the_row_of_a_schedule_keeps_nothing_once_what_was_moved_has_passed() -> None:
    january = fire(fire(payroll("previous")).after)
    assert (january.after.last_run_at, january.after.moves) == (JANUARY, None)


def test_what_is_missed_for_weeks_fires_with_what_each_was_moved_from() -> None:
    policies = Policies(missed=MissedPolicy.ALL, overlap=OverlapPolicy.ALLOW_ALL)
    daily = Spec("0 9 * * *", exclude=["Sat, Sun"], on_excluded="next")
    friday = fire(active(daily, now=at("12-04T00:00"), policies=policies)).after

    change = fire(friday, now=at("12-14T10:00"))

    stands_for = {run.occurrence_at: len(run.moved_from) for run in change.new_runs}
    assert stands_for == {at(f"12-{day:02}T09:00"): 2 if day in {7, 14} else 0 for day in (7, 8, 9, 10, 11, 14)}


@pytest.mark.parametrize(("direction", "told"), [("next", "12-25"), ("previous", "01-25")])
def test_what_can_be_moved_nowhere_is_told_as_excluded_once(direction: str, told: str) -> None:
    schedule, events = payroll(direction, ["2026-12-01/2027-01-31"]), list[Event]()
    for _ in range(3):
        change = fire(schedule)
        schedule, events = change.after, [*events, *change.events]

    [excluded] = [one.payload for one in events if one.type == "ScheduleExcluded"]
    assert (excluded["count"], excluded["first"][5:10]) == (1, told)
    assert (schedule.skipped_count, schedule.missed_count) == (0, 0)


# A nominal instant that has its outcome gets no second one.


def test_payroll_that_ran_the_day_before_does_not_run_again_when_its_day_is_free_again() -> None:
    paid = fire(payroll("previous")).after

    freed = edit(paid, EVE + HOUR, exclude=[])

    assert freed.next_run_at == JANUARY
    assert freed.parsed_moves.settled == (PAYDAY,)
    assert fire(freed).after.moves is None


@pytest.mark.parametrize("then", [{"on_excluded": "skip"}, {"on_excluded": "next"}, {"exclude": ["2026-12-25", "Sun"]}])
def test_it_does_not_run_again_after_several_edits_whatever_they_are(then: dict[str, Any]) -> None:
    paid = fire(payroll("previous")).after
    edited = edit(edit(paid, EVE + HOUR, **then), EVE + 2 * HOUR, exclude=[], on_excluded="skip")
    again = edit(edited, EVE + 3 * HOUR, exclude=["2026-12-25"], on_excluded="next")
    for one in (edited, again):
        assert one.next_run_at == JANUARY


@pytest.mark.parametrize("direction", ["next", "previous"])
def test_what_ran_on_its_own_day_does_not_run_again_on_the_day_it_would_be_moved_to(direction: str) -> None:
    ran = fire(payroll("skip", [])).after
    paid = fire(ran).after
    moved = edit(paid, PAYDAY + HOUR, exclude=["2026-12-25"], on_excluded=direction)
    assert moved.next_run_at == JANUARY


def test_what_waits_for_its_jitter_while_it_is_freed_runs_once() -> None:
    schedule = payroll("previous", jitter=4 * HOUR)
    due = present(schedule.due_at)
    assert due > EVE

    freed = edit(schedule, EVE + MINUTE, exclude=[])
    change = fire(freed)

    assert (freed.next_run_at, freed.due_at) == (EVE, due)
    assert [(run.occurrence_at, run.moved_from) for run in change.new_runs] == [(EVE, [PAYDAY])]
    assert change.after.next_run_at == JANUARY


@pytest.mark.parametrize("outcome", ["skipped", "missed"])
def test_what_was_skipped_or_missed_on_the_day_it_was_moved_to_has_its_outcome(outcome: str) -> None:
    schedule = payroll("previous", policies=Policies(missed=MissedPolicy.SKIP, fire_within=HOUR))
    if outcome == "skipped":
        schedule = lifecycle.decide_skip_next(schedule, 1, now=at("12-01T00:00")).after
        schedule = fire(replace(schedule, next_run_at=EVE, due_at=EVE), now=EVE).after
    else:
        schedule = fire(schedule, now=EVE + 2 * HOUR).after
        assert schedule.missed_count == 1

    freed = edit(schedule, EVE + 3 * HOUR, exclude=[])

    assert freed.next_run_at == JANUARY


def test_what_was_missed_beside_what_is_kept_has_its_outcome_too() -> None:
    spec = Spec(["0 9 25 * *", "0 10 25 * *"], exclude="2026-12-25", on_excluded="previous")
    freed = edit(active(spec, now=at("12-01T00:00")), EVE + 3 * HOUR, exclude=[])
    assert (freed.next_run_at, freed.missed_count) == (EVE, 1)
    assert fire(freed, now=EVE + 3 * HOUR).after.next_run_at == JANUARY


def test_what_ran_in_a_backfill_is_not_moved_to_a_day_ahead() -> None:
    skipped = payroll("skip")
    freed = edit(skipped, PAYDAY + HOUR, exclude=[])  # it was not ahead: it is not due now
    assert freed.next_run_at == JANUARY

    moved = edit(freed, PAYDAY + 2 * HOUR, exclude=["2026-12-25"], on_excluded="next")
    backfilled = edit(freed, PAYDAY + 2 * HOUR, ran=[PAYDAY], exclude=["2026-12-25"], on_excluded="next")

    assert moved.next_run_at == PAYDAY + DAY
    assert backfilled.next_run_at == JANUARY


# Edits that move an occurrence into the past.


def test_what_was_moved_ahead_and_is_freed_after_its_day_is_due_at_once_and_once() -> None:
    schedule = payroll("next", ["2026-12-25/2026-12-26"])
    assert (schedule.next_run_at, schedule.parsed_moves.nominals) == (at("12-27T09:00"), (PAYDAY,))

    freed = edit(schedule, PAYDAY + DAY, exclude=[])
    change = fire(freed, now=PAYDAY + DAY)

    assert (freed.next_run_at, freed.due_at) == (PAYDAY, PAYDAY)
    assert [run.occurrence_at for run in change.new_runs] == [PAYDAY]
    assert change.after.next_run_at == JANUARY
    assert edit(change.after, PAYDAY + 1.5 * DAY, exclude=["2026-12-25/2026-12-26"]).next_run_at == JANUARY


def test_what_an_edit_moves_to_a_day_that_has_passed_is_due_at_once_and_once() -> None:
    schedule = payroll("previous", [])

    moved = edit(schedule, EVE + 3 * HOUR, exclude=["2026-12-25"])
    change = fire(moved, now=EVE + 3 * HOUR)

    assert (moved.next_run_at, moved.due_at, moved.parsed_moves.nominals) == (EVE, EVE, (PAYDAY,))
    assert [(run.occurrence_at, run.moved_from) for run in change.new_runs] == [(EVE, [PAYDAY])]
    assert edit(change.after, EVE + 4 * HOUR, exclude=[]).next_run_at == JANUARY


def test_what_is_due_at_once_follows_the_policy_for_missed_occurrences() -> None:
    strict = payroll("next", ["2026-12-25/2026-12-26"], policies=Policies(fire_within=HOUR))
    change = fire(edit(strict, PAYDAY + DAY, exclude=[]), now=PAYDAY + DAY)
    assert (change.new_runs, change.after.missed_count) == ((), 1)


def test_several_that_an_edit_moves_to_before_now_are_one() -> None:
    daily = Spec("0 9 * * *", exclude=["2026-12-24/2026-12-27"], on_excluded="next")
    schedule = fire(active(daily, now=at("12-23T00:00"))).after
    assert len(schedule.parsed_moves.nominals) == 5

    freed = edit(schedule, at("12-26T12:00"), exclude=[])
    change = fire(freed, now=at("12-26T12:00"))

    [run] = change.new_runs
    assert (run.occurrence_at, run.moved_from) == (at("12-26T09:00"), [EVE, PAYDAY])
    assert change.after.next_run_at == at("12-27T09:00")


def test_what_is_moved_to_an_instant_that_has_its_run_still_gets_one() -> None:
    daily = Spec("0 9 * * *", on_excluded="previous")
    ran = fire(active(daily, now=at("12-24T00:00"))).after

    moved = edit(ran, EVE + 3 * HOUR, exclude=["2026-12-25"])
    change = fire(moved, now=EVE + 3 * HOUR)

    assert moved.due_at == EVE
    [run] = change.new_runs
    assert (run.occurrence_at, run.moved_from) == (EVE + 3 * HOUR, [PAYDAY])
    assert change.after.next_run_at == PAYDAY + DAY


def test_what_is_due_already_stands_for_what_an_edit_moves_to_before_now_as_well() -> None:
    daily = active(Spec("0 9 * * *", on_excluded="previous"), now=at("12-24T00:00"), jitter=3 * HOUR)
    moved = edit(daily, EVE + MINUTE, exclude=["2026-12-25"])
    [run] = fire(moved).new_runs
    assert (run.occurrence_at, run.moved_from) == (EVE, [PAYDAY])
    assert fire(moved).after.next_run_at == PAYDAY + DAY


def test_an_edit_that_moves_nothing_leaves_what_is_ahead_and_what_has_passed() -> None:
    schedule = payroll("next", ["2026-12-25/2026-12-26"])
    edited = edit(schedule, PAYDAY + HOUR, exclude=["2026-12-25/2026-12-26", "2026-05-01"])
    assert (edited.next_run_at, edited.parsed_moves) == (at("12-27T09:00"), Moves(nominals=(PAYDAY,)))


def test_a_new_time_of_day_makes_nothing_due_that_was_no_time_of_it_before() -> None:
    schedule = payroll("previous")
    other = lifecycle.decide_update(
        schedule, define(schedule.definition, {}, spec="0 8 25 * *"), now=EVE - 10 * MINUTE
    ).after
    assert other.next_run_at == at("12-25T08:00").replace(year=2027, month=1)


def test_a_schedule_that_is_created_between_its_day_and_the_one_it_is_moved_to_fires_there() -> None:
    spec = Spec("0 9 25 * *", exclude=["2026-12-25/2026-12-26"], on_excluded="next")
    created = active(spec, now=PAYDAY + HOUR)
    edited = edit(created, PAYDAY + 2 * HOUR, exclude=["2026-12-25/2026-12-26", "2026-05-01"])
    for one in (created, edited):
        assert one.next_run_at == at("12-27T09:00")


def test_a_single_instant_that_is_moved_completes_its_schedule_after_its_run() -> None:
    once = active(Spec(Once(PAYDAY), exclude="2026-12-25", on_excluded="previous"), now=at("12-01T00:00"))
    done = fire(once).after
    assert (done.status, done.last_run_at) == ("done", EVE)
    assert not lifecycle.can_continue(edit(done, EVE + HOUR, exclude=[]), EVE + HOUR)


# Pauses, skips and backfills.


def test_a_pause_over_the_day_it_was_moved_to_makes_nothing_of_it_due_later() -> None:
    paused = lifecycle.decide_pause(payroll("previous"), now=EVE - HOUR).after
    resumed = lifecycle.decide_resume(paused, [], now=EVE + HOUR).after
    edited = edit(resumed, EVE + 2 * HOUR, exclude=["2026-12-25", "2026-05-01"])
    for one in (resumed, edited):
        assert one.next_run_at == JANUARY


def test_a_resume_with_once_stands_for_what_was_moved() -> None:
    paused = lifecycle.decide_pause(payroll("previous"), now=EVE - HOUR).after
    resumed = lifecycle.decide_resume(paused, [], now=EVE + HOUR, on_resume=OnResume.ONCE).after
    [run] = fire(resumed, now=EVE + HOUR).new_runs
    assert (run.occurrence_at, run.moved_from) == (EVE, [PAYDAY])


def test_a_skip_on_request_is_of_the_day_it_was_moved_to_and_goes_when_that_is_no_occurrence() -> None:
    skipping = lifecycle.decide_skip_next(payroll("previous"), 1, now=at("12-01T00:00")).after
    assert skipping.skipped_at == [EVE]
    freed = edit(skipping, at("12-02T00:00"), exclude=[])
    assert (freed.skips, freed.next_run_at) == (None, PAYDAY)


def test_a_backfill_takes_what_was_moved_and_not_what_ran_under_another_exclusion() -> None:
    schedule = payroll("previous", [])
    taken = dict[str, Any](now=at("12-26T00:00"), backfill_uid="b", ran=frozenset(), stood_for=frozenset({PAYDAY}))
    assert [row.outcome for row in decide_backfill(schedule, [], [PAYDAY], **taken)[1]] == ["already_run"]
    assert [row.outcome for row in preview_backfill(schedule, [PAYDAY], ran=frozenset(), stood_for={PAYDAY})] == [  # type: ignore[arg-type]
        "already_run"
    ]

    also = taken | {"stood_for": frozenset({NOVEMBER})}
    assert [row.outcome for row in decide_backfill(schedule, [], [PAYDAY], **also)[1]] == ["started"]

    moving = payroll("previous", policies=Policies(overlap=OverlapPolicy.ALLOW_ALL))
    change, rows = decide_backfill(moving, [], [EVE], now=at("12-26T00:00"), backfill_uid="b", ran=frozenset())
    assert [row.outcome for row in rows] == ["started"]
    assert [run.moved_from for run in change.new_runs] == [[PAYDAY]]


def test_moves_are_written_as_text_and_what_a_newer_release_adds_is_left_out() -> None:
    moves = Moves((PAYDAY,), (), (EVE,))
    text = present(dump_moves(moves))
    assert text == '{"nominals":["2026-12-25T09:00:00Z"],"settled":["2026-12-24T09:00:00Z"]}'
    schedule = replace(active(), moves=text[:-1] + ',"later":["2026-12-24T09:00:00Z"]}')
    assert schedule.parsed_moves == moves
    assert dump_moves(Moves()) is None


def test_what_cannot_be_moved_is_refused_by_create_and_by_update() -> None:
    with pytest.raises(InvalidSpecError, match="one time of day"):
        define(None, {"on_excluded": "next"}, workflow="report", spec="*/5 * * * *")
    with pytest.raises(InvalidSpecError, match="one time of day"):
        define(payroll("next").definition, {}, spec="*/5 * * * *")
    with pytest.raises(InvalidSpecError, match="whole days"):
        define(payroll("next").definition, {"exclude": ["22:00-06:00"]})
    define(payroll("next").definition, {"exclude": ["22:00-06:00"], "on_excluded": "skip"})


# Shuffled edits, against a model that knows only nominal instants.


class Model:
    """Each nominal instant of a cron, with where it happens by the exclusions that there are, found day by day."""

    def __init__(self, times: tuple[int, ...], days: range) -> None:
        first = at("01-01T00:00")
        self.nominals = [
            first + n * DAY + hour * HOUR for n in range(420) for hour in times if (first + n * DAY).day in days
        ]
        self.closed = set[datetime]()
        self.runs = list[set[datetime]]()
        self.excluded, self.on_excluded = set[date](), "skip"

    def target(self, nominal: datetime) -> datetime | None:
        if nominal.date() not in self.excluded:
            return nominal
        step = {"skip": 0, "next": 1, "previous": -1}[self.on_excluded]
        found = (nominal + step * n * DAY for n in range(1, 32) if step)
        return next((one for one in found if one.date() not in self.excluded), None)

    def is_ahead(self, nominal: datetime, now: datetime) -> bool:
        return nominal not in self.closed and (then := self.target(nominal)) is not None and then > now

    def fire(self, now: datetime, among: set[datetime]) -> None:
        """Run some; whatever else has passed by then is over."""
        self.runs.append(among)
        self.closed |= among

    def advance(self, now: datetime, until: datetime) -> None:
        ahead = {one: present(self.target(one)) for one in self.nominals if self.is_ahead(one, now)}
        for then in sorted(set(ahead.values())):
            if then <= until:
                self.fire(then, {one for one in ahead if ahead[one] == then})
                self.close(then)

    def close(self, now: datetime) -> None:
        self.closed |= {one for one in self.nominals if one <= now and not self.is_ahead(one, now)}

    def edit(self, now: datetime, excluded: set[date], on_excluded: str) -> None:
        ahead = {one for one in self.nominals if one not in self.closed and (one > now or self.is_ahead(one, now))}
        self.excluded, self.on_excluded = excluded, on_excluded
        past = {one for one in ahead if (then := self.target(one)) is not None and then <= now}
        if past:
            self.fire(now, past)
            self.close(max(present(self.target(one)) for one in past))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("prunes", [False, True])
def test_each_nominal_instant_runs_once_whatever_is_edited_when(seed: int, prunes: bool) -> None:
    random = Random(f"{seed}")
    times = random.choice([(9,), (9,), (9, 14), (0,), (8, 9, 23)])
    days = random.choice([range(32), range(32), range(25, 26), range(1, 32, 7)])
    text = "*" if days == range(32) else ",".join(map(str, days))
    model, now = Model(times, days), at("03-01T12:30")
    model.closed = {one for one in model.nominals if one <= now}
    spec = Spec([f"0 {hour} {text} * *" for hour in times])
    memory = Memory(
        lifecycle.decide_create(
            lifecycle.Identity("0" * 26, "default", "a"),
            definition(spec, policies=Policies(overlap=OverlapPolicy.ALLOW_ALL)),
            now=now,
        )
    )
    model.runs.clear()
    for _ in range(24):
        until = now + random.randrange(1, 24 * 8) * HOUR
        while (due := memory.schedule.due_at) is not None and due <= until:
            memory.write(fire(memory.schedule, now=max(due, now), ran=memory.ran()))
        model.advance(now, until)
        now = until
        excluded = [now.date() + random.randrange(-6, 9) * DAY for _ in range(random.randrange(5))]
        on_excluded = random.choice(["skip", "next", "next", "previous", "previous"])
        wanted = define(memory.schedule.definition, {"exclude": excluded, "on_excluded": on_excluded})

        def ran_of(*_: object) -> set[datetime]:
            return set() if prunes else {n for run in memory.runs.values() for n in nominals_of(run, model)}

        memory.write(lifecycle.decide_update(memory.schedule, wanted, now=now, ran_of=ran_of))
        model.edit(now, set(excluded), on_excluded)
        while (due := memory.schedule.due_at) is not None and due <= now:
            memory.write(fire(memory.schedule, now=now, ran=memory.ran()))
        found = [nominals_of(run, model) for run in sorted(memory.runs.values(), key=lambda run: run.number)]
        assert found == model.runs, memory.schedule.moves


def nominals_of(run: Run, model: Model) -> set[datetime]:
    assert run.status is RunStatus.PENDING
    return {*(read_instants(run.nominals) or (run.occurrence_at,))}
