"""The methods of a Scheduler that create and update schedules from declarations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidInputError
from rqsched.features.after import upstreams
from rqsched.features.declarations.declarations import SYNC, Declaration, require_distinct
from rqsched.features.quotas import chain as quotas
from rqsched.kernel.chain import create, option_checks
from rqsched.kernel.chain.create import ScheduleRequest
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.decide.define import with_arguments
from rqsched.kernel.decide.model import Change, Definition, Schedule
from rqsched.kernel.decide.options import require_note
from rqsched.kernel.decide.results import Synced
from rqsched.when.calendars import Calendar
from rqsched.when.spec import After, Cron, Every, Once, Spec

T = TypeVar("T")
SYNC_BATCH = 500
"""How many schedules a sync or an import writes in one transaction."""


class PlannedSync(NamedTuple):
    """The effect that a sync would have."""

    synced: Synced
    """The ids of the schedules, by outcome."""
    changes: list[Change]
    """The Changes of the schedules that the sync would create or update, in the order of the declarations."""


def plan_sync(
    scheduler: Any,
    declarations: Iterable[Declaration],
    *,
    delete_removed: bool = False,
    keep: Iterable[str] = (),
    namespace: str | None = None,
    calendars: Sequence[Calendar] = (),
) -> PlannedSync:
    """Compute the effect of a `sync`, with the same checks, and write nothing.

    `calendars` replace the stored calendars of the same names.
    """
    requests = scheduler._requests(declarations, namespace, None)
    done, changes = _nothing_done(), list[Change]()
    for batch in batches(requests):
        for change, outcome in create.preview_upserts(scheduler.runtime, batch, calendars):
            done[outcome].append(change.after.schedule_id)
            if outcome != "unchanged":
                changes.append(change)
    if delete_removed:
        done["removed"] = [handle.schedule_id for handle in scheduler._undeclared(_ids(requests, keep), namespace)]
    return PlannedSync(Synced(**done), changes)


class Syncing:
    """The methods of a Scheduler that create and update schedules from declarations."""

    def sync(
        self: Any,
        declarations: Iterable[Declaration] | None = None,
        *,
        delete_removed: bool = False,
        keep: Iterable[str] = (),
        dry_run: bool = False,
        namespace: str | None = None,
        context: CommandContext | None = None,
        progress: Callable[[str, str], None] | None = None,
    ) -> Synced:
        """Create or update a declared set; with `delete_removed`, delete schedules of earlier syncs that the set lacks.

        The default set is the declarations of this scheduler's decorators and of MachineScheduler. If `from_env` made
        the scheduler, the set includes the declarations of the modules in RQSCHED_IMPORTS; raises ConfigError if one of
        these modules cannot be imported.

        The whole set is checked before anything is written. The quota must have room for the new schedules even before
        others are deleted. A set may be written in parts: `keep` names the schedules of the other parts, which are not
        deleted. `progress` is called with each id and its outcome after the commit, before Redis and subscribers are
        notified. `dry_run` makes the same checks, returns the effect that the sync would have, and writes nothing.
        """
        if declarations is None:
            self.runtime.imports.require()
            declarations = self.declarations.all()
        if dry_run:
            return plan_sync(self, declarations, delete_removed=delete_removed, keep=keep, namespace=namespace).synced
        requests = self._requests(declarations, namespace, context)
        done = _nothing_done()

        def report(schedule: Schedule, outcome: str) -> None:
            done[outcome].append(schedule.schedule_id)
            if progress is not None:
                progress(schedule.schedule_id, outcome)

        create.upsert_batches(self.runtime, batches(requests), report)
        if delete_removed:
            gone = self._undeclared(_ids(requests, keep), namespace)
            for handle in gone:
                handle.delete(reason="removed by sync", context=context)
            done["removed"] = [handle.schedule_id for handle in gone]
        return Synced(**done)

    def _requests(
        self: Any, declarations: Iterable[Declaration], namespace: str | None, context: CommandContext | None
    ) -> list[ScheduleRequest]:
        """Check a whole set and the quota for it; return the requests to write."""
        given = list(declarations)
        require_distinct(given)
        known: dict[object, Definition] = {}
        requests = [self._request(declared, namespace, context, known) for declared in given]
        wanted = {one.named.schedule_id: one.upstream_id for one in requests}
        if any(wanted.values()):
            upstreams.require_all(self.runtime, self._namespace(namespace), wanted)
            places = {schedule_id: place for place, schedule_id in enumerate(upstreams.in_order(wanted))}
            requests.sort(key=lambda one: places[one.named.schedule_id])
        sizes = [[(one.named.schedule_id, one.definition) for one in batch] for batch in batches(requests)]
        quotas.require_room_for_batches(self.runtime, self._namespace(namespace), sizes)
        return requests

    def _request(
        self: Any,
        declared: Declaration,
        namespace: str | None,
        context: CommandContext | None,
        known: dict[object, Definition],
    ) -> ScheduleRequest:
        """Check one declaration and return its request; `known` caches definitions by the inputs of declarations."""
        try:
            shared = self._shared(declared, known)
            definition = with_arguments(shared, declared.options.get("args"), declared.options.get("kwargs"))
        except InvalidInputError as error:
            error.add_note(f"in the declaration of {declared.schedule_id!r}")
            raise
        named = self._named(namespace, declared.schedule_id)
        note = require_note(declared.note)
        said = (named, definition, note, declared.paused, context)
        return ScheduleRequest(*said, must_have_future=False, shared=shared)

    def _shared(self: Any, declared: Declaration, known: dict[object, Definition]) -> Definition:
        """Return the definition of a declaration without its arguments; equal declarations share one object."""
        alike = _said_by(declared)
        definition = None if alike is None else known.get(alike)
        if definition is None:
            options = {name: value for name, value in declared.options.items() if name not in _ARGUMENTS}
            given = {**options, "managed_by": SYNC}
            definition = option_checks.define_new(self.runtime, declared.workflow, declared.spec, given)
            if alike is not None:
                known[alike] = definition
        return definition

    def _undeclared(self: Any, kept: Collection[str], namespace: str | None) -> Sequence[ScheduleHandle]:
        managed = self.iter(namespace=namespace, managed_by=SYNC)
        gone = (handle for handle in managed if handle.schedule_id not in kept)
        return sorted(gone, key=attrgetter("schedule_id"))


_ARGUMENTS = frozenset({"args", "kwargs"})
_SPECS = (str, Cron, Every, Once, After, Spec)
_PLAIN = (str, int, float, timedelta, type(None))


def _said_by(declared: Declaration) -> object | None:
    """Return a cache key of a declaration without its arguments; None if a value is not hashable, such as a list.

    The key includes types, because 1 and True are equal, but only 1 is a valid priority.
    """
    options = [(name, type(value), value) for name, value in declared.options.items() if name not in _ARGUMENTS]
    if not isinstance(declared.spec, _SPECS) or not all(isinstance(value, _PLAIN) for _, _, value in options):
        return None
    said = frozenset(options)
    workflow = declared.workflow if isinstance(declared.workflow, str) else id(declared.workflow)
    return workflow, type(declared.spec), declared.spec, said


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split a set into batches of one transaction each, in order."""
    return chunks(items, SYNC_BATCH)


def _ids(requests: Iterable[ScheduleRequest], keep: Iterable[str]) -> set[str]:
    return {request.named.schedule_id for request in requests} | set(keep)


def _nothing_done() -> dict[str, list[str]]:
    return {"created": [], "updated": [], "unchanged": [], "removed": []}
