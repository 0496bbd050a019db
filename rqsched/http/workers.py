"""`rqsched web --workers N`: a supervisor whose children serve the same socket, each with an event loop of its own.

A child that dies or whose loop stands still is replaced; the others go on accepting meanwhile. The parent only listens:
no caller is refused while a child is replaced. It serves nothing and holds no connection.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvicorn

from rqsched.config import Settings
from rqsched.http.server import bind, close_scheduler, run_server
from rqsched.processes.supervisor import Progress, Role, Supervisor, Watch
from rqsched.processes.vital_signs import run_visibly

SILENCE = 30.0
"""Seconds without a turn of its event loop after which a child is replaced."""

MakeConfig = Callable[[bool], uvicorn.Config]
"""Makes what one child serves; the argument says whether it is the one that recovers at boot."""


def serve_with_workers(count: int, make_config: MakeConfig, settings: Settings) -> int:
    """Serve in `count` processes until SIGTERM or SIGINT; returns the exit code.

    The first signal lets requests end, a second one cuts them off, a third kills.
    """
    config = make_config(False)
    config.load()  # what cannot be served ends this process, not each child anew
    close_scheduler(config.app)
    listening = bind(config)
    listening.listen(config.backlog)
    watch = _WebWatch(listening)
    roles = [
        Role(
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
    """Ends a child as uvicorn understands it, and lets nobody connect to a server that is ending."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening

    def end(self, pid: int, *, is_urgent: bool) -> None:
        """Let the child's requests end; urgently, cut them off."""
        self._listening.close()  # else a caller would wait for an answer that nobody gives
        os.kill(pid, signal.SIGINT if is_urgent else signal.SIGTERM)


def _be_worker(progress: Progress, *, make_config: Callable[[], uvicorn.Config], listening: socket.socket) -> None:
    """Serve until SIGTERM; each second the event loop shows that it turns."""

    async def turn() -> None:
        progress.turn()

    config = make_config()
    config.callback_notify, config.timeout_notify = turn, 1
    run_server(config, sockets=[listening])
