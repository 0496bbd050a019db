"""The invariants I1-I8 (docs/promises.md), checked over every real row of a database and, if asked, its Redis.

`check_invariants` reports every violation at once, by name. One thing rows cannot tell apart: a manual trigger refused
at the very instant of an occurrence looks like that occurrence skipped. Tests trigger beside the grid.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from math import inf

import sqlalchemy as sa
from rq.job import Job

from rqsched.features.after.decide import UpstreamEnd
from rqsched.features.limits import store as limits
from rqsched.features.limits.decide import Bounds
from rqsched.features.notifications import store as deliveries
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.audit import AuditRecord
from rqsched.kernel.decide.ids import LinkId, parse_delivery_job_id, parse_link_id, parse_run_job_id
from rqsched.kernel.decide.limit_options import Rate
from rqsched.kernel.decide.model import Run, RunKind, RunStatus, ScheduleStatus, read_instants
from rqsched.kernel.decide.results import LimitDescription
from rqsched.kernel.store import metadata, tables
from rqsched.kernel.store.tables import limit_starts, upstream_ends
from rqsched.kernel.transport.transport import LONGEST_RETRY, Arm, job_id_of, link_of, retry_of
from tests.support.narrow import text
from tests.support.stories import CLOSING, Story, expected_occurrences, live_outcomes, read_stories

SOON = timedelta(seconds=30)
"""Links due within this long must be in Redis after a reconcile pass."""
ONE_AT_A_TIME = frozenset({"skip", "buffer_one", "buffer_all"})


def check_invariants(
    runtime: Runtime, *, with_redis: bool = True, skew: timedelta = timedelta(0), lowers_limits: bool = False
) -> None:
    """Assert I1-I6 over everything in the database, and with Redis (after a `recover()`) that links and jobs live.

    With `lowers_limits` the number of a group was lowered while runs were running, and these continue.

    `skew` is how far the actors' clocks were apart: comparisons between instants of two actors allow for it.
    """
    stories = read_stories(runtime, skew)
    checks: list[Callable[[Story], Iterator[str]]] = [i1_one_outcome, i2_one_run, i3_next_time, i4_never_early]
    checks += [i5_one_at_a_time, i6_events, i6_copies, counters_are_true]
    if with_redis:
        checks.append(lambda story: i3_live_links(runtime, story))
        checks.append(lambda story: i7_live_deliveries(runtime, story))
    problems = {story.name: [problem for check in checks for problem in check(story)] for story in stories}
    problems["limits"] = list(limits_hold(runtime, is_idle=with_redis, lowered=lowers_limits))
    problems["ends"] = [*each_end_once(runtime, stories), *(nothing_owed(runtime, stories) if with_redis else ())]
    bad = {name: found for name, found in problems.items() if found}
    if bad:
        texts = [f"{name}:\n" + "\n".join(f"  * {problem}" for problem in found) for name, found in bad.items()]
        shown = [story for story in stories if story.name in bad or (bad.get("ends") and story.is_of_an_edge)]
        raise AssertionError("\n".join(texts + [story.lines() for story in shown]))


def each_end_once(runtime: Runtime, stories: Sequence[Story]) -> Iterator[str]:
    """Each first end that counts, of a run that is not backfilled, has one outcome for each schedule after its own."""
    ends = runtime.database.read(read_ends)
    owed = {(end.run_uid, end.schedule_uid): end for end in ends}
    by_uid = {run.uid: run for story in stories for run in story.runs}
    started = Counter((run.upstream_run_uid, run.schedule_uid) for run in by_uid.values() if run.kind is RunKind.AFTER)
    yield from (f"I2: {uid} started {count} runs of {to}" for (uid, to), count in started.items() if count > 1)
    yield from (
        f"I1: a run of {to} came after {uid}, of which nothing is known" for uid, to in started if (uid, to) not in owed
    )
    stories_by_uid = {story.schedule.uid: story for story in stories}
    for key, end in owed.items():
        story = stories_by_uid.get(end.schedule_uid)
        if story is None or not story.has_all_runs or not story.has_all_events:
            continue
        skips = sum(
            event.event_type == audit.SKIPPED and event.payload.get("upstream_run_id") == end.run_uid
            for event in story.events
        )
        if started[key] + skips != (end.followed in {"started", "skipped"}):
            found = f"{started[key]} runs of {story.name} and {skips} skips"
            yield f"I1: the end of {end.run_uid} has {found}: {end.followed}"
    for story in stories:
        yield from _missed_of_ends(story, owed)
        if story.schedule.upstream_id is None or story.schedule.status is ScheduleStatus.DELETED or story.skew:
            continue
        yield from _unrecorded(story, stories, owed)


def _missed_of_ends(story: Story, owed: Mapping[tuple[str, str], UpstreamEnd]) -> Iterator[str]:
    """Each end that is missed is counted once; the newest of a pause when that is over."""
    if not story.has_all_events or not story.has_all_runs:
        return
    of_it = [end for end in owed.values() if end.schedule_uid == story.schedule.uid]
    missed = sum(end.followed == "missed" and end.due_at is None for end in of_it)
    counted = sum(
        event.payload["count"]
        for event in story.events
        if event.event_type == audit.MISSED and event.payload.get("upstream_run_id") is not None
    )
    counted += story.schedule.missed_run_uid is not None
    if missed != counted:
        yield f"I1: {missed} ends before {story.name} are missed and {counted} are counted"


def nothing_owed(runtime: Runtime, stories: Sequence[Story]) -> Iterator[str]:
    """After a reconcile pass, each end whose time has come has an outcome; not where nothing may begin."""
    by_uid = {story.schedule.uid: story for story in stories}
    for end in runtime.database.read(read_ends):
        story = by_uid.get(end.schedule_uid)
        is_frozen = story is None or _is_frozen(runtime, story) or runtime.freezes.is_all_frozen
        if end.due_at is not None and end.due_at <= runtime.now() and not is_frozen:
            yield f"I1: the end of {end.run_uid} is owed to {end.schedule_uid} since {end.ended_at}: {end.error}"


def _unrecorded(story: Story, stories: Sequence[Story], owed: Mapping[tuple[str, str], UpstreamEnd]) -> Iterator[str]:
    """Find ends that count and were never written; not where the schedule came after others before."""
    after = story.schedule.spec.after
    if after is None or any("spec" in event.payload.get("changed_fields", ()) for event in story.events):
        return
    for upstream in stories:
        named = upstream.schedule.namespace, upstream.schedule.schedule_id
        gone_at = upstream.schedule.deleted_at
        is_gone = gone_at is not None and gone_at <= story.schedule.created_at
        if named != (story.schedule.namespace, after.schedule_id) or is_gone:
            continue
        for run in upstream.runs:
            began = run.queued_at if run.starts_downstream else run.trigger_number if run.copied_from is None else None
            counts = run.kind is not RunKind.BACKFILL and began is not None and run.ended_at is not None
            is_later = counts and run.ended_at is not None and run.ended_at > story.schedule.created_at
            has_counted = is_later and (
                after.on == "end" or (run.status is RunStatus.SUCCEEDED) is (after.on == "success")
            )
            if has_counted and (run.uid, story.schedule.uid) not in owed and not _was_dropped(run):
                yield f"I1: {run.uid} of {upstream.name} ended {run.status.value}, and nothing is owed to {story.name}"


def _was_dropped(run: Run) -> bool:
    """Say of a retry on request that it was dropped while it waited: it is no end anew."""
    return run.status is RunStatus.CANCELLED and run.is_asked and run.queued_at is None


def read_ends(connection: sa.Connection) -> list[UpstreamEnd]:
    """Read the ends that are or were owed to downstream schedules."""
    rows = connection.execute(sa.select(upstream_ends)).mappings()
    return [UpstreamEnd(**{name: row[name] for name in UpstreamEnd.__dataclass_fields__}) for row in rows]


def i1_one_outcome(story: Story) -> Iterator[str]:
    """Each occurrence of the active time ends in exactly one recorded live outcome."""
    expected = expected_occurrences(story)
    outcomes, wrong = live_outcomes(story, expected)
    yield from wrong
    backfilled = {run.occurrence_at for run in story.runs if run.kind is RunKind.BACKFILL}
    for at in sorted(expected.surely):
        if not outcomes.get(at) and at not in backfilled:
            yield f"I1: the occurrence {at} has no outcome"
    for at, found in sorted(outcomes.items()):
        if len(found) > 1:
            yield f"I1: the occurrence {at} has {len(found)} outcomes: {', '.join(found)}"
    is_one_timing = not any("spec" in event.payload.get("changed_fields", ()) for event in story.events)
    # If a later edit of a calendar frees an occurrence, it is due at once and keeps its own day.
    if story.schedule.spec.calendars and is_one_timing and not (story.skew or story.has_moved):
        for run in story.runs:
            if run.kind is RunKind.SCHEDULED and story.was_excluded(story.schedule.spec, run.occurrence_at):
                yield f"I1: run {run.number} is of {run.occurrence_at}, which a calendar excluded"
    upcoming = story.schedule.next_run_at
    if upcoming is not None and not story.skew and outcomes.get(upcoming):
        yield f"I1: the occurrence {upcoming} is still to fire but has an outcome: {', '.join(outcomes[upcoming])}"


def i2_one_run(story: Story) -> Iterator[str]:
    """At most one run per occurrence, live and backfill together. A pruned occurrence counts as run."""
    for event in story.events:
        is_start = event.event_type in {audit.TRIGGERED, audit.BUFFERED}
        is_gone = is_start and event.workflow_run_id not in story.by_uid
        is_occurrence = not {":manual:", ":after:"} & {*re.findall(":[a-z]+:", event.workflow_instance_id or "")}
        at = event.payload.get("occurrence_time")
        if is_gone and is_occurrence and at is not None:
            occurrence_at = datetime.fromisoformat(at)
            if story.pruned_to is None or occurrence_at > story.pruned_to:
                yield f"I2: the run of {occurrence_at} is gone, and pruned_to is {story.pruned_to}"
    occurring = [run for run in story.runs if run.kind not in {RunKind.MANUAL, RunKind.AFTER}]
    counts = Counter(run.occurrence_at for run in occurring)
    yield from (f"I2: the occurrence {at} has {count} runs" for at, count in counts.items() if count > 1)
    nominals = Counter(at for run in occurring for at in read_instants(run.nominals) or (run.occurrence_at,))
    yield from (f"I2: the nominal instant {at} has {count} runs" for at, count in nominals.items() if count > 1)


def i3_next_time(story: Story) -> Iterator[str]:
    """An active schedule has a next time, or waits for an unfinished run, or drains its last runs."""
    schedule = story.schedule
    if not schedule.is_active:
        if schedule.next_run_at or schedule.due_at:
            yield f"I3: it is {schedule.status.value} and has a next time"
        return
    if schedule.remaining == 0:
        yield "I3: it is active with no run remaining"
    if schedule.next_run_at is not None or schedule.upstream_id is not None:
        return
    awaited = story.by_uid.get(schedule.awaiting_run_uid or "")
    is_draining = schedule.buffer_depth > 0 or schedule.backfill_waiting > 0 or schedule.skips is not None
    is_waiting = is_draining or schedule.spec.is_all_excluded_after(schedule.evaluated_to)
    if not (awaited is not None and awaited.is_unfinished) and not is_waiting:
        yield f"I3: it is active without a next time and waits for {schedule.awaiting_run_uid}"


def i4_never_early(story: Story) -> Iterator[str]:
    """Nothing fires before it is due, while paused, or after delete."""
    status = story.status_before
    for event in story.events:
        run = story.by_uid.get(event.workflow_run_id or "")
        if event.event_type in {audit.TRIGGERED, audit.BUFFERED} and run is not None:
            yield from _early(story, event, run, status)
        status = _status_after(event, status)


def _early(story: Story, event: AuditRecord, run: Run, status: ScheduleStatus) -> Iterator[str]:
    due_at = run.due_at or run.occurrence_at
    if run.kind is not RunKind.MANUAL and event.recorded_at + story.skew < max(due_at, run.occurrence_at):
        yield f"I4: run {run.number} started at {event.recorded_at}, due {due_at}"
    if run.kind is RunKind.SCHEDULED and status is not ScheduleStatus.ACTIVE:
        yield f"I4: run {run.number} of {run.occurrence_at} started while the schedule was {status.value}"
    if status is ScheduleStatus.DELETED:
        yield f"I4: run {run.number} started after delete"


def _status_after(event: AuditRecord, status: ScheduleStatus) -> ScheduleStatus:
    if event.event_type == audit.CREATED:
        fires = event.payload.get("next_fire_at") or "after" in event.payload["spec"]
        return ScheduleStatus.ACTIVE if fires else ScheduleStatus.PAUSED
    if event.event_type == audit.RESUMED:
        return ScheduleStatus.ACTIVE
    has_ended = status in {ScheduleStatus.DEAD, ScheduleStatus.DELETED}
    if event.event_type == audit.COMPLETED and has_ended:
        return status  # the occurrences that a backfill of an ended schedule could not start
    return CLOSING.get(event.event_type, status)


def i5_one_at_a_time(story: Story) -> Iterator[str]:
    """Under skip and buffer policies no two runs are started and unfinished at once, backfill and overrides apart."""
    alone = [
        run
        for run in story.runs
        if run.overlap in ONE_AT_A_TIME
        and not run.is_override
        and run.kind is not RunKind.BACKFILL
        and not (run.dispatched_at and story.schedule.policies.overlap_until == "dispatched")
    ]
    started = sorted((one for run in alone for one in _executions(story, run)), key=lambda one: one.sequence)
    unfinished = [run.number for run in alone if run.is_unfinished]
    if len(unfinished) > 1:
        yield f"I5: the runs {unfinished} are unfinished at once"
    for before, after in pairwise(started):
        if before.ended_at is not None and after.started_at + story.skew < before.ended_at:
            yield f"I5: run {after.run} started at {after.started_at}, run {before.run} ended at {before.ended_at}"


@dataclass(frozen=True)
class _Execution:
    """One time in which a run was unfinished: from its start, or from that of a retry on request, to the end."""

    run: int
    sequence: int
    started_at: datetime
    ended_at: datetime | None


def _executions(story: Story, run: Run) -> Iterator[_Execution]:
    starts = [event for event in story.events if event.workflow_run_id == run.uid and _is_start(event)]
    asked = [*(event.payload["attempt"] for event in starts[1:]), run.asked_attempt]
    for event, next_asked in zip(starts, asked, strict=False):
        ended_at = run.ended_at
        if next_asked is not None and next_asked > event.payload.get("attempt", 1):  # it ended, and was asked for again
            ended = [attempt for attempt in json.loads(run.attempts) if attempt["attempt"] < next_asked]
            ended_at = datetime.fromisoformat(ended[-1]["ended_at"])
        yield _Execution(run.number, event.sequence, event.recorded_at, ended_at)


def _is_start(event: AuditRecord) -> bool:
    is_request = event.event_type in {audit.RUN_RETRY_REQUESTED, audit.RUN_COPIED}
    begins_at_once = is_request and event.payload["outcome"] == "started"
    return event.event_type in {audit.TRIGGERED, audit.RUN_RETRY_STARTED} or begins_at_once


def i6_events(story: Story) -> Iterator[str]:
    """Sequences have no gaps from the first kept event on, and rows agree with the events."""
    schedule = story.schedule
    sequences = [event.sequence for event in story.events]
    first = schedule.event_sequence + 1 - len(sequences)
    if sequences != list(range(first, schedule.event_sequence + 1)):
        yield f"I6: the sequences are {sequences}, the row says {schedule.event_sequence}"
    if not sequences:
        return
    status = story.status_before
    for event in story.events:
        status = _status_after(event, status)
    if status is not schedule.status:
        yield f"I6: the events say {status.value}, the row says {schedule.status.value}"
    triggered = Counter(event.workflow_run_id for event in story.events if event.event_type == audit.TRIGGERED)
    buffered = Counter(event.workflow_run_id for event in story.events if event.event_type == audit.BUFFERED)
    for run in story.runs:
        found = triggered.pop(run.uid, 0)
        if story.kept_from is not None and run.created_at <= story.kept_from:
            continue
        if found != int(run.trigger_number is not None and run.copied_from is None):
            yield f"I6: run {run.number} has no ScheduleTriggered event, or several, or was never started"
        waited = run.trigger_number is None and run.kind is not RunKind.BACKFILL and run.copied_from is None
        if waited and buffered[run.uid] != 1:
            yield f"I6: run {run.number} waits or waited without one ScheduleBuffered event"
    if story.has_all_runs:
        yield from (f"I6: a ScheduleTriggered event names run {uid}, which is not there" for uid in triggered)


def i6_copies(story: Story) -> Iterator[str]:
    """Each copy of a run has one RunCopied event."""
    copied = Counter(event.workflow_run_id for event in story.events if event.event_type == audit.RUN_COPIED)
    for run in story.runs:
        is_kept = story.kept_from is None or run.created_at > story.kept_from
        if is_kept and copied[run.uid] != int(run.copied_from is not None):
            yield f"I6: run {run.number} has {copied[run.uid]} RunCopied events"


def _has_ever_succeeded(run: Run) -> bool:
    """Whether a run has succeeded, now or before a retry of its failed targets. It does not succeed a second time."""
    before = (attempt["outcome"] for attempt in json.loads(run.attempts))
    return run.status is RunStatus.SUCCEEDED or "succeeded" in before


def counters_are_true(story: Story) -> Iterator[str]:
    """The counters of the schedule's row agree with its runs and events."""
    schedule, events = story.schedule, story.since_restart
    waiting = [run.kind for run in story.runs if run.status is RunStatus.BUFFERED]
    unfinished = [run.kind for run in story.runs if run.is_unfinished]
    truth = {
        "buffer_depth": sum(kind is not RunKind.BACKFILL for kind in waiting),
        "backfill_waiting": waiting.count(RunKind.BACKFILL),
        "backfill_unfinished": unfinished.count(RunKind.BACKFILL),
        "run_number": max((run.number for run in story.runs), default=0),
        "run_count": sum(event.event_type == audit.TRIGGERED for event in events),
        "skipped_count": sum(event.event_type == audit.SKIPPED for event in events),
        "missed_count": sum(event.payload["count"] for event in events if event.event_type == audit.MISSED),
    }
    if events is story.events and not story.has_all_events:
        for name in ("run_count", "skipped_count", "missed_count"):
            del truth[name]
    if events is story.events and story.has_all_runs:
        truth["success_count"] = sum(_has_ever_succeeded(run) for run in story.runs if run.copied_from is None)
    if schedule.status is ScheduleStatus.DELETED:
        del truth["backfill_unfinished"]  # a delete drops retrying runs unread; nothing counts on it afterwards
    limit = schedule.definition.max_runs
    if limit is not None and schedule.status in {ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED}:
        truth["remaining"] = limit - schedule.run_count
    for name, value in truth.items():
        if getattr(schedule, name) != value:
            yield f"counter {name} is {getattr(schedule, name)}, the rows say {value}"


def i3_live_links(runtime: Runtime, story: Story) -> Iterator[str]:
    """After a reconcile pass, each link that is due soon is live: the schedule's own, and that of each retry.

    In a frozen namespace none has to.
    """
    if _is_frozen(runtime, story):
        return
    horizon = runtime.now() + SOON
    retries = [retry_of(run) for run in story.runs if run.status is RunStatus.RETRYING]
    for arm in [*link_of(story.schedule), *retries]:
        if arm.due_at <= horizon and not _is_armed(runtime, arm):
            yield f"I3: {arm.id} is due at {arm.due_at} and not in Redis"


def _is_frozen(runtime: Runtime, story: Story) -> bool:
    return story.schedule.namespace in runtime.database.read(metadata.find_lasting)


def _is_armed(runtime: Runtime, arm: Arm) -> bool:
    transport, job_id = runtime.transport, str(arm.id)
    if not transport.redis.hexists(Job.key_for(job_id), "data"):
        return False
    if transport.redis.lpos(transport.list_key, job_id) is not None:
        return True
    score = transport.redis.zscore(transport.scheduled_key, job_id)
    put_off = max(LONGEST_RETRY, runtime.settings.link_lease) + runtime.settings.repair_grace
    latest = max(arm.due_at, runtime.now() + put_off)
    return score is not None and score <= latest.timestamp()


def i7_live_deliveries(runtime: Runtime, story: Story) -> Iterator[str]:
    """After a reconcile pass, each pending run beyond the grace has its job on a queue; not in a frozen namespace."""
    if _is_frozen(runtime, story):
        return
    before = runtime.now() - runtime.settings.repair_grace
    for run in story.runs:
        is_late = run.queued_at is not None and run.queued_at <= before
        has_job = run.status is RunStatus.PENDING and run.executor == "rq" and not run.is_in_line
        if has_job and is_late and not _is_queued(runtime, run):
            yield f"I7: {job_id_of(run)} is pending since {run.queued_at} and on no queue"


def _is_queued(runtime: Runtime, run: Run) -> bool:
    redis = runtime.transport.connections[run.connection] if run.connection else runtime.transport.redis
    key = f"rq:queue:{run.queue or runtime.settings.default_queue}"
    job_id = str(job_id_of(run))
    return bool(redis.hexists(Job.key_for(job_id), "data")) and redis.lpos(key, job_id) is not None


def _too_many_started(runtime: Runtime, key: str, rate: Rate) -> Iterator[str]:
    started = runtime.database.read(lambda connection: [*connection.scalars(_STARTS_OF, {"key": key})])
    for first, last in zip(started, started[rate.number :], strict=False):
        if last - first < rate.period:
            yield f"limit {key}: more than {rate} started from {first} to {last}"


def _uncounted(runtime: Runtime, key: str, rate: Rate) -> Iterator[str]:
    """Say which runs of a group run whose start counts and is not written."""
    since = runtime.now() - rate.period
    running = sa.select(tables.runs.c.uid).where(
        tables.runs.c.limit_group == key,
        tables.runs.c.status == "running",
        tables.runs.c.is_rated,
        tables.runs.c.started_at > since,
        ~sa.exists().where(
            limit_starts.c.uid == tables.runs.c.uid, limit_starts.c.started_at == tables.runs.c.started_at
        ),
    )
    for uid in runtime.database.read(lambda connection: [*connection.scalars(running)]):
        yield f"limit {key}: the start of run {uid} is not written"


_STARTS_OF = (
    sa.select(limit_starts.c.started_at)
    .where(limit_starts.c.limit_group == sa.bindparam("key"))
    .order_by(limit_starts.c.started_at)
)


def limits_hold(runtime: Runtime, *, is_idle: bool, lowered: bool) -> Iterator[str]:
    """A group never has more places taken than its number, nor more starts in a window than its rate. After a
    pass (`is_idle`) no run waits beside a free place.

    Runs continue when the number is lowered, so `lowered` waives the check of running runs.
    """
    groups = {f"{one.namespace}/{one.name}": one for one in _groups(runtime)}
    frozen = runtime.database.read(metadata.find_lasting)
    for key, group in groups.items():
        taken, number = group.running + group.starting, inf if group.number is None else group.number
        rate = Bounds.read(group.number, group.rate).rate
        free = number - taken
        if rate is not None:
            free = min(free, rate.number - group.starting - (group.started or 0))
            if not lowered:
                yield from _too_many_started(runtime, key, rate)
                yield from _uncounted(runtime, key, rate)
        if taken > number and (group.starting or not lowered):
            yield f"limit {key} of {group.number}: {group.running} run and {group.starting} more have a place"
        if is_idle and group.namespace not in frozen and "*" not in frozen and free > 0:
            line = runtime.database.read(partial(limits.first_in_line, group=key, most=9, now=runtime.now()))
            if line:
                yield f"limit {key} of {group.number}: {taken} have a place, and others wait in line: {line}"
    for story in read_stories(runtime):
        for run in story.runs:
            if run.limit_group is not None and run.is_unfinished and run.limit_group not in groups:
                yield f"limit {run.limit_group} has no row, and run {run.number} is {run.status.value}"


def _groups(runtime: Runtime) -> list[LimitDescription]:
    names = {story.schedule.namespace for story in read_stories(runtime)}
    page = partial(limits.page, cursor=None, limit=500, now=runtime.now())
    found = [runtime.database.read(partial(page, namespace=name)).items for name in sorted(names)]
    return [one for some in found for one in some]


def i7_redis_follows_sql(runtime: Runtime, forgotten: Iterable[str] = ()) -> None:
    """Assert that Redis knows nothing SQL does not know: commit first, enqueue second.

    It holds at every moment, in the middle of a crash too. `forgotten` are uids that a purge may have taken.
    """
    stories = {story.schedule.uid: story for story in read_stories(runtime)}
    runs_by_uid = {run.uid: run for story in stories.values() for run in story.runs}
    purged = set(forgotten) - {*stories, *runs_by_uid}
    ahead = [text for text in _ids_in_redis(runtime) if _is_ahead(text, stories, runs_by_uid)]
    ahead = [text for text in ahead if not _is_of_notification(runtime, text)]
    ahead = [text for text in ahead if not any(uid in text for uid in purged)]
    assert not ahead, f"I7: Redis is ahead of SQL: {', '.join(ahead)}"


def _ids_in_redis(runtime: Runtime) -> set[str]:
    redis = runtime.transport.redis
    lists = [redis.lrange(key, 0, -1) for key in redis.keys("rq:queue:*")]
    found = {entry for entries in lists for entry in entries}
    return {text(entry) for entry in found | set(redis.zrange(runtime.transport.scheduled_key, 0, -1))}


def _is_ahead(text: str, stories: dict[str, Story], runs_by_uid: dict[str, Run]) -> bool:
    if (job := parse_run_job_id(text)) is not None:
        run = runs_by_uid.get(job.uid)
        is_unknown = run is None or run.status is RunStatus.BUFFERED
        return is_unknown or (run is not None and (job.attempt, job.delivery) > (run.attempt, run.delivery))
    link = parse_link_id(text)
    story = stories.get(link.uid) if link is not None else None
    if link is None or story is None:
        return True
    if isinstance(link, LinkId):
        return link.n > story.schedule.n
    return not any(run.number == link.number and link.attempt <= _attempts_linked(run) for run in story.runs)


def _is_of_notification(runtime: Runtime, text: str) -> bool:
    job = parse_delivery_job_id(text)
    found = None if job is None else runtime.database.read(lambda connection: deliveries.find(connection, job.uid))
    return job is not None and found is not None and job.attempt <= found.attempt


def _attempts_linked(run: Run) -> int:
    """The attempts that may have a link: those that ended, and one that was given back and is delivered again."""
    has_ended = run.status not in {RunStatus.BUFFERED, RunStatus.PENDING, RunStatus.RUNNING}
    return run.attempt if has_ended or run.delivery > 1 else run.attempt - 1


def i8_executions(runtime: Runtime, executed: Iterable[tuple[str, int]]) -> None:
    """Assert that user code ran at most once an attempt, and at least once for each run that succeeded.

    `executed` is the side-effect log: (run uid, attempt) for each time the workflow's body began. Where runs still end,
    it is to be read after what SQL says of them, as it is iterated.
    """
    stories = read_stories(runtime)
    counts = Counter(executed)
    doubled = [f"I8: attempt {attempt} of run {uid} ran {n} times" for (uid, attempt), n in counts.items() if n > 1]
    ran = Counter(uid for uid, _ in counts.elements())
    for story in stories:
        had_another_policy = any("policies" in event.payload.get("changed_fields", ()) for event in story.events)
        at_most_once = story.schedule.policies.retry.max_retries == 0 and not had_another_policy
        for run in story.runs:
            if run.status is RunStatus.SUCCEEDED and not ran[run.uid]:
                doubled.append(f"I8: run {run.number} of {story.name} succeeded and never ran")
            asked = [event for event in story.events if event.event_type == audit.RUN_RETRY_REQUESTED]
            if at_most_once and ran[run.uid] > 1 + sum(event.workflow_run_id == run.uid for event in asked):
                doubled.append(f"I8: run {run.number} of {story.name} ran {ran[run.uid]} times, max_retries is 0")
    assert not doubled, "\n".join(doubled)
