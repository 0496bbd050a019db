"""The decisions where the five documents differ (docs/proofs/seeds.md): one short story per row, on both databases.

The files beside this one prove the details; here each row is seen once as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from rqsched import Cron, Every, OverlapPolicy, Spec, current_run
from rqsched.api.description import Description
from rqsched.errors import InvalidIdError, InvalidPayloadError, ScheduleExistsError, ScheduleStateError
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.chain.fire import fire
from rqsched.kernel.decide.model import ScheduleStatus
from tests.support.env import HOUR, MINUTE, NOON, SECOND, Env, events, last, newest, occurrences, statuses, types
from tests.support.narrow import present

Story = Callable[[Env], None]
NOW = timedelta(0)

ROWS = (
    "identity", "statuses", "create / upsert / sync", "update", "positions", "pause", "resume", "missed", "cadence",
    "interval anchor", "cron, DST, timezone", "jitter", "overlap", "buffered", "cancel_other", "a skip",
    "manual trigger", "max_runs", "backfill", "run ids", "routing", "version", "payload", "sync prune", "audit",
    "signals", "naming",
)  # fmt: skip
"""The rows in the table's order; `fan-out` has a section of its own."""
STORIES: dict[str, Story] = {}


def row(name: str) -> Callable[[Story], Story]:
    def add(story: Story) -> Story:
        STORIES[name] = story
        return story

    return add


@row("identity")
def _(env: Env) -> None:
    first = env.create("a.B_c:d-1")
    with pytest.raises(ScheduleExistsError):
        env.create("a.B_c:d-1")
    with pytest.raises(InvalidIdError):
        env.create("-a")
    env.run_due()
    first.delete()
    second = env.create("a.B_c:d-1")
    assert (len(second.uid), second.uid != first.uid, second.run_count, types(second)) == (26, True, 0, ["Created"])
    assert types(first)[-1] == "Deleted", "the history of the first stays"


@row("statuses")
def _(env: Env) -> None:
    assert set(ScheduleStatus) == {"active", "paused", "done", "dead", "deleted"}
    schedule = env.create(max_runs=1)
    env.run_due()
    assert schedule.refresh().status == "done"
    assert schedule.restart().status == "active"
    assert schedule.delete().status == "deleted"


@row("create / upsert / sync")
def _(env: Env) -> None:
    assert env.scheduler.upsert("a", "note", Every("1h"))[1] == "created"
    env.advance(MINUTE)
    handle, outcome = env.scheduler.upsert("a", "note", Every("1h"), queue="high")
    assert (outcome, handle.next_run_at) == ("updated", NOON + HOUR)
    assert env.scheduler.upsert("a", "note", Every("1h"), queue="high")[1] == "unchanged"
    handle.refresh().pause()
    assert env.scheduler.sync([Declaration("a", "note", Every("1h"))]).updated == ["a"]
    assert handle.refresh().status == "paused"


@row("update")
def _(env: Env) -> None:
    schedule = env.create(spec=Every("1h"))
    env.advance(HOUR + SECOND)
    schedule.update(queue="high")
    assert schedule.next_run_at == NOON + HOUR
    schedule.update(spec=Every("2h"), jitter=MINUTE)
    env.tick(MINUTE)
    assert occurrences(schedule) == [NOON + HOUR], "what was due is not dropped"


@row("positions")
def _(env: Env) -> None:
    schedule = env.create()
    positions = [schedule.position]
    old = f"sched-{schedule.uid}-n0-rc0"
    for step in (env.tick, schedule.pause, schedule.resume, lambda: schedule.update(spec=Every("3m"))):
        step()
        positions.append(schedule.refresh().position)
    assert positions == [0, 1, 2, 3, 4]
    schedule.update(queue="high")
    assert schedule.position == 4, "neither status nor next time changed"
    env.advance(HOUR)
    assert [fired.outcome for fired in fire(env.runtime, [old])] == ["stale"]
    assert len(statuses(schedule)) == 1


@row("pause")
def _(env: Env) -> None:
    schedule = env.create(overlap="buffer_one")
    env.tick()
    env.tick()
    env.advance(MINUTE)
    schedule.pause("note", reason="reason")
    assert (schedule.next_run_at, schedule.note, schedule.status_reason) == (None, "note", "reason")
    assert last(schedule, "TriggerSkipped")["reason"] == "disabled"
    with pytest.raises(ScheduleStateError):
        schedule.pause()
    env.execute_pending()
    assert statuses(schedule) == ["succeeded", "buffered"], "runs go on, waiting ones wait"


@row("resume")
def _(env: Env) -> None:
    default, once = env.create("default", Every("10m")), env.create("once", Every("10m"), on_resume="once")
    for schedule in (default, once):
        schedule.pause()
    env.advance(25 * MINUTE)
    assert (default.resume().next_run_at, once.resume().next_run_at) == (NOON + 30 * MINUTE, NOON + 20 * MINUTE)
    assert once.due_at == env.clock.now(), "immediately"
    default.pause()
    env.advance(10 * MINUTE)
    assert default.resume("once").next_run_at == NOON + 30 * MINUTE, "per call, too"


@row("missed")
def _(env: Env) -> None:
    fires_once = env.create("fires-once")
    skips = env.create("skips", missed="skip")
    fires_all = env.create("fires-all", missed="all", overlap="allow")
    old = env.create("old", fire_within=30 * SECOND)
    env.tick(5 * MINUTE + 10 * SECOND)
    assert occurrences(fires_once) == [NOON + MINUTE]
    assert last(fires_once, "Missed")["count"] == 4
    assert occurrences(skips) == [NOON + 5 * MINUTE]
    assert occurrences(fires_all) == [NOON + k * MINUTE for k in range(1, 6)]
    assert occurrences(old) == [NOON + 5 * MINUTE]


@row("cadence")
def _(env: Env) -> None:
    schedule = env.create(spec=Every("10m"), overlap="allow")
    env.tick(13 * MINUTE)
    schedule.trigger()
    assert schedule.refresh().next_run_at == NOON + 20 * MINUTE
    env.tick(3 * 24 * HOUR)
    assert last(schedule, "Missed")["count"] == 3 * 24 * 6 - 1
    assert schedule.refresh().next_run_at == NOON + 3 * 24 * HOUR + 20 * MINUTE


@row("interval anchor")
def _(env: Env) -> None:
    env.advance(17 * SECOND)
    anchored = env.create("anchored", Every("10m"))
    aligned = env.create("aligned", Every("10m", offset="0s"))
    assert (anchored.next_run_at, aligned.next_run_at) == (NOON + 10 * MINUTE + 17 * SECOND, NOON + 10 * MINUTE)
    completion = env.create("completion", Every("10m", from_completion=True))
    env.tick(12 * MINUTE)
    assert (completion.refresh().next_run_at, completion.state.awaiting_run_uid) == (None, newest(completion).uid)
    env.advance(MINUTE)
    env.execute_pending()
    assert completion.refresh().next_run_at == env.clock.now() + 10 * MINUTE


@row("cron, DST, timezone")
def _(env: Env) -> None:
    env.clock.set(datetime.fromisoformat("2026-03-07T12:00+00:00"))
    schedule = env.create(spec=Cron("30 2 * * *"), timezone="America/New_York", dst_gap="skip")
    assert schedule.upcoming(2) == [datetime.fromisoformat(f"2026-03-{day}T02:30-04:00") for day in ("09", "10")]


@row("jitter")
def _(env: Env) -> None:
    schedule = env.create(jitter=10 * SECOND, spec=Every("1m"))
    assert schedule.due_at is not None
    assert schedule.next_run_at is not None
    delay = schedule.due_at - schedule.next_run_at
    assert NOW <= delay <= 10 * SECOND
    assert schedule.upcoming(1) == [schedule.due_at]
    env.tick(MINUTE + delay)
    assert newest(schedule).occurrence_at == NOON + MINUTE, "nominal and due are stored apart"
    assert newest(schedule).due_at == NOON + MINUTE + delay


@row("overlap")
def _(env: Env) -> None:
    expected = {
        "skip": ["pending"],
        "buffer_one": ["pending", "buffered"],
        "buffer_all": ["pending", "buffered", "buffered"],
        "allow_all": ["pending"] * 3,
        "cancel_other": ["cancelled", "cancelled", "pending"],
        "terminate_other": ["terminated", "terminated", "pending"],
    }
    aliases = {"allow": "allow_all", "cancel_previous": "cancel_other", "enqueue": "buffer_all"}
    assert set(expected) == set(OverlapPolicy)
    for policy in [*expected, *aliases]:
        env.create(policy, overlap=policy)
    for _ in range(3):
        env.tick()
    for policy in [*expected, *aliases]:
        assert statuses(env.scheduler.get(policy)) == expected[aliases.get(policy, policy)], policy


@row("buffered")
def _(env: Env) -> None:
    schedule = env.create(overlap="buffer_all")
    for _ in range(3):
        env.tick()
    assert types(schedule) == ["Created", "Triggered", "Buffered", "Buffered"]
    env.execute_pending()
    assert [run.occurrence_at for run in env.seen] == [NOON + k * MINUTE for k in (1, 2, 3)], "first in, first out"
    env.tick()
    env.tick()
    schedule.delete()
    assert (newest(schedule).status, last(schedule, "Deleted")["dropped_buffered"]) == ("cancelled", 1)


@row("cancel_other")
def _(env: Env) -> None:
    steps: list[str] = []

    def slow() -> None:
        if not steps:
            env.tick()  # the next occurrence comes while this one runs
        steps.append("begun")
        current_run().checkpoint()
        steps.append("ended")

    env.register("slow", slow)
    schedule = env.create(workflow="slow", overlap="cancel_other")
    env.run_due()
    assert (steps, statuses(schedule)) == (["begun", "begun", "ended"], ["cancelled", "succeeded"])
    assert last(schedule, "Triggered")["cancelled_run_ids"] == [schedule.run("1").uid]


@row("a skip")
def _(env: Env) -> None:
    schedule = env.create()
    env.tick()
    env.tick()
    assert (schedule.refresh().skipped_count, schedule.last_skip_reason) == (1, "overlap_policy_skip")
    assert schedule.last_skipped_at == env.clock.now()
    assert schedule.next_run_at == NOON + 3 * MINUTE
    event = last(schedule, "TriggerSkipped")
    assert (event["occurrence_time"], event["blocking_run_id"]) == ("2026-01-15T12:02:00Z", newest(schedule).uid)


@row("manual trigger")
def _(env: Env) -> None:
    schedule = env.create(overlap="allow")
    run = present(schedule.trigger(idempotency_key="k").run)
    again = schedule.trigger(idempotency_key="k").run
    assert (run.kind, again and again.uid) == ("manual", run.uid)
    schedule.pause()
    assert schedule.trigger().reason == "status_not_triggerable"
    assert schedule.trigger(force=True)


@row("max_runs")
def _(env: Env) -> None:
    schedule = env.create(max_runs=3, overlap="allow")
    deleted = env.create("deleted", max_runs=1, on_max_runs="delete")
    schedule.backfill(NOON - MINUTE, NOON)
    schedule.trigger()
    assert schedule.remaining_runs == 1
    env.run_due()
    assert (schedule.refresh().status, schedule.status_reason) == ("done", "max_runs_exhausted")
    assert deleted.refresh().status == "deleted"
    ends = env.create("ends", Spec("* * * * *", end_at=env.clock.now() + 90 * SECOND))
    env.run_due()
    assert (ends.refresh().status, ends.status_reason) == ("done", "spec_ended")


@row("backfill")
def _(env: Env) -> None:
    schedule = env.create(spec=Cron("* * * * *"))
    schedule.pause()
    dry = schedule.backfill(NOON - 3 * MINUTE, NOON + HOUR, dry_run=True)
    assert [r.outcome for r in dry.rows] == ["would_start"] * 3
    done = schedule.backfill(NOON - 3 * MINUTE, NOON + HOUR)
    assert [r.outcome for r in done.rows] == ["started", "buffered", "buffered"]
    again = schedule.backfill(NOON - 3 * MINUTE, NOON + HOUR)
    assert [r.outcome for r in again.rows] == ["already_run"] * 3


@row("run ids")
def _(env: Env) -> None:
    schedule = env.create(overlap="allow")
    env.tick()
    live = newest(schedule)
    manual = present(schedule.trigger().run)
    schedule.backfill(NOON, NOON + SECOND)
    fraction = env.create("fraction", Every(timedelta(milliseconds=61_500)))
    env.tick(2 * MINUTE)
    assert live.instance_id == "schedule:report:2026-01-15T12:01:00Z"
    assert manual.instance_id == f"schedule:report:manual:{manual.uid.lower()}"
    assert schedule.run("3").instance_id == "schedule:report:backfill:2026-01-15T12:00:00Z"
    assert newest(fraction).instance_id == "schedule:fraction:2026-01-15T12:02:01.500000Z"
    assert f"run-{live.uid}-a1-d1" in env.queued()


@row("routing")
def _(env: Env) -> None:
    env.register("routed", lambda: None, queue="w", timeout=5)
    routes: dict[str, dict[str, Any]] = {"own": {"queue": "s"}, "workflow": {}, "priority": {"priority": 1}}
    for name, options in routes.items():
        env.create(name, workflow="routed", **options)
    env.create("settings")
    env.tick()
    assert [len(env.queued(queue)) for queue in ("s", "w", "default")] == [1, 2, 1]
    first = newest(env.scheduler.get("priority"))
    assert env.queued("w")[0] == f"run-{first.uid}-a1-d1"


@row("version")
def _(env: Env) -> None:
    schedule = env.create()

    async def redeployed() -> str:
        return "new"

    env.register("note", redeployed)
    env.run_due()
    assert newest(schedule).result == "new"
    env.runtime.workflows.remove("note")
    env.run_due()
    run = newest(schedule)
    assert (run.status, run.is_blocked, run.error) == ("pending", True, None)
    assert "no workflow named 'note' is registered" in present(run.blocked_reason)


@row("payload")
def _(env: Env) -> None:
    schedule = env.create(args=["ü" * 100], kwargs={"deep": [{"a": None}]})
    env.tick()
    raw = b"".join(env.redis.dump(key) or b"" for key in env.redis.scan_iter("rq:job:run-*"))
    assert b"deep" not in raw, "only uids travel through Redis"
    env.execute_pending()
    assert env.calls == [(("ü" * 100,), {"deep": [{"a": None}]})]
    with pytest.raises(InvalidPayloadError):
        schedule.update(args=["x" * 256 * 1024])


@row("sync prune")
def _(env: Env) -> None:
    env.create("by-hand")
    env.scheduler.sync([Declaration("one", "note", MINUTE), Declaration("two", "note", MINUTE)])
    assert env.scheduler.sync([Declaration("one", "note", MINUTE)], delete_removed=True).removed == ["two"]
    assert {found.schedule_id for found in env.scheduler.iter()} == {"by-hand", "one"}


@row("audit")
def _(env: Env) -> None:
    schedule = env.create()
    env.tick()
    schedule.pause()
    schedule.delete()
    assert [event.event_type for event in events(schedule)] == [
        "ScheduleCreated",
        "ScheduleTriggered",
        "SchedulePaused",
        "ScheduleDeleted",
    ]
    assert [event.sequence for event in events(schedule)] == [1, 2, 3, 4]
    assert newest(schedule).lineage["schedule_ulid"] == schedule.uid
    assert "command_context" not in last(schedule, "Paused")


@row("signals")
def _(env: Env) -> None:
    heard: list[str] = []
    for name in ("cron.triggered", "cron.skipped", "ScheduleTriggered"):
        env.scheduler.on(name, lambda message: heard.append(message["event"]))
    env.create()
    env.tick()
    env.tick()
    assert heard == ["ScheduleTriggered", "cron.triggered", "cron.skipped"]


@row("naming")
def _(env: Env) -> None:
    schedule = env.create()
    assert {"next_run_at", "last_run_at", "run_count"} <= set(Description.__dataclass_fields__)
    assert (schedule.next_run_at, schedule.last_run_at, schedule.run_count) == (NOON + MINUTE, None, 0)


@pytest.mark.parametrize("name", ROWS)
def test_each_decision_of_the_table_holds(any_env: Env, name: str) -> None:
    STORIES[name](any_env)


def test_every_row_of_the_table_has_a_test() -> None:
    assert tuple(STORIES) == ROWS
