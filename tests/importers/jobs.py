"""Functions that other schedulers call, and their arguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def note(*args: Any, **kwargs: Any) -> None:
    """Leave a line in the file that NOTES names."""
    with Path(os.environ["NOTES"]).open("a", encoding="utf-8") as notes:
        notes.write(f"{args!r} {kwargs!r}\n")


class Shop:
    """An argument that an application can pass and JSON cannot express."""

    def open(self) -> None:
        """Be a bound method."""


class Plain:
    """An object whose pickle rebuilds it as a dict, by a function of the application."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle as a dict."""
        return dict, ({"plain": True},)
