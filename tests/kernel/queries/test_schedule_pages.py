"""Pages of schedules: bounded, and none is lost or shown twice whatever is looked for, in whatever order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.schedules import SORTS, Filters, Found, Position, search_schedules
from rqsched.kernel.store.tables import schedules
from tests.support.env import HOUR, NOON, SECOND, Env

LIMIT, MOST = 3, 7
ALL = Filters(namespace="default")
FILTERS = {
    "workflow": replace(ALL, workflow="other"),
    "label": replace(ALL, labels={"team": "b"}),
    "text": replace(ALL, text="9"),
    "text of one": replace(ALL, text="s-39"),
    "text of none": replace(ALL, text="nowhere"),
    "active": replace(ALL, statuses=("active",)),
    "paused": replace(ALL, statuses=("paused",)),
    "paused or dead": replace(ALL, statuses=("paused", "dead")),
    "deleted": replace(ALL, statuses=("deleted",)),
    "paused or deleted": replace(ALL, statuses=("paused", "deleted")),
    "paused with a label": replace(ALL, statuses=("paused",), labels={"team": "b"}),
    "deleted with a text": replace(ALL, statuses=("deleted",), text="3"),
    "failed, as many": replace(ALL, outcomes=("failed",)),
    "lost, as few": replace(ALL, outcomes=("lost",)),
    "failed or lost": replace(ALL, outcomes=("failed", "lost")),
    "failed and active": replace(ALL, outcomes=("failed",), statuses=("active",)),
    "failed with a workflow": replace(ALL, outcomes=("failed",), workflow="other"),
    "succeeded": replace(ALL, outcomes=("succeeded",)),
    "overdue": replace(ALL, overdue=True),
    "not overdue": replace(ALL, overdue=False),
    "created in a span": replace(ALL, created_since=NOON + SECOND, created_until=NOON + 3 * SECOND),
    "created late, with a label": replace(ALL, created_since=NOON + 2 * SECOND, labels={"team": "a"}),
    "fires in a span": replace(ALL, next_since=NOON + HOUR + SECOND, next_until=NOON + HOUR + 4 * SECOND),
    "one id": replace(ALL, schedule_id="s-07"),
    "nothing": ALL,
}


@pytest.fixture
def forty(any_env: Env) -> Env:
    """Forty schedules, many of them created at the same instant, and three of a neighbour."""
    any_env.register("other", lambda: None)
    for number in range(40):
        any_env.create(
            f"s-{number:02}", HOUR + number % 4 * SECOND, "other" if number % 5 == 0 else "note",
            labels={"team": "b" if number % 6 == 0 else "a"},
        )  # fmt: skip
        if number % 8 == 0:
            any_env.advance(SECOND)
    for number in range(3):
        any_env.create(f"s-{number:02}", namespace="neighbour")
    for number in range(0, 40, 3):
        any_env.scheduler.get(f"s-{number:02}").pause()
    for number in range(1, 40, 10):
        any_env.scheduler.get(f"s-{number:02}").delete()
    ended = {"failed": range(4, 40, 3), "lost": range(2, 30, 12), "succeeded": range(0, 40, 3)}
    for outcome, numbers in ended.items():
        change(any_env, [f"s-{number:02}" for number in numbers], last_outcome=outcome, success_count=1)
    change(any_env, ["s-05", "s-08"], overdue_since=NOON)
    return any_env


def change(env: Env, ids: list[str], **values: Any) -> None:
    named = sa.update(schedules).where(schedules.c.schedule_id.in_(ids)).values(**values)
    env.scheduler.runtime.database.transact(lambda connection: connection.execute(named))


def read(env: Env, filters: Filters, sort: str, after: Position | None, limit: int, most: int | None) -> Found:
    look = partial(search_schedules, filters=filters, sort=sort, after=after, limit=limit, most_looked_at=most)
    return env.scheduler.runtime.database.read(look)


@pytest.mark.parametrize("sort", SORTS)
def test_pages_of_a_bounded_search_hold_each_match_once_and_in_order(forty: Env, sort: str) -> None:
    for name, filters in FILTERS.items():
        wanted = read(forty, filters, sort, None, 1_000, None)
        assert (wanted.following, wanted.is_cut) == (None, False), name
        found: list[Schedule] = []
        after, pages = None, 0
        while pages == 0 or after is not None:
            page = read(forty, filters, sort, after, LIMIT, MOST)
            found, after, pages = [*found, *page.items], page.following, pages + 1
            assert len(page.items) == LIMIT or page.is_cut or after is None, name
            assert not (page.is_cut and len(page.items) > LIMIT), name
        assert [one.uid for one in found] == [one.uid for one in wanted.items], name
        assert pages <= 40 // LIMIT + 40 // MOST + 2, name
        filled = schedule_queries.fill_page(forty.scheduler.runtime.database, filters, limit=40, cursor=None, sort=sort)
        assert [one.uid for one in filled.items] == [one.uid for one in wanted.items], name


def test_count_is_that_of_all_pages(forty: Env) -> None:
    read_in = forty.scheduler.runtime.database.read
    several = {
        "not deleted": replace(ALL, statuses=("active", "paused", "done", "dead")),
        "active or deleted": replace(ALL, statuses=("active", "deleted")),
    }
    for name, filters in {**FILTERS, **several}.items():
        wanted = len(read(forty, filters, "created", None, 1_000, None).items)
        assert read_in(partial(schedule_queries.count_schedules, filters=filters)) == wanted, name
    everywhere = read_in(partial(schedule_queries.count_schedules, filters=replace(ALL, namespace=None)))
    assert everywhere == read_in(partial(schedule_queries.count_schedules, filters=ALL)) + 3


@pytest.mark.parametrize("most", [3, 1_000])
def test_overview_counts_each_status_up_to_a_bound(forty: Env, most: int) -> None:
    change(forty, ["s-05", "s-08"], status="done", due_at=None, next_run_at=None)
    found = forty.scheduler.runtime.database.read(
        partial(schedule_queries.count_by_status, namespace="default", most=most)
    )
    alone = {status: replace(ALL, statuses=(status,)) for status in ("active", "paused", "done", "dead")}
    wanted = {name: len(read(forty, one, "created", None, most, None).items) for name, one in alone.items()}
    assert found == wanted
    assert wanted["done"] == 2


@pytest.mark.parametrize(("namespace", "most", "expected"), [(None, 3, 3), (None, 1_000, 3), ("acme", 1_000, 2)])
def test_active_schedules_of_a_namespace_or_of_all_are_counted_up_to_a_bound(
    any_env: Env, namespace: str | None, most: int, expected: int
) -> None:
    for place, id_ in (("default", "one"), ("default", "rests"), ("acme", "two"), ("acme", "three")):
        any_env.create(id_, namespace=place)
    change(any_env, ["rests"], status="done", due_at=None, next_run_at=None)
    count = partial(schedule_queries.count_active, namespace=namespace, most=most)
    assert any_env.scheduler.runtime.database.read(count) == expected
    assert any_env.scheduler.runtime.database.read(partial(count, most=1)) == 1


def test_sqlite_counts_what_is_active_behind_many_others_without_their_rows(env: Env) -> None:
    for number in range(22):
        env.create(f"s-{number:02}")
    change(env, [f"s-{number:02}" for number in range(20)], status="done", due_at=None, next_run_at=None)
    with plans(env) as found:
        counts = env.scheduler.runtime.database.read(
            partial(schedule_queries.count_by_status, namespace="default", most=3)
        )
    assert counts == {"active": 2, "paused": 0, "done": 3, "dead": 0}
    lines = [line for plan in found for line in plan.splitlines() if "rqsched_schedules" in line]
    in_rows = [line for line in lines if "COVERING INDEX" not in line]
    assert len(in_rows) == 2, "the look at some by creation, and the look at some that are active"


def test_active_schedules_are_counted_behind_many_others_and_among_those_of_many_namespaces(any_env: Env) -> None:
    for number in range(20):
        any_env.create(f"a-{number:02}", namespace="acme")
        any_env.create(f"s-{number:02}")
    change(any_env, [f"s-{number:02}" for number in range(18)], status="done", due_at=None, next_run_at=None)
    count = partial(schedule_queries.count_by_status, namespace="default")
    for most, active in ((1, 1), (2, 2), (3, 2), (5, 2), (1_000, 2)):
        assert any_env.runtime.database.read(partial(count, most=most))["active"] == active, most


def test_overview_counts_no_more_of_what_is_active_than_it_shows(env: Env) -> None:
    """This holds for any number of active schedules, also beside a full page of others."""
    count = partial(schedule_queries.count_by_status, namespace="default", most=3)
    steps = []
    for number in range(160):
        env.create(f"s-{number:02}")
        if number == 2:
            change(env, ["s-00", "s-01", "s-02"], status="done", due_at=None, next_run_at=None)
        if number in {19, 159}:
            steps.append(steps_of(env, count))
    assert steps[1] < 1.5 * steps[0], "the same, but for how many of the done are among those that are looked at"


def steps_of(env: Env, read: Callable[[sa.Connection], object]) -> int:
    """Count the steps of SQLite's machine that a reading takes."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    def counted(connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(step, 1)
        read(connection)
        driver.set_progress_handler(None, 1)

    env.scheduler.runtime.database.read(counted)
    return taken


def test_search_looks_at_no_more_schedules_than_it_may(forty: Env) -> None:
    page = read(forty, FILTERS["text of one"], "id", None, LIMIT, MOST)
    assert (page.items, page.is_cut) == ([], True)
    assert page.following is not None
    assert page.following[0] == "s-07", "the seventh that is not deleted"
    rest = read(forty, FILTERS["text of one"], "id", page.following, LIMIT, 1_000)
    assert [one.schedule_id for one in rest.items] == ["s-39"]


@pytest.mark.parametrize(
    ("name", "sort"),
    [("paused", "id"), ("paused", "-created"), ("deleted", "id"), ("failed, as many", "id"), ("nothing", "created")],
)
def test_filter_whose_index_has_the_order_is_never_cut(forty: Env, name: str, sort: str) -> None:
    page = read(forty, FILTERS[name], sort, None, 1_000, 1)
    assert page.items
    assert (page.following, page.is_cut) == (None, False)


def test_filter_that_few_match_is_never_cut_in_any_order(forty: Env) -> None:
    for name in ("lost, as few", "overdue", "deleted", "one id"):
        for sort in SORTS:
            assert not read(forty, FILTERS[name], sort, None, 1_000, MOST).is_cut, (name, sort)
    assert read(forty, FILTERS["failed, as many"], "-created", None, 1_000, MOST).is_cut


@contextmanager
def plans(env: Env) -> Iterator[list[str]]:
    """Collect SQLite's plan of each statement about schedules."""
    found: list[str] = []
    engine = env.scheduler.runtime.database.engine

    def explain(connection: sa.Connection, cursor: Any, statement: str, given: Any, *_: object) -> None:
        del cursor
        if statement.startswith("SELECT"):
            asked = connection.connection.cursor()
            asked.execute(f"EXPLAIN QUERY PLAN {statement}", given)
            found.append("\n".join(str(row[-1]) for row in asked.fetchall()))

    sa.event.listen(engine, "before_cursor_execute", explain)
    yield found
    sa.event.remove(engine, "before_cursor_execute", explain)


def test_sqlite_without_statistics_sorts_only_what_few_match(env: Env) -> None:
    indexes = {"id": "uq_rqsched_schedules_incarnation", "created": "_page", "next": "ix_rqsched_schedules_due"}
    for number in range(MOST + 1):
        env.create(f"s-{number}")
    change(env, [f"s-{number}" for number in range(MOST + 1)], last_outcome="failed")
    walked = [FILTERS[name] for name in ("nothing", "workflow", "label", "text", "active", "succeeded")]
    for sort in SORTS:
        name = sort.removeprefix("-")
        for filters in [*walked, *([FILTERS["failed, as many"]] if name != "id" else [])]:
            with plans(env) as found:
                read(env, filters, sort, None, LIMIT, MOST)
            assert indexes[name] in found[-1], (sort, filters, found)
            assert "TEMP B-TREE" not in "".join(found), (sort, filters, found)
        with plans(env) as found:
            read(env, FILTERS["lost, as few"], sort, None, LIMIT, MOST)
        assert "ix_rqsched_schedules_ended_badly" in found[-1], (sort, found)
