"""The known name that is nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return what to add to a message about an unknown name: the nearest known one, or nothing.

    `prefix` is what stands before every name.

    >>> did_you_mean("timezon", ["timezone", "queue"])
    '; did you mean timezone?'
    """
    nearest = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
