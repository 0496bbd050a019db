"""Tests that failed in CI are repeated: one that fails by chance is reported, and does not fail the run.

As a plugin of pytest (tests/conftest.py names it) this records how each test ended. As a command (`.ci/run` calls it
when the suite has failed) it repeats the failed tests, beside other tests of the suite in as many processes: alone
there is no contention, and a race would hide. Proofs of invariants are never repeated.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

REPEATS = 5
MOST_FLAKY = 3
NEVER_REPEATED = tuple(f"tests/system/{folder}/" for folder in ("crash", "concurrency", "worlds"))
PROOFS = ("tests.support.invariants", "tests.system.soak.report")
"""The modules that assert the invariants."""
KNOWN = Path("tests/support/flaky.txt")
FEWEST_REPEATS = 2
ENOUGH_TIME = 10 * 60.0
"""Seconds. Repeats beyond `FEWEST_REPEATS` begin only before this time: CI kills a run after 90 minutes."""
LONGEST_REPEAT = 12 * 60.0
"""Seconds. pytest ends a test after ten minutes."""
WORKERS = os.environ.get("WORKERS", "5")
"""As in the Makefile."""
SECONDS_BESIDE = 60.0
"""Seconds for which other tests of the suite keep the workers busy beside one repeat."""
CACHE = Path(".pytest_cache")
REPEATS_CACHE = CACHE / "repeats"
_KEY = "rqsched/outcomes"
_FAILS_INVARIANT = "fails an invariant"


class Outcomes(NamedTuple):
    """How a session of pytest and its tests ended, by node id; a failure has its first traceback."""

    exit_code: int
    passed: list[str]
    failed: dict[str, str]
    final: list[str]
    """The failures that no repeat can clear: of invariants, and at collection, before any test."""
    markers: str
    """The selection of tests (`-m`)."""
    seconds: dict[str, float]
    """How long the tests of each file took."""

    def never_repeated(self) -> set[str]:
        """Return the failed tests that no repeat can clear."""
        return {*self.final, *(name for name in self.failed if name.startswith(NEVER_REPEATED))}


def pytest_configure(config: pytest.Config) -> None:
    """Record the outcomes where the reports of all workers arrive."""
    if not hasattr(config, "workerinput") and config.pluginmanager.hasplugin("cacheprovider"):
        config.pluginmanager.register(_Recorder(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Mark the failures of invariants: only here, in the test's own process, is there an exception."""
    report = yield
    if call.excinfo is not None and _is_of_invariants(call.excinfo.value):
        report.user_properties.append((_FAILS_INVARIANT, True))
    return report


def _is_of_invariants(error: BaseException | None) -> bool:
    """Whether the check of an invariant raised it, or an error that it was raised from, or one of its group."""
    if error is None:
        return False
    frames = traceback.walk_tb(error.__traceback__)
    if isinstance(error, AssertionError) and any(frame.f_globals.get("__name__") in PROOFS for frame, _ in frames):
        return True
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(_is_of_invariants(one) for one in (error.__cause__, error.__context__, *within))


class _Recorder:
    """Writes the outcomes to pytest's cache at the end of the session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._passed: list[str] = []
        self._failed: dict[str, str] = {}
        self._final: list[str] = []
        self._seconds: dict[str, float] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """xdist goes on without a module that cannot be collected, and pytest then ends as after a failed test."""
        if report.failed:
            self._failed.setdefault(report.nodeid, report.longreprtext)
            self._final.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path = _file(report.nodeid)
        self._seconds[path] = self._seconds.get(path, 0.0) + report.duration
        if report.failed:
            self._failed.setdefault(report.nodeid, report.longreprtext)
            self._final += [report.nodeid for name, _ in report.user_properties if name == _FAILS_INVARIANT]
        elif report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        markers = self._config.option.markexpr
        outcomes = Outcomes(int(exitstatus), self._passed, self._failed, self._final, markers, self._seconds)
        if self._config.cache is not None:
            self._config.cache.set(_KEY, outcomes._asdict())


def _recorded(cache: Path) -> Outcomes | None:
    """Return the recorded outcomes; None when pytest did not write it, or not to its end."""
    try:
        return Outcomes(**json.loads((cache / "v" / _KEY).read_text()))
    except (FileNotFoundError, ValueError):
        return None


def main() -> int:
    """Return the exit code of the run: 0 when each test that failed passed in all of its repeats."""
    outcomes = _recorded(CACHE)
    if outcomes is None or outcomes.exit_code != pytest.ExitCode.TESTS_FAILED or not outcomes.failed:
        return _fail("Nothing is repeated: the suite did not end with failed tests alone.")
    if final := outcomes.never_repeated():
        return _fail("Never repeated:", final)
    known = [line for line in KNOWN.read_text().splitlines() if line in outcomes.failed]
    if known:
        return _fail(f"Flaky before ({KNOWN}):", known)
    begun = time.monotonic()
    for number in range(1, REPEATS + 1):
        if number > FEWEST_REPEATS and time.monotonic() - begun > ENOUGH_TIME:
            print(f"No time for more than {number - 1} repeats")
            break
        print(f"Repeat {number} of {REPEATS} of {len(outcomes.failed)} failed tests", flush=True)
        if left := _repeat(outcomes):
            return _fail("Did not pass again:", left)
    for name, first_traceback in outcomes.failed.items():
        print(f"FLAKY {name}\n{first_traceback}\n")
    return _fail(f"More than {MOST_FLAKY} tests are flaky.") if len(outcomes.failed) > MOST_FLAKY else 0


def _fail(reason: str, tests: Iterable[str] = ()) -> int:
    print(" ".join([reason, *sorted(tests)]))
    return 1


def _repeat(outcomes: Outcomes) -> set[str]:
    """Run the failed tests once more beside other files of the suite, and return the tests that fail the run.

    The tests beside them passed before. Their failures are printed, and fail the run only if they prove an invariant.
    """
    (REPEATS_CACHE / "v" / _KEY).unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-n", WORKERS, "--dist", "worksteal", "-o", f"cache_dir={REPEATS_CACHE}"]
    try:
        ran = subprocess.run(
            [*command, "-m", outcomes.markers, *outcomes.failed, *_beside(outcomes)],
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LONGEST_REPEAT,
            check=False,
        )
        output = ran.stdout
    except subprocess.TimeoutExpired as expired:
        output = (expired.output or b"") + f"\nended after {LONGEST_REPEAT} s".encode()
    again = _recorded(REPEATS_CACHE)
    if again is None or again.exit_code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        print(output.decode(errors="replace"))
        return set(outcomes.failed)
    for name, text in again.failed.items():
        print(f"Failed {'again' if name in outcomes.failed else 'beside the repeats'}: {name}\n{text}\n")
    return {*outcomes.failed} - ({*again.passed} - {*again.failed}) | again.never_repeated()


def _beside(outcomes: Outcomes) -> list[str]:
    """Choose random files without failed tests that together keep all workers busy for `SECONDS_BESIDE`."""
    files = sorted({_file(name) for name in outcomes.passed} - {_file(name) for name in outcomes.failed})
    left, chosen = SECONDS_BESIDE * int(WORKERS), []
    for path in random.sample(files, len(files)):
        if left > 0:
            chosen.append(path)
            left -= outcomes.seconds[path]
    return chosen


def _file(name: str) -> str:
    return name.partition("::")[0]


if __name__ == "__main__":
    sys.exit(main())
