"""The code that alembic runs around the migrations. It uses the given open connection and its transaction."""

from __future__ import annotations

from alembic import context

from rqsched.kernel.store.migrations import VERSION_TABLE
from rqsched.kernel.store.tables import metadata


def _is_ours(name: str | None, kind: str, parents: object) -> bool:
    """Return whether a table is ours. Comparisons of schemas ignore the application's tables."""
    del parents
    return kind != "table" or name in metadata.tables


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    include_name=_is_ours,
    render_as_batch=True,  # SQLite changes a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
