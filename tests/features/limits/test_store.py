"""The SQL reads of limit groups when nearly all open runs are in one line."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from rqsched.features.limits import store as limits
from rqsched.kernel.store.tables import runs
from tests.support.env import HOUR, Env, newest

GROUPS = 20
WAITING = 2_000


@pytest.mark.postgres
@pytest.mark.parametrize(("counted_to", "counted"), [(100, 100), (None, WAITING)])
def test_list_of_groups_reads_a_long_line_once_and_no_further_than_it_counts(
    postgres_env: Env, counted_to: int | None, counted: int
) -> None:
    env = postgres_env
    fill(env)

    def count_read(connection: sa.Connection) -> int:
        before = connection.scalar(READ) or 0
        page = limits.page(connection, "default", None, 100, env.clock.now(), counted_to)
        assert {one.name: one.waiting for one in page.items if one.waiting} == {"group-0": counted}
        assert [one.waiting_since for one in page.items if one.waiting] == [env.clock.now()]
        return (connection.scalar(READ) or 0) - before

    assert env.runtime.database.transact(count_read) < 3 * counted


READ = sa.text("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'rqsched_runs'")


def fill(env: Env) -> None:
    schedules = [env.create(f"s{at}", HOUR, limit=f"group-{at}", limit_running=1) for at in range(GROUPS)]
    env.advance(HOUR)
    env.deliver(schedules[0].refresh())
    numbers, text = sa.func.generate_series(1, WAITING).table_valued("at").render_derived(), sa.Text
    at = numbers.c.at
    other = {
        "uid": sa.func.lpad(sa.cast(at, text), 26, "0"),
        "number": at + 1,
        "instance_id": sa.cast(at, text),
        "occurrence_at": runs.c.occurrence_at + at * sa.text("interval '1 second'"),
        "granted_at": sa.null(),
    }
    copied = sa.select(*(other.get(one.name, one) for one in runs.c)).join_from(runs, numbers, sa.true())
    copied = copied.where(runs.c.uid == newest(schedules[0]).uid)
    with env.runtime.database.engine.begin() as connection:
        connection.execute(sa.insert(runs).from_select(list(runs.c.keys()), copied))
        connection.exec_driver_sql("ANALYZE rqsched_runs")
