"""Thousands of schedules or runs in a moment: copies of one, written as rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy as sa

from rqsched.api.run_handle import RunHandle
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import new_uid, new_uids
from rqsched.kernel.store.rows import columns_of, insert_rows
from rqsched.kernel.store.tables import runs, schedules


def copy_schedule(runtime: Runtime, model: ScheduleHandle, count: int, prefix: str = "copy-") -> None:
    """Write copies of a schedule, as ids `copy-00000` and on; they are stored only: no job fires them."""
    row = runtime.database.read(partial(_row, table=schedules, uid=model.uid))
    now = runtime.now()
    copies = [{**row, "uid": new_uid(now), "schedule_id": f"{prefix}{number:05}"} for number in range(count)]
    runtime.database.transact(partial(insert_rows, table=schedules, columns=columns_of(copies)))


def copy_run(runtime: Runtime, model: RunHandle, count: int) -> None:
    """Write copies of a run, as triggers of its schedule made now; they are stored only: no job executes them."""
    row = runtime.database.read(partial(_row, table=runs, uid=model.uid))
    now, first = runtime.now(), model.number + 1_000
    copies = [
        {**row, "uid": uid, "number": number, "instance_id": f"copy-{number}", "kind": "manual", "created_at": now}
        for number, uid in enumerate(new_uids(now, count), start=first)
    ]
    runtime.database.transact(partial(insert_rows, table=runs, columns=columns_of(copies)))


def _row(connection: sa.Connection, table: sa.Table, uid: str) -> dict[str, Any]:
    return dict(connection.execute(sa.select(table).where(table.c.uid == uid)).mappings().one())
