"""Notifications: those whose job vanished are enqueued again, those whose process died are attempted again."""

from __future__ import annotations

from collections.abc import Iterator

from rqsched.chain.notifications import delivering
from rqsched.chain.reconcile.repair import Recovered
from rqsched.chain.runtime import Runtime


def redeliver(runtime: Runtime) -> Iterator[Recovered]:
    """Enqueue notifications that are due and have no live job, and fail attempts whose process vanished."""
    for checked, repaired in delivering.repair(runtime):
        yield Recovered(checked=checked, notifications=repaired)
