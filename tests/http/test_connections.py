"""The connections that the listening socket of a web process hands to the event loop."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from rqsched.http.connections import Connections, Listening
from rqsched.http.server import bind


def test_the_body_of_an_answer_does_not_wait_until_the_client_has_acknowledged_its_head() -> None:
    assert asyncio.run(accepted_without_delay())


async def accepted_without_delay() -> bool:
    """Whether the socket of a connection, accepted as the server does, sends each write at once."""
    listening = Listening(bind(uvicorn.Config("unused", port=0, log_config=None)), Connections())
    made: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            sends_at_once = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            made.set_result(bool(sends_at_once))

    address = listening.getsockname()
    async with await asyncio.get_running_loop().create_server(Accepted, sock=listening):
        _, writer = await asyncio.open_connection(*address)
        try:
            return await asyncio.wait_for(made, 30)
        finally:
            writer.close()
