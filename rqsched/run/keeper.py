"""The keeper is a child process of an RQ worker. It keeps a dispatcher as its own child, and ends with its worker.

Keeper and dispatcher watch each other. The keeper replaces a dispatcher that has died, and a dispatcher whose keeper
has died becomes the keeper. A keeper in a new Python does not import the dispatcher's modules. docs/adr/0013 says why.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rqsched.run.logs import TEXT
from rqsched.run.supervisor import DISPATCHER_SILENCE, ChildRole, Progress, Supervisor, python, show_name
from rqsched.run.vital_signs import run_visibly

_log = logging.getLogger(__name__)

KEEPER = "rqsched-keeper"
"""The name that `ps` shows."""


class Post(NamedTuple):
    """The values that a keeper and its dispatcher hand on to their successors."""

    life: int
    """The descriptor of a pipe that the worker holds open. A read finds the end of the pipe when the worker is gone."""
    worker: int
    """The pid of the worker."""
    log_level: str | int
    """The level of logs to standard error."""
    run_dir: str | None
    """The folder of the sockets that answer pings; None for the default."""

    @property
    def command(self) -> list[str]:
        """The command of the keeper without its last argument, which is the descriptor of its place or -1."""
        return python(__name__, f"run_keeper({tuple(self)!r})")


def is_at_end(descriptor: int, seconds: float = 0.0) -> bool:
    """Wait at most `seconds`; return whether the other end of a pipe is closed. No data is ever sent over the pipe."""
    ending = select.poll()
    ending.register(descriptor, select.POLLIN)
    return bool(ending.poll(seconds * 1000))


def run_keeper(post: tuple[int, int, str | int, str | None]) -> None:
    """Run as the keeper in a new Python; the last argument of its command is the descriptor of its place."""
    show_name(KEEPER)
    keep(Post(*post), int(sys.argv[-1]))


def keep(post: Post, place: int) -> None:
    """Keep a dispatcher until the worker is gone.

    `place` is the descriptor of a locked file (see `waiting_keeper`). The lock lasts as long as the keeper or the
    dispatcher lives. The keeper answers pings for its worker, which cannot answer while a job executes.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(level=post.log_level, format=TEXT)
        logging.getLogger("alembic").setLevel(logging.WARNING)
    main = partial(_run_dispatcher, post=post, place=place, keeper=os.getpid())
    supervisor = Supervisor([ChildRole("dispatcher", main, DISPATCHER_SILENCE)], life=post.life)
    run_visibly(supervisor, "rq", Path(post.run_dir) if post.run_dir else None, parent=post.worker)


def _run_dispatcher(progress: Progress, *, post: Post, place: int, keeper: int) -> None:
    """Run the dispatcher to its end. If the keeper has died, this process becomes the keeper."""
    from rqsched.config import export  # noqa: PLC0415 - the keeper does not need it
    from rqsched.run.worker import dispatch, open_runtime  # noqa: PLC0415

    def turn() -> None:
        progress.turn(waits_for_writes=runtime.write_gate.is_closed, is_frozen=runtime.freezes.is_own)
        if os.getppid() != keeper:
            signal.raise_signal(signal.SIGTERM)  # the loop finishes its batch

    try:
        runtime = open_runtime()
        dispatch(runtime, on_turn=turn)
    except Exception:
        if os.getppid() == keeper:
            raise
        _log.exception("the dispatcher has failed", extra={"action": "dispatcher_failed"})
    if os.getppid() == keeper or is_at_end(post.life):
        return
    _log.warning("the dispatcher's keeper has died; taking its place", extra={"action": "keeper_replaced"})
    export()
    for descriptor in {post.life, place} - {-1}:
        os.set_inheritable(descriptor, True)
    command = [*post.command, str(place)]
    os.execv(command[0], command)  # noqa: S606 - exec ends all threads and connections of this process
