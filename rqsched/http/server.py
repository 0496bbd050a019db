"""The server of `rqsched web`: uvicorn, which ends streams when it is told to stop, and tells systemd how it is."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import uvicorn

from rqsched.processes.systemd import Systemd

_GRACE = 30
"""Seconds that requests have to end when the server stops."""
FAILED_TO_START = 3
"""The exit code of a server that cannot begin, as of uvicorn's own command."""
_TELL_SECONDS = 1
"""How often systemd may be told that the event loop turns; `WatchdogSec` should be several times that."""


def serve_visibly(config: uvicorn.Config) -> None:
    """Serve as `run_server` does, and tell systemd when requests are accepted, that the loop turns, and of the end."""
    systemd = Systemd()

    async def turn() -> None:
        systemd.tell(is_ready=True)

    config.callback_notify, config.timeout_notify = turn, _TELL_SECONDS
    run_server(config, systemd)


def run_server(
    config: uvicorn.Config, systemd: Systemd | None = None, *, sockets: Sequence[socket.socket] | None = None
) -> None:
    """Serve an application of ours until a signal; streams end at once, other requests have 30 s.

    It listens where `config` says, or on `sockets` that are bound already.

    The process ends when it cannot begin, as uvicorn's own command does.
    """
    if config.timeout_graceful_shutdown is None:
        config.timeout_graceful_shutdown = _GRACE
    server = _Server(config, systemd or Systemd({}))
    server.run(None if sockets is None else [*sockets])
    if not server.started:
        sys.exit(FAILED_TO_START)


class _Server(uvicorn.Server):
    """Ends the streams of events when it is told to stop: it waits for every response."""

    def __init__(self, config: uvicorn.Config, systemd: Systemd) -> None:
        super().__init__(config)
        self._systemd = systemd

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._systemd.tell(is_stopping=True)
        close_streams(self.config.app)


def close_streams(app: Any) -> None:
    """End every stream of events of an application that `create_app` made, before the server that mounts it stops."""
    app.state.rqsched.feed.close()


def close_scheduler(app: Any) -> None:
    """Close the scheduler of an application that `create_app` made and that will not be served."""
    app.state.rqsched.scheduler.close()
