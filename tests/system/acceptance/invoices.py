"""The application of the drawn trace: a workflow that fails at first, and then handles three regions."""

from __future__ import annotations

import time

from rqsched import current_run, workflow
from tests.system.acceptance.traced import tracer

REGIONS = "eu", "us", "apac"


def regions() -> list[str]:
    """Name the targets; the first attempt finds the server of names away."""
    time.sleep(0.02)
    if current_run().attempt == 1:
        raise TimeoutError("names.example.com")
    return list(REGIONS)


@workflow("invoice-sync", targets=regions)
def invoice_sync(region: str) -> None:
    """Handle one region."""
    with tracer.start_as_current_span(f"GET /invoices/{region}"):
        time.sleep(0.03)
