"""`.ci/run` in a small project of its own, with real failures: which are repeated, and which let the run fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import repeats
from tests.support.processes import REPOSITORY

CONFTEST = """
import re
from pathlib import Path

import pytest

pytest_plugins = ["tests.support.repeats"]


@pytest.fixture
def run_number(request):
    path = Path(__file__).parent / "runs" / re.sub(r"\\W", "_", request.node.name)
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size
"""
PYTEST = ".venv/bin/python -m pytest -n 2"
OTHERS = "def test_other():\n    pass\n"
FLAKY = "def test_flaky(run_number):\n    assert run_number != 1, 'the first time'\n"


EARLIER_OUTCOMES = json.dumps(
    {
        "exit_code": 1,
        "passed": [],
        "failed": {"tests::test_earlier": "a traceback"},
        "final": [],
        "markers": "",
        "seconds": {},
    }
)


class CiRun(NamedTuple):
    code: int
    output: str
    folder: Path

    def times(self, name: str) -> int:
        """How often the test ran."""
        return (self.folder / "runs" / name).stat().st_size


RunCi = Callable[..., CiRun]


@pytest.fixture
def run_ci(tmp_path: Path) -> RunCi:
    """A project with the given files under its tests; its `make test` and `make test-all` are pytest, as ours are."""

    def run(files: dict[str, str], *, known: str = "", test_command: str = PYTEST + " -m 'not broad'") -> CiRun:
        project = {
            "Makefile": f"test:\n\t{test_command}\ntest-all:\n\t@{PYTEST} --quiet $(ARGS) || test $$? = 5\n",
            "pytest.ini": "[pytest]\ntestpaths = tests\naddopts = -p xdist.plugin -p pytest_timeout\n",
            "conftest.py": CONFTEST,
            ".venv/bin/python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
            ".pytest_cache/v/rqsched/outcomes": EARLIER_OUTCOMES,
            "tests/support/flaky.txt": f"# a comment\n\ntests/{known}\n",
        }
        tests = {f"tests/{name}": content for name, content in {"test_others.py": OTHERS, **files}.items()}
        for name, content in {**project, **tests}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        (tmp_path / ".venv/bin/python").chmod(0o755)
        (tmp_path / ".ci").mkdir()
        shutil.copy(REPOSITORY / ".ci" / "run", tmp_path / ".ci" / "run")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
        environment |= {"PYTHONPATH": str(REPOSITORY), "WORKERS": "2", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        with (tmp_path / "output").open("wb") as output:
            done = subprocess.run(
                [tmp_path / ".ci" / "run"], env=environment, stdout=output, stderr=output, check=False
            )
        return CiRun(done.returncode, (tmp_path / "output").read_text(), tmp_path)

    return run


def test_repeats_have_as_many_processes_as_the_suite() -> None:
    suite = re.findall(r"^WORKERS \?= (\d+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    source = (REPOSITORY / "tests" / "support" / "repeats.py").read_text()
    assert re.findall(r'environ\.get\("WORKERS", "(\d+)"\)', source) == suite


def test_repeats_that_take_long_are_made_only_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = tmp_path / "v" / "rqsched" / "outcomes"
    outcomes.parent.mkdir(parents=True)
    outcomes.write_text(EARLIER_OUTCOMES)
    monkeypatch.setattr(repeats, "CACHE", tmp_path)
    monkeypatch.setattr(repeats, "ENOUGH_TIME", 0.0)
    monkeypatch.setattr(repeats, "_repeat", lambda outcomes: set())
    assert repeats.main() == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "epeat" in line] == [
        "Repeat 1 of 5 of 1 failed tests",
        "Repeat 2 of 5 of 1 failed tests",
        "No time for more than 2 repeats",
    ]


def test_a_suite_that_passes_is_run_once(run_ci: RunCi) -> None:
    run = run_ci({"test_one.py": "def test_passes(run_number):\n    pass\n"})
    assert run.code == 0, run.output
    assert "Repeat" not in run.output
    assert run.times("test_passes") == 1


BROAD = "import pytest\n\n\n@pytest.mark.broad\n"


def test_what_make_test_all_adds_is_run_after_make_test_and_repeated_as_well(run_ci: RunCi) -> None:
    files = {"test_one.py": BROAD + FLAKY, "test_beside.py": "def test_beside(run_number):\n    pass\n"}
    run = run_ci(files)
    assert run.code == 0, run.output
    assert re.findall(r"^FLAKY tests/(.*)$", run.output, re.MULTILINE) == ["test_one.py::test_flaky"]
    assert (run.times("test_flaky"), run.times("test_beside")) == (6, 1)


def test_what_make_test_all_adds_is_not_run_after_a_failure_that_remains(run_ci: RunCi) -> None:
    passes = BROAD + "def test_passes(run_number):\n    pass\n"
    run = run_ci({"test_one.py": "def test_fails():\n    assert False\n", "test_broad.py": passes})
    assert run.code != 0
    assert not (run.folder / "runs" / "test_passes").exists()


@pytest.mark.nightly
def test_what_fails_once_and_passes_five_times_is_told_and_the_run_passes(run_ci: RunCi) -> None:
    strange = """
import os
import time

import pytest


@pytest.mark.parametrize("value", ["a b[1]::c/d -x\\n\\u00e9"])
def test_strange(value, run_number):
    assert run_number != 1, "the first time"


def test_crash(run_number):
    if run_number == 1:
        os._exit(1)


@pytest.mark.timeout(10, method="thread")
def test_hang(run_number):
    time.sleep(60 if run_number == 1 else 0)
"""
    run = run_ci({"test_strange.py": strange})
    assert run.code == 0, run.output
    told = re.findall(r"^FLAKY tests/(.*)$", run.output, re.MULTILINE)
    strange_id = r"test_strange.py::test_strange[a b[1]::c/d -x\n\xe9]"
    assert sorted(told) == sorted([strange_id, "test_strange.py::test_crash", "test_strange.py::test_hang"])
    first_tracebacks = run.output[run.output.index("FLAKY") :]
    assert "AssertionError: the first time" in first_tracebacks
    assert "crashed while running" in first_tracebacks
    assert run.times("test_crash") == 6
    closing_lines = re.findall(r"^=+ (.*) in [\d.]+s =+$", run.output, re.MULTILINE)
    assert closing_lines == ["3 failed, 1 passed"], "the suite's own closing line is the last that looks like one"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("condition", "times"),
    [
        pytest.param("assert False", 2, id="it fails always"),
        pytest.param("assert run_number in (2, 3)", 4, id="it fails again after it passed"),
        pytest.param("if run_number > 1: import pytest; pytest.skip()\n    assert False", 2, id="it is skipped"),
    ],
)
def test_a_repeat_that_does_not_pass_fails_the_run(condition: str, times: int, run_ci: RunCi) -> None:
    run = run_ci({"test_one.py": f"def test_fails(run_number):\n    {condition}\n"})
    assert run.code != 0
    assert "FLAKY" not in run.output
    assert "test_one.py::test_fails" in run.output.splitlines()[-1]
    assert run.times("test_fails") == times


INVARIANT = """
from types import SimpleNamespace

from tests.support.invariants import i8_executions

RUNTIME = SimpleNamespace(database=SimpleNamespace(read=lambda read: []))


def test_invariants(run_number):
    try:
        i8_executions(RUNTIME, [("a run", 1)] * (2 if run_number == 1 else 1))
    except AssertionError as error:
        raise RuntimeError("told otherwise") from error
"""
SOAK = """
from tests.system.soak.report import Report


def test_soak(run_number):
    Report(lost=1 if run_number == 1 else 0).assert_clean()
"""


@pytest.mark.parametrize(
    ("path", "content", "name"),
    [
        pytest.param("system/crash/test_one.py", FLAKY, "test_flaky", id="crash"),
        pytest.param("system/concurrency/test_one.py", FLAKY, "test_flaky", id="concurrency"),
        pytest.param("system/worlds/test_one.py", FLAKY, "test_flaky", id="worlds"),
        pytest.param("test_one.py", INVARIANT, "test_invariants", id="invariants"),
        pytest.param("test_one.py", SOAK, "test_soak", id="soak"),
    ],
)
def test_what_proves_an_invariant_is_never_repeated(path: str, content: str, name: str, run_ci: RunCi) -> None:
    run = run_ci({path: content, "test_beside.py": FLAKY.replace("test_flaky", "test_beside")})
    assert run.code != 0
    assert f"tests/{path}::{name}" in run.output.splitlines()[-1]
    assert (run.times(name), run.times("test_beside")) == (1, 1)


@pytest.mark.nightly
def test_a_flaky_test_that_is_known_fails_the_run(run_ci: RunCi) -> None:
    run = run_ci({"test_one.py": FLAKY}, known="test_one.py::test_flaky")
    assert run.code != 0
    assert "test_one.py::test_flaky" in run.output.splitlines()[-1]
    assert run.times("test_flaky") == 1


def test_more_than_three_flaky_tests_fail_the_run(run_ci: RunCi) -> None:
    flaky = "\n".join(FLAKY.replace("test_flaky", f"test_flaky_{number}") for number in range(4))
    run = run_ci({"test_one.py": flaky})
    assert run.code != 0
    assert len(re.findall("^FLAKY .*test_flaky_", run.output, re.MULTILINE)) == 4


@pytest.mark.nightly
def test_a_module_that_cannot_be_collected_is_not_repeated(run_ci: RunCi) -> None:
    run = run_ci({"test_one.py": FLAKY, "test_broken.py": "import nothing_of_this_name\n"})
    assert run.code != 0
    assert "test_broken.py" in run.output.splitlines()[-1]
    assert "FLAKY" not in run.output


@pytest.mark.nightly
def test_what_an_earlier_run_left_is_not_repeated(run_ci: RunCi) -> None:
    run = run_ci({}, test_command="exit 3")
    assert run.code != 0
    assert "Repeat" not in run.output


FAILS_LATER = "def test_beside(run_number):\n    assert run_number == 1, 'beside a repeat'\n"


@pytest.mark.nightly
def test_what_proves_an_invariant_fails_the_run_beside_repeats_too(run_ci: RunCi) -> None:
    run = run_ci({"test_one.py": FLAKY, "system/crash/test_beside.py": FAILS_LATER})
    assert run.code != 0
    assert "crash/test_beside.py::test_beside" in run.output.splitlines()[-1]
    assert run.times("test_flaky") == 2


@pytest.mark.nightly
def test_the_run_is_not_judged_by_other_tests_beside_repeats(run_ci: RunCi) -> None:
    run = run_ci({"test_one.py": FLAKY, "test_beside.py": FAILS_LATER})
    assert run.code == 0, run.output
    assert re.findall(r"^FLAKY tests/(.*)$", run.output, re.MULTILINE) == ["test_one.py::test_flaky"]
    assert re.search("^Failed beside the repeats: .*::test_beside$", run.output, re.MULTILINE)


ENDS_PYTEST = """
import os
import signal
import time
from pathlib import Path

import pytest


def test_beside(run_number):
    if run_number == 1:
        return
    while (Path(__file__).parents[1] / "runs" / "test_flaky").stat().st_size < 2:
        time.sleep(0.05)
    time.sleep(0.5)
    {end}
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("os.kill(os.getppid(), signal.SIGKILL)", id="it is killed"),
        pytest.param("pytest.exit('enough')", id="it is interrupted"),
    ],
)
def test_a_repeat_whose_pytest_does_not_end_itself_fails_the_run(end: str, run_ci: RunCi) -> None:
    run = run_ci({"test_one.py": FLAKY, "test_beside.py": ENDS_PYTEST.format(end=end)})
    assert run.code != 0
    assert "FLAKY" not in run.output
    assert "test_one.py::test_flaky" in run.output.splitlines()[-1]
    assert run.times("test_flaky") == 2


UNSTABLE_ID = """
from pathlib import Path

import pytest


@pytest.mark.parametrize("runs", [Path("runs").exists()])
def test_flaky(run_number, runs):
    assert runs
"""


@pytest.mark.nightly
def test_a_test_that_no_repeat_finds_fails_the_run_and_pytest_says_why(run_ci: RunCi) -> None:
    run = run_ci({"test_one.py": UNSTABLE_ID})
    assert run.code != 0
    assert "test_one.py::test_flaky[False]" in run.output.splitlines()[-1]
    assert "no tests ran" in run.output


@pytest.mark.nightly
@pytest.mark.parametrize("left", ["", '{"exit_code": 1'])
def test_half_written_outcomes_fail_the_run(left: str, run_ci: RunCi) -> None:
    command = f"printf '%s' '{left}' > .pytest_cache/v/rqsched/outcomes; exit 137"
    run = run_ci({"test_one.py": FLAKY}, test_command=command)
    assert run.code != 0
    assert "Nothing is repeated" in run.output.splitlines()[-1]
