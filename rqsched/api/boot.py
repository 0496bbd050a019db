"""Recovery at the boot of a web application, beside its first requests."""

from __future__ import annotations

import logging
import threading

from rqsched.api.scheduler import Scheduler
from rqsched.errors import RqschedError

_log = logging.getLogger(__name__)


def recover_beside(scheduler: Scheduler) -> threading.Thread:
    """Recover in a thread, which is returned: an unavailable backend must not keep the application from starting."""
    thread = threading.Thread(target=_recover, args=(scheduler,), name="rqsched-recover", daemon=True)
    thread.start()
    return thread


def _recover(scheduler: Scheduler) -> None:
    try:
        scheduler.recover()
    except RqschedError as error:
        _log.warning("recovery at boot failed: %s", error, extra={"action": "boot_recover_failed"})
    except Exception:  # noqa: BLE001 - a thread's boundary
        _log.exception("recovery at boot failed", extra={"action": "boot_recover_failed"})
