"""A tick: fire due schedules and retries in this process, and report them in the format of Durable Workflow."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from functools import partial
from typing import Any

from rqsched.errors import InvalidInputError
from rqsched.kernel.chain import fire
from rqsched.kernel.chain.fire import Fired
from rqsched.kernel.chain.reconcile.passes import reconcile_in_turn
from rqsched.kernel.chain.reconcile.schedules import end_pauses
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import Event
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.decide.ids import LinkId, iso_utc, parse_link_id
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.store import changes
from rqsched.kernel.transport.transport import retry_of

_LEFT = ("locked", "deferred")
"""The outcomes of links that the same tick fires again, after all others."""
_CHUNK = 100
_OUTCOMES = {audit.TRIGGERED: "triggered", audit.BUFFERED: "buffered", audit.SKIPPED: "skipped"}


def tick(runtime: Runtime, *, limit: int, now: datetime | None = None) -> list[dict[str, Any]]:
    """Fire up to `limit` due schedules and retries, the earliest first; returns a row for each outcome or error.

    Pauses that are over end first. While everything is frozen, nothing is fired. In a frozen namespace, nothing is
    fired either. If Redis is away, runs and links are only delayed. A tick without `now` also reconciles, unless
    another process has reconciled in the interval. This is for ticks that cron makes, where no other process may
    reconcile.
    """
    if now is not None and now.tzinfo is None:
        raise InvalidInputError("now", "is naive; give an aware datetime, such as one with tzinfo=UTC")
    if runtime.freezes.look():
        return []
    frozen = runtime if now is None else runtime.at(_Fixed(now))
    instant = frozen.now()
    deque(end_pauses(frozen), maxlen=0)
    without = [*runtime.freezes.frozen]
    due = runtime.database.read(partial(schedule_queries.due_uids, now=instant, limit=limit, frozen=without))
    retrying = partial(reconcile_queries.retrying, until=instant, after=None, limit=limit, frozen=without)
    retries, _ = runtime.database.read(retrying)
    ids = [str(LinkId(uid, n)) for uid, n in due] + [str(retry_of(run).id) for run in retries]
    fired: list[Fired] = []
    for chunk in chunks(ids, _CHUNK):
        fired += fire.fire(frozen, chunk, skip_locked=True, must_follow=False)
    # Schedules that another process has locked come last. If that process stalls, the wait delays nothing else.
    while left := [result.id for result in fired if result.outcome in _LEFT]:
        fired = [result for result in fired if result.outcome not in _LEFT]
        fired += fire.fire(frozen, left, must_follow=False)
    if now is None:
        reconcile_in_turn(runtime)
    return [row for result in fired for row in _rows(runtime, result)]


class _Fixed:
    """A clock that stands still."""

    def __init__(self, instant: datetime) -> None:
        self._instant = instant

    def now(self) -> datetime:
        """Return the instant."""
        return self._instant


def _rows(runtime: Runtime, result: Fired) -> list[dict[str, Any]]:
    if result.outcome == "failed":
        link = parse_link_id(result.id)
        failed = link and runtime.database.read(lambda connection: changes.find(connection, link.uid))
        name = failed.schedule_id if failed else result.id
        return [{"schedule_id": name, "instance_id": None, "error": result.error}]
    if result.change is None or result.outcome != "fired":
        return []
    schedule = result.change.after
    times = {
        "last_fired_at": schedule.last_run_at and iso_utc(schedule.last_run_at),
        "next_fire_at": schedule.due_at and iso_utc(schedule.due_at),
    }
    known = {name: value for name, value in times.items() if value is not None}
    rows = [_row(event) for event in result.change.events if event.type in _OUTCOMES]
    return [{"schedule_id": schedule.schedule_id, **row, **known} for row in rows]


def _row(event: Event) -> dict[str, Any]:
    payload = event.payload
    outcome = payload.get("outcome") or _OUTCOMES[event.type]
    if payload.get("reason") == "buffer_full":
        outcome = "buffer_full"
    fields = {
        "run_id": event.run_uid,
        "reason": payload.get("reason"),
        "occurrence_time": payload.get("occurrence_time"),
    }
    row = {"instance_id": event.instance_id, "outcome": outcome}
    return row | {name: value for name, value in fields.items() if value is not None}
