"""Pages of schedules for the dashboard: bounded, and none is lost or shown twice whatever is looked for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from rqsched.core.model import Schedule
from rqsched.store import overview
from rqsched.store.listing import Filters
from rqsched.store.overview import Order, SchedulePage
from tests.support.env import HOUR, SECOND, Env

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
    "deleted": replace(ALL, statuses=("deleted",)),
    "paused with a label": replace(ALL, statuses=("paused",), labels={"team": "b"}),
    "deleted with a text": replace(ALL, statuses=("deleted",), text="3"),
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
    for number in range(0, 40, 3):
        any_env.scheduler.get(f"s-{number:02}").pause()
    for number in range(1, 40, 10):
        any_env.scheduler.get(f"s-{number:02}").delete()
    return any_env


def read(
    env: Env, filters: Filters, order: Order, after: tuple[str, str] | None, limit: int, most: int
) -> SchedulePage:
    look = partial(overview.sorted_schedules, filters=filters, order=order, after=after, limit=limit, most=most)
    return env.scheduler.runtime.database.read(look)


@pytest.mark.parametrize("order", list(Order))
def test_pages_of_a_bounded_search_hold_each_match_once_and_in_order(forty: Env, order: Order) -> None:
    for name, filters in FILTERS.items():
        wanted = read(forty, filters, order, None, 1_000, 1_000)
        assert (wanted.following, wanted.is_cut) == (None, False), name
        found: list[Schedule] = []
        after, pages = None, 0
        while pages == 0 or after is not None:
            page = read(forty, filters, order, after, LIMIT, MOST)
            found, after, pages = [*found, *page.items], page.following, pages + 1
            assert len(page.items) == LIMIT or page.is_cut or after is None, name
            assert not (page.is_cut and len(page.items) > LIMIT), name
        assert [one.uid for one in found] == [one.uid for one in wanted.items], name
        assert pages <= 40 // LIMIT + 40 // MOST + 2, name


def test_search_looks_at_no_more_schedules_than_it_may(forty: Env) -> None:
    page = read(forty, FILTERS["text of one"], Order.ID, None, LIMIT, MOST)
    assert (page.items, page.is_cut) == ([], True)
    assert page.following is not None
    assert page.following[0] == "s-07", "the seventh that is not deleted"
    rest = read(forty, FILTERS["text of one"], Order.ID, page.following, LIMIT, 1_000)
    assert [one.schedule_id for one in rest.items] == ["s-39"]


def test_filter_that_an_index_holds_is_never_cut(forty: Env) -> None:
    page = read(forty, FILTERS["paused"], Order.ID, None, 1_000, 1)
    assert (len(page.items), page.is_cut) == (14 - 1, False)
