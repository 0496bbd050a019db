"""Functions that other schedulers call, and what they are called with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def note(*args: Any, **kwargs: Any) -> None:
    """Leave a line in the file that NOTES names."""
    with Path(os.environ["NOTES"]).open("a", encoding="utf-8") as notes:
        notes.write(f"{args!r} {kwargs!r}\n")


class Shop:
    """What an application may pass, and JSON cannot."""

    def open(self) -> None:
        """Be a bound method."""


class Plain:
    """What is pickled as a dict is made by a function of the application."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Be a dict where it is loaded."""
        return dict, ({"plain": True},)
