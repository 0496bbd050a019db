"""What a service manager is told (sd_notify): that a process is ready, lives, and is about to end."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import MutableMapping

_log = logging.getLogger(__name__)

_SENDING_SECONDS = 1.0


class Systemd:
    """Tells the service manager that started this process; where there is none, nobody is told."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Take what the manager wants out of the environment, so that no child and no run speaks in this one's name."""
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds = environment.pop("WATCHDOG_USEC", "")
        is_ours = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._interval = int(microseconds) / 2_000_000 if microseconds.isdecimal() and is_ours else None
        self._next_at = 0.0
        self._told: set[str] = set()

    def tell(self, *, is_ready: bool = False, is_stopping: bool = False) -> None:
        """Tell what is new; called each time the process's loop turns, which shows that it lives."""
        if is_ready:
            self._once("READY=1")
        if is_stopping:
            self._once("STOPPING=1")
        now = time.monotonic()
        if self._interval is not None and now >= self._next_at:
            self._next_at = now + self._interval
            self._send("WATCHDOG=1")

    def _once(self, state: str) -> None:
        if state not in self._told:
            self._told.add(state)
            self._send(state)

    def _send(self, state: str) -> None:
        if not self._address:
            return
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sending:
            sending.settimeout(_SENDING_SECONDS)
            try:
                sending.sendto(state.encode(), self._address)
            except OSError as error:
                _log.warning("systemd is not told %s: %s", state, error, extra={"action": "notify_failed"})
