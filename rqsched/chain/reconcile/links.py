"""Links: main and retry links that should be in Redis and are not live there are armed again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rqsched.chain.reconcile.repair import SOON, Recovered, pages
from rqsched.chain.runtime import Runtime
from rqsched.store import reconcile_queries
from rqsched.transport.transport import Arm, retry_of


def arm_links(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Arm the links of schedules overdue beyond the grace or due soon, or (everything) of every active schedule."""
    until = None if everything else runtime.now() + SOON
    for rows in pages(runtime, partial(reconcile_queries.due_links, until=until)):
        now = runtime.now()
        fired_soon = now - runtime.settings.grace
        arms = [Arm(link, due_at) for link, due_at in rows if everything or due_at > now or due_at <= fired_soon]
        yield Recovered(checked=len(rows), links=runtime.transport.arm(arms, now=now))


def arm_retries(runtime: Runtime, *, everything: bool) -> Iterator[Recovered]:
    """Arm the retry links of runs whose next attempt is due soon, or (everything) of all retrying runs."""
    until = None if everything else runtime.now() + SOON
    for rows in pages(runtime, partial(reconcile_queries.retrying, until=until)):
        armed = runtime.transport.arm([retry_of(run) for run in rows], now=runtime.now())
        yield Recovered(checked=len(rows), retries=armed)
