"""Show the machine that a supervisor lives: notify systemd, and answer `rqsched ping`.

Pings are answered from the supervisor's loop, over a socket in a folder that only its user can open. The answer does
not depend on SQL or Redis, because a worker that waits for them is alive and must not be restarted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rqsched.run.supervisor import Supervisor

_log = logging.getLogger(__name__)

RUN_DIR = "RQSCHED_RUN_DIR"
"""The environment variable with the folder of the sockets. A ping reads it without loading the settings."""
_LONGEST = 107 if sys.platform == "linux" else 103
"""The maximum number of bytes of the path of a socket."""
_MAX_ANSWER = 65_536
_NOTIFY_SECONDS = 1.0
_held: set[socket.socket] = set()


def run_visibly(supervisor: Supervisor, kind: str, run_dir: Path | None, *, parent: int | None = None) -> int:
    """Run a supervisor to its end, answer pings and notify systemd meanwhile; return the exit code.

    `run_dir` is the setting of that name. `parent` is the pid of an RQ worker whose end also ends the supervisor. With
    `parent`, pings are answered in the worker's name, and systemd is not notified, because it started the worker and
    not this process.
    """
    systemd = Systemd() if parent is None else None
    with _answering(supervisor, kind, run_dir, parent) as answer:

        def turn() -> None:
            if systemd is not None:
                systemd.tell(is_ready=_is_ready(supervisor), is_stopping=supervisor.is_stopping)
            answer()

        return supervisor.run(turn)


def _is_ready(supervisor: Supervisor) -> bool:
    children = supervisor.children
    return bool(children) and all(child.has_begun for child in children)


@contextlib.contextmanager
def _answering(
    supervisor: Supervisor, kind: str, run_dir: Path | None, pid: int | None = None
) -> Iterator[Callable[[], None]]:
    """Yield a function that answers pings. Without a socket it answers none, and the supervisor still runs."""

    def state() -> dict[str, Any]:
        children = [
            {
                "role": one.role,
                "pid": one.pid,
                "restarts": one.restarts,
                "has_begun": one.has_begun,
                "waits_for_writes": one.waits_for_writes,
                "is_frozen": one.is_frozen,
            }
            for one in supervisor.children
        ]
        is_ready = _is_ready(supervisor)
        return {"kind": kind, "is_ready": is_ready, "is_stopping": supervisor.is_stopping, "children": children}

    try:
        listening = LivenessSocket(run_folder(run_dir), kind, pid)
    except OSError as error:
        _log.warning("`rqsched ping` cannot see this process: %s", error, extra={"action": "no_liveness"})
        yield lambda: None
        return
    try:
        yield lambda: listening.answer(state)
    finally:
        listening.close()


def hold(one: socket.socket) -> None:
    """Keep a socket that shows that this process lives.

    A fork closes its copy at once, because the fork may live longer.
    """
    _held.add(one)


def let_go(one: socket.socket) -> None:
    """Close a socket that was kept with `hold`."""
    _held.discard(one)
    one.close()


def leave_held_to_parent() -> None:
    """Close the copies of sockets that the parent keeps; called in each fork."""
    for one in [*_held]:
        let_go(one)


os.register_at_fork(after_in_child=leave_held_to_parent)


def run_folder(given: Path | None = None) -> Path:
    """Return the folder of the sockets: the given one, or this user's folder among the temporary files."""
    return given or Path(tempfile.gettempdir()) / f"rqsched-{os.getuid()}"


def require_own(folder: Path) -> None:
    """Create the folder if it is missing; raises PermissionError if other users could write there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.stat(follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to; set {RUN_DIR} to one")


def too_long(folder: Path, name: str = "dispatcher-0000000") -> str | None:
    """Return a message if the path of a socket of this name in the folder is too long; else None."""
    beyond = len(os.fsencode(folder / f"{name}.sock")) - _LONGEST
    if beyond <= 0:
        return None
    what = f"the path of a socket in {folder} may be longer than the {_LONGEST} bytes that the system allows"
    return f"{what}; set {RUN_DIR} to a shorter one, for the processes and for `rqsched ping`"


class LivenessSocket:
    """Answers pings, which ask whether this process lives."""

    def __init__(self, folder: Path, kind: str, pid: int | None = None) -> None:
        """Listen in the name of this process, or of `pid`; raises OSError if that fails."""
        require_own(folder)
        for left in [path for path in folder.glob("*.sock") if _is_left(path)]:
            left.unlink(missing_ok=True)
        name = f"{kind}-{os.getpid() if pid is None else pid}"
        self.path = folder / f"{name}.sock"
        if (refused := too_long(folder, name)) is not None:
            raise OSError(refused)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        hidden = folder / f".{name}"
        hidden.unlink(missing_ok=True)
        try:
            self._socket.bind(str(hidden))
            self._socket.listen(8)
            self._socket.setblocking(False)
            hidden.rename(self.path)  # no ping finds the socket before it listens
        except OSError:
            self._socket.close()
            raise
        hold(self._socket)

    def answer(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Answer all pings that have arrived."""
        while True:
            try:
                asking, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.closing(asking), contextlib.suppress(OSError):
                asking.setblocking(False)
                asking.send(json.dumps(state()).encode())

    def close(self) -> None:
        """Stop answering."""
        let_go(self._socket)
        self.path.unlink(missing_ok=True)


def _is_left(path: Path) -> bool:
    """Return whether a socket was left behind by a killed process: nothing listens there."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


class Answer(NamedTuple):
    """The answer of one supervisor."""

    name: str
    """Its kind and pid."""
    state: Mapping[str, Any] | None
    """Its state; None if it did not answer in time."""


def ask_all(folder: Path, seconds: float) -> Iterator[Answer]:
    """Ask every live supervisor with a socket in the folder. Raises the errors of `require_own`."""
    require_own(folder)
    for path in sorted(folder.glob("*.sock")):
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as asking:
            asking.settimeout(seconds)
            try:
                asking.connect(str(path))
                text = asking.recv(_MAX_ANSWER)
            except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError):
                continue
            except OSError:
                text = b""
        yield Answer(path.stem, json.loads(text) if text else None)


class Systemd:
    """Notifies the service manager that started this process (sd_notify); without one it does nothing."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Remove the manager's variables from the environment, so that no child or run notifies it as this process."""
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds = environment.pop("WATCHDOG_USEC", "")
        is_ours = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._interval = int(microseconds) / 2_000_000 if microseconds.isdecimal() and is_ours else None
        self._next_at = 0.0
        self._told: set[str] = set()

    def tell(self, *, is_ready: bool = False, is_stopping: bool = False) -> None:
        """Notify of changes, and that the process's loop still runs. The loop calls this in each turn."""
        for state, is_so in (("READY=1", is_ready), ("STOPPING=1", is_stopping)):
            if is_so and state not in self._told:
                self._told.add(state)
                self._send(state)
        now = time.monotonic()
        if self._interval is not None and now >= self._next_at:
            self._next_at = now + self._interval
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sending:
            sending.settimeout(_NOTIFY_SECONDS)
            try:
                sending.sendto(state.encode(), self._address)
            except OSError as error:
                _log.warning("systemd is not told %s: %s", state, error, extra={"action": "notify_failed"})
