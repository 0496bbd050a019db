"""Workflows that benchmarks let workers execute."""

from __future__ import annotations

import time

from rqsched import workflow


@workflow("benchmark-long", timeout=3_600)
def long(seconds: float) -> None:
    """Hold the worker's horse for so long."""
    time.sleep(seconds)
