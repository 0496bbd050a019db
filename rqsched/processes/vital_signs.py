"""What a supervisor shows of itself to the machine it runs on: systemd is told, and `rqsched ping` is answered."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rqsched.processes.ping_socket import LivenessSocket, run_folder
from rqsched.processes.supervisor import Supervisor
from rqsched.processes.systemd import Systemd

_log = logging.getLogger(__name__)


def run_visibly(supervisor: Supervisor, kind: str, run_dir: Path | None) -> int:
    """Run a supervisor to its end, visible to its machine; returns its exit code. `run_dir` as in the settings."""
    systemd = Systemd()
    with _answering(kind, run_dir) as answer:

        def turn() -> None:
            systemd.tell(is_ready=_is_ready(supervisor), is_stopping=supervisor.is_stopping)
            answer(lambda: _state_of(supervisor, kind))

        return supervisor.run(turn)


def run_for(parent: int, supervisor: Supervisor, kind: str, run_dir: Path | None) -> int:
    """Run a supervisor that ends with its parent, a worker of RQ's, and answers pings in the name of that.

    systemd is told nothing: the process it started is that worker.
    """
    with _answering(kind, run_dir, parent) as answer:
        return supervisor.run(lambda: answer(lambda: _state_of(supervisor, kind)))


def _is_ready(supervisor: Supervisor) -> bool:
    children = supervisor.children
    return bool(children) and all(child.has_begun for child in children)


def _state_of(supervisor: Supervisor, kind: str) -> dict[str, Any]:
    children = [
        {"role": one.role, "pid": one.pid, "restarts": one.restarts, "has_begun": one.has_begun}
        for one in supervisor.children
    ]
    is_ready = _is_ready(supervisor)
    return {"kind": kind, "is_ready": is_ready, "is_stopping": supervisor.is_stopping, "children": children}


@contextlib.contextmanager
def _answering(
    kind: str, run_dir: Path | None, pid: int | None = None
) -> Iterator[Callable[[Callable[[], dict[str, Any]]], None]]:
    """Answer pings inside the block; where no socket can be, only pings are without an answer."""
    try:
        listening = LivenessSocket(run_folder(run_dir), kind, pid)
    except OSError as error:
        _log.warning("`rqsched ping` cannot see this process: %s", error, extra={"action": "no_liveness"})
        yield lambda _: None
        return
    try:
        yield listening.answer
    finally:
        listening.close()
