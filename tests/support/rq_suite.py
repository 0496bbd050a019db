"""Run RQ's own tests with rqsched's worker classes in place of RQ's.

    python -m tests.support.rq_suite [--source PATH] [PYTEST OPTIONS]

The tests are those of the RQ that this Python has installed, so `.venv-oldest/bin/python` runs them for the oldest
version. PATH is RQ's source distribution or a folder of its source; without one, pip downloads the source distribution.
RQ's tests use the port 6379 of this machine, where they get a server of their own. A file with tests that fail is run
once more: many of them give a worker half a second to start. The exit status is 0 when the tests that fail are those of
`DIFFERENT`, or fewer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path

from tests.support.servers import ValkeyServer

PORT = 6379
DIFFERENT = {
    "test_worker.TestWorker.test_worker_ttl_param_resolves_timeout": "a worker blocks 3 s for a job and waits 6 s for "
    "an answer, whatever --worker-ttl is, so that it survives a Redis that falls silent",
    "test_worker.TestWorker.test_worker_configures_socket_timeout": "the timeouts are set in a client of the worker's "
    "own, and the application's is left as it is",
    "test_commands.TestCommands.test_kill_horse_command": "sends its command a quarter of a second after the "
    "start, where a worker that makes ready for runs may not listen yet",
    "test_executions.TestRegistry.test_execution_added_to_started_job_registry": "looks for a job half a second after "
    "the start, as before",
    "test_worker_pool.TestWorkerPool.test_check_workers": "sends its command half a second after the start, as before",
    "test_utils.TestUtils.test_import_worker_class": "RQ 2.6 refuses a class that is no subclass of rq.worker.Worker; "
    "here our Worker has that name, and our SimpleWorker is a subclass of RQ's",
    "test_cli.WorkerPoolCLITestCase.test_worker_class_argument": "RQ 2.6, as before",
}
"""The tests of RQ that fail with our classes, and why that is so on purpose; docs/rq.md tells users of it."""


def main() -> int:
    """Run the tests, and compare the failures with the known ones."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--source", type=Path)
    asked, options = parser.parse_known_args()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", PORT))  # raises where another server listens: the tests would empty it
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite = lay_out(asked.source or download(folder), folder)
        server = ValkeyServer(folder, port=PORT)
        server.start()
        try:
            failed = set[str]()
            for file in sorted((suite / "tests").glob("test_*.py")):
                found = run(suite, file, options)
                if found - DIFFERENT.keys():  # many give a worker half a second to start
                    found &= run(suite, file, [*options, "--last-failed"])
                failed |= found
        finally:
            server.stop()
    for test in sorted(failed):
        print(f"{'differs' if test in DIFFERENT else 'FAILED'}: {test}: {DIFFERENT.get(test, 'not expected')}")
    return int(not failed <= DIFFERENT.keys())


def download(folder: Path) -> Path:
    """Return the source distribution of the RQ that is installed here."""
    wanted = ["--no-deps", "--no-binary", "rq", f"rq=={version('rq')}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "-d", folder, *wanted], check=True)
    return next(folder.glob("rq-*.tar.gz"))


def lay_out(source: Path, folder: Path) -> Path:
    """Copy RQ's tests into a folder, with our classes for them; returns the folder."""
    if source.is_file():
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        source = next(folder.glob("rq-*/"))
    suite = folder / "suite"
    shutil.copytree(source / "tests", suite / "tests")
    shutil.copy(Path(__file__).with_name("rq_classes.py"), suite / "conftest.py")
    return suite


def run(suite: Path, file: Path, options: list[str]) -> set[str]:
    """Run the tests of a file; returns the names of those that failed. Workers that a failed test left are killed."""
    report, paths = suite / "report.xml", os.environ.get("PYTHONPATH", "")
    report.unlink(missing_ok=True)
    environment = os.environ | {
        "RQSCHED_DATABASE_URL": f"sqlite:///{suite}/rqsched.db",
        "RQSCHED_RUN_DIR": f"{suite}/run",
        "PYTHONPATH": f"{suite}{os.pathsep}{paths}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # for the command rq
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:rqsched", "--timeout=60", f"--junitxml={report}"]
    tests = subprocess.Popen([*command, file, *options], cwd=suite, env=environment, start_new_session=True)
    tests.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(tests.pid, signal.SIGKILL)
    if not report.exists():
        return {f"{file.stem}.all"}
    cases = ET.parse(report).iter("testcase")
    return {
        f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }


if __name__ == "__main__":
    sys.exit(main())
