"""A pooler that refuses start-up options, as PgBouncer does: connections are made without them, and the log says so."""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from rqsched.kernel.store.database import Connection, Database
from rqsched.kernel.store.postgres import BoundedConnection
from tests.support.servers import PostgresServer
from tests.support.sql import NO_PATIENCE

pytestmark = pytest.mark.postgres
REFUSAL = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
"""What PgBouncer answers."""


@contextmanager
def pooler_before(server: PostgresServer, refused: list[bytes]) -> Iterator[int]:
    """A port that forwards connections without options to the server, and keeps the packets it refused."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, server.port, refused), daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, port: int, refused: list[bytes]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            packet = client.recv(65_536)
            if b"\0options\0" in packet:
                refused.append(packet)
                client.sendall(b"E" + struct.pack("!i", len(REFUSAL) + 4) + REFUSAL)
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", port))
            server.sendall(packet)
            for ends in ((client, server), (server, client)):
                threading.Thread(target=_forward, args=ends, daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while some := source.recv(65_536):
            sink.sendall(some)
        sink.shutdown(socket.SHUT_WR)


def test_pooler_that_refuses_options_is_used_without_them_and_told_of_once(
    postgres_url: str, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[bytes] = []
    with pooler_before(postgres_server, refused) as port, caplog.at_level(logging.WARNING):
        place = urlsplit(postgres_url)
        url = f"{place.scheme}://postgres@127.0.0.1:{port}{place.path}?sslmode=disable&gssencmode=disable"
        with closing(Database(url)) as database:
            database.ping()
            database.close()  # the next connection is a new one
            database.ping()

    assert len(refused) == 1
    [told] = [record.getMessage() for record in caplog.records if "pooler" in record.getMessage()]
    assert "unsupported startup parameter: options" in told
    assert "idle_in_transaction_session_timeout" in told
    assert "RQSCHED_DATABASE_POOLER=transaction" in told


def test_pooler_of_transactions_is_asked_for_no_options_and_every_transaction_is_limited(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    refused: list[bytes] = []
    with pooler_before(postgres_server, refused) as port:
        place = urlsplit(postgres_url)
        url = f"{place.scheme}://postgres@127.0.0.1:{port}{place.path}?sslmode=disable&gssencmode=disable"
        with closing(Database(url, pooler="transaction")) as database:
            found = [database.read(_limit_and_prepared) for _ in range(10)]

    assert refused == []
    assert found == [("8s", 0)] * 10


def _limit_and_prepared(connection: Connection) -> tuple[str, int]:
    limit = connection.exec_driver_sql("SHOW statement_timeout").scalar_one()
    return limit, connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one()


def test_quiet_connection_to_a_pooler_of_transactions_waits_for_a_session_as_long_as_any(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all sessions are taken for 3 s, the connection is kept after 2 s: it lives, and a new one would also wait."""
    monkeypatch.setattr(BoundedConnection, "quiet_seconds", 0.0)
    pid = sa.select(sa.func.pg_backend_pid())
    with closing(Database(postgres_url, pooler="transaction", patience=NO_PATIENCE)) as database:
        session = database.read(lambda connection: connection.execute(pid).scalar_one())
        os.kill(session, signal.SIGSTOP)
        goes_on = threading.Timer(3.0, os.kill, (session, signal.SIGCONT))
        goes_on.start()
        try:
            assert database.read(lambda connection: connection.execute(pid).scalar_one()) == session
        finally:
            goes_on.join()
