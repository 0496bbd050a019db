"""Use SQLAlchemy on a psycopg connection that another library, such as Django, owns. We only execute statements.

The owner begins transactions, ends them, and closes the connection. We get the current connection anew for each use and
do not keep it, so no connection crosses a fork.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

_NAME = "rqsched_existing"


class ExistingConnectionDialect(psycopg_dialect):
    """The dialect of psycopg without the methods that begin or end transactions, or close or change a connection."""

    supports_statement_cache = True

    def on_connect(self) -> Any:
        """Change nothing in the connection, because we did not open it."""
        return None

    def _leave(self, *_: Any, **__: Any) -> None:
        """Do nothing, because the owner of the connection does this."""

    do_begin = do_commit = do_rollback = do_close = do_terminate = _leave


registry.register(f"postgresql.{_NAME}", __name__, ExistingConnectionDialect.__name__)


def engine_over(current: Callable[[], Any]) -> Engine:
    """Open an engine that calls `current` for its connection each time it needs one."""
    return sa.create_engine(
        f"postgresql+{_NAME}://",
        creator=current,
        poolclass=NullPool,
        pool_reset_on_return=None,
        use_native_hstore=False,
        hide_parameters=True,
    )
