"""Hands the schedules of a source over: ours are written paused, the source is disabled, ours fire.

Each step is repeatable, and each run begins with what is true now: in SQL, what waits for its source has a note that
says so; at the source, what was disabled. So a run that dies anywhere is completed by another one, and nothing fires
at both or, once it was handed over, at neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from rqsched.api.declarations import Declaration
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.api.syncing import batches
from rqsched.chain import creating, option_checks, quotas
from rqsched.chain.creating import Named, ScheduleRequest
from rqsched.coming_over.source import Source, SourceEntry, distinct
from rqsched.core.audit import CommandContext
from rqsched.core.ids import iso_utc
from rqsched.core.model import Definition, Schedule, ScheduleStatus
from rqsched.core.option_table import require_id
from rqsched.core.payload import loads
from rqsched.errors import InvalidInputError
from rqsched.store import changes
from rqsched.timing import unfold
from rqsched.workflows import is_path

MANAGED_BY = "import"
"""`managed_by` of the schedules an import made: no `sync --prune` deletes them."""
LABEL = "imported_from"
"""The label of everything imported, in files that an import writes, too; its value is the kind of the source."""

Read = Callable[[Mapping[str, Any]], Declaration]
"""Reads an entry as `rqsched sync` does; raises InvalidInputError."""


class Outcome(StrEnum):
    """What an import did, or would do, with an entry."""

    CREATED = "created"
    """Its schedule is new."""
    UPDATED = "updated"
    """Its schedule follows what the source has now."""
    UNCHANGED = "unchanged"
    """Its schedule is what the source has, or was handed over before."""
    TAKEN = "taken"
    """Another schedule has its id, and is left alone."""
    NOT_IMPORTED = "not imported"
    """It cannot become a schedule."""


class Fires(StrEnum):
    """Where an entry fires now."""

    SOURCE = "source"
    """At its source alone; ours is paused or does not exist."""
    HERE = "here"
    """Ours alone."""
    BOTH = "both"
    """At its source and here: twice."""
    NOWHERE = "nowhere"
    """Neither: it is disabled at its source, and ours is paused or over."""


@dataclass(frozen=True)
class Imported:
    """What one entry of the source is and becomes."""

    source: SourceEntry
    """What the source has."""
    outcome: Outcome
    """What was done about it."""
    lost: tuple[str, ...]
    """What is lost or changes, or why it is not imported."""
    request: ScheduleRequest | None = None
    """What is written of it; None for what is not imported."""
    schedule: Schedule | None = None
    """The schedule as it is now; None where there is none yet, and where another one has the id."""

    @property
    def is_paused(self) -> bool:
        """Whether ours is paused."""
        return self.schedule is not None and self.schedule.status is ScheduleStatus.PAUSED

    @property
    def fires(self) -> Fires:
        """Where it fires now."""
        is_active = self.schedule is not None and self.schedule.is_active
        if self.source.enabled:
            return Fires.BOTH if is_active else Fires.SOURCE
        return Fires.HERE if is_active else Fires.NOWHERE


class HandingOver:
    """One source that is handed over to one namespace."""

    def __init__(
        self,
        scheduler: Scheduler,
        source: Source,
        read: Read,
        *,
        namespace: str | None = None,
        context: CommandContext | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._scheduler = scheduler
        self._runtime = scheduler.runtime
        self._source = source
        self._read = read
        self._namespace = require_id(namespace or scheduler.settings.namespace, "namespace")
        self._context = context
        self._progress = progress
        """Called with 1 for each entry that is looked at to fire here from now on."""
        self.waits = f"waits for {source.kind} to stop firing it: rqsched import --disable-source"
        """The note of what is to fire once its source does not."""
        self._rests = f"was disabled at {source.kind} when it was imported"
        self._came = f"came from {source.kind}"

    def preview(self) -> list[Imported]:
        """Say what `write` would do now; writes nothing."""
        found = self._found()
        requests = [one.request for one in found if one.request is not None]
        outcomes: dict[str, str] = {}
        for batch in batches(requests):
            told = creating.preview_upserts(self._runtime, batch)
            outcomes |= {one.named.schedule_id: outcome for one, (_, outcome) in zip(batch, told, strict=True)}
        return [_with_outcome(one, outcomes) for one in found]

    def write(self) -> list[Imported]:
        """Write every entry as a schedule of ours, paused where it is new, and return what became of each.

        One that waits follows what the source has now. One that was handed over, or that somebody resumed, is ours and
        stays as it is.
        """
        found = self._found()
        requests = [one.request for one in found if one.request is not None]
        sizes = [[(one.named.schedule_id, one.definition) for one in batch] for batch in batches(requests)]
        quotas.require_room_for_batches(self._runtime, self._namespace, sizes)
        outcomes: dict[str, str] = {}
        written: dict[str, Schedule] = {}

        def report(schedule: Schedule, outcome: str) -> None:
            outcomes[schedule.schedule_id], written[schedule.schedule_id] = outcome, schedule

        creating.upsert_batches(self._runtime, batches(requests), report)
        return [_with_outcome(one, outcomes, written) for one in found]

    def hand_over(self) -> tuple[list[Imported], str]:
        """Write ours paused, disable the source, and let ours fire; also return what the source says it has done.

        What was left alone stays at the source: what is not imported, and what somebody has paused here.
        """
        written = self.write()
        outcomes = {one.source.source_id: one.outcome for one in written}
        told = self._source.disable(
            [one.source for one in written if one.source.enabled and self._may_fire(one.schedule)]
        )
        # Read again: the source may have fired since, and its next times are where ours continue.
        found = [self._taken_over(one) if not one.source.enabled else one for one in self.write()]
        return [replace(one, outcome=outcomes.get(one.source.source_id, one.outcome)) for one in found], told

    def resume(self) -> list[Imported]:
        """Write ours, and let those fire that wait: the caller knows that the source does not fire any more."""
        return [_at_rest(self._taken_over(one)) for one in self.write()]

    def vanished(self, found: Iterable[Imported]) -> list[str]:
        """Return the ids of those that wait for the source, which does not have them any more; they stay paused.

        They have fired there for the last time, or were cancelled there.
        """
        known = {one.schedule.schedule_id for one in found if one.schedule is not None}
        waiting = self._scheduler.iter(namespace=self._namespace, status="paused", labels={LABEL: self._source.kind})
        return sorted(one.schedule_id for one in waiting if one.note == self.waits and one.schedule_id not in known)

    def is_waiting(self, one: Imported) -> bool:
        """Return whether a schedule waits for its source to fire it no more."""
        return one.schedule is not None and self._waits(one.schedule)

    def is_owed(self, one: Imported) -> bool:
        """Return whether its source should have fired it by now, and has not."""
        return one.source.next_at is not None and one.source.next_at <= self._runtime.now()

    def _may_fire(self, schedule: Schedule | None) -> bool:
        return schedule is not None and (schedule.is_active or self._waits(schedule))

    def _waits(self, schedule: Schedule) -> bool:
        return schedule.status is ScheduleStatus.PAUSED and schedule.note == self.waits

    def _taken_over(self, one: Imported) -> Imported:
        """Let a schedule fire that waits; what its source owes is fired first, once, also when this is repeated."""
        self._progress(1)
        if one.schedule is None or not self.is_waiting(one):
            return one
        handle, next_at = ScheduleHandle(self._runtime, one.schedule), one.source.next_at
        is_owed = self.is_owed(one)
        if next_at is not None and is_owed:
            handle.trigger(force=True, idempotency_key=f"import:{iso_utc(next_at)}", context=self._context)
        if handle.state.status is ScheduleStatus.PAUSED:  # the trigger may have used up its last run
            handle.resume(catch_up="next", note=self._came, context=self._context)
        if next_at is not None and not is_owed:
            self._fire_left_out(handle, next_at)
        return replace(one, schedule=handle.state)

    def _fire_left_out(self, handle: ScheduleHandle, next_at: datetime) -> None:
        """Fire what came between two readings of the clock: it was not owed yet, and resuming has left it out."""
        has_passed = next_at <= self._runtime.now()
        if has_passed and (handle.next_run_at is None or handle.next_run_at > next_at):
            handle.backfill(next_at, next_at + timedelta(microseconds=1), context=self._context)

    def _found(self) -> list[Imported]:
        """Read the source, and what is here of it."""
        read = [self._request(one) for one in distinct(self._source.entries())]
        ids = sorted({one.request.named.schedule_id for one in read if one.request is not None})
        known = self._known(ids)
        found = [self._beside(one, known) for one in read]
        return [one for one in found if one.schedule is not None or not one.source.is_taken]

    def _request(self, source: SourceEntry) -> Imported:
        """Check an entry as `sync` would, except that no workflow is imported."""
        if source.entry is None:
            return Imported(source, Outcome.NOT_IMPORTED, source.lost)
        try:
            declared = self._read(labelled(source.entry, self._source.kind))
            named = Named(self._namespace, require_id(declared.schedule_id))
            definition = self._define(declared)
        except InvalidInputError as error:
            return Imported(source, Outcome.NOT_IMPORTED, (f"It is refused: {error}.", *source.lost))
        said = (named, definition, self.waits if source.enabled else self._rests, True, self._context)
        return Imported(source, Outcome.CREATED, source.lost, ScheduleRequest(*said, must_have_future=False))

    def _define(self, declared: Declaration) -> Definition:
        name, runtime = declared.workflow, self._runtime
        is_known = isinstance(name, str) and option_checks.is_registered(runtime, name)
        if not isinstance(name, str) or not (is_known or is_path(name)):
            reason = "is neither registered here nor the dotted path of a function: register a workflow of this name"
            raise InvalidInputError("workflow", f"{name!r} {reason}")
        spec, options = unfold(declared.spec, declared.options)
        # A path would be imported to see what the function says of itself.
        given = {**options, "managed_by": MANAGED_BY}
        return option_checks.new_definition(runtime, name, spec, given, is_external=not is_known)

    def _known(self, ids: Sequence[str]) -> dict[str, Schedule]:
        found: dict[str, Schedule] = {}
        for batch in batches(ids):
            found |= self._runtime.database.read(
                partial(changes.find_all_named, namespace=self._namespace, schedule_ids=batch)
            )
        return found

    def _beside(self, one: Imported, known: Mapping[str, Schedule]) -> Imported:
        """Say what is to be written of an entry beside the schedule that is here."""
        if one.request is None or (here := known.get(one.request.named.schedule_id)) is None:
            return one
        if loads(here.definition.labels).get(LABEL) != self._source.kind:
            text = f"Schedule {here.schedule_id} was made otherwise and is left as it is: rename or delete it."
            return replace(one, outcome=Outcome.TAKEN, lost=(text,), request=None)
        request = None
        if here.status is ScheduleStatus.PAUSED and here.note in {self.waits, self._rests}:
            request = one.request._replace(note=self.waits if one.source.enabled else None, paused=None)
        elif one.source.enabled and here.definition.workflow != one.request.definition.workflow:
            text = (
                f"Schedule {here.schedule_id} calls {here.definition.workflow} and is left as it is: rename or "
                "delete it, or bring this source into another namespace."
            )
            return replace(one, outcome=Outcome.TAKEN, lost=(text,), request=None)
        return replace(one, outcome=Outcome.UNCHANGED, request=request, schedule=here)


def _at_rest(one: Imported) -> Imported:
    """Return an entry whose source is known not to fire it."""
    return replace(one, source=replace(one.source, enabled=False))


def labelled(entry: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return an entry with the label that says where it came from."""
    return {**entry, "labels": {**entry.get("labels", {}), LABEL: kind}}


def _with_outcome(
    one: Imported, outcomes: Mapping[str, str], written: Mapping[str, Schedule] | None = None
) -> Imported:
    if one.request is None:
        return one
    schedule_id = one.request.named.schedule_id
    schedule = (written or {}).get(schedule_id, one.schedule)
    return replace(one, outcome=Outcome(outcomes[schedule_id]), schedule=schedule)
