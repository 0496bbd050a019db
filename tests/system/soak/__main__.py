"""Soak: `python -m tests.system.soak --minutes 60 --kills 1000`. Ends with 0 when nothing was lost or doubled."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.system.soak.play import Plan, soak
from tests.system.soak.turns import TurnsPlan, play_turns


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long disasters strike (10)")
    parser.add_argument("--kills", type=int, default=200, help="how many disasters strike in that time (200)")
    parser.add_argument("--schedules", type=int, default=50, help="how many schedules (50)")
    parser.add_argument("--workers", type=int, default=2, help="how many `rqsched worker`s (2)")
    parser.add_argument("--seed", type=int, default=1, help="which disasters, in which order (1)")
    turns = "instead of these, so many promotions, restored backups and copies of SQL, one kind after the other"
    parser.add_argument("--turns", type=int, help=turns)
    parser.add_argument("--json", type=Path, help="write the report there too")
    parser.add_argument("--folder", type=Path, help="keep logs there")
    arguments = parser.parse_args()
    among = arguments.schedules, arguments.workers, arguments.seed
    with tempfile.TemporaryDirectory(prefix="rqsched-soak-") as temporary:
        folder = arguments.folder or Path(temporary)
        if arguments.turns is not None:
            report = play_turns(TurnsPlan(arguments.turns, *among), folder, say=print)
        else:
            report = soak(Plan(arguments.minutes, arguments.kills, *among), folder, say=print)
    if arguments.json is not None:
        arguments.json.write_text(report.to_json() + "\n")
    print(report.to_json())
    print(report.to_table())
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
