"""Reconcile: compare SQL with Redis and repair the difference (docs/architecture.md, Protocol).

`passes` makes a pass out of the repairs of `schedules` and `attempts`. A row that cannot be repaired now is logged and
left behind; it never starves the others. Any number of passes may run at once.
"""

from __future__ import annotations

from rqsched.chain.reconcile.passes import Progress, iter_batches, reconcile_in_turn, recover
from rqsched.chain.reconcile.repair import BATCH, SOON, Recovered

__all__ = [
    "BATCH",
    "SOON",
    "Progress",
    "Recovered",
    "iter_batches",
    "reconcile_in_turn",
    "recover",
]
