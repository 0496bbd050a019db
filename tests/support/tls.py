"""TLS before a server without TLS: a proxy that shows a certificate, and demands one from clients."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    """A certificate that vouches for itself, and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class TlsProxy:
    """A proxy that runs."""

    port: int
    server: Certificate
    client: Certificate

    @property
    def url(self) -> str:
        """With everything a client needs: whom to trust, and what to show."""
        return f"{self.bare_url}?ssl_ca_certs={self.server.certificate}&{self.shown}"

    @property
    def bare_url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}/0"

    @property
    def shown(self) -> str:
        return f"ssl_certfile={self.client.certificate}&ssl_keyfile={self.client.key}"


def make_certificate(folder: Path, name: str) -> Certificate:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(made.key)]
    told = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command = [openssl, "req", "-x509", *key, *told, "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return made


@contextmanager
def tls_before(port: int, folder: Path) -> Iterator[TlsProxy]:
    """Speak TLS before a server on a port of this machine, inside the block."""
    server, client = make_certificate(folder, "server"), make_certificate(folder, "client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(client.certificate))
    context.load_cert_chain(server.certificate, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(lambda r, w: _join(r, w, port), "127.0.0.1", 0, ssl=context)

    listening = None
    try:
        listening = asyncio.run_coroutine_threadsafe(listen(), loop).result(30)
        yield TlsProxy(listening.sockets[0].getsockname()[1], server, client)
    finally:
        asyncio.run_coroutine_threadsafe(_end_all(listening), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _end_all(listening: asyncio.Server | None) -> None:
    if listening is not None:
        listening.close()  # else a client that connects again is accepted by a task that nobody waits for
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    there, back = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    target.close()
