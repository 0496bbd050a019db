"""Occurrences that are moved off excluded days, over real databases: records, backfills, pruned runs, descriptions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rqsched import Cron, Scheduler
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidSpecError
from rqsched.kernel.decide.results import Answer
from tests.features.calendars.test_api import edit_alone
from tests.support.env import DAY, HOUR, MINUTE, NOON, ONCE, Env
from tests.support.invariants import check_invariants
from tests.support.narrow import present

pytestmark = pytest.mark.every_database

PAYDAY, EVE = datetime(2026, 1, 25, 9, tzinfo=UTC), datetime(2026, 1, 24, 9, tzinfo=UTC)
FEBRUARY = datetime(2026, 2, 25, 9, tzinfo=UTC)


def payroll(env: Env, on_excluded: str = "previous", exclude: str = "2026-01-25", **options: object) -> ScheduleHandle:
    return env.create("payroll", Cron("0 9 25 * *"), exclude=exclude, on_excluded=on_excluded, **options)


def test_what_was_moved_is_recorded_by_its_run_and_its_day_never_runs_again(any_env: Env) -> None:
    schedule = payroll(any_env)
    assert (schedule.next_run_at, schedule.moved_from, schedule.describe().moved_from) == (EVE, [PAYDAY], [PAYDAY])

    run = any_env.run_next(schedule, EVE - NOON)
    assert (run.occurrence_at, run.moved_from, run.refresh().moved_from) == (EVE, [PAYDAY], [PAYDAY])
    schedule.refresh().update(exclude=[])

    assert (schedule.next_run_at, schedule.moved_from) == (FEBRUARY, [])
    any_env.run_due(3 * DAY)
    assert len(any_env.seen) == 1
    rows = schedule.backfill(PAYDAY - HOUR, PAYDAY + HOUR).rows
    assert [(row.occurrence_at, row.outcome) for row in rows] == [(PAYDAY, "already_run")]
    assert [row.outcome for row in schedule.backfill(PAYDAY - HOUR, PAYDAY + HOUR, dry_run=True).rows] == [
        "already_run"
    ]


def test_it_does_not_run_again_after_its_run_was_pruned(any_env: Env) -> None:
    schedule = payroll(any_env, exclude="2026-01-20/2026-01-25")
    any_env.run_next(schedule, PAYDAY - 6 * DAY - NOON)
    schedule.trigger()
    any_env.work()
    any_env.advance(2 * DAY)
    any_env.scheduler.prune(retention="1")
    assert [run.kind for run in schedule.runs().items] == ["manual"]

    schedule.refresh().update(exclude=[])

    assert schedule.next_run_at == FEBRUARY


def test_what_a_declaration_frees_after_its_day_is_due_at_once_and_once(any_env: Env) -> None:
    schedule = payroll(any_env, "next", "2026-01-25/2026-01-27")
    assert schedule.next_run_at == PAYDAY + 3 * DAY
    any_env.clock.set(PAYDAY + DAY)

    any_env.scheduler.upsert("payroll", "note", Cron("0 9 25 * *"))
    any_env.run_due(MINUTE)
    any_env.run_due(3 * DAY)

    assert [run.occurrence_at for run in any_env.seen] == [PAYDAY]
    assert schedule.refresh().next_run_at == FEBRUARY


def test_what_a_backfill_ran_is_not_moved_ahead_by_an_edit(any_env: Env) -> None:
    schedule = payroll(any_env, "skip")
    any_env.clock.set(PAYDAY + HOUR)
    schedule.update(exclude=[])
    assert [row.outcome for row in schedule.backfill(PAYDAY, PAYDAY + HOUR).rows] == ["started"]

    schedule.update(exclude="2026-01-25", on_excluded="next")

    assert schedule.next_run_at == FEBRUARY


def test_a_backfill_runs_what_was_moved_on_its_day_and_says_so(any_env: Env) -> None:
    any_env.clock.set(PAYDAY + 3 * DAY)
    schedule = payroll(any_env)
    assert [row.occurrence_at for row in schedule.backfill(EVE - DAY, PAYDAY + DAY).rows] == [EVE]
    assert [run.moved_from for run in schedule.runs().items] == [[PAYDAY]]


def test_a_retry_keeps_what_its_run_stands_for(any_env: Env) -> None:
    any_env.failing = True
    run = any_env.run_next(payroll(any_env, retry=ONCE), EVE - NOON)
    any_env.failing = False
    assert run.status == "failed"
    run.retry()
    any_env.work()
    assert (run.refresh().status, run.moved_from) == ("succeeded", [PAYDAY])


def test_why_tells_where_each_instant_went_and_came_from(any_env: Env) -> None:
    schedule = payroll(any_env)
    ahead, day = schedule.why(EVE), schedule.why(PAYDAY)
    assert (ahead.answer, day.answer) == (Answer.FIRES, Answer.FIRES)
    assert ahead.text == (
        "It fires on Sat 24 Jan 2026 at 09:00 UTC, moved from Sun 25 Jan 2026 at 09:00 UTC, which is excluded."
    )
    assert day.text == f"It is moved to Sat 24 Jan 2026 at 09:00 UTC, as excluded (2026-01-25). {ahead.text}"

    any_env.run_next(schedule, EVE - NOON)
    schedule.refresh().update(exclude=[])

    assert schedule.why(EVE).text.endswith("moved from Sun 25 Jan 2026 at 09:00 UTC, which is excluded.")
    told = schedule.why(PAYDAY)
    assert (told.answer, told.run_uid) == (Answer.RAN, schedule.run("1").uid)
    assert told.text.startswith(
        "It is moved to Sat 24 Jan 2026 at 09:00 UTC, as excluded when it was planned. It ran: "
    )


def test_what_can_be_moved_to_no_day_is_warned_of_and_told(any_env: Env) -> None:
    schedule = payroll(any_env, exclude="2026-01-16/2026-03-20")
    assert schedule.describe().warnings == [
        "09:00 on 2026-02-25 is excluded and skipped, because no day of the 31 days before it is free"
    ]
    told = schedule.why(FEBRUARY)
    assert (told.answer, "and no other day within 31 can be taken" in told.text) == (Answer.EXCLUDED, True)
    any_env.run_due(90 * DAY)
    assert schedule.refresh().skipped_count == 0
    [event] = [one for one in schedule.history() if one.event_type == "ScheduleExcluded"]
    assert event.payload["count"] == 1


def test_history_names_the_days_a_run_stands_for(any_env: Env) -> None:
    schedule = payroll(any_env)
    any_env.run_next(schedule, EVE - NOON)
    [event] = [one for one in schedule.history() if one.event_type == "ScheduleTriggered"]
    assert event.payload["moved_from"] == ["2026-01-25T09:00:00Z"]


def test_a_schedule_that_is_created_again_begins_anew(any_env: Env) -> None:
    schedule = payroll(any_env)
    any_env.run_next(schedule, EVE - NOON)
    schedule.refresh().delete()
    again = any_env.create("payroll", Cron("0 9 25 * *"))
    assert (again.next_run_at, again.state.moves) == (PAYDAY, None)


def test_a_refusal_names_what_may_be_combined_and_writes_nothing(any_env: Env) -> None:
    scheduler: Scheduler = any_env.scheduler
    with pytest.raises(InvalidSpecError, match="Once and crons with one time of day") as refused:
        any_env.create(spec=MINUTE, on_excluded="next", exclude="Sat")
    assert refused.value.field == "on_excluded"
    assert list(scheduler.iter()) == []
    schedule = payroll(any_env)
    with pytest.raises(InvalidSpecError, match="whole days only"):
        schedule.update(exclude="Mon-Fri 00:00-06:00")
    assert schedule.refresh().state.spec.exclude == ("2026-01-25",)


def test_the_row_of_what_is_never_moved_keeps_nothing(any_env: Env) -> None:
    schedule = any_env.create(spec=Cron("0 9 25 * *"), exclude="2026-01-26", on_excluded="next")
    run = any_env.run_next(schedule, PAYDAY - NOON)
    assert (run.state.nominals, present(schedule.refresh().state).moves) == (None, None)


# The same by calendars, whose contents change beside the schedule.


def change_holidays(env: Env, exclude: list[str], *, dies: bool) -> None:
    """Change the calendar; a process that dies plans nothing again, and reconcile or a fire does."""
    if dies:
        edit_alone(env, "holidays", exclude)
    else:
        env.scheduler.calendars.set("holidays", exclude)


@pytest.mark.parametrize("dies", [False, True], ids=["planned again", "its process dies"])
def test_what_ran_the_day_before_does_not_run_again_when_its_calendar_frees_it(any_env: Env, dies: bool) -> None:
    any_env.scheduler.calendars.set("holidays", ["2026-01-25"])
    schedule = payroll(any_env, exclude="holidays")
    assert (schedule.next_run_at, schedule.moved_from) == (EVE, [PAYDAY])
    any_env.run_next(schedule, EVE - NOON)
    any_env.advance(HOUR)

    change_holidays(any_env, ["2026-05-01"], dies=dies)
    any_env.run_due(3 * DAY)
    any_env.scheduler.recover()

    assert len(any_env.seen) == 1
    assert schedule.refresh().next_run_at == FEBRUARY
    check_invariants(any_env.runtime)


@pytest.mark.parametrize("dies", [False, True], ids=["planned again", "its process dies"])
def test_what_a_calendar_frees_after_its_day_is_due_at_once_and_once(any_env: Env, dies: bool) -> None:
    any_env.scheduler.calendars.set("holidays", ["2026-01-25/2026-01-27"])
    schedule = payroll(any_env, "next", "holidays")
    assert (schedule.next_run_at, schedule.moved_from) == (PAYDAY + 3 * DAY, [PAYDAY])
    any_env.clock.set(PAYDAY + DAY)

    change_holidays(any_env, ["2026-05-01"], dies=dies)
    any_env.scheduler.recover()
    any_env.run_due(MINUTE)
    any_env.run_due(5 * DAY)

    assert [run.occurrence_at for run in any_env.seen] == [PAYDAY]
    assert schedule.refresh().next_run_at == FEBRUARY
    check_invariants(any_env.runtime)


@pytest.mark.parametrize("dies", [False, True], ids=["planned again", "its process dies"])
def test_what_a_calendar_moves_to_a_day_that_has_passed_is_due_at_once_and_once(any_env: Env, dies: bool) -> None:
    any_env.scheduler.calendars.set("holidays", ["2026-05-01"])
    schedule = payroll(any_env, exclude="holidays")
    assert schedule.next_run_at == PAYDAY
    any_env.clock.set(EVE + 3 * HOUR)

    change_holidays(any_env, ["2026-01-25"], dies=dies)
    any_env.scheduler.recover()
    any_env.run_due(MINUTE)
    any_env.run_due(5 * DAY)

    assert [(run.occurrence_at, run.moved_from) for run in schedule.runs().items] == [(EVE, [PAYDAY])]
    assert schedule.refresh().next_run_at == FEBRUARY
    check_invariants(any_env.runtime)


def test_part_of_a_day_is_refused_in_a_calendar_of_what_is_moved(any_env: Env) -> None:
    any_env.scheduler.calendars.set("nights", ["00:00-06:00"])
    with pytest.raises(InvalidSpecError, match="whole days only"):
        payroll(any_env, exclude="nights")
    any_env.scheduler.calendars.set("holidays", ["2026-01-25"])
    payroll(any_env, exclude="holidays")
    with pytest.raises(InvalidSpecError, match="over whole days"):
        any_env.scheduler.calendars.set("holidays", ["00:00-06:00"])
