"""The migrations: one file a revision under `versions/`, run by `schema_version`, which keeps the revision in
the table `rqsched_alembic_version`.

A revision is written by hand, without `tables`: it says what the schema was then, whatever the code says now. After
adding one, set HEAD; a contract test compares the migrated schema with `tables` on every database.
"""

FIRST = "0005"
"""The revision of the first release: it makes every table, and a database at an older one cannot be upgraded."""

HEAD = "0005"
"""The newest revision, so that a process whose schema is current need not load alembic to know."""

VERSION_TABLE = "rqsched_alembic_version"
"""Ours alone: an application's own alembic, in the same database, is not disturbed."""
