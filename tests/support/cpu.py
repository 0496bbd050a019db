"""Measure the CPU seconds of the suite.

`CPU_LOG=folder pytest -p tests.support.cpu ...`, then `python -m tests.support.cpu folder`.
The plugin measures the test process and every process below it during each phase and fixture of a test, and writes a
line of JSON for each test. The command adds the lines up by folder, kind of process, database, fixture, file and test.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, TextIO
from zlib import crc32

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_SERVERS = {"postgres": "postgres", "valkey-server": "valkey", "redis-server": "valkey"}
KINDS = ("pytest", "postgres", "valkey", "processes")
"""The test process itself, its servers, and every other process that it started."""
_OWN_SERVERS = ("postgres_server", "valkey_server")

Seconds = dict[str, float]


def _used() -> Seconds:
    """Return the CPU time of this process and all its descendants, including the ended ones."""
    found = dict.fromkeys(KINDS, 0.0)
    own = os.times()
    found["pytest"] = own.user + own.system
    found["processes"] = own.children_user + own.children_system
    pending = _children(os.getpid())
    while pending:
        pid = pending.pop()
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has just ended
            continue
        found[_SERVERS.get(name, "processes")] += sum(map(int, rest.split()[11:15])) / _TICKS
        pending += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass
    return found


def _difference(after: Seconds, before: Seconds) -> Seconds:
    return {kind: after[kind] - before[kind] for kind in KINDS}


class _Log:
    """Writes a line for each test: its phases, the fixtures set up for it, and whether it is of PostgreSQL."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._phases: dict[str, Seconds] = {}
        self._fixtures: dict[str, float] = {}
        self._within: list[float] = []
        """The seconds of fixtures that another fixture has set up, for each fixture that is being set up."""

    def _phase(self, name: str) -> Generator[None, Any, Any]:
        before = _used()
        try:
            return (yield)
        finally:
            self._phases[name] = _difference(_used(), before)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._phase("setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._phase("call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        return (yield from self._phase("teardown"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        before = sum(_used().values())
        self._within.append(0.0)
        try:
            return (yield)
        finally:
            took = sum(_used().values()) - before
            name = fixturedef.argname
            self._fixtures[name] = self._fixtures.get(name, 0.0) + took - self._within.pop()
            if self._within:
                self._within[-1] += took

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._phases, self._fixtures = {}, {}
        try:
            return (yield)
        finally:
            names = set(getattr(item, "fixturenames", ()))
            marks = sorted({mark.name for mark in item.iter_markers()})
            line = {
                "test": item.nodeid,
                "phases": self._phases,
                "fixtures": self._fixtures,
                "postgres": "postgres" in marks or any("postgres" in name for name in names),
            }
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample, CPU_SAMPLE="1/4" the second of four parts: its seconds times four are about those of all."""
    part, _, parts = os.environ.get("CPU_SAMPLE", "0/1").partition("/")
    kept = [item for item in items if crc32(item.nodeid.encode()) % int(parts) == int(part)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """Log every test that this process runs."""
    folder = os.environ.get("CPU_LOG")
    is_runner = hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)
    if folder and is_runner:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = (Path(folder) / f"{os.getpid()}.jsonl").open("a")
        config.pluginmanager.register(_Log(file))
        config.add_cleanup(file.close)


def read(folders: Iterable[str]) -> list[dict[str, Any]]:
    """Return the lines of some logs."""
    return [
        json.loads(line) for folder in folders for path in sorted(Path(folder).rglob("*.jsonl")) for line in path.open()
    ]


def total(test: dict[str, Any]) -> float:
    """Return the seconds of one test, without its share of starting the servers of the process."""
    whole = sum(sum(phase.values()) for phase in test["phases"].values())
    return float(whole - sum(test["fixtures"].get(name, 0.0) for name in _OWN_SERVERS))


def _folder(test: dict[str, Any]) -> str:
    parts = test["test"].split("::")[0].split("/")
    return "/".join(parts[:3] if parts[1] == "system" else parts[:2])


def _table(tests: list[dict[str, Any]], key: Callable[[dict[str, Any]], str], most: int = 40) -> None:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for test in tests:
        groups[key(test)].append(test)
    phases = ("setup", "call", "teardown")
    print(f"{'tests':>6} {'CPU s':>8} {'ms each':>8} | " + " ".join(f"{name:>9}" for name in (*phases, *KINDS)))
    sizes = {name: sum(map(total, group)) for name, group in groups.items()}
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True)[:most]:
        group = groups[name]
        by_phase = [sum(sum(test["phases"].get(phase, {}).values()) for test in group) for phase in phases]
        by_kind = [sum(phase[kind] for test in group for phase in test["phases"].values()) for kind in KINDS]
        columns = " ".join(f"{seconds:>9.1f}" for seconds in (*by_phase, *by_kind))
        print(f"{len(group):>6} {sizes[name]:>8.1f} {1000 * sizes[name] / len(group):>8.1f} | {columns}  {name}")


def main() -> None:
    tests = read(sys.argv[1:])
    print(f"{len(tests)} tests, {sum(map(total, tests)):.0f} CPU seconds\n\nBy folder")
    _table(tests, _folder)
    print("\nBy database")
    _table(tests, lambda test: "PostgreSQL" if test["postgres"] else "SQLite or none")
    print("\nBy fixture (its own set-up)")
    fixtures: dict[str, list[float]] = defaultdict(list)
    for test in tests:
        for name, seconds in test["fixtures"].items():
            fixtures[name].append(seconds)
    for name in sorted(fixtures, key=lambda name: sum(fixtures[name]), reverse=True)[:25]:
        took = fixtures[name]
        print(f"{len(took):>6} {sum(took):>8.1f} {1000 * sum(took) / len(took):>8.1f}  {name}")
    print("\nThe dearest files")
    _table(tests, lambda test: str(test["test"]).split("::")[0], 60)
    print("\nThe dearest tests")
    _table(tests, lambda test: str(test["test"]), 60)


if __name__ == "__main__":
    main()
