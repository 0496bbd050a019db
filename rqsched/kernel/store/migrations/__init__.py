"""The migrations: one file for each revision under `versions/`. `schema_version` runs them, and stores the revision in
the table `rqsched_alembic_version`.

A revision is written by hand and does not import `tables`, because it must keep the schema of its time. If you add a
revision, set HEAD. A contract test compares the migrated schema with `tables` on every database.
"""

FIRST = "0005"
"""The revision of the first release: it makes every table, and a database at an older revision cannot be upgraded."""

HEAD = "0005"
"""The newest revision. A process whose schema has this revision need not load alembic."""

VERSION_TABLE = "rqsched_alembic_version"
"""The table of our revision. An application's own alembic in the same database uses another table."""
