"""Marks of passes: they show that SQL or Redis went back to an older state, as after a restore from a backup.

Each pass of reconcile compares the newest mark in SQL with the newest mark in Redis. Then it commits a new mark in SQL
and writes it to Redis. In each interval of reconcile, SQL gets only one mark, even if many processes make passes. If a
comparison has a finding, the finding and the next mark are written in one transaction. Only the process that wrote the
finding logs it. The finding is reported for `STANDS`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import iso_utc, new_uid
from rqsched.kernel.decide.rollback_marks import Mark, WentBack, judge, parse_mark
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Connection

_log = logging.getLogger(__name__)

STANDS = timedelta(days=1)
"""How long a finding is reported after it was noticed last."""
_AT_ONCE = timedelta(0)
_EXTRAS = {
    WentBack.SQL: {"action": "sql_went_back"},
    WentBack.REDIS: {"action": "redis_went_back"},
    WentBack.TWO_DATABASES: {"action": "two_databases"},
}


class Told(NamedTuple):
    """A finding from marks: SQL or Redis went back, or two databases write."""

    which: WentBack
    """The side that went back, or two databases."""
    noticed_at: datetime
    """When a pass noticed it last."""
    to: datetime | None
    """The approximate time to which the side went back, or for two databases the time of this database's last mark.
    None means before the first mark."""
    is_compared: bool
    """Whether a full pass has compared everything since then. Always True for two databases, because a pass cannot
    repair this."""

    @property
    def text(self) -> str:
        """The finding in words."""
        to = "before its first mark" if self.to is None else f"about {iso_utc(self.to.replace(microsecond=0))}"
        if self.which is WentBack.SQL:
            return f"SQL has gone back to {to}: what was committed later is gone, as after a restore or a failover"
        if self.which is WentBack.REDIS:
            return f"Redis has gone back to {to}, as by an old snapshot"
        return (
            f"Two databases write beside this Redis: this one stood {to} when another one with the same id went on "
            "from an older state. The other one is a copy, or a primary that came back after a failover"
        )


def find_told(runtime: Runtime, now: datetime, connection: Connection) -> list[Told]:
    """Read the findings for this process's control queue that were noticed within `STANDS`."""
    return told(metadata.find_mark(connection, runtime.transport.control.name)[1], now)


def told(found: Mapping[WentBack, str], now: datetime) -> list[Told]:
    """Parse the recorded findings, without findings that were noticed longer ago than `STANDS`."""
    since = now - STANDS
    return [one for which, text in sorted(found.items()) if (one := _read(which, text)).noticed_at > since]


def leave_mark(runtime: Runtime) -> list[Told]:
    """Leave the mark of a pass, unless this interval has a mark; returns findings that still need a full pass.

    Raises RedisError before anything is written, so that SQL is never more than one mark ahead of Redis.
    """
    transport, owner = runtime.transport, runtime.ownership.known_database_id()
    text, found = runtime.database.read(partial(metadata.find_mark, control_queue=transport.control.name))
    now, mark = runtime.now(), None if text is None else parse_mark(text)
    asking = [one for one in told(found, now) if not one.is_compared]
    if mark is not None and _AT_ONCE <= now - mark.at < runtime.settings.reconcile_interval:
        return asking
    newest = transport.newest_mark(owner)
    is_told = mark is not None and any(_read(which, one).noticed_at == mark.at for which, one in found.items())
    sides = _Sides(mark, mark) if newest == text else _compare(runtime, owner, mark, is_told=is_told)
    if sides is None:
        return asking  # another process leaves a mark now
    tried = list[Mark]()
    write = runtime.database.transact_alone if sides.went_back is None else runtime.database.transact
    left = write(partial(_write, runtime, sides, tried))
    if left is None:
        return asking  # another process was first
    noticed = sides.noticed(left.at)
    if noticed is not None:
        level = logging.ERROR if noticed.which is WentBack.TWO_DATABASES else logging.WARNING
        _log.log(level, "%s", noticed.text, extra=_EXTRAS[noticed.which])
        asking = [one for one in asking if one.which is not noticed.which]
        asking += [] if noticed.is_compared else [noticed]
    transport.push_mark(owner, str(left), follows=str(sides.redis or ""))
    return asking


class _Sides(NamedTuple):
    """The newest mark of each side, and which side went back."""

    sql: Mark | None
    redis: Mark | None
    went_back: WentBack | None = None

    def noticed(self, now: datetime) -> Told | None:
        if self.went_back is None:
            return None
        to = self.redis if self.went_back is WentBack.REDIS else self.sql
        is_compared = self.went_back is WentBack.TWO_DATABASES
        return Told(self.went_back, now, None if to is None else to.at, is_compared)


def _compare(runtime: Runtime, owner: str, mark: Mark | None, *, is_told: bool) -> _Sides | None:
    """Compare all marks; write SQL's mark to Redis if it is missing there. None if another process leaves a mark now.

    `is_told` means that SQL's mark was written together with a finding. If the process then died before it wrote the
    mark to Redis, the two newest marks do not fit together, but this is no new finding.
    """
    marks = [parse_mark(text) for text in runtime.transport.marks(owner)]
    went_back, newest = judge(mark, marks), marks[0] if marks else None
    if is_told and mark not in marks:
        went_back = None
    if went_back is not None or newest is None or newest == mark or mark is None:
        return _Sides(mark, newest, went_back)
    return _Sides(mark, mark) if runtime.transport.push_mark(owner, str(mark), follows=str(newest)) else None


def _write(runtime: Runtime, sides: _Sides, tried: list[Mark], connection: Connection) -> Mark | None:
    """Write the next mark and the finding. Do not wait for a lock, because then the mark's time would be too early.

    Returns the mark, or None if another process was first. A mark in `tried` may have been committed although no answer
    came.
    """
    queue = runtime.transport.control.name
    name, replaced = metadata.of_queue(metadata.MARK, queue), None if sides.sql is None else str(sides.sql)
    tried.insert(0, Mark(new_uid(runtime.now()), "" if sides.sql is None else sides.sql.uid))
    replace = partial(metadata.replace_value, connection, name, known=replaced, waits=False)
    left = next((one for one in tried if replace(str(one))), None)
    if left is None:
        return None
    if (noticed := sides.noticed(left.at)) is not None:
        metadata.set_value(connection, _name_of(queue, noticed), _text(noticed))
    return left


def record_compared(runtime: Runtime, asking: Iterable[Told]) -> None:
    """Record that a full pass has compared everything, unless SQL or Redis went back again after the pass began."""

    def record(connection: Connection) -> None:
        for one in asking:
            name, compared = _name_of(runtime.transport.control.name, one), one._replace(is_compared=True)
            metadata.replace_value(connection, name, _text(compared), known=_text(one))

    runtime.database.transact(record)


def _name_of(queue: str, one: Told) -> str:
    return metadata.of_queue(f"{metadata.WENT_BACK}:{one.which.value}", queue)


def _text(one: Told) -> str:
    to = None if one.to is None else iso_utc(one.to)
    return json.dumps({"noticed_at": iso_utc(one.noticed_at), "to": to, "is_compared": one.is_compared})


def _read(which: WentBack, text: str) -> Told:
    value = json.loads(text)
    to = None if value["to"] is None else datetime.fromisoformat(value["to"])
    return Told(which, datetime.fromisoformat(value["noticed_at"]), to, bool(value["is_compared"]))
