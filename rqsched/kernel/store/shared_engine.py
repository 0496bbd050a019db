"""Open our own connections to the database of an application's engine.

We open connections as the engine does (with its URL, credentials, creator and connect events), but take none from its
pool. An application's transaction holds one pooled connection while we need another. If all threads waited for a second
connection, the pool would deadlock. We set our options only on our own connections.
"""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.pool import AssertionPool, Pool, SingletonThreadPool, StaticPool

from rqsched.errors import ConfigError
from rqsched.kernel.store.database import Database, prepare_sqlite
from rqsched.kernel.store.dialect import limit_transaction

_DRIVERS = {"postgresql": "psycopg", "sqlite": "pysqlite"}
_OF_ONE_CONNECTION: tuple[type[Pool], ...] = (StaticPool, SingletonThreadPool, AssertionPool)


def database_of(engine: Engine) -> Database:
    """Return the database of an application's engine; opens no connection.

    Raises ConfigError if we cannot open our own connections to the database.
    """
    _require_usable(engine)
    url = engine.url.render_as_string(hide_password=False)
    return Database(url, open_engine=partial(_open_like, engine))


def _require_usable(engine: object) -> None:
    if not isinstance(engine, Engine):
        hint = "; give database_url: an AsyncScheduler takes your asynchronous sessions all the same"
        raise ConfigError(
            f"engine: {type(engine).__name__} is not a synchronous SQLAlchemy Engine"
            f"{hint if hasattr(engine, 'sync_engine') else '; give one'}."
        )
    name, driver = engine.dialect.name, engine.dialect.driver
    if _DRIVERS.get(name) != driver:
        usable = " or ".join(f"{database}+{own}" for database, own in _DRIVERS.items())
        raise ConfigError(
            f"engine: {name}+{driver} cannot be used; open it as {usable}, or give database_url. A Session of this "
            "engine may be given as session= all the same."
        )
    if (name == "sqlite" and not engine.url.database) or ":memory:" in str(engine.url):
        raise ConfigError("engine: a SQLite database in memory is seen by its own connection only; use a file.")
    if isinstance(engine.pool, _OF_ONE_CONNECTION):
        raise ConfigError(
            f"engine: its {type(engine.pool).__name__} lends the same connection again, and rqsched needs some of its "
            "own; use the default pool or NullPool, or give database_url."
        )


def _open_like(engine: Engine) -> Engine:
    pool = engine.pool.recreate()
    if engine.dialect.name == "sqlite":
        return prepare_sqlite(sa.create_engine(engine.url, pool=pool, hide_parameters=True))
    from rqsched.kernel.store.postgres import escape_texts  # noqa: PLC0415 - its driver is of an extra

    own = sa.create_engine(engine.url, pool=pool, hide_parameters=True, isolation_level="READ COMMITTED")
    sa.event.listen(own, "begin", limit_transaction)
    sa.event.listen(own, "connect", lambda raw, _: escape_texts(raw))
    return own
