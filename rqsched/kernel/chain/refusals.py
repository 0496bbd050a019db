"""Refusals: errors of Redis that do not pass by themselves, such as a key of a wrong type or a missing right.

A repeated call does not help, and a refused job does not execute. The process that meets a refusal stores it in SQL,
where doctor, the pages, metrics and `why` read it. A refusal is forgotten when Redis accepts the same call again. It is
also forgotten after `STANDS` if no process has met it again, because passes of reconcile try again in this time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from rqsched.errors import RqschedError
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Connection, Database, DatabaseError, Patience
from rqsched.kernel.transport import refusal

_log = logging.getLogger(__name__)

STANDS = timedelta(minutes=2)
"""A refusal is forgotten if no process has met it for this long."""
_NAME = "refused"
"""SQL has one value with the refusals of each control queue. The names of these values begin with this prefix."""
_MOST = 100
"""How many refusals are kept. The oldest are dropped."""
_AGAIN_SECONDS = 15.0
"""A process writes the same refusal again only after this many seconds."""
_ONCE = Patience(total=timedelta(milliseconds=1))


class Refused(NamedTuple):
    """A refusal as SQL stores it."""

    what: str
    """The queue that gets no jobs, or the processes that take none, such as `queue 'default'`."""
    text: str
    """The error of Redis, and the keys that it may be about."""
    advice: str
    """What to do."""
    since: datetime
    """When the refusal was met first."""
    noticed_at: datetime
    """When the refusal was met last."""


class Refusals:
    """The refusals that this process knows. A known refusal is written to SQL again only from time to time."""

    def __init__(self, database: Database, control_queue: str, now: Callable[[], datetime]) -> None:
        self.known = set[str]()
        """The queues and processes (`what`) that were refused when this process last tried or looked."""
        self._database = database
        self._name = metadata.of_queue(_NAME, control_queue)
        self._now = now
        self._again_at: dict[str, float] = {}
        self._count = 0

    def note(self, what: str, error: RedisError, keys: str = "") -> None:
        """Store a refusal. Ignore an error that passes by itself. Raises nothing."""
        if refusal.is_transient(error):
            return
        self._count += 1
        if monotonic() < self._again_at.get(what, 0.0):
            return
        self._again_at[what] = monotonic() + _AGAIN_SECONDS
        self.known.add(what)
        text, advice, now = f"{refusal.told(error)}{keys}", refusal.advice_for(error, ""), self._now()
        count, self._count = self._count, 0

        def keep(kept: dict[str, Any]) -> None:
            kept["count"] = kept.get("count", 0) + count
            found = kept.setdefault("refused", {})
            since = found.pop(what, {}).get("since", now.isoformat())
            found[what] = {"text": text, "advice": advice, "since": since, "noticed_at": now.isoformat()}
            kept["refused"] = dict([*found.items()][-_MOST:])

        self._change(keep)

    def accept(self, what: str) -> None:
        """Forget a refusal, because Redis accepts the call again. Raises nothing."""
        if what in self.known:
            self.known.discard(what)
            self._again_at.pop(what, None)
            self._change(lambda kept: kept.get("refused", {}).pop(what, None))

    def look(self) -> None:
        """Read the refusals of other processes, so that this process forgets them when Redis accepts the call."""
        self.known |= {one.what for one in self._database.read(partial(self.find, now=self._now()))}

    def find(self, connection: Connection, now: datetime) -> list[Refused]:
        """Return the refusals, the newest last."""
        return _read(metadata.find_value(connection, self._name), now)

    def count(self, connection: Connection) -> int:
        """Return how many calls were refused in all, including forgotten refusals."""
        return int(json.loads(metadata.find_value(connection, self._name) or "{}").get("count", 0))

    def _change(self, change: Callable[[dict[str, Any]], object]) -> None:
        def apply(connection: Connection) -> None:
            metadata.claim_value(connection, self._name, "{}")
            kept = json.loads(metadata.lock_value(connection, self._name) or "{}")
            change(kept)
            metadata.set_value(connection, self._name, json.dumps(kept))

        try:
            self._database.transact(apply, patience=_ONCE)
        except (RqschedError, DatabaseError) as error:
            _log.warning("a refusal of Redis is not kept: %s", error, extra={"action": "refusal_not_kept"})


def find_all(connection: Connection, now: datetime) -> list[Refused]:
    """Return the refusals on every control queue of this database."""
    return [one for text in metadata.values_under(connection, f"{_NAME}:").values() for one in _read(text, now)]


def _read(text: str | None, now: datetime) -> list[Refused]:
    found = json.loads(text or "{}").get("refused", {})
    at = datetime.fromisoformat
    all_of_them = [
        Refused(what, one["text"], one["advice"], at(one["since"]), at(one["noticed_at"]))
        for what, one in found.items()
    ]
    return [one for one in all_of_them if one.noticed_at > now - STANDS]
