"""Our own client in tests: it reaches an application in this process, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from rqsched.client import AsyncClient, Client, Retries
from tests.support.web import Web

AT_ONCE = Retries(first=0.0)


@dataclass
class InProcess(httpx.BaseTransport):
    """Carries requests into an application; loses the first responses, or refuses to connect."""

    web: Web
    lost: int = 0
    refused: int = 0
    sent: list[tuple[str, str]] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append((request.method, request.url.path))
        if self.refused:
            self.refused -= 1
            raise httpx.ConnectError("refused")
        answer = self.web(
            request.method,
            request.url.path,
            content=request.read() or None,
            headers=dict(request.headers),
            params=request.url.params,
        )
        if self.lost:
            self.lost -= 1
            raise httpx.ReadError("lost")
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def client_of(web: Web, transport: InProcess | None = None, **options: Any) -> Client:
    """A client of an application in this process."""
    options = {"retries": AT_ONCE, **options}
    return Client("http://localhost", transport=transport or InProcess(web), **options)


@asynccontextmanager
async def asynchronous(web: Web) -> AsyncIterator[AsyncClient]:
    """The asynchronous one."""
    transport = httpx.ASGITransport(web.app, client=("127.0.0.1", 1))
    async with AsyncClient("http://localhost", transport=transport, retries=AT_ONCE) as client:
        yield client
