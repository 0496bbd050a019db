"""Sample the machine: one line of a CSV file each time."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import psutil

from rqsched import current_run, workflow

COLUMNS = ("at", "load_1m", "memory_used_percent", "disk_used_percent")


@workflow("ops.sample", timeout=30)
def sample_machine(path: str) -> dict[str, float]:
    """Append load, memory and disk at this occurrence to a CSV file."""
    row = {
        "load_1m": round(os.getloadavg()[0], 2),
        "memory_used_percent": psutil.virtual_memory().percent,
        "disk_used_percent": psutil.disk_usage(str(Path(path).anchor)).percent,
    }
    _append(Path(path), {"at": current_run().occurrence_at.isoformat(), **row})
    return row


def _append(path: Path, row: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)
