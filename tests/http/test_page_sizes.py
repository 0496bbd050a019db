"""Lists are bounded in bytes and rows, whatever is stored, and computations are bounded in time."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import thread_time
from typing import Any

import pytest

from rqsched import Cron
from rqsched.client import Client
from tests.support.client import client_of
from tests.support.web import SCHEDULES, Web, at

MOST = 32 * 2**20
COUNT = 14
FAT: dict[str, Any] = {
    "kwargs": {"text": "x" * 250_000},
    "memo": {"text": "é" * 250_000},
    "search_attributes": {"text": "x" * 250_000},
}
"""As large as a schedule may be."""
LARGE = {"args", "kwargs", "trigger_payload", "memo", "search_attributes"}
LARGE_OF_RUN = {"args", "kwargs", "memo", "search_attributes", "lineage", "attempts", "result"}


class Peak:
    """The peak memory of a block beyond the memory before it."""

    size = 0


@contextmanager
def peak() -> Iterator[Peak]:
    found = Peak()
    gc.collect()
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        yield found
        found.size = tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()


@pytest.fixture
def fat(any_web: Web) -> Web:
    """Schedules as large as they may be, each with a run; 500 of them make no larger a page."""
    for number in range(COUNT):
        any_web.env.scheduler.create(f"fat-{number:02}", "note", "1d", **FAT).trigger()
    return any_web


@pytest.mark.parametrize("fields", ["full", pytest.param("summary", marks=pytest.mark.broad)])
def test_a_page_of_large_schedules_and_runs_takes_at_most_32_mb(fat: Web, fields: str) -> None:
    for path in (SCHEDULES, "/api/v1/runs/", "/api/v1/events/"):
        params: dict[str, Any] = {"limit": 500} if "events" in path else {"limit": 500, "fields": fields}
        fat.get(path, params={**params, "limit": 1})
        seen, cursor = list[str](), None
        while True:
            with peak() as held:
                answer = fat.get(path, params={**params, **({"cursor": cursor} if cursor else {})})
            assert answer.status_code == 200
            assert held.size < MOST, (path, held.size)
            page = answer.json()
            seen += [item["schedule_id"] for item in page["items"]]
            if (cursor := page["next_cursor"]) is None:
                break
        assert sorted(set(seen)) == [f"fat-{number:02}" for number in range(COUNT)]
        assert "events" in path or len(seen) == COUNT


def test_other_surfaces_bound_their_lists_too(fat: Web) -> None:
    headers = {"X-Durable-Workflow-Control-Plane-Version": "2", "OJS-Version": "1.0"}
    for path in ("/api/schedules?page_size=200", "/ojs/v1/cron?limit=500"):
        with peak() as held:
            assert fat.get(path, headers=headers).status_code == 200
        assert held.size < MOST, (path, held.size)


def first(web: Web, path: str, fields: str) -> dict[str, Any]:
    found: dict[str, Any] = web.get(path, params={"fields": fields}).json()["items"][0]
    return found


def test_a_summary_has_every_field_but_the_large_ones(any_web: Web) -> None:
    any_web.create(kwargs={"a": 1}, memo={"b": 2})
    any_web.post(at(operation="trigger/"))
    full, slim = (
        any_web.get(SCHEDULES, params={"fields": fields}).json()["items"][0] for fields in ("full", "summary")
    )
    assert slim == {name: value for name, value in full.items() if name not in LARGE}
    assert set(full) >= LARGE
    for path in (at(operation="runs/"), "/api/v1/runs/"):
        full, slim = (first(any_web, path, fields) for fields in ("full", "summary"))
        assert slim == {name: value for name, value in full.items() if name not in LARGE_OF_RUN}
        assert set(full) >= LARGE_OF_RUN


def test_the_client_reads_all_of_a_list_whose_pages_are_short(fat: Web) -> None:
    client: Client = client_of(fat)
    assert len(list(client.iter())) == COUNT
    assert len(list(client.events())) >= 2 * COUNT


def test_a_dry_run_of_many_occurrences_counts_in_bounded_memory(any_web: Web) -> None:
    any_web.create(interval="1m", max_runs=30_000)
    now = any_web.env.clock.now()
    span = {"start": (now - timedelta(minutes=40_000)).isoformat(), "end": now.isoformat()}
    with peak() as held:
        found = any_web.post(at(operation="backfill/"), {**span, "dry_run": True, "bound": 1_000_000}).json()
    assert held.size < MOST
    assert (found["attempted"], found["started"], found["skipped"]) == (40_000, 30_000, 10_000)
    assert len(found["rows"]) == 500


def test_upcoming_of_a_rare_date_ends_after_its_share_of_cpu(web: Web) -> None:
    web.env.scheduler.create("rare", "note", Cron("0 0 29 2 */7"))
    start = thread_time()
    found = web.env.scheduler.get("rare").upcoming(1_000)
    assert found == sorted(found)
    assert len(found) > 0
    assert thread_time() - start < 5
