"""The freeze gate: code asks it before a link fires, a run is claimed or something is started by hand.

A freeze of everything is stored in Redis, where the script LEASE looks, and in SQL, where the UPDATE of a claim looks.
A freeze in one of them is enough. A pass of reconcile copies it to the other. A process remembers the last answers, so
an outage of one server does not end or begin a freeze. A process that is frozen by its own settings asks neither
server.

Only SQL stores the freeze of a namespace. Fires and claims check it in their own statements. Redis only says that these
freezes have changed. Then an operation that starts something by hand first asks SQL again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b
from itertools import chain

from redis import Redis
from redis.exceptions import RedisError

from rqsched.errors import BackendUnavailableError, FrozenError
from rqsched.kernel.decide.freeze import Freeze
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Connection, Database, Patience
from rqsched.kernel.transport.transport import Transport

_log = logging.getLogger(__name__)

_ALL = "*"
"""The name of the freeze of everything; other freezes have the name of their namespace."""
_ONCE, _BRIEF = Patience(total=timedelta(0)), Patience(total=timedelta(seconds=2))
_OF_REDIS, _OF_SQL = timedelta(seconds=1), timedelta(seconds=5)
"""How long an answer of Redis and an answer of SQL are valid, unless a change is noticed earlier."""


class FreezeGate:
    """The freezes that this process knows of."""

    def __init__(self, database: Database, transport: Transport, now: Callable[[], datetime], *, is_own: bool) -> None:
        """`is_own` is the setting `freeze`: this process begins nothing, whatever Redis and SQL say."""
        self._database = database
        self._transport = transport
        self.now = now
        """Returns the time by which the age of answers is measured."""
        self._own = Freeze("process", by="RQSCHED_FREEZE of this process", kept_in=("process",)) if is_own else None
        self._in_redis: str | None = None
        self._in_sql: Mapping[str, str] = {}
        self._redis_at: datetime | None = None
        self._sql_at: datetime | None = None
        self._was_asked = False
        self.is_own = is_own
        """Whether this process is frozen by its own settings."""
        self._has_asker = False
        self.has_sql = True
        """Whether SQL answered when it was asked last."""
        self.redis_error: RedisError | None = None
        """The error of Redis when it was asked last; None if it answered."""
        self.is_all_frozen = is_own
        """Whether nothing may begin, as far as this process knows; call `look` first for a fresh answer."""
        self.frozen: Mapping[str, Freeze] = {}
        """The frozen namespaces, as SQL said last; call `find_frozen` for a fresh answer."""
        self._told: object = None
        self._told_before: object = None

    @property
    def kept(self) -> Freeze | None:
        """The freeze of everything, as Redis and SQL answered last; None if neither has one.

        Its `kept_in` names the servers that store it.
        """
        return _joined([_read(self._in_redis, "redis"), _read(self._in_sql.get(_ALL), "sql")])

    @property
    def known(self) -> Freeze | None:
        """The freeze of everything as it was read last, or else this process's own freeze; None if there is neither."""
        return _joined([self.kept, self._own])

    def require_none(self, namespace: str | None = None) -> None:
        """Raise FrozenError while everything is frozen, because work that is started by hand must not wait.

        Raise it also while the namespace is frozen. A caller that does not know the namespace yet calls
        `require_thawed` later.
        """
        if self.look(with_sql=False):
            raise FrozenError(None, str(self.known))
        self.find_frozen()
        self.require_thawed(namespace)

    def require_thawed(self, namespace: str | None) -> None:
        """Raise FrozenError while a namespace is frozen, as far as this process knows."""
        if namespace is not None and (freeze := self.frozen.get(namespace)) is not None:
            raise FrozenError(namespace, str(freeze))

    def find_frozen(self) -> Mapping[str, Freeze]:
        """Return the frozen namespaces. SQL is asked again if Redis has reported a change since its last answer."""
        if self._told != self._told_before:
            self._ask_sql()
        return self.frozen

    def find_all(self) -> list[Freeze]:
        """Read the current freezes: first the freeze of everything, then the freezes of namespaces, the newest first.

        Raises BackendUnavailableError if SQL does not answer, unless everything is known to be frozen.
        """
        self.look(is_fresh=True)
        if self.known is None and not self.has_sql:
            self._read_sql()
        everything = [] if self.known is None else [self.known]
        return everything + sorted(self.frozen.values(), key=lambda one: one.uid, reverse=True)

    def look(self, *, with_sql: bool = True, is_fresh: bool = False) -> bool:
        """Return `is_all_frozen`, after asking Redis and SQL if their last answers are too old.

        With `is_fresh`, both are asked in any case. Without it, a process that calls `ask_redis_now` does not ask here.
        Without `with_sql`, SQL is asked only if its last answer was a freeze of everything, which may be over.
        """
        if (self.is_own or self._has_asker) and not is_fresh:
            if self.is_own and not self._was_asked:
                self._note()
            return self.is_all_frozen
        now = None if is_fresh else self.now()  # the clock needs SQL the first time
        if now is None or self._redis_at is None or abs(now - self._redis_at) >= _OF_REDIS:
            self._redis_at = now or self._redis_at
            self._ask_redis()
        needs_sql = with_sql or _ALL in self._in_sql  # perhaps no other call asks whether that freeze is over
        if needs_sql and (now is None or self._sql_at is None or abs(now - self._sql_at) >= _OF_SQL):
            self._sql_at = now or self._sql_at
            self._ask_sql()
        return self.is_all_frozen

    def ask_redis_now(self, redis: Redis | None) -> None:
        """Ask Redis, over another client if one is given. The loop of a worker calls this from time to time.

        From then on `look` does not ask, neither in this process nor in its forks, because a claim checks SQL itself.
        """
        self._has_asker = True
        if self._own is None:
            self._ask_redis(redis)
        elif not self._was_asked:
            self._note()

    def _ask_redis(self, redis: Redis | None = None) -> None:
        try:
            self._read_redis(redis)
            self.redis_error = None
        except RedisError as error:
            self.redis_error = error
            self._told = object()  # SQL is asked instead
            _log.debug("Redis does not say whether everything is frozen: %s", error, extra={"action": "freeze_unknown"})

    def _ask_sql(self) -> None:
        try:
            self._read_sql(_ONCE)
            self.has_sql = True
        except BackendUnavailableError as error:
            self.has_sql = False
            _log.debug("SQL does not say what is frozen: %s", error, extra={"action": "freeze_unknown"})

    def _read_redis(self, redis: Redis | None = None) -> None:
        text, self._told = self._transport.read_freeze(redis)
        if text != self._in_redis:
            self._in_redis = text
            self._note()

    def _read_sql(self, patience: Patience | None = None) -> None:
        told = self._told
        found = self._database.read(metadata.find_lasting, is_alone=True, patience=patience)
        self._told_before = told
        before, self._in_sql = self._in_sql, found
        if found.get(_ALL) != before.get(_ALL):
            self._note()
        if found != before:
            known = self.frozen
            self.frozen = {name: Freeze.from_text(text, "sql") for name, text in found.items() if name != _ALL}
            for name in sorted(self.frozen.keys() - known.keys()):
                text = "namespace %r is %s: nothing begins there until `rqsched thaw %s`"
                _log.warning(text, name, self.frozen[name], name, extra={"action": "frozen"})
            for name in sorted(known.keys() - self.frozen.keys()):
                _log.info("namespace %r is thawed: what is due there begins", name, extra={"action": "thawed"})

    def _note(self) -> None:
        """Remember the answer, and log that it has changed."""
        known = self.known
        was_frozen, self.is_all_frozen = self.is_all_frozen and self._was_asked, known is not None
        if known is not None and not was_frozen:
            ends = "until it is started without that" if self.is_own else "until `rqsched thaw --everything`"
            _log.warning("%s: nothing begins here %s", known, ends, extra={"action": "all_frozen"})
        elif known is None and was_frozen:
            _log.info("thawed: what is due begins", extra={"action": "all_thawed"})
        self._was_asked = True

    def share(self) -> None:
        """If only one of Redis and SQL has the freeze of everything, copy it to the other, or end it if it was thawed.

        The other server shows whether the freeze was thawed. A thawed freeze is there again if its server went back to
        an older state. If a server does not answer now, the next pass of reconcile does this.
        """
        self.look(is_fresh=True)
        kept, text = self.kept, self._in_redis or self._in_sql.get(_ALL)
        try:
            if self.has_sql:
                self._tell_frozen()
            if kept is None or text is None:
                return
            if self._in_redis is None:
                self.put_into_redis(kept)
                if self._in_redis is None:
                    self._database.transact(
                        lambda c: metadata.drop_freeze(c, [_over(kept)], text=text), patience=_BRIEF
                    )
                    self._came_back(kept, "SQL")
            elif _ALL not in self._in_sql:
                self.put_into_sql(kept)
                if _ALL not in self._in_sql:
                    self._transport.drop_freeze([kept.uid], text=text)
                    self._came_back(kept, "Redis")
        except (BackendUnavailableError, RedisError) as error:
            _log.warning("the freeze is not copied yet: %s", error, extra={"action": "freeze_not_copied"})

    def _came_back(self, freeze: Freeze, place: str) -> None:
        """Log that a thawed freeze had come back and was ended again, and read the current freeze."""
        text = "%s went back to an older state and had a freeze that was thawed; this freeze is ended again: %s"
        _log.warning(text, place, freeze, extra={"action": "freeze_over"})
        self._read_redis()
        self._read_sql()

    def put_into_redis(self, freeze: Freeze) -> None:
        """Freeze everything in Redis, unless Redis has a freeze or this freeze was thawed; raises RedisError."""
        self._transport.set_freeze(freeze.uid, freeze.to_text())
        self._read_redis()

    def put_into_sql(self, freeze: Freeze, *, begins: bool = False) -> None:
        """Store a freeze in SQL, unless SQL has it or it was thawed; raises BackendUnavailableError.

        With `begins`, the freeze begins at the time at which it is written.
        """
        self._database.transact(partial(self._set, freeze, begins=begins), patience=_BRIEF)
        self._read_sql()

    def _set(self, freeze: Freeze, connection: Connection, *, begins: bool) -> None:
        metadata.lock_freezes(connection, freeze.namespace)
        metadata.set_freeze(connection, replace(freeze, since=self.now()) if begins else freeze)

    def _end(
        self,
        freezes: Sequence[Freeze],
        by: str | None,
        reason: str | None,
        connection: Connection,
        *,
        text: str | None = None,
        namespace: str | None = None,
    ) -> None:
        metadata.lock_freezes(connection, namespace)
        at = self.now()
        ended = [replace(_over(one), thawed_at=at, thawed_by=by, thaw_reason=reason) for one in freezes]
        metadata.drop_freeze(connection, ended, text=text, namespace=namespace)

    def thaw_everything(self, by: str | None = None, reason: str | None = None) -> Freeze | None:
        """End the freeze of everything: first in SQL, which records by whom and why, then in Redis; returns the freeze.

        Raises the errors of SQL and Redis. If Redis does not answer, everything is still frozen: call this again.
        """
        self._read_redis()
        self._read_sql()
        kept = self.kept
        if kept is not None:
            found = _read(self._in_redis, "redis"), _read(self._in_sql.get(_ALL), "sql")
            known = [one for one in found if one is not None]
            self._database.transact(partial(self._end, known, by, reason))
            self._transport.drop_freeze([one.uid for one in known])
            self._in_redis = None
            self._in_sql = {name: text for name, text in self._in_sql.items() if name != _ALL}
            self._note()
        return kept

    def freeze(self, freeze: Freeze) -> None:
        """Freeze a namespace from now on, unless it is frozen already; raises BackendUnavailableError."""
        self._database.transact(partial(self._set, freeze, begins=True))
        self._read_sql()
        self._tell_now()

    def thaw(self, namespace: str, by: str | None = None, reason: str | None = None) -> Freeze | None:
        """End the freeze of a namespace, and record by whom and why; returns the freeze, or None if there was none.

        Raises BackendUnavailableError.
        """
        self._read_sql()
        freeze, text = self.frozen.get(namespace), self._in_sql.get(namespace)
        if freeze is not None:
            self._database.transact(partial(self._end, [freeze], by, reason, text=text, namespace=namespace))
            self._read_sql()
            self._tell_now()
        return freeze

    def _tell_now(self) -> None:
        try:
            self._tell_frozen()
        except RedisError as error:
            _log.warning("Redis is not told what is frozen yet: %s", error, extra={"action": "freeze_not_copied"})

    def _tell_frozen(self) -> None:
        """Announce in Redis that other processes should ask SQL which namespaces are frozen; raises RedisError."""
        uids = " ".join(sorted(one.uid for one in self.frozen.values()))
        told = blake2b(uids.encode(), digest_size=16).hexdigest() if uids else None
        if told != self._told:
            self._transport.tell_frozen(told)
            self._told = self._told_before = told


def _read(text: str | None, place: str) -> Freeze | None:
    return None if text is None else Freeze.from_text(text, place)


def _over(freeze: Freeze) -> Freeze:
    """Return the freeze without the places that store it."""
    return replace(freeze, kept_in=())


def _joined(places: Sequence[Freeze | None]) -> Freeze | None:
    """Return the first of the freezes, with the places of all of them; None if there is none."""
    found = [one for one in places if one is not None]
    return replace(found[0], kept_in=tuple(chain.from_iterable(one.kept_in for one in found))) if found else None
