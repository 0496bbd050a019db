"""Start-up: the cost of a command from its start to its answer, beside `python -c "import sqlalchemy, rq"`.

    python -m benchmarks.startup --rounds 10

The CPU of the whole process, its end included, on databases with one schedule: seconds on the clock say more about what
else the machine does. The modules are compiled before. The aim is at most 1.5.
"""

from __future__ import annotations

import compileall
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import DATABASES, arguments, lab, paired, report, summary
from tests.support.processes import rqsched_command

PEER = "import sqlalchemy, rq"
COMMANDS = (
    ["--version"],
    ["list"],
    ["list", "-o", "json"],
    ["describe", "a"],
    ["pause", "a"],
    ["resume", "a"],
    ["history", "a"],
)


def cpu(words: Sequence[str | Path], environment: dict[str, str]) -> float:
    """Run a process to its end; returns its milliseconds of CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(word) for word in words], env={**os.environ, **environment}, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1_000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> None:
    given = arguments(__doc__, rounds=10)
    compileall.compile_dir(Path(__file__).parents[1] / "rqsched", quiet=1)
    found: dict[str, list[float]] = {}
    with lab() as place:
        environments = {
            kind: {
                "RQSCHED_DATABASE_URL": place.database_url(kind),
                "RQSCHED_REDIS_URL": f"{place.valkey.url}/{number}",
            }
            for number, kind in enumerate(DATABASES)
        }
        for environment in environments.values():
            cpu(rqsched_command("create", "a", "time.time", "--every", "1h"), environment)
        for _ in range(given.rounds):
            found.setdefault("peer", []).append(cpu([sys.executable, "-c", PEER], {}))
            for kind, environment in environments.items():
                for words in COMMANDS:
                    name = f"{kind}: {' '.join(words)}"
                    found.setdefault(name, []).append(cpu(rqsched_command(*words), environment))
    peer = found.pop("peer")
    report(
        "startup",
        vars(given),
        {
            "cpu_ms": {"peer": summary(peer), **{name: summary(one) for name, one in found.items()}},
            "ratio": {name: paired(one, peer) for name, one in found.items()},
            "aim": "each at most 1.5",
        },
    )


if __name__ == "__main__":
    main()
