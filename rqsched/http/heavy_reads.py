"""Limit heavy reads: requests that compute for seconds. They may occupy a quarter of the threads, one per principal.

The work of a heavy read ends when its client has disconnected.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from anyio import sleep, to_thread
from starlette.requests import Request
from starlette.types import Receive

from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.when.steps import Steps, bounded

SHARE = 0.25
"""The largest fraction of the threads that heavy reads may use. They may always use one thread."""
_LOOK_AGAIN = 0.05


class HeavyReads:
    """The heavy reads of one process."""

    def __init__(self) -> None:
        self._principals = set[str]()
        """The principals that have a read under way."""

    @property
    def count(self) -> int:
        """The number of heavy reads that are under way."""
        return len(self._principals)

    @asynccontextmanager
    async def admit(self, request: Request, principal: str, *, patience: float = 0.0) -> AsyncIterator[None]:
        """Admit a heavy read of a principal. Its work runs in threads that are started inside the block.

        The work ends with WorkCancelledError soon after the client has disconnected. Raises
        TooManyHeavyReadsError if it is not admitted within `patience` seconds; no thread is occupied during this time.
        """
        most = max(1, int(to_thread.current_default_thread_limiter().total_tokens * SHARE))
        while principal in self._principals or len(self._principals) >= most:
            if patience <= 0:
                raise TooManyHeavyReadsError
            await sleep(_LOOK_AGAIN)
            patience -= _LOOK_AGAIN
        self._principals.add(principal)
        has_left = threading.Event()
        watching = asyncio.create_task(_watch(request.receive, has_left))
        try:
            with bounded(Steps(None, is_cancelled=has_left.is_set)):
                yield
        finally:
            has_left.set()
            self._principals.discard(principal)
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def _watch(receive: Receive, has_left: threading.Event) -> None:
    """Wait until the client has disconnected, and set the event."""
    while (await receive())["type"] != "http.disconnect":
        pass
    has_left.set()
