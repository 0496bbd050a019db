"""Put rqsched and its peers through the same faults in real time, and write the table of docs/comparison.md.

    python -m benchmarks peers                      # all of it: about eleven minutes
    python -m benchmarks.peers --only "RQ's cron"   # prints the figures of some setups, and writes nothing
    python -m benchmarks.peers --table              # writes the table anew from the newest results

All setups run at the same time, each with its own Redis, and SQL if it needs it. They begin five seconds one after the
other, so that not all of them start processes at the same moment. The peers are installed from PyPI, in the versions of
requirements.txt, into an environment that is deleted afterwards; `--environment PATH` keeps it and uses it again.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.lab import DURABLE
from benchmarks.peers.faults import DOWN, FAULTS, KILLS, SEED, observe
from benchmarks.peers.page import newest, render, write_table
from benchmarks.peers.setups import EVERY, SETUPS, Setup
from benchmarks.peers.supervised import RESTART, Site, versions
from tests.support.processes import REPOSITORY, run_to_end
from tests.support.servers import postgres
from tests.support.warm import cold

HERE = Path(__file__).parent
PEERS = ("apscheduler", "celery", "celery-redbeat", "rq", "rq-scheduler", "redis")
APART = EVERY
"""Seconds between the begins of two setups: their due times stay the same."""


def install(folder: Path) -> Path:
    """Make the peers' environment, if it is not there, and return the folder of its commands."""
    if not (folder / "bin" / "celery").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        words = ["-m", "pip", "install", "--quiet", "-r"]
        subprocess.run([folder / "bin" / "python", *words, HERE / "requirements.txt"], check=True)
    return folder / "bin"


def measure(setup: Setup, base: Path, peers: Path, found: dict[int, Any]) -> None:
    """Put one setup through all faults; an error is a result, too."""
    number = SETUPS.index(setup)
    name = f"{setup.name}, {setup.variant}"
    time.sleep(APART * number)
    windows: dict[str, Any] = {}
    found[number] = {"setup": asdict(setup), "windows": windows}
    with ExitStack() as stack:
        sql = stack.enter_context(postgres(**DURABLE)) if setup.uses_postgres else None
        site = Site(setup, base / str(number), peers, sql)
        stack.callback(site.end)
        for fault in FAULTS:
            if fault == "emptied" and not setup.uses_redis:
                continue
            try:
                windows[fault] = observe(site, fault)
            except Exception:  # noqa: BLE001 - the other faults and setups go on, and the result says so
                windows[fault] = {"error": traceback.format_exc(limit=-2)}
            print(f"{datetime.now(UTC):%T} {name}: {fault}", file=sys.stderr)


def run(setups: Sequence[Setup], environment: Path, base: Path) -> dict[str, Any]:
    """Put all setups through all faults at the same time."""
    peers = install(environment)
    for folder in ("benchmarks", "rqsched"):  # as pip does for the peers: else each process compiles what it imports
        compileall.compile_dir(REPOSITORY / folder, quiet=1)
    began, found, loads = datetime.now(UTC), dict[int, Any](), [os.getloadavg()[0]]
    threads = [threading.Thread(target=measure, args=(setup, base, peers, found)) for setup in setups]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(30)
            loads.append(os.getloadavg()[0])
    commit = run_to_end(["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"], {})
    return {
        "began_at": began.isoformat(timespec="minutes"),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "load_average_before": round(loads[0], 1),
        "load_average_during": [round(min(loads[1:]), 1), round(max(loads[1:]), 1)],
        "versions": {"rqsched": version("rqsched"), **versions(peers, PEERS)},
        "commit": commit.stdout.strip(),
        "parameters": {"every": EVERY, "seed": SEED, "kills": KILLS, "restart_after": RESTART, "down": DOWN},
        "setups": [found[number] for number in sorted(found)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="the name of a setup")
    parser.add_argument("--environment", type=Path, help="the folder of the peers' environment")
    parser.add_argument("--table", action="store_true", help="only write the table")
    given = parser.parse_args()
    if given.table:
        write_table(newest())
        return
    chosen = [setup for setup in SETUPS if not given.only or setup.name in given.only]
    with tempfile.TemporaryDirectory(prefix="rqsched-peers-") as name, cold():
        results = run(chosen, given.environment or Path(name) / "environment", Path(name))
    if given.only:
        print(render(results))
        return
    path = HERE / "results" / f"{results['began_at'][:16].replace(':', '')}.json"
    path.write_text(json.dumps(results, separators=(",", ":")) + "\n")
    write_table(results)


if __name__ == "__main__":
    main()
