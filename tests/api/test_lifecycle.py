"""The owner's operations on a schedule, from update to purge, on both databases."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Cron, Every, Once, RetryPolicy, Spec
from rqsched.errors import InvalidInputError, ScheduleNotFoundError, ScheduleStateError, VersionConflictError
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.store.tables import audit_events, backfills, runs, schedules
from tests.support.env import HOUR, MINUTE, NOON, OPERATIONS, SECOND, Env, last, occurrences, statuses, types
from tests.support.narrow import present

DIES_AT_ONCE = RetryPolicy(max_retries=0, then="dead")


def test_update_moves_the_next_time_only_with_the_timing(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("10m"))
    any_env.advance(MINUTE)

    schedule.update(queue="high", note="n", overlap="allow_all", max_runs=5)
    assert schedule.next_run_at == NOON + 10 * MINUTE
    assert last(schedule, "Updated")["changed_fields"] == ["queue", "policies", "max_runs", "note"]

    schedule.update(spec=Every("20m"))
    assert schedule.next_run_at == NOON + 21 * MINUTE

    schedule.update(spec="0 * * * *", timezone="Asia/Kolkata")
    assert schedule.next_run_at == datetime.fromisoformat("2026-01-15T18:00+05:30")


def test_a_new_cadence_keeps_the_timezone_unless_it_names_one(env: Env) -> None:
    schedule = env.create(spec=Cron("0 9 * * *", "Asia/Kolkata"))

    assert schedule.update(spec="30 9 * * *").next_run_at == datetime.fromisoformat("2026-01-16T09:30+05:30")
    assert schedule.update(spec=Cron("0 9 * * *", "Asia/Tokyo")).next_run_at == datetime.fromisoformat(
        "2026-01-16T09:00+09:00"
    )
    assert schedule.update(spec=Spec("0 9 * * *")).next_run_at == NOON + 21 * HOUR


def test_update_changes_what_is_given_and_leaves_the_rest(any_env: Env) -> None:
    schedule = any_env.create(args=[1], kwargs={"a": 1}, labels={"x": "y"}, retry=DIES_AT_ONCE, queue="high")

    schedule.update(kwargs={"b": 2})

    described = schedule.describe()
    assert (described.args, described.kwargs, described.labels, described.queue) == ([1], {"b": 2}, {"x": "y"}, "high")
    assert described.policies["retry"]["max_retries"] == 0


def test_an_update_that_changes_nothing_writes_nothing(any_env: Env) -> None:
    schedule = any_env.create(queue="high")
    schedule.update(queue="high", spec=MINUTE)
    assert types(schedule) == ["Created"]
    assert schedule.version == 1


def test_an_update_with_an_old_version_is_refused(any_env: Env) -> None:
    schedule = any_env.create()
    version = schedule.version
    any_env.scheduler.get("report").update(queue="high")

    with pytest.raises(VersionConflictError):
        schedule.update(queue="low", if_version=version)

    assert schedule.refresh().describe().queue == "high"
    schedule.update(queue="low", if_version=schedule.version)
    assert schedule.describe().queue == "low"


def test_max_runs_lowered_to_what_has_started_ends_the_schedule(any_env: Env) -> None:
    schedule = any_env.create(max_runs=5)
    any_env.run_due()
    any_env.run_due()

    assert schedule.update(max_runs=3).remaining_runs == 1
    assert schedule.update(max_runs=None).remaining_runs is None
    assert schedule.update(max_runs=2).status == "done"


def test_a_deleted_schedule_is_not_updated(any_env: Env) -> None:
    schedule = any_env.create()
    schedule.delete()
    with pytest.raises(ScheduleNotFoundError):
        schedule.update(queue="high")


def test_pause_clears_the_next_time_and_keeps_the_counts(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.run_due()

    schedule.pause("maintenance", reason="disk full")

    assert (schedule.status, schedule.next_run_at, schedule.run_count) == ("paused", None, 1)
    assert (schedule.note, schedule.status_reason, schedule.paused_at) == ("maintenance", "disk full", NOON + MINUTE)
    assert last(schedule, "Paused") == {"reason": "disk full", "paused_at": "2026-01-15T12:01:00Z"}
    with pytest.raises(ScheduleStateError):
        schedule.pause()
    assert any_env.tick(HOUR) == []


RESUMED = {
    "next, cron": (Cron("*/10 * * * *"), "next", NOON + 40 * MINUTE),
    "next, interval": (Every("10m"), "next", NOON + 40 * MINUTE),
    "once, cron": (Cron("*/10 * * * *"), "once", NOON + 30 * MINUTE),
    "once, nothing missed": (Cron("0 * * * *"), "once", NOON + HOUR),
    "once, interval": (Every("10m"), "once", NOON + 30 * MINUTE),
    "from_now, interval": (Every("10m"), "from_now", NOON + 45 * MINUTE),
    "from_now, cron": (Cron("*/10 * * * *"), "from_now", NOON + 40 * MINUTE),
}


@pytest.mark.parametrize(("spec", "on_resume", "expected"), RESUMED.values(), ids=RESUMED.keys())
def test_resume_continues_as_on_resume_says(env: Env, spec: Any, on_resume: str, expected: datetime) -> None:
    by_call, by_option = env.create("a", spec), env.create("b", spec, on_resume=on_resume)
    env.advance(5 * MINUTE)
    by_call.pause()
    by_option.pause()
    env.advance(30 * MINUTE)

    assert by_call.resume(on_resume).next_run_at == expected
    assert by_option.resume().next_run_at == expected


def test_a_fire_missed_while_paused_happens_once_and_then_the_cadence_continues(any_env: Env) -> None:
    schedule = any_env.create(spec=Every("10m"))
    schedule.pause()
    any_env.advance(35 * MINUTE)

    schedule.resume("once")
    any_env.run_due(timedelta(0))
    any_env.run_due(5 * MINUTE)

    assert occurrences(schedule) == [NOON + 30 * MINUTE, NOON + 40 * MINUTE]
    assert schedule.refresh().next_run_at == NOON + 50 * MINUTE


def test_resume_is_for_paused_schedules_only(any_env: Env) -> None:
    schedule = any_env.create(max_runs=1)
    with pytest.raises(ScheduleStateError):
        schedule.resume()
    any_env.run_due()
    with pytest.raises(ScheduleStateError, match="restart"):
        schedule.resume()


def test_restart_revives_a_done_schedule_from_zero(any_env: Env) -> None:
    schedule = any_env.create(max_runs=1)
    any_env.run_due()
    assert schedule.refresh().status == "done"

    schedule.restart(note="again")

    assert (schedule.status, schedule.run_count, schedule.remaining_runs, schedule.note) == ("active", 0, 1, "again")
    any_env.run_due()
    assert statuses(schedule) == ["succeeded", "succeeded"]
    assert last(schedule, "Resumed")["reason"] == "restart"


def test_restart_revives_a_dead_schedule(any_env: Env) -> None:
    any_env.failing = True
    schedule = any_env.create(retry=DIES_AT_ONCE)
    any_env.run_due()
    last_error = present(schedule.refresh().last_error)
    assert (schedule.status, last_error[:12]) == ("dead", "RuntimeError")

    schedule.restart()

    assert (schedule.status, schedule.error_count, schedule.consecutive_failures) == ("active", 0, 0)
    assert schedule.next_run_at == NOON + 2 * MINUTE


def test_restart_is_refused_unless_the_schedule_has_ended_and_can_fire_again(any_env: Env) -> None:
    schedule = any_env.create(spec=Once(NOON + MINUTE))
    with pytest.raises(ScheduleStateError, match="use trigger"):
        schedule.restart()
    schedule.pause()
    with pytest.raises(ScheduleStateError, match="resume"):
        schedule.restart()
    schedule.resume()
    any_env.run_due()
    assert schedule.refresh().status == "done"
    with pytest.raises(ScheduleStateError, match="update"):
        schedule.restart()


def test_delete_is_soft_and_ends_every_operation(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.run_due()

    schedule.delete(reason="obsolete")

    assert (schedule.status, schedule.deleted_at) == ("deleted", NOON + MINUTE)
    for operation in OPERATIONS.values():
        with pytest.raises(ScheduleNotFoundError):
            operation(schedule)
    assert any_env.scheduler.list().items == []
    assert [e.event_type for e in any_env.scheduler.newest("report").history()][-1] == "ScheduleDeleted"
    assert any_env.tick(HOUR) == []
    assert statuses(schedule) == ["succeeded"]


def test_delete_leaves_started_runs_and_drops_waiting_ones(any_env: Env) -> None:
    schedule = any_env.create(overlap="buffer_all")
    any_env.tick()
    any_env.tick()

    schedule.delete()
    assert any_env.execute_pending() == 1

    assert statuses(schedule) == ["succeeded", "cancelled"]
    assert last(schedule, "Deleted")["dropped_buffered"] == 1


def test_purge_removes_runs_and_history_and_nothing_of_others(any_env: Env) -> None:
    purged, other = any_env.create(), any_env.create("other")
    any_env.run_due()
    purged.backfill(NOON - HOUR, NOON - 50 * MINUTE)

    purged.delete(purge=True)

    def count(table: sa.Table, column: str = "schedule_uid") -> list[str]:
        query = sa.select(table.c[column]).distinct()
        return list(any_env.runtime.database.read(lambda c: c.execute(query).scalars()))

    assert count(schedules, "uid") == count(runs) == count(audit_events) == [other.uid]
    assert count(backfills) == []
    with pytest.raises(ScheduleNotFoundError):
        any_env.scheduler.newest("report").history()
    with pytest.raises(ScheduleNotFoundError):
        purged.refresh()
    any_env.execute_pending()
    assert any_env.create().run_count == 0


def test_a_schedule_deleted_before_can_be_purged_later(any_env: Env) -> None:
    any_env.create().delete()
    any_env.scheduler.newest("report").delete(purge=True)
    with pytest.raises(ScheduleNotFoundError):
        any_env.scheduler.newest("report")


def test_a_trigger_starts_a_run_now_and_moves_no_time(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.advance(20 * SECOND)

    result = schedule.trigger()
    any_env.execute_pending()

    assert (result.outcome, bool(result), schedule.next_run_at) == ("triggered", True, NOON + MINUTE)
    assert result.run is not None
    run = result.run.refresh()
    assert (run.kind, run.status, run.occurrence_at) == ("manual", "succeeded", NOON + 20 * SECOND)
    assert result.instance_id == run.instance_id == f"schedule:report:manual:{run.uid.lower()}"
    assert last(schedule, "Triggered")["occurrence_time"] == "2026-01-15T12:00:20Z"


def test_a_skipped_trigger_returns_nothing_and_says_why(any_env: Env) -> None:
    schedule = any_env.create()
    schedule.trigger()

    result = schedule.trigger()

    assert (bool(result), result.run, result.instance_id) == (False, None, None)
    assert (result.outcome, result.reason) == ("skipped", "overlap_policy_skip")
    assert (schedule.skipped_count, schedule.last_skip_reason) == (1, "overlap_policy_skip")


def test_a_trigger_may_override_the_overlap_policy(any_env: Env) -> None:
    schedule = any_env.create()
    schedule.trigger()

    assert schedule.trigger("allow").outcome == "triggered"
    assert schedule.trigger("buffer_one").buffer_depth == 1
    assert schedule.trigger("buffer_one").outcome == "buffer_full"
    assert last(schedule, "Triggered")["effective_overlap_policy"] == "allow_all"


def test_the_same_idempotency_key_gives_the_same_run(any_env: Env) -> None:
    schedule = any_env.create(overlap="allow_all")
    first = schedule.trigger(idempotency_key="order-7")
    any_env.execute_pending()

    again = schedule.trigger(idempotency_key="order-7")

    assert first.run is not None
    assert again.run is not None
    assert again.run.uid == first.run.uid
    other = present(schedule.trigger(idempotency_key="order-8").run)
    assert other.uid != first.run.uid
    assert schedule.run_count == 2
    with pytest.raises(InvalidInputError):
        schedule.trigger(idempotency_key="")


def test_a_paused_schedule_is_triggered_by_force_only(any_env: Env) -> None:
    schedule = any_env.create()
    schedule.pause()

    assert schedule.trigger().reason == "status_not_triggerable"
    assert schedule.trigger(force=True).outcome == "triggered"
    assert schedule.status == "paused"
    assert types(schedule) == ["Created", "Paused", "TriggerSkipped", "Triggered"]


def test_an_exhausted_schedule_is_not_triggered(any_env: Env) -> None:
    schedule = any_env.create(max_runs=1)
    any_env.run_due()
    assert schedule.trigger(force=True).reason == "remaining_actions_exhausted"
    any_env.failing = True
    dead = any_env.create("dead", retry=DIES_AT_ONCE)
    any_env.run_due()
    assert dead.trigger(force=True).reason == "status_not_triggerable"


THEN = {
    "nothing said": (RetryPolicy(1), "dead"),
    "no retry policy": (None, "dead"),
    "continue": (RetryPolicy(1, then="continue"), "continue"),
}


@pytest.mark.parametrize(("retry", "kept"), THEN.values(), ids=THEN)
def test_upsert_and_update_keep_what_follows_a_failed_run_unless_they_say_it(
    env: Env, retry: RetryPolicy | None, kept: str
) -> None:
    env.create("upserted", retry=RetryPolicy(2, then="dead"))
    env.create("updated", retry=RetryPolicy(2, then="dead"))

    upserted, _ = env.scheduler.upsert("upserted", "note", HOUR, retry=retry)
    updated = env.scheduler.get("updated").update(retry=retry)

    assert [one.describe().policies["retry"]["then"] for one in (upserted, updated)] == [kept, kept]


def test_stored_policies_of_an_earlier_format_that_say_the_same_are_no_change(env: Env) -> None:
    schedule = env.create("a", retry=RetryPolicy(2, then="continue"))
    spelled_out = json.dumps(schedule.state.policies.plain())
    write = sa.update(schedules).values(policies=spelled_out)
    env.runtime.database.transact(lambda connection: connection.execute(write))

    _, outcome = env.scheduler.upsert("a", "note", MINUTE, retry=RetryPolicy(2, then="continue"))

    assert outcome == "unchanged"


ENDS = {
    "the spec": (Once(NOON + MINUTE), {}, Once(NOON + HOUR), {}),
    "max_runs": (Every("1m"), {"max_runs": 1}, Every("1m"), {"max_runs": 2}),
    "max_successes": (Every("1m"), {"max_successes": 1}, Every("1m"), {"max_successes": 2}),
}


@pytest.mark.parametrize(("spec", "options", "later_spec", "later"), ENDS.values(), ids=ENDS)
def test_a_done_schedule_declared_with_an_end_ahead_is_active_and_fires(
    any_env: Env, spec: Any, options: dict[str, Any], later_spec: Any, later: dict[str, Any]
) -> None:
    schedule = any_env.create("a", spec, **options)
    any_env.run_due(MINUTE)
    assert (schedule.refresh().status, schedule.run_count) == ("done", 1)

    assert any_env.scheduler.upsert("a", "note", spec, **options)[1] == "unchanged", "its end is still behind it"
    _, outcome = any_env.scheduler.upsert("a", "note", later_spec, **later)

    assert (outcome, schedule.refresh().status) == ("updated", "active")
    assert last(schedule, "Resumed")["reason"] == "declared_again"
    any_env.run_due(HOUR)
    assert (schedule.refresh().run_count, schedule.status) == (2, "done")


def test_a_done_schedule_that_is_synced_with_an_end_ahead_is_active(env: Env) -> None:
    env.scheduler.sync([Declaration("a", "note", Every(MINUTE), {"max_runs": 1})])
    env.run_due(MINUTE)
    assert env.scheduler.get("a").status == "done"

    env.scheduler.sync([Declaration("a", "note", Every(MINUTE), {"max_runs": 2})])

    assert env.scheduler.get("a").status == "active"
    env.run_due(MINUTE)
    assert env.scheduler.get("a").run_count == 2


def test_a_done_schedule_declared_again_as_paused_is_paused(env: Env) -> None:
    schedule = env.create("a", Once(NOON + MINUTE))
    env.run_due(MINUTE)

    env.scheduler.upsert("a", "note", Once(NOON + HOUR), paused=True)

    assert schedule.refresh().status == "paused"
    schedule.resume()
    assert schedule.next_run_at == NOON + HOUR
