"""`python -m examples.applications`: 2 000 applications, a worker, and a month in three minutes.

A day is five seconds (`--day`). Ctrl-C ends it, `--seconds N` too; the same command continues with the same data.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from statemachine.exceptions import TransitionNotAllowed

from rqsched import Every, Scheduler, Settings, embedded

if TYPE_CHECKING:
    from .schedules import ApplicationMachine

STATES = ("waiting", "reminded", "warned", "granted", "repaid", "expired")
DONE = ("reminders", "warnings", "invoices")


def main() -> None:
    """Seed, serve and show until Ctrl-C."""
    given = _arguments()
    folder = Path(os.environ.setdefault("RQSCHED_DATA_DIR", ".rqsched/applications")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # The worker and what it imports read them: it runs the schedules of this module, and its day is as short.
    os.environ |= {
        "RQSCHED_IMPORTS": "examples.applications.schedules",
        "APPLICATIONS": str(folder / "applications.db"),
        "APPLICATIONS_DAY": str(given.day),
    }
    with suppress(KeyboardInterrupt), _own_redis(), Scheduler.from_env() as scheduler:
        bank = Bank(scheduler)
        bank.open(given.applications)
        with _worker(folder):
            print(f"A day is {given.day:g} s. To look closer, in another terminal:")
            print(f"    RQSCHED_DATA_DIR={os.environ['RQSCHED_DATA_DIR']} rqsched list    (or: rqsched web)")
            bank.show(given.seconds)
    print(f"Ended. The data stays in {folder}; the same command continues with it.")


class Bank:
    """The desk and its customers: events of applications that are on no schedule."""

    def __init__(self, scheduler: Scheduler) -> None:
        # Not before the environment says how long a day is.
        from rqsched.machines import MachineStates  # noqa: PLC0415

        from . import schedules, table  # noqa: PLC0415

        self._scheduler = scheduler
        self._schedules = schedules
        self._table = table
        self._states = MachineStates(scheduler, schedules.ApplicationMachine)
        self._chance = random.Random(2_000)
        self._day = table.DAY.total_seconds()

    def open(self, applications: int) -> None:
        """Create the schedules and, the first time, so many applications: half wait, half are loans."""
        self._table.prepare()
        self._scheduler.sync()
        self._scheduler.upsert(
            "bill", self._schedules.bill, Every(self._schedules.MONTH), target_retry=self._schedules.AGAIN
        )
        if not self._table.count()["invoices"] and not any(self._table.count().get(state) for state in STATES):
            self._seed(applications)

    def show(self, seconds: float | None) -> None:
        """Print how many are in which state whenever that changed; once a day customers submit, answer and pay back."""
        started = time.monotonic()
        days, shown = 0, ""
        print("   day  " + "".join(f"{name:>10}" for name in (*STATES, *DONE)))
        while seconds is None or time.monotonic() - started < seconds:
            age = (time.monotonic() - started) / self._day
            if age >= days + 1:
                days += 1
                self._live_a_day()
            counts = self._table.count()
            line = "".join(f"{counts.get(name, 0):>10}" for name in (*STATES, *DONE))
            if line != shown:
                print(f"{age:6.1f}  {line}", flush=True)
            shown = line
            time.sleep(0.5)

    def _seed(self, applications: int) -> None:
        now = datetime.now(UTC)
        by_age = defaultdict(list)
        for number in range(applications):
            age = self._chance.uniform(0, 7)
            is_loan = number % 2 == 1
            state = "granted" if is_loan else "waiting" if age < 2 else "reminded" if age < 5 else "warned"
            by_age[state, int(age)].append((f"a-{number + 1:05}", state, age))
        for (state, age), some in by_age.items():
            # rqsched learns since when they are in their state, which decides the events that it sends.
            entered = {"waiting": age, "reminded": age - 2, "warned": age - 5}.get(state, 0)
            self._insert(some)
            self._states.put_all({one[0]: state for one in some}, entered_at=now - entered * self._table.DAY)

    def _insert(self, some: list[tuple[str, str, float]]) -> None:
        now = datetime.now(UTC).timestamp()
        rows = [(one, state, 1, now - age * self._day, self._chance.randrange(50, 900)) for one, state, age in some]
        with self._table.table() as connection:
            connection.executemany("INSERT INTO applications VALUES (?, ?, ?, ?, ?)", rows)

    def _live_a_day(self) -> None:
        """Let new applications come in, one customer in ten send documents, and one loan in fifty be paid back."""
        with self._table.table() as connection:
            known = connection.execute("SELECT id, state FROM applications ORDER BY id").fetchall()
        moved: dict[str, str] = {}
        for one, state in known:
            if state in {"waiting", "reminded", "warned"} and self._chance.random() < 0.1:
                moved |= self._send(one, "answer")
            elif state == "granted" and self._chance.random() < 0.02:
                moved |= self._send(one, "pay_back")
        new = [(f"a-{len(known) + index + 1:05}", "waiting", 0.0) for index in range(len(known) // 40)]
        self._insert(new)
        self._states.put_all(moved | {one[0]: "waiting" for one in new})

    def _send(self, application_id: str, event: str) -> dict[str, str]:
        """Send an event as the desk does: it moves the machine and saves it; returns the new state, if it is that."""
        application: ApplicationMachine = self._schedules.ApplicationMachine(self._table.load(application_id))
        # A schedule may have moved it meanwhile, so that the event comes too late or another process saved it first.
        with suppress(TransitionNotAllowed, self._table.ChangedMeanwhileError):
            application.send(event)
            self._table.save(application_id, application.model)
            return {application_id: application.model.state}
        return {}


@contextmanager
def _own_redis() -> Iterator[None]:
    """Stop the embedded Valkey at the end, if this command started it."""
    settings = Settings()
    is_own = settings.redis_url is None and embedded.find(settings.data_dir) is None
    try:
        yield
    finally:
        if is_own:
            embedded.stop(settings.data_dir)


@contextmanager
def _worker(folder: Path) -> Iterator[None]:
    """Run a worker with two runners beside this process; its log is in the data folder."""
    command = [str(Path(sys.executable).parent / "rqsched"), "worker", "--concurrency", "2"]
    with (folder / "worker.log").open("ab") as log:
        # In a session of its own: Ctrl-C is for this command, which ends the worker then.
        worker = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.applications", description=__doc__)
    parser.add_argument("--day", type=float, default=5.0, metavar="SECONDS", help="how long a day is (5)")
    parser.add_argument("--applications", type=int, default=2_000, metavar="N", help="how many there are at first")
    parser.add_argument("--seconds", type=float, metavar="N", help="end after so many seconds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
