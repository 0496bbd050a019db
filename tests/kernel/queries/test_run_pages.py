"""Pages of the runs of all schedules: each run once and in order, few looked at for each page, along their indexes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import sqlalchemy as sa

from rqsched.errors import InvalidInputError, InvalidLimitError
from rqsched.kernel.decide.ids import derived_uid
from rqsched.kernel.decide.model import Change, RunStatus, Schedule
from rqsched.kernel.queries.run_pages import FoundRuns, RunFilters, _count_some, count_runs, fill_runs, search_runs
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import runs
from tests.kernel.store.samples import NOW, add_schedule, created, run_of, write
from tests.support.plans import Ask, plan, uses

SECOND = timedelta(seconds=1)
ALL = RunFilters("default")
OPEN = ("buffered", "pending", "retrying", "running")
LONG = {RunStatus.FAILED: "ValueError: no such customer: 7", RunStatus.LOST: "its process vanished: 100%"}


def add_runs(database: Database, schedule: Schedule, statuses: dict[int, RunStatus]) -> None:
    """A run a second, by the second of its creation; the numbers count on."""
    found = [
        replace(
            run_of(schedule, number, status), uid=derived_uid(NOW + n * SECOND, schedule.uid, number),
            created_at=NOW + n * SECOND, error=LONG.get(status),
            ended_at=NOW + (100 - n) * SECOND if status in LONG else None,
        )
        for number, (n, status) in enumerate(statuses.items(), start=1)
    ]  # fmt: skip
    write(database, Change(schedule, replace(schedule, run_number=len(found)), new_runs=tuple(found)))


@pytest.fixture
def filled(database: Database) -> Database:
    """Thirty runs of two schedules in turn: every seventh failed, every tenth was lost, the last two wait."""
    one, two = add_schedule(database, "one"), add_schedule(database, "two", workflow="other")
    statuses = {
        n: RunStatus.LOST if n % 10 == 9 else RunStatus.FAILED if n % 7 == 0 else RunStatus.SUCCEEDED for n in range(28)
    }
    statuses |= {28: RunStatus.PENDING, 29: RunStatus.PENDING}
    for schedule, half in ((one, 0), (two, 1)):
        add_runs(database, schedule, {n: status for n, status in statuses.items() if n % 2 == half})
    return database


def seconds(found: FoundRuns) -> list[int]:
    """Return the found runs by the second of their creation."""
    return [(run.created_at - NOW) // SECOND for _, run in found.items]


def walk(database: Database, filters: RunFilters, sort: str, *, limit: int = 4, most: int = 1_000) -> list[list[int]]:
    """All pages."""
    found, cursor = list[list[int]](), None
    while True:
        search = partial(search_runs, filters=filters, sort=sort, limit=limit, most_looked_at=most, is_slim=True)
        page = database.read(partial(search, cursor=cursor))
        assert len(page.items) <= limit
        found.append(seconds(page))
        cursor = page.following
        if cursor is None:
            return found


CHOICES: dict[str, tuple[RunFilters, str, list[int]]] = {
    "all": (ALL, "-created", [*range(29, -1, -1)]),
    "all, the oldest first": (ALL, "created", [*range(30)]),
    "of one schedule": (ALL._replace(schedule_id="two"), "-created", [*range(29, -1, -2)]),
    "of one schedule, the oldest first": (ALL._replace(schedule_id="one"), "created", [*range(0, 30, 2)]),
    "of no schedule": (ALL._replace(schedule_id="three"), "-created", []),
    "of another namespace": (RunFilters("acme"), "-created", []),
    "of a text that no id has": (ALL._replace(schedule_id="\x00"), "-created", []),
    "failed, by their creation": (ALL._replace(statuses=("failed",)), "-created", [21, 14, 7, 0]),
    "failed and lost, by their end": (ALL, "-ended", [0, 7, 9, 14, 19, 21]),
    "lost, by their end": (ALL._replace(statuses=("lost",)), "-ended", [9, 19]),
    "failed of one schedule": (ALL._replace(schedule_id="one"), "-ended", [0, 14]),
    "an error's text": (ALL._replace(error="SUCH customer"), "-ended", [0, 7, 14, 21]),
    "a text that SQL could read": (ALL._replace(error="100%"), "-created", [19, 9]),
    "a text that means nothing to SQL": (ALL._replace(error="%vanished_"), "-created", []),
    "pending": (ALL._replace(statuses=("pending",)), "-created", [29, 28]),
    "open": (ALL._replace(statuses=OPEN), "-created", [29, 28]),
    "pending, blocked or running, the oldest first": (
        ALL._replace(statuses=("pending", "blocked", "running")), "created", [28, 29],
    ),
    "blocked": (ALL._replace(statuses=("blocked",)), "-created", []),
    "a workflow": (ALL._replace(workflow="report", statuses=("pending",)), "-created", [29, 28]),
    "a time": (ALL._replace(since=NOW + 3 * SECOND, until=NOW + 6 * SECOND), "-created", [5, 4, 3]),
    "a time, the oldest first": (ALL._replace(since=NOW + 3 * SECOND, until=NOW + 6 * SECOND), "created", [3, 4, 5]),
    "a time of one schedule": (
        ALL._replace(schedule_id="one", since=NOW + 3 * SECOND, until=NOW + 7 * SECOND), "-created", [6, 4],
    ),
    "a time of ends": (ALL._replace(since=NOW + 81 * SECOND, until=NOW + 100 * SECOND), "-ended", [7, 9, 14, 19]),
}  # fmt: skip


@pytest.mark.parametrize("most", [1_000, 5, 1], ids=lambda most: f"{most} looked at")
@pytest.mark.parametrize(("filters", "sort", "expected"), CHOICES.values(), ids=CHOICES.keys())
def test_pages_show_each_run_that_matches_once_and_in_order(
    filled: Database, filters: RunFilters, sort: str, expected: list[int], most: int
) -> None:
    assert [n for page in walk(filled, filters, sort, most=most) for n in page] == expected


def test_page_ends_after_the_runs_it_may_look_at_and_says_where_to_search_on(filled: Database) -> None:
    rare = ALL._replace(statuses=("failed",))
    found = filled.read(
        lambda c: search_runs(c, rare, sort="-created", cursor=None, limit=10, most_looked_at=5, is_slim=True)
    )
    assert (found.items, found.is_cut) == ([], True)
    assert walk(filled, rare, "-created", limit=10, most=5) == [[], [21], [], [14], [7], [0], []]
    assert seconds_of_filled(filled, rare, limit=3) == [21, 14, 7]


def seconds_of_filled(database: Database, filters: RunFilters, limit: int) -> list[int]:
    page = fill_runs(database, filters, limit=limit, cursor=None)
    return seconds(FoundRuns(page.items, page.next_cursor, is_cut=False))


def test_search_within_a_time_ends_where_the_time_does(filled: Database) -> None:
    recent = ALL._replace(schedule_id="one", since=NOW + 20 * SECOND)
    assert walk(filled, recent, "-created", most=3) == [[28, 26, 24], [22, 20]]


def test_runs_of_an_id_are_those_of_all_its_incarnations(database: Database) -> None:
    for n in range(50):
        change = created("again", incarnation=n)
        at = NOW + n * SECOND
        schedule = replace(change.after, uid=derived_uid(at, "again", n), created_at=at, updated_at=at)
        gone = replace(schedule, status=type(schedule.status)("deleted"), next_run_at=None, due_at=None)
        write(database, replace(change, after=schedule if n == 49 else gone))
        add_runs(database, schedule if n == 49 else gone, {n: RunStatus.SUCCEEDED})
    of_id = ALL._replace(schedule_id="again")
    for sort, expected in (("-created", range(49, -1, -1)), ("created", range(50))):
        assert [n for page in walk(database, of_id, sort, limit=7) for n in page] == [*expected]
    assert len(seconds_of_filled(database, of_id._replace(statuses=("failed",)), limit=5)) == 0


@pytest.mark.parametrize("cursor", ["x", "01KF0000000000000000000000.x", "2026", ""])
@pytest.mark.parametrize(
    ("filters", "sort"), [(ALL, "-created"), (ALL._replace(schedule_id="one"), "-created"), (ALL, "-ended")]
)
def test_cursor_of_another_list_is_refused(filled: Database, filters: RunFilters, sort: str, cursor: str) -> None:
    with pytest.raises(InvalidLimitError, match="cursor"):
        filled.read(lambda c: search_runs(c, filters, sort=sort, cursor=cursor, limit=4))


def test_order_that_is_none_is_refused(filled: Database) -> None:
    with pytest.raises(InvalidInputError, match="'ended' is not one of created, -created, -ended"):
        filled.read(lambda c: search_runs(c, ALL, sort="ended", cursor=None, limit=4))


@pytest.mark.parametrize("most", [1, 2, 1_000])
def test_open_runs_are_counted_once_with_their_first_and_last_uid(filled: Database, most: int) -> None:
    found = count_runs(filled, ALL._replace(statuses=(*OPEN, "blocked")), sort="-created", most=most)
    (_, newest), (_, oldest) = fill_runs(filled, ALL._replace(statuses=OPEN), limit=5, cursor=None).items
    assert found == (2, (oldest.uid, newest.uid))


FIRST = derived_uid(NOW - timedelta(hours=1), "any")
LATER = derived_uid(NOW + timedelta(hours=1), "any")
PLANS: dict[str, tuple[Ask, str]] = {
    "all runs": (lambda c: ask(c, ALL, "-created", LATER), "pk_rqsched_runs"),
    "succeeded runs of a workflow in a time": (
        lambda c: ask(c, ALL._replace(statuses=("succeeded",), workflow="report", since=NOW, until=NOW), "-created"),
        "pk_rqsched_runs",
    ),
    "pending runs": (
        lambda c: ask(c, ALL._replace(statuses=("pending",)), "-created", LATER), "ix_rqsched_runs_unfinished",
    ),
    "failed runs by their end": (
        lambda c: ask(c, ALL._replace(error="x", since=NOW), "-ended"), "ix_rqsched_runs_failed",
    ),
    "runs of one schedule": (
        lambda c: ask(c, ALL._replace(schedule_id="one"), "-created"), "uq_rqsched_runs_schedule_uid_number",
    ),
}  # fmt: skip


def ask(connection: sa.Connection, filters: RunFilters, sort: str, cursor: str | None = None) -> object:
    """Two runs may be looked at, so that the page has an end, too."""
    return search_runs(connection, filters, sort=sort, cursor=cursor, limit=10, most_looked_at=2, is_slim=True)


@pytest.mark.parametrize(("ask", "index"), PLANS.values(), ids=PLANS.keys())
def test_an_index_serves_a_page_in_its_order_of(filled: Database, ask: Callable[..., object], index: str) -> None:
    assert uses(filled, ask, index)
    found = plan(filled, ask)
    assert not re.search("sort|temp b-tree", found, re.IGNORECASE), found
    assert not re.search(r"SCAN rqsched_(runs|schedules)\b(?! USING)", found), found


def test_page_of_runs_in_line_reads_no_more_of_a_long_line_than_it_shows(postgres_database: Database) -> None:
    """The planner's statistics expect few runs in line, because each condition leaves few of all runs."""
    schedule = add_schedule(postgres_database)
    add_runs(
        postgres_database, schedule, {n: RunStatus.SUCCEEDED if n < 1_900 else RunStatus.PENDING for n in range(2_000)}
    )

    def put_in_line(connection: sa.Connection) -> None:
        is_pending = runs.c.status == RunStatus.PENDING.value
        connection.execute(sa.update(runs).where(is_pending).values(limit_group="default/shop", limit_at=NOW))
        connection.exec_driver_sql("ANALYZE rqsched_runs")

    postgres_database.transact(put_in_line)
    filters = ALL._replace(statuses=("pending",), is_in_line=True)
    found = plan(postgres_database, lambda c: search_runs(c, filters, limit=10, cursor=None, is_slim=True))
    assert "Sort Key: rqsched_runs.uid DESC" not in found, found
    assert "Index Scan Backward using ix_rqsched_runs_unfinished" in found, found


@pytest.mark.parametrize("statuses", [OPEN, ("pending", "running"), ("buffered",)], ids=",".join)
@pytest.mark.parametrize("sort", ["created", "-created"])
def test_search_and_count_of_open_runs_read_only_indexes_of_open_runs(
    filled: Database, statuses: tuple[str, ...], sort: str
) -> None:
    filters = ALL._replace(statuses=statuses, as_of=NOW + timedelta(hours=1), uids=(FIRST, LATER))
    for asked in (lambda c: ask(c, filters, sort), lambda c: _count_some(c, filters, sort, None)):
        found = plan(filled, asked)
        assert len(re.findall("ix_rqsched_runs_(?:unfinished|open)", found)) >= 2 * len(statuses), found
        walked = r"(SCAN rqsched_runs|autoindex_rqsched_runs_1 \(uid[<>]|pk_rqsched_runs on rqsched_runs .*\n *Filter)"
        others = [line for line in found.splitlines() if re.search(walked, line) and "runs_open" not in line]
        assert not others, found
