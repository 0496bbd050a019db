"""Deliver a report to a receiver that is down at first: an example of a retry with backoff."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean

from rqsched import current_run, workflow

OUTAGE = 2
"""How many attempts of each run find the receiver down. The receiver is simulated; the report is real."""


@workflow("ops.report", timeout=30)
def deliver_report(samples: str, path: str) -> dict[str, float]:
    """Write the means of all samples to a JSON file, at the third attempt."""
    attempt = current_run().attempt
    if attempt <= OUTAGE:
        raise ConnectionError(f"the receiver is down (attempt {attempt})")
    means = _means(Path(samples))
    Path(path).write_text(json.dumps(means, indent=2) + "\n")
    return means


def _means(samples: Path) -> dict[str, float]:
    with samples.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name != "at"] if rows else []
    return {name: round(fmean(float(row[name]) for row in rows), 2) for name in names}
