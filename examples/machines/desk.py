"""The library's desk: `python -m examples.machines.desk lend|return|show [BOOK] [DUE]`."""

from __future__ import annotations

import sys

from rqsched import Scheduler
from rqsched.machines import MachineStates

from .loans import Loan, LoanMachine, load, save, table


def lend(scheduler: Scheduler, book: str, due: str) -> None:
    """Lend a book until a day."""
    save(book, Loan(book, due, "lent", 0))
    MachineStates(scheduler, LoanMachine).put(book)


def take_back(scheduler: Scheduler, book: str) -> None:
    """Take a book back: the desk sends the event itself, and puts the new state."""
    loan = LoanMachine(load(book))
    loan.send("bring_back")
    save(book, loan.model)
    MachineStates(scheduler, LoanMachine).put(book, loan)


def show() -> None:
    """Print every loan."""
    with table() as connection:
        for book, due, state, reminders in connection.execute("SELECT * FROM loans ORDER BY id"):
            print(f"{book}: {state}, due {due}, reminded {reminders} time(s)")


def main(order: str = "show", *words: str) -> None:
    """Carry out one order; the schedule is created on the way."""
    with Scheduler.from_env() as scheduler:
        scheduler.sync()
        if order == "lend":
            lend(scheduler, *words)
        elif order == "return":
            take_back(scheduler, *words)
    show()


if __name__ == "__main__":
    main(*sys.argv[1:])
