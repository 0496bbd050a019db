"""Liveness: a supervisor answers `rqsched ping` from its loop, over a socket in a folder that only its user can open.

It asks no server: a worker that waits for Redis or SQL is alive, and nobody should restart it for that.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_DIR = "RQSCHED_RUN_DIR"
"""The variable that names another folder; read here too, for a ping loads no settings."""
_MOST = 65_536
_open: set[LivenessSocket] = set()
"""Those of this process. A fork gives them up at once: a child that outlives its supervisor must not look like it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one supervisor answered."""

    name: str
    """Its kind and pid."""
    state: Mapping[str, Any] | None
    """What it said; None when it did not answer in time."""


def run_folder(given: Path | None = None) -> Path:
    """Return the folder of the sockets: as given, or one of this user's among the temporary files."""
    return given or Path(tempfile.gettempdir()) / f"rqsched-{os.getuid()}"


def require_own(folder: Path) -> None:
    """Create the folder where it is missing; raises PermissionError when others could write there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.stat(follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to; set {RUN_DIR} to one")


class LivenessSocket:
    """Answers those who ask whether this process lives."""

    def __init__(self, folder: Path, kind: str, pid: int | None = None) -> None:
        """Listen in the name of this process, or of `pid`; raises OSError where that cannot be."""
        require_own(folder)
        for left in [path for path in folder.glob("*.sock") if _is_left(path)]:
            left.unlink(missing_ok=True)
        name = f"{kind}-{os.getpid() if pid is None else pid}"
        self.path = folder / f"{name}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        hidden = folder / f".{name}"
        hidden.unlink(missing_ok=True)
        try:
            self._socket.bind(str(hidden))
            self._socket.listen(8)
            self._socket.setblocking(False)
            hidden.rename(self.path)  # nobody finds it before it listens
        except OSError:
            self._socket.close()
            raise
        _open.add(self)

    def answer(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Tell everybody who asks at this moment."""
        while True:
            try:
                asking, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.closing(asking), contextlib.suppress(OSError):
                asking.setblocking(False)
                asking.send(json.dumps(state()).encode())

    def close(self) -> None:
        """Answer nobody any more."""
        _open.discard(self)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def give_up(self) -> None:
        """Leave it to the process that this one was forked from."""
        self._socket.close()


def _give_up_all() -> None:
    for one in _open:
        one.give_up()
    _open.clear()


os.register_at_fork(after_in_child=_give_up_all)


def _is_left(path: Path) -> bool:
    """Return whether a socket's process was killed: nobody listens."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def ask_all(folder: Path, seconds: float) -> Iterator[Answer]:
    """Ask every supervisor of the folder; those that were killed are left out. Raises OSError as `require_own`."""
    require_own(folder)
    for path in sorted(folder.glob("*.sock")):
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as asking:
            asking.settimeout(seconds)
            try:
                asking.connect(str(path))
                text = asking.recv(_MOST)
            except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError):
                continue
            except OSError:
                text = b""
        yield Answer(path.stem, json.loads(text) if text else None)
