"""The names code outside this repository imports: adding one is a decision, removing one breaks somebody."""

from __future__ import annotations

from pathlib import Path

import rqsched
from rqsched import machines, testing

PUBLIC_NAMES = {
    "CommandContext",
    "Cron",
    "Every",
    "Once",
    "OverlapPolicy",
    "RetryPolicy",
    "RqschedError",
    "RunCancelled",
    "Scheduler",
    "Spec",
    "current_run",
    "workflow",
}


def test_the_public_names_are_exactly_these() -> None:
    assert set(rqsched.__all__) == PUBLIC_NAMES


MACHINE_NAMES = {"Dispatched", "MachineScheduler", "MachineStates", "find_machine", "machine"}
TESTING_NAMES = {
    "ManualClock",
    "assert_has_schedule",
    "assert_state",
    "execute_pending",
    "run_due",
    "run_schedule",
}


def test_the_names_of_the_machines_extra_are_exactly_these() -> None:
    assert set(machines.__all__) == MACHINE_NAMES
    assert [name for name in MACHINE_NAMES if not getattr(machines, name).__doc__] == []


def test_the_helpers_for_tests_of_applications_are_exactly_these() -> None:
    own = [value for value in vars(testing).values() if getattr(value, "__module__", None) == testing.__name__]
    assert {value.__name__ for value in own if not value.__name__.startswith("_")} == TESTING_NAMES


def test_every_public_name_exists_and_says_what_it_is() -> None:
    undocumented = [name for name in PUBLIC_NAMES if not getattr(rqsched, name).__doc__]
    assert undocumented == []


def test_the_package_ships_its_types() -> None:
    assert (Path(rqsched.__file__).parent / "py.typed").exists()
