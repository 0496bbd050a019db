"""What workers execute."""

from __future__ import annotations

from pathlib import Path

from flask import current_app

from rqsched import workflow


def write_receipt(number: str) -> None:
    """Write the receipt of an order."""
    Path("papers").mkdir(exist_ok=True)
    Path(f"papers/receipt-{number}").touch()


@workflow("print-report")
def print_report(name: str) -> str:
    """Print a report."""
    path = Path(current_app.config["PAPERS"]) / f"report-{name}"
    path.touch()
    return str(path)
