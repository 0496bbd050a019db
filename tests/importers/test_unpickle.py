"""Pickles of trusted sources are loaded in a process of their own, whatever they do to it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psutil
import pytest

from rqsched.errors import ConfigError, InvalidInputError
from rqsched.importers.unpickle import Limits, NotReadableError, Object, loaded, unpickle, what_is
from tests.support.processes import wait_until

AT = datetime(2026, 1, 15, 12, tzinfo=UTC)
GOOD, BETTER = pickle.dumps("good"), pickle.dumps("better")
SMALL = Limits(cpu_seconds=1, memory=512 * 1024**2)


class Stranger:
    """A class of an application."""

    def __init__(self) -> None:
        self.name = "x"


class Calls:
    """Its pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


def evaluates(expression: str) -> bytes:
    """A pickle that runs an expression where it is loaded."""
    return pickle.dumps(Calls(eval, expression))


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def value_of(data: bytes, *own: str, limits: Limits = SMALL) -> Any:
    return loaded(unpickle([data], own, is_trusted=True, limits=limits), data)


def test_nothing_is_loaded_of_a_source_that_is_not_trusted(tmp_path: Path) -> None:
    data = pickle.dumps(Calls(open, str(tmp_path / "mark"), "w"))
    with pytest.raises(
        InvalidInputError, match="--trust-source: is missing: the source stores jobs as pickles, and loading a pickle"
    ):
        unpickle([data], is_trusted=False)
    assert not (tmp_path / "mark").exists()
    value_of(data)
    assert (tmp_path / "mark").exists()


def test_source_without_pickles_needs_no_trust() -> None:
    assert unpickle([], is_trusted=False) == {}


def test_loaded_code_runs_in_one_other_process() -> None:
    pickles = [pickle.dumps([number, Calls(os.getpid)]) for number in range(5)]
    found = unpickle(pickles, is_trusted=True)
    pids = {loaded(found, data)[1] for data in pickles}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_values_and_times_are_read_as_they_were() -> None:
    values = [
        *(None, True, -7, 2**70, 1.5, "text", [1, [2]], (1, (2,)), {"a": {"b": [None]}}),
        *(AT, AT.replace(tzinfo=None), AT.astimezone(timezone(timedelta(hours=5, minutes=30))), AT.date()),
        timedelta(days=1, microseconds=3),
    ]
    assert value_of(pickle.dumps(values)) == values


def test_other_values_are_told_by_their_names() -> None:
    table: list[tuple[object, Object]] = [
        (ZoneInfo("Europe/Berlin"), Object("zoneinfo.ZoneInfo", "Europe/Berlin")),
        (UTC, Object("datetime.timezone", timedelta(0))),
        (Stranger(), Object(f"{__name__}.Stranger")),
        (Stranger, Object(f"class {__name__}.Stranger")),
        (evaluates, Object(f"function {__name__}.evaluates")),
        (b"x", Object("bytes")),
        ({1}, Object("set")),
        (Decimal(1), Object("decimal.Decimal")),
        ({1: 2}, Object("dict with a key that is an int")),
        ({"\0": "datetime.date", "state": "x"}, Object("dict with a key that is a str")),
    ]
    assert value_of(pickle.dumps([value for value, _ in table])) == [found for _, found in table]


def test_attributes_of_a_class_that_the_caller_names_are_told() -> None:
    name = f"{__name__}.Stranger"
    assert value_of(pickle.dumps(Stranger()), name) == Object(name, {"name": "x"})


SAME_HASH = (
    b"}(" + b"".join(b"\x8a\x0a" + ((2**61 - 1) * n).to_bytes(10, "little") + b"N" for n in range(1, 70_000)) + b"u."
)
BAD = {
    "keys of one hash": (SAME_HASH, "more than 1 s of processor time"),
    "a loop": (evaluates("any(iter(int, 1))"), "more than 1 s of processor time"),
    "a hang": (evaluates("__import__('time').sleep(600)"), "longer than 5 s"),
    "a hang that cannot be interrupted": (
        evaluates("[__import__('signal').pthread_sigmask(0, range(1, 65)), __import__('time').sleep(600)]"),
        "longer than 5 s",
    ),
    "one great allocation": (evaluates("bytearray(1 << 40)"), "more than 512 MiB of memory"),
    "many allocations": (evaluates("[bytes(1 << 20) for _ in iter(int, 1)]"), "more than 512 MiB of memory"),
    "a great index": (b"I7\nr\xff\xff\xff\xff.", "more than 512 MiB of memory"),
    "an error": (evaluates("1 / 0"), "raised ZeroDivisionError: division by zero"),
    "no module": (b"cno_such_module\nUser\n.", "raised ModuleNotFoundError: No module named 'no_such_module'"),
    "no pickle": (b"{}", "UnpicklingError: invalid load key"),
    "nothing": (b"", "raised EOFError"),
    "SystemExit": (evaluates("exit(3)"), "raised SystemExit: 3"),
    "the end of the process": (evaluates("__import__('os')._exit(3)"), "ended the loading process (exit code 3)"),
    "a crash": (evaluates("__import__('os').abort()"), "ended the loading process (signal 6)"),
    "a value that holds itself": (b"(lp0\ng0\na.", "raised RecursionError"),
    "a great value": (pickle.dumps("a" * 1024 * 1024), "more than 1048576 characters"),
    "garbage in place of an answer": (
        evaluates("__import__('os').write(3, b'{}\\n')"),
        "an invalid answer",
    ),
    "an answer to another": (
        evaluates("__import__('os').write(3, b'[2, 1, null]\\n')"),
        "an invalid answer",
    ),
    "half of an answer": (
        evaluates("__import__('os').write(3, b'[1, 1') and __import__('os')._exit(0)"),
        "exit code 0",
    ),
}


@pytest.mark.parametrize(("bad", "reason"), BAD.values(), ids=BAD.keys())
def test_pickle_that_cannot_be_loaded_refuses_itself_only(bad: bytes, reason: str) -> None:
    limits = SMALL._replace(seconds=5) if "longer" in reason else SMALL
    found = unpickle([GOOD, bad, BETTER], is_trusted=True, limits=limits)
    with pytest.raises(NotReadableError) as told:
        loaded(found, bad)
    assert reason in str(told.value)
    assert (found[GOOD], found[BETTER]) == ("good", "better")


def test_small_value_that_stands_for_very_many_is_ended() -> None:
    found: Any = "ha"
    for _ in range(40):
        found = (found, found)
    with pytest.raises(NotReadableError, match=r"more than (1 s of processor time|512 MiB of memory)"):
        value_of(pickle.dumps(found))


def test_what_loaded_code_prints_is_no_answer() -> None:
    assert value_of(evaluates("print('{}') or __import__('os').system('echo {}')")) == 0


def test_answers_without_end_are_ended() -> None:
    data = evaluates("[__import__('os').write(3, bytes(1 << 20)) for _ in iter(int, 1)]")
    with pytest.raises(NotReadableError, match="wrote too much"):
        value_of(data, limits=SMALL._replace(cpu_seconds=60))


def test_processes_that_loaded_code_starts_end_with_it() -> None:
    forks = evaluates("__import__('os').fork()")
    starts = evaluates("__import__('subprocess').Popen(['sleep', '600']).pid")
    found = unpickle([forks, starts, GOOD], is_trusted=True)
    pid = loaded(found, starts)
    assert loaded(found, forks) > 0
    assert found[GOOD] == "good"
    wait_until(lambda: has_ended(pid))


def test_process_ends_by_itself_after_an_import_that_was_killed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    hangs = evaluates(
        f"open({str(mark)!r}, 'w').write(str(__import__('os').getpid())) and __import__('time').sleep(600)"
    )
    code = (
        "from rqsched.importers.unpickle import Limits, unpickle\n"
        f"unpickle([{hangs!r}], is_trusted=True, limits=Limits(seconds=3))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: mark.exists() and mark.read_text() != "")
    parent.kill()
    parent.wait()
    wait_until(lambda: has_ended(int(mark.read_text())))


def test_classes_of_the_working_directory_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_of_tests.py").write_text("class User: ...\nprint('imported')")
    monkeypatch.chdir(tmp_path)
    assert value_of(b"(cshop_of_tests\nUser\no.") == Object("shop_of_tests.User")
    assert "shop_of_tests" not in sys.modules


def test_process_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConfigError, match="does not start"):
        value_of(GOOD)


def test_kind_is_said_in_words() -> None:
    assert [what_is(one) for one in (1, AT, date(2026, 1, 1), Object("app.User"))] == [
        "an int",
        "a datetime",
        "a date",
        "an app.User",
    ]
