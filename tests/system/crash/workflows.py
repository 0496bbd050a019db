"""The user code of the crash tests: it leaves a line in a file when it begins, and fails as often as it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rqsched import current_run

WORK = f"{__name__}.work"
NOTIFY = f"{__name__}.notify"
NOTIFY_IN_VAIN = f"{__name__}.notify_in_vain"
_notes: list[Path] = []
"""The file of messages: one per process, because a message names no path."""


class AttemptFailedError(Exception):
    """The workflow was told to fail."""


def work(log: str, fails: int = 0) -> str:
    """Note the attempt before anything else; the first `fails` attempts fail."""
    run = current_run()
    with Path(log).open("a") as lines:
        lines.write(f"{run.uid} {run.attempt} {run.fence}\n")
    if run.attempt <= fails:
        raise AttemptFailedError(f"attempt {run.attempt}")
    return "done"


def executed(log: Path) -> list[tuple[str, int]]:
    """Read the log: (run uid, attempt) for each time the workflow began."""
    return [(uid, attempt) for uid, attempt, _ in fenced(log)]


def fenced(log: Path) -> list[tuple[str, int, int]]:
    """Read the log: (run uid, attempt, fence) for each time the workflow began."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(uid, int(attempt), int(fence)) for uid, attempt, fence in (line.split() for line in lines)]


def take_notes(path: Path) -> None:
    """Let `notify` write to this file."""
    _notes[:] = [path]


def notify(message: dict[str, Any]) -> None:
    """Note a message before anything else."""
    with _notes[0].open("a") as lines:
        lines.write(f"{message['id']} {message['event']}\n")


def notify_in_vain(message: dict[str, Any]) -> None:
    """Note a message; it does not get through the first time."""
    is_first = message["id"] not in {uid for uid, _ in notified(_notes[0])}
    notify(message)
    if is_first:
        raise AttemptFailedError(message["id"])


def notified(log: Path) -> list[tuple[str, str]]:
    """Read the messages: (id, event) for each time one arrived."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(uid, event) for uid, event in (line.split() for line in lines)]
