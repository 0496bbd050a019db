"""An application behind a real server in a thread, for endless responses, which no client in process can read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import uvicorn
from fastapi import FastAPI

from rqsched.http import Limits, close_streams
from tests.support.processes import SOON, wait_until

QUICK = Limits(rate=0, stream_poll=0.05, heartbeat=0.2)
"""Streams look for events often."""
PATIENCE = 60.0
"""Seconds after which a test gives up; nothing here depends on how long anything takes."""


@contextmanager
def served(app: FastAPI, lifespan: Literal["off", "on"] = "off") -> Iterator[str]:
    """Serve inside the block, on a free port; returns the URL. Off: nothing repairs Redis beside the requests."""
    config = uvicorn.Config(app, port=0, lifespan=lifespan, log_config=None, timeout_graceful_shutdown=30)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, timeout=PATIENCE, what="the server has started")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        close_streams(app)
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server has not stopped"


def status_of(url: str, *, timeout: float = SOON, **options: Any) -> int:
    """Return the status of a GET; 0 while no server answers."""
    try:
        return httpx.get(url, timeout=timeout, **options).status_code
    except httpx.TransportError:
        return 0


@dataclass
class Lines:
    """The lines of a stream, as a thread reads them."""

    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    found: list[str] = field(default_factory=list)
    is_over: bool = False

    @property
    def ids(self) -> list[str]:
        return [line.removeprefix("id: ") for line in self.found if line.startswith("id: ")]

    @property
    def data(self) -> list[str]:
        return [line.removeprefix("data: ") for line in self.found if line.startswith("data: ")]

    @property
    def heartbeats(self) -> int:
        return self.found.count(":")

    def wait_for(self, holds: Callable[[Lines], Any], what: str) -> None:
        wait_until(lambda: holds(self), timeout=PATIENCE, what=what)


@contextmanager
def reading(url: str, **options: Any) -> Iterator[Lines]:
    """Read a stream inside the block, from when its headers are there."""
    lines = Lines()
    with httpx.Client(timeout=httpx.Timeout(PATIENCE)) as client, client.stream("GET", url, **options) as response:
        lines.status, lines.headers = response.status_code, response.headers

        def collect() -> None:
            with suppress(httpx.HTTPError, RuntimeError):
                for line in response.iter_lines():
                    lines.found.append(line)
            lines.is_over = True

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        lines.wait_for(lambda those: those.found, "the first line")
        yield lines
        response.close()
    thread.join(PATIENCE)
