"""SQLAlchemy over a psycopg connection that somebody else holds, such as Django's: statements, and nothing else.

Beginning, ending and closing are left to whoever holds it. Connections are lent one by one and not kept, so that the
one of today is used, and none crosses a fork.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

_NAME = "rqsched_borrowed"


class BorrowedDialect(psycopg_dialect):
    """The dialect of psycopg without what begins, ends, closes or changes a connection."""

    supports_statement_cache = True

    def on_connect(self) -> Any:
        """Register nothing at the connection: it was there before us."""
        return None

    def _leave(self, *_: Any, **__: Any) -> None:
        """Do nothing: that is for whoever holds the connection."""

    do_begin = do_commit = do_rollback = do_close = do_terminate = _leave


registry.register(f"postgresql.{_NAME}", __name__, BorrowedDialect.__name__)


def borrowing_engine(borrow: Callable[[], Any]) -> Engine:
    """Open an engine whose connections `borrow` returns, each time it is asked."""
    return sa.create_engine(
        f"postgresql+{_NAME}://",
        creator=borrow,
        poolclass=NullPool,
        pool_reset_on_return=None,
        use_native_hstore=False,
        hide_parameters=True,
    )
