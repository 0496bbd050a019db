"""The workflow of the soak's schedules: a witness that logs its dispatch outside of SQL and Redis."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from rqsched import current_run, workflow

LOG = "SOAK_LOG"
WHOSE = "SOAK_WHOSE"
OURS = "ours"


@workflow("witness")
def witness(seconds: float) -> None:
    """One line an attempt: schedule, occurrence, run, attempt, fence, whose worker. Then it works for a while."""
    run = current_run()
    words = run.schedule_id, run.occurrence_at.isoformat(), run.uid, run.attempt, run.fence, os.environ[WHOSE]
    line = " ".join(map(str, words)) + "\n"
    with Path(os.environ[LOG]).open("ab", buffering=0) as log:
        log.write(line.encode())
    threading.Event().wait(seconds)
