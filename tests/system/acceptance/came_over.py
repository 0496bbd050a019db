"""The code of an application that has another scheduler: it knows nothing of rqsched."""

from __future__ import annotations

from pathlib import Path


def leave(log: str, line: str) -> None:
    """Leave a line."""
    with Path(log).open("a") as lines:
        lines.write(f"{line}\n")
