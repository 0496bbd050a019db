"""Thousands of schedules in a moment: copies of one, written as rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy as sa

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.chain.runtime import Runtime
from rqsched.core.ids import new_uid
from rqsched.store.rows import columns_of, insert_rows
from rqsched.store.tables import schedules


def copy_schedule(runtime: Runtime, model: ScheduleHandle, count: int, prefix: str = "copy-") -> None:
    """Write copies of a schedule, as ids `copy-00000` and on; they are stored only: no job fires them."""
    row = runtime.database.read(partial(_row, uid=model.uid))
    now = runtime.now()
    copies = [{**row, "uid": new_uid(now), "schedule_id": f"{prefix}{number:05}"} for number in range(count)]
    runtime.database.transact(partial(insert_rows, table=schedules, columns=columns_of(copies)))


def _row(connection: sa.Connection, uid: str) -> dict[str, Any]:
    return dict(connection.execute(sa.select(schedules).where(schedules.c.uid == uid)).mappings().one())
