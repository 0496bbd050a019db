"""What workers execute."""

from __future__ import annotations

from pathlib import Path


def print_slip(book: str) -> None:
    """Print the slip of a loan."""
    Path("papers").mkdir(exist_ok=True)
    Path(f"papers/slip-{book}").touch()
