"""Warming up: a process prepares once for what each horse it forks would prepare for."""

from __future__ import annotations

import gc
import sys
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.config import Settings
from rqsched.features.list import make_runtime
from rqsched.kernel.chain.execution import execute
from rqsched.kernel.store.tables import metadata
from rqsched.run.warm_up import warm_up
from tests.support.children import in_children
from tests.support.env import SECOND, Env, job_id
from tests.support.sql import compiled_anew


def rows(env: Env) -> dict[str, list[Any]]:
    def read(connection: sa.Connection) -> dict[str, list[Any]]:
        return {table.name: list(connection.execute(sa.select(table))) for table in metadata.sorted_tables}

    return env.runtime.database.read(read)


def test_warming_up_writes_nothing_and_leaves_no_connection_open(any_env: Env) -> None:
    any_env.fire_next(any_env.create())
    before = rows(any_env)

    warm_up(any_env.runtime)

    assert any_env.runtime.database.engine.pool.checkedin() == 0  # type: ignore[attr-defined]
    assert rows(any_env) == before
    gc.unfreeze()


@pytest.mark.parametrize("limit", [{}, {"limit": "one", "limit_running": 1}], ids=["free", "limited"])
def test_horse_of_a_warm_process_compiles_no_statement_of_a_run_that_succeeds(
    any_env: Env, limit: dict[str, Any]
) -> None:
    """The limited case includes the statements that grant the run's place to the next in line."""
    schedule = any_env.create(spec=Every(SECOND), overlap="allow_all", **limit)
    jobs = [job_id(any_env.fire_next(schedule, SECOND).state) for _ in range(2)]
    any_env.runtime.database.engine.clear_compiled_cache()  # drops statements of other tests, too
    warm_up(any_env.runtime)
    gc.unfreeze()

    def compiled() -> list[str]:
        with compiled_anew(any_env.runtime) as found:
            for job in jobs:
                any_env.advance(timedelta(seconds=5))
                execute(any_env.runtime, job)
        return found

    assert in_children(1, compiled) == [[]]
    assert [run.status for run in schedule.runs().items] == ["succeeded"] * 2


def test_warm_process_has_imported_what_rq_would_import_by_name_in_each_horse(any_env: Env) -> None:
    def is_imported() -> bool:
        sys.modules.pop("rqsched.jobs", None)
        warm_up(any_env.runtime)
        return "rqsched.jobs" in sys.modules

    assert in_children(1, is_imported) == [True]


def test_warming_up_goes_on_without_a_database() -> None:
    away = Settings(
        database_url="postgresql+psycopg://nobody@127.0.0.1:9/none",
        redis_url="redis://127.0.0.1:9/0",
        clock_check_interval=timedelta(minutes=1),
    )
    warm_up(make_runtime(away))
    gc.unfreeze()
