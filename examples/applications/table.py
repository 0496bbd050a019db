"""The bank's own tables: applications with a version, reminders and invoices. It knows no scheduler."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

DAY = timedelta(seconds=float(os.environ.get("APPLICATIONS_DAY") or 86_400))
"""How long a day is: a real one, unless one wants to see a month in minutes."""
FILE = "APPLICATIONS"
"""The variable with the path of the database."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS applications (
    id TEXT PRIMARY KEY, state TEXT, version INT, submitted_at REAL, amount INT);
CREATE INDEX IF NOT EXISTS by_state ON applications (state, submitted_at);
CREATE TABLE IF NOT EXISTS letters (application TEXT, kind TEXT, sent_at REAL);
CREATE TABLE IF NOT EXISTS invoices (application TEXT, month TEXT, amount INT, PRIMARY KEY (application, month));
"""


@dataclass
class Application:
    """One row of the bank's own table."""

    id: str
    """Its number."""
    state: str
    """The state of the machine, which python-statemachine sets."""
    version: int
    """Counts the changes; a save names the version that it read."""
    submitted_at: float
    """When the customer submitted it, in Unix seconds."""
    amount: int
    """The monthly payment."""


class ChangedMeanwhileError(Exception):
    """Another process saved the application first."""


@contextmanager
def table() -> Iterator[sqlite3.Connection]:
    """Open the bank's database, and commit at the end."""
    path = os.environ.get(FILE, "applications.db")
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        yield connection


def prepare() -> None:
    """Create the tables unless they exist."""
    with table() as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA)


def load(application_id: str) -> Application | None:
    """Read an application; None when it does not exist."""
    with table() as connection:
        row = connection.execute("SELECT * FROM applications WHERE id = ?", (application_id,)).fetchone()
    return None if row is None else Application(*row)


def save(application_id: str, application: Application) -> None:
    """Write the state, unless another process was first: then this job fails, and is tried again from the new state."""
    values = application.state, application_id, application.version
    with table() as connection:
        statement = "UPDATE applications SET state = ?, version = version + 1 WHERE id = ? AND version = ?"
        if not connection.execute(statement, values).rowcount:
            raise ChangedMeanwhileError(application_id)


def send_letter(application_id: str, kind: str) -> None:
    """Note a letter to the customer; put your mail here."""
    with table() as connection:
        values = application_id, kind, datetime.now(UTC).timestamp()
        connection.execute("INSERT INTO letters VALUES (?, ?, ?)", values)


def submitted_before(age: timedelta, *states: str) -> list[str]:
    """Return the applications in these states that were submitted so long ago."""
    until = (datetime.now(UTC) - age).timestamp()
    marks = ", ".join("?" * len(states))
    found = f"SELECT id FROM applications WHERE state IN ({marks}) AND submitted_at <= ? ORDER BY id"  # noqa: S608
    with table() as connection:
        return [row[0] for row in connection.execute(found, (*states, until))]


def count() -> dict[str, int]:
    """Count applications by state, letters by kind, and invoices."""
    with table() as connection:
        counts = dict(connection.execute("SELECT state, count(*) FROM applications GROUP BY state"))
        counts |= dict(connection.execute("SELECT kind, count(*) FROM letters GROUP BY kind"))
        counts["invoices"] = connection.execute("SELECT count(*) FROM invoices").fetchone()[0]
    return counts
