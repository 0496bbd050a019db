"""Backfills that are larger than a request: what is left continues in this process after the response."""

from __future__ import annotations

import logging
import threading

from rqsched.chain import backfill
from rqsched.chain.runtime import Runtime
from rqsched.errors import BackendUnavailableError

_log = logging.getLogger(__name__)
_CONTINUING = threading.BoundedSemaphore(2)
"""How many backfills this process continues at once after its responses; further ones wait."""


def continue_later(runtime: Runtime, uid: str) -> None:
    """Fire the rest of a backfill in a thread of its own."""
    threading.Thread(target=_continue, args=(runtime, uid), name=f"backfill-{uid}", daemon=True).start()


def _continue(runtime: Runtime, uid: str) -> None:
    """Fire the rest; when that fails here, reconcile continues the backfill from its row."""
    try:
        with _CONTINUING:
            for _ in backfill.resume(runtime, uid):
                pass
    except BackendUnavailableError as error:
        _log.warning("backfill %s continues later: %s", uid, error, extra={"action": "backfill_interrupted"})
    except Exception:  # noqa: BLE001 - a thread's boundary
        _log.exception("backfill %s continues later", uid, extra={"action": "backfill_interrupted"})
