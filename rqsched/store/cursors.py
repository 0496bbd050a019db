"""Where a page of a list ends, as an opaque text."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import Any, TypeVar

from rqsched.core.ids import is_uid
from rqsched.core.page import Page
from rqsched.errors import InvalidLimitError

T = TypeVar("T")


def write_cursor(at: datetime | str, uid: str) -> str:
    """Render a position as an opaque text."""
    text = at if isinstance(at, str) else at.isoformat()
    return base64.urlsafe_b64encode(json.dumps([text, uid]).encode()).decode().rstrip("=")


def read_cursor(text: str, *, is_text: bool = False) -> tuple[Any, str]:
    """Read a position back: an instant and a uid, or a text and a uid; raises InvalidLimitError."""
    try:
        at, uid = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        position = str(at) if is_text else datetime.fromisoformat(at), str(uid)
    except (ValueError, TypeError, binascii.Error):
        raise InvalidLimitError("cursor", "is malformed; pass the next_cursor of the page before") from None
    is_naive = isinstance(position[0], datetime) and position[0].tzinfo is None
    if is_naive or not is_uid(position[1]) or "\x00" in str(position[0]):
        raise InvalidLimitError("cursor", "is malformed; pass the next_cursor of the page before")
    return position


def page_of(found: list[T], limit: int, cursor_of: Any, cut: int | None = None) -> Page[T]:
    """Return a page; `cut` says that more follow than were read."""
    items = found[:limit]
    return Page(items, cursor_of(items[-1]) if len(found) > limit or cut is not None else None)
