"""Recovery at the boot of a plain RQ worker: one pass, in a process that nobody waits for and that ends by itself."""

from __future__ import annotations

import logging
import os
import time

from redis.exceptions import RedisError

from rqsched.chain.reconcile import recover
from rqsched.errors import BackendUnavailableError
from rqsched.processes.worker import open_runtime

_log = logging.getLogger(__name__)

_LONGEST_OUTAGE = 300.0
"""For so many seconds the pass waits for servers that start later than the worker."""
_AGAIN_SECONDS = 1.0


def recover_apart() -> None:
    """Begin a pass in a grandchild of this process; returns at once, and leaves no child to wait for."""
    child = os.fork()
    if child == 0:
        _part_and_recover()
    os.waitpid(child, 0)


def _part_and_recover() -> None:
    try:
        os.setsid()
        if os.fork() == 0:
            _recover_patiently()
    except Exception:  # noqa: BLE001 - nothing of this process may go on as a second worker
        _log.exception("not recovered at boot", extra={"action": "recover_failed"})
    finally:
        os._exit(0)


def _recover_patiently() -> None:
    began = time.monotonic()
    while True:
        try:
            recover(open_runtime())
        except (BackendUnavailableError, RedisError) as error:
            if time.monotonic() - began > _LONGEST_OUTAGE:
                raise
            _log.warning("recovery waits for a backend: %s", error, extra={"action": "backend_wait"})
            time.sleep(_AGAIN_SECONDS)
        else:
            return
