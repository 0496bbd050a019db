"""Build descriptions of schedules, runs, notifications and backfills: plain values for people and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rqsched.api.description import BackfillProgress, DeliveryDescription, Description, RunDescription, plainly
from rqsched.features.backfill.store import Backfill
from rqsched.features.notifications.decide import Delivery, shown_destination
from rqsched.kernel.decide.delays import later
from rqsched.kernel.decide.lifecycle import decide_end_pause
from rqsched.kernel.decide.model import Run, Schedule, ScheduleStatus, parse_spec
from rqsched.kernel.decide.occurrences import TICK, due_times
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.decide.results import BackfillRow
from rqsched.kernel.queries.runs import LastRun
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection
from rqsched.when.calendars import Calendar
from rqsched.when.steps import first_of
from rqsched.when.words import clock_warnings, in_words

if TYPE_CHECKING:
    from rqsched.features.backfill.chain import BackfillRange

_LAST = datetime.max.replace(tzinfo=UTC)
_JSON_OF_RUN = ("labels", "memo", "search_attributes", "lineage", "attempts", "result", "target_counts")
"""The fields of a run that are kept as JSON text."""


def describe(schedule: Schedule, latest: Run | LastRun | None = None, warnings: Sequence[str] = ()) -> Description:
    """Describe a schedule; `latest` is its newest run, or None, and `warnings` come from `upstream_warnings`."""
    described = Description(**_fields(schedule, latest))
    described.warnings.extend(warnings)
    return described


def upstream_warnings(connection: Connection, schedule: Schedule) -> list[str]:
    """Return a warning if the upstream of this schedule does not exist any more."""
    upstream = schedule.upstream_id
    if upstream is None or schedule.status is ScheduleStatus.DELETED:
        return []
    is_there = changes.find_named(connection, schedule.namespace, upstream) is not None
    return [] if is_there else [f"it comes after {upstream}, which is not there any more"]


def describe_plainly(schedule: Schedule, latest: Run | LastRun | None = None) -> dict[str, Any]:
    """Return `describe(...).to_dict()` without the intermediate objects, for lists over HTTP."""
    return plainly(_fields(schedule, latest))


def describe_run(run: Run, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a RunDescription by name, except `without`, as HTTP and the commands show a run."""
    found = {name: getattr(run, name) for name in RunDescription.__dataclass_fields__ if name not in without}
    found["upstream_run_uid"] = run.came_after
    return found | {name: loads(found[name]) for name in _JSON_OF_RUN if found.get(name)}


def describe_delivery(delivery: Delivery) -> DeliveryDescription:
    """Describe a notification."""
    named: dict[str, Any] = {
        "kind": delivery.kind.value,
        "status": delivery.status.value,
        "message": loads(delivery.payload),
    }
    named["destination"] = shown_destination(delivery)
    same = {one.name: getattr(delivery, one.name) for one in fields(DeliveryDescription) if one.name not in named}
    return DeliveryDescription(**same, **named)


def describe_backfill(backfill: Backfill, rows: Iterable[BackfillRow] = ()) -> BackfillProgress:
    """Describe a backfill; `rows` are the rows of the occurrences that were handled."""
    named: dict[str, Any] = {"overlap": backfill.overlap or None, "rows": list(rows)}
    same = {one.name: getattr(backfill, one.name) for one in fields(BackfillProgress) if one.name not in named}
    return BackfillProgress(**same, **named)


def describe_preview(
    schedule: Schedule, wanted: BackfillRange, chunks: Iterable[list[BackfillRow]], most: int | None = None
) -> BackfillProgress:
    """Describe the effect that a backfill would have, with the rows of its first `most` occurrences."""
    counts, shown = Counter[str](), list[BackfillRow]()
    for rows in chunks:
        counts.update(row.outcome for row in rows)
        shown += rows if most is None else rows[: most - len(shown)]
    return BackfillProgress(
        None,
        schedule.uid,
        "dry_run",
        wanted.start_at,
        wanted.end_at,
        wanted.overlap and wanted.overlap.value,
        wanted.rerun and wanted.rerun.value,
        wanted.bound,
        attempted=counts.total(),
        started=counts["would_start"],
        buffered=0,
        skipped=counts["skipped"],
        already_run=counts["already_run"],
        rows=shown,
    )


def _fields(schedule: Schedule, latest: Run | LastRun | None) -> dict[str, Any]:
    definition, policies = schedule.definition, schedule.policies
    timing, timing_in_words = _timing(definition.spec)
    action, defaults, told = loads(definition.action), loads(definition.defaults), definition.parsed_notifications
    return dict(
        zip(_SAME, (*_SAME_STATE(schedule), *_SAME_DEFINITION(definition)), strict=True),
        status=schedule.status.value,
        spec=loads(definition.spec),
        timing=timing,
        timezone=schedule.spec.timezone,
        overlap=policies.overlap.value,
        policies=policies.plain_of(definition.policies),
        args=action["args"],
        kwargs=action["kwargs"],
        queue=definition.queue or defaults.get("queue"),
        connection=definition.connection or defaults.get("connection"),
        targets=policies.targets or defaults.get("targets"),
        timeout=definition.timeout or defaults.get("timeout"),
        on_failure=told.on_failure or defaults.get("on_failure"),
        on_recovery=told.on_recovery or defaults.get("on_recovery"),
        expect_success_within=told.expect_success_within and told.expect_success_within.total_seconds(),
        expect_duration=told.expect_duration and told.expect_duration.total_seconds(),
        notifications=told.plain(),
        jitter=definition.jitter.total_seconds(),
        remaining_runs=schedule.remaining,
        labels=loads(definition.labels),
        memo=loads(definition.memo),
        search_attributes=loads(definition.search_attributes),
        buffered_count=schedule.buffered_count,
        current_retry=latest.attempt - 1 + (latest.status.value == "retrying") if latest else 0,
        position=schedule.n,
        blocked_reason=latest.blocked_reason if latest and latest.is_blocked else None,
        timing_in_words=timing_in_words,
        warnings=[*_warnings(definition.spec, schedule.contents, schedule.updated_at.date())],
        last_outcome=schedule.last_outcome,
        skips=schedule.skipped_at,
        moved_from=schedule.moved_from,
    )


@lru_cache(maxsize=4096)
def _timing(spec: str) -> tuple[str, str]:
    """Return a spec as short text and as a phrase."""
    parsed = parse_spec(spec)
    return parsed.describe(), in_words(parsed)


@lru_cache(maxsize=4096)
def _warnings(spec: str, calendars: tuple[Calendar, ...], day: date) -> list[str]:
    known = parse_spec(spec).with_calendars(calendars)
    return clock_warnings(known, datetime.combine(day, datetime.min.time(), UTC))


_OF_STATE = (
    "uid", "namespace", "schedule_id", "status_reason", "note", "next_run_at", "due_at", "last_run_at", "run_count",
    "success_count", "error_count", "consecutive_failures", "skipped_count", "missed_count", "last_skip_reason",
    "last_skipped_at", "last_error", "last_instance_id", "last_run_uid", "version", "created_at", "updated_at",
    "paused_at", "deleted_at", "overdue_since", "last_success_at", "resume_at", "resume_mode",
)  # fmt: skip
_OF_DEFINITION = ("workflow", "executor", "priority", "max_runs", "description", "owner")
_SAME = (*_OF_STATE, *_OF_DEFINITION)
"""The attributes with the same name and form in a description."""
_SAME_STATE, _SAME_DEFINITION = attrgetter(*_OF_STATE), attrgetter(*_OF_DEFINITION)


def upcoming(schedule: Schedule, *, count: int, now: datetime) -> list[datetime]:
    """Return the next `count` instants at which a schedule fires, with jitter, as far as they are known now.

    Returns fewer if the search takes more than MOST_STEPS, as for a 29th of February that is a Monday.
    """
    return first_of(islice(iter_upcoming(schedule, now), count))


def iter_upcoming(
    schedule: Schedule,
    now: datetime,
    since: datetime | None = None,
    between: Callable[[datetime, datetime], Iterator[datetime]] | None = None,
) -> Iterator[datetime]:
    """Yield the next instants at which a schedule fires, lazily. Yield nothing if it does not fire.

    A schedule whose pause ends by itself fires after that end. With `since`, only the first yielded instant may be
    before `since`. For a timing of a newer release, only the stored next instant is known. `between` yields the
    occurrences of its timeline between two instants, if the caller has a faster way to find them.
    """
    if schedule.resume_at is not None:
        schedule = decide_end_pause(schedule, [], now=max(schedule.resume_at, now)).after
    if not schedule.is_active or schedule.next_run_at is None or schedule.due_at is None:
        return
    yield schedule.due_at
    if schedule.spec.is_from_completion or not schedule.spec.is_known:
        return
    after = later(max(schedule.next_run_at, now), TICK)
    yield from due_times(schedule, (between or schedule.timeline.between)(max(after, since or after), _LAST))
