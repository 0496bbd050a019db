"""Notifications are written with their event, delivered by a worker, retried and given up."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.errors import InvalidInputError, UnknownWorkflowError
from rqsched.features.notifications import chain as delivering
from rqsched.features.notifications import store
from rqsched.features.notifications.decide import Delivery, DeliveryStatus
from rqsched.kernel.chain import execution
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.delays import DELIVERY_BACKOFF, PING_BACKOFF
from rqsched.kernel.decide.ids import DeliveryJobId
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store.tables import deliveries
from tests.support.env import HOUR, MINUTE, ONCE, SECOND, Env, MakeEnv, events, last, types
from tests.support.narrow import present
from tests.support.processes import wait_until
from tests.support.receiver import HANG, Receiver

SECRET = "a key of this test"


@pytest.fixture
def env(make_env: MakeEnv, database_url: str) -> Env:
    """An environment over each database in turn, whose processes can sign webhooks."""
    return make_env(database_url=database_url, webhook_secret=SECRET, notification_timeout=2)


def told(env: Env) -> list[dict[str, Any]]:
    """Register the workflows `alert` and `calm`, and return the list of messages that they receive."""
    messages: list[dict[str, Any]] = []
    env.register("alert", messages.append)
    env.register("calm", messages.append)
    return messages


def rows(env: Env) -> list[Delivery]:
    """Every delivery, oldest first."""

    def read(connection: sa.Connection) -> list[Delivery]:
        uids = connection.execute(sa.select(deliveries.c.uid).order_by(deliveries.c.created_at)).scalars()
        return [present(store.find(connection, uid)) for uid in uids]

    return env.runtime.database.read(read)


def attempt(runtime: Runtime, delivery: Delivery) -> DeliveryStatus | None:
    return delivering.execute(runtime, DeliveryJobId(delivery.uid, delivery.attempt))


def fail_once(env: Env, **options: Any) -> None:
    """A schedule whose first run fails; nothing is delivered yet."""
    env.failing = True
    run = env.fire_next(env.create(retry=ONCE, **options))
    with pytest.raises(RuntimeError):
        env.execute(run)


def test_the_workflow_on_failure_is_run_once_with_what_happened(env: Env) -> None:
    messages = told(env)
    env.failing = True
    schedule = env.create(retry=ONCE, on_failure="alert")

    run = env.run_next(schedule)

    [message] = messages
    assert (message["event"], message["sequence"]) == ("RunFailed", events(schedule, audit.RUN_FAILED)[0].sequence)
    assert message["data"] == last(schedule, "RunFailed") | {
        "schedule_id": "report",
        "schedule_uid": schedule.uid,
        "namespace": "default",
        "workflow": "note",
    }
    assert message["data"]["workflow_run_id"] == run.uid
    assert message["data"]["error"] == "RuntimeError: as the test wants it"
    assert [one.status for one in rows(env)] == ["succeeded"]


def test_the_workflow_on_recovery_is_run_at_the_first_success_after_a_failure(env: Env) -> None:
    messages = told(env)
    schedule = env.create(retry=ONCE, on_failure="alert", on_recovery="calm")

    for env.failing in (False, True, True, False, False):
        env.run_next(schedule)

    assert [message["event"] for message in messages] == ["RunFailed", "RunFailed", "RunSucceeded"]
    assert messages[-1]["data"]["consecutive_failures"] == 2


def test_a_workflow_names_who_is_told_of_its_failures_and_a_schedule_may_name_another(env: Env) -> None:
    messages = told(env)
    env.register("fragile", env._note, on_failure="alert")
    env.failing = True

    env.run_next(env.create("one", workflow="fragile", retry=ONCE))
    assert [message["data"]["schedule_id"] for message in messages] == ["one"]
    assert [one.destination for one in rows(env)] == ["alert"]

    env.run_next(env.create("two", workflow="fragile", retry=ONCE, on_failure="calm"))
    assert sorted(one.destination for one in rows(env)) == ["alert", "calm"]


def test_a_delivery_counts_as_no_run_and_no_success(env: Env) -> None:
    told(env)
    env.failing = True
    schedule = env.create(retry=ONCE, on_failure="alert", max_runs=2)

    env.run_next(schedule)

    state = env.state(schedule)
    assert (state.run_count, state.remaining, state.success_count, state.error_count) == (1, 1, 0, 1)
    assert len(schedule.runs().items) == 1


def test_a_delivery_is_written_with_its_event_and_enqueued_after_the_commit(env: Env) -> None:
    told(env)
    fail_once(env, on_failure="alert")

    [row] = rows(env)
    assert (row.status, row.kind, row.destination, row.event_type) == ("pending", "workflow", "alert", "RunFailed")
    assert env.queued() == [str(DeliveryJobId(row.uid, 1))]


def test_a_workflow_is_notified_on_its_own_queue(env: Env) -> None:
    env.register("alert", lambda message: None, queue="alerts", timeout=77)
    fail_once(env, on_failure="alert")

    [row] = rows(env)
    assert (row.queue, row.timeout) == ("alerts", 77)
    assert env.queued("alerts") == [str(DeliveryJobId(row.uid, 1))]


def test_a_delivery_is_attempted_once_however_often_its_job_is_delivered(env: Env) -> None:
    messages = told(env)
    fail_once(env, on_failure="alert")
    [row] = rows(env)

    assert attempt(env.runtime, row) is DeliveryStatus.SUCCEEDED
    assert attempt(env.runtime, row) is None
    assert len(messages) == 1


def test_a_failed_attempt_is_repeated_after_growing_delays_and_then_given_up(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(message: dict[str, Any]) -> None:
        raise ValueError("no\nnot now")

    env.register("alert", refuse)
    fail_once(env, on_failure="alert")
    waits = []
    for _ in range(DELIVERY_BACKOFF.max_retries):
        [row] = rows(env)
        with pytest.raises(ValueError, match="no"):
            attempt(env.runtime, row)
        [row] = rows(env)
        waits.append((row.due_at - env.clock.now()) // timedelta(seconds=15))
        assert (row.status, row.error) == ("pending", "ValueError: no")
        env.clock.advance(row.due_at - env.clock.now())
    with pytest.raises(ValueError, match="no"):
        attempt(env.runtime, row)

    [row] = rows(env)
    assert waits == [1, 3, 9, 27, 81, 240, 240, 240, 240]
    assert (row.status, row.attempt, row.ended_at) == ("failed", 10, env.clock.now())
    assert env.queued() == [str(DeliveryJobId(row.uid, 1))]  # the first one's; later ones come from reconcile
    failures = [one for one in caplog.records if one.__dict__.get("action") == "delivery_failed"]
    assert [one.levelname for one in failures[-2:]] == ["WARNING", "ERROR"]


def test_reconcile_enqueues_a_delivery_whose_job_vanished_and_one_whose_next_attempt_is_due(env: Env) -> None:
    messages = told(env)
    fail_once(env, on_failure="alert")
    env.redis.flushall()

    assert env.recover().notifications == 1
    assert env.recover().notifications == 0
    env.work()
    assert len(messages) == 1

    def refuse(message: dict[str, Any]) -> None:
        raise ValueError("no")

    env.register("alert", refuse)
    env.run_next(env.scheduler.get("report"))
    env.register("alert", messages.append)
    assert env.recover().notifications == 0
    env.advance(MINUTE)
    assert env.recover().notifications == 1
    env.work()
    assert len(messages) == 2


def test_an_attempt_whose_process_vanished_is_repeated(env: Env) -> None:
    messages = told(env)
    fail_once(env, on_failure="alert")
    [row] = rows(env)
    now = env.clock.now()
    job = DeliveryJobId(row.uid, 1)
    token = "01KF0000000000000000000009"
    database = env.runtime.database
    assert database.transact(lambda c: store.claim(c, job, token, worker="gone", now=now, until=now + HOUR))

    assert env.recover().notifications == 0
    env.advance(HOUR)
    assert env.recover().notifications == 1
    [lost] = rows(env)
    assert (lost.status, lost.attempt, lost.error) == ("pending", 2, "its process vanished")

    env.advance(MINUTE)
    env.recover()
    env.work()
    assert len(messages) == 1


def test_a_process_that_lost_its_delivery_says_nothing_about_it_any_more(env: Env) -> None:
    told(env)
    fail_once(env, on_failure="alert")
    [row] = rows(env)
    now = env.clock.now()
    old, new = "01KF0000000000000000000008", "01KF0000000000000000000009"
    database = env.runtime.database
    first, second = DeliveryJobId(row.uid, 1), DeliveryJobId(row.uid, 2)
    database.transact(lambda c: store.claim(c, first, old, worker="slow", now=now, until=now))
    env.recover()
    env.advance(MINUTE)
    database.transact(lambda c: store.claim(c, second, new, worker="fast", now=now, until=now))

    assert not database.transact(lambda c: store.succeed(c, row, old, now))
    assert database.transact(lambda c: store.fail(c, row, old, "late", now)) is None
    assert rows(env)[0].status is DeliveryStatus.RUNNING
    assert database.transact(lambda c: store.succeed(c, row, new, now))


def test_a_webhook_is_signed_and_stamped(env: Env, hook: Receiver) -> None:
    env.failing = True
    schedule = env.create(retry=ONCE, notifications={"webhook": f"{hook.url}/hook"})

    env.run_next(schedule)

    [request] = hook.got
    headers, body = request["headers"], request["body"]
    signed = f"{headers['rqsched-timestamp']}.{body}".encode()
    assert request["path"] == "/hook"
    assert headers["rqsched-signature"] == f"sha256={hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()}"
    assert (headers["rqsched-event"], headers["content-type"]) == ("RunFailed", "application/json")
    message = json.loads(body)
    assert (message["id"], message["event"]) == (headers["rqsched-delivery"], "RunFailed")
    assert message["data"]["error"] == "RuntimeError: as the test wants it"


def test_a_webhook_gets_the_events_it_asks_for(env: Env, hook: Receiver) -> None:
    wanted = {"webhook": hook.url, "events": ["ScheduleTriggered", "SchedulePaused"]}
    schedule = env.create(retry=ONCE, notifications=wanted)

    env.failing = True
    env.run_next(schedule)
    schedule.pause()
    env.work()

    assert [json.loads(one["body"])["event"] for one in hook.got] == ["ScheduleTriggered", "SchedulePaused"]


def test_a_webhook_of_the_settings_is_told_of_every_schedule(make_env: MakeEnv, hook: Receiver) -> None:
    env = make_env(webhook_url=f"{hook.url}/all", webhook_secret=SECRET)
    env.failing = True
    env.run_next(env.create(retry=ONCE))
    assert hook.paths == ["/all"]


def test_a_process_that_notifies_nobody_writes_no_notification_and_sends_none_that_waits(
    make_env: MakeEnv, database_url: str, hook: Receiver
) -> None:
    """A process of a copy is set so, because its schedules name the receivers of the original."""
    notifications = {"webhook": f"{hook.url}/hook", "heartbeat": f"{hook.url}/ping"}
    of_original = make_env(database_url=database_url, webhook_secret=SECRET)
    fail_once(of_original, notifications=notifications)
    waiting = [one for one in rows(of_original) if one.status == "pending"]
    assert waiting
    env = make_env(database_url=database_url, webhook_secret=SECRET, notify=False)
    before = hook.paths

    assert [attempt(env.runtime, one) for one in waiting] == [None] * len(waiting)
    env.redis.flushdb()
    env.recover(deep=True)
    env.failing = True
    env.run_next(env.create("second", retry=ONCE, notifications=notifications))
    env.work()

    assert hook.paths == before
    assert [one for one in rows(env) if one.status == "pending"] == waiting


@pytest.mark.parametrize("host", ["127.0.0.1%23.example.com", "a..example.com", "[::1%25.example.com]"])
def test_a_stored_url_whose_host_is_not_plain_is_not_called(make_env: MakeEnv, host: str) -> None:
    env = make_env(webhook_secret=SECRET, webhook_url=f"http://{host}/hook")
    env.failing = True
    env.run_next(env.create(retry=ONCE))
    assert "must have a plain host" in present(rows(env)[0].error)


def test_a_redirect_is_not_followed(env: Env, hook: Receiver) -> None:
    hook.answer(f"redirect:{hook.url}/inside")
    env.failing = True
    env.run_next(env.create(retry=ONCE, notifications={"webhook": f"{hook.url}/hook"}))

    assert hook.paths == ["/hook"]
    assert rows(env)[0].error == f"{hook.url}/... answers 302"


def test_a_receiver_that_refuses_gets_the_message_again(env: Env, hook: Receiver) -> None:
    hook.answer("503")
    env.failing = True
    env.run_next(env.create(retry=ONCE, notifications={"webhook": hook.url}))
    assert rows(env)[0].error == f"{hook.url}/... answers 503"

    hook.answer("204")
    env.advance(MINUTE)
    env.recover()
    env.work()
    assert [one["headers"]["rqsched-delivery"] for one in hook.got] == [rows(env)[0].uid] * 2
    assert rows(env)[0].status is DeliveryStatus.SUCCEEDED


def test_a_receiver_that_hangs_is_given_up_in_time_and_others_for_it_wait(env: Env, hook: Receiver) -> None:
    hook.answer(HANG)
    env.failing = True
    for name in ("one", "two", "three"):
        env.create(name, retry=ONCE, notifications={"webhook": hook.url})
    env.tick()
    env.work()

    assert len(hook.got) == 1
    found = sorted(rows(env), key=lambda one: -one.attempt)
    assert [(one.status, one.attempt) for one in found] == [("pending", 2), ("pending", 1), ("pending", 1)]
    assert present(found[0].error).startswith("no answer: ")
    assert {one.due_at for one in found} == {found[0].due_at}

    hook.answer("200")
    env.advance(MINUTE)
    env.recover()
    env.work()
    assert {one.status for one in rows(env)} == {DeliveryStatus.SUCCEEDED}


def test_a_heartbeat_is_pinged_at_the_start_and_the_end_of_each_run(env: Env, hook: Receiver) -> None:
    def run() -> None:
        wait_until(lambda: hook.paths[-1:] == [started], what="the ping of the start, while the run goes on")
        if env.failing:
            raise RuntimeError("as the test wants it")

    started, succeeded, failed = "/ping/1/start?create=1", "/ping/1?create=1", "/ping/1/fail?create=1"

    env.register("watched", run)
    wanted = {"heartbeat": f"{hook.url}/ping/1?create=1"}
    schedule = env.create(workflow="watched", retry=ONCE, notifications=wanted)

    env.run_next(schedule)
    env.failing = True
    env.run_next(schedule)

    assert hook.paths == [started, succeeded, started, failed]
    assert hook.got[-1]["body"] == "RuntimeError: as the test wants it"
    assert rows(env) == []


def test_a_start_is_told_before_the_end_of_however_short_a_run(env: Env, hook: Receiver) -> None:
    schedule = env.create(notifications={"heartbeat": hook.url})
    for _ in range(3):
        env.run_next(schedule)
    assert hook.paths == ["/start", "/"] * 3
    assert rows(env) == []


def test_a_start_waits_for_a_worker_of_the_queue_of_notifications(make_env: MakeEnv, hook: Receiver) -> None:
    env = make_env(notification_queue="alerts")
    env.run_next(env.create(notifications={"heartbeat": hook.url}))
    assert hook.paths == []
    assert {one.event_type for one in rows(env)} == {"started", "succeeded"}
    assert env.redis.llen("rq:queue:alerts") == 2


def test_a_blocked_run_has_not_started_however_often_it_is_claimed(env: Env, hook: Receiver) -> None:
    def gone() -> None: ...

    env.register("moved", gone)
    schedule = env.create(workflow="moved", notifications={"heartbeat": hook.url})
    env.runtime.workflows.remove("moved")
    run = env.run_next(schedule)
    for _ in range(3):
        env.advance(MINUTE)
        env.dispatch()
        env.work()
    assert (run.refresh().status, run.is_blocked) == ("pending", True)
    assert (hook.paths, rows(env)) == ([], [])

    env.register("moved", gone)
    env.advance(MINUTE)
    env.dispatch()
    env.work()
    assert run.refresh().status == "succeeded"
    assert hook.paths == ["/start", "/"]


def test_the_start_of_a_workflow_that_is_imported_by_its_path_is_told(env: Env, hook: Receiver) -> None:
    env.run_next(env.create(workflow="gc.collect", notifications={"heartbeat": hook.url}))
    assert hook.paths == ["/start", "/"]


def test_a_receiver_that_hangs_holds_up_no_run(make_env: MakeEnv, hook: Receiver) -> None:
    env = make_env(notification_timeout=60)
    hook.answer(HANG)
    run = env.fire_next(env.create(notifications={"heartbeat": hook.url}))

    env.execute(run)

    assert run.refresh().status == "succeeded"
    assert [one.status for one in rows(env) if one.event_type == "started"] == [DeliveryStatus.RUNNING]


def test_a_start_whose_process_vanished_is_not_told_after_the_end(env: Env, hook: Receiver) -> None:
    run = env.fire_next(env.create(notifications={"heartbeat": hook.url}))
    claim = env.claim(run)
    [start], now = rows(env), env.clock.now()
    job, token = DeliveryJobId(start.uid, 1), "01KF0000000000000000000009"
    database = env.runtime.database
    assert database.transact(lambda c: store.claim(c, job, token, worker="gone", now=now, until=now + HOUR))

    execution._complete(env.runtime, claim, AttemptResult(AttemptOutcome.SUCCEEDED))
    env.work()

    assert hook.paths == ["/"]
    assert rows(env) == []


def test_a_heartbeat_of_the_settings_names_the_schedule(make_env: MakeEnv, hook: Receiver) -> None:
    env = make_env(heartbeat_url=hook.url + "/key/{namespace}-{schedule_id}")
    env.run_next(env.create("a:b"))
    assert hook.paths == ["/key/default-a%3Ab/start", "/key/default-a%3Ab"]


def test_a_ping_that_comes_late_is_left_out_when_a_later_one_arrived(env: Env, hook: Receiver) -> None:
    hook.answer("500")
    env.failing = True
    schedule = env.create(retry=ONCE, notifications={"heartbeat": hook.url})
    env.run_next(schedule)
    assert {(one.event_type, one.status) for one in rows(env)} == {
        ("started", DeliveryStatus.PENDING),
        ("failed", DeliveryStatus.PENDING),
    }

    hook.answer("200")
    env.failing = False
    env.run_next(schedule, 10 * SECOND + MINUTE)
    assert hook.paths == ["/start", "/fail", "/start", "/"]
    assert rows(env) == []


def test_a_ping_is_given_up_early(env: Env, hook: Receiver) -> None:
    hook.answer("500")
    schedule = env.create(retry=ONCE, notifications={"heartbeat": hook.url})
    env.run_next(schedule)
    for _ in range(PING_BACKOFF.max_retries):
        env.advance(HOUR)
        env.recover()
        env.work()
    assert {(one.event_type, one.status) for one in rows(env)} >= {("succeeded", DeliveryStatus.FAILED)}


def test_a_lost_run_and_a_retry_are_told_where_asked(env: Env, hook: Receiver) -> None:
    env.failing = True
    wanted = {"webhook": hook.url, "events": ["RunRetrying"]}
    env.run_next(env.create(notifications=wanted))
    assert [json.loads(one["body"])["event"] for one in hook.got] == ["RunRetrying"]


def test_a_schedule_without_a_success_in_time_is_overdue_once(env: Env, hook: Receiver) -> None:
    messages = told(env)
    env.failing = True
    schedule = env.create(retry=ONCE, on_failure="alert", on_recovery="calm", expect_success_within="90s", max_runs=9)
    assert env.recover().overdue == 0
    env.advance(2 * MINUTE)

    assert env.recover().overdue == 1
    assert env.recover().overdue == 0
    state = env.state(schedule)
    assert (state.overdue_since, state.overdue_at) == (env.clock.now() - timedelta(seconds=30), None)
    assert last(schedule, "Overdue") == {
        "overdue_since": "2026-01-15T12:01:30Z",
        "expect_success_within_seconds": 90.0,
        "consecutive_failures": 0,
    }
    env.work()
    assert [message["event"] for message in messages] == ["ScheduleOverdue"]

    env.failing = False
    env.deliver(schedule.refresh())
    env.work()
    state = env.state(schedule)
    assert (state.overdue_since, state.last_success_at) == (None, env.clock.now())
    assert state.overdue_at == env.clock.now() + timedelta(seconds=90)
    assert [message["event"] for message in messages] == ["ScheduleOverdue", "RunSucceeded"]
    assert types(schedule)[-1] == "RunSucceeded"


def test_a_paused_schedule_is_not_overdue_and_counts_anew_when_it_is_resumed(env: Env) -> None:
    schedule = env.create(expect_success_within=timedelta(minutes=2))
    schedule.pause()
    env.advance(HOUR)
    assert env.recover().overdue == 0
    schedule.resume()
    env.recover()
    assert env.state(schedule).overdue_at == env.clock.now() + 2 * MINUTE


def test_a_dead_schedule_is_overdue_in_the_end(env: Env) -> None:
    env.failing = True
    schedule = env.create(retry=replace(ONCE, then="dead"), expect_success_within=HOUR)
    env.run_next(schedule)
    assert env.state(schedule).status == "dead"
    env.advance(HOUR)
    assert env.recover().overdue == 1


def slow(env: Env, *looks: timedelta) -> list[int]:
    """Register a workflow `slow` that makes a pass after each time, and return the passes' counts of long runs."""
    found: list[int] = []

    def take() -> None:
        for span in looks:
            env.advance(span)
            found.append(env.recover().long)

    env.register("slow", take)
    return found


def test_a_run_that_takes_longer_than_expected_is_told_once_and_its_success_too(env: Env) -> None:
    messages, found = told(env), slow(env, 90 * SECOND, SECOND, MINUTE)
    schedule = env.create(workflow="slow", expect_duration="90s", on_failure="alert", on_recovery="calm")

    run = env.run_next(schedule)

    assert found == [0, 1, 0]
    assert last(schedule, "RunLong") == {
        "workflow_instance_id": run.instance_id,
        "workflow_run_id": run.uid,
        "occurrence_time": "2026-01-15T12:01:00Z",
        "attempt": 1,
        "duration_seconds": 91.0,
        "expect_duration_seconds": 90.0,
    }
    assert (run.status, run.long_at) == ("succeeded", env.clock.now() - MINUTE)
    assert [message["event"] for message in messages] == ["RunLong", "RunSucceeded"]
    assert {one.destination for one in rows(env)} == {"alert", "calm"}


def test_a_run_that_ends_between_two_passes_is_told_with_its_end(env: Env, hook: Receiver) -> None:
    env.register("slow", lambda: env.advance(2 * SECOND))
    schedule = env.create(workflow="slow", expect_duration=SECOND, notifications={"webhook": hook.url})

    env.run_next(schedule)
    env.work()

    assert [json.loads(one["body"])["event"] for one in hook.got] == ["RunLong"]
    assert types(schedule)[-1] == "RunLong", "it is over already: there is nothing to take back"
    assert env.recover().long == 0


def test_a_run_that_takes_as_long_as_expected_is_told_to_nobody(env: Env) -> None:
    slow(env, MINUTE)
    schedule = env.create(workflow="slow", expect_duration=MINUTE)
    run = env.run_next(schedule)
    assert (run.status, run.long_at) == ("succeeded", None)
    assert not {"RunLong", "RunSucceeded"} & set(types(schedule))


def test_nothing_is_expected_of_a_backfilled_run_nor_of_one_that_waits(env: Env) -> None:
    found = slow(env, HOUR)
    schedule = env.create(workflow="slow", expect_duration=MINUTE)
    env.advance(HOUR)
    schedule.backfill(env.clock.now() - 2 * MINUTE, env.clock.now() - MINUTE)
    waiting = present(schedule.trigger(overlap="allow_all").run)
    env.advance(HOUR)
    assert env.recover().long == 0
    assert waiting.refresh().long_at is None

    waiting.cancel()
    env.work()

    assert set(found) == {0}
    assert "RunLong" not in types(schedule)


def test_a_run_that_is_retried_is_told_once_and_anew_when_somebody_runs_it_again(env: Env) -> None:
    found: list[int] = []

    def fail() -> None:
        env.advance(2 * MINUTE)
        found.append(env.recover().long)
        raise RuntimeError("at last")

    env.register("fails", fail)
    schedule = env.create(workflow="fails", expect_duration=MINUTE, retry={"max_retries": 1, "base": 1})
    run = env.run_next(schedule)
    assert run.status == "retrying"
    env.advance(SECOND)
    env.dispatch()
    env.work()
    assert (found, run.refresh().status) == ([1, 0], "failed")

    run.retry()
    assert run.refresh().long_at is None
    env.work()

    assert found == [1, 0, 1]


def test_a_purge_takes_the_deliveries_with_it(env: Env) -> None:
    told(env)
    fail_once(env, on_failure="alert")
    env.scheduler.get("report").delete(purge=True)
    assert rows(env) == []
    env.work()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on_failure": "a b"}, "on_failure"),
        ({"on_failure": 7}, "on_failure"),
        ({"expect_success_within": timedelta(0)}, "expect_success_within"),
        ({"expect_success_within": "soon"}, "expect_success_within"),
        ({"expect_duration": timedelta(0)}, "expect_duration"),
        ({"expect_duration": timedelta(days=3661)}, "expect_duration"),
        ({"notifications": "https://example.com"}, "notifications"),
        ({"notifications": {"mail": "a@b"}}, "notifications.mail"),
        ({"notifications": {"webhook": "ftp://example.com"}}, "notifications.webhook"),
        ({"notifications": {"webhook": "https://me:secret@example.com"}}, "notifications.webhook"),
        ({"notifications": {"heartbeat": "https:///path"}}, "notifications.heartbeat"),
        ({"notifications": {"webhook": "https://example.com", "events": ["Fired"]}}, "notifications.events"),
        ({"notifications": {"sentry": "a b"}}, "notifications.sentry"),
    ],
)
def test_an_unknown_shape_is_refused_before_anything_is_written(env: Env, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        env.create(**options)
    assert named in (refused.value.field, *str(refused.value).split())
    assert env.scheduler.list().items == []


def test_a_workflow_that_nobody_registered_cannot_be_notified(env: Env) -> None:
    with pytest.raises(UnknownWorkflowError, match="nobody"):
        env.create(on_failure="nobody")
    schedule = env.create()
    with pytest.raises(UnknownWorkflowError, match="nobody"):
        schedule.update(on_recovery="nobody")


def test_a_webhook_without_a_secret_is_refused(make_env: MakeEnv) -> None:
    with pytest.raises(InvalidInputError, match="RQSCHED_WEBHOOK_SECRET"):
        make_env().create(notifications={"webhook": "https://example.com"})
