"""Forms whose values somebody else changed while they were filled in: find what changed, and keep what was typed.

A form carries a digest of each value with which it was first shown. So the viewer's edits can be distinguished from the
edits of others, although the earlier values are not stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Changed(NamedTuple):
    """One field that somebody else changed after the form was shown."""

    name: str
    """The name of the field."""
    now: str
    """The stored text."""
    typed: str
    """The text in the form that was sent."""
    is_edited: bool
    """Whether the viewer edited the field, too. If not, the form takes the stored text."""


def seen(values: Mapping[str, str]) -> str:
    """Return the digests of a form's values in their order, for a hidden field."""
    return ".".join(map(_digest, values.values()))


def merge(
    form: Mapping[str, str], stored: Mapping[str, str], was: str, *, together: Sequence[str] = ()
) -> tuple[dict[str, str], list[Changed]]:
    """Return a form's fields merged with the stored values, and the fields that others changed.

    `was` is the text of `seen` for the same fields as `stored`. A field that only others changed takes the stored
    value; any other field keeps what was typed. The fields in `together` are merged as one, because they are read
    together.
    """
    known = was.split(".")
    digests = dict(zip(stored, known, strict=True)) if len(known) == len(stored) else {}
    merged, changed = dict(form), list[Changed]()
    units: Iterable[Sequence[str]] = [together, *([name] for name in stored if name not in together)]
    for unit in units:
        typed = {name: _plain(form.get(name, stored[name])) for name in unit}
        is_edited = any(digests.get(name) != _digest(typed[name]) for name in unit)
        moved = [name for name in unit if digests.get(name) != _digest(stored[name])]
        if moved and not is_edited:
            merged |= {name: stored[name] for name in unit}
        changed += [
            Changed(name, stored[name], typed[name], is_edited) for name in moved if typed[name] != _plain(stored[name])
        ]
    return merged, changed


def _digest(text: str) -> str:
    return hashlib.sha256(_plain(text).encode()).hexdigest()[:8]


def _plain(text: str) -> str:
    """Return a text without the differences that a browser makes when it sends a field."""
    return text.replace("\r\n", "\n").strip()
