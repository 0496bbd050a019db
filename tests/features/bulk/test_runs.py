"""One operation on many runs: the set that the count fixes, the order, skips, repetition, and changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import pytest

from rqsched import CommandContext, Cron, RetryPolicy
from rqsched.aio import AsyncScheduler
from rqsched.api.run_handle import RunHandle
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import (
    DatabaseLimitError,
    DatabaseUnavailableError,
    FrozenError,
    InvalidInputError,
    InvalidLimitError,
)
from rqsched.features.bulk import runs as bulk_runs
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.results import BulkProgress, BulkRow
from rqsched.kernel.queries.pages import bind_cursor
from tests.support.crowd import copy_run
from tests.support.damage import failing
from tests.support.env import HOUR, MINUTE, NOON, ONCE, SECOND, Env, block, events, newest, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two runs."""
    monkeypatch.setattr(bulk_runs, "CHUNK", 2)


def begin(env: Env, operation: str, **asked: Any) -> Iterator[BulkProgress]:
    chunks: Iterator[BulkProgress] = getattr(env.scheduler.bulk, f"{operation}_runs")(**asked)
    return chunks


def do(env: Env, operation: str, **asked: Any) -> list[BulkRow]:
    """Do every chunk; returns the rows of all of them."""
    return [row for progress in begin(env, operation, **asked) for row in progress.items]


def outcomes(rows: Sequence[BulkRow]) -> list[tuple[str | None, str]]:
    return [(row.run_uid, row.outcome) for row in rows]


def triggered(env: Env, schedule: ScheduleHandle, count: int) -> list[RunHandle]:
    """So many runs of a schedule, a second apart."""
    found = []
    for _ in range(count):
        found.append(present(schedule.trigger("allow_all").run))
        env.clock.advance(SECOND)
    return found


def failed(env: Env, schedule_id: str, count: int = 1, **options: Any) -> ScheduleHandle:
    """A schedule of which so many hourly runs have failed."""
    schedule = env.create(schedule_id, HOUR, **{"retry": ONCE, **options})
    for _ in range(count):
        env.fail_next(schedule, HOUR)
    return schedule


@pytest.mark.usefixtures("small")
def test_the_count_comes_first_and_the_chunks_cancel_each_run_once_from_the_newest_on(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR)
    runs = triggered(any_env, schedule, 5)
    context = CommandContext(principal="ada")
    counted, *chunks = begin(any_env, "cancel", reason="the bank is away", context=context)
    assert (counted.items, counted.done, counted.matched) == ([], 0, 5)
    assert [(one.done, one.matched, len(one.items)) for one in chunks] == [(2, 5, 2), (4, 5, 2), (5, 5, 1)]
    rows = [row for one in chunks for row in one.items]
    assert outcomes(rows) == [(run.uid, "cancelled") for run in reversed(runs)]
    assert {row.schedule_id for row in rows} == {"a"}
    told = [event.payload for event in events(schedule, audit.RUN_CANCELLED)]
    assert [(one["reason"], one["command_context"]["principal"]) for one in told] == [("the bank is away", "ada")] * 5
    assert statuses(schedule) == ["cancelled"] * 5
    check_invariants(any_env.runtime)


def test_a_run_that_waits_behind_another_never_starts_while_all_are_cancelled(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR, overlap="buffer_all")
    for _ in range(4):
        schedule.trigger()
        any_env.clock.advance(SECOND)
    assert statuses(schedule) == ["pending", "buffered", "buffered", "buffered"]
    rows = do(any_env, "cancel")
    assert [row.outcome for row in rows] == ["cancelled"] * 4
    assert [run.queued_at for run in schedule.runs().items[:3]] == [None] * 3
    assert statuses(schedule) == ["cancelled"] * 4
    check_invariants(any_env.runtime)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("by", ["all", "schedule_id", "backfill_uid"])
def test_runs_that_are_created_after_the_count_are_never_in_the_set(any_env: Env, by: str) -> None:
    schedule = any_env.create("a", Cron("0 * * * *"), overlap="allow_all")
    made = schedule.backfill(NOON - 3 * HOUR, NOON)
    any_env.clock.advance(SECOND)
    chunks = begin(any_env, "cancel", **({} if by == "all" else {by: {"schedule_id": "a"}.get(by, made.uid)}))
    assert next(chunks).matched == 3
    (late,) = triggered(any_env, schedule, 1)
    first = next(chunks)
    schedule.backfill(NOON - 9 * HOUR, NOON - 8 * HOUR)
    assert [one.done for one in (first, *chunks)] == [2, 3]
    assert sorted(statuses(schedule)) == ["cancelled"] * 3 + ["pending"] * 2
    assert late.refresh().status == "pending"


def test_a_run_that_fails_again_after_the_count_is_not_retried_a_second_time(any_env: Env) -> None:
    first, second = failed(any_env, "a"), failed(any_env, "b")
    counted = next(begin(any_env, "retry"))
    assert counted.matched == 2
    any_env.clock.advance(SECOND)
    first.runs().items[0].retry()
    any_env.failing = True
    any_env.work()
    assert statuses(first) == ["failed"]
    rows = do(any_env, "retry", cursor=counted.next_cursor)
    assert outcomes(rows) == [(newest(second).uid, "started")]
    assert [newest(one).attempt for one in (first, second)] == [2, 2]
    any_env.work()
    assert do(any_env, "retry", cursor=counted.next_cursor) == [], "the chunk is sent again"
    check_invariants(any_env.runtime)


def test_a_run_that_succeeds_or_starts_after_the_count_is_left_as_it_is(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR)
    started, succeeded, waits = triggered(any_env, schedule, 3)
    counted = next(begin(any_env, "cancel", status="pending"))
    any_env.claim(started)
    any_env.execute(succeeded)
    any_env.clock.advance(SECOND)
    (chunk,) = begin(any_env, "cancel", status="pending", cursor=counted.next_cursor)
    assert (outcomes(chunk.items), chunk.done, chunk.matched) == ([(waits.uid, "cancelled")], 1, 3)
    assert statuses(schedule) == ["running", "succeeded", "cancelled"]


def test_a_run_that_starts_before_its_turn_in_a_chunk_is_named_with_its_status(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR)
    older, newer = triggered(any_env, schedule, 2)
    any_env.scheduler.on(audit.RUN_CANCELLED, lambda _: any_env.claim(older))
    rows = do(any_env, "cancel", status="pending", reason="the bank is away")
    assert outcomes(rows) == [(newer.uid, "cancelled"), (older.uid, "skipped")]
    assert rows[1].reason == "it is running meanwhile"
    assert older.refresh().status == "running"
    check_invariants(any_env.runtime)


def test_only_runs_that_executed_at_the_count_are_cancelled_where_only_running_ones_are_meant(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR)
    runs, later = triggered(any_env, schedule, 2), "running"
    any_env.claim(runs[0])
    any_env.clock.advance(SECOND)
    counted = next(begin(any_env, "cancel", status=later))
    any_env.clock.advance(SECOND)
    any_env.claim(runs[1])
    rows = do(any_env, "cancel", status=later, cursor=counted.next_cursor)
    assert outcomes(rows) == [(runs[0].uid, "cancelled")]
    assert runs[1].refresh().status == "running"


def test_a_failed_run_that_somebody_retries_after_the_count_of_a_cancel_goes_on(any_env: Env) -> None:
    schedule = failed(any_env, "a", 2)
    before, after = schedule.runs().items
    before.retry()
    any_env.clock.advance(SECOND)
    counted = next(begin(any_env, "cancel"))
    assert counted.matched == 1
    any_env.clock.advance(SECOND)
    after.retry()
    rows = do(any_env, "cancel", cursor=counted.next_cursor)
    assert outcomes(rows) == [(before.uid, "cancelled")]
    assert after.refresh().status in {"pending", "buffered"}


@pytest.mark.usefixtures("small")
def test_a_process_that_dies_between_two_chunks_is_followed_by_another_one(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR)
    triggered(any_env, schedule, 5)
    _, first = islice(begin(any_env, "cancel"), 2)
    lost = next(begin(any_env, "cancel", cursor=first.next_cursor))  # its answer is lost
    assert len(lost.items) == 2
    rows = do(any_env, "cancel", cursor=first.next_cursor)
    assert [row.outcome for row in rows] == ["cancelled"]
    assert statuses(schedule) == ["cancelled"] * 5
    assert len(events(schedule, audit.RUN_CANCELLED)) == 0, "nobody was named, so nothing is recorded twice either"
    check_invariants(any_env.runtime)


@pytest.mark.usefixtures("small")
def test_failed_runs_are_retried_in_the_order_of_their_ends_and_what_cannot_be_is_named(any_env: Env) -> None:
    first, gone = failed(any_env, "a", 3), failed(any_env, "gone")
    gone.delete()
    rows = do(any_env, "retry", reason="repaired")
    assert [(row.schedule_id, row.outcome) for row in rows] == [
        ("a", "started"),
        ("a", "buffered"),
        ("a", "buffered"),
        ("gone", "skipped"),
    ]
    assert rows[-1].reason == "it is failed: Its schedule is deleted; create it again."
    assert [event.payload["reason"] for event in events(first, audit.RUN_RETRY_REQUESTED)] == ["repaired"] * 3
    any_env.work()
    assert statuses(first) == ["succeeded"] * 3
    check_invariants(any_env.runtime)


@pytest.mark.parametrize("operation", ["cancel", "retry"])
def test_a_failure_of_the_database_keeps_the_outcomes_before_it_and_the_next_chunk_raises(
    any_env: Env, operation: str
) -> None:
    if operation == "cancel":
        lost, *_ = triggered(any_env, any_env.create("a", HOUR), 4)
        others = ["cancelled"] * 3
    else:
        *_, lost = reversed(failed(any_env, "a", 4).runs().items)
        others = ["started", "buffered", "buffered"]
    counted = next(begin(any_env, operation))
    with failing(DatabaseUnavailableError(), lost):
        chunk = next(begin(any_env, operation, cursor=counted.next_cursor))
        assert [row.outcome for row in chunk.items] == others
        assert (chunk.done, chunk.matched) == (3, 4)
        with pytest.raises(DatabaseUnavailableError):
            next(begin(any_env, operation, cursor=chunk.next_cursor))
    (rest,) = begin(any_env, operation, cursor=chunk.next_cursor)
    assert ([row.run_uid for row in rest.items], rest.done) == ([lost.uid], 4)
    check_invariants(any_env.runtime)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DatabaseLimitError("statement timeout at db1"), "the database stopped it because it took too long"),
        (ValueError("the secret of a row"), "an unexpected error (ValueError), which the log has"),
    ],
    ids=["stopped", "unreadable"],
)
@pytest.mark.parametrize("operation", ["cancel", "retry"])
def test_an_error_of_one_run_is_a_skip_with_its_reason(
    any_env: Env, operation: str, error: Exception, reason: str
) -> None:
    if operation == "cancel":
        triggered(any_env, any_env.create("a", HOUR), 3)
    else:
        failed(any_env, "a", 3)
    broken = any_env.scheduler.get("a").runs().items[1]
    with failing(error, broken):
        rows = do(any_env, operation)
    assert len(rows) == 3
    (skipped,) = (row for row in rows if row.outcome == "skipped")
    assert skipped.run_uid == broken.uid
    assert skipped.reason == reason


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["since", "until"])
def test_the_instants_of_the_count_hold_for_every_chunk(any_env: Env, name: str) -> None:
    schedule = any_env.create("a", HOUR)
    begins = any_env.clock.now()
    triggered(any_env, schedule, 3)
    bounds = {"since": begins, "until": any_env.clock.now()}
    counted = next(begin(any_env, "cancel", **{name: bounds[name]}))
    later = {"since": bounds["until"], "until": begins}
    rows = do(any_env, "cancel", **{name: later[name]}, cursor=counted.next_cursor)
    assert [row.outcome for row in rows] == ["cancelled"] * 3
    with pytest.raises(InvalidLimitError, match="another bulk operation"):
        do(any_env, "cancel", cursor=counted.next_cursor)


def test_cancelled_and_blocked_runs_are_retried_where_that_is_asked(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR)
    cancelled, blocked = triggered(any_env, schedule, 2)
    cancelled.cancel()
    block(any_env.runtime, blocked)
    assert do(any_env, "retry") == []
    rows = do(any_env, "retry", status=["cancelled", "blocked"])
    assert outcomes(rows) == [(cancelled.uid, "buffered"), (blocked.uid, "started")], "the blocked one goes ahead"
    any_env.work()
    assert statuses(schedule) == ["succeeded"] * 2


def test_a_freeze_refuses_a_retry_with_nothing_done_and_the_cursor_goes_on_after_the_thaw(any_env: Env) -> None:
    failed(any_env, "a", 2, overlap="allow_all")
    counted = next(begin(any_env, "retry"))
    any_env.scheduler.freeze("the bank is away")
    for cursor in (counted.next_cursor, None):
        with pytest.raises(FrozenError):
            do(any_env, "retry", cursor=cursor)
    assert len(do(any_env, "retry", dry_run=True)) == 2
    any_env.scheduler.thaw()
    assert [row.outcome for row in do(any_env, "retry", cursor=counted.next_cursor)] == ["started"] * 2


def test_runs_are_cancelled_while_their_namespace_is_frozen(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR)
    triggered(any_env, schedule, 2)
    any_env.scheduler.freeze("the bank is away")
    assert [row.outcome for row in do(any_env, "cancel")] == ["cancelled"] * 2
    check_invariants(any_env.runtime)


def test_each_filter_chooses_runs_and_none_reaches_another_namespace(any_env: Env) -> None:
    env = any_env
    env.register("other", lambda: None)
    limited = env.create("limited", HOUR, limit="crm", limit_running=1, overlap="allow_all")
    place, line = triggered(env, limited, 2)
    env.advance(MINUTE)
    late = env.clock.now()
    (other,) = triggered(env, env.create("other", HOUR, workflow="other"), 1)
    made = env.create("filled", Cron("0 * * * *")).backfill(NOON - HOUR, NOON)
    foreign = present(env.create("a", HOUR, namespace="tenant").trigger().run)
    filled = env.scheduler.get("filled").runs().items[0]
    found: list[tuple[dict[str, Any], list[RunHandle]]] = [
        ({}, [filled, other, line, place]),
        ({"status": "pending"}, [filled, other, line, place]),
        ({"status": ["running", "buffered"]}, []),
        ({"schedule_id": "limited"}, [line, place]),
        ({"workflow": "other"}, [other]),
        ({"limit": "crm"}, [line, place]),
        ({"limit": "crm", "in_line": True}, [line]),
        ({"limit": "crm", "in_line": False}, [place]),
        ({"since": late}, [filled, other]),
        ({"until": late}, [line, place]),
        ({"backfill_uid": made.uid}, [filled]),
        ({"error": "x"}, []),
        ({"namespace": "tenant"}, [foreign]),
        ({"schedule_id": "li\x00mited"}, []),
        ({"limit": "c\x00rm"}, []),
    ]
    for asked, runs in found:
        assert outcomes(do(env, "cancel", dry_run=True, **asked)) == [(run.uid, "would_cancel") for run in runs], asked
    assert {run.refresh().status for run in (place, line, other, filled, foreign)} == {"pending"}


def test_failed_runs_are_chosen_by_their_end_and_by_their_error(any_env: Env) -> None:
    schedule = failed(any_env, "a", 2)
    older, newer = reversed(schedule.runs().items)
    asked: list[tuple[dict[str, Any], list[RunHandle]]] = [
        ({"since": newer.ended_at}, [newer]),
        ({"until": newer.ended_at}, [older]),
        ({"error": "AS THE TEST"}, [older, newer]),
        ({"error": "another"}, []),
        ({"status": "lost"}, []),
    ]
    for filters, runs in asked:
        rows = do(any_env, "retry", dry_run=True, **filters)
        assert outcomes(rows) == [(run.uid, "would_retry") for run in runs], filters
    assert statuses(schedule) == ["failed"] * 2


def test_more_than_the_bound_or_an_impossible_status_is_refused_with_nothing_done(env: Env) -> None:
    schedule = env.create("a", HOUR)
    triggered(env, schedule, 3)
    with pytest.raises(InvalidLimitError, match="more than 2 runs match"):
        begin(env, "cancel", bound=2)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("cancel", {"bound": 0}),
        ("cancel", {"bound": True}),
        ("cancel", {"status": "x"}),
        ("cancel", {"status": "succeeded"}),
        ("retry", {"status": "running"}),
        ("cancel", {"since": datetime(2026, 1, 15)}),  # noqa: DTZ001
        ("cancel", {"reason": "x" * 5_000}),
    ]
    for operation, asked in refused:
        with pytest.raises(InvalidInputError):
            begin(env, operation, **asked)
    assert statuses(schedule) == ["pending"] * 3


def test_many_runs_are_counted_in_steps_and_done_in_chunks(any_env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqsched.kernel.queries.run_pages._MOST_AT_ONCE", 100)
    schedule = any_env.create("a", HOUR)
    (run,) = triggered(any_env, schedule, 1)
    copy_run(any_env.runtime, run, 349)
    for asked in ({}, {"schedule_id": "a"}):
        counted, *chunks = begin(any_env, "cancel", dry_run=True, **asked)
        assert counted.matched == 350
        assert [one.done for one in chunks] == [350]
    _, first = islice(begin(any_env, "cancel"), 2)
    assert (first.done, len(first.items)) == (100, 100)


def test_a_chunk_ends_after_its_time(any_env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = any_env.create("a", HOUR)
    triggered(any_env, schedule, 3)
    any_env.scheduler.on("*", lambda _: any_env.clock.advance(bulk_runs.CHUNK_TIME))
    chunks = [one for one in begin(any_env, "cancel", reason="slow") if one.items]
    assert [one.done for one in chunks] == [1, 2, 3]


@pytest.mark.parametrize("cursor", ["", "x", "~", "x~0123456789", "of another operation", "of another namespace"])
def test_a_cursor_of_something_else_is_refused_and_nothing_is_done(any_env: Env, cursor: str) -> None:
    schedule = any_env.create("a", HOUR)
    triggered(any_env, schedule, 2)
    any_env.create("a", HOUR, namespace="tenant").trigger()
    found = {
        "of another operation": next(any_env.scheduler.bulk.pause()).next_cursor,
        "of another namespace": next(begin(any_env, "cancel", namespace="tenant")).next_cursor,
    }
    with pytest.raises(InvalidLimitError, match="cursor"):
        do(any_env, "cancel", cursor=found.get(cursor, cursor))
    assert statuses(schedule) == ["pending"] * 2


UID = "01KF0000000000000000000000"


@pytest.mark.parametrize(
    "broken",
    [
        f"yesterday~{UID}~{UID}~1~~~0~",
        f"2026-01-15T12:00:00+00:00~x~{UID}~1~~~0~",
        f"2026-01-15T12:00:00+00:00~{UID}~{UID}~many~~~0~",
        f"2026-01-15T12:00:00+00:00~{UID}~{UID}~1~yesterday~~0~",
        f"2026-01-15T12:00:00+00:00~{UID}~{UID}~1~~~-1~",
        f"2026-01-15T12:00:00+00:00~{UID}~{UID}~1~~~0",
        f"2026-01-15T12:00:00+00:00~{UID}~{UID}~1~~~0~not-a-place",
    ],
)
def test_a_forged_cursor_is_refused(env: Env, broken: str) -> None:
    asked = bulk_runs.BulkRuns.of("cancel", "default", {})
    with pytest.raises(InvalidLimitError, match="malformed"):
        bulk_runs.do_chunk(env.runtime, asked, bind_cursor(broken, "bulk", *asked.identity))


def test_the_asynchronous_scheduler_does_the_chunks(any_env: Env) -> None:
    triggered(any_env, any_env.create("a", HOUR), 2)
    failed(any_env, "b")

    async def cancel_and_retry() -> list[int]:
        scheduler = AsyncScheduler(any_env.scheduler)
        done = [one.done async for one in scheduler.bulk.cancel_runs(schedule_id="a")]
        return done + [one.done async for one in scheduler.bulk.retry_runs(reason="repaired")]

    assert asyncio.run(cancel_and_retry()) == [0, 2, 0, 1]


def test_a_retry_that_waits_for_its_time_is_cancelled(any_env: Env) -> None:
    schedule = any_env.create("a", HOUR, retry=RetryPolicy(base=MINUTE))
    any_env.fail_next(schedule, HOUR)
    assert statuses(schedule) == ["retrying"]
    assert [row.outcome for row in do(any_env, "cancel", status="retrying")] == ["cancelled"]
    assert statuses(schedule) == ["cancelled"]
    check_invariants(any_env.runtime)
