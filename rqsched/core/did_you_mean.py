"""The known name that is nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return what to add to a message about an unknown name: the nearest known one, or nothing.

    That is one that is spelt like it, or the only one that ends with it. `prefix` is what stands before every name.

    >>> did_you_mean("timezon", ["timezone", "queue"])
    '; did you mean timezone?'
    >>> did_you_mean("id", ["schedule_id", "queue"])
    '; did you mean schedule_id?'
    """
    names = list(known)
    longer = [one for one in names if one.endswith(f"_{name}")]
    nearest = difflib.get_close_matches(name, names, 1) or (longer if len(longer) == 1 else [])
    return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
