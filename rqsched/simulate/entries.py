"""The schedules of a simulation: stored schedules, or those that a sync of declarations would create.

This module reads the database, but not Redis. For declarations without measured durations, it reads neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from rqsched.errors import InvalidInputError
from rqsched.features.after.decide import require_no_cycle
from rqsched.features.declarations.declarations import Declaration, require_distinct
from rqsched.features.hours import store as run_hours
from rqsched.features.hours.decide import A_DAY, day_of, hour_of
from rqsched.features.limits import store as limits
from rqsched.features.limits.decide import Bounds
from rqsched.kernel.chain import option_checks
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.ids import derived_uid
from rqsched.kernel.decide.lifecycle import Identity, decide_create
from rqsched.kernel.decide.model import Schedule, ScheduleStatus
from rqsched.kernel.decide.options import require_id, require_note
from rqsched.kernel.decide.results import MAX_PAGE
from rqsched.kernel.queries.schedules import Filters
from rqsched.kernel.store import changes, named_calendars
from rqsched.simulate.decide import Spans
from rqsched.simulate.load import queue_of, read_slim
from rqsched.timing import unfold
from rqsched.when.calendars import Calendar
from rqsched.when.zones import tzdata_version

MEASURED_DAYS = 90
"""Over how many days the durations of runs are measured."""


class Entry(NamedTuple):
    """One schedule that may take part, with its measurements and bounds."""

    schedule: Schedule
    """The schedule as it is stored, or as a sync would create it at the start of the span."""
    name: str
    """Its shown name."""
    queue: str
    """The queue of its runs."""
    timeout: timedelta
    """The timeout of an attempt."""
    measured: Spans | None = None
    """How long its runs took in the last days; None if unknown."""
    failure_rate: float = 0.0
    """The fraction of its attempts that failed so far."""
    lacks: tuple[str, ...] = ()
    """The calendars that it names and whose contents are not known."""
    bounds: Bounds = Bounds()
    """The number and the rate of its group. Empty if it has no group, or if they are unknown."""


def stored(runtime: Runtime, namespace: str | None) -> list[Entry]:
    """Read the active and paused schedules of a namespace (None means all), and the durations of their recent runs."""
    active, paused = (
        Filters(namespace, statuses=(one.value,)) for one in (ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED)
    )
    found = [*read_slim(runtime, active, sort="created"), *read_slim(runtime, paused, sort="created")]
    entries = [_entry(runtime, one, has_namespace=namespace is None) for one in found]
    return _with_measured(runtime, _with_bounds(entries, _read_bounds(runtime, entries)))


def declared(
    runtime: Runtime,
    declarations: Iterable[Declaration],
    namespace: str,
    start: datetime,
    *,
    is_measured: bool,
    calendars: Sequence[Calendar] = (),
) -> list[Entry]:
    """Return the schedules that a sync of declarations would create at `start`; raises the errors of that sync.

    No worker needs to know the workflows. With `is_measured`, the database is read: for the durations of schedules with
    the same ids, and for calendars that are named but not given. Otherwise the database is not read.
    """
    given = list(declarations)
    require_distinct(given)
    entries = [_declared(runtime, one, namespace, start, calendars, is_measured=is_measured) for one in given]
    upstreams = {one.name: one.schedule.upstream_id for one in entries}
    require_no_cycle({name: upstream for name, upstream in upstreams.items() if upstream is not None}, upstreams)
    bounds = _read_bounds(runtime, entries) if is_measured else {}
    for one in reversed(entries):  # the first declaration that sets a bound decides
        if (group := one.schedule.limit_group) is not None:
            policies, known = one.schedule.policies, bounds.get(group, Bounds())
            says = Bounds.read(policies.limit_running, policies.limit_rate)
            bounds[group] = Bounds(says.number or known.number, says.rate or known.rate)
    entries = _with_bounds(entries, bounds)
    return _with_measured(runtime, entries, namespace) if is_measured else entries


def _read_bounds(runtime: Runtime, entries: Iterable[Entry]) -> dict[str, Bounds]:
    groups = {group for one in entries if (group := one.schedule.limit_group) is not None}
    found = dict[str, Bounds]()
    for some in chunks(sorted(groups), MAX_PAGE):
        found |= runtime.database.read(partial(limits.bounds, groups=some))
    return found


def _with_bounds(entries: Iterable[Entry], bounds: Mapping[str, Bounds]) -> list[Entry]:
    return [one._replace(bounds=bounds.get(one.schedule.limit_group or "", Bounds())) for one in entries]


def _declared(
    runtime: Runtime,
    given: Declaration,
    namespace: str,
    start: datetime,
    calendars: Sequence[Calendar],
    *,
    is_measured: bool,
) -> Entry:
    try:
        name = runtime.imports.name_of(given.workflow)
        spec, options = unfold(given.spec, given.options)
        option_checks.require_connection(runtime, options.get("connection"))
        option_checks.require_queue(runtime, options.get("queue"))
        if callable(options.get("targets")):
            options["targets"] = runtime.imports.name_of(options["targets"])
        filled = option_checks.fill(runtime.settings, options, spec, is_new=True)
        here = runtime.imports.find(name)
        definition = define(None, filled, workflow=name, spec=spec, defaults=None if here is None else here.defaults)
        require_note(given.note)
        identity = Identity(
            derived_uid(start, "simulate", namespace, given.schedule_id), namespace, require_id(given.schedule_id)
        )
        names = definition.parsed_spec.calendars
        known = {one.name: replace(one, edit=f"of the file: {one.name}") for one in calendars}
        lacks = tuple(one for one in names if one not in known)
        if lacks and is_measured:
            read = runtime.database.read(partial(named_calendars.require, namespace=namespace, names=lacks))
            known |= {one.name: one for one in read}
            lacks = ()
        contents = tuple(known.get(one) or Calendar(one, (), edit="not read") for one in names)
        made = decide_create(
            identity,
            definition,
            now=start,
            paused=bool(given.paused),
            tzdata=tzdata_version(),
            calendars=contents,
        )
    except InvalidInputError as error:
        error.add_note(f"in the declaration of {given.schedule_id!r}")
        raise
    return _entry(runtime, made.after, has_namespace=False)._replace(lacks=lacks)


def _entry(runtime: Runtime, schedule: Schedule, *, has_namespace: bool) -> Entry:
    settings, definition = runtime.settings, schedule.definition
    name = f"{schedule.namespace}/{schedule.schedule_id}" if has_namespace else schedule.schedule_id
    seconds = definition.timeout or definition.parsed_defaults.get("timeout")
    timeout = settings.run_timeout if seconds is None else timedelta(seconds=seconds)
    queue = queue_of(schedule, settings.default_queue)
    return Entry(schedule, name, queue, timeout)


def _with_measured(runtime: Runtime, entries: Sequence[Entry], namespace: str | None = None) -> list[Entry]:
    """Return entries with the measured durations and failures of their runs.

    `namespace` is given for the entries of a file, because their names are ids in this namespace.
    """
    since = day_of(hour_of(runtime.now())) - MEASURED_DAYS * A_DAY
    found: list[Entry] = []
    for page in chunks(entries, MAX_PAGE):
        known = {one.name: one.schedule for one in page}
        if namespace is not None:
            ids = [*known]  # the names of a file's entries are their ids
            known = runtime.database.read(partial(changes.find_all_named, namespace=namespace, schedule_ids=ids))
        uids = [one.uid for one in known.values()]
        buckets = runtime.database.read(partial(run_hours.durations, schedule_uids=uids, since=since))
        for one in page:
            there = known.get(one.name)
            if there is None:
                found.append(one)
                continue
            attempts = there.error_count + there.success_count
            rate = there.error_count / attempts if attempts else 0.0
            spans = Spans.of(buckets.get(there.uid, Counter()))
            found.append(one._replace(measured=spans, failure_rate=rate))
    return found
