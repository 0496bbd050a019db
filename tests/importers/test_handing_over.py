"""A source is handed over: ours wait until its are disabled, then fire; nothing twice, nothing in silence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from rqsched import Every
from rqsched.errors import ConflictError, QuotaExceededError
from rqsched.features.declarations.schedule_file import declaration_of
from rqsched.importers.handing_over import Fires, HandingOver, Imported, Outcome
from rqsched.importers.rq_scheduler import LOCK, SCHEDULED, RqScheduler
from rqsched.importers.source import Reading
from rqsched.kernel.transport import redis_keys
from rqsched.testing import ManualClock
from tests.support.env import HOUR, MINUTE, NOON, Env, MakeEnv, all_runs, events, occurrences, open_env
from tests.support.invariants import check_invariants

FUNCTION = f"{__name__}.report"


def report(*args: Any, **kwargs: Any) -> list[Any]:
    return [*args, kwargs]


def moving(env: Env) -> HandingOver:
    return HandingOver(env.scheduler, RqScheduler(env.redis, Reading(is_trusted=True)), declaration_of)


def outcomes(found: list[Imported]) -> dict[str, tuple[Outcome, Fires]]:
    return {one.source.source_id: (one.outcome, one.fires) for one in found}


def fire_theirs(theirs: Any) -> list[str]:
    """rqscheduler enqueues jobs that are due by the wall clock, which all times of these tests use; returns the ids."""
    before = {job.id for job in theirs.get_jobs_to_queue()}
    list(theirs.enqueue_jobs())
    return sorted(before)


@pytest.fixture
def hourly(theirs: Any, env: Env) -> str:
    """A job of rq-scheduler that fires in half an hour, and then each hour."""
    theirs.schedule(env.clock.now() + HOUR / 2, FUNCTION, args=["eu"], interval=3600, id="hourly", timeout=60)
    return "rq-scheduler:hourly"


def test_a_preview_writes_nothing(env: Env, hourly: str) -> None:
    assert outcomes(moving(env).preview()) == {"hourly": (Outcome.CREATED, Fires.SOURCE)}
    assert list(env.scheduler.iter()) == []


def test_ours_wait_until_their_source_is_disabled(env: Env, hourly: str) -> None:
    assert outcomes(moving(env).write()) == {"hourly": (Outcome.CREATED, Fires.SOURCE)}
    schedule = env.scheduler.get(hourly)
    assert (schedule.status, schedule.note, schedule.state.definition.managed_by, dict(schedule.labels)) == (
        "paused",
        "waits for rq-scheduler to stop firing it: rqsched import --disable-source",
        "import",
        {"imported_from": "rq-scheduler"},
    )
    env.tick(HOUR)
    assert all_runs(schedule.refresh()) == []


@pytest.mark.parametrize("database_kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.every_database)])
def test_handed_over_it_fires_here_at_the_time_it_had_there(any_env: Env, theirs: Any) -> None:
    env = any_env
    at = env.clock.now() + HOUR / 2
    theirs.schedule(at, FUNCTION, args=["eu"], interval=3600, id="hourly", timeout=60)
    found, said = moving(env).hand_over()
    assert (outcomes(found), said[:11]) == ({"hourly": (Outcome.CREATED, Fires.HERE)}, "Moved 1 job")
    assert fire_theirs(theirs) == []
    schedule = env.scheduler.get("rq-scheduler:hourly")
    assert (schedule.status, schedule.note, schedule.next_run_at) == ("active", "came from rq-scheduler", at)
    env.run_due(HOUR / 2)
    env.run_due(HOUR)
    assert (occurrences(schedule), [run.result for run in all_runs(schedule)]) == ([at, at + HOUR], [["eu", {}]] * 2)
    check_invariants(env.runtime)


def test_a_second_time_changes_nothing(env: Env, hourly: str) -> None:
    moving(env).write()
    assert outcomes(moving(env).write()) == {"hourly": (Outcome.UNCHANGED, Fires.SOURCE)}
    moving(env).hand_over()
    version = env.scheduler.get(hourly).state.version
    for again in (moving(env).write(), moving(env).hand_over()[0], moving(env).preview(), moving(env).resume()):
        assert outcomes(again) == {"hourly": (Outcome.UNCHANGED, Fires.HERE)}
    assert env.scheduler.get(hourly).state.version == version


def test_what_its_source_fires_meanwhile_moves_the_time_of_ours(env: Env, theirs: Any, hourly: str) -> None:
    moving(env).write()
    assert fire_theirs(theirs) == ["hourly"]
    score = env.redis.zscore(SCHEDULED, "hourly")
    assert outcomes(moving(env).write()) == {"hourly": (Outcome.UPDATED, Fires.SOURCE)}
    moving(env).hand_over()
    schedule = env.scheduler.get(hourly)
    assert isinstance(schedule.spec.members[0], Every)
    assert schedule.spec.members[0].anchor == datetime.fromtimestamp(cast(float, score), UTC)
    assert all_runs(schedule) == []


def test_what_its_source_owes_is_fired_once_and_at_once(env: Env, theirs: Any) -> None:
    now = env.clock.now()
    theirs.schedule(now - MINUTE, FUNCTION, interval=3600, id="late", timeout=60)
    theirs.enqueue_at(now - MINUTE, FUNCTION, job_id="once", timeout=60)
    theirs.schedule(now - MINUTE, FUNCTION, interval=3600, repeat=1, id="last", timeout=60)
    moving(env).hand_over()
    moving(env).hand_over()
    env.work("low")
    late, once, last = (env.scheduler.get(f"rq-scheduler:{name}") for name in ("late", "once", "last"))
    assert [len(all_runs(one)) for one in (late, once, last)] == [1, 1, 1]
    assert [one.status for one in (late, once, last)] == ["active", "done", "done"]
    assert late.next_run_at == now + 59 * MINUTE
    check_invariants(env.runtime)


class Running(ManualClock):
    """A clock that goes on by a second with each look, as if each line took that long."""

    is_running = False

    def now(self) -> datetime:
        return self.advance(timedelta(seconds=1)) if self.is_running else super().now()


def test_a_time_that_comes_while_it_is_handed_over_is_fired_once(theirs: Any, sqlite_url: str, redis_url: str) -> None:
    """The time may come between any two reads of the clock."""
    clock = Running(NOON)
    with open_env(clock, database_url=sqlite_url, redis_url=redis_url) as env:
        for seconds in range(30):
            at = clock.now() + timedelta(seconds=seconds)
            theirs.enqueue_at(at, FUNCTION, job_id=f"once-{seconds}", timeout=60)
            theirs.schedule(at, FUNCTION, interval=86_400, id=f"daily-{seconds}", timeout=60)
            clock.is_running = True
            moving(env).hand_over()
            clock.is_running = False
            env.redis.delete(redis_keys.disabled_entries("rq-scheduler"))  # else each is read again with those to come
        env.run_due(HOUR)
        found = {one.schedule_id.rpartition(":")[2]: len(all_runs(one)) for one in env.scheduler.iter()}
    assert {name: runs for name, runs in found.items() if runs != 1} == {}
    assert len(found) == 60


def test_repeats_that_are_left_are_the_runs_that_are_left(env: Env, theirs: Any) -> None:
    theirs.schedule(env.clock.now() + MINUTE, FUNCTION, interval=60, repeat=2, id="two", timeout=60)
    moving(env).hand_over()
    for _ in range(4):
        env.run_due(MINUTE)
    schedule = env.scheduler.get("rq-scheduler:two")
    assert (len(all_runs(schedule)), schedule.status) == (2, "done")


def test_one_that_was_resumed_here_is_told_to_fire_twice_until_its_source_is_disabled(env: Env, hourly: str) -> None:
    moving(env).write()
    env.scheduler.get(hourly).resume()
    assert outcomes(moving(env).write()) == {"hourly": (Outcome.UNCHANGED, Fires.BOTH)}
    assert outcomes(moving(env).hand_over()[0]) == {"hourly": (Outcome.UNCHANGED, Fires.HERE)}


def test_one_that_somebody_paused_here_stays_at_its_source(env: Env, hourly: str) -> None:
    moving(env).write()
    env.scheduler.get(hourly).resume(note="by hand").pause()
    found, _ = moving(env).hand_over()
    assert outcomes(found) == {"hourly": (Outcome.UNCHANGED, Fires.SOURCE)}
    assert env.redis.zcard(SCHEDULED) == 1


def test_one_that_was_resumed_and_paused_again_without_a_word_stays_paused(env: Env, hourly: str) -> None:
    """It keeps the note of waiting schedules, even if its source has stopped or if it is imported again."""
    moving(env).write()
    env.advance(MINUTE)
    env.scheduler.get(hourly).resume().pause()
    again = moving(env)
    found, _ = again.hand_over()
    assert outcomes(found) == {"hourly": (Outcome.UNCHANGED, Fires.SOURCE)}
    assert [again.is_waiting(one) for one in found] == [False]
    assert env.redis.zcard(SCHEDULED) == 1
    moving(env).resume()
    schedule = env.scheduler.get(hourly)
    assert (schedule.status, schedule.note) == ("paused", again.waits)


def test_one_that_somebody_pauses_while_it_is_handed_over_stays_paused(env: Env, theirs: Any, hourly: str) -> None:
    """The schedule is resumed and paused between the import's last look and its resume. The others continue."""
    theirs.schedule(env.clock.now() + HOUR / 2, FUNCTION, interval=3600, id="other", timeout=60)
    theirs.schedule(env.clock.now() + HOUR / 2, FUNCTION, interval=3600, id="alone", timeout=60)

    def meddle(_: int) -> None:
        if env.scheduler.get(hourly).note != "mine":
            env.advance(MINUTE)
            env.scheduler.get(hourly).resume().pause(note="mine")

    where = HandingOver(
        env.scheduler, RqScheduler(env.redis, Reading(is_trusted=True)), declaration_of, progress=meddle
    )
    found, _ = where.hand_over()
    told = outcomes(found)
    assert told == {
        "alone": (Outcome.CREATED, Fires.HERE),
        "hourly": (Outcome.FAILED, Fires.NOWHERE),
        "other": (Outcome.CREATED, Fires.HERE),
    }
    failed = next(one for one in found if one.outcome is Outcome.FAILED)
    assert "is at version" in failed.lost[0]
    assert env.scheduler.get(hourly).status == "paused"
    assert outcomes(moving(env).hand_over()[0])["hourly"] == (Outcome.UNCHANGED, Fires.NOWHERE)


def test_one_that_cannot_be_written_holds_up_no_other(env: Env, theirs: Any, hourly: str) -> None:
    """Its row violates a database constraint that no earlier check knows."""
    theirs.schedule(env.clock.now() + HOUR / 2, FUNCTION, interval=3600, id="barred", timeout=60)
    rule = "BEFORE INSERT ON rqsched_schedules WHEN NEW.schedule_id LIKE '%barred'"
    trigger = f"CREATE TRIGGER barred {rule} BEGIN SELECT RAISE(ABORT, 'barred by a rule'); END"
    env.runtime.database.transact(lambda connection: connection.exec_driver_sql(trigger))
    found, _ = moving(env).hand_over()
    assert outcomes(found) == {
        "barred": (Outcome.FAILED, Fires.SOURCE),
        "hourly": (Outcome.CREATED, Fires.HERE),
    }
    assert "barred by a rule" in found[0].lost[0]
    assert env.redis.zrange(SCHEDULED, 0, -1) == [b"barred"]
    env.runtime.database.transact(lambda connection: connection.exec_driver_sql("DROP TRIGGER barred"))
    assert outcomes(moving(env).hand_over()[0]) == {
        "barred": (Outcome.CREATED, Fires.HERE),
        "hourly": (Outcome.UNCHANGED, Fires.HERE),
    }


def test_an_rqscheduler_that_never_lets_go_leaves_all_there_and_says_why(
    env: Env, hourly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqsched.importers.rq_scheduler._WAIT_SECONDS", 0.2)
    env.redis.set(LOCK, "of an rqscheduler")
    found, done = moving(env).hand_over()
    assert (outcomes(found), done) == ({"hourly": (Outcome.FAILED, Fires.SOURCE)}, "")
    assert "rqscheduler has held its lock" in found[0].lost[0]
    env.redis.delete(LOCK)
    assert outcomes(moving(env).hand_over()[0]) == {"hourly": (Outcome.UNCHANGED, Fires.HERE)}


def test_what_has_no_code_here_is_said_before_and_when_it_is_written(env: Env, theirs: Any, hourly: str) -> None:
    for name, path in (("module", "billing.nightly.run"), ("function", f"{__name__}.gone"), ("named", "note.on.paper")):
        theirs.schedule(env.clock.now() + HOUR, path, interval=3600, id=name, timeout=60)
    env.register("note.on.paper", report)
    for found in (moving(env).preview(), moving(env).write()):
        said = {one.source.source_id: [text for text in one.lost if "has no code here" in text] for one in found}
        assert {name: len(texts) for name, texts in said.items()} == {
            "function": 1,
            "hourly": 0,
            "module": 1,
            "named": 0,
        }
        assert "(there is no module billing.nightly)" in said["module"][0]
        assert f"({__name__} has no gone)" in said["function"][0]


def test_one_that_its_application_schedules_anew_is_told_to_fire_twice(env: Env, theirs: Any, hourly: str) -> None:
    moving(env).hand_over()
    theirs.schedule(env.clock.now() + HOUR, FUNCTION, args=["eu"], interval=3600, id="hourly", timeout=60)
    assert outcomes(moving(env).write()) == {"hourly": (Outcome.UNCHANGED, Fires.BOTH)}
    assert outcomes(moving(env).hand_over()[0]) == {"hourly": (Outcome.UNCHANGED, Fires.HERE)}


def test_one_that_is_drawn_anew_is_the_same_schedule(env: Env, theirs: Any) -> None:
    """Some applications cancel and schedule all their jobs at each start."""
    for _ in range(3):
        theirs.schedule(env.clock.now() + HOUR, FUNCTION, interval=3600, timeout=60)
        moving(env).hand_over()
        assert env.redis.zcard(SCHEDULED) == 0
    (schedule,) = env.scheduler.iter()
    assert schedule.status == "active"


def test_ours_that_was_changed_here_is_not_changed_back(env: Env, hourly: str) -> None:
    moving(env).hand_over()
    env.scheduler.get(hourly).update(args=["us"], queue="high")
    assert outcomes(moving(env).write()) == {"hourly": (Outcome.UNCHANGED, Fires.HERE)}
    described = env.scheduler.get(hourly).describe()
    assert (described.args, described.queue) == (["us"], "high")


def test_ours_that_was_deleted_is_not_made_again(env: Env, hourly: str) -> None:
    moving(env).hand_over()
    env.scheduler.get(hourly).delete()
    assert moving(env).hand_over()[0] == []
    assert list(env.scheduler.iter()) == []


def test_another_schedule_of_its_id_is_left_alone(env: Env, hourly: str) -> None:
    env.create(hourly)
    found, _ = moving(env).hand_over()
    assert outcomes(found) == {"hourly": (Outcome.TAKEN, Fires.SOURCE)}
    assert "not made by an import" in found[0].lost[0]
    assert env.scheduler.get(hourly).workflow == "note"
    assert env.redis.zcard(SCHEDULED) == 1


def test_another_source_with_the_same_id_is_not_disabled_in_favour_of_the_first(
    env: Env, theirs: Any, hourly: str
) -> None:
    moving(env).hand_over()
    env.redis.delete(redis_keys.disabled_entries("rq-scheduler"))  # as if it were another Redis
    theirs.schedule(env.clock.now() + HOUR, "billing.clean_up", interval=60, id="hourly", timeout=60)
    found, _ = moving(env).hand_over()
    assert outcomes(found) == {"hourly": (Outcome.TAKEN, Fires.SOURCE)}
    assert f"Schedule {hourly} calls {FUNCTION} and is not changed" in found[0].lost[0]
    assert (env.redis.zcard(SCHEDULED), env.scheduler.get(hourly).workflow) == (1, FUNCTION)


def test_another_source_with_the_same_id_and_function_is_not_disabled_in_favour_of_the_first(
    env: Env, theirs: Any, hourly: str
) -> None:
    moving(env).hand_over()
    env.redis.delete(redis_keys.disabled_entries("rq-scheduler"))  # as if it were another Redis
    theirs.schedule(env.clock.now() + HOUR, FUNCTION, args=["us"], interval=60, id="hourly", timeout=60)
    found, _ = moving(env).hand_over()
    assert outcomes(found) == {"hourly": (Outcome.TAKEN, Fires.SOURCE)}
    assert f"calls {FUNCTION} with other arguments and is not changed" in found[0].lost[0]
    assert env.redis.zcard(SCHEDULED) == 1


def into(env: Env, namespace: str, **options: Any) -> HandingOver:
    return HandingOver(
        env.scheduler, RqScheduler(env.redis, Reading(is_trusted=True)), declaration_of, namespace=namespace, **options
    )


def test_what_one_namespace_has_is_refused_in_another(env: Env, hourly: str) -> None:
    moving(env).write()
    for act in (into(env, "other").preview, into(env, "other").write, into(env, "other").hand_over):
        with pytest.raises(ConflictError, match=f"namespace 'default' has 1 of these already, such as {hourly}"):
            act()
    assert list(env.scheduler.iter(namespace="other")) == []
    assert env.redis.zcard(SCHEDULED) == 1
    env.scheduler.get(hourly).delete()
    assert outcomes(into(env, "other").hand_over()[0]) == {"hourly": (Outcome.CREATED, Fires.HERE)}


def test_what_came_from_another_source_is_no_obstacle_where_that_is_said(env: Env, theirs: Any, hourly: str) -> None:
    moving(env).hand_over()
    env.redis.delete(redis_keys.disabled_entries("rq-scheduler"))  # as if it were another Redis
    theirs.schedule(env.clock.now() + HOUR, FUNCTION, args=["us"], interval=60, id="hourly", timeout=60)
    found, _ = into(env, "other", is_another=True).hand_over()
    assert outcomes(found) == {"hourly": (Outcome.CREATED, Fires.HERE)}
    assert env.scheduler.get(hourly).status == "active"


def test_another_function_of_the_same_id_came_from_another_source(env: Env, theirs: Any, hourly: str) -> None:
    moving(env).hand_over()
    theirs.schedule(env.clock.now() + HOUR, "billing.clean_up", interval=60, id="hourly", timeout=60)
    assert outcomes(into(env, "other").hand_over()[0]) == {"hourly": (Outcome.CREATED, Fires.HERE)}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queue_name": "rqsched"}, "control queue"),
        ({"queue_name": "a b"}, "queue"),
    ],
    ids=["the control queue", "a queue"],
)
def test_what_sync_would_refuse_is_not_imported_and_stays_there(
    options: dict[str, Any], reason: str, env: Env, theirs: Any
) -> None:
    theirs.schedule(env.clock.now() + HOUR, FUNCTION, id="x", **options)
    found, _ = moving(env).hand_over()
    assert outcomes(found) == {"x": (Outcome.NOT_IMPORTED, Fires.SOURCE)}
    assert reason in found[0].lost[0]
    assert env.redis.zcard(SCHEDULED) == 1


def test_no_module_of_a_job_is_imported(env: Env, theirs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs.schedule(env.clock.now() + HOUR, "tests.importers.bomb.explode", id="x", timeout=60)
    moving(env).hand_over()
    assert env.scheduler.get("rq-scheduler:x").workflow == "tests.importers.bomb.explode"


def test_one_that_fired_there_for_the_last_time_is_told_and_stays_paused(env: Env, theirs: Any) -> None:
    theirs.enqueue_at(env.clock.now() + MINUTE, FUNCTION, job_id="once", timeout=60)
    moving(env).write()
    assert fire_theirs(theirs) == ["once"]
    again = moving(env)
    found, _ = again.hand_over()
    assert (found, again.vanished(found)) == ([], ["rq-scheduler:once"])
    assert env.scheduler.get("rq-scheduler:once").status == "paused"


def test_a_source_that_is_stopped_by_hand_is_believed(env: Env, hourly: str) -> None:
    assert outcomes(moving(env).resume()) == {"hourly": (Outcome.CREATED, Fires.HERE)}
    assert env.redis.zcard(SCHEDULED) == 1
    assert env.scheduler.get(hourly).status == "active"


def test_a_sync_of_another_set_prunes_none_of_them(env: Env, hourly: str) -> None:
    moving(env).hand_over()
    assert env.scheduler.sync([], delete_removed=True).removed == []
    assert env.scheduler.get(hourly).status == "active"


def test_a_quota_is_obeyed_before_anything_is_written(make_env: MakeEnv, theirs: Any) -> None:
    env = make_env(quotas={"default": {"schedules": 2}})
    for number in range(3):
        theirs.schedule(env.clock.now() + HOUR, FUNCTION, id=f"x{number}", timeout=60)
    with pytest.raises(QuotaExceededError):
        moving(env).hand_over()
    assert list(env.scheduler.iter()) == []
    assert env.redis.zcard(SCHEDULED) == 3


def test_who_imported_is_in_the_history(env: Env, hourly: str) -> None:
    moving(env).hand_over()
    kinds = [event.event_type for event in events(env.scheduler.get(hourly))]
    assert kinds[:2] == ["ScheduleCreated", "SchedulePaused"]
    assert "ScheduleResumed" in kinds


def test_what_the_settings_say_of_all_schedules_holds_for_imported_ones_too(make_env: MakeEnv, theirs: Any) -> None:
    env = make_env(on_failure="note", retry={"max_retries": 7, "base": "5s"}, timezone="Europe/Berlin")
    theirs.cron("0 9 * * *", FUNCTION, id="x", timeout=60)
    moving(env).write()
    described = env.scheduler.get("rq-scheduler:x").describe()
    assert described.on_failure == "note"
    assert (described.policies["retry"]["max_retries"], described.policies["retry"]["base"]) == (0, 5.0)
    assert described.timezone == "UTC"  # where rqscheduler's host is, whatever the project says


def test_a_setting_that_names_nobody_is_said_and_nothing_is_taken(make_env: MakeEnv, theirs: Any) -> None:
    env = make_env(on_failure="nobody")
    theirs.cron("0 9 * * *", FUNCTION, id="x", timeout=60)
    found, _ = moving(env).hand_over()
    assert "no workflow named 'nobody'" in found[0].lost[0]
    assert env.redis.zcard(SCHEDULED) == 1
