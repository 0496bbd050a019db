"""The name of a span in W3C Trace Context: `00-TRACE-SPAN-FLAGS`, as in the header `traceparent`. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
)
_VERSION = "00"


class Traceparent(NamedTuple):
    """One span of one trace."""

    trace_id: str
    """32 hexadecimal digits, not all of them 0."""
    span_id: str
    """16 hexadecimal digits, not all of them 0."""
    flags: int = 0
    """Bit 0: the span may be recorded."""

    def __str__(self) -> str:
        """Return the value of the header, 55 characters."""
        return f"{_VERSION}-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> Traceparent | None:
    """Read a header; None if it is not valid. The standard requires that an invalid header is ignored.

    Fields that a later version of the standard appends are dropped.
    """
    found = _TRACEPARENT.match(text)
    if found is None or found["version"] == "ff" or not int(found["trace"], 16) or not int(found["span"], 16):
        return None
    rest = text[found.end() :]
    if rest and (found["version"] == _VERSION or not rest.startswith("-")):
        return None
    return Traceparent(found["trace"], found["span"], int(found["flags"], 16))
