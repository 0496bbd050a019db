"""What runs. Workers import this module, so it registers workflows and creates nothing."""

from __future__ import annotations

import csv
from pathlib import Path

from rqsched import current_run, workflow

ORDERS = {"acme": [("2026-01-14", 12), ("2026-01-15", 30)], "umbrella": [("2026-01-15", 7)]}
EXPORTS = Path("exports")


@workflow("export-orders", timeout=60)
def export_orders(customer: str) -> str:
    """Write a customer's orders to a file and return its path.

    The file is named after the occurrence, so that a repeated attempt replaces it instead of adding another.
    """
    EXPORTS.mkdir(exist_ok=True)
    path = EXPORTS / f"{customer}-{current_run().occurrence_at:%Y%m%dT%H%M%SZ}.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("day", "orders"), *ORDERS.get(customer, [])])
    return str(path)
