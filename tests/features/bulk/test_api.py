"""One operation on many schedules: what matches, the chunks that the caller drives, skips and repetition."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timezone
from functools import partial
from itertools import islice
from typing import Any

import pytest

from rqsched import Every
from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.features.bulk import api as bulk
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.results import BulkProgress, BulkRow
from rqsched.kernel.queries.pages import bind_cursor, write_cursor
from rqsched.kernel.queries.schedules import Filters
from tests.support.crowd import copy_schedule
from tests.support.env import DAY, HOUR, NOON, SECOND, Env, events
from tests.support.narrow import present

pytestmark = pytest.mark.every_database


def create(env: Env) -> None:
    for name, team in (("a", "billing"), ("b", "billing"), ("c", "sales")):
        env.scheduler.create(name, "note", "1h", labels={"team": team})
        env.clock.advance(SECOND)  # schedules of one instant are in no order


def do(env: Env, operation: str, **asked: Any) -> list[BulkRow]:
    """Do every chunk; returns the rows of all of them."""
    return [row for progress in begin(env, operation, **asked) for row in progress.items]


def begin(env: Env, operation: str, **asked: Any) -> Iterator[BulkProgress]:
    chunks: Iterator[BulkProgress] = getattr(env.scheduler.bulk, operation)(**asked)
    return chunks


def statuses_of(env: Env) -> dict[str, str]:
    return {one.schedule_id: one.status for one in env.scheduler.iter()}


def test_what_matches_is_paused_and_resumed(env: Env) -> None:
    create(env)
    planned = do(env, "pause", labels={"team": "billing"}, dry_run=True)
    assert [(row.schedule_id, row.outcome) for row in planned] == [("a", "would_pause"), ("b", "would_pause")]
    assert set(statuses_of(env).values()) == {"active"}
    rows = do(env, "pause", labels={"team": "billing"}, reason="the bank is away")
    assert [(row.schedule_id, row.outcome) for row in rows] == [("a", "paused"), ("b", "paused")]
    assert statuses_of(env) == {"a": "paused", "b": "paused", "c": "active"}
    assert events(env.scheduler.get("a"), "SchedulePaused")[0].payload["reason"] == "the bank is away"
    assert do(env, "pause", labels={"team": "billing"}) == []
    assert [row.outcome for row in do(env, "resume", on_resume="next")] == ["resumed", "resumed"]
    assert set(statuses_of(env).values()) == {"active"}


def test_a_trigger_that_is_repeated_with_its_key_starts_nothing_twice(env: Env) -> None:
    create(env)
    first, again = (do(env, "trigger", workflow="note", idempotency_key="k") for _ in range(2))
    assert [row.outcome for row in first] == [row.outcome for row in again] == ["triggered"] * 3
    assert [one.run_count for one in env.scheduler.iter()] == [1, 1, 1]
    skipped = do(env, "trigger")
    assert [(row.outcome, bool(row.reason)) for row in skipped] == [("skipped", True)] * 3


def test_more_than_the_bound_is_refused_with_nothing_done(env: Env) -> None:
    create(env)
    with pytest.raises(InvalidLimitError, match="more than 2 schedules match"):
        env.scheduler.bulk.pause(bound=2)
    assert set(statuses_of(env).values()) == {"active"}
    refused: list[dict[str, Any]] = [{"bound": 0}, {"status": "x"}]
    for wrong in refused:
        with pytest.raises(InvalidInputError):
            env.scheduler.bulk.pause(**wrong)
    with pytest.raises(InvalidInputError, match="'delete' is not one of pause, resume"):
        bulk.Bulk.of("delete")


def test_a_schedule_in_another_status_is_skipped_with_the_reason(env: Env) -> None:
    create(env)
    env.scheduler.get("b").pause()
    rows = do(env, "pause", status=["active", "paused"])
    assert [(row.schedule_id, row.outcome) for row in rows] == [("a", "paused"), ("b", "skipped"), ("c", "paused")]
    assert "paused" in (rows[1].reason or "")


def test_the_next_occurrences_of_each_are_skipped_and_one_without_any_is_told_apart(env: Env) -> None:
    hourly, daily = env.create("hourly", spec=Every("1h")), env.create("daily", spec=Every("1d"))
    waits = env.create("waits", spec=Every("1h", from_completion=True))
    env.create("rests").pause()
    skip = partial(do, env, "skip_next", count=2, reason="the vendor moves")

    assert [row.outcome for row in skip(dry_run=True)] == ["would_skip_next"] * 3
    assert hourly.refresh().skips == []
    rows = {row.schedule_id: row for row in skip()}

    assert {name: row.outcome for name, row in rows.items()} == {
        "hourly": "skips_next", "daily": "skips_next", "waits": "skipped",
    }  # fmt: skip
    assert "from_completion" in (rows["waits"].reason or "")
    now = env.clock.now()
    assert hourly.refresh().skips == [now + HOUR, now + 2 * HOUR]
    assert daily.refresh().skips == [now + DAY, now + 2 * DAY]
    before = env.state(hourly)
    assert sorted(row.outcome for row in skip()) == ["skipped", "skips_next", "skips_next"], "sent again"
    assert env.state(hourly) == before
    do(env, "skip_next", count=0)
    assert (hourly.refresh().skips, daily.refresh().skips, waits.refresh().skips) == ([], [], [])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (bulk.Bulk.of("pause", count=2), "leave it out of pause"),
        (bulk.Bulk.of("pause", on_resume="once"), "give `until`"),
        (bulk.Bulk.of("trigger", on_resume="once"), "leave it out"),
        (bulk.Bulk.of("skip_next", count=101), "from 0 to 100"),
        (bulk.Bulk.of("skip_next", count=-1), "from 0 to 100"),
        (bulk.Bulk.of("skip_next", count=True), "from 0 to 100"),
    ],
)
def test_a_count_of_skips_that_cannot_be_is_refused_before_anything_is_done(
    env: Env, asked: bulk.Bulk, told: str
) -> None:
    schedule = env.create()
    with pytest.raises(InvalidInputError, match=told):
        bulk.begin(env.scheduler.runtime, asked, None, {})
    assert (schedule.refresh().skips, schedule.status) == ([], "active")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three schedules."""
    monkeypatch.setattr(bulk, "CHUNK", 3)


def create_many(env: Env, count: int = 7) -> list[str]:
    names = [f"job-{number}" for number in range(count)]
    for name in names:
        env.create(name)
        env.clock.advance(SECOND)
    return names


def run_counts(env: Env) -> list[int]:
    return [one.run_count for one in env.scheduler.iter()]


@pytest.mark.usefixtures("small")
def test_the_count_comes_first_and_the_chunks_do_each_schedule_exactly_once(any_env: Env) -> None:
    names = create_many(any_env)
    counted, *chunks = islice(any_env.scheduler.bulk.trigger(), 9)
    assert (counted.items, counted.done, counted.matched) == ([], 0, 7)
    assert [(one.done, one.matched) for one in chunks] == [(3, 7), (6, 7), (7, 7)]
    assert [one.next_cursor is None for one in chunks] == [False, False, True]
    assert [row.schedule_id for one in chunks for row in one.items] == names
    assert run_counts(any_env) == [1] * 7


def test_nothing_is_done_before_the_second_step(env: Env) -> None:
    create_many(env, 2)
    counted = next(env.scheduler.bulk.trigger())
    assert (counted.matched, run_counts(env)) == (2, [0, 0])
    (none,) = env.scheduler.bulk.resume()
    assert (none.matched, none.next_cursor) == (0, None)


@pytest.mark.usefixtures("small")
def test_schedules_that_change_between_two_chunks_move_no_other_one_out_of_them(any_env: Env) -> None:
    create_many(any_env)
    chunks = any_env.scheduler.bulk.pause()
    _, first = next(chunks), next(chunks)
    any_env.scheduler.get("job-1").resume()
    any_env.scheduler.get("job-3").pause()
    any_env.scheduler.get("job-4").delete()
    any_env.clock.advance(SECOND)
    any_env.create("job-4")
    any_env.create("job-9")
    rows = [row for one in (first, *chunks) for row in one.items]
    assert [row.schedule_id for row in rows] == ["job-0", "job-1", "job-2", "job-5", "job-6"]
    assert {row.outcome for row in rows} == {"paused"}
    active = {name for name, status in statuses_of(any_env).items() if status == "active"}
    assert active == {"job-1", "job-4", "job-9"}, "changed behind the cursor, or created after the count"


@pytest.mark.usefixtures("small")
def test_somebody_else_goes_on_where_the_first_one_stopped(any_env: Env) -> None:
    names = create_many(any_env)
    ada, bob = (CommandContext(principal=name) for name in ("ada", "bob"))
    chunks = any_env.scheduler.bulk.pause(context=ada)
    _, stopped = next(chunks), next(chunks)
    assert [*statuses_of(any_env).values()].count("paused") == 3

    rest = [*any_env.scheduler.bulk.pause(cursor=stopped.next_cursor, bound=1, context=bob)]

    assert [(one.done, one.matched) for one in rest] == [(6, 7), (7, 7)]
    assert {*statuses_of(any_env).values()} == {"paused"}
    contexts = [events(any_env.scheduler.get(name), "SchedulePaused")[0].payload["command_context"] for name in names]
    assert [one["principal"] for one in contexts] == ["ada"] * 3 + ["bob"] * 4


CHANGED: dict[str, dict[str, Any]] = {
    "another filter": {"labels": {"team": "sales"}},
    "no filter": {"labels": None},
    "a further filter": {"text": "b"},
    "another status": {"status": ["active", "paused"]},
    "a note": {"note": "later"},
    "a reason": {"reason": "later"},
    "an end of the pause": {"until": NOON + DAY},
    "a dry run": {"dry_run": True},
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED)
def test_a_cursor_is_refused_with_other_filters_or_parameters_than_were_counted(
    env: Env, changed: dict[str, Any]
) -> None:
    create(env)
    asked: dict[str, Any] = {"labels": {"team": "billing"}}
    for first, then in ((asked, asked | changed), (asked | changed, asked)):
        counted = next(env.scheduler.bulk.pause(**first))
        with pytest.raises(InvalidLimitError, match="send the operation, namespace, filters"):
            next(env.scheduler.bulk.pause(cursor=counted.next_cursor, **then))
    assert {*statuses_of(env).values()} == {"active"}


def test_a_cursor_is_taken_with_the_same_filters_in_another_order(env: Env) -> None:
    env.create("a", labels={"team": "billing", "region": "eu"}, expect_success_within=DAY)
    one: dict[str, Any] = {"labels": {"team": "billing", "region": "eu"}, "status": ["active", "paused"]}
    other: dict[str, Any] = {"labels": {"region": "eu", "team": "billing"}, "status": ("paused", "active")}
    east = timezone(HOUR)
    one |= {"created_until": NOON + DAY, "until": NOON + HOUR}
    other |= {"created_until": (NOON + DAY).astimezone(east), "until": NOON + 2 * HOUR, "bound": 1}
    counted = next(env.scheduler.bulk.pause(**one))
    done = next(env.scheduler.bulk.pause(cursor=counted.next_cursor, **other))
    assert [row.outcome for row in done.items] == ["paused"]
    assert env.scheduler.get("a").resume_at == NOON + 2 * HOUR, "a command that says 2h again names a later end"


def test_the_count_leaves_out_what_its_chunks_leave_out(env: Env) -> None:
    create_many(env, 3)
    env.clock.advance(-HOUR)
    counted, *chunks = env.scheduler.bulk.pause()
    assert counted.matched == sum(len(one.items) for one in chunks) == 0


DONE = {"trigger": "triggered", "pause": "paused", "skip_next": "skips_next"}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("operation", DONE)
def test_a_chunk_that_is_sent_again_does_nothing_twice(any_env: Env, operation: str) -> None:
    names = create_many(any_env)
    asked: dict[str, Any] = {"overlap": "allow_all"} if operation == "trigger" else {}
    counted = next(begin(any_env, operation, **asked))
    send = partial(begin, any_env, operation, cursor=counted.next_cursor, **asked)
    assert [row.outcome for row in next(send()).items] == [DONE[operation]] * 3
    before = [any_env.state(any_env.scheduler.get(name)) for name in names[:3]]
    assert [row.outcome for row in next(send()).items] == [DONE[operation]] * 3, "the answer of the first one was lost"
    assert [any_env.state(any_env.scheduler.get(name)) for name in names[:3]] == before
    [*send()]
    assert run_counts(any_env) == [int(operation == "trigger")] * 7
    assert {*statuses_of(any_env).values()} == {"paused" if operation == "pause" else "active"}


@pytest.mark.usefixtures("small")
def test_a_schedule_that_refuses_is_told_with_its_reason_and_the_others_are_done(any_env: Env) -> None:
    create_many(any_env)
    any_env.scheduler.get("job-4").trigger()
    rows = do(any_env, "trigger")
    assert [row.outcome for row in rows] == ["triggered"] * 4 + ["skipped"] + ["triggered"] * 2
    assert rows[4].reason
    assert run_counts(any_env) == [1] * 7


def test_a_chunk_whose_schedules_take_long_ends_after_two_seconds(any_env: Env) -> None:
    create_many(any_env, 5)

    def take_a_second(*_: object) -> None:
        any_env.clock.advance(SECOND)

    any_env.runtime.subscribers.append(take_a_second)
    assert [len(one.items) for one in any_env.scheduler.bulk.pause()] == [0, 2, 2, 1]


def test_a_chunk_looks_past_what_does_not_match(any_env: Env) -> None:
    copy_schedule(any_env.runtime, any_env.create("other"), 2_100)
    any_env.clock.advance(SECOND)
    any_env.create("meant", labels={"team": "billing"})
    _, chunk = any_env.scheduler.bulk.pause(labels={"team": "billing"})
    assert [row.schedule_id for row in chunk.items] == ["meant"]


@pytest.mark.parametrize("cursor", ["", "x", "~", "x~0123456789", "of another operation", "of another namespace"])
def test_a_cursor_of_something_else_is_refused_and_nothing_is_done(any_env: Env, cursor: str) -> None:
    create_many(any_env, 2)
    for namespace in ("default", "tenant"):
        any_env.create("job", namespace=namespace)
    found = {
        "of another operation": next(any_env.scheduler.bulk.skip_next()).next_cursor,
        "of another namespace": next(any_env.scheduler.bulk.pause(namespace="tenant")).next_cursor,
    }
    with pytest.raises(InvalidLimitError, match="cursor"):
        next(any_env.scheduler.bulk.pause(cursor=found.get(cursor, cursor)))
    assert {*statuses_of(any_env).values()} == {"active"}


UID = "01KF0000000000000000000000"


@pytest.mark.parametrize(
    "broken",
    [
        "x~2026-01-15T12:00:00+00:00~1~0~",
        "01KF0000000000000000000000~yesterday~1~0~",
        "01KF0000000000000000000000~2026-01-15T12:00:00~1~0~",
        "01KF0000000000000000000000~2026-01-15T12:00:00+00:00~many~0~",
        "01KF0000000000000000000000~2026-01-15T12:00:00+00:00~1~0~x",
        "01KF0000000000000000000000~2026-01-15T12:00:00+00:00~1",
        "01KF0000000000000000000000~0001-01-01T00:00:00+14:00~1~0~",
        "01KF0000000000000000000000~9999-12-31T23:59:59-14:00~1~0~",
        "01KF0000000000000000000000~2026-01-15T12:00:00+00:00~-1~0~",
        "01KF0000000000000000000000~2026-01-15T12:00:00+00:00~1~-1~",
        f"01KF0000000000000000000000~2026-01-15T12:00:00+00:00~1~{'9' * 19}~",
        f"01KF0000000000000000000000~2026-01-15T12:00:00+00:00~1~0~{write_cursor('0001-01-01T00:00:00+14:00', UID)}",
    ],
)
def test_a_forged_cursor_is_refused(env: Env, broken: str) -> None:
    forged = bind_cursor(broken, "bulk", "x")
    with pytest.raises(InvalidLimitError, match="malformed"):
        bulk.do_chunk(env.runtime, bulk.Bulk("pause"), Filters(), present(forged), of="x")
