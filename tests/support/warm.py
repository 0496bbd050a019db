"""Commands that start as forks of a process that has already imported their modules.

A command of ours computes for half a second before it does anything, and the tests start hundreds of them: `make test`
forks them. They start from nothing in `make nightly`, inside `cold()`, and if the environment of a command differs in
more than our settings.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.child import BIN, LIBC, REPOSITORY, begin
from tests.support.sizes import IS_NIGHTLY

_SCRIPTS = (BIN / "rqsched", BIN / "rq", BIN / "uvicorn")
_DJANGO = (
    *("django.core.management.commands.migrate", "django.core.management.commands.test", "django.test", "django.forms"),
    *("django.core.handlers.asgi", "django.middleware.csrf", "django.template.backends.django", "django.views.generic"),
    *("django.db.backends.postgresql.base", "django.db.backends.sqlite3.base", "django.contrib.admin.checks"),
)
"""Modules that a Django project imports and that need no settings."""
_BESIDE = ("rq.cli", "rq.worker", "psycopg", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.sqlite")
_NOT_IMPORTED = ("rqsched.contrib", "rqsched.preload", "rqsched.pytest_plugin", "rqsched.kernel.store.migrations")
"""Modules that act when they are imported, or that need missing packages or settings."""
_MAY_DIFFER = ("RQSCHED_", "RQ_", "PYTEST_", "ACCEPTANCE_", "PATH", "DJANGO_", "SETTINGS", "CASES")
_PR_SET_NAME = 15
_MOST = 1 << 16
"""Bytes of an order; a longer one would not fit into one message."""
_ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1"}
"""The environment in which commands are imported."""


class ForkedCommand(subprocess.Popen[bytes]):
    """A command whose parent is not this process; it is awaited, asked and ended as others are."""

    def __init__(self, parent: _Parent, command: Sequence[str], pid: int) -> None:
        self._parent = parent
        self.args = command
        self.pid = pid
        self.stdin = self.stdout = self.stderr = None
        self.returncode: Any = None
        self._turn = threading.Lock()
        self._descriptor = os.pidfd_open(pid)  # it is there until its parent is asked how it ended

    def poll(self) -> int | None:
        return self._reap(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._reap(None if timeout is None else max(round(timeout * 1000), 0))
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def _reap(self, milliseconds: int | None) -> int | None:
        if self.returncode is None and self._has_ended(milliseconds):
            with self._turn:
                if self.returncode is None:
                    code = self._parent.ask({"ended": self.pid})
                    self.returncode = -signal.SIGKILL if code is None else code  # without its parent it was killed
                    os.close(self._descriptor)
        found: int | None = self.returncode
        return found

    def _has_ended(self, milliseconds: int | None) -> bool:
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        return bool(waiting.poll(milliseconds))


class _Parent:
    """A process that has imported everything, and some modules beside it; it is gone with the test process.

    A parent that does not answer an order, or whose answer was not awaited, is killed with all its forks. Commands then
    start from nothing.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
                cwd=REPOSITORY,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the tests, which end it
            )
        atexit.register(self._close)
        os.register_at_fork(after_in_child=self._control.close)  # a forked process would keep it alive

    def ask(self, order: Mapping[str, Any]) -> int | None:
        """Have an order carried out; returns its number, None once this process does not answer."""
        message = json.dumps(order).encode()
        if len(message) > _MOST:
            return None
        with self._turn:
            try:
                self._control.sendall(message)
                answer = self._control.recv(_MOST)
            except OSError:
                answer = b""
            except BaseException:  # a test that takes too long: the next answer could belong to any order
                self._close()
                raise
            if not answer:
                self._close()
        return int(answer) if answer else None

    def _close(self) -> None:
        if os.getpid() == self._owner:
            self._control.close()
            self._process.kill()
            self._process.wait()


def _has_descriptors_of_processes() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # not Linux, or one that forbids it
        return False
    return True


_parents: dict[tuple[str, ...], _Parent] = {}
CAN_FORK = _has_descriptors_of_processes()
_is_cold = IS_NIGHTLY or not CAN_FORK


@contextmanager
def cold() -> Iterator[None]:
    """Start commands from nothing inside the block, so that the test includes their imports."""
    global _is_cold  # noqa: PLW0603 - one for the process, as are the commands it starts
    before, _is_cold = _is_cold, True
    try:
        yield
    finally:
        _is_cold = before


def fork(
    command: Sequence[str], *, log_path: Path, environment: Mapping[str, str], cwd: Path
) -> subprocess.Popen[bytes] | None:
    """Fork a command, its output at the end of a file; None where it must be started."""
    is_django = "DJANGO_SETTINGS_MODULE" in environment
    is_known = Path(command[0]) in _SCRIPTS or (is_django and command[0] == sys.executable)
    if _is_cold or not is_known or not _is_usual(environment):
        return None
    modules = _DJANGO if is_django else ()
    if modules not in _parents:
        _parents[modules] = _Parent(modules)
    log_path.touch()
    order = {"command": command, "log": str(log_path), "environment": dict(environment), "cwd": str(cwd)}
    pid = _parents[modules].ask(order)
    return None if pid is None else ForkedCommand(_parents[modules], command, pid)


def _is_usual(environment: Mapping[str, str]) -> bool:
    """Return whether an environment differs from that of the imports in nothing but settings."""
    names = environment.keys() | _ENVIRONMENT.keys()
    different = {name for name in names if environment.get(name) != _ENVIRONMENT.get(name)}
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if set(paths) <= {".", str(REPOSITORY)}:  # where everything was imported from, and where nothing of ours is
        different.discard("PYTHONPATH")
    return all(name.startswith(_MAY_DIFFER) for name in different)


def _import_everything(modules: Sequence[str]) -> None:
    package = import_module("rqsched")
    for found in pkgutil.walk_packages(package.__path__, "rqsched."):
        if not found.name.startswith(_NOT_IMPORTED):
            import_module(found.name)
    for name in (*_BESIDE, *modules):
        import_module(name)


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork as ordered until the test process is gone, and all forks with it; returns in each fork, with its order."""
    while message := control.recv(_MOST):
        order: dict[str, Any] = json.loads(message)
        if "ended" in order:
            _, status = os.waitpid(order["ended"], 0)
            control.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        order["parent"] = os.getpid()
        pid = os.fork()
        if pid == 0:
            control.close()
            return order
        control.sendall(str(pid).encode())
    os._exit(0)


def _become(order: Mapping[str, Any]) -> None:
    """Be as the command would be at its first line."""
    os.setsid()
    begin()
    if os.getppid() != order["parent"]:
        os._exit(1)  # it was killed before
    assert LIBC is not None, "there are descriptors of processes"
    LIBC.prctl(_PR_SET_NAME, Path(order["command"][0]).name.encode())
    with Path(order["log"]).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    is_script = order["command"][0] != sys.executable
    sys.argv[:] = order["command"] if is_script else order["command"][1:]
    first = "" if sys.argv[0] == "-c" else os.path.dirname(os.path.abspath(sys.argv[0]))  # noqa: PTH100, PTH120
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]  # noqa: PTH100
    sys.path[:] = [first, *paths, *(path for path in sys.path[1:] if path not in paths)]


def _act() -> None:
    """Do what Python does with these arguments."""
    if sys.argv[0] != "-c":
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    code = sys.argv.pop(1)
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(code, main.__dict__)


if __name__ == "__main__":
    _import_everything(sys.argv[2:])
    gc.collect()
    gc.freeze()  # so that a fork's collector touches none of it
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
    _act()
