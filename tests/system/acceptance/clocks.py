"""A night on which clocks change, now: `python -m tests.system.acceptance.clocks FOLDER SECONDS`.

Writes time zone rules into FOLDER: in SECONDS seconds, at 02:00 local time, the clocks of Berlin go forward by 4
seconds and those of New York go back. Processes that use the rules need FOLDER in PYTHONTZPATH.
Then it creates two schedules. `nightly` names a local time in the gap, where it does not fire, and one after the gap.
`closing` names a local time that comes twice. Prints the earliest of these instants, and ends before it.
"""

from __future__ import annotations

import struct
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rqsched import Cron, Scheduler, Spec
from tests.system.acceptance.chores import NOTE

STEP = 4
"""Seconds by which the clocks change."""
_RULES = struct.Struct(">4s c 15x 6l lB lBB lBB 8s")
"""A file of rules with one change: header, counts, its instant and what begins then, two offsets, names."""


def write_zone(path: Path, at: int, *, before: int, after: int) -> None:
    """Write the rules of a time zone whose offset, in seconds, changes once (RFC 9636, version 1)."""
    path.parent.mkdir(parents=True)
    offsets = before, 0, 0, after, 1, 4
    path.write_bytes(_RULES.pack(b"TZif", b"\0", 0, 0, 0, 1, 2, 8, at, 1, *offsets, b"AAA\0BBB\0"))


def offset_of(at: int) -> int:
    """Return the seconds by which a clock is ahead of UTC that shows 02:00 at a Unix time."""
    ahead = (7200 - at) % 86_400
    return ahead if ahead <= 50_400 else ahead - 86_400


def main(folder: str, seconds: str) -> None:
    """Write the rules, and create the schedules."""
    with Scheduler.from_env() as scheduler:
        at = int(time.time()) + int(seconds)
        if (at + 2) % 60 == 0:  # `why` takes 12:30:00 for the minute 12:30, in which there is a run
            at += 1
        ahead = offset_of(at)
        write_zone(Path(folder) / "Europe" / "Berlin", at, before=ahead, after=ahead + STEP)
        write_zone(Path(folder) / "America" / "New_York", at, before=ahead + STEP, after=ahead)
        crons = [Cron(f"{second} 0 2 * * *", seconds="first") for second in (2, 8)]
        kwargs = {"log": f"{folder}/executions"}
        scheduler.create("nightly", NOTE, Spec(crons, timezone="Europe/Berlin", dst_gap="skip"), kwargs=kwargs)
        scheduler.create("closing", NOTE, Spec(crons[:1], timezone="America/New_York"), kwargs=kwargs)
    print((datetime.fromtimestamp(at, UTC) + timedelta(seconds=2)).isoformat())


if __name__ == "__main__":
    main(*sys.argv[1:])
