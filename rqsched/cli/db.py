"""Commands about the schema: db upgrade, db status. They need no Redis."""

from __future__ import annotations

from contextlib import closing

import typer

from rqsched.cli.command import FAILED, Session, command
from rqsched.config import Settings
from rqsched.embedded import database_url
from rqsched.store import schema_version
from rqsched.store.database import Database
from rqsched.store.migrations import HEAD

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Upgrade the database's schema, or show it.")


@command(app)
def upgrade(session: Session) -> None:
    """Upgrade the database to the schema of this version. Idempotent; several processes may do it at once."""
    with closing(_open(session.settings)) as database:
        revision = schema_version.upgrade(database)
    text = f"The database is now at {revision}." if revision else f"The database is already at {HEAD}."
    session.writer.record({"upgraded": revision is not None, "revision": revision or HEAD}, text)


@command(app)
def status(session: Session) -> None:
    """Show the schema of the database and the one this version needs. Exit code 1 when they differ."""
    with closing(_open(session.settings)) as database:
        found = schema_version.status(database)
    fields = {"current": found.current, "head": found.head, "is_current": found.is_current}
    hint = "" if found.is_current else "; run `rqsched db upgrade`"
    text = f"The database is at {found.current or 'no schema'}; this version needs {found.head}{hint}."
    session.writer.record(fields, text)
    if not found.is_current:
        raise typer.Exit(FAILED)


def _open(settings: Settings) -> Database:
    return Database(database_url(settings), pooler=settings.database_pooler)
