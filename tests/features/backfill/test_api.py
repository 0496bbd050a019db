"""Backfills: which occurrences, under which policy, how many, and how they go on after a crash."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import starmap
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Cron, Every
from rqsched.api.build_description import describe_backfill
from rqsched.api.description import BackfillProgress
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import BackfillNotFoundError, InvalidInputError, InvalidLimitError, ScheduleNotFoundError
from rqsched.features.backfill.chain import CHUNK, PAUSE, BackfillRange, get_backfill, iterate, open_backfill
from rqsched.features.backfill.store import Backfill
from rqsched.kernel.chain.fire import LOCKED_AGAIN
from rqsched.kernel.decide.ids import new_uid
from tests.support.env import HOUR, MINUTE, NOON, SECOND, Env, all_runs, last, newest, occurrences, statuses, types

MINUTELY = Cron("* * * * *")


def outcomes(result: BackfillProgress) -> list[str]:
    return [row.outcome for row in result.rows]


def test_the_range_begins_inclusive_and_ends_exclusive(any_env: Env) -> None:
    schedule = any_env.create(spec=Cron("*/10 * * * *"), jitter=50 * SECOND, overlap="allow")

    result = schedule.backfill(NOON - 30 * MINUTE, NOON - 10 * MINUTE)

    assert occurrences(schedule) == [NOON - 30 * MINUTE, NOON - 20 * MINUTE], "canonical times, not jittered"
    run = newest(schedule)
    assert (run.kind, run.instance_id) == ("backfill", "schedule:report:backfill:2026-01-15T11:40:00Z")
    assert run.due_at == run.occurrence_at
    assert result.rows[0].to_dict() == {
        "occurrence_time": "2026-01-15T11:30:00Z",
        "instance_id": "schedule:report:backfill:2026-01-15T11:30:00Z",
        "outcome": "started",
        "reason": None,
    }
    assert schedule.next_run_at == NOON + 10 * MINUTE, "the grid does not move"


def test_the_range_is_cut_at_now(any_env: Env) -> None:
    schedule = any_env.create(spec=MINUTELY, overlap="allow")
    schedule.backfill(NOON - 2 * MINUTE, NOON + HOUR)
    assert occurrences(schedule) == [NOON - 2 * MINUTE, NOON - MINUTE]
    assert last(schedule, "Triggered")["occurrence_time"] == "2026-01-15T11:59:00Z"


REFUSED: dict[str, tuple[datetime, datetime, type[Exception]]] = {
    "a naive start": (datetime(2026, 1, 1), NOON, InvalidInputError),  # noqa: DTZ001 - that is the point
    "a naive end": (NOON - HOUR, datetime(2026, 1, 1), InvalidInputError),  # noqa: DTZ001 - that is the point
    "an empty range": (NOON - HOUR, NOON - HOUR, InvalidInputError),
    "an end before the start": (NOON, NOON - HOUR, InvalidInputError),
    "a start in the future": (NOON + SECOND, NOON + HOUR, InvalidInputError),
    "more than the bound": (NOON - 10_001 * MINUTE, NOON, InvalidLimitError),
}


@pytest.mark.parametrize(("start", "end", "error"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("dry_run", [False, True], ids=["for real", "dry run"])
def test_a_range_that_cannot_be_fired_is_refused(
    env: Env, start: datetime, end: datetime, error: type[Exception], dry_run: bool
) -> None:
    schedule = env.create(spec=MINUTELY)
    with pytest.raises(error):
        schedule.backfill(start, end, dry_run=dry_run)
    assert (types(schedule), occurrences(schedule)) == (["Created"], [])


def test_a_range_without_occurrences_is_done_at_once(env: Env) -> None:
    result = env.create(spec=Cron("0 0 1 1 *")).backfill(NOON - HOUR, NOON)
    assert (result.rows, result.status) == ([], "done")


def test_a_from_completion_interval_has_nothing_to_backfill(env: Env) -> None:
    with pytest.raises(InvalidInputError, match="from_completion"):
        env.create(spec=Every("1m", from_completion=True)).backfill(NOON - HOUR, NOON)


def test_a_backfill_of_a_paused_schedule_runs_and_leaves_it_paused(any_env: Env) -> None:
    schedule = any_env.create(spec=MINUTELY)
    schedule.pause()

    schedule.backfill(NOON - 3 * MINUTE, NOON)
    any_env.execute_pending()

    assert (statuses(schedule), schedule.refresh().status) == (["succeeded"] * 3, "paused")


def test_under_skip_the_runs_of_a_backfill_run_one_after_another(any_env: Env) -> None:
    schedule = any_env.create(spec=MINUTELY)

    result = schedule.backfill(NOON - 4 * MINUTE, NOON)

    assert outcomes(result) == ["started", "buffered", "buffered", "buffered"]
    assert statuses(schedule) == ["pending", "buffered", "buffered", "buffered"]
    any_env.tick()
    assert newest(schedule).kind == "scheduled", "a backfill never blocks a live run"
    any_env.execute_pending()
    assert statuses(schedule) == ["succeeded"] * 5
    assert [run.occurrence_at for run in any_env.seen if run.kind == "backfill"] == [
        NOON - k * MINUTE for k in (4, 3, 2, 1)
    ]


POLICIES: dict[str, tuple[str, str | None, list[str]]] = {
    "allow_all": ("allow_all", None, ["pending"] * 3),
    "buffer_one is allow_all here": ("buffer_one", None, ["pending"] * 3),
    "buffer_all is allow_all here": ("buffer_all", None, ["pending"] * 3),
    "cancel_other": ("cancel_other", None, ["cancelled", "cancelled", "pending"]),
    "terminate_other": ("terminate_other", None, ["terminated", "terminated", "pending"]),
    "another policy for this call": ("skip", "allow", ["pending"] * 3),
    "one by one for this call": ("allow_all", "skip", ["pending", "buffered", "buffered"]),
}


@pytest.mark.parametrize(("policy", "override", "expected"), POLICIES.values(), ids=POLICIES.keys())
def test_runs_of_a_backfill_follow_its_overlap_policy(
    env: Env, policy: str, override: str | None, expected: list[str]
) -> None:
    schedule = env.create(spec=MINUTELY, overlap=policy)
    schedule.backfill(NOON - 3 * MINUTE, NOON, overlap=override)
    assert statuses(schedule) == expected


def test_a_dry_run_returns_what_would_start_and_writes_nothing(any_env: Env) -> None:
    schedule = any_env.create(spec=MINUTELY, max_runs=3)
    schedule.backfill(NOON - 5 * MINUTE, NOON - 4 * MINUTE)
    before = schedule.refresh().state

    result = schedule.backfill(NOON - 6 * MINUTE, NOON, dry_run=True)

    assert outcomes(result) == ["would_start", "already_run", "would_start", "skipped", "skipped", "skipped"]
    assert result.rows[-1].reason == "remaining_actions_exhausted"
    assert (result.uid, result.status) == (None, "dry_run")
    assert (schedule.refresh().state, len(occurrences(schedule))) == (before, 1)


def test_the_bound_may_be_raised(env: Env) -> None:
    schedule = env.create(spec=MINUTELY)
    start = NOON - 20 * MINUTE
    with pytest.raises(InvalidLimitError, match="more than 19"):
        schedule.backfill(start, NOON, bound=19)
    assert len(schedule.backfill(start, NOON, bound=20).rows) == 20


def test_an_occurrence_that_has_a_run_is_reported_and_not_run_again(any_env: Env) -> None:
    schedule = any_env.create(spec=MINUTELY, overlap="allow")
    any_env.run_due()
    any_env.run_due()

    assert outcomes(schedule.backfill(NOON - MINUTE, NOON + 10 * MINUTE)) == ["started", "started", "already_run"]
    assert outcomes(schedule.backfill(NOON - MINUTE, NOON + 10 * MINUTE)) == ["already_run"] * 3


def test_an_occurrence_that_a_backfill_ran_does_not_fire_again_and_the_chain_continues(any_env: Env) -> None:
    schedule = any_env.create(spec=MINUTELY, overlap="allow")
    any_env.advance(MINUTE + SECOND)
    assert outcomes(schedule.backfill(NOON, NOON + HOUR)) == ["started", "started"]

    any_env.run_due(timedelta(0))

    assert occurrences(schedule) == [NOON, NOON + MINUTE]
    assert schedule.refresh().next_run_at == NOON + 2 * MINUTE
    any_env.run_due()
    assert newest(schedule).occurrence_at == NOON + 2 * MINUTE


@pytest.mark.parametrize(("on_max_runs", "status"), [("done", "done"), ("delete", "deleted")], ids=["done", "delete"])
def test_max_runs_end_the_backfill_and_the_schedule(any_env: Env, on_max_runs: str, status: str) -> None:
    schedule = any_env.create(spec=MINUTELY, overlap="allow", max_runs=2, on_max_runs=on_max_runs)

    result = schedule.backfill(NOON - 5 * MINUTE, NOON)

    assert outcomes(result) == ["started", "started", "skipped"]
    assert (result.rows[-1].reason, result.status) == ("remaining_actions_exhausted", "stopped")
    assert (schedule.status, schedule.status_reason) == (status, "max_runs_exhausted")
    assert statuses(schedule) == ["pending", "pending"]


def test_max_runs_count_the_waiting_runs_of_a_backfill(any_env: Env) -> None:
    schedule = any_env.create(spec=MINUTELY, max_runs=2)
    schedule.backfill(NOON - 4 * MINUTE, NOON)
    any_env.execute_pending()
    assert statuses(schedule) == ["succeeded", "succeeded", "cancelled", "cancelled"]
    assert (schedule.refresh().status, schedule.run_count) == ("done", 2)


LONG = timedelta(minutes=2 * CHUNK + 10)


def test_progress_is_called_after_each_chunk(env: Env) -> None:
    told: list[tuple[int, str]] = []
    schedule = env.create(spec=MINUTELY)
    schedule.backfill(NOON - LONG, NOON, progress=lambda done: told.append((done.attempted, done.status)))
    assert told == [(CHUNK, "running"), (2 * CHUNK, "running"), (2 * CHUNK + 10, "done")]


def begun(env: Env, **options: Any) -> tuple[Any, str]:
    """A backfill whose process ends after its first chunk."""
    schedule = env.create(spec=MINUTELY, **options)
    steps = schedule.backfill_in_chunks(BackfillRange(NOON - LONG, NOON))
    done = next(steps)
    assert (len(done.rows), done.status) == (CHUNK, "running")
    assert done.uid is not None
    steps.close()
    return schedule, done.uid


def test_after_a_crash_reconcile_continues_a_backfill_after_its_last_commit(any_env: Env) -> None:
    schedule, uid = begun(any_env)
    any_env.advance(MINUTE)

    assert any_env.scheduler.recover().backfills == 1

    done = get_backfill(any_env.runtime, uid)
    assert (done.status, done.attempted) == ("done", 2 * CHUNK + 10)
    backfilled = [run.occurrence_at for run in _every_run(schedule) if run.kind == "backfill"]
    assert backfilled == [NOON - LONG + k * MINUTE for k in range(2 * CHUNK + 10)], "none is lost, none is doubled"
    assert any_env.scheduler.recover().backfills == 0


def _every_run(schedule: Any) -> list[Any]:
    page = schedule.runs(limit=500)
    found = list(page.items)
    while page.next_cursor:
        page = schedule.runs(limit=500, cursor=page.next_cursor)
        found += page.items
    return found[::-1]


def test_two_processes_that_resume_a_crashed_backfill_share_the_rest(env: Env) -> None:
    _, uid = begun(env)
    mine, theirs = resumed(env, uid), resumed(env, uid)

    rows = next(mine).rows + next(theirs).rows

    assert len(rows) == len({row.occurrence_at for row in rows}) == CHUNK + 10
    assert [step.rows for steps in (mine, theirs) for step in steps if step.rows] == [], "nothing is left"


def resumed(env: Env, uid: str) -> Iterator[BackfillProgress]:
    """Continue a backfill, as a pass of `recover()` in one more process does."""
    return starmap(describe_backfill, iterate(env.runtime, get_backfill(env.runtime, uid)))


def test_a_crash_between_commit_and_redis_loses_no_run_of_a_backfill(env: Env) -> None:
    schedule, _ = begun(env, overlap="allow")
    env.redis.flushall()
    env.advance(MINUTE)

    assert env.scheduler.recover().deliveries == CHUNK

    assert len(env.queued()) == 2 * CHUNK + 10
    assert schedule.refresh().run_count == 2 * CHUNK + 10


def test_deleting_the_schedule_stops_its_backfill(env: Env) -> None:
    schedule = env.create(spec=MINUTELY)
    steps = schedule.backfill_in_chunks(BackfillRange(NOON - LONG, NOON))
    next(steps)
    schedule.delete()

    done = next(steps)

    assert (done.status, done.reason, done.rows) == ("stopped", "deleted", [])
    with pytest.raises(ScheduleNotFoundError):
        schedule.backfill(NOON - HOUR, NOON)


@pytest.mark.parametrize("purge", [False, True], ids=["deleted", "purged"])
def test_backfill_of_a_schedule_that_is_deleted_before_it_is_opened_is_refused(any_env: Env, purge: bool) -> None:
    schedule = any_env.create()
    known = schedule.state
    schedule.delete(purge=purge)

    with pytest.raises(ScheduleNotFoundError):
        open_backfill(any_env.runtime, known, BackfillRange(NOON - HOUR, NOON), uid := new_uid(NOON))

    with pytest.raises(BackfillNotFoundError):
        get_backfill(any_env.runtime, uid)


SECONDLY = Cron("* * * * * *")
"""The clock must not move far: a pass takes over a backfill that makes no progress for the grace."""


def opened(env: Env, schedule: ScheduleHandle, chunks: int) -> Backfill:
    """A backfill of so many chunks, nothing of it fired yet."""
    wanted = BackfillRange(NOON - (chunks * CHUNK - 1) * SECOND, NOON)
    return open_backfill(env.runtime, schedule.refresh().state, wanted, new_uid(NOON))


def test_due_schedules_fire_between_two_chunks_of_a_backfill(any_env: Env) -> None:
    schedule = any_env.create(spec=SECONDLY, overlap="allow")
    other = any_env.create("other", SECONDLY, overlap="allow")
    fired: list[set[str]] = []

    def rest() -> None:
        fired.append({row["schedule_id"] for row in any_env.tick(SECOND)})

    chunks = list(iterate(any_env.runtime, opened(any_env, schedule, 4), pause=rest))

    assert len(chunks) == 4
    assert fired == [{"report", "other"}] * 3, "the schedule that is being backfilled, and another one"
    assert occurrences(other) == [NOON + k * SECOND for k in (1, 2, 3)], "each at its own time"
    assert schedule.refresh().next_run_at == NOON + 4 * SECOND


def test_a_fire_that_waits_for_a_chunk_runs_before_the_next_chunk(any_env: Env) -> None:
    """A fire is requested at each chunk's commit, while its locks are still held."""
    schedule = any_env.create(spec=SECONDLY, overlap="allow")
    any_env.create("other", SECONDLY, overlap="allow")
    backfill, owner = opened(any_env, schedule, 3), threading.get_ident()
    any_env.runtime.ownership.database_id()  # which the first job's meta would read in a transaction of its own
    asked: list[Future[Any]] = []
    served: list[set[str]] = []

    def ask(_: Any) -> None:
        if threading.get_ident() == owner:
            asked.append(live.submit(any_env.tick, SECOND))

    def rest() -> None:
        served.append({row["schedule_id"] for row in asked[-1].result(30)})

    engine = any_env.runtime.database.engine
    with ThreadPoolExecutor(1) as live:
        sa.event.listen(engine, "commit", ask)
        try:
            chunks = list(iterate(any_env.runtime, backfill, pause=rest))
        finally:
            sa.event.remove(engine, "commit", ask)

    assert (len(chunks), len(asked)) == (3, 3)
    assert served == [{"report", "other"}] * 2


def test_the_pause_between_chunks_is_longer_than_a_waiting_lock_sleeps() -> None:
    """SQLite's busy handler retries at least every 100 ms. A dispatcher retries a locked row after LOCKED_AGAIN."""
    assert max(timedelta(milliseconds=100), LOCKED_AGAIN) < PAUSE


def by_its_owner(schedule: ScheduleHandle, uid: str, env: Env) -> None:
    assert [done.attempted for done in resumed(env, uid)] == [2 * CHUNK, 2 * CHUNK + 10]


def by_recover(schedule: ScheduleHandle, uid: str, env: Env) -> None:
    env.advance(MINUTE)
    assert env.scheduler.recover().backfills == 1


@pytest.mark.parametrize("carried_on", [by_its_owner, by_recover])
def test_a_process_that_only_backfills_pauses_between_chunks(
    env: Env, monkeypatch: pytest.MonkeyPatch, carried_on: Callable[[ScheduleHandle, str, Env], None]
) -> None:
    schedule, uid = begun(env)
    long = timedelta(seconds=2)  # two chunks without a rest take a fraction of it
    monkeypatch.setattr("rqsched.features.backfill.chain.PAUSE", long)

    began = time.monotonic()
    carried_on(schedule, uid, env)

    assert time.monotonic() - began >= long.total_seconds()
    assert get_backfill(env.runtime, uid).status == "done"


def test_a_backfill_streams_in_bounded_memory(env: Env) -> None:
    schedule = env.create(spec=MINUTELY)
    count = 8 * CHUNK
    peaks: list[int] = []
    tracemalloc.start()
    try:
        for _ in schedule.backfill_in_chunks(BackfillRange(NOON - count * MINUTE, NOON)):
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()

    assert len(peaks) >= 8
    assert max(peaks[4:]) < 1.2 * max(peaks[1:4]), "a chunk costs the same at any depth"
    assert len(all_runs(schedule)) == 500
