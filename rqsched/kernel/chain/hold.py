"""The gate of a hold: one question, `is_on`, before a link fires, a run is claimed or something is started by hand.

A hold is stored in Redis, where the script LEASE looks, and in SQL, where the UPDATE of a claim looks. A hold in one
of the two is enough, and a pass of reconcile copies it to the other. The last answers are remembered: a server that
does not answer changes nothing. A process that its settings put on hold asks nobody.

A freeze is the hold of one namespace. Only SQL stores it: fires and claims ask in their own statements. Redis only
says that the freezes have changed: then an operation that starts something by hand asks SQL again first.
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

from rqsched.errors import BackendUnavailableError, FrozenError, HeldError
from rqsched.kernel.decide.hold import Hold
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Connection, Database, Patience
from rqsched.kernel.transport.transport import Transport

_log = logging.getLogger(__name__)

_ALL = "*"
"""The name of the hold of everything; other holds have the name of their namespace."""
_ONCE, _BRIEF = Patience(total=timedelta(0)), Patience(total=timedelta(seconds=2))
_OF_REDIS, _OF_SQL = timedelta(seconds=1), timedelta(seconds=5)
"""How long an answer of Redis and an answer of SQL count, if nothing shows earlier that it has changed."""


class HoldGate:
    """The hold and the freezes that this process knows of."""

    def __init__(self, database: Database, transport: Transport, now: Callable[[], datetime], *, is_held: bool) -> None:
        """`is_held` is the setting `hold`: this process begins nothing, whatever Redis and SQL say."""
        self._database = database
        self._transport = transport
        self.now = now
        """Returns the time by which the age of answers is measured."""
        self._own = Hold("process", by="RQSCHED_HOLD of this process", kept_in=("process",)) if is_held else None
        self._in_redis: str | None = None
        self._in_sql: Mapping[str, str] = {}
        self._redis_at: datetime | None = None
        self._sql_at: datetime | None = None
        self._was_asked = False
        self.is_own = is_held
        """Whether its settings put this process on hold."""
        self._has_asker = False
        self.has_sql = True
        """Whether SQL answered when it was asked last."""
        self.is_on = is_held
        """Whether nothing may begin, as far as this process knows; call `look` first for a fresh answer."""
        self.frozen: Mapping[str, Hold] = {}
        """The frozen namespaces, as SQL said last; call `find_frozen` for a fresh answer."""
        self._told: object = None
        self._told_before: object = None

    @property
    def kept(self) -> Hold | None:
        """The hold that Redis or SQL had when last asked, with the places that store it; None for no hold."""
        return _joined([_read(self._in_redis, "redis"), _read(self._in_sql.get(_ALL), "sql")])

    @property
    def known(self) -> Hold | None:
        """The hold that was read last, or this process's own; None if there is neither."""
        return _joined([self.kept, self._own])

    def require_off(self, namespace: str | None = None) -> None:
        """Raise HeldError while there is a hold: work that is started by hand is refused instead of waiting.

        Raises FrozenError while the namespace is frozen. A caller that does not know the namespace yet calls
        `require_thawed` later.
        """
        if self.look(with_sql=False):
            raise HeldError(str(self.known))
        self.find_frozen()
        self.require_thawed(namespace)

    def require_thawed(self, namespace: str | None) -> None:
        """Raise FrozenError while a namespace is frozen, as far as this process knows."""
        if namespace is not None and (freeze := self.frozen.get(namespace)) is not None:
            raise FrozenError(namespace, str(freeze))

    def find_frozen(self) -> Mapping[str, Hold]:
        """Return the frozen namespaces. SQL is asked again if Redis has reported a change since its last answer."""
        if self._told != self._told_before:
            self._ask_sql()
        return self.frozen

    def look(self, *, with_sql: bool = True, is_fresh: bool = False) -> bool:
        """Return `is_on`, after asking Redis and SQL if their last answers are too old.

        With `is_fresh` they are asked in any case. Without it, a process that calls `ask_redis_now` does not ask here.
        Without `with_sql`, SQL is asked only if it had a hold, which may be over.
        """
        if (self.is_own or self._has_asker) and not is_fresh:
            if self.is_own and not self._was_asked:
                self._note()
            return self.is_on
        now = None if is_fresh else self.now()  # the clock needs SQL the first time
        if now is None or self._redis_at is None or abs(now - self._redis_at) >= _OF_REDIS:
            self._redis_at = now or self._redis_at
            self._ask_redis()
        needs_sql = with_sql or _ALL in self._in_sql  # nobody else here may ask whether that hold is over
        if needs_sql and (now is None or self._sql_at is None or abs(now - self._sql_at) >= _OF_SQL):
            self._sql_at = now or self._sql_at
            self._ask_sql()
        return self.is_on

    def ask_redis_now(self, redis: Redis | None) -> None:
        """Ask Redis, over another client if one is given. The loop of a worker calls this from time to time.

        From then on `look` does not ask, neither here nor in forked processes: a claim looks in SQL itself.
        """
        self._has_asker = True
        if self._own is None:
            self._ask_redis(redis)
        elif not self._was_asked:
            self._note()

    def _ask_redis(self, redis: Redis | None = None) -> None:
        try:
            self._read_redis(redis)
        except RedisError as error:
            self._told = object()  # SQL is asked instead
            _log.debug("Redis does not say whether it is held: %s", error, extra={"action": "hold_unknown"})

    def _ask_sql(self) -> None:
        try:
            self._read_sql(_ONCE)
            self.has_sql = True
        except BackendUnavailableError as error:
            self.has_sql = False
            _log.debug("SQL does not say whether it is held: %s", error, extra={"action": "hold_unknown"})

    def _read_redis(self, redis: Redis | None = None) -> None:
        text, self._told = self._transport.read_hold(redis)
        if text != self._in_redis:
            self._in_redis = text
            self._note()

    def _read_sql(self, patience: Patience | None = None) -> None:
        told = self._told
        found = self._database.read(metadata.find_lasting, patience=patience)
        self._told_before = told
        before, self._in_sql = self._in_sql, found
        if found.get(_ALL) != before.get(_ALL):
            self._note()
        if found != before:
            self._note_frozen()

    def _note(self) -> None:
        """Remember the answer, and log that it has changed."""
        hold = self.known
        was_on, self.is_on = self.is_on and self._was_asked, hold is not None
        if hold is not None and not was_on:
            ends = "until it is started without that" if self.is_own else "until `rqsched release`"
            _log.warning("%s: nothing begins here %s", hold, ends, extra={"action": "held"})
        elif hold is None and was_on:
            _log.info("released: what is due begins", extra={"action": "released"})
        self._was_asked = True

    def _note_frozen(self) -> None:
        """Remember which namespaces are frozen, and log the changes."""
        before = self.frozen
        self.frozen = {name: Hold.from_text(text, "sql") for name, text in self._in_sql.items() if name != _ALL}
        for name in sorted(self.frozen.keys() - before.keys()):
            told = "namespace %r is %s: nothing begins there until `rqsched thaw %s`"
            _log.warning(told, name, self.frozen[name], name, extra={"action": "frozen"})
        for name in sorted(before.keys() - self.frozen.keys()):
            _log.info("namespace %r is thawed: what is due there begins", name, extra={"action": "thawed"})

    def share(self) -> None:
        """Copy a hold that only Redis or only SQL has to the other, or end the hold if the other knows its release.

        A released hold comes back if the server that has it went back in time. If a server does not answer now, the
        next pass of reconcile does this.
        """
        self.look(is_fresh=True)
        hold, text = self.kept, self._in_redis or self._in_sql.get(_ALL)
        try:
            if self.has_sql:
                self._tell_frozen()
            if hold is None or text is None:
                return
            if self._in_redis is None:
                self.put_into_redis(hold)
                if self._in_redis is None:
                    self._database.transact(lambda c: metadata.drop_hold(c, [_over(hold)], text=text), patience=_BRIEF)
                    self._came_back(hold, "SQL")
            elif _ALL not in self._in_sql:
                self.put_into_sql(hold)
                if _ALL not in self._in_sql:
                    self._transport.drop_hold([hold.uid], text=text)
                    self._came_back(hold, "Redis")
        except (BackendUnavailableError, RedisError) as error:
            _log.warning("the hold is not copied yet: %s", error, extra={"action": "hold_not_copied"})

    def _came_back(self, hold: Hold, place: str) -> None:
        """Log that a hold that had come back was ended again, and read the current hold."""
        text = "a hold that had been released was back in %s, which has gone back, and is ended again: %s"
        _log.warning(text, place, hold, extra={"action": "hold_over"})
        self._read_redis()
        self._read_sql()

    def put_into_redis(self, hold: Hold) -> None:
        """Store a hold in Redis, unless Redis has a hold or knows its release; raises RedisError."""
        self._transport.set_hold(hold.uid, hold.to_text())
        self._read_redis()

    def put_into_sql(self, hold: Hold, *, begins: bool = False) -> None:
        """Store a hold in SQL, unless SQL has a hold or knows its release; raises BackendUnavailableError.

        A hold that `begins` gets the time at which it is written as its beginning.
        """
        self._database.transact(partial(self._set, hold, begins=begins), patience=_BRIEF)
        self._read_sql()

    def _set(self, hold: Hold, connection: Connection, *, begins: bool) -> None:
        metadata.lock_holds(connection, hold.namespace)
        metadata.set_hold(connection, replace(hold, since=self.now()) if begins else hold)

    def _release(
        self,
        holds: Sequence[Hold],
        by: str | None,
        reason: str | None,
        connection: Connection,
        *,
        text: str | None = None,
        namespace: str | None = None,
    ) -> None:
        metadata.lock_holds(connection, namespace)
        at = self.now()
        ended = [replace(_over(one), released_at=at, released_by=by, release_reason=reason) for one in holds]
        metadata.drop_hold(connection, ended, text=text, namespace=namespace)

    def drop(self, by: str | None = None, reason: str | None = None) -> Hold | None:
        """End the hold in SQL, which records who released it and why, then in Redis; returns the hold.

        Raises the errors of both. If Redis does not answer, everything is still on hold: call this again.
        """
        self._read_redis()
        self._read_sql()
        kept = self.kept
        if kept is not None:
            found = _read(self._in_redis, "redis"), _read(self._in_sql.get(_ALL), "sql")
            known = [one for one in found if one is not None]
            self._database.transact(partial(self._release, known, by, reason))
            self._transport.drop_hold([one.uid for one in known])
            self._in_redis = None
            self._in_sql = {name: text for name, text in self._in_sql.items() if name != _ALL}
            self._note()
        return kept

    def freeze(self, hold: Hold) -> None:
        """Freeze a namespace from now on, unless it is frozen already; raises BackendUnavailableError."""
        self._database.transact(partial(self._set, hold, begins=True))
        self._read_sql()
        self._tell_now()

    def thaw(self, namespace: str, by: str | None = None, reason: str | None = None) -> Hold | None:
        """End the freeze of a namespace, and record by whom and why; returns the freeze, or None if there was none.

        Raises BackendUnavailableError.
        """
        self._read_sql()
        freeze, text = self.frozen.get(namespace), self._in_sql.get(namespace)
        if freeze is not None:
            self._database.transact(partial(self._release, [freeze], by, reason, text=text, namespace=namespace))
            self._read_sql()
            self._tell_now()
        return freeze

    def _tell_now(self) -> None:
        try:
            self._tell_frozen()
        except RedisError as error:
            _log.warning("Redis is not told what is frozen yet: %s", error, extra={"action": "hold_not_copied"})

    def _tell_frozen(self) -> None:
        """Announce in Redis that other processes should ask SQL which namespaces are frozen; raises RedisError."""
        uids = " ".join(sorted(one.uid for one in self.frozen.values()))
        told = blake2b(uids.encode(), digest_size=16).hexdigest() if uids else None
        if told != self._told:
            self._transport.tell_frozen(told)
            self._told = self._told_before = told


def _read(text: str | None, place: str) -> Hold | None:
    return None if text is None else Hold.from_text(text, place)


def _over(hold: Hold) -> Hold:
    """Return the hold as one that is stored nowhere any more."""
    return replace(hold, kept_in=())


def _joined(places: Sequence[Hold | None]) -> Hold | None:
    """Return the first of the holds, with the places of all of them; None if there is none."""
    found = [one for one in places if one is not None]
    return replace(found[0], kept_in=tuple(chain.from_iterable(one.kept_in for one in found))) if found else None
