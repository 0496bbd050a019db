"""Passes of reconcile: their parts, pages and turns, and that nothing in one starves the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.features.backfill.chain import BackfillRange
from rqsched.kernel.chain.reconcile import repair
from rqsched.kernel.chain.reconcile.passes import iter_batches, reconcile_in_turn
from rqsched.kernel.chain.reconcile.repair import BATCH
from rqsched.kernel.chain.reconcile.schedules import is_newer
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.store import metadata, registered_workflows
from rqsched.kernel.store.tables import backfills
from rqsched.when.zones import tzdata_version
from tests.support.damage import forget, repaired, set_columns, settled, started
from tests.support.env import HOUR, MINUTE, SECOND, Env, MakeEnv, events, link_id, statuses
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.servers import ValkeyServer


def test_new_timezone_rules_move_the_next_times_once(any_env: Env) -> None:
    schedule = any_env.create(spec="0 9 * * *", timezone="Europe/Berlin")
    other = any_env.create("utc", spec="0 9 * * *")
    settled(any_env)
    planned = present(schedule.next_run_at)
    wrong = planned + HOUR
    set_columns(any_env, schedule, next_run_at=wrong, due_at=wrong, tzdata="2001a")
    set_columns(any_env, other, tzdata="2001a")
    any_env.runtime.database.transact(lambda connection: metadata.set_value(connection, "tzdata", "2001a"))

    assert repaired(any_env)["retimed"] == 2

    after = any_env.state(schedule)
    assert (after.next_run_at, after.n, after.tzdata) == (planned, 1, tzdata_version())
    assert any_env.state(other).n == 0
    assert link_id(schedule) in any_env.armed()
    (event,) = events(schedule, audit.RECOVERED)
    assert event.payload["reason"] == "timezone_rules_changed"
    assert not events(other, audit.RECOVERED)
    assert repaired(any_env) == {}


@pytest.mark.parametrize(
    ("current", "known", "is_replaced"),
    [
        ("2026b", "2026a", True),
        ("2026a", "2026b", False),
        ("pypi-2026.2", "2026b", False),
        ("2026b", "pypi-2026.2", False),
        ("pypi-2026.3", "2026b", True),
        ("2027a", "2026c", True),
        ("system-unnumbered", "2026a", True),
        ("system-unnumbered", "system-unnumbered", False),
    ],
)
def test_only_newer_rules_replace_older_ones(current: str, known: str, is_replaced: bool) -> None:
    """If older rules replaced newer ones, two releases in one deploy would move every schedule to and fro."""
    assert is_newer(current, known) is is_replaced


def test_a_process_with_older_rules_moves_nothing(env: Env) -> None:
    schedule = env.create(spec="0 9 * * *")
    settled(env)
    set_columns(env, schedule, tzdata="2999a")
    env.runtime.database.transact(lambda connection: metadata.set_value(connection, "tzdata", "2999a"))

    assert repaired(env) == {}


def interrupted(env: Env, monkeypatch: pytest.MonkeyPatch) -> ScheduleHandle:
    """A backfill of twelve minutes whose process died after its first chunk of five."""
    monkeypatch.setattr("rqsched.features.backfill.chain.CHUNK", 5)
    schedule = env.create(spec="* * * * *", overlap="allow_all", paused=True)
    env.advance(20 * MINUTE)
    chunks = schedule.backfill_in_chunks(_range(env))
    next(chunks)
    chunks.close()
    return schedule


def _range(env: Env) -> BackfillRange:
    now = env.clock.now()
    return BackfillRange(now - 12 * MINUTE, now)


def test_an_interrupted_backfill_is_continued(any_env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = interrupted(any_env, monkeypatch)
    settled(any_env)
    assert len(statuses(schedule)) == 5, "it may be alive: the grace is not over"
    any_env.advance(5 * SECOND)

    counts = repaired(any_env)

    assert counts["backfills"] == 1
    assert len(statuses(schedule)) == 12
    assert {run.kind for run in schedule.runs().items} == {"backfill"}
    row = any_env.runtime.database.read(lambda connection: connection.execute(sa.select(backfills)).one())
    assert (row.status, row.attempted, row.started) == ("done", 12, 12)
    assert "backfills" not in repaired(any_env)


def test_each_chunk_of_a_resumed_backfill_is_a_batch_of_its_own(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher fires in between."""
    interrupted(env, monkeypatch)
    env.advance(5 * SECOND)
    settled_counts = [batch.checked for batch in iter_batches(env.runtime) if batch.checked or batch.backfills]

    assert settled_counts[-2:] == [5, 2]


def test_full_pass_records_that_redis_holds_everything_before_it_continues_a_backfill(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backfill may take long: until this is recorded, each pass is a full one."""
    interrupted(env, monkeypatch)
    env.advance(5 * SECOND)
    env.redis.flushall()
    whole = iter_batches(env.runtime)

    assert any(batch.backfills for batch in whole)

    assert env.runtime.ownership.is_known_to_redis()


def test_a_row_that_cannot_be_repaired_starves_no_other(any_env: Env) -> None:
    broken = [any_env.create(f"broken-{i}") for i in range(3)]
    sound = [any_env.create(f"sound-{i}") for i in range(3)]
    settled(any_env)
    for schedule in broken:
        set_columns(any_env, schedule, spec="{}", next_run_at=None, due_at=None)
    for schedule in sound:
        set_columns(any_env, schedule, next_run_at=None, due_at=None)

    counts = repaired(any_env)

    assert (counts["failed"], counts["next_times"]) == (3, 3)
    assert all(any_env.state(schedule).due_at is not None for schedule in sound)


def test_a_run_that_cannot_be_settled_starves_no_other(env: Env) -> None:
    first, run_1 = started(env, schedule_id="first")
    _, run_2 = started(env, schedule_id="second")
    set_columns(env, first, policies='{"overlap":"unheard-of"}')
    for _ in range(4):
        counts = repaired(env)
        env.advance(15 * SECOND)

    assert (counts["failed"], counts["lost"]) == (1, 1)
    assert (run_1.refresh().status, run_2.refresh().status) == ("running", "lost")


def test_a_section_that_fails_does_not_stop_the_others(env: Env) -> None:
    """The key of the scheduled set holds a string, so arming fails. Sections without links still repair."""
    schedule, run = started(env)
    env.redis.delete(env.transport.scheduled_key)
    env.redis.set(env.transport.scheduled_key, "somebody's text")
    set_columns(env, schedule, due_at=env.clock.now(), next_run_at=env.clock.now())
    env.advance(6 * SECOND)
    for _ in range(4):
        counts = env.recover()
        env.advance(15 * SECOND)

    assert counts.failed >= 1
    assert run.refresh().status == "lost"


def test_while_redis_is_away_what_sql_alone_needs_is_repaired(make_env: MakeEnv, own_valkey: ValkeyServer) -> None:
    env = make_env(redis_url=own_valkey.url)
    schedule, run = started(env, overlap="buffer_one")
    schedule.trigger()
    headless = env.create("headless")
    set_columns(env, headless, next_run_at=None, due_at=None)
    own_valkey.kill()
    for _ in range(4):
        counts = env.recover()
        env.advance(15 * SECOND)

    assert counts.failed >= 1, "arming is not possible, and said so"
    assert run.refresh().status == "lost"
    assert statuses(schedule) == ["lost", "pending"], "what waited has its turn"
    assert env.state(headless).due_at is not None
    own_valkey.start()
    assert env.recover().failed == 0
    check_invariants(env.runtime)


def test_more_rows_than_a_page_are_all_compared(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "BATCH", 4)
    for i in range(10):
        env.create(f"s{i}", spec=HOUR)
    env.redis.flushall()

    counts = env.recover()

    assert (counts.checked, counts.links) == (10, 10)
    assert BATCH == 500


PAGES: dict[str, Callable[[Env, Any, int], Any]] = {
    "due links": lambda env, after, limit: env.runtime.database.read(
        lambda connection: reconcile_queries.due_links(connection, None, after, limit)
    ),
    "next-less": lambda env, after, limit: env.runtime.database.read(
        lambda connection: reconcile_queries.without_next_time(connection, after, limit)
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_hold_every_row_once(env: Env, name: str) -> None:
    made = [env.create(f"s{i}") for i in range(7)]
    if name == "next-less":
        for schedule in made:
            set_columns(env, schedule, next_run_at=None, due_at=None)
    rows: list[Any] = []
    cursor = None
    while True:
        page, cursor = PAGES[name](env, cursor, 3)
        rows += page
        if cursor is None:
            break

    assert len(rows) == len(set(rows)) == 7


def test_one_worker_an_interval_reconciles(make_env: MakeEnv) -> None:
    first, second = (make_env(reconcile_interval=10 * MINUTE) for _ in range(2))

    assert reconcile_in_turn(first.runtime) is not None
    assert reconcile_in_turn(second.runtime) is None
    assert 0 < first.redis.pttl(first.transport.interval_key) <= 600_000


def test_the_interval_is_fifteen_seconds_unless_settings_say_otherwise(env: Env) -> None:
    assert env.transport.acquire_interval(env.runtime.settings.reconcile_interval)

    assert 0 < env.redis.pttl(env.transport.interval_key) <= 15_000


def test_a_link_under_a_plain_worker_reconciles_on_the_way(env: Env) -> None:
    """Plain `rq worker`s have no dispatcher, so fires also make the passes."""
    forgotten = env.create("forgotten")
    fired = env.create("fired")
    settled(env)
    forget(env, link_id(forgotten))
    env.advance(MINUTE + 10 * SECOND)
    env.redis.zrem(env.transport.scheduled_key, link_id(fired))
    env.redis.rpush("rq:queue:rqsched", link_id(fired))

    env.work("rqsched")

    assert statuses(fired) == ["pending"]
    assert statuses(forgotten) == ["pending"], "armed by the pass, performed by the same worker"


def test_a_plain_worker_records_what_its_application_registers(env: Env) -> None:
    assert reconcile_in_turn(env.runtime) is not None

    known = env.runtime.database.read(registered_workflows.read_all)

    assert set(known) == {"note"}


def test_a_pass_that_fails_does_not_fail_the_link_that_carried_it(
    env: Env, make_env: MakeEnv, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env.recover()
    stranger = make_env(database_url=f"sqlite:///{tmp_path / 'stranger.db'}")

    assert reconcile_in_turn(stranger.runtime) is None

    assert "reconcile_failed" in {getattr(record, "action", None) for record in caplog.records}


def test_counts_add_up() -> None:
    total = Recovered(checked=3, links=1)
    total.add(Recovered(checked=2, deliveries=2, backfills=1, failed=1))

    assert (total.checked, total.repaired, total.failed) == (5, 4, 1)
