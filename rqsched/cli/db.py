"""Commands about the schema: db upgrade, db status. They need no Redis."""

from __future__ import annotations

from contextlib import closing

import typer

from rqsched.cli.command import FAILED, command
from rqsched.cli.session import Session
from rqsched.embedded import database_url
from rqsched.store import schema
from rqsched.store.database import Database
from rqsched.store.migrations import HEAD

app = typer.Typer(add_completion=False, no_args_is_help=True, help="The database's schema.")


@command(app)
def upgrade(session: Session) -> None:
    """Bring the database to the schema of this version; idempotent, safe when several processes do."""
    with closing(Database(database_url(session.settings))) as database:
        revision = schema.upgrade(database)
    text = f"The database is at {revision} now." if revision else f"The database is at {HEAD} already."
    session.writer.record({"upgraded": revision is not None, "revision": revision or HEAD}, text)


@command(app)
def status(session: Session) -> None:
    """Show which schema the database has and which one this version needs; exit code 1 when they differ."""
    with closing(Database(database_url(session.settings))) as database:
        found = schema.status(database)
    facts = {"current": found.current, "head": found.head, "is_current": found.is_current}
    hint = "" if found.is_current else "; run `rqsched db upgrade`"
    text = f"The database is at {found.current or 'no schema'}, this version needs {found.head}{hint}."
    session.writer.record(facts, text)
    if not found.is_current:
        raise typer.Exit(FAILED)
