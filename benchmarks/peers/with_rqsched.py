"""rqsched, as its own documentation recommends.

plain: the README and docs/rq.md: one `rq worker` with the preload; SQLite, and the defaults of a schedule.
hardened: docs/deployment.md ("always have two workers") and docs/retries.md (`missed="all"` with a policy of overlap
that lets every missed occurrence run), on PostgreSQL.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.job import note
from rqsched import Cron, Scheduler, current_run, workflow

OPTIONS: dict[str, dict[str, Any]] = {"plain": {}, "hardened": {"missed": "all", "overlap": "allow_all"}}


@workflow("peers-note", timeout="10s")
def note_occurrence() -> None:
    """Write when this run began, and for which time it was due."""
    note(current_run().occurrence_at.timestamp())


def declare() -> None:
    """Create the schedule, or change it to what it is here."""
    options = OPTIONS[os.environ["PEERS_VARIANT"]]
    Scheduler.from_env().upsert("note", note_occurrence, Cron("*/5 * * * * *"), **options)
