"""User code that tells whether the process of a fire and that of a run trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from rqsched import signals, workflow

TELL = "imported.tell"
LOG = "IMPORTED_LOG"
"""The variable that names the file."""
TRACING = "rqsched.features.tracing.chain"
"""The only module of ours that imports OpenTelemetry, as a test of the contract says."""


def _tell(where: str) -> None:
    if LOG not in os.environ:  # a later test of the process that has imported this fires
        return
    # Of OpenTelemetry itself redis-py imports the API and the SDK wherever they are installed.
    with Path(os.environ[LOG]).open("a") as lines:
        lines.write(f"{where} {int(TRACING in sys.modules)}\n")


@workflow(TELL)
def tell() -> None:
    """Leave how many modules that trace the process of this run has."""
    _tell("run")


@signals.on("ScheduleTriggered")
def tell_of_fire(event: dict[str, Any]) -> None:
    """Leave the same of the process that fires."""
    _tell("fire")
