"""Passes of reconcile: their parts, pages and turns, and that nothing in one starves the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain.backfill import Range
from rqsched.chain.reconcile import BATCH, Recovered, acquire_interval, iter_batches, reconcile_in_turn, repair
from rqsched.chain.reconcile.schedules import is_newer
from rqsched.core import audit
from rqsched.spec.zones import tzdata_version
from rqsched.store import metadata, reconcile_queries, registered_workflows
from rqsched.store.tables import backfills
from tests.chain.conftest import MakeRig
from tests.support.damage import HOUR, forget, repaired, set_columns, settled, started
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.rig import MINUTE, SECOND, Rig, events, link_id, statuses
from tests.support.servers import ValkeyServer


def test_new_timezone_rules_move_the_next_times_once(any_rig: Rig) -> None:
    schedule = any_rig.create(spec="0 9 * * *", timezone="Europe/Berlin")
    other = any_rig.create("utc", spec="0 9 * * *")
    settled(any_rig)
    planned = present(schedule.next_run_at)
    wrong = planned + HOUR
    set_columns(any_rig, schedule, next_run_at=wrong, due_at=wrong, tzdata="2001a")
    set_columns(any_rig, other, tzdata="2001a")
    any_rig.runtime.database.transact(lambda connection: metadata.set_value(connection, "tzdata", "2001a"))

    assert repaired(any_rig)["retimed"] == 2

    after = any_rig.state(schedule)
    assert (after.next_run_at, after.n, after.tzdata) == (planned, 1, tzdata_version())
    assert any_rig.state(other).n == 0
    assert link_id(schedule) in any_rig.armed()
    (event,) = events(schedule, audit.RECOVERED)
    assert event.payload["reason"] == "timezone_rules_changed"
    assert not events(other, audit.RECOVERED)
    assert repaired(any_rig) == {}


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
    """Else two releases in the middle of a deploy would move every schedule to and fro."""
    assert is_newer(current, known) is is_replaced


def test_a_process_with_older_rules_moves_nothing(rig: Rig) -> None:
    schedule = rig.create(spec="0 9 * * *")
    settled(rig)
    set_columns(rig, schedule, tzdata="2999a")
    rig.runtime.database.transact(lambda connection: metadata.set_value(connection, "tzdata", "2999a"))

    assert repaired(rig) == {}


def interrupted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> ScheduleHandle:
    """A backfill of twelve minutes whose process died after its first chunk of five."""
    monkeypatch.setattr("rqsched.chain.backfill.CHUNK", 5)
    schedule = rig.create(spec="* * * * *", overlap="allow_all", paused=True)
    rig.advance(20 * MINUTE)
    chunks = schedule.iter_backfill(_range(rig))
    next(chunks)
    chunks.close()
    return schedule


def _range(rig: Rig) -> Range:
    now = rig.clock.now()
    return Range(now - 12 * MINUTE, now)


def test_an_interrupted_backfill_is_continued(any_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = interrupted(any_rig, monkeypatch)
    settled(any_rig)
    assert len(statuses(schedule)) == 5, "it may be alive: the grace is not over"
    any_rig.advance(5 * SECOND)

    counts = repaired(any_rig)

    assert counts["backfills"] == 1
    assert len(statuses(schedule)) == 12
    assert {run.kind for run in schedule.runs().items} == {"backfill"}
    row = any_rig.runtime.database.read(lambda connection: connection.execute(sa.select(backfills)).one())
    assert (row.status, row.attempted, row.started) == ("done", 12, 12)
    assert "backfills" not in repaired(any_rig)


def test_each_chunk_of_a_resumed_backfill_is_a_batch_of_its_own(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher fires in between."""
    interrupted(rig, monkeypatch)
    rig.advance(5 * SECOND)
    settled_counts = [batch.checked for batch in iter_batches(rig.runtime) if batch.checked or batch.backfills]

    assert settled_counts[-2:] == [5, 2]


def poison(rig: Rig, schedule: ScheduleHandle) -> None:
    set_columns(rig, schedule, spec='{"members": "nonsense"}', next_run_at=None, due_at=None)


def test_a_row_that_cannot_be_repaired_starves_no_other(any_rig: Rig) -> None:
    broken = [any_rig.create(f"broken-{i}") for i in range(3)]
    sound = [any_rig.create(f"sound-{i}") for i in range(3)]
    settled(any_rig)
    for schedule in broken:
        poison(any_rig, schedule)
    for schedule in sound:
        set_columns(any_rig, schedule, next_run_at=None, due_at=None)

    counts = repaired(any_rig)

    assert (counts["failed"], counts["next_times"]) == (3, 3)
    assert all(any_rig.state(schedule).due_at is not None for schedule in sound)


def test_a_run_that_cannot_be_settled_starves_no_other(rig: Rig) -> None:
    first, run_1 = started(rig, schedule_id="first")
    _, run_2 = started(rig, schedule_id="second")
    set_columns(rig, first, policies='{"overlap":"unheard-of"}')
    for _ in range(4):
        counts = repaired(rig)
        rig.advance(15 * SECOND)

    assert (counts["failed"], counts["lost"]) == (1, 1)
    assert (run_1.refresh().status, run_2.refresh().status) == ("running", "lost")


def test_a_section_that_fails_does_not_stop_the_others(rig: Rig) -> None:
    """Here the scheduled set is something else: arming fails, what needs no link is repaired."""
    schedule, run = started(rig)
    rig.redis.delete(rig.transport.scheduled_key)
    rig.redis.set(rig.transport.scheduled_key, "somebody's text")
    set_columns(rig, schedule, due_at=rig.clock.now(), next_run_at=rig.clock.now())
    rig.advance(6 * SECOND)
    for _ in range(4):
        counts = rig.recover()
        rig.advance(15 * SECOND)

    assert counts.failed >= 1
    assert run.refresh().status == "lost"


def test_while_redis_is_away_what_sql_alone_needs_is_repaired(make_rig: MakeRig, own_valkey: ValkeyServer) -> None:
    rig = make_rig(redis_url=own_valkey.url)
    schedule, run = started(rig, overlap="buffer_one")
    schedule.trigger()
    headless = rig.create("headless")
    set_columns(rig, headless, next_run_at=None, due_at=None)
    own_valkey.kill()
    for _ in range(4):
        counts = rig.recover()
        rig.advance(15 * SECOND)

    assert counts.failed >= 1, "arming is not possible, and said so"
    assert run.refresh().status == "lost"
    assert statuses(schedule) == ["lost", "pending"], "what waited has its turn"
    assert rig.state(headless).due_at is not None
    own_valkey.start()
    assert rig.recover().failed == 0
    check_invariants(rig.runtime)


def test_more_rows_than_a_page_are_all_compared(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "BATCH", 4)
    for i in range(10):
        rig.create(f"s{i}", spec=HOUR)
    rig.redis.flushall()

    counts = rig.recover()

    assert (counts.checked, counts.links) == (10, 10)
    assert BATCH == 500


PAGES: dict[str, Callable[[Rig, Any, int], Any]] = {
    "due links": lambda rig, after, limit: rig.runtime.database.read(
        lambda connection: reconcile_queries.due_links(connection, None, after, limit)
    ),
    "next-less": lambda rig, after, limit: rig.runtime.database.read(
        lambda connection: reconcile_queries.without_next_time(connection, after, limit)
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_hold_every_row_once(rig: Rig, name: str) -> None:
    made = [rig.create(f"s{i}") for i in range(7)]
    if name == "next-less":
        for schedule in made:
            set_columns(rig, schedule, next_run_at=None, due_at=None)
    rows: list[Any] = []
    cursor = None
    while True:
        page, cursor = PAGES[name](rig, cursor, 3)
        rows += page
        if cursor is None:
            break

    assert len(rows) == len(set(rows)) == 7


def test_one_worker_an_interval_reconciles(make_rig: MakeRig) -> None:
    first, second = (make_rig(reconcile_interval=10 * MINUTE) for _ in range(2))

    assert reconcile_in_turn(first.runtime) is not None
    assert reconcile_in_turn(second.runtime) is None
    assert 0 < first.redis.pttl(first.transport.interval_key) <= 600_000


def test_the_interval_is_fifteen_seconds_unless_settings_say_otherwise(rig: Rig) -> None:
    assert acquire_interval(rig.runtime)

    assert 0 < rig.redis.pttl(rig.transport.interval_key) <= 15_000


def test_a_link_under_a_plain_worker_reconciles_on_the_way(rig: Rig) -> None:
    """A fleet of plain `rq worker`s has no dispatcher: fires carry the passes along."""
    forgotten = rig.create("forgotten")
    fired = rig.create("fired")
    settled(rig)
    forget(rig, link_id(forgotten))
    rig.advance(MINUTE + 10 * SECOND)
    rig.redis.zrem(rig.transport.scheduled_key, link_id(fired))
    rig.redis.rpush("rq:queue:rqsched", link_id(fired))

    rig.work("rqsched")

    assert statuses(fired) == ["pending"]
    assert statuses(forgotten) == ["pending"], "armed by the pass, performed by the same worker"


def test_a_plain_worker_records_what_its_application_registers(rig: Rig) -> None:
    assert reconcile_in_turn(rig.runtime) is not None

    known = rig.runtime.database.read(registered_workflows.read_all)

    assert set(known) == {"note"}


def test_a_pass_that_fails_does_not_fail_the_link_that_carried_it(
    rig: Rig, make_rig: MakeRig, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rig.recover()
    stranger = make_rig(database_url=f"sqlite:///{tmp_path / 'stranger.db'}")

    assert reconcile_in_turn(stranger.runtime) is None

    assert "reconcile_failed" in {getattr(record, "action", None) for record in caplog.records}


def test_counts_add_up() -> None:
    total = Recovered(checked=3, links=1)
    total.add(Recovered(checked=2, deliveries=2, backfills=1, failed=1))

    assert (total.checked, total.repaired, total.failed) == (5, 4, 1)
