"""Why a schedule ran or did not run at an instant: one question for any, answered from the record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rqsched import CommandContext, Cron, Every, ScheduleHandle, Spec
from rqsched.errors import InvalidSpecError
from rqsched.types import Answer
from tests.support.env import DAY, HOUR, MINUTE, NOON, ONCE, SECOND, Env, newest

HOURLY = Cron("0 * * * *")
ADA = CommandContext(principal="ada", reason="the vendor moves")


def answers(schedule: ScheduleHandle, *instants: datetime | None) -> list[str]:
    return [schedule.why(at).answer for at in instants]


def test_occurrence_that_ran_names_its_run_and_how_that_ended(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    run = any_env.run_next(schedule, HOUR)

    told = schedule.why(NOON + HOUR)

    assert (told.answer, told.run_uid, told.occurrence_at) == (Answer.RAN, run.uid, NOON + HOUR)
    assert told.text.startswith("It ran: run #1, succeeded, started on Thu 15 Jan 2026 at 13:00 UTC")


def test_failure_names_the_error(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, retry=ONCE)
    any_env.failing = True
    any_env.run_next(schedule, HOUR)
    assert "run #1, failed" in schedule.why(NOON + HOUR).text
    assert "RuntimeError: as the test wants it" in schedule.why(NOON + HOUR).text


def test_run_that_has_not_started_waits(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    run = any_env.fire_next(schedule, HOUR)
    told = schedule.why(NOON + HOUR)
    assert (told.answer, told.run_uid, told.since) == (Answer.WAITS, run.uid, NOON + HOUR)
    assert "waits for a worker of its queue, since Thu 15 Jan 2026 at 13:00 UTC" in told.text


def test_retry_says_when_the_next_attempt_begins(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, retry={"max_retries": 3})
    any_env.failing = True
    run = any_env.run_next(schedule, HOUR)
    told = schedule.why(NOON + HOUR)
    assert told.answer == Answer.WAITS
    assert f"Attempt 1 of its run #{run.number} failed: RuntimeError" in told.text


def test_skip_names_the_run_that_blocked(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    blocking = any_env.fire_next(schedule, HOUR)
    any_env.tick(HOUR)

    told = schedule.why(NOON + 2 * HOUR)

    assert (told.answer, told.reason, told.run_uid) == (Answer.SKIPPED, "overlap_policy_skip", blocking.uid)
    assert told.text == "It was skipped: an earlier run was unfinished, #1."


def test_skip_of_an_environment_is_told(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, environments=["production"])
    assert "where RQSCHED_ENVIRONMENT is production" in schedule.why(NOON + HOUR).text
    any_env.tick(HOUR)
    told = schedule.why(NOON + HOUR)
    assert told.reason == "environment"
    where = "RQSCHED_ENVIRONMENT of the process that fired it"
    assert told.text == f"It was skipped: {where} is not one of its environments."


def test_missed_occurrences_are_missed_and_the_one_that_fired_ran(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.tick(3 * HOUR)
    assert answers(schedule, *(NOON + hours * HOUR for hours in (1, 2, 3))) == ["waits", "missed", "missed"]
    told = schedule.why(NOON + 2 * HOUR)
    assert "nothing fired in time, and one run makes up for all. No worker fired it" in told.text
    assert told.reason == "fire_once"


def test_pause_says_by_whom_since_when_and_why_also_for_the_future(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.advance(MINUTE)
    schedule.pause(context=ADA)
    any_env.advance(2 * HOUR)

    for at in (None, NOON + HOUR, NOON + 2 * HOUR, NOON + 5 * DAY):
        told = schedule.why(at)
        assert (told.answer, told.by, told.reason) == (Answer.PAUSED, "ada", "the vendor moves")
        assert told.since == NOON + MINUTE
        assert told.text == "It has been paused since Thu 15 Jan 2026 at 12:01 UTC, by ada: the vendor moves."


def test_pause_that_is_over_is_still_the_answer_for_then(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.advance(MINUTE)
    schedule.pause(context=ADA)
    any_env.advance(2 * HOUR)
    schedule.resume()
    any_env.run_next(schedule, HOUR)
    assert answers(schedule, NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR) == ["paused", "paused", "ran"]
    assert schedule.why(NOON + HOUR).text.startswith("It was paused then, since ")


def test_occurrence_that_was_due_already_when_the_owner_paused_is_told_as_paused(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.advance(2 * HOUR)
    schedule.pause(context=ADA)
    told = [schedule.why(NOON + hours * HOUR) for hours in (1, 2)]
    assert [(one.answer, one.by) for one in told] == [("paused", "ada")] * 2


def test_dead_since_its_run_failed_for_good(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, retry={"max_retries": 0, "then": "dead"})
    any_env.failing = True
    run = any_env.run_next(schedule, HOUR)
    any_env.advance(3 * DAY)

    told = schedule.why()

    assert (told.answer, told.since, told.run_uid) == (Answer.DEAD, NOON + HOUR, run.uid)
    assert "RuntimeError: as the test wants it" in told.text
    assert answers(schedule, NOON + HOUR, NOON + 2 * HOUR, NOON + 9 * DAY) == ["ran", "dead", "dead"]


def test_restart_ends_what_dead_explains(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, retry={"max_retries": 0, "then": "dead"})
    any_env.failing = True
    any_env.run_next(schedule, HOUR)
    any_env.advance(2 * HOUR)
    schedule.restart()
    assert answers(schedule, NOON + 2 * HOUR, NOON + 4 * HOUR) == ["dead", "fires"]


def test_done_by_its_last_run_and_by_what_is_left_of_them(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, max_runs=2)
    assert answers(schedule, *(NOON + hours * HOUR for hours in (1, 2, 3))) == ["fires", "fires", "done"]
    any_env.run_next(schedule, HOUR)
    any_env.run_next(schedule, HOUR)
    assert answers(schedule, NOON + 2 * HOUR, NOON + 3 * HOUR) == ["ran", "done"]
    assert "its max_runs are used up" in schedule.why(NOON + 3 * HOUR).text


def test_deleted_by_whom(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.run_next(schedule, HOUR)
    schedule.delete(context=ADA)
    told = schedule.why(NOON + 2 * HOUR)
    assert (told.answer, told.by) == (Answer.DELETED, "ada")
    assert answers(schedule, NOON + HOUR) == ["ran"]


def test_before_it_was_created(any_env: Env) -> None:
    told = any_env.create(spec=HOURLY).why(NOON - DAY)
    assert (told.answer, told.text) == (Answer.NOT_CREATED, "It was created on Thu 15 Jan 2026 at 12:00 UTC.")


def test_before_it_was_created_the_schedule_that_had_its_id_answers(any_env: Env) -> None:
    first = any_env.create(spec=HOURLY)
    ran = any_env.run_next(first, HOUR)
    first.delete(context=ADA)
    any_env.advance(DAY)
    any_env.create(spec=HOURLY).delete()
    any_env.advance(DAY)
    again = any_env.create(spec=HOURLY)
    told = again.why(NOON + HOUR)
    assert (told.answer, told.run_uid, told.event_sequence) == (Answer.RAN, ran.uid, None)
    created = "It was created on Sat 17 Jan 2026 at 13:00 UTC."
    assert told.text == f"{created} An earlier schedule had this id: {first.why(NOON + HOUR).text}"
    told = again.why(NOON + 5 * HOUR)
    assert (told.answer, told.by, told.event_sequence) == (Answer.DELETED, "ada", None)
    assert "An earlier schedule had this id: It has been deleted since Thu 15 Jan" in told.text
    assert again.why(NOON - DAY).text == created
    assert again.why(NOON + 3 * DAY).answer == Answer.FIRES


def test_outside_its_window_and_where_nothing_is_named(any_env: Env) -> None:
    window = Spec(HOURLY, start_at=NOON + 2 * HOUR, end_at=NOON + 5 * HOUR)
    schedule = any_env.create(spec=window)
    at = (NOON + HOUR, NOON + 2 * HOUR + MINUTE, NOON + 3 * HOUR, NOON + 6 * HOUR)
    assert answers(schedule, *at) == ["outside_window", "no_occurrence", "fires", "outside_window"]
    assert schedule.why(NOON + 2 * HOUR + MINUTE).text == (
        "No occurrence is then; before it on Thu 15 Jan 2026 at 14:00 UTC and after it on Thu 15 Jan 2026 at 15:00 UTC."
    )
    assert "Its window ends on" in schedule.why(NOON + 6 * HOUR).text


def test_minute_means_its_first_occurrence_and_a_second_is_exact(any_env: Env) -> None:
    schedule = any_env.create(spec=Every(10 * SECOND))
    assert schedule.why(NOON + HOUR).occurrence_at == NOON + HOUR
    assert answers(schedule, NOON + HOUR + 20 * SECOND, NOON + HOUR + 21 * SECOND) == ["fires", "no_occurrence"]


def test_change_of_timing_is_why_nothing_ran_before_it(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.run_next(schedule, HOUR)
    any_env.advance(HOUR / 2)
    schedule.update(spec=Cron("30 * * * *"), context=ADA)
    any_env.advance(2 * HOUR)

    told = schedule.why(NOON + HOUR / 2)

    assert (told.answer, told.by, told.since) == (Answer.CHANGED, "ada", NOON + 1.5 * HOUR)
    assert "Its timing was changed on Thu 15 Jan 2026 at 13:30 UTC" in told.text
    assert "cron 0 * * * *" in told.text
    assert answers(schedule, NOON + HOUR, NOON + 2 * HOUR) == ["ran", "no_occurrence"]


def test_late_until_somebody_fires_it(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.advance(2 * HOUR)
    assert answers(schedule, NOON + HOUR, NOON + 2 * HOUR, None) == ["late"] * 3
    assert "nothing has fired it yet" in schedule.why(NOON + HOUR).text


def test_inside_its_jitter_it_still_fires(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, jitter=timedelta(minutes=30))
    due = schedule.due_at
    assert due is not None
    assert due > NOON + HOUR + SECOND
    any_env.advance(HOUR + SECOND)
    told = schedule.why(NOON + HOUR)
    assert told.answer == Answer.FIRES
    assert "its jitter" in told.text


def test_history_that_is_pruned_is_told_and_nothing_is_guessed(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.tick(HOUR)
    any_env.tick(HOUR)  # skipped: the run of 13:00 is unfinished
    any_env.work()
    any_env.advance(5 * DAY)
    any_env.scheduler.prune(events_before=any_env.clock.now() - DAY)

    told = schedule.why(NOON + 2 * HOUR)

    assert told.answer == Answer.NOT_KEPT
    assert "Its history is not kept" in told.text


def test_runs_that_are_pruned_are_told(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, retention="1")
    for _ in range(3):
        any_env.run_next(schedule, HOUR)
    any_env.advance(2 * DAY)
    any_env.scheduler.prune()
    told = schedule.why(NOON + HOUR)
    assert told.answer == Answer.NOT_KEPT
    assert "not kept" in told.text


def test_without_an_instant_the_newest_occurrence_is_meant_and_before_any_the_next(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    assert (schedule.why().answer, schedule.why().occurrence_at) == (Answer.FIRES, NOON + HOUR)
    any_env.run_next(schedule, HOUR)
    any_env.advance(HOUR / 2)
    assert (schedule.why().answer, schedule.why().occurrence_at) == (Answer.RAN, NOON + HOUR)


def test_from_completion_it_waits_for_the_end_of_its_run(any_env: Env) -> None:
    schedule = any_env.create(spec=Every(HOUR, from_completion=True))
    run = any_env.fire_next(schedule, HOUR)
    any_env.advance(MINUTE)
    told = schedule.why()
    assert (told.answer, told.run_uid) == (Answer.FIRES, run.uid)


def test_from_completion_its_next_fire_is_told_and_that_it_is_late(any_env: Env) -> None:
    schedule = any_env.create(spec=Every(HOUR, from_completion=True))
    any_env.run_next(schedule, HOUR)
    assert answers(schedule, None, NOON + HOUR, NOON + 2 * HOUR, NOON + 5 * HOUR) == [
        "fires", "ran", "fires", "no_occurrence",
    ]  # fmt: skip
    assert "it is due next on Thu 15 Jan 2026 at 14:00 UTC" in schedule.why(NOON + 5 * HOUR).text
    any_env.advance(3 * HOUR)
    assert answers(schedule, None, NOON + 2 * HOUR) == ["late", "late"]
    schedule.pause(context=ADA)
    told = schedule.why(NOON + 2 * HOUR)
    assert (told.answer, told.by, told.occurrence_at) == (Answer.PAUSED, "ada", NOON + 2 * HOUR)


def test_occurrence_that_the_clocks_left_out_was_skipped_for_that(env: Env) -> None:
    gap = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    env.advance(gap - NOON - DAY)
    schedule = env.create(spec=Cron("30 2 * * *", "Europe/Berlin"), dst_gap="skip")
    shifted = env.create("shifted", spec=Cron("30 2 * * *", "Europe/Berlin"))
    ahead, left_out = shifted.why(gap), schedule.why(gap)
    said = "The clock leaves out 02:30 that day, and it does not fire then (dst_gap=skip)."
    assert (left_out.answer, left_out.reason, left_out.occurrence_at) == (Answer.SKIPPED, "dst_skip", gap)
    assert left_out.text == said
    env.advance(DAY + HOUR)
    assert schedule.why(gap).text == said.replace("leaves", "left"), "until the next fire records it"
    env.tick(DAY - HOUR)
    told = schedule.why(gap)
    assert (told.answer, told.reason, told.occurrence_at) == (Answer.SKIPPED, "dst_skip", gap)
    said = "The clock left out 02:30 that day: it is shifted to this time (dst_gap=shift)."
    assert (ahead.answer, ahead.text) == (Answer.FIRES, f"It fires on Sun 29 Mar 2026 at 03:30 CEST. {said}")
    assert shifted.why(gap).text.endswith(said)
    assert said not in shifted.why(gap + DAY - HOUR).text


def test_earlier_pause_is_told_as_over_while_a_later_one_lasts(env: Env) -> None:
    schedule = env.create(spec=HOURLY)
    env.advance(MINUTE)
    schedule.pause()
    env.advance(2 * HOUR)
    schedule.resume()
    schedule.pause()
    env.advance(HOUR)
    assert schedule.why(NOON + HOUR).text == "It was paused then, since Thu 15 Jan 2026 at 12:01 UTC."


def test_minute_in_which_it_was_created_or_paused_is_told_by_its_occurrence(env: Env) -> None:
    env.advance(30 * SECOND)
    schedule = env.create(spec=Cron("45 * * * * *", seconds="first"))
    assert answers(schedule, NOON, NOON + 20 * SECOND) == ["fires", "not_created"]
    env.tick(MINUTE)
    schedule.pause()
    env.advance(HOUR)
    assert answers(schedule, NOON, NOON + MINUTE) == ["waits", "paused"]


def test_grid_that_a_resume_began_anew_is_known_after_the_timing_was_changed(env: Env) -> None:
    schedule = env.create(spec=Every(HOUR))
    env.advance(90 * MINUTE)
    schedule.pause()
    env.advance(15 * MINUTE)
    schedule.resume(on_resume="from_now")  # 13:45
    env.advance(MINUTE)
    schedule.pause()
    schedule.resume()
    env.advance(3 * HOUR)
    schedule.update(spec=Every(2 * HOUR))
    assert answers(schedule, NOON + 3 * HOUR, NOON + 3.75 * HOUR) == ["no_occurrence", "missed"]


def test_backfill_says_what_came_of_the_occurrence_when_it_was_due(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.tick(3 * HOUR)
    any_env.work()
    schedule.backfill(NOON - 2 * HOUR, NOON + 3 * HOUR)
    any_env.work()
    missed, before = schedule.why(NOON + 2 * HOUR), schedule.why(NOON - HOUR)
    assert (missed.answer, before.answer) == (Answer.RAN, Answer.RAN)
    assert "of a backfill, succeeded" in missed.text
    assert "When it was due: It was missed: nothing fired in time" in missed.text
    assert "When it was due" not in before.text


def test_run_that_was_dropped_while_it_waited_did_not_run(env: Env) -> None:
    schedule = env.create(spec=HOURLY, overlap="buffer_all")
    env.fire_next(schedule, HOUR)
    env.tick(HOUR)
    schedule.delete()
    told = schedule.why(NOON + 2 * HOUR)
    assert told.answer == Answer.NOT_STARTED
    assert "Its run #2 was cancelled before it started." in told.text


def test_occurrence_that_fired_late_was_not_missed_when_its_run_is_pruned(env: Env) -> None:
    schedule = env.create(spec=HOURLY, missed="all", missed_limit=2, overlap="allow_all", retention="1")
    env.tick(4 * HOUR)
    env.work()
    env.advance(2 * DAY)
    env.scheduler.prune()
    instants = [NOON + hours * HOUR for hours in range(1, 5)]
    assert answers(schedule, *instants) == ["missed", "missed", "not_kept", "ran"]


def test_timing_that_lies_too_many_events_back_is_told_as_such(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqsched.api.why.LOOKED_AT", 3)
    schedule = env.create(spec=MINUTE)
    for _ in range(6):
        env.tick()
    schedule.update(spec=Every(2 * MINUTE))
    told = schedule.why(NOON + 5.5 * MINUTE)
    assert told.answer == Answer.NOT_RECORDED
    assert "more than 3 events before" in told.text


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:00Z", "9999-12-31T23:59:59.999999Z"])
@pytest.mark.parametrize("spec", [Every(HOUR), Cron("59 * * * *", "Asia/Tokyo"), Every(HOUR, from_completion=True)])
def test_first_and_last_instants_are_answered(env: Env, spec: Any, at: str) -> None:
    schedule = env.create(spec=spec)
    assert schedule.why(datetime.fromisoformat(at)).answer in {"not_created", "no_occurrence", "fires"}


def test_long_history_is_answered_by_few_reads(env: Env) -> None:
    schedule = env.create(spec=MINUTE)
    newest_run = env.fire_next(schedule)
    for _ in range(300):
        env.tick()
    told = schedule.why(NOON + 150 * MINUTE)
    assert (told.answer, told.run_uid) == (Answer.SKIPPED, newest_run.uid)
    assert newest(schedule).uid == newest_run.uid


@pytest.mark.parametrize("at", [NOON.replace(tzinfo=None), "2026-01-15"])
def test_instant_that_is_none_is_refused(env: Env, at: Any) -> None:
    schedule = env.create(spec=HOURLY)
    with pytest.raises(InvalidSpecError, match="at"):
        schedule.why(at)


def test_answer_in_the_zone_of_the_schedule(env: Env) -> None:
    schedule = env.create(spec=Cron("0 9 * * *", "Europe/Berlin"))
    told = schedule.why(datetime(2026, 7, 1, 7, tzinfo=UTC))
    assert told.text == "It fires on Wed 01 Jul 2026 at 09:00 CEST."


def test_excluded_occurrence_names_what_takes_it_out_and_the_next(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, exclude=["2026-01-16", "Thu 13:00-18:00"])
    told = schedule.why(NOON + HOUR)
    assert (told.answer, told.occurrence_at) == (Answer.EXCLUDED, NOON + HOUR)
    assert told.text == "It is excluded (Thu 13:00-18:00); the next is on Thu 15 Jan 2026 at 18:00 UTC."
    assert answers(schedule, NOON + 1.5 * HOUR, NOON + 6 * HOUR) == ["no_occurrence", "fires"]
    assert "(2026-01-16); the next is on Sat 17 Jan" in schedule.why(NOON + DAY).text


def test_occurrence_that_was_excluded_then_is_told_so_after_that_is_changed(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY, exclude="Thu 13:00-18:00")
    any_env.clock.advance(2 * HOUR)
    schedule.update(exclude=[])
    assert answers(schedule, NOON + HOUR, NOON + 3 * HOUR) == ["excluded", "fires"]


def test_while_everything_is_frozen_what_is_due_and_what_is_to_come_wait(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.advance(MINUTE)
    any_env.scheduler.freeze(everything=True, context=ADA)
    any_env.advance(2 * HOUR)

    for at in (None, NOON + HOUR, NOON + 2 * HOUR, NOON + 5 * DAY):
        told = schedule.why(at)
        assert (told.answer, told.by, told.reason, told.since) == ("frozen", "ada", "the vendor moves", NOON + MINUTE)
        assert told.text.endswith(
            " Everything has been frozen since Thu 15 Jan 2026 at 12:01 UTC, by ada, and nothing begins before "
            "`rqsched thaw --everything`: the vendor moves."
        )
    assert schedule.why(NOON + HOUR).text.startswith("It has been due since Thu 15 Jan 2026 at 13:00 UTC")
    assert schedule.why(NOON + 5 * DAY).text.startswith("It fires on Tue 20 Jan 2026 at 12:00 UTC.")
    assert answers(schedule, NOON + HOUR + MINUTE) == ["no_occurrence"]


def test_freeze_that_was_thawed_is_why_an_occurrence_was_missed_or_ran_late(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.run_next(schedule, HOUR)
    any_env.scheduler.freeze(everything=True, context=ADA)
    any_env.advance(3 * HOUR)
    any_env.scheduler.thaw(everything=True, context=CommandContext(principal="bob"))
    assert answers(schedule, NOON + 2 * HOUR) == ["late"]
    any_env.dispatch()
    any_env.work()
    told = (
        "Everything was frozen from Thu 15 Jan 2026 at 13:00 UTC to Thu 15 Jan 2026 at 16:00 UTC, by ada: "
        "the vendor moves."
    )

    assert answers(schedule, *(NOON + hours * HOUR for hours in (1, 2, 3, 4, 5))) == [
        "ran", "ran", "frozen", "missed", "fires",
    ]  # fmt: skip
    late, missed = schedule.why(NOON + 2 * HOUR), schedule.why(NOON + 3 * HOUR)
    assert "started on Thu 15 Jan 2026 at 16:00 UTC" in late.text
    assert late.text.endswith(told)
    assert missed.text.endswith(told)
    assert (missed.by, missed.since, missed.reason) == ("ada", NOON + HOUR, "the vendor moves")
    assert missed.event_sequence is not None
    assert "frozen" not in schedule.why(NOON + HOUR).text


def test_what_a_thaw_records_as_missed_was_frozen(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.scheduler.freeze(everything=True)
    any_env.advance(2 * HOUR)
    any_env.scheduler.thaw(everything=True, missed="none")
    told = schedule.why(NOON + HOUR)
    assert told.answer == Answer.FROZEN
    assert "it was frozen, and the thaw counted it as missed" in told.text


def test_run_that_was_waiting_when_everything_was_frozen_waits_for_the_thaw(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    any_env.fire_next(schedule, HOUR)
    any_env.scheduler.freeze("restore", everything=True)
    told = schedule.why(NOON + HOUR)
    assert told.answer == Answer.WAITS
    assert "waits for a thaw, since Thu 15 Jan 2026 at 13:00 UTC. Everything has been frozen since" in told.text
    any_env.scheduler.thaw(everything=True)
    assert "waits for a worker of its queue" in schedule.why(NOON + HOUR).text


def test_pause_is_the_answer_also_under_a_freeze(any_env: Env) -> None:
    schedule = any_env.create(spec=HOURLY)
    schedule.pause(context=ADA)
    any_env.scheduler.freeze(everything=True)
    any_env.advance(2 * HOUR)
    assert answers(schedule, None, NOON + HOUR, NOON + 9 * HOUR) == ["paused"] * 3
