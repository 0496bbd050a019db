"""What a supervisor shows of itself to the machine it runs on: systemd is told, and `rqsched ping` is answered."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from rqsched.config import Settings
from rqsched.processes.ping_socket import LivenessSocket, run_folder
from rqsched.processes.supervisor import Supervisor
from rqsched.processes.systemd import Systemd

_log = logging.getLogger(__name__)


def run_visibly(supervisor: Supervisor, kind: str, settings: Settings) -> int:
    """Run a supervisor to its end, visible to its machine; returns its exit code."""
    systemd = Systemd()
    with _answering(kind, settings) as answer:

        def turn() -> None:
            children = supervisor.children
            is_ready = bool(children) and all(child.has_begun for child in children)
            systemd.tell(is_ready=is_ready, is_stopping=supervisor.is_stopping)
            answer(lambda: _state_of(supervisor, kind, is_ready=is_ready))

        return supervisor.run(turn)


def _state_of(supervisor: Supervisor, kind: str, *, is_ready: bool) -> dict[str, Any]:
    children = [
        {"role": one.role, "pid": one.pid, "restarts": one.restarts, "has_begun": one.has_begun}
        for one in supervisor.children
    ]
    return {"kind": kind, "is_ready": is_ready, "is_stopping": supervisor.is_stopping, "children": children}


@contextlib.contextmanager
def _answering(kind: str, settings: Settings) -> Iterator[Callable[[Callable[[], dict[str, Any]]], None]]:
    """Answer pings inside the block; where no socket can be, only pings are without an answer."""
    try:
        listening = LivenessSocket(run_folder(settings.run_dir), kind)
    except OSError as error:
        _log.warning("`rqsched ping` cannot see this process: %s", error, extra={"action": "no_liveness"})
        yield lambda _: None
        return
    try:
        yield listening.answer
    finally:
        listening.close()
