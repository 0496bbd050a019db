"""How long a session of ours on PostgreSQL may hold up others; `postgres` and `shared_engine` set it, each its way."""

from __future__ import annotations

from sqlalchemy.engine import Connection

SESSION = {
    "statement_timeout": "8s",
    "lock_timeout": "4s",
    "idle_in_transaction_session_timeout": "8s",
    "tcp_user_timeout": "8s",
}
"""The limits of each session. A process may freeze while it waits for a lock (4 s), between two statements (8 s), or
with rows on their way to it (8 s: then no timeout of SQL is looked at, and only TCP ends the session)."""
_IN_TRANSACTION = "SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in SESSION.items())


def limit_transaction(connection: Connection) -> None:
    """Set the limits for the open transaction alone: its session may be lent to somebody else next."""
    connection.exec_driver_sql(_IN_TRANSACTION)
