"""Every option takes effect, from create and from update alike. Values out of bounds are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from redis import Redis

from rqsched import CommandContext, Cron, Every, RetryPolicy, current_run
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import (
    InvalidDurationError,
    InvalidIdError,
    InvalidInputError,
    InvalidPayloadError,
    InvalidPolicyError,
    InvalidSpecError,
    InvalidTypeError,
)
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.store import Batch
from rqsched.kernel.decide.notifications import hidden
from rqsched.kernel.decide.options import Options
from rqsched.kernel.store.tables import targets
from rqsched.workflows import FannedOut
from tests.support.env import (
    DAY,
    HOUR,
    MINUTE,
    NOON,
    ONCE,
    SECOND,
    Env,
    MakeEnv,
    all_runs,
    last,
    newest,
    occurrences,
    statuses,
    types,
)
from tests.support.narrow import present
from tests.support.rows import every_row
from tests.support.sweeps import max_parallel, named_targets, target_retry, target_timeout

Check = Callable[[Env, ScheduleHandle], None]


def timezone(env: Env, schedule: ScheduleHandle) -> None:
    assert schedule.next_run_at is not None
    assert schedule.next_run_at.hour == 3, "9 o'clock in Asia/Dhaka"


def args(env: Env, schedule: ScheduleHandle) -> None:
    env.run_due()
    assert env.calls[-1][0] == (1, [None, 2.5], {"a": "ü"})
    assert newest(schedule).args == [1, [None, 2.5], {"a": "ü"}]


def kwargs(env: Env, schedule: ScheduleHandle) -> None:
    env.run_due()
    assert env.calls[-1][1] == {"region": "eu"} == newest(schedule).kwargs
    assert env.seen[-1].payload == {"region": "eu"}


def overlap(env: Env, schedule: ScheduleHandle) -> None:
    env.tick()
    env.tick()
    assert statuses(schedule) == ["pending", "pending"]


def buffer_limit(env: Env, schedule: ScheduleHandle) -> None:
    for _ in range(3):
        env.tick()
    assert statuses(schedule) == ["pending", "buffered"]
    assert last(schedule, "TriggerSkipped")["reason"] == "buffer_full"


def missed(env: Env, schedule: ScheduleHandle) -> None:
    env.tick(10 * MINUTE)
    assert last(schedule, "Missed")["policy"] == "skip"
    assert newest(schedule).occurrence_at == env.clock.now(), "the newest fires"


def fire_within(env: Env, schedule: ScheduleHandle) -> None:
    env.tick(MINUTE + 31 * SECOND)
    assert (statuses(schedule), last(schedule, "Missed")["count"]) == ([], 1)


def start_within(env: Env, schedule: ScheduleHandle) -> None:
    run = env.fire_next(schedule)
    env.advance(30 * SECOND)
    env.recover()
    assert run.refresh().expired_at == env.clock.now()


def missed_limit(env: Env, schedule: ScheduleHandle) -> None:
    env.tick(5 * MINUTE)
    assert len(statuses(schedule)) == 2
    assert last(schedule, "Missed")["count"] == 3


def on_resume(env: Env, schedule: ScheduleHandle) -> None:
    schedule.pause()
    env.advance(5 * MINUTE)
    assert schedule.resume().next_run_at == env.clock.now()


def exclude(env: Env, schedule: ScheduleHandle) -> None:
    env.tick()
    assert statuses(schedule) == []
    assert schedule.refresh().next_run_at == NOON + 30 * MINUTE


def on_excluded(env: Env, schedule: ScheduleHandle) -> None:
    del env
    friday = NOON + DAY - 3 * HOUR
    assert (schedule.next_run_at, schedule.moved_from) == (friday + DAY, [friday])


def dst_gap(env: Env, schedule: ScheduleHandle) -> None:
    spring = datetime(2026, 3, 8, tzinfo=UTC)
    assert schedule.next_run_at is not None
    upcoming = schedule.upcoming(60)
    assert spring + 7.5 * HOUR not in upcoming, "New York has no 02:30 that day, nor a fire at 03:30"
    assert spring + 30.5 * HOUR in upcoming


def dst_fold(env: Env, schedule: ScheduleHandle) -> None:
    autumn = datetime(2026, 11, 1, tzinfo=UTC)
    assert [at for at in schedule.upcoming(300) if autumn <= at < autumn + DAY] == [
        autumn + 5.5 * HOUR, autumn + 6.5 * HOUR,
    ]  # fmt: skip


def spread(env: Env, schedule: ScheduleHandle) -> None:
    assert schedule.due_at is not None
    assert schedule.next_run_at is not None
    delay = schedule.due_at - schedule.next_run_at
    assert timedelta(0) < delay < 50 * SECOND
    assert env.tick() == []
    assert env.tick(delay)
    schedule.refresh()
    assert schedule.due_at - schedule.next_run_at == delay
    assert occurrences(schedule) == [schedule.next_run_at - MINUTE]


def jitter(env: Env, schedule: ScheduleHandle) -> None:
    assert schedule.due_at is not None
    assert schedule.next_run_at is not None
    delay = schedule.due_at - schedule.next_run_at
    assert timedelta(0) < delay < 50 * SECOND
    assert env.tick() == []
    assert env.tick(delay)


def limit(env: Env, schedule: ScheduleHandle) -> None:
    schedule.trigger()
    schedule.trigger()
    assert [run.state.is_in_line for run in schedule.runs().items] == [True, False]
    env.work()


def limit_rate(env: Env, schedule: ScheduleHandle) -> None:
    env.advance(SECOND)
    schedule.trigger()
    schedule.trigger()
    env.work()
    assert [run.status for run in schedule.runs().items] == ["pending", "succeeded"]
    env.advance(SECOND)
    env.dispatch()
    env.work()


def max_runs(env: Env, schedule: ScheduleHandle) -> None:
    env.run_due()
    assert (schedule.refresh().status, schedule.status_reason) == ("done", "max_runs_exhausted")


def on_max_runs(env: Env, schedule: ScheduleHandle) -> None:
    schedule.update(max_runs=1)
    env.run_due()
    assert (schedule.refresh().status, last(schedule, "Deleted")["reason"]) == ("deleted", "max_runs_exhausted")


def max_successes(env: Env, schedule: ScheduleHandle) -> None:
    env.run_due()
    assert schedule.refresh().status == "active"
    env.run_due()
    assert (schedule.refresh().status, schedule.status_reason) == ("done", "total_repeats_reached")


def environments(env: Env, schedule: ScheduleHandle) -> None:
    env.tick()
    assert (statuses(schedule), last(schedule, "TriggerSkipped")["reason"]) == ([], "environment")


def retry(env: Env, schedule: ScheduleHandle) -> None:
    env.failing = True
    env.run_due()
    run = newest(schedule)
    assert (run.status, run.retry_at) == ("retrying", env.clock.now() + 7 * SECOND)
    env.run_due(7 * SECOND)
    env.failing = False
    assert (newest(schedule).status, schedule.refresh().status) == ("failed", "active")


def fan_out(env: Env, schedule: ScheduleHandle) -> None:
    def sweep() -> FannedOut:
        run, now = current_run(), env.clock.now()
        batch = Batch(run.uid, "note", run.occurrence_at, 5, schedule.uid)
        ended = sa.update(targets).where(targets.c.run_uid == run.uid).values(status="failed", ended_at=now)
        env.runtime.database.transact(lambda c: fan_out_targets.record(c, batch, ["one"], 1, now))
        env.runtime.database.transact(lambda c: c.execute(ended))
        return FannedOut(targets=1)

    env.register("note", sweep)
    env.run_due()
    env.register("note", env._note)
    assert (newest(schedule).status, newest(schedule).target_counts) == ("succeeded", {"failed": 1})


def overlap_until(env: Env, schedule: ScheduleHandle) -> None:
    def sweep() -> FannedOut:
        run, now = current_run(), env.clock.now()
        batch = Batch(run.uid, "note", run.occurrence_at, 5, schedule.uid)
        env.runtime.database.transact(lambda c: fan_out_targets.record(c, batch, ["one"], 1, now))
        return FannedOut(targets=1)

    env.register("note", sweep)
    env.run_due()
    env.run_due()
    env.register("note", env._note)
    assert statuses(schedule) == ["running", "running"]


def retention(env: Env, schedule: ScheduleHandle) -> None:
    for _ in range(3):
        env.run_due()
    env.advance(2 * DAY)
    env.scheduler.prune()
    assert [run.number for run in all_runs(schedule)] == [2, 3]


def timeout(env: Env, schedule: ScheduleHandle) -> None:
    env.run_due()
    run = env.seen[-1]
    assert run.deadline_at - run.started_at == 77 * SECOND


def queue(env: Env, schedule: ScheduleHandle) -> None:
    env.tick()
    assert env.queued("high") == [f"run-{newest(schedule).uid}-a1-d1"]
    env.execute_pending()


def connection(env: Env, schedule: ScheduleHandle) -> None:
    env.tick()
    with Redis.from_url(env.scheduler.settings.connections["eu"]) as eu:
        assert eu.llen("rq:queue:default") == 1
    assert env.queued() == []
    env.execute_pending()
    assert statuses(schedule) == ["succeeded"]


def priority(env: Env, schedule: ScheduleHandle) -> None:
    env.scheduler.upsert("ordinary", "note", HOUR)[0].trigger()
    run = present(schedule.trigger().run)
    assert env.queued()[0] == f"run-{run.uid}-a1-d1"


def copied(name: str, value: Any) -> Check:
    def check(env: Env, schedule: ScheduleHandle) -> None:
        env.run_due()
        assert getattr(newest(schedule), name) == value
        assert getattr(env.seen[-1], name) == value
        assert getattr(schedule.describe(), name) == value

    return check


def described(name: str, value: Any) -> Check:
    return lambda _, schedule: _equal(getattr(schedule.describe(), name), value)


def _equal(have: Any, wanted: Any) -> None:
    assert have == wanted


def executor(env: Env, schedule: ScheduleHandle) -> None:
    env.tick()
    assert (statuses(schedule), env.queued()) == (["pending"], [])


def on_failure(env: Env, schedule: ScheduleHandle) -> None:
    run = env.fail_next(schedule)
    assert alerts(env)[-1:] == [("RunFailed", run.uid)]


def on_recovery(env: Env, schedule: ScheduleHandle) -> None:
    before = alerts(env)
    env.fail_next(schedule)
    assert alerts(env) == before, "a failure is nothing to it"
    run = env.run_next(schedule)
    assert alerts(env) == [*before, ("RunSucceeded", run.uid)]


def alerts(env: Env) -> list[tuple[str, str]]:
    """The event and the run of each message that `alert` was told."""
    messages = [args[0] for args, _ in env.calls if args]
    return [(message["event"], message["data"]["workflow_run_id"]) for message in messages]


def expect_success_within(env: Env, schedule: ScheduleHandle) -> None:
    due = env.clock.now() + 90 * SECOND
    env.advance(90 * SECOND)
    assert env.recover().overdue == 1
    assert schedule.refresh().state.overdue_since == due


def expect_duration(env: Env, schedule: ScheduleHandle) -> None:
    run = present(schedule.trigger().run)
    env.claim(run)
    env.advance(90 * SECOND)
    assert env.recover().long == 0
    env.advance(SECOND)
    assert env.recover().long == 1
    assert run.refresh().long_at == env.clock.now()


def notifications(env: Env, schedule: ScheduleHandle) -> None:
    env.tick()
    env.execute_pending()
    owed = {(ping.kind, ping.event_type, ping.destination) for ping in schedule.deliveries().items}
    shown = hidden(NOBODY)
    assert owed == {("heartbeat", "started", shown), ("heartbeat", "succeeded", shown)}


NOBODY = "http://127.0.0.1:9/"
"""A URL at which nobody answers."""
EACH: dict[str, tuple[dict[str, Any], Check]] = {
    "dst_gap": ({"dst_gap": "skip"}, dst_gap),
    "dst_fold": ({"dst_fold": "both"}, dst_fold),
    "timezone": ({"timezone": "Asia/Dhaka"}, timezone),
    "args": ({"args": [1, [None, 2.5], {"a": "ü"}]}, args),
    "kwargs": ({"kwargs": {"region": "eu"}}, kwargs),
    "overlap": ({"overlap": "allow"}, overlap),
    "buffer_limit": ({"buffer_limit": 1, "overlap": "enqueue"}, buffer_limit),
    "missed": ({"missed": "skip"}, missed),
    "fire_within": ({"fire_within": "30s"}, fire_within),
    "limit": ({"limit": "shop", "limit_running": 1, "overlap": "allow_all"}, limit),
    "limit_running": ({"limit": "shop", "limit_running": 1, "overlap": "allow_all"}, limit),
    "limit_rate": ({"limit": "shop", "limit_rate": "1/s", "overlap": "allow_all"}, limit_rate),
    "start_within": ({"start_within": "30s"}, start_within),
    "missed_limit": ({"missed_limit": 2, "missed": "all", "overlap": "allow_all"}, missed_limit),
    "on_resume": ({"on_resume": "once"}, on_resume),
    "exclude": ({"exclude": "12:00-12:30"}, exclude),
    "on_excluded": ({"on_excluded": "next", "exclude": "2026-01-16"}, on_excluded),
    "jitter": ({"jitter": timedelta(seconds=50)}, jitter),
    "spread": ({"spread": "50s"}, spread),
    "max_runs": ({"max_runs": 1}, max_runs),
    "on_max_runs": ({"on_max_runs": "delete"}, on_max_runs),
    "max_successes": ({"max_successes": 2}, max_successes),
    "environments": ({"environments": ["production"]}, environments),
    "retry": ({"retry": RetryPolicy(max_retries=1, base=7 * SECOND, then="continue")}, retry),
    "fan_out": ({"fan_out": "never"}, fan_out),
    "overlap_until": ({"overlap_until": "dispatched"}, overlap_until),
    "targets": ({"targets": "names"}, named_targets),
    "target_retry": ({"target_retry": RetryPolicy(max_retries=1, base=7 * SECOND)}, target_retry),
    "target_timeout": ({"target_timeout": 33}, target_timeout),
    "max_parallel": ({"max_parallel": 1}, max_parallel),
    "retention": ({"retention": "2"}, retention),
    "timeout": ({"timeout": 77}, timeout),
    "queue": ({"queue": "high"}, queue),
    "connection": ({"connection": "eu"}, connection),
    "priority": ({"priority": 1}, priority),
    "labels": ({"labels": {"team": "billing"}}, copied("labels", {"team": "billing"})),
    "memo": ({"memo": {"origin": ["test"]}}, copied("memo", {"origin": ["test"]})),
    "search_attributes": ({"search_attributes": {"tenant": 42}}, copied("search_attributes", {"tenant": 42})),
    "description": ({"description": "Nightly."}, described("description", "Nightly.")),
    "owner": ({"owner": "ann"}, described("owner", "ann")),
    "executor": ({"executor": "external"}, executor),
    "on_failure": ({"on_failure": "alert", "retry": ONCE}, on_failure),
    "on_recovery": ({"on_recovery": "alert", "retry": ONCE}, on_recovery),
    "expect_success_within": ({"expect_success_within": "90s"}, expect_success_within),
    "expect_duration": ({"expect_duration": "90s"}, expect_duration),
    "notifications": ({"notifications": {"heartbeat": NOBODY}}, notifications),
}
"""Each option: a given value, and the expected effect."""


TIMINGS = {
    "timezone": Cron("0 9 * * *"),
    "on_excluded": Cron("0 9 * * FRI"),
    "dst_gap": Cron("30 2 * * *", "America/New_York"),
    "dst_fold": Cron("30 1 * * *", "America/New_York"),
}
"""The timings of the options that an interval does not know."""


def test_every_option_is_in_the_table_of_checks() -> None:
    assert set(EACH) == set(Options.__annotations__)


@pytest.fixture
def two_redis_env(make_env: MakeEnv, sqlite_url: str, redis_url: str) -> Env:
    env = make_env(database_url=sqlite_url, connections={"eu": redis_url.replace("/0", "/1")})
    env.register("alert", lambda message: env.calls.append(((message,), {})))
    env.register("names", lambda: ["one", "two"])
    return env


@pytest.mark.parametrize("name", EACH)
def test_each_option_takes_effect_by_create_and_by_update(two_redis_env: Env, name: str) -> None:
    options, check = EACH[name]
    spec = TIMINGS.get(name, Every("1m"))
    created = two_redis_env.create("created", spec, **options)
    check(two_redis_env, created)
    if created.refresh().status != "deleted":
        created.delete()

    updated = two_redis_env.create("updated", spec)
    updated.update(**options)
    check(two_redis_env, updated)


def test_a_workflows_connection_is_the_default_of_its_schedules(two_redis_env: Env) -> None:
    two_redis_env.register("note", two_redis_env._note, connection="eu")
    schedule = two_redis_env.create()
    connection(two_redis_env, schedule)


def test_workflow_defaults_are_those_of_the_last_write(any_env: Env) -> None:
    any_env.register("note", any_env._note, queue="old")
    schedule = any_env.create()
    any_env.register("note", any_env._note, queue="new")

    any_env.run_due()
    assert newest(schedule).queue == "old", "a fire runs none of the application's code"

    any_env.scheduler.upsert("report", "note", MINUTE)
    any_env.run_due()
    assert newest(schedule).queue == "new"


def test_the_newest_registered_code_of_a_name_runs(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.register("note", lambda: "redeployed")
    any_env.run_due()
    assert newest(schedule).result == "redeployed"


def test_a_vanished_workflow_is_named_by_its_blocked_runs_and_in_the_error_they_end_with(any_env: Env) -> None:
    schedule = any_env.create()
    any_env.runtime.workflows.remove("note")
    any_env.run_due()
    run = newest(schedule)
    assert (run.status, run.is_blocked, run.error) == ("pending", True, None)
    assert "no workflow named 'note' is registered" in present(run.blocked_reason)

    any_env.advance(any_env.scheduler.settings.blocked_timeout)
    any_env.recover()
    run.refresh()
    assert (run.status, run.attempt, run.is_blocked) == ("failed", 1, False)
    assert "no workflow named 'note' is registered" in present(run.error)


KIB = 1024
FITS: dict[str, dict[str, Any]] = {
    "arguments": {"args": ["x" * (256 * KIB - 50)]},
    "memo": {"memo": {"a": "x" * (256 * KIB - 8)}},
    "labels": {"labels": {str(k): "x" * 255 for k in range(64)}},
    "note": {"note": "x" * 4 * KIB},
    "jitter of a day": {"jitter": timedelta(days=1)},
    "spread of a day": {"spread": "24h"},
}
TOO_MUCH: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "arguments over 256 KiB": ({"args": ["x" * 200 * KIB], "kwargs": {"a": "x" * 56 * KIB}}, InvalidPayloadError),
    "memo over 256 KiB": ({"memo": {"a": "x" * 256 * KIB}}, InvalidPayloadError),
    "note over 4 KiB": ({"note": "x" * (4 * KIB + 1)}, InvalidPayloadError),
    "65 labels": ({"labels": {str(k): "" for k in range(65)}}, InvalidPayloadError),
    "a label of 256 characters": ({"labels": {"a": "x" * 256}}, InvalidPayloadError),
    "a label that is no text": ({"labels": {"a": 1}}, InvalidPayloadError),
    "NaN": ({"args": [math.nan]}, InvalidPayloadError),
    "a set": ({"args": [{1}]}, InvalidPayloadError),
    "a tuple inside": ({"args": [(1,)]}, InvalidPayloadError),
    "a key that is no text": ({"kwargs": {1: 2}}, InvalidPayloadError),
    "bytes": ({"memo": {"a": b"x"}}, InvalidPayloadError),
    "a NUL character": ({"memo": {"a": "\x00"}}, InvalidPayloadError),
    "a lone surrogate": ({"memo": {"a": "\ud800"}}, InvalidPayloadError),
    "65 bits": ({"memo": {"a": 2**65}}, InvalidPayloadError),
    "args that are a text": ({"args": "eu"}, InvalidPayloadError),
    "kwargs that are a list": ({"kwargs": [1]}, InvalidPayloadError),
    "a queue with a blank": ({"queue": "no queue"}, InvalidIdError),
    "a queue of 129": ({"queue": "q" * 129}, InvalidIdError),
    "an unknown connection": ({"connection": "mars"}, InvalidInputError),
    "the queue of the links": ({"queue": "rqsched"}, InvalidInputError),
    "an unknown policy": ({"overlap": "maybe"}, InvalidPolicyError),
    "policies that contradict": ({"missed": "all"}, InvalidPolicyError),
    "a buffer limit without a buffer": ({"buffer_limit": 3}, InvalidPolicyError),
    "a retry that is no policy": ({"retry": 3}, InvalidPolicyError),
    "a retry with an unknown field": ({"retry": {"max_retry": 3}}, InvalidPolicyError),
    "environments in one text": ({"environments": "production"}, InvalidPolicyError),
    "an environment that is no text": ({"environments": [1]}, InvalidPolicyError),
    "jitter over a day": ({"jitter": timedelta(days=2)}, InvalidInputError),
    "jitter backwards": ({"jitter": -SECOND}, InvalidInputError),
    "spread over a day": ({"spread": "25h"}, InvalidInputError),
    "no run at all": ({"max_runs": 0}, InvalidInputError),
    "half a run": ({"max_runs": 1.5}, InvalidInputError),
    "no time": ({"timeout": 0}, InvalidInputError),
    "half a second": ({"timeout": 0.5}, InvalidInputError),
    "a timeout that is no length": ({"timeout": "soon"}, InvalidDurationError),
    "a timeout of yes": ({"timeout": True}, InvalidDurationError),
    "a timeout over 30 days": ({"timeout": "31d"}, InvalidInputError),
    "a target's timeout over 30 days": ({"target_timeout": timedelta(days=31)}, InvalidInputError),
    "no success": ({"max_successes": 0}, InvalidPolicyError),
    "a priority in words": ({"priority": "high"}, InvalidInputError),
    "an unknown executor": ({"executor": "cloud"}, InvalidInputError),
    "an owner with a blank": ({"owner": "no one"}, InvalidIdError),
    "an unknown zone": ({"timezone": "Mars/Olympus"}, InvalidSpecError),
    "an offset for a zone": ({"timezone": "+05:00"}, InvalidSpecError),
    "an option that does not exist": ({"colour": "red"}, InvalidTypeError),
}


def test_values_at_their_limits_are_accepted(env: Env) -> None:
    schedules = {name: env.create(name.replace(" ", "-"), **options) for name, options in FITS.items()}
    env.tick(2 * MINUTE)
    with every_row() as row:
        for name, schedule in schedules.items():
            with row(name):
                assert statuses(schedule) == ["pending"]


def test_values_beyond_their_limits_are_refused_and_nothing_is_written(env: Env) -> None:
    known = env.create("known", Cron("@hourly"))
    with every_row() as row:
        for name, (options, error) in TOO_MUCH.items():
            with row(name):
                with pytest.raises(error):
                    env.create("new", Cron("@hourly"), **options)
                with pytest.raises(error):
                    env.scheduler.upsert("new", "note", Cron("@hourly"), **options)
                with pytest.raises(error):
                    known.update(**options)
                assert [found.schedule_id for found in env.scheduler.list().items] == ["known"]
                assert types(known) == ["Created"]


@pytest.mark.parametrize("length", [90, 90.0, "90s", "1m30s", "PT1M30S", timedelta(seconds=90)], ids=repr)
def test_a_timeout_is_a_length_as_every_other(env: Env, length: Any) -> None:
    env.register("note", env._note, timeout=length)
    inherited = env.create("inherited")
    own = env.create("own", timeout=length, target_timeout=length)
    changed = env.create("changed").update(timeout=length, target_timeout=length)
    declared = env.scheduler.every("1h", name="declared", timeout=length)
    declared(test_a_timeout_is_a_length_as_every_other)
    env.scheduler.sync()

    declared_one = env.scheduler.get("declared")
    assert [one.describe().timeout for one in (inherited, own, changed, declared_one)] == [90] * 4
    assert [one.describe().policies["target_timeout"] for one in (own, changed)] == [90] * 2


MISSPELT = {
    "max_run": ("max_runs", ["create", "upsert", "update"]),
    "time_zone": ("timezone", ["create", "upsert", "update"]),
    "pause": ("paused", ["create", "upsert", "update"]),
    "idempotency": ("idempotency_key", ["create"]),
    "name_space": ("namespace", ["create", "upsert"]),
    "if_versions": ("if_version", ["update"]),
}


@pytest.mark.parametrize(("wrong", "meant", "calls"), [(wrong, *rest) for wrong, rest in MISSPELT.items()])
def test_an_unknown_option_names_the_nearest(env: Env, wrong: str, meant: str, calls: list[str]) -> None:
    known: Any = env.create("known")
    scheduler: Any = env.scheduler
    places = {"create": scheduler.create, "upsert": scheduler.upsert}
    for call in calls:
        with pytest.raises(InvalidTypeError, match=rf"^{wrong}: is not an option; did you mean {meant}\?$") as error:
            known.update(**{wrong: 3}) if call == "update" else places[call]("new", "note", MINUTE, **{wrong: 3})
        assert isinstance(error.value, TypeError)


def test_deeply_nested_payloads_are_refused(env: Env) -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InvalidPayloadError, match="nested deeper"):
        env.create(args=deep)


@pytest.mark.parametrize("make", [lambda one: [one] * 10, lambda one: {str(key): one for key in range(10)}])
def test_arguments_that_hold_the_same_list_many_times_are_refused_before_they_are_written_out(
    env: Env, make: Callable[[Any], Any]
) -> None:
    nested: Any = "x"
    for _ in range(30):  # 10 ** 30 texts
        nested = make(nested)
    with pytest.raises(InvalidPayloadError, match="has more than 262144 characters"):
        env.create(args=[nested])
    with pytest.raises(InvalidPayloadError, match="has more than 262144 characters"):
        env.create(args=["x" * 200_000] * 1_000_000)


def test_arguments_may_have_as_many_characters_as_the_limit_says(env: Env) -> None:
    room = 256 * 1024 - len('{"args":[],"kwargs":{"k":[1,{"a":null}]}}')
    args: Any = ["x" * (room - 2)]
    assert env.create("full", args=args, kwargs={"k": [1, {"a": None}]}).schedule_id == "full"
    with pytest.raises(InvalidPayloadError, match="the limit is 262144"):
        env.create("fuller", args=["x" * (room - 1)], kwargs={"k": [1, {"a": None}]})


BAD_CONTEXTS: dict[str, dict[str, Any]] = {
    "a principal that is no text": {"principal": 5},
    "a reason over 4 KiB": {"reason": "x" * 5000},
    "a context that is no JSON": {"context": {"at": timedelta(0)}},
    "a context that is a list": {"context": [1]},
}


def test_a_command_context_that_no_event_could_hold_is_refused() -> None:
    with every_row() as row:
        for name, values in BAD_CONTEXTS.items():
            with row(name), pytest.raises(InvalidPayloadError):
                CommandContext(**values)


def test_from_completion_refuses_policies_that_need_overlap(env: Env) -> None:
    spec = Every(HOUR, from_completion=True)
    for options in ({"overlap": "allow"}, {"jitter": SECOND}):
        with pytest.raises(InvalidPolicyError):
            env.create(spec=spec, **options)
