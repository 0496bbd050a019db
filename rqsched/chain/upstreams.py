"""Upstreams: they must exist, no schedule may come after itself, and an upstream's row tells that it has downstreams.

An operation that changes upstreams in a namespace holds the namespace's lock, and the rows of the named schedules.
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
"""The ids of schedules, each with the id of its upstream; None for a schedule with times of its own."""


def lock(connection: Connection, namespace: str, wanted: Wanted) -> dict[str, Schedule]:
    """Lock and read, by id, the wanted schedules and their upstreams."""
    named = _named(wanted)
    if named:
        system_queries.lock_upstreams(connection, namespace)
    return changes.lock_named(connection, namespace, [*wanted, *sorted(named - wanted.keys())])


def require(connection: Connection, namespace: str, wanted: Wanted, known: Mapping[str, Schedule]) -> None:
    """Check that each upstream exists, or is wanted too, and that there is no circle; raises UpstreamError.

    The upstream that a schedule had before may be gone. `known` are the schedules that exist, by id.
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
    """Return the step that lets upstreams know of their downstreams, if there are any; new ones know them by `told`."""
    named = _named(wanted)
    if not named or not decided:
        return None
    now = max(one.after.updated_at for one in decided)
    return partial(upstream_ends.follow_from, namespace=namespace, schedule_ids=named, now=now)


def told(decided: Sequence[Change], wanted: Wanted) -> list[Change]:
    """Return these Changes, in which each new schedule knows whether it has downstreams."""
    named = _named(wanted)
    return [_told(one) if one.before is None and one.after.schedule_id in named else one for one in decided]


def _told(change: Change) -> Change:
    after = changed(change.after, followed_at=change.after.created_at)
    return Change(None, after, change.new_runs, change.changed_runs, change.events)


def in_order(wanted: Wanted) -> list[str]:
    """Return the ids, each behind its upstream; the set must have no circle."""
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
