"""The user code of the crash tests: it leaves a line in a file when it begins, and fails as often as it is told."""

from __future__ import annotations

from pathlib import Path

from rqsched import current_run

WORK = f"{__name__}.work"


class AttemptFailedError(Exception):
    """The workflow was told to fail."""


def work(log: str, fails: int = 0) -> str:
    """Note the attempt before anything else; the first `fails` attempts fail."""
    run = current_run()
    with Path(log).open("a") as lines:
        lines.write(f"{run.uid} {run.attempt}\n")
    if run.attempt <= fails:
        raise AttemptFailedError(f"attempt {run.attempt}")
    return "done"


def executed(log: Path) -> list[tuple[str, int]]:
    """Read the log: (run uid, attempt) for each time the workflow began."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(uid, int(attempt)) for uid, attempt in (line.split() for line in lines)]
