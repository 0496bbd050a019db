"""The job of the comparison: it writes when it began. Nothing else is evidence. Every environment imports this file."""

from __future__ import annotations

import os
import time
from pathlib import Path

LOG = "PEERS_LOG"
"""The variable with the path of the file to which runs write."""


def note(due: float | None = None) -> None:
    """Append one line: the begin of this run and, if the job knows it, the time for which it was due."""
    line = f"{time.time():.4f} {'' if due is None else f'{due:.4f}'}\n"
    with Path(os.environ[LOG]).open("a") as log:
        log.write(line)  # one short write to a file opened for appending, so lines of two processes never mix
