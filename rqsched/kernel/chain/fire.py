"""Firing: lock the schedules of delivered links, decide, write the Changes, and publish them.

A link is the RQ job that fires a schedule at its next time. A retry link starts the next attempt of a run. A single
link is handled as a batch of one (docs/architecture.md, Fire).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias

from redis.exceptions import RedisError

from rqsched.errors import BackendUnavailableError, ConfigError
from rqsched.kernel.chain.commit import publish, write
from rqsched.kernel.chain.error_text import name_error
from rqsched.kernel.chain.feature import Feature
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.tracer import FireSpan
from rqsched.kernel.decide.delays import offer_delay
from rqsched.kernel.decide.fire_decision import FireContext, decide_fire, decide_fire_failed, decide_retry, is_stale
from rqsched.kernel.decide.ids import LinkId, RetryLinkId, parse_link_id
from rqsched.kernel.decide.lifecycle import planned_first
from rqsched.kernel.decide.model import Change, Run, RunStatus, Schedule, unchanged
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection
from rqsched.kernel.transport.transport import is_waiting, link_of
from rqsched.when.steps import MOST_STEPS, Steps, bounded

_log = logging.getLogger(__name__)

LOCKED_AGAIN = timedelta(milliseconds=50)
"""How long until a link is tried again, if another process has locked its schedule."""
FOREIGN_AGAIN = timedelta(seconds=15)
"""How long until a link that may belong to another database is tried again. It is short, so that the other database
gets its link soon."""
UNREADABLE_AGAIN = timedelta(hours=1)
"""How long until an id is read again, if it is not the id of a link."""
FAILED_AGAIN = timedelta(seconds=5)
"""How long until a failed link is tried again, if no backoff was recorded on its schedule."""
FROZEN_AGAIN = timedelta(seconds=15)
"""How long until a link is tried again, if everything or its namespace is frozen."""
_MAX_ERROR = 2_000
_FOREIGN = {"action": "foreign_link"}


class Fired(NamedTuple):
    """The outcome of one delivered link."""

    id: str
    """The link's id as it was delivered."""
    outcome: str
    """`fired`, `stale`, `early`, `locked`, `deferred`, `all_frozen`, `frozen`, `newer`, `foreign` or `failed`."""
    again_at: datetime | None = None
    """When the link is due again; None when it has done its work."""
    change: Change | None = None
    """The Change to publish, which this fire or an earlier one has written; None if there is nothing to publish."""
    error: str | None = None
    """Why the link failed; None if it did not."""
    run: Run | None = None
    """The run of a retry link, if features may have more to do for the run; otherwise None."""
    span: FireSpan | None = None
    """The span of a traced fire; `_fire_together` ends it after the commit."""


_Batch: TypeAlias = Mapping[str, Sequence[LinkId | RetryLinkId]]
"""The links of one delivery, by the uid of their schedule. Each schedule has at most one main (not retry) link. The
order of the delivery is kept, so that the schedule that was due first fires first, and its run comes before the runs of
the other schedules."""


def fire(runtime: Runtime, ids: Sequence[str], *, skip_locked: bool = False, must_follow: bool = True) -> list[Fired]:
    """Fire delivered links: decide about each under its schedule's lock, commit, and only then update Redis.

    It does no harm if a link is delivered twice, late, early or after its schedule changed. If the decision about a
    schedule raises, each schedule of the batch is fired alone, and the failure is recorded on that schedule. Other
    schedules are not affected. A schedule of a newer release is left to processes of that release, which take its link
    when the link is due again. While everything, or the namespace of a link, is frozen, the link does nothing and is
    due again later. Raises BackendUnavailableError if SQL does not answer. With `must_follow`, also raises it if Redis
    does not answer. Use `must_follow` for links that are delivered again after an error.
    """
    if runtime.freezes.is_all_frozen:
        return [Fired(one, "all_frozen", runtime.now() + FROZEN_AGAIN) for one in ids]
    with nullcontext() if runtime.tracing is None else runtime.tracing.batch(len(ids)):
        batch, done = _read(ids, runtime.now() + UNREADABLE_AGAIN)
        try:
            fired = _fire_together(runtime, batch, skip_locked=skip_locked, must_follow=must_follow)
        except BackendUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001
            _log.warning("a batch of %d is repeated one by one: %s", len(ids), error, extra={"action": "batch_split"})
            fired = [
                result
                for uid, links in sorted(batch.items())
                for result in _fire_alone(runtime, uid, links, skip_locked=skip_locked, must_follow=must_follow)
            ]
        if any(result.outcome == "foreign" for result in fired):
            fired = _disown(runtime, fired)
        return fired + done


def _read(ids: Iterable[str], again_at: datetime) -> tuple[_Batch, list[Fired]]:
    """Read the ids; returns the links to decide about, and the outcomes of the other ids."""
    batch, positions, done = (
        defaultdict[str, list[LinkId | RetryLinkId]](list),
        defaultdict[str, list[LinkId]](list),
        [],
    )
    for text in dict.fromkeys(ids):
        link = parse_link_id(text)
        if link is None:
            _log.warning("%r is not a link of ours and is left", text, extra=_FOREIGN)
            done.append(Fired(text, "foreign", again_at))
        elif isinstance(link, LinkId):
            positions[link.uid].append(link)
        else:
            batch[link.uid].append(link)
    for uid, found in positions.items():
        *older, newest = sorted(found)  # at most one of them is not stale
        batch[uid].append(newest)
        done += [Fired(str(link), "stale") for link in older]
    return batch, done


def _fire_together(runtime: Runtime, batch: _Batch, *, skip_locked: bool, must_follow: bool) -> list[Fired]:
    fired, involved = runtime.database.transact(partial(_decide, runtime, batch, skip_locked=skip_locked))
    try:
        committed = [result.change for result in fired if result.change is not None]
        publish(runtime, committed, must=must_follow, involved=involved, skip_locked=skip_locked)
    finally:
        for one in fired:
            if one.span is not None and one.change is not None:
                one.span.end(one.change)
    return [one if one.run is None else _deliver(runtime, one, one.run) for one in fired]


def _deliver(runtime: Runtime, fired: Fired, run: Run) -> Fired:
    """Call the features for the retry link of a run.

    The link is due again at the earliest time that the features return.
    """
    ahead = [fired.again_at]
    for feature in runtime.features.involved((), [run]):
        again_at = feature.delivered(fired.id, run, is_published=fired.change is not None)
        ahead.append(again_at and max(again_at, runtime.now() + LOCKED_AGAIN))
    return fired._replace(again_at=min((at for at in ahead if at is not None), default=None))


def _decide(
    runtime: Runtime, batch: _Batch, connection: Connection, *, skip_locked: bool
) -> tuple[list[Fired], list[Feature]]:
    """Lock the schedules of a batch, decide what each link does, and write it.

    Returns the outcomes of the links, and the features that are involved.
    """
    locked, frozen = changes.lock_to_fire(connection, batch, skip_locked=skip_locked)
    now = runtime.now()
    fired = _put_off_absent(connection, batch, locked, now) if len(locked) < len(batch) else []
    due: list[tuple[LinkId, Schedule]] = []
    for link in chain.from_iterable(links for uid, links in batch.items() if uid in locked):
        schedule = locked[link.uid]
        if isinstance(link, RetryLinkId):
            fired.append(_fire_retry(connection, link, schedule, now, is_frozen=link.uid in frozen))
        elif is_stale(schedule, link.n):
            # Publish the schedule as it is now. This repairs a crash between a commit and the writes to Redis.
            change = restate(connection, schedule)
            fired.append(Fired(str(link), "stale", change=change if change.changed_runs or link_of(schedule) else None))
        elif schedule.due_at is not None and schedule.due_at > now:
            fired.append(Fired(str(link), "early", schedule.due_at))
        elif link.uid in frozen:
            fired.append(Fired(str(link), "frozen", now + FROZEN_AGAIN))
        elif schedule.spec.newer:
            late = now - (schedule.due_at or now)
            fired.append(Fired(str(link), "newer", now + offer_delay(late)))
        else:
            due.append((link, schedule))
    fired += _fire_due(runtime, connection, due, skip_locked=skip_locked)
    involved = write(runtime, connection, [result.change for result in fired if result.change is not None])
    return fired, involved


def _put_off_absent(
    connection: Connection, batch: _Batch, locked: Mapping[str, Schedule], now: datetime
) -> list[Fired]:
    """Put off the links whose schedule was not locked: as `locked` if the schedule exists, otherwise as `foreign`."""
    absent = sorted(batch.keys() - locked.keys())
    known = changes.existing(connection, absent)
    fired = []
    for uid in absent:
        outcome, wait = ("locked", LOCKED_AGAIN) if uid in known else ("foreign", FOREIGN_AGAIN)
        fired += [Fired(str(link), outcome, now + wait) for link in batch[uid]]
    return fired


def _fire_due(
    runtime: Runtime,
    connection: Connection,
    links: Sequence[tuple[LinkId, Schedule]],
    *,
    skip_locked: bool,
) -> list[Fired]:
    """Decide about due links. First read the open runs of their schedules, and which occurrences have a run.

    Under `allow_all` a schedule may have many open runs. They are not read, unless its spec is `from_completion`. If
    finding the next times takes more than MOST_STEPS, the rest of the batch is deferred to a later batch.
    """
    due = [schedule for _, schedule in links]
    free = {
        one.uid for one in due if one.policies.overlap is OverlapPolicy.ALLOW_ALL and not one.spec.is_from_completion
    }
    others = [one for one in due if one.uid not in free]
    runs = {uid: list[Run]() for uid in free} | changes.open_runs_for_start(connection, others, skip_locked=skip_locked)
    since = {schedule.uid: schedule.next_run_at for schedule in due if schedule.next_run_at is not None}
    ran = changes.occurrences_run(connection, since)
    now = runtime.now()  # again, because a run that a fire ends may have started while we waited for its lock
    fired: list[Fired] = []
    with bounded(Steps(None)) as steps:
        for link, schedule in links:
            open_runs = runs.get(schedule.uid)
            if open_runs is None or steps.taken > MOST_STEPS:  # a long batch keeps its rows locked
                outcome = "locked" if open_runs is None else "deferred"
                fired.append(Fired(str(link), outcome, now + LOCKED_AGAIN))
                continue
            context, span = FireContext(runtime.settings.environment, ran.get(schedule.uid, frozenset())), None
            if runtime.tracing is not None:
                span = runtime.tracing.begin_fire(schedule, now)
                context = context._replace(asked=span.context)
            if schedule.contents and schedule.has_old_plan:
                decide = partial(_fire_if_due, runs=open_runs, now=now, context=context)
                ran_of = partial(changes.nominals_run, connection)
                change = planned_first(schedule, decide, now=now, ran_of=ran_of)
            else:
                change = decide_fire(schedule, open_runs, now=now, context=context)
            fired.append(Fired(str(link), "fired", change=change, span=span))
    return fired


def _fire_if_due(schedule: Schedule, runs: Sequence[Run], *, now: datetime, context: FireContext) -> Change:
    """Decide to fire a schedule, unless a change of one of its calendars has moved its next time."""
    if not schedule.is_active or schedule.due_at is None or schedule.due_at > now:
        return unchanged(schedule)
    return decide_fire(schedule, runs, now=now, context=context)


def restate(connection: Connection, schedule: Schedule) -> Change:
    """Return a Change that writes nothing and makes Redis follow a schedule and its pending runs as they are now."""
    pending = changes.pending_runs(connection, schedule.uid)
    return Change(schedule, schedule, changed_runs=tuple((run, run) for run in pending))


def _fire_retry(
    connection: Connection, link: RetryLinkId, schedule: Schedule, now: datetime, *, is_frozen: bool
) -> Fired:
    """Decide about a retry link. Only run, attempt and status must match: later fires and a pause do not matter."""
    run = changes.find_run_by_number(connection, link.uid, link.number)
    if run is not None and run.status is RunStatus.RUNNING and run.dispatched_at is not None:
        return Fired(str(link), "fired", run=run)
    if run is None or run.status is not RunStatus.RETRYING or run.attempt != link.attempt:
        if run is None or run.status is not RunStatus.PENDING:
            return Fired(str(link), "stale", run=run)  # other runs in line may wait for this link
        if run.attempt == link.attempt and is_waiting(run, now):
            return Fired(str(link), "early", run.queued_at)
        # This delivers a blocked run, or a run whose retry was committed by a process that then died. If the run waits
        # in line for the rate of its group, the feature `limits` checks the line.
        return Fired(str(link), "stale", change=Change(schedule, schedule, changed_runs=((run, run),)), run=run)
    if run.retry_at is not None and run.retry_at > now:
        return Fired(str(link), "early", run.retry_at)
    if is_frozen:
        return Fired(str(link), "frozen", now + FROZEN_AGAIN)
    return Fired(str(link), "fired", change=decide_retry(schedule, [run], run, now=now), run=run)


def _fire_alone(
    runtime: Runtime, uid: str, links: Sequence[LinkId | RetryLinkId], *, skip_locked: bool, must_follow: bool
) -> list[Fired]:
    """Fire one schedule's links. An error is recorded on the schedule, which is then due again after a backoff."""
    try:
        return _fire_together(runtime, {uid: links}, skip_locked=skip_locked, must_follow=must_follow)
    except BackendUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001
        _log.exception("schedule %s cannot be fired", uid, extra={"action": "fire_failed"})
        text = name_error(error)[:_MAX_ERROR]
        if runtime.tracing is not None:
            runtime.tracing.fail_fire(uid, error)
        failed = []
        for link in links:
            change = None
            if isinstance(link, LinkId):
                record = partial(_record_failure, runtime, link, text, skip_locked=skip_locked)
                change = runtime.database.transact(record)
            failed.append(Fired(str(link), "failed", None if change else runtime.now() + FAILED_AGAIN, change, text))
        publish(runtime, [result.change for result in failed if result.change is not None], skip_locked=skip_locked)
        return failed


def _record_failure(
    runtime: Runtime, link: LinkId, error: str, connection: Connection, *, skip_locked: bool
) -> Change | None:
    """Record that a schedule could not be fired; None if the link has become stale, or the schedule's row is locked."""
    schedule = changes.lock_one(connection, link.uid, skip_locked=skip_locked)
    if schedule is None or is_stale(schedule, link.n):
        return None
    change = decide_fire_failed(schedule, error, now=runtime.now())
    write(runtime, connection, [change])
    return change


def _disown(runtime: Runtime, fired: list[Fired]) -> list[Fired]:
    """Drop links of purged schedules, but keep them if another database may own the control queue."""
    foreign = [result.id for result in fired if result.outcome == "foreign"]
    try:
        is_ours = runtime.ownership.is_known_to_redis()
    except (ConfigError, RedisError):
        is_ours = False
    fate = "dropped" if is_ours else "left for another database"
    _log.warning("%d links of unknown schedules are %s: %s", len(foreign), fate, foreign[0], extra=_FOREIGN)
    if not is_ours:
        return fired
    return [one._replace(outcome="stale", again_at=None) if one.outcome == "foreign" else one for one in fired]
