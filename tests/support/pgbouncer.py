"""A real PgBouncer before a test's PostgreSQL, in transaction mode; Debian's package has it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.support.processes import start, wait_until
from tests.support.servers import PostgresServer, free_port

BINARY = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
"""None where it is not installed."""
_INI = """
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
"""


@contextmanager
def pgbouncer(server: PostgresServer, *, sessions: int = 2) -> Iterator[int]:
    """Its port; all clients of a database share so many sessions."""
    assert BINARY is not None
    port = free_port()
    # Not below pytest's own temporary folder: it refuses to be root, as PostgreSQL does.
    with tempfile.TemporaryDirectory(prefix="rqsched-pgbouncer-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        settings = folder / "pgbouncer.ini"
        settings.write_text(_INI.format(server=server.port, port=port, sessions=sessions))
        process = start([BINARY, settings], log_path=folder / "log", cwd=folder, user=server.user)
        try:
            wait_until(lambda: _answers(port), what=lambda: f"PgBouncer:\n{process.log()}")
            yield port
        finally:
            process.kill_tree()


def pooled(url: str, port: int) -> str:
    """The URL of a test's database through a pooler on a port."""
    place = urlsplit(url)
    return f"{place.scheme}://postgres@127.0.0.1:{port}{place.path}"


def _answers(port: int) -> bool:
    try:
        psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True
