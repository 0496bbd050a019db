"""`rqsched machine run`: one class and one event, now, and the exit status."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rqsched.machines import MachineScheduler, MachineStates
from rqsched.testing import assert_state, execute_pending
from tests.support import cli_machines as machines
from tests.support.cli import Answer, Cli

TICKET = "tests.support.cli_machines.Ticket"


@pytest.fixture
def tickets(cli: Cli) -> MachineStates:
    states = MachineStates(cli.scheduler, machines.Ticket)
    states.put_all(dict.fromkeys(["t-1", "t-2"]))
    return states


def resolve(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    """Have the resolver of EXPIRE return or raise something."""

    def answer() -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(machines, "expired", answer)


def test_machine_run_sends_the_event_now(cli: Cli, tickets: MachineStates) -> None:
    answer = cli("machine", "run", TICKET, "CLOSE")

    assert answer.out == f"Dispatched CLOSE to 2 instances of {TICKET}.\n"
    assert execute_pending(cli.scheduler, "low") == 2
    assert_state(cli.scheduler, machines.Ticket, "t-1", "closed")


def test_the_json_output_has_the_run_uid_that_counts_the_targets(
    cli: Cli, tickets: MachineStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, ["t-1", "nobody"])
    readers: dict[str, Callable[[Answer], Any]] = {"json": lambda one: one.json, "jsonl": lambda one: one.lines[0]}
    for output, read in readers.items():
        told = read(cli("machine", "run", TICKET, "EXPIRE", "-o", output, "--queue", "other"))
        assert told == {
            "machine": TICKET,
            "event": "EXPIRE",
            "run_uid": told["run_uid"],
            "targets": 1,
            "filtered": 1,
        }
        assert MachineScheduler.count(cli.scheduler, told["run_uid"]) == {"pending": 1}
    assert execute_pending(cli.scheduler, "other") == 2


def test_the_output_counts_ids_of_other_machines(
    cli: Cli, tickets: MachineStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, ["nobody"])
    out = cli("machine", "run", TICKET, "EXPIRE").out
    assert out == f"Dispatched EXPIRE to 0 instances of {TICKET}; not instances of it: 1 id.\n"


def test_no_instances_are_a_success(cli: Cli) -> None:
    assert cli("machine", "run", TICKET, "CLOSE", "-o", "json", code=0).json["targets"] == 0


FAILS: dict[str, tuple[Any, str]] = {
    "it raises": (ConnectionError("the model's database is away"), "ConnectionError: the model's database is away"),
    "it returns nothing at all": (None, "TypeError: the resolver of EXPIRE must return ids"),
}


@pytest.mark.parametrize(("found", "message"), FAILS.values(), ids=FAILS.keys())
def test_a_resolver_that_fails_is_exit_code_1_and_nothing_is_dispatched(
    cli: Cli, tickets: MachineStates, monkeypatch: pytest.MonkeyPatch, found: Any, message: str
) -> None:
    resolve(monkeypatch, found)
    answer = cli("machine", "run", TICKET, "EXPIRE", code=1)
    assert answer.err == f"Error: nothing was dispatched: {answer.err.partition('dispatched: ')[2]}"
    assert message in answer.err
    assert execute_pending(cli.scheduler) == 0


REFUSED: dict[str, tuple[list[str], str]] = {
    "an event the machine does not declare": ([TICKET, "nudge"], "it declares CLOSE, EXPIRE"),
    "an event the machine does not have": ([TICKET, "REOPEN"], "does not declare 'REOPEN'"),
    "a class that is not there": (["tests.support.cli_machines.Nobody", "CLOSE"], "cannot import"),
    "a module that is not there": (["nowhere.Ticket", "CLOSE"], "cannot import"),
    "a bare name": (["Ticket", "CLOSE"], "cannot import"),
    "a function": (["tests.support.cli_flows.hello", "CLOSE"], "is not a class"),
    "a class that was not decorated": (
        ["tests.support.cli_machines.Plain", "CLOSE"],
        "decorate the class with @machine",
    ),
    "a class that is no machine": (["pathlib.Path", "CLOSE"], "decorate the class with @machine"),
    "no event": ([TICKET], "Missing argument 'EVENT'"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_usage_is_exit_code_2(cli: Cli, words: list[str], message: str) -> None:
    assert message in cli("machine", "run", *words, code=2).err


def test_a_class_of_the_working_directory_is_found(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cli_lamps.py").write_text(
        "from statemachine import State, StateMachine\n"
        "from rqsched.machines import machine\n"
        "@machine\n"
        "class CliLamp(StateMachine):\n"
        "    on = State(initial=True)\n"
        "    off = State(final=True)\n"
        "    TURN_OFF = on.to(off)\n"
        "    schedules = {'TURN_OFF': None}\n"
    )
    assert cli("machine", "run", "cli_lamps.CliLamp", "TURN_OFF", "-o", "json").json["targets"] == 0


def test_without_the_extra_it_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "statemachine":
            raise ModuleNotFoundError("No module named 'statemachine'", name="statemachine")
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith(("rqsched.machines", "statemachine"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("rqsched.machines")
    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install '.[machines]'" in cli("machine", "run", TICKET, "CLOSE", code=2).err
