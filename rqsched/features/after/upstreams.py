"""Upstreams: check that they exist and form no cycle, and mark their rows as upstreams.

The caller's operation has locked the upstreams that it names, and has locked the namespace against other changes of
upstreams (`operations.lock_declared`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from rqsched.errors import UpstreamError
from rqsched.features.after import store as upstream_ends
from rqsched.features.after.decide import require_no_cycle
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.model import Change
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection

Wanted = Mapping[str, str | None]
"""The upstream's id by the schedule's id; None for a schedule with times of its own."""


def require(connection: Connection, decided: Sequence[Change]) -> None:
    """Check the new upstreams in Changes of one namespace; raises UpstreamError."""
    if moved := _moved(decided):
        wanted = {one.after.schedule_id: one.after.upstream_id for one in decided}
        _require(connection, decided[0].after.namespace, wanted, moved)


def _moved(decided: Sequence[Change]) -> list[str]:
    """Return the ids of the schedules that get a new upstream."""
    return [
        one.after.schedule_id
        for one in decided
        if one.after.upstream_id not in {None, one.before and one.before.upstream_id}
    ]


def _require(connection: Connection, namespace: str, wanted: Wanted, moved: Sequence[str]) -> None:
    """Check that the upstream of each schedule in `moved` exists, or is in `wanted`, and that there is no cycle."""
    found = upstream_ends.upstreams_of(connection, namespace, [cast("str", wanted[one]) for one in moved])
    for schedule_id in moved:
        upstream = wanted[schedule_id]
        if upstream not in found and upstream not in wanted:
            what = f"{schedule_id!r} comes after {upstream!r}, which does not exist in namespace {namespace!r}"
            raise UpstreamError("after", f"{what}; create {upstream!r} first, or name another schedule")
    require_no_cycle({name: one for name, one in {**found, **wanted}.items() if one is not None}, moved)


def require_all(runtime: Runtime, namespace: str, wanted: Wanted) -> None:
    """Check the upstreams of a set of schedules before any of them is written. An unchanged upstream may be missing."""

    def work(connection: Connection) -> None:
        known = changes.find_all_named(connection, namespace, [*wanted])
        had = {name: one.upstream_id for name, one in known.items()}
        moved = [name for name, one in wanted.items() if one is not None and one != had.get(name)]
        _require(connection, namespace, wanted, moved)

    runtime.database.read(work)


def tell(connection: Connection, decided: Sequence[Change]) -> None:
    """Mark the rows of the new upstreams in Changes of one namespace."""
    if moved := {*_moved(decided)}:
        named = {cast("str", one.after.upstream_id) for one in decided if one.after.schedule_id in moved}
        now = max(one.after.updated_at for one in decided)
        upstream_ends.follow_from(connection, decided[0].after.namespace, named, now)


def in_order(wanted: Wanted) -> list[str]:
    """Return the ids sorted so that each id comes after its upstream. The set must have no cycle."""
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
