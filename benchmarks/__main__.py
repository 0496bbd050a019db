"""Run every benchmark in turn; each prints one JSON object on a line of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HELPERS = {
    "__init__",
    "__main__",
    "celery_tasks",
    "lab",
    "processes",
    "floor",
    "flows",
    "gate",
    "horse",
    "http_servers",
    "world",
}
NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in HELPERS)
"""The benchmarks, by module name."""
BY_NAME = {*NAMES, "peers"}
"""The benchmarks that may be named; the comparison with other schedulers only runs if it is named."""


def main() -> int:
    wanted = sys.argv[1:] or NAMES
    if unknown := set(wanted) - BY_NAME:
        print(f"no benchmark {sorted(unknown)}; there are {', '.join(sorted(BY_NAME))}", file=sys.stderr)
        return 2
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode for name in wanted]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
