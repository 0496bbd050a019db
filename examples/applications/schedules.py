"""The application's machine and its scheduled events. Workers import this module, so it creates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from statemachine import State, StateMachine

from rqsched import RetryPolicy, current_run, workflow
from rqsched.machines import MachineScheduler, in_state, machine

from .table import DAY, load, save, send_letter, submitted_before, table

MONTH = 30 * DAY
AGAIN = RetryPolicy(max_retries=3, base=timedelta(seconds=1))
"""Retry an application that the desk changed at the same moment, or whose process died."""


def unanswered() -> list[str]:
    """Return whom to remind for the second time: five days after the application was submitted."""
    return submitted_before(5 * DAY, "reminded")


def too_old() -> list[str]:
    """Return the applications to expire: nobody answered within a week."""
    return submitted_before(7 * DAY, "waiting", "reminded", "warned")


@machine(load=load, save=save, timeout=60)
class ApplicationMachine(StateMachine):
    """An application waits for documents, is reminded of twice, and is granted or expires; a loan is paid back."""

    waiting = State(initial=True)
    reminded = State()
    warned = State()
    granted = State()
    expired = State(final=True)
    repaid = State(final=True)

    answer = waiting.to(granted) | reminded.to(granted) | warned.to(granted)
    pay_back = granted.to(repaid)
    REMIND = waiting.to(reminded)
    WARN = reminded.to(warned)
    CHECK_EXPIRY = waiting.to(expired) | reminded.to(expired) | warned.to(expired)

    schedules = {  # noqa: RUF012 - as the library writes it
        "REMIND": in_state("waiting", for_=2 * DAY),
        "WARN": unanswered,
        "CHECK_EXPIRY": too_old,
    }

    def on_REMIND(self) -> None:  # noqa: N802 - the event's name
        """Ask for the documents."""
        send_letter(self.model.id, "reminders")

    def on_WARN(self) -> None:  # noqa: N802 - the event's name
        """Say when the application expires."""
        send_letter(self.model.id, "warnings")


# In earnest these would be .daily_at("06:00"), .monthly_on(1, "06:00"): a day is compressed here.
for event in ApplicationMachine.schedules:
    MachineScheduler.register(ApplicationMachine, event).every(DAY).without_overlapping().option(target_retry=AGAIN)


def loans() -> Iterator[tuple[str, int]]:
    """Yield the loans with their monthly payment, row by row: however many there are, a chunk is in memory."""
    with table() as connection:
        yield from connection.execute("SELECT id, amount FROM applications WHERE state = 'granted'")


@workflow("bill", targets=loans, timeout=60)
def bill(loan: str, amount: int) -> None:
    """Write the invoice of a loan; the key of the table says that a month has one, however often this is tried."""
    month = current_run().occurrence_at.isoformat()
    with table() as connection:
        connection.execute("INSERT OR IGNORE INTO invoices VALUES (?, ?, ?)", (loan, month, amount))
