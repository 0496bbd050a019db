"""Queries that run for ever on growing tables use their indexes, whatever values they are asked with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from rqsched.features.backfill.store import page as page_of_backfills
from rqsched.features.hours import store as run_hours
from rqsched.features.limits import store as limits
from rqsched.features.quotas import store as quotas
from rqsched.kernel.decide.model import Change, RunStatus, Schedule, ScheduleStatus
from rqsched.kernel.queries import events as event_queries
from rqsched.kernel.queries import reconcile as queries
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.events import AskedFilters, Position
from rqsched.kernel.queries.schedules import Filters, ended_so, has_status
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.dialect import Dialect, dialect_of
from rqsched.kernel.store.tables import audit_events, backfills, runs, schedules
from tests.kernel.store.samples import NOW, created, run_of, write
from tests.support.plans import Ask, plan, uses

SCANS: dict[str, tuple[Ask, str]] = {
    "due links": (lambda c: queries.due_links(c, NOW, None, 500), "ix_rqsched_schedules_due"),
    "further due links": (lambda c: queries.due_links(c, NOW, (NOW, "0"), 500), "ix_rqsched_schedules_due"),
    "active schedules without a next time": (
        lambda c: queries.without_next_time(c, "0", 500),
        "ix_rqsched_schedules_due",
    ),
    "schedules with waiting runs": (lambda c: queries.waiting(c, "0", 500), "ix_rqsched_schedules_waiting"),
    "pending runs": (lambda c: queries.pending(c, NOW, "0", 500), "ix_rqsched_runs_unfinished"),
    "retrying runs": (lambda c: queries.retrying(c, NOW, "0", 500), "ix_rqsched_runs_unfinished"),
    "running runs without beats": (
        lambda c: queries.without_heartbeat(c, 3, "0", 500),
        "ix_rqsched_runs_unfinished",
    ),
    "external runs without a sign": (
        lambda c: queries.silent(c, NOW, timedelta(seconds=1), "0", 500),
        "ix_rqsched_runs_unfinished",
    ),
    "places that no worker came to claim": (lambda c: limits.passed_over(c, "default"), "ix_rqsched_runs_place"),
    "runs that take places of a group": (lambda c: limits.wants(c, "default/shop", NOW), "ix_rqsched_runs_place"),
    "targets that take places of a group": (
        lambda c: limits.wants(c, "default/shop", NOW),
        "ix_rqsched_targets_place",
    ),
    "runs in the lines of groups that are listed": (
        lambda c: limits.describe(c, ["default/shop"], NOW, 10),
        "ix_rqsched_runs_line",
    ),
    "targets with places of groups that are listed": (
        lambda c: limits.describe(c, ["default/shop"], NOW),
        "ix_rqsched_targets_place",
    ),
    "the busiest groups": (lambda c: limits.busiest(c, 5, NOW, "default"), "ix_rqsched_runs_limit"),
    "groups in which somebody waits long": (
        lambda c: limits.with_slow_line(c, NOW, "default", [], 5),
        "ix_rqsched_runs_line",
    ),
    "the first runs in line": (
        lambda c: limits.first_in_line(c, "default/shop", 5, NOW),
        "ix_rqsched_runs_line",
    ),
    "the first targets in line": (
        lambda c: limits.first_in_line(c, "default/shop", 5, NOW),
        "ix_rqsched_targets_line",
    ),
}

HISTORY = (
    sa.select(audit_events)
    .where(audit_events.c.schedule_uid == "0", audit_events.c.sequence > 100)
    .order_by(audit_events.c.sequence)
    .limit(100)
)
RUNS_PAGE = sa.select(runs).where(runs.c.schedule_uid == "0", runs.c.number < 100).order_by(runs.c.number.desc())
SCHEDULES_PAGE = (
    sa.select(schedules)
    .where(schedules.c.namespace == "default", schedules.c.created_at <= NOW)
    .order_by(schedules.c.created_at.desc(), schedules.c.uid.desc())
)
BACKFILLED = sa.select(runs).where(runs.c.backfill_uid == "0", runs.c.number > 5).order_by(runs.c.number)
BACKFILLS = sa.select(backfills).where(backfills.c.schedule_uid == "0").order_by(backfills.c.uid)


def ended_badly(dialect: Dialect) -> sa.Select[tuple[str]]:
    is_meant = schedules.c.namespace == "default", ended_so(("failed",), is_named=not dialect.has_statistics)
    return sa.select(schedules.c.uid).where(*is_meant).order_by(schedules.c.schedule_id, schedules.c.uid).limit(10)


def at_rest(dialect: Dialect) -> sa.Select[tuple[str]]:
    is_meant = schedules.c.namespace == "default", has_status(("paused",), is_named=not dialect.has_statistics)
    return sa.select(schedules.c.uid).where(*is_meant).order_by(schedules.c.schedule_id, schedules.c.uid).limit(10)


PAGES: dict[str, tuple[Ask, str]] = {
    "history": (lambda c: c.execute(HISTORY), "pk_rqsched_audit_events"),
    "runs": (lambda c: c.execute(RUNS_PAGE), "uq_rqsched_runs_schedule_uid_number"),
    "schedules": (lambda c: c.execute(SCHEDULES_PAGE), "ix_rqsched_schedules_page"),
    "runs of a backfill": (lambda c: c.execute(BACKFILLED), "ix_rqsched_runs_backfill"),
    "live runs": (
        lambda c: run_queries.list_runs(c, "0", limit=50, cursor="100", is_live=True),
        "ix_rqsched_runs_live",
    ),
    "backfills": (lambda c: c.execute(BACKFILLS), "ix_rqsched_backfills_schedule_uid"),
    "backfills of a namespace": (
        lambda c: page_of_backfills(c, "default", schedule_id=None, status=None, limit=3, cursor=None),
        "pk_rqsched_backfills",
    ),
    "schedules without the success that was expected": (
        lambda c: schedule_queries.unsuccessful(c, "default", 6),
        "ix_rqsched_schedules_late",
    ),
    "schedules that ended badly": (lambda c: c.execute(ended_badly(dialect_of(c))), "ix_rqsched_schedules_ended_badly"),
    "schedules at rest": (lambda c: c.execute(at_rest(dialect_of(c))), "ix_rqsched_schedules_resting"),
    "failures of the overview": (
        lambda c: run_queries.failed_since(c, "default", NOW, 1_000),
        "ix_rqsched_runs_failed",
    ),
    "schedules that are late": (
        lambda c: schedule_queries.late(c, "default", NOW, 8),
        "ix_rqsched_schedules_due",
    ),
    "the count of schedules that are late": (
        lambda c: schedule_queries.count_late(c, "default", NOW, 8),
        "ix_rqsched_schedules_due",
    ),
    "events that somebody asked for": (
        lambda c: event_queries.search_asked(c, AskedFilters("default", "ada", since=NOW), before=None, limit=50),
        "ix_rqsched_audit_events_asked",
    ),
    "events that somebody asked for, the oldest first": (
        lambda c: event_queries.read_after(c, ["default"], Position(NOW, "0", 1), limit=100, principal="ada"),
        "ix_rqsched_audit_events_asked",
    ),
    "events that somebody asked for of a schedule": (
        lambda c: event_queries.search_asked(c, AskedFilters("default", schedule_id="s-1"), before=None, limit=50),
        "ix_rqsched_audit_events_asked",
    ),
    "events that somebody asked for before one": (
        lambda c: event_queries.search_asked(c, AskedFilters("default"), before=Position(NOW, "0", 1), limit=50),
        "ix_rqsched_audit_events_asked",
    ),
}

LOOKUPS: dict[str, tuple[Ask, str]] = {
    "retries that were requested since an instant": (
        lambda c: event_queries.retried_since(c, [run_of(created().after, 1)], NOW),
        "ix_rqsched_audit_events_recorded_at",
    ),
    "a schedule by its id": (lambda c: changes.find_named(c, "default", "s-1"), "uq_rqsched_schedules_incarnation"),
    "a schedule by its id, locked": (
        lambda c: changes.lock_named(c, "default", ["s-1"]),
        "uq_rqsched_schedules_incarnation",
    ),
    "what schedules declare": (
        lambda c: quotas.definitions(c, "default", ["s-1"]),
        "uq_rqsched_schedules_incarnation",
    ),
    "schedules to lock": (lambda c: changes.lock(c, ["0", "1"]), "pk_rqsched_schedules"),
    "the runs a decision sees": (lambda c: changes.open_runs(c, [created().after]), "ix_rqsched_runs_open"),
    "the pending runs of a schedule": (lambda c: changes.pending_runs(c, "0"), "ix_rqsched_runs_open"),
    "a run by its number": (lambda c: changes.find_run_by_number(c, "0", 1), "uq_rqsched_runs_schedule_uid_number"),
    "a run by its idempotency key": (
        lambda c: changes.find_run_by_key(c, "0", "key"),
        "uq_rqsched_runs_schedule_uid_idempotency_key",
    ),
    "occurrences that ran": (lambda c: changes.occurrences_run(c, {"0": NOW}, NOW), "uq_rqsched_runs_occurrence"),
    "the backfills of an id": (
        lambda c: page_of_backfills(c, "default", schedule_id="s-1", status=None, limit=3, cursor=None),
        "ix_rqsched_backfills_schedule_uid",
    ),
}


@pytest.mark.parametrize(("ask", "index"), SCANS.values(), ids=SCANS.keys())
def test_an_index_serves_the_scan_for(database: Database, ask: Ask, index: str) -> None:
    fill(database)
    assert uses(database, ask, index)


@pytest.mark.parametrize(("ask", "index"), PAGES.values(), ids=PAGES.keys())
def test_an_index_serves_a_page_in_its_order_of(database: Database, ask: Ask, index: str) -> None:
    assert uses(database, ask, index)
    assert not re.search("sort|temp b-tree", plan(database, ask), re.IGNORECASE)


@pytest.mark.parametrize("name", ["due links", "active schedules without a next time"])
def test_a_scan_comes_in_the_order_of_its_index_and_is_not_sorted(database: Database, name: str) -> None:
    fill(database)
    assert not re.search("sort|temp b-tree", plan(database, SCANS[name][0]), re.IGNORECASE)


def test_late_schedules_are_counted_in_the_order_of_their_index(database: Database) -> None:
    """Without this order, a plan for any time reads the whole table. The plan of a small table cannot show that."""
    found: list[str] = []

    def count(connection: sa.Connection) -> None:
        sa.event.listen(connection, "before_cursor_execute", lambda *args: found.append(args[2]))
        schedule_queries.count_late(connection, "default", NOW, 8)

    database.read(count)
    assert "ORDER BY rqsched_schedules.due_at, rqsched_schedules.uid" in found[-1]


@pytest.mark.parametrize(("ask", "index"), LOOKUPS.values(), ids=LOOKUPS.keys())
def test_an_index_serves_the_search_for(database: Database, ask: Ask, index: str) -> None:
    fill(database)
    assert uses(database, ask, index)


def test_first_waiting_runs_are_the_first_of_their_kinds_in_an_index(database: Database) -> None:
    """A plan for all kinds but one walks the whole history of a schedule, in order of the numbers."""
    fill(database)
    schedule = replace(created().after, buffer_depth=1, backfill_waiting=1, status=ScheduleStatus.PAUSED)
    found = plan(database, lambda c: changes.open_runs(c, [schedule]))
    assert "ix_rqsched_runs_live" not in found, found


def test_backfills_of_an_id_are_found_without_looking_at_other_schedules(database: Database) -> None:
    fill(database)
    found = plan(database, LOOKUPS["the backfills of an id"][0])
    assert "uq_rqsched_schedules_incarnation" in found, found
    assert "ix_rqsched_schedules_page" not in found, found


@pytest.mark.parametrize("statuses", [(), ("active",), ("paused", "done", "dead"), ("deleted",)])
def test_sqlite_counts_schedules_by_status_without_reading_a_row(database: Database, statuses: tuple[str, ...]) -> None:
    filters = Filters(namespace="default", statuses=statuses)
    found = plan(database, lambda c: schedule_queries.count_schedules(c, filters)).splitlines()
    if database.dialect.name == "sqlite":  # PostgreSQL decides by its statistics
        assert found
        assert all("USING COVERING INDEX" in line for line in found), found


def test_condition_of_an_exception_is_said_once_where_the_planner_multiplies_what_is_said() -> None:
    once, named = (str(ended_so(("failed",), is_named=is_named)) for is_named in (False, True))
    assert (once.count("last_outcome"), named.count("last_outcome")) == (1, 2)
    once, named = (str(has_status(("paused",), is_named=is_named)) for is_named in (False, True))
    assert "IN" not in once
    assert "IN" in named


def test_planner_with_statistics_of_before_a_herd_still_looks_up_each_schedules_open_runs(database: Database) -> None:
    if database.dialect.name == "sqlite":  # it has no statistics
        return
    fill(database)
    database.transact(lambda connection: connection.exec_driver_sql("DELETE FROM rqsched_runs WHERE number > 1"))
    database.transact(lambda connection: connection.exec_driver_sql("UPDATE rqsched_runs SET status = 'succeeded'"))
    database.transact(lambda connection: connection.exec_driver_sql("ANALYZE rqsched_runs"))
    found = plan(database, LOOKUPS["the runs a decision sees"][0])
    assert re.search(r"Index Cond: \(\(?schedule_uid", found), found
    assert "ix_rqsched_runs_unfinished" not in found


def test_open_runs_of_a_schedule_that_is_triggered_are_looked_up(database: Database) -> None:
    if database.dialect.name == "sqlite":  # it is not asked so
        return
    fill(database)
    found = plan(database, lambda c: changes.read_idle(c, "0"))
    assert "pk_rqsched_schedules" in found, found
    assert "ix_rqsched_runs_open" in found, found


def outcomes_of_a_day(connection: sa.Connection) -> object:
    is_among, _ = run_queries.newest(connection, NOW, 3_000)
    slot = run_queries.slot_of_creation(connection, NOW, timedelta(hours=1))
    return run_queries.outcomes(connection, "default", is_among, slot)


def test_the_charts_of_the_overview_look_at_the_newest_runs_alone(database: Database) -> None:
    fill(database)
    found = plan(database, outcomes_of_a_day)
    # The one that is the newest but so many, and those from it on.
    if database.dialect.name == "sqlite":
        assert len(re.findall(r"SEARCH rqsched_runs USING INDEX sqlite_autoindex_rqsched_runs_1 \(uid>", found)) == 2
    else:
        assert len(re.findall(r"pk_rqsched_runs .*\n.*Index Cond: \(\(uid\)::text >=", found)) == 2


def test_whether_there_is_another_namespace_is_read_at_the_ends_of_an_index(database: Database) -> None:
    """A plan for any value would read all schedules to find a namespace before or after it."""
    fill(database)
    found = plan(database, outcomes_of_a_day)
    assert "ix_rqsched_schedules_page" in found, found
    assert not re.search(r"namespace\)?(?:::text)? ?[<>]", found), found
    assert not re.search("SCAN rqsched_runs|Seq Scan on rqsched_runs", found), found


def test_runs_that_counting_has_passed_over_are_looked_up_by_their_numbers(database: Database) -> None:
    fill(database)

    def ask(connection: sa.Connection) -> object:
        dialect = dialect_of(connection)
        return connection.execute(run_hours.passed_over(dialect, runs.c.uid), {"among": dialect.listed(["0", "1"])})

    found = plan(database, ask)
    assert not re.search(r"rqsched_runs .*\(schedule_uid=\?\)$", found, re.MULTILINE), found
    assert re.search(r"schedule_uid=\? AND number=\?|schedule_uid\)?.*= .* AND \(number = ", found), found


@pytest.mark.parametrize("sort", ["next", "id", "-id", "-created"])
def test_sqlite_lists_what_is_late_along_the_index_of_next_fires(database: Database, sort: str) -> None:
    if database.dialect.name != "sqlite":  # PostgreSQL decides by its statistics
        return
    fill(database)
    late = Filters("default", statuses=("active",), next_until=NOW)
    found = plan(database, lambda c: schedule_queries.list_schedules(
        c, late, limit=50, cursor=None, sort=sort, most_looked_at=1_000
    )).splitlines()  # fmt: skip
    indexes = {line.partition(" USING ")[2] for line in found if "USING INDEX" in line}
    assert indexes
    assert all(line.startswith("INDEX ix_rqsched_schedules_due (due_at") for line in indexes), found
    assert ("USE TEMP B-TREE FOR ORDER BY" in found) == (sort != "next")


def test_sqlite_reads_all_that_fires_next_along_its_index_a_page_at_a_time(database: Database) -> None:
    if database.dialect.name != "sqlite":  # PostgreSQL decides by its statistics
        return
    fill(database)
    found = plan(database, lambda c: schedule_queries.search_schedules(
        c, Filters("default"), sort="next", after=(NOW, "0"), limit=500, most_looked_at=None
    ))  # fmt: skip
    assert re.fullmatch(r"SEARCH rqsched_schedules USING INDEX ix_rqsched_schedules_due \(.*due_at.*>.*\)", found), (
        found
    )


def test_sqlite_reads_the_events_of_namespaces_from_the_time_on_that_is_asked_for(database: Database) -> None:
    if database.dialect.name != "sqlite":  # PostgreSQL decides by its statistics
        return
    fill(database)
    found = plan(database, lambda c: event_queries.read_after(c, ["default", "b"], Position(NOW, "0", 1), limit=100))
    assert "SEARCH rqsched_audit_events USING INDEX ix_rqsched_audit_events_recorded_at (recorded_at>?)" in found
    assert "namespace" not in found, "every event of a namespace would be read once a second"


def test_planner_is_left_no_way_to_compare_a_whole_namespace_with_many_ids(database: Database) -> None:
    if database.dialect.name == "sqlite":  # it takes the index of which it knows more columns
        return
    fill(database)
    for name in ("a schedule by its id, locked", "what schedules declare"):
        found = plan(database, LOOKUPS[name][0])
        assert re.search(r"Index Cond: .*namespace.* AND .*schedule_id", found), found
        assert "ANY" not in found, found


def test_new_schedules_are_looked_up_for_those_that_come_after_them(database: Database) -> None:
    """One transaction may create many. Without statistics a plan read the whole table for each batch."""

    def ask(connection: sa.Connection) -> object:
        dialect = dialect_of(connection)
        return connection.execute(changes.note_followed(dialect), {"among": dialect.listed(["0", "1"])})

    found = plan(database, ask)
    by_uid = r"SEARCH rqsched_schedules USING INDEX \S* \(uid=\?\)|Index Cond: \(\(uid\)::text = "
    assert len(re.findall(by_uid, found)) == 2, found
    assert found.count("ix_rqsched_schedules_upstream") == 2
    assert database.dialect.name == "sqlite" or "One-Time Filter" in found, "none is, where no schedule has another"


def fill(database: Database) -> None:
    """Many schedules with a few unfinished runs each, one of them with a long past, and the planner's statistics."""
    changes = [created(f"s-{number}") for number in range(200)]
    write(database, *[_created_at(change, NOW + timedelta(seconds=n)) for n, change in enumerate(changes)], created())
    write(database, *[_with_runs(change.after, range(1, 6), RunStatus.PENDING) for change in changes])
    write(database, _with_runs(created().after, range(1, 300), RunStatus.SUCCEEDED))
    if database.dialect.name != "sqlite":  # SQLite has no statistics: nothing here asks for them
        database.transact(lambda connection: connection.exec_driver_sql("ANALYZE"))


def _created_at(change: Change, instant: datetime) -> Change:
    return replace(change, after=replace(change.after, created_at=instant))


def _with_runs(schedule: Schedule, numbers: Iterable[int], status: RunStatus) -> Change:
    found = tuple(run_of(schedule, number, status, idempotency_key=f"key-{number}") for number in numbers)
    return Change(schedule, replace(schedule, run_number=len(found)), new_runs=found)
