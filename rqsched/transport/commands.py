"""The subscription of RQ's workers to their commands, over a connection that is not trusted to say when it is dead.

A subscriber only listens, so one whose connection swallows everything would hear nothing for ever. Here a server that
has been quiet is asked, and one that does not answer is subscribed to anew.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from redis import ConnectionPool
from redis.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError

QUIET_SECONDS = 4.0
"""A server that has said nothing for so long is asked; one that has not answered after as long again is given up."""


class AskingPubSub(PubSub):
    """A subscription that notices within twice QUIET_SECONDS that nothing can come any more."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._heard_at = self._asked_at = monotonic()
        super().__init__(pool)

    def is_health_check_response(self, response: Any) -> bool:
        """Tell answers to a ping from messages; called by redis-py for whatever it has read, None for nothing."""
        if response is not None:
            self._heard_at = monotonic()
        return super().is_health_check_response(response)

    def get_message(self, ignore_subscribe_messages: bool = False, timeout: float | None = 0.0) -> Any:
        """Wait for a message; raises redis-py's ConnectionError when the server does not answer any more."""
        seconds = QUIET_SECONDS if timeout is None else min(timeout, QUIET_SECONDS)
        message = super().get_message(ignore_subscribe_messages, seconds)
        if message is None and monotonic() - self._heard_at >= QUIET_SECONDS:
            self._ask()
        return message

    def _ask(self) -> None:
        was_asked, self._asked_at = self._asked_at > self._heard_at, monotonic()
        if not was_asked:
            self.ping(self.HEALTH_CHECK_MESSAGE)
            return
        self._heard_at = self._asked_at
        connection: Any = self.connection
        connection.disconnect()
        raise RedisConnectionError(f"no answer for {QUIET_SECONDS:g} s: the connection is closed")
