"""Processes that start at the same moment: on one id, on one key, on a database without tables."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tenacity import Retrying, retry_if_exception_type, stop_after_delay

from rqsched.config import Settings
from rqsched.errors import DatabaseUnavailableError, QuotaExceededError, ScheduleExistsError
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.store.database import Database, Patience
from rqsched.kernel.store.schema_version import upgrade
from rqsched.testing import ManualClock
from tests.support.children import in_children
from tests.support.env import MINUTE
from tests.support.invariants import check_invariants
from tests.system.concurrency.crowd import Crowd

STARTERS = 6


@pytest.fixture
def crowd(database_url: str, redis_url: str, tmp_path: Path, clock: ManualClock) -> Crowd:
    clock.advance(timedelta(seconds=1, microseconds=7))
    return Crowd(Settings(database_url=database_url, redis_url=redis_url), clock, tmp_path / "executed")


patiently = Retrying(retry=retry_if_exception_type(DatabaseUnavailableError), stop=stop_after_delay(60), reraise=True)
"""Where all starters wait for one row, a busy machine makes some wait longer than an operation does by itself."""


def with_quotas(crowd: Crowd, quotas: dict[str, Any]) -> Crowd:
    """The same crowd, whose namespaces have quotas."""
    urls = crowd.settings.database_url, crowd.settings.redis_url
    return replace(crowd, settings=Settings(database_url=urls[0], redis_url=urls[1], quotas=quotas))


def test_of_many_who_create_one_id_one_succeeds(crowd: Crowd) -> None:
    def create() -> str:
        with crowd.scheduler() as scheduler:
            try:
                return scheduler.create("report", "note", MINUTE).uid
            except ScheduleExistsError:
                return "exists"

    answers = in_children(STARTERS, create)

    assert answers.count("exists") == STARTERS - 1
    with crowd.scheduler() as scheduler:
        assert scheduler.get("report").uid in answers
        check_invariants(scheduler.runtime)


def test_of_many_who_declare_one_id_one_creates_and_none_fails(crowd: Crowd) -> None:
    def declare() -> tuple[str, str]:
        with crowd.scheduler() as scheduler:
            handle, outcome = scheduler.upsert("report", "note", "0 * * * *")
            return handle.uid, outcome

    answers = in_children(STARTERS, declare)

    assert sorted(outcome for _, outcome in answers) == ["created", *["unchanged"] * (STARTERS - 1)]
    assert len({uid for uid, _ in answers}) == 1
    with crowd.scheduler() as scheduler:
        check_invariants(scheduler.runtime)


def test_of_many_who_sync_one_set_in_any_order_each_id_is_created_by_one(crowd: Crowd) -> None:
    ids = [f"report-{number:02}" for number in range(30)]

    def sync() -> list[str]:
        order = random.Random(os.getpid()).sample(ids, len(ids))
        with crowd.scheduler() as scheduler:
            return scheduler.sync([Declaration(one, "note", MINUTE) for one in order]).created

    answers = in_children(STARTERS, sync)

    assert sorted(one for created in answers for one in created) == ids
    with crowd.scheduler() as scheduler:
        check_invariants(scheduler.runtime)


def test_of_many_who_trigger_with_one_key_all_get_the_one_run(crowd: Crowd) -> None:
    with crowd.scheduler() as scheduler:
        scheduler.create("report", "note", MINUTE, overlap="allow_all")

    def trigger() -> str:
        with crowd.scheduler() as scheduler:
            result = scheduler.get("report").trigger(idempotency_key="order-17")
            assert result.run is not None
            return str(result.run.uid)

    assert len(set(in_children(STARTERS, trigger))) == 1
    with crowd.scheduler() as scheduler:
        assert scheduler.get("report").run_count == 1
        check_invariants(scheduler.runtime)


def test_of_many_who_trigger_under_skip_one_starts_a_run(crowd: Crowd) -> None:
    with crowd.scheduler() as scheduler:
        scheduler.create("report", "note", MINUTE)

    def trigger() -> str:
        with crowd.scheduler() as scheduler:
            return scheduler.get("report").trigger().outcome

    assert sorted(in_children(STARTERS, trigger)) == [*["skipped"] * (STARTERS - 1), "triggered"]
    with crowd.scheduler() as scheduler:
        assert scheduler.get("report").skipped_count == STARTERS - 1


def test_a_database_without_tables_is_ready_for_all_who_open_it_at_once(
    empty_database: Database, redis_url: str, tmp_path: Path, clock: ManualClock
) -> None:
    crowd = Crowd(Settings(database_url=empty_database.url, redis_url=redis_url), clock, tmp_path / "executed")

    def start() -> tuple[str, str]:
        upgrade(empty_database)
        with crowd.scheduler() as scheduler:
            scheduler.recover()
            return scheduler.runtime.ownership.database_id(), scheduler.upsert("report", "note", MINUTE)[1]

    answers = in_children(STARTERS, start)

    assert len({database_id for database_id, _ in answers}) == 1
    assert [outcome for _, outcome in answers].count("created") == 1


def test_of_many_who_create_at_once_as_many_succeed_as_the_quota_has_room_for(crowd: Crowd) -> None:
    limited = with_quotas(crowd, {"default": {"schedules": 7, "bytes": "1MiB"}})

    def create() -> Counter[str]:
        done: Counter[str] = Counter()
        with limited.scheduler() as scheduler:
            scheduler.runtime.database.patience = Patience(total=timedelta(minutes=1))  # for a busy machine
            for number in range(5):
                try:
                    scheduler.create(f"{os.getpid()}-{number}", "note", MINUTE)
                    done["created"] += 1
                except QuotaExceededError:
                    done["refused"] += 1
        return done

    answers: Counter[str] = sum(in_children(STARTERS, create), Counter())

    assert answers == {"created": 7, "refused": STARTERS * 5 - 7}
    with crowd.scheduler() as scheduler:
        assert len(list(scheduler.iter())) == 7
        check_invariants(scheduler.runtime)


def test_of_many_who_let_their_schedules_grow_none_takes_bytes_that_are_not_left(crowd: Crowd) -> None:
    with crowd.scheduler() as scheduler:
        for number in range(STARTERS):
            scheduler.create(f"s{number}", "note", MINUTE)
        room = scheduler.namespaces.usage().bytes + 2_500
    limited = with_quotas(crowd, {"*": {"bytes": room}})

    def grow() -> int:
        done = 0
        with limited.scheduler() as scheduler:
            for number in range(STARTERS):
                with suppress(QuotaExceededError):
                    patiently(scheduler.upsert, f"s{number}", "note", MINUTE, memo={"text": "x" * 1_000})
                    done += 1
        return done

    answers = in_children(STARTERS, grow)

    with crowd.scheduler() as scheduler:
        assert scheduler.namespaces.usage().bytes <= room
        grown = [one.schedule_id for one in scheduler.iter() if one.describe().memo]
    assert len(grown) == 2
    assert sum(answers) >= 2
