"""What schedules come after: that it is there, that none comes after itself, and that it knows of those after it.

Who changes that in a namespace holds its lock, and the rows of the schedules that are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from rqsched.chain.runtime import Runtime
from rqsched.core.after import require_no_cycle
from rqsched.core.model import Change, Schedule, changed
from rqsched.errors import UpstreamError
from rqsched.store import changes, system_queries, upstream_ends
from rqsched.store.database import Connection

Wanted = Mapping[str, str | None]
"""The ids of schedules, and of each that of the schedule it is to come after; None for one with times of its own."""


def lock(connection: Connection, namespace: str, wanted: Wanted) -> dict[str, Schedule]:
    """Lock and read, by id, the schedules that are named, and those that they are to come after."""
    named = _named(wanted)
    if named:
        system_queries.lock_upstreams(connection, namespace)
    return changes.lock_named(connection, namespace, [*wanted, *sorted(named - wanted.keys())])


def require(connection: Connection, namespace: str, wanted: Wanted, known: Mapping[str, Schedule]) -> None:
    """Check that what is wanted is there, or is made with it, and makes no circle; raises UpstreamError.

    What a schedule came after before may be gone. `known` are the schedules that are there, by id.
    """
    named = _named(wanted)
    if not named:
        return
    for schedule_id, upstream in wanted.items():
        is_there = upstream is None or upstream in known or upstream in wanted
        if not is_there and (schedule_id not in known or known[schedule_id].upstream_id != upstream):
            what = f"{schedule_id!r} is to come after {upstream!r}, which is not in namespace {namespace!r}"
            raise UpstreamError("after", f"{what}; create that first, or name another")
    found = upstream_ends.upstreams_of(connection, namespace, named)
    after = {name: one for name, one in {**found, **wanted}.items() if one is not None}
    require_no_cycle(after, [name for name, one in wanted.items() if one is not None])


def require_all(runtime: Runtime, namespace: str, wanted: Wanted) -> None:
    """Check a whole set before any of it is written, as `require` does."""
    if named := _named(wanted):
        ids = sorted({*wanted, *named})

        def work(connection: Connection) -> None:
            require(connection, namespace, wanted, changes.find_all_named(connection, namespace, ids))

        runtime.database.read(work)


def telling(namespace: str, wanted: Wanted, decided: Sequence[Change]) -> Callable[[Connection], object] | None:
    """Return the step that lets schedules know that others come after them, if any; new ones know it by `told`."""
    named = _named(wanted)
    if not named or not decided:
        return None
    now = max(one.after.updated_at for one in decided)
    return partial(upstream_ends.follow_from, namespace=namespace, schedule_ids=named, now=now)


def told(decided: Sequence[Change], wanted: Wanted) -> list[Change]:
    """Return these Changes, in which each new schedule knows whether others are to come after it."""
    named = _named(wanted)
    return [_told(one) if one.before is None and one.after.schedule_id in named else one for one in decided]


def _told(change: Change) -> Change:
    after = changed(change.after, followed_at=change.after.created_at)
    return Change(None, after, change.new_runs, change.changed_runs, change.events)


def in_order(wanted: Wanted) -> list[str]:
    """Return the ids so that each stands behind that which it comes after; in a set without a circle."""
    depths: dict[str, int] = {}
    for schedule_id in wanted:
        walked, at = dict[str, None](), cast("str | None", schedule_id)
        while at is not None and at in wanted and at not in depths and at not in walked:
            walked[at] = None
            at = wanted[at]
        depth = depths.get(at, -1) if at is not None else -1
        for step, name in enumerate(reversed(walked), 1):
            depths[name] = depth + step
    return sorted(wanted, key=depths.__getitem__)


def _named(wanted: Wanted) -> set[str]:
    return {one for one in wanted.values() if one is not None}
