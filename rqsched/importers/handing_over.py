"""Hand the schedules of a source over: write them paused, disable them at the source, let them fire here.

Every step may be repeated, and each import begins with the current state. If an import dies at any step, another import
completes it. The state is in two places. The source stores which entries are disabled. The note of a schedule says that
the schedule waits for its source. Before an import disables an entry at the source, it writes another note into the
schedule: so a later import knows that no person disabled the entry. No entry fires both at its source and here. An
entry that was handed over fires here.

If one entry fails, the error is reported with this entry, and the import continues with the others. An outage ends the
import.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.errors import BackendUnavailableError, ConflictError, InvalidInputError
from rqsched.features.declarations.api import batches
from rqsched.features.declarations.declarations import Declaration
from rqsched.features.quotas import chain as quotas
from rqsched.importers import code_here
from rqsched.importers.source import Source, SourceEntry, distinct
from rqsched.kernel.chain import create, option_checks
from rqsched.kernel.chain.create import Named, ScheduleRequest
from rqsched.kernel.chain.error_text import explain
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import Definition, Schedule, ScheduleStatus
from rqsched.kernel.decide.options import require_id
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.store import changes
from rqsched.timing import unfold
from rqsched.workflows import is_path

_log = logging.getLogger(__name__)

MANAGED_BY = "import"
"""The value of `managed_by` of imported schedules. `sync --delete-removed` does not delete these schedules."""
LABEL = "imported_from"
"""The label of all imported schedules, also in the files that an import writes. Its value is the kind of source."""

_MOST_NAMESPACES = 10_000

Read = Callable[[Mapping[str, Any]], Declaration]
"""A function that reads an entry as `rqsched sync` does; raises InvalidInputError."""


class Outcome(StrEnum):
    """The result of an import, or of its preview, for one entry."""

    CREATED = "created"
    """Its schedule is new."""
    UPDATED = "updated"
    """Its schedule was changed to the current entry of the source."""
    UNCHANGED = "unchanged"
    """Its schedule equals the entry of the source, or was handed over before."""
    TAKEN = "taken"
    """Another schedule has its id; that schedule is not changed."""
    NOT_IMPORTED = "not imported"
    """The entry cannot become a schedule."""
    FAILED = "failed"
    """The import of the entry failed with the error that `lost` names. Another import continues it."""


class Fires(StrEnum):
    """Where an entry fires now."""

    SOURCE = "source"
    """Only at its source: the schedule here is paused or does not exist."""
    HERE = "here"
    """Only here: the schedule fires, and the entry is disabled at its source."""
    BOTH = "both"
    """At its source and here: it fires twice."""
    NOWHERE = "nowhere"
    """Nowhere: the entry is disabled at its source, and the schedule here is paused or has ended."""


@dataclass(frozen=True)
class Imported:
    """One entry of the source, and its schedule."""

    source: SourceEntry
    """The entry of the source."""
    outcome: Outcome
    """The result for this entry."""
    lost: tuple[str, ...]
    """A sentence for each thing that is lost or changes, or the reason why the entry is not imported."""
    request: ScheduleRequest | None = None
    """The schedule to write; None if the entry is not imported."""
    schedule: Schedule | None = None
    """The current schedule; None if there is none yet, or if another schedule has the id."""

    @property
    def is_paused(self) -> bool:
        """Whether the schedule is paused."""
        return self.schedule is not None and self.schedule.status is ScheduleStatus.PAUSED

    @property
    def fires(self) -> Fires:
        """The scheduler in which the entry fires now: its source, rqsched, both or none."""
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
        is_another: bool = False,
        context: CommandContext | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Read `source` for one namespace.

        If other namespaces have imported schedules with the same ids, `is_another` says that these came from another
        source.
        """
        self._scheduler = scheduler
        self._runtime = scheduler.runtime
        self._source = source
        self._read = read
        self._namespace = require_id(namespace or scheduler.settings.namespace, "namespace")
        self._is_another = is_another
        self._context = context
        self._progress = progress
        """A function that is called with 1 for each entry that is handed over, even if the handover fails."""
        self.waits = f"waits for {source.kind} to stop firing it: rqsched import --disable-source"
        """The note of schedules that wait until their entries are disabled at the source."""
        self._moves = f"waits while {source.kind} is being disabled: rqsched import --disable-source completes it"
        self._rests = f"was disabled at {source.kind} when it was imported"
        self._came = f"came from {source.kind}"
        self._why_no_code = lru_cache(maxsize=None)(code_here.why_missing)

    def preview(self) -> list[Imported]:
        """Return the result that `write` would have, and write nothing."""
        found = self._found()
        requests = [one.request for one in found if one.request is not None]
        outcomes: dict[str, str] = {}

        def decide(batches: Iterable[Sequence[ScheduleRequest]]) -> None:
            for batch in batches:
                told = create.preview_upserts(self._runtime, batch)
                outcomes.update({one.named.schedule_id: what for one, (_, what) in zip(batch, told, strict=True)})

        failed = _in_batches(decide, requests, outcomes)
        return [_with_outcome(one, outcomes, failed) for one in found]

    def write(self) -> list[Imported]:
        """Write every entry as a schedule, and return the result for each entry. New schedules are paused.

        If an entry has changed, its waiting schedule is changed, too. A schedule that was handed over, or that a person
        resumed, stays unchanged.
        """
        found = self._found()
        requests = [one.request for one in found if one.request is not None]
        sizes = [[(one.named.schedule_id, one.definition) for one in batch] for batch in batches(requests)]
        quotas.require_room_for_batches(self._runtime, self._namespace, sizes)
        outcomes: dict[str, str] = {}
        written: dict[str, Schedule] = {}
        failed = self._upsert(requests, outcomes, written)
        return [_with_outcome(one, outcomes, failed, written) for one in found]

    def hand_over(self) -> tuple[list[Imported], str]:
        """Write the schedules paused, disable their entries at the source, and let the schedules fire.

        Return the entries, and what the source says about disabling them. If an entry is not imported, or if a person
        paused its schedule here, the entry stays enabled at the source. If a person disabled an entry at the source
        meanwhile, its schedule stays paused.
        """
        written = self.write()
        outcomes = {one.source.source_id: one.outcome for one in written}
        ours = self._marked([one for one in written if one.source.enabled and self._may_fire(one)])
        told, why = "", None
        try:
            told = self._source.disable([one.source for one in ours])
        except ConflictError as error:  # not all of them were disabled
            why = explain(error)
        # Read the source again: it may have fired meanwhile, and the schedules here begin with its next times.
        found = [self._taken_over(one) if self.is_moving(one) else one for one in self.write()]
        if why is not None:
            wanted = {one.source.source_id for one in ours}
            found = [
                _failed(one, why) if one.source.enabled and one.source.source_id in wanted else one for one in found
            ]
        return [_as_at_first(one, outcomes) for one in found], told

    def resume(self) -> list[Imported]:
        """Write the schedules, and let the waiting schedules fire. The user must have stopped the source before."""
        found = [self._taken_over(one) for one in self.write()]
        return [replace(one, source=replace(one.source, enabled=False)) for one in found]

    def vanished(self, found: Iterable[Imported]) -> list[str]:
        """Return the ids of waiting schedules whose entries no longer exist at the source. The schedules stay paused.

        Each of these entries fired for the last time at its source, or was cancelled there.
        """
        known = {one.schedule.schedule_id for one in found if one.schedule is not None}
        paused = self._scheduler.iter(namespace=self._namespace, status="paused", labels={LABEL: self._source.kind})
        waiting = [one.schedule_id for one in paused if self._waits(one.state)]
        return sorted(schedule_id for schedule_id in waiting if schedule_id not in known)

    def is_waiting(self, one: Imported) -> bool:
        """Return whether the schedule of an entry is paused until the source no longer fires the entry."""
        return one.schedule is not None and self._waits(one.schedule)

    def is_moving(self, one: Imported) -> bool:
        """Return whether the schedule of an entry waits, and `hand_over` has disabled the entry at its source."""
        schedule = one.schedule
        is_ours = schedule is not None and self._waits(schedule) and schedule.note == self._moves
        return is_ours and not one.source.enabled

    def is_owed(self, one: Imported) -> bool:
        """Return whether the source should have fired the entry by now, and has not."""
        return one.source.next_at is not None and one.source.next_at <= self._runtime.now()

    def _may_fire(self, one: Imported) -> bool:
        is_written = one.schedule is not None and one.outcome is not Outcome.FAILED
        return is_written and (self.is_waiting(one) or one.fires is Fires.BOTH)

    def _waits(self, schedule: Schedule) -> bool:
        return _is_paused_since_created(schedule) and schedule.note in {self.waits, self._moves}

    def _marked(self, ours: Sequence[Imported]) -> list[Imported]:
        """Write a note into each waiting schedule, which says that an import is disabling its entry.

        If this import dies, the import that completes it needs the note. Entries whose schedule could not be written
        are left out of the result.
        """
        requests = [one.request._replace(note=self._moves) for one in ours if one.request and self.is_waiting(one)]
        failed = self._upsert(requests, {}, {})
        return [one for one in ours if one.schedule is None or one.schedule.schedule_id not in failed]

    def _upsert(
        self, requests: Sequence[ScheduleRequest], outcomes: dict[str, str], written: dict[str, Schedule]
    ) -> dict[str, str]:
        """Write schedules. Add them to `written` and their outcomes to `outcomes`, by id.

        Return the error of each schedule that could not be written, by id.
        """

        def report(schedule: Schedule, outcome: str) -> None:
            outcomes[schedule.schedule_id], written[schedule.schedule_id] = outcome, schedule

        return _in_batches(lambda each: create.upsert_batches(self._runtime, each, report), requests, outcomes)

    def _taken_over(self, one: Imported) -> Imported:
        """Let a waiting schedule fire.

        An error is returned with the entry instead of raised, because the next entries are disabled at the source, too,
        and must fire here. Raises if the database or Redis is unavailable.
        """
        self._progress(1)
        if one.schedule is None or one.outcome is Outcome.FAILED or not self.is_waiting(one):
            return one
        handle = ScheduleHandle(self._runtime, one.schedule)
        try:
            self._let_fire(handle, one)
        except BackendUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - a failing entry must not stop the others
            return _failed(one, _told(error, handle.schedule_id))
        return replace(one, schedule=handle.state)

    def _let_fire(self, handle: ScheduleHandle, one: Imported) -> None:
        """Let a schedule fire. If its source did not fire a due occurrence, trigger this occurrence first, once."""
        version, next_at, is_owed = handle.state.version, one.source.next_at, self.is_owed(one)
        if next_at is not None and is_owed:
            handle.trigger(force=True, idempotency_key=f"import:{iso_utc(next_at)}", context=self._context)
        if handle.state.status is ScheduleStatus.PAUSED:  # the trigger may have used up its last run
            # Resume only this version of the schedule: if a person paused it meanwhile, it must stay paused.
            handle.resume(on_resume="next", note=self._came, context=self._context, if_version=version)
        if next_at is not None and not is_owed:
            # If the occurrence became due after the check in `is_owed`, the resume has skipped it. Then backfill it.
            has_passed = next_at <= self._runtime.now()
            if has_passed and (handle.next_run_at is None or handle.next_run_at > next_at):
                handle.backfill(next_at, next_at + timedelta(microseconds=1), context=self._context)

    def _found(self) -> list[Imported]:
        """Read the entries of the source, each with the schedule that exists for it here."""
        read = [self._request(self._named(one)) for one in distinct(self._source.entries())]
        ids = sorted({one.request.named.schedule_id for one in read if one.request is not None})
        known = self._known(ids, self._namespace)
        found = [self._beside(one, known) for one in read]
        wanted = [one for one in found if one.schedule is not None or not one.source.is_taken]
        if not self._is_another:
            self._require_alone([one.request for one in wanted if one.request is not None])
        return wanted

    def _require_alone(self, requests: Sequence[ScheduleRequest]) -> None:
        """Raise ConflictError if another namespace has schedules with the ids and functions of this source."""
        workflows = {one.named.schedule_id: one.definition.workflow for one in requests}
        for namespace in self._runtime.database.read(partial(schedule_queries.namespaces, most=_MOST_NAMESPACES)):
            if namespace == self._namespace:
                continue
            known = self._known(sorted(workflows), namespace)
            same = sorted(name for name, here in known.items() if self._is_same(here, workflows[name]))
            if same:
                raise ConflictError(
                    f"namespace {namespace!r} has {len(same)} of these already, such as {same[0]}: both would fire. "
                    "Import into that namespace, or delete them there. If they came from another source, add "
                    "--another-source."
                )

    def _is_same(self, here: Schedule, workflow: str) -> bool:
        """Return whether a schedule of another namespace may fire, and may have been imported from this source."""
        return (
            here.status in {ScheduleStatus.ACTIVE, ScheduleStatus.PAUSED}
            and self._came_from_here(here)
            and here.definition.workflow == workflow
        )

    def _came_from_here(self, here: Schedule) -> bool:
        return bool(loads(here.definition.labels).get(LABEL) == self._source.kind)

    def _named(self, source: SourceEntry) -> SourceEntry:
        """Return an entry. If its workflow's name is not registered here, replace the name by the function's path."""
        if source.entry is None or source.function is None:
            return source
        if option_checks.is_registered(self._runtime, source.entry["workflow"]):
            return source
        return replace(source, entry={**source.entry, "workflow": source.function})

    def _request(self, source: SourceEntry) -> Imported:
        """Check an entry as `sync` would check it, but import no workflow."""
        if source.entry is None:
            return Imported(source, Outcome.NOT_IMPORTED, source.lost)
        try:
            declared = self._read(labelled(source.entry, self._source.kind))
            named = Named(self._namespace, require_id(declared.schedule_id))
            name = declared.workflow
            is_known = isinstance(name, str) and option_checks.is_registered(self._runtime, name)
            definition = self._define(declared, is_known)
        except InvalidInputError as error:
            return Imported(source, Outcome.NOT_IMPORTED, (f"It is refused: {error}.", *source.lost))
        said = (named, definition, self.waits if source.enabled else self._rests, True, self._context)
        lost = source.lost
        if not is_known and (why := self._why_no_code(definition.workflow)):  # this check does not import the module
            text = (
                f"{definition.workflow} has no code here ({why}): its runs stay blocked until workers have it. "
                "Register a workflow with this name, or check that the working directory is that of your application."
            )
            lost = (*lost, text)
        return Imported(source, Outcome.CREATED, lost, ScheduleRequest(*said, must_have_future=False))

    def _define(self, declared: Declaration, is_known: bool) -> Definition:
        name = declared.workflow
        if not isinstance(name, str) or not (is_known or is_path(name)):
            reason = "is neither registered here nor the dotted path of a function: register a workflow with this name"
            raise InvalidInputError("workflow", f"{name!r} {reason}")
        spec, options = unfold(declared.spec, declared.options)
        # `new_definition` usually imports the function and reads its decorator's options. With `is_external`, it
        # imports nothing.
        given = {**options, "managed_by": MANAGED_BY}
        return option_checks.new_definition(self._runtime, name, spec, given, is_external=not is_known)

    def _known(self, ids: Sequence[str], namespace: str) -> dict[str, Schedule]:
        found: dict[str, Schedule] = {}
        for batch in batches(ids):
            found |= self._runtime.database.read(
                partial(changes.find_all_named, namespace=namespace, schedule_ids=batch)
            )
        return found

    def _beside(self, one: Imported, known: Mapping[str, Schedule]) -> Imported:
        """Return an entry with its outcome and request, given the schedules that already exist here."""
        if one.request is None or (here := known.get(one.request.named.schedule_id)) is None:
            return one
        if not self._came_from_here(here):
            text = f"Schedule {here.schedule_id} was not made by an import and is not changed: rename or delete it."
            return replace(one, outcome=Outcome.TAKEN, lost=(text,), request=None)
        request = None
        if self._waits(here) or (_is_paused_since_created(here) and here.note == self._rests):
            request = one.request._replace(note=self.waits if one.source.enabled else None, paused=None)
        elif one.source.enabled and (does := _does_otherwise(here.definition, one.request.definition)):
            text = (
                f"Schedule {here.schedule_id} calls {does} and is not changed: rename or delete it, or import this "
                "source into another namespace."
            )
            return replace(one, outcome=Outcome.TAKEN, lost=(text,), request=None)
        return replace(one, outcome=Outcome.UNCHANGED, request=request, schedule=here)


def labelled(entry: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return an entry with the label that names the kind of its source."""
    return {**entry, "labels": {**entry.get("labels", {}), LABEL: kind}}


def _does_otherwise(ours: Definition, theirs: Definition) -> str:
    """Return what our schedule calls, in words, if the source calls something else. Otherwise return an empty text."""
    if ours.workflow != theirs.workflow:
        return ours.workflow
    return f"{ours.workflow} with other arguments" if ours.action != theirs.action else ""


def _is_paused_since_created(schedule: Schedule) -> bool:
    """Return whether a schedule has been paused since an import created it. If so, no person paused it."""
    return schedule.status is ScheduleStatus.PAUSED and schedule.paused_at == schedule.created_at


def _in_batches(
    work: Callable[[Iterable[Sequence[ScheduleRequest]]], None],
    requests: Sequence[ScheduleRequest],
    done: Container[str],
) -> dict[str, str]:
    """Do `work` on requests in batches. If a batch fails, do `work` on each of its requests that is not in `done`.

    Return the errors of requests that fail even then, by schedule id. Raises if the database is unavailable.
    """
    failed: dict[str, str] = {}
    try:
        work(batches(requests))
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - one bad request must not stop the others
        for one in requests:
            if one.named.schedule_id in done:
                continue
            try:
                work([[one]])
            except BackendUnavailableError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                failed[one.named.schedule_id] = _told(error, one.named.schedule_id)
    return failed


def _told(error: Exception, schedule_id: str) -> str:
    """Log the error of one entry, and return it as one line."""
    about = {"action": "import_entry_failed", "schedule_id": schedule_id}
    _log.warning("the import of schedule %s is not complete", schedule_id, exc_info=error, extra=about)
    return explain(error) or type(error).__name__


def _failed(one: Imported, why: str) -> Imported:
    return replace(one, outcome=Outcome.FAILED, lost=(f"It failed; import again to continue: {why}", *one.lost))


def _as_at_first(one: Imported, outcomes: Mapping[str, Outcome]) -> Imported:
    """Return an entry with its outcome from the first step. If a step failed, keep the failure."""
    if one.outcome is Outcome.FAILED:
        return one
    first = outcomes.get(one.source.source_id, one.outcome)
    return one if first is Outcome.FAILED else replace(one, outcome=first)


def _with_outcome(
    one: Imported,
    outcomes: Mapping[str, str],
    failed: Mapping[str, str],
    written: Mapping[str, Schedule] | None = None,
) -> Imported:
    if one.request is None:
        return one
    schedule_id = one.request.named.schedule_id
    if schedule_id in failed:
        return _failed(one, failed[schedule_id])
    schedule = (written or {}).get(schedule_id, one.schedule)
    return replace(one, outcome=Outcome(outcomes[schedule_id]), schedule=schedule)
