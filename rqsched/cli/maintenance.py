"""Commands for maintenance: tick, recover, db upgrade, db status, db adopt and db new-identity."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rqsched.api import schema_version
from rqsched.api.background_reconcile import count_to_compare
from rqsched.api.database import Database
from rqsched.api.identity import renew_identity
from rqsched.api.schema_version import HEAD
from rqsched.api.values import new_uid, number_of
from rqsched.cli.arguments import Yes
from rqsched.cli.command import FAILED, Session, command, confirm
from rqsched.cli.output import Output, progress_bar
from rqsched.clock import SystemClock
from rqsched.config import Settings
from rqsched.embedded import database_url
from rqsched.errors import in_words

app = typer.Typer(add_completion=False)
db = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Upgrade or show the schema; say which copy is right.",
)
"""The commands of the schema need no Redis."""
app.add_typer(db, name="db")


@command(app)
def tick(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most schedules to fire.")] = 100,
    is_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
) -> None:
    """Fire what is due, once, in this process; for use from cron. Exit code 1 when a fire failed."""
    if is_json:
        session.writer.output = Output.JSON
    rows = session.scheduler.tick(limit=limit)
    if not session.writer.for_programs(rows, rows):
        for row in rows:
            session.writer.say(f"[{row['schedule_id']}] → {_outcome(row)}")
        count = len({row["schedule_id"] for row in rows})
        session.writer.say(f"Processed {number_of(count, 'schedule')}." if rows else "No schedules due.")
    if any("error" in row for row in rows):
        raise typer.Exit(FAILED)


def _outcome(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"failed: {row['error']}"
    if row["instance_id"] is None:
        return f"{row['outcome']}: {row['reason']}" if "reason" in row else str(row["outcome"])
    return str(row["instance_id"])


@command(app)
def recover(
    session: Session,
    deep: Annotated[bool, typer.Option("--deep", help="Verify the link of every active schedule.")] = False,
) -> None:
    """Compare SQL with Redis and repair the difference, once. Safe to repeat. Exit code 1 when a row failed."""
    scheduler = session.scheduler
    scheduler.runtime.transport.redis.ping()  # report an outage at once, because a pass would wait for Redis
    total = scheduler.runtime.database.read(count_to_compare) if deep else None
    with progress_bar("Comparing", total) as advance:
        recovered = scheduler.recover(deep=deep, progress=advance)
    counts = asdict(recovered)
    told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    session.writer.record(counts | {"repaired": recovered.repaired}, f"Recovered: {told or 'nothing to compare'}.")
    if recovered.failed:
        raise typer.Exit(FAILED)


@command(db)
def upgrade(session: Session) -> None:
    """Upgrade the database to the schema of this version. Idempotent; several processes may do it at once."""
    with closing(_open(session.settings)) as database:
        revision = schema_version.upgrade(database)
    text = f"The database is now at {revision}." if revision else f"The database is already at {HEAD}."
    session.writer.record({"upgraded": revision is not None, "revision": revision or HEAD}, text)


@command(db)
def status(session: Session) -> None:
    """Show the schema of the database and the one this version needs. Exit code 1 when they differ."""
    with closing(_open(session.settings)) as database:
        found = schema_version.status(database)
    fields = {"current": found.current, "head": found.head, "is_current": found.is_current}
    hint = "" if found.is_current else in_words("; run `rqsched db upgrade`")
    text = f"The database is at {found.current or 'no schema'}; this version needs {found.head}{hint}."
    session.writer.record(fields, text)
    if not found.is_current:
        raise typer.Exit(FAILED)


@command(db)
def adopt(session: Session, yes: Yes = False) -> None:
    """Let this database's server have the control queue at once, and refuse processes of the previous server.

    Use it for a restored copy, or for a primary that was refused, once you are sure that this database is the right
    one. It also deletes doctor's finding that SQL or Redis went back to an earlier state.
    """
    confirm("Is this the right database? Processes of the other server are refused from now on.", yes)
    found = session.scheduler.runtime.ownership.adopt_server()
    fields = {"outcome": found.outcome, "recorded": found.recorded, "before": found.before}
    before = f" (before: {found.before})" if found.before and found.before != found.recorded else ""
    session.writer.record(fields, f"The control queue belongs to this database{before}.")


@command(db)
def new_identity(session: Session, yes: Yes = False) -> None:
    """Give a copied database another id. Stop its processes first; it needs a Redis of its own.

    Instead of another Redis, another RQSCHED_CONTROL_QUEUE and other run queues suffice. Waiting notifications are
    deleted from the copy, because the original sends them. Waiting and retrying runs also execute in the copy as soon
    as its workers start. To prevent this, freeze the copy and cancel these runs first.
    """
    confirm("Is this the copy, and are all its processes stopped?", yes)
    with closing(_open(session.settings)) as database:
        drawn = new_uid(SystemClock().now())
        before, dropped = renew_identity(database, drawn)
    needs = "give its processes a Redis, or a RQSCHED_CONTROL_QUEUE, of their own"
    told = f"; deleted: {number_of(dropped, 'waiting notification')}" if dropped else ""
    text = f"The database's id is {drawn} now; {needs}{told}."
    session.writer.record({"database_id": drawn, "before": before, "notifications_deleted": dropped}, text)


def _open(settings: Settings) -> Database:
    return Database(database_url(settings), pooler=settings.database_pooler)
