"""What workers execute."""

from __future__ import annotations

from pathlib import Path

from rqsched import workflow


def print_slip(book: str) -> None:
    """Print the slip of a loan."""
    Path("papers").mkdir(exist_ok=True)
    Path(f"papers/slip-{book}").touch()


@workflow("remind")
def remind(book: str) -> str:
    """Print a reminder."""
    path = Path(f"papers/reminder-{book}")
    path.touch()
    return str(path)
