"""The loan's machine and its scheduled events. Workers import this module, so it creates nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date

from statemachine import State, StateMachine

from rqsched.machines import MachineScheduler, machine


@dataclass
class Loan:
    """One row of the library's own table."""

    id: str
    """The book."""
    due: str
    """The day it is due, ISO 8601."""
    state: str
    """The state of the machine, which python-statemachine sets."""
    reminders: int
    """How many were sent."""


@contextmanager
def table() -> Iterator[sqlite3.Connection]:
    """Open the library's database."""
    with closing(sqlite3.connect(os.environ.get("LOANS", "loans.db"), timeout=10)) as connection, connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS loans (id TEXT PRIMARY KEY, due TEXT, state TEXT, reminders INT)"
        )
        yield connection


def load(loan_id: str) -> Loan | None:
    """Read a loan; None when it does not exist."""
    with table() as connection:
        row = connection.execute("SELECT * FROM loans WHERE id = ?", (loan_id,)).fetchone()
    return None if row is None else Loan(*row)


def save(loan_id: str, loan: Loan) -> None:
    """Write a loan."""
    with table() as connection:
        values = (loan_id, loan.due, loan.state, loan.reminders)
        connection.execute("INSERT OR REPLACE INTO loans VALUES (?, ?, ?, ?)", values)


def due_loans() -> list[str]:
    """Return the loans to remind of: the library decides, not the scheduler."""
    today = date.today().isoformat()  # noqa: DTZ011 - the library's own day
    with table() as connection:
        found = connection.execute("SELECT id FROM loans WHERE due <= ? AND state != 'returned' ORDER BY id", (today,))
        return [row[0] for row in found]


@machine(load=load, save=save)
class LoanMachine(StateMachine):
    """A loan is open, then overdue; after two reminders it is lost, unless the book is returned."""

    lent = State(initial=True)
    overdue = State()
    lost = State(final=True)
    returned = State(final=True)

    bring_back = lent.to(returned) | overdue.to(returned)
    CHECK_DUE = lent.to(overdue) | overdue.to(lost, cond="was_reminded_twice") | overdue.to.itself()

    schedules = {"CHECK_DUE": due_loans}  # noqa: RUF012 - as the library writes it

    def was_reminded_twice(self) -> bool:
        """Whether two reminders were sent."""
        return bool(self.model.reminders >= 2)

    def on_CHECK_DUE(self, target: State) -> None:  # noqa: N802 - the event's name
        """Send a reminder to the borrower."""
        if target.id == "overdue":
            self.model.reminders += 1


MachineScheduler.register(LoanMachine, "CHECK_DUE").daily_at("08:00").weekdays().without_overlapping()
