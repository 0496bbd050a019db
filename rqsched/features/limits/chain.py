"""Limits: decide and write which runs and targets of a group get a place, and put their jobs on their queues.

A run or target needs a place of its group before it gets a job; until then it waits in the line of the group. A grant
gives free places to the first in line. These processes make grants:

- the process whose commit frees a place, or makes a run or target wait;
- a worker that takes the job of a run or target whose grant has expired;
- the process that handles a link (a delayed job). If the group has a rate, the link is due when a start leaves the
  window of the rate (`features.limits.store.Look`);
- a pass of reconcile. It gives the places that a dead process has left free, and arms a missing link.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Protocol

from redis.exceptions import RedisError
from rq.job import Job

from rqsched.errors import LimitConflictError, LimitNotFoundError, RqschedError
from rqsched.features.fan_out import jobs as target_jobs
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.limits import store
from rqsched.features.limits.decide import Bounds
from rqsched.features.limits.rate_starts import count_starts, take_back
from rqsched.features.limits.store import Granted
from rqsched.kernel.chain.feature import Feature, Pass, Section, Stage, Started
from rqsched.kernel.chain.freeze_gate import FreezeGate
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import RunJobId, iso_utc
from rqsched.kernel.decide.limit_options import split_key
from rqsched.kernel.decide.model import ENDED_IN_VAIN, Change, Run, RunStatus
from rqsched.kernel.decide.policy import Policies
from rqsched.kernel.decide.results import MOST_COUNTED, LimitDescription, Recovered, counted
from rqsched.kernel.queries.runs import MOST_AHEAD, with_places
from rqsched.kernel.store import metadata
from rqsched.kernel.store.changes import NOTHING, Seen, Sees
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport.transport import Arm

_log = logging.getLogger(__name__)

_AT_ONCE = 100
"""The maximum number of groups whose places are given in one transaction."""


class Parts(target_jobs.Parts, Protocol):
    """The parts of a process's runtime that limits use."""

    freezes: FreezeGate
    """Tells whether a freeze forbids new runs."""

    @property
    def live(self) -> Parts:
        """The parts with the real clock. A tick at a given time has another clock, but rates use real time."""


class Limits(Feature):
    """Create the groups that Changes name, and give places after Changes are committed."""

    columns = ((attrgetter("limit_group"), None),)
    run_columns = ((attrgetter("limit_group"), None),)
    claims_alone = store.STARTS_UNCOUNTED
    follows_first = True

    def __init__(self, parts: Parts) -> None:
        self._parts = parts.live

    def require(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Create the groups that Changes name, if they do not exist.

        Raises LimitConflictError if a Change gives a group another number or rate than it has. Raises it also if a
        group is new and the Change gives neither a number nor a rate.
        """
        require_groups(connection, changes, self._parts.now())

    def writes_more(self, change: Change) -> bool:
        """Return whether a Change gives a schedule another group or other bounds.

        Then a group may have to be created or kept.
        """
        return changes_group(change)

    def sections(self, begun: Pass) -> Sequence[Section]:  # noqa: ARG002 - every pass looks at all groups
        """Give the free places of groups, and places whose grant has expired, to the runs and targets in line."""
        repaired = repair(self._parts)
        return [Section(Stage.RUNS, (Recovered(checked=found, granted=given) for found, given in repaired))]

    def after_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Remove the recorded starts of runs that a worker gave back because the worker lacks their code."""
        pairs = [pair for change in changes for pair in change.changed_runs]
        given_back = (
            (before, before.started_at)
            for before, after in pairs
            if (before.status, after.status) == (RunStatus.RUNNING, RunStatus.PENDING)
            and before.attempt == after.attempt
        )
        take_back(connection, given_back)

    def sees(self, change: Change) -> Sees:
        """If the Change ends a run of a group, return the columns with the state of the group."""
        group = next((run.limit_group for _, run in change.changed_runs), None)
        return NOTHING if group is None else Sees(store.STATE, {"group": group})

    def follow(self, changes: Sequence[Change], *, seen: Seen, skip_locked: bool) -> None:  # noqa: ARG002 - groups decide for themselves
        """Give places in the groups in which committed Changes have freed a place or put a run in line.

        If a single statement ended a run, that statement also read the state of the group (`seen`). Then the group is
        read again only if that state requires it.
        """
        joined, left, stopped, known = set[str](), set[str](), set[str](), dict[str, int | None]()
        for change in changes:
            for before, after in (*zip(change.new_runs, change.new_runs, strict=True), *change.changed_runs):
                if after.limit_group is None:
                    continue
                if after.is_in_line:
                    joined.add(after.limit_group)
                elif not after.takes_place and (before.takes_place or before.is_in_line):
                    # A grant cannot give a place to a locked run. It may have left a place free while this Change
                    # locked the run.
                    left.add(after.limit_group)
                    known |= store.seen_by_end(after.limit_group, seen)
                elif before.dispatched_at is not None and after.status in ENDED_IN_VAIN:
                    left.add(after.limit_group)
                    stopped.add(after.uid)
        if joined or left:
            give(self._parts, joined, left, stopped, known)

    def claimed(self, connection: Connection, started: Sequence[Started], *, at: datetime) -> Sequence[str]:  # noqa: ARG002
        """Record the starts of runs whose group has a rate."""
        count_starts(connection, [(run, run.started_at) for run, _ in started])
        return ()

    def unclaimed(self, run: Run, job: RunJobId, rq_job: Job | None) -> bool | None:  # noqa: ARG002
        """Ask for a place for a run that has no place, or has lost its place.

        If the run gets no place, this job is over.
        """
        if run.limit_group is None or not run.needs_grant or (run.attempt, run.delivery) != (job.attempt, job.delivery):
            return None
        has_place = ask(self._parts, run.uid, run.limit_group)
        if not has_place:
            _log.info("%s waits in line of limit %s", job, run.limit_group, extra={"action": "run_in_line"})
        return has_place

    def delivered(self, link: str, run: Run, *, is_published: bool) -> datetime | None:
        """If the link made no Change, give places in the run's group.

        Return when the link is due again to give more places; None if it is not needed for this.
        """
        if not is_published and run.limit_group is not None:
            give(self._parts, [run.limit_group])
        return look_of(self._parts, link, run)

    def rehearse(self, connection: Connection, uid: str, now: datetime) -> None:
        """Execute the statements that give places after the end of a run."""
        store.rehearse(connection, uid, now)


def give(
    parts: Parts,
    joined: Collection[str],
    left: Collection[str] = (),
    stopped: Collection[str] = (),
    known: Mapping[str, int | None] | None = None,
) -> None:
    """Give the free places of groups.

    In the `joined` groups, a run or target has joined the line. In the `left` groups, a run or target has left the line
    or its place. This first cancels targets of the `stopped` runs (their uids), unless a process handles the target.
    Errors are logged and not raised, because each pass of reconcile repeats this.
    """
    try:
        if stopped:
            parts.database.transact(
                lambda connection: fan_out_targets.give_up(connection, parts.now(), run_uids=stopped)
            )
        only_left, known = {*left}.difference(joined), known or {}
        look = parts.database.transact_alone if parts.database.takes_single_statements else parts.database.read
        unclaimed = {
            group: known[group] if group in known else look(partial(store.wants, group=group, now=parts.now()))
            for group in only_left
        }
        grant(parts, {*joined} | {group for group, count in unclaimed.items() if count == 0})
        # If another process has locked a group to give its places, do not wait for the lock: this wait would take most
        # of the time of an end. If the other process has not seen this end, one place stays free until the next run of
        # the group ends. There is a next end, because these groups have granted runs that no worker has claimed yet.
        grant(parts, (group for group, count in unclaimed.items() if count), skip_locked=True)
    except (RqschedError, RedisError) as error:
        _log.warning("places of groups are given later: %s", error, extra={"action": "grant_failed"})


def grant(parts: Parts, groups: Iterable[str], *, skip_locked: bool = False) -> int:
    """Give the free places of these groups to the first in their lines, and enqueue the jobs.

    Return how many got a place.

    While everything or the group's namespace is frozen, only targets get places, because their runs have begun. With
    `skip_locked`, groups that another transaction holds are left out. Raises RedisError if jobs cannot be enqueued;
    then reconcile enqueues them.
    """
    ordered, given = sorted(groups), 0
    for start in range(0, len(ordered), _AT_ONCE):
        some = ordered[start : start + _AT_ONCE]
        work = partial(_grant, parts, groups=some, skip_locked=skip_locked)
        given += _deliver(parts, parts.database.transact(work))
    return given


def _grant(
    parts: Parts,
    connection: Connection,
    groups: Sequence[str],
    asked: str | None = None,
    *,
    is_target: bool = False,
    skip_locked: bool = False,
) -> Granted:
    freezes = parts.freezes
    frozen = groups if freezes.is_all_frozen else [one for one in groups if split_key(one)[0] in freezes.frozen]
    return store.grant(
        connection, groups, parts.now, asked, is_target=is_target, frozen=frozen, skip_locked=skip_locked
    )


def _deliver(parts: Parts, granted: Granted) -> int:
    ready = [run for run in granted.runs if run.executor == "rq"]
    if ready:
        parts.transport.deliver(ready, granted.names, now=parts.now())
    target_jobs.enqueue(parts, granted.targets)
    for link, at in granted.looks:
        if not parts.transport.arm([Arm(link, at)], now=parts.now()):
            parts.transport.bring_forward(link, at)  # the rate was raised
    return len(granted.runs) + len(granted.targets)


def look_of(parts: Parts, link: str, run: Run) -> datetime | None:
    """Return when a link must give places again. The link's run, or a target of the run, waits in the line of its
    group.

    Return None if the line does not wait for a rate, or if another link gives these places.
    """
    freezes, group = parts.freezes, run.limit_group
    if freezes.is_all_frozen or group is None:
        return None
    is_frozen = split_key(group)[0] in freezes.frozen
    find = partial(store.look_of, link=link, run=run, now=parts.now(), is_frozen=is_frozen)
    return parts.database.read(find)


def ask(parts: Parts, uid: str, group: str, *, is_target: bool = False) -> bool:
    """Ask for a place for a run or target whose job a worker has taken. Return whether it has a place now.

    Without a place it waits in line and gets another job later. If other runs and targets get a place at the same time,
    their jobs are enqueued.
    """

    def work(connection: Connection) -> tuple[Granted, bool]:
        granted = _grant(parts, connection, [group], asked=uid, is_target=is_target)
        # If an earlier try was committed but its answer was lost, `granted` does not contain the run. So read its row.
        return granted, store.has_place(connection, uid, is_target=is_target)

    granted, has_place = parts.database.transact(work)
    others = granted._replace(
        runs=[one for one in granted.runs if one.uid != uid],
        targets=[one for one in granted.targets if one.uid != uid],
    )
    with suppress(RedisError):  # reconcile delivers them
        _deliver(parts, others)
    return has_place


def change_bounds(
    parts: Parts, group: str, changed: Callable[[Bounds], Bounds], context: CommandContext
) -> LimitDescription:
    """Change the bounds of a group, and return its new description. Raises LimitNotFoundError.

    Running runs of the group continue. The group records the actor, the time and the reason.
    """

    def work(connection: Connection) -> tuple[Granted, LimitDescription]:
        was = store.lock(connection, [group]).get(group)
        if was is None:
            raise LimitNotFoundError(*split_key(group))
        if was != (bounds := changed(was)):
            by, reason, at = context.principal, context.reason, iso_utc(parts.now())
            told = {"at": at, "by": by, "reason": reason, "was": was.number, "number": bounds.number}
            if was.rate != bounds.rate:
                told |= {"was_rate": was.rate and str(was.rate), "rate": bounds.rate and str(bounds.rate)}
            store.set_bounds(connection, group, bounds, told)
            asker, extra = by or "a program", {"action": "limit_changed", "principal": by}
            _log.info("of limit %s %s by %s: it was that %s", group, bounds, asker, was, extra=extra)
            namespace, name = split_key(group)
            what = f"limit {name}: {bounds.after(was)}"
            metadata.record_altered(connection, what, parts.now, context, namespace)
        granted = _grant(parts, connection, [group])
        return granted, store.describe(connection, [group], parts.now())[0]

    granted, found = parts.database.transact(work)
    with suppress(RedisError):  # reconcile delivers them
        _deliver(parts, granted)
    return found


def repair(parts: Parts) -> Iterator[tuple[int, int]]:
    """Give the free places of all groups, create groups whose row is missing, and remove empty groups.

    Yields, for each batch, the number of groups read and the number of runs and targets that got a place.
    """
    lost = parts.database.read(partial(store.lost, limit=_AT_ONCE))
    if lost:
        parts.database.transact(partial(_make_lost, parts, lost=lost))
    after: str | None = None
    while True:
        groups, after = parts.database.read(partial(store.with_line, after=after, limit=_AT_ONCE))
        yield len(groups), grant(parts, groups, skip_locked=True)
        if after is None:
            break
    last = ""
    while empty := parts.database.read(partial(store.empty, after=last, limit=_AT_ONCE)):
        parts.database.transact(partial(_remove_empty, parts, empty))
        yield len(empty), 0
        last = empty[-1]


def _remove_empty(parts: Parts, groups: Sequence[str], connection: Connection) -> None:
    store.remove_empty(connection, groups, parts.now())


def _make_lost(parts: Parts, connection: Connection, lost: Sequence[tuple[str, str]]) -> None:
    for group, policies in lost:
        bounds = _bounds_of(Policies.loads(policies))
        bounds = bounds if any(bounds) else Bounds(1)
        _log.error("group %s has no row and gets %s", group, bounds, extra={"action": "limit_lost"})
        store.make(connection, group, bounds, parts.now())


def require_groups(connection: Connection, changes: Sequence[Change], now: datetime) -> None:
    """Create the groups that Changes name, if they do not exist, in the transaction that will write the Changes.

    Raises LimitConflictError if a Change gives a group another number or rate than it has. Raises it also if a group is
    new and the Change gives neither a number nor a rate.
    """
    wanted = dict[str, list[tuple[str, Bounds]]]()
    for change in changes:
        if changes_group(change):
            after = change.after
            told = after.schedule_id, _bounds_of(after.policies)
            wanted.setdefault(after.limit_group or "", []).append(told)
    if not wanted:
        return
    first = {group: _first_given([given for _, given in wanted[group]]) for group in sorted(wanted)}
    known = dict[str, Bounds]()
    for _ in range(2):  # an empty group may be removed between the two statements, but not twice
        for group, bounds in first.items():
            if any(bounds) and group not in known:
                store.make(connection, group, bounds, now)
        known = store.keep(connection, wanted)
    for group, given_by in sorted(wanted.items()):
        has = known.get(group, Bounds())
        for schedule_id, given in given_by:
            if not any(has) or not has.takes(given):
                raise LimitConflictError(schedule_id, *split_key(group), bounds=str(has), given=str(given))


def _first_given(given: Sequence[Bounds]) -> Bounds:
    numbers, rates = [one.number for one in given], [one.rate for one in given]
    return Bounds(next(filter(None, numbers), None), next(filter(None, rates), None))


def _bounds_of(policies: Policies) -> Bounds:
    return Bounds.read(policies.limit_running, policies.limit_rate)


def changes_group(change: Change) -> bool:
    """Return whether a Change moves a schedule to another group, or gives other bounds for its group."""
    before, after = change.before, change.after
    if after.limit_group is None:
        return False
    if before is None or before.limit_group != after.limit_group:
        return True
    is_declared = before.definition is not after.definition
    return is_declared and _bounds_of(before.policies) != _bounds_of(after.policies)


def told_of_targets(connection: Connection, run: Run, now: datetime, say: Callable[[datetime], str]) -> str | None:
    """Return text on how many targets of a run wait for a place; None if none waits. `say` renders an instant."""
    if run.limit_group is None or run.status is not RunStatus.RUNNING or run.dispatched_at is None:
        return None
    count = store.waiting_targets(connection, run.uid, MOST_COUNTED)
    found = store.describe(connection, [run.limit_group], now, MOST_COUNTED)
    if not count or not found:
        return None
    (group,) = found
    taken = _told_of_group(connection, group, run, now, say)
    waiting = f"{counted(count)} of its targets wait{'s' if count == 1 else ''} for a place"
    return f"{waiting} of limit {group.name}: {', '.join(taken)}"


def told_of_line(connection: Connection, run: Run, now: datetime, say: Callable[[datetime], str]) -> str | None:
    """Return text on where a run waits for a place; None if it needs no place. `say` renders an instant."""
    if not run.needs_grant or run.limit_group is None:
        return None
    found = store.describe(connection, [run.limit_group], now, MOST_COUNTED)
    _, name = split_key(run.limit_group)
    if not found:
        return f"in line of limit {name}, whose row is gone until the next pass of reconcile"
    if run.passed_at is not None:
        queue = "the default queue" if run.queue is None else f"queue {run.queue}"
        return f"a worker of {queue}: it had a place of limit {name}, and none came to claim it"
    (group,) = found
    taken = _told_of_group(connection, group, run, now, say)
    place = with_places(connection, [run])[0].place_in_line or 0
    is_far = place > MOST_AHEAD
    where = f"more than {MOST_AHEAD} are ahead of it" if is_far else f"it is number {place} in line"
    return f"in line of limit {name}: {', '.join([*taken, where])}"


def _told_of_group(
    connection: Connection, group: LimitDescription, run: Run, now: datetime, say: Callable[[datetime], str]
) -> list[str]:
    """Return texts on how much of its bounds a group uses, and when its rate allows a start of this run."""
    told = told_of_use(group)
    if (at := store.next_look(connection, run.uid, now)) is not None and at > now:
        told.append(f"the next place on {say((at + timedelta(microseconds=999_999)).replace(microsecond=0))}")
    return told


def told_of_use(group: LimitDescription) -> list[str]:
    """Return texts on the use of a group: `2 of 5 running and 1 about to start`, `9 of 9 starts in the last h`.

    The group was counted up to `MOST_COUNTED`.
    """
    starting = f" and {counted(group.starting)} about to start" if group.starting else ""
    told = [f"{counted(group.running)}{'' if group.number is None else f' of {group.number}'} running{starting}"]
    if (rate := Bounds.read(group.number, group.rate).rate) is not None:
        told.append(f"{counted(group.started or 0)} of {rate.number} starts in the last {rate.window}")
    return told
