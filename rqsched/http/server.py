"""The server of `rqsched web`: uvicorn, which ends event streams when it stops, and reports its state to systemd."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from rqsched.config import Settings
from rqsched.http.connections import HEAD_SECONDS, Connection, Connections, Listening, most_connections
from rqsched.run.supervisor import ChildRole, Progress, Supervisor, Watch
from rqsched.run.vital_signs import Systemd, run_visibly

_GRACE = 30
"""Seconds that requests may take to end when the server stops."""
FAILED_TO_START = 3
"""The exit code of a server that cannot start, as in uvicorn's own command."""
_TELL_SECONDS = 1
"""The seconds between two watchdog messages to systemd. `WatchdogSec` should be several times as long."""


def serve_visibly(config: uvicorn.Config) -> None:
    """Serve as `run_server` does, and report the start, each turn of the event loop and the end to systemd."""
    systemd = Systemd()

    async def turn() -> None:
        systemd.tell(is_ready=True)

    config.callback_notify, config.timeout_notify = turn, _TELL_SECONDS
    run_server(config, systemd)


def run_server(
    config: uvicorn.Config, systemd: Systemd | None = None, *, sockets: Sequence[socket.socket] | None = None
) -> None:
    """Serve an application of rqsched until a signal. Then event streams end at once; other requests have 30 s to end.

    The server listens on the address of `config`, or on the bound `sockets`. `limit_concurrency` and the limit of
    file descriptors limit the number of connections; further requests get 503. If the server cannot start, the process
    ends, as with uvicorn's own command.
    """
    if config.timeout_graceful_shutdown is None:
        config.timeout_graceful_shutdown = _GRACE
    # Other protocols have no read deadlines, and other event loops do not call our `accept`.
    config.http, config.loop = Connection, "asyncio"
    config.proxy_headers = False  # uvicorn trusts every peer on loopback; the application has a stricter rule
    # From this number of connections on, uvicorn answers 503.
    config.limit_concurrency = 1 + min(config.limit_concurrency or sys.maxsize, most_connections())
    server = _Server(config, systemd or Systemd({}))
    server.run([Listening(one, server.server_state) for one in sockets or [bind(config)]])
    if not server.started:
        sys.exit(FAILED_TO_START)


def bind(config: uvicorn.Config) -> socket.socket:
    """Listen on the address of `config`. End the process if this fails, as uvicorn does.

    uvicorn already logs here that it runs. From now on, new connections wait until the application accepts them.
    """
    if config.uds is not None and Path(config.uds).is_socket():
        Path(config.uds).unlink()  # left by a process that was killed
    try:
        bound = config.bind_socket()
    except SystemExit:  # uvicorn has logged why; its exit code depends on its version
        sys.exit(FAILED_TO_START)
    bound.listen(config.backlog)
    return bound


class _Server(uvicorn.Server):
    """Ends the streams of events when it stops, because uvicorn waits for every response."""

    def __init__(self, config: uvicorn.Config, systemd: Systemd) -> None:
        super().__init__(config)
        self._systemd = systemd
        self.server_state: Connections = Connections()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections, and let `Connections` log errors of the event loop."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.server_state.handle_error)
        if self.config.is_ssl:  # by default a TLS handshake may take 60 s
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=HEAD_SECONDS)  # type: ignore[method-assign]
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._systemd.tell(is_stopping=True)
        close_streams(self.config.app)


def close_streams(app: Any) -> None:
    """End every event stream of an application from `create_app`. Call this before the server that mounts it stops."""
    app.state.rqsched.feed.close()


def close_scheduler(app: Any) -> None:
    """Close the scheduler of an application that `create_app` made and that will not be served."""
    app.state.rqsched.scheduler.close()


SILENCE = 30.0
"""A child is replaced if its event loop makes no turn for this many seconds."""

MakeConfig = Callable[[bool], uvicorn.Config]
"""Makes the configuration of one child. The argument is True for the one child that makes reconcile passes."""


def serve_with_workers(count: int, make_config: MakeConfig, settings: Settings) -> int:
    """Serve in `count` processes until SIGTERM or SIGINT. Return the exit code.

    The first signal lets running requests end. A second signal aborts them, and a third signal kills the processes.
    """
    config = make_config(False)
    config.load()  # if the configuration is invalid, this process ends, instead of each child again and again
    close_scheduler(config.app)
    listening = bind(config)
    listening.listen(config.backlog)
    watch = _WebWatch(listening)
    roles = [
        ChildRole(
            f"web-{number}",
            partial(_be_worker, make_config=partial(make_config, number == 1), listening=listening),
            SILENCE,
            watch=watch,
        )
        for number in range(1, count + 1)
    ]
    try:
        return run_visibly(Supervisor(roles), "web", settings.run_dir)
    finally:
        listening.close()
        if config.uds is not None:
            Path(config.uds).unlink(missing_ok=True)


class _WebWatch(Watch):
    """Ends a child with uvicorn's signals, and closes the listening socket of a server that is ending."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def end(self, pid: int, *, is_urgent: bool) -> None:
        """Let the child's requests end. If it is urgent, abort them."""
        self._listening.close()  # otherwise new connections would wait in the backlog without end
        os.kill(pid, signal.SIGINT if is_urgent else signal.SIGTERM)


def _be_worker(progress: Progress, *, make_config: Callable[[], uvicorn.Config], listening: socket.socket) -> None:
    """Serve until SIGTERM. Each second, the event loop reports to the supervisor that it runs."""

    async def turn() -> None:
        progress.turn()

    config = make_config()
    config.callback_notify, config.timeout_notify = turn, 1
    run_server(config, sockets=[listening])
