"""Operations: one owner's request as one transaction with its audit event, or a part of its caller's; Redis follows.

The uid of the operation is drawn before the first attempt and written with the row, so that a lost answer to COMMIT is
told from a lost COMMIT, and nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, NamedTuple

from rqsched.chain.caller_transaction import operate_in
from rqsched.chain.notifications.messages import SENTRY_MISSING, has_sentry
from rqsched.chain.quotas import quota_of, require_room_for
from rqsched.chain.runtime import Runtime
from rqsched.core import lifecycle
from rqsched.core.audit import CommandContext
from rqsched.core.change_builder import combined
from rqsched.core.ids import new_uid
from rqsched.core.lifecycle import Identity
from rqsched.core.model import Change, Definition, Run, Schedule, ScheduleStatus, unchanged
from rqsched.core.notifications import Notifications
from rqsched.core.overlap import may_end_others
from rqsched.core.payload import loads
from rqsched.core.policy import OverlapPolicy
from rqsched.errors import (
    InvalidInputError,
    RqschedError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    UnknownWorkflowError,
    VersionConflictError,
)
from rqsched.spec.zones import tzdata_version
from rqsched.store import changes, idempotency, one_change, pruning, registered_workflows
from rqsched.store.caller_transaction import CallerTransaction
from rqsched.store.database import Connection
from rqsched.store.idempotency import Key
from rqsched.workflows import ROUTING

Decide = Callable[[Connection, Schedule, str], Change]
"""Decides about a locked schedule; the text is the operation's uid."""


class Named(NamedTuple):
    """Which schedule a caller means."""

    namespace: str
    """The namespace it lives in."""
    schedule_id: str
    """Its id there, unique among schedules that are not deleted."""


class Request(NamedTuple):
    """What `create` and `upsert` are asked to bring about."""

    named: Named
    """Which schedule."""
    definition: Definition
    """What its owner declares."""
    note: str | None = None
    """Text for people; None leaves a known schedule's note as it is."""
    paused: bool | None = None
    """None leaves a known schedule's status as it is, and creates an active one."""
    context: CommandContext | None = None
    """Who asks and why, for the audit event; None says nothing."""
    keep_next: bool = False
    """Keep the next time even when the timing changed (Waymark)."""
    must_have_future: bool = True
    """Refuse a new schedule that would never fire."""
    key: str | None = None
    """The idempotency key of a create: the same key with the same request returns the same schedule, for a day."""
    answer: Callable[[Schedule], str] | None = None
    """What a surface answers a create with a key: kept with the key, so that a repetition is answered alike."""
    shared: Definition | None = None
    """The definition without its arguments, where many requests share that very object; None when it is its own."""


def operate(
    runtime: Runtime,
    uid: str,
    decide: Decide,
    *,
    version: int | None = None,
    stops: bool = False,
    within: CallerTransaction | None = None,
) -> Schedule:
    """Decide about one incarnation under its lock, write, commit, publish; returns the schedule as it is then.

    Raises ScheduleNotFoundError once it is deleted and VersionConflictError when `version` is given and differs. What
    only `stops` something is done even when Redis belongs to another database; anything else raises
    WrongDatabaseError then.
    """
    if not stops:
        runtime.require_own_redis()
    operation = new_uid(runtime.now())

    def work(connection: Connection) -> Change:
        schedule = changes.lock_one(connection, uid)
        if schedule is not None and schedule.operation == operation:
            return Change(schedule, schedule)
        if schedule is None or schedule.status is ScheduleStatus.DELETED:
            named = (schedule.schedule_id, schedule.namespace) if schedule else (uid, "")
            raise ScheduleNotFoundError(*named)
        if version is not None and version != schedule.version:
            raise VersionConflictError(schedule.schedule_id, version, schedule.version)
        change = decide(connection, schedule, operation)
        require_room_for(runtime, connection, schedule.namespace, [change])
        runtime.notifier.write(connection, [change])
        return change

    return operate_in(within, runtime, work, lambda change: [change]).after


def create(runtime: Runtime, request: Request, *, within: CallerTransaction | None = None) -> Schedule:
    """Write a new schedule; raises ScheduleExistsError when its id is taken.

    Under an idempotency key that created a schedule before, that one is returned, in whatever state it is now. Raises
    WrongDatabaseError, with nothing written, when Redis belongs to another database.
    """
    runtime.require_own_redis()
    uid = new_uid(runtime.now())
    if within is None and (made := _create_alone(runtime, request, uid)) is not None:
        return made
    key = _key_of(request)

    def work(connection: Connection) -> Change:
        namespace, schedule_id = request.named.namespace, request.named.schedule_id
        # The schedule first, then the key: both were committed together, so what sees the schedule sees its key.
        known = changes.lock_named(connection, namespace, [schedule_id]).get(schedule_id)
        made = key and idempotency.made_by(connection, key, runtime.now())
        if made and (earlier := changes.find(connection, made)) is not None:
            return unchanged(earlier)
        if known is not None and known.uid == uid:
            return Change(known, known)
        if known is not None:
            raise ScheduleExistsError(schedule_id, namespace)
        change = created(request, uid, runtime.now())
        require_room_for(runtime, connection, namespace, [change])
        if key is not None:
            answer = request.answer and request.answer(change.after)
            idempotency.hold(connection, key, uid, runtime.now(), answer)
        runtime.notifier.write(connection, [change])
        return change

    return operate_in(within, runtime, work, lambda change: [change], creates=1).after


def _create_alone(runtime: Runtime, request: Request, uid: str) -> Schedule | None:
    """Create a schedule by one statement where nothing but its id must be asked; returns None where it did not."""
    limits = quota_of(runtime, request.named.namespace)
    if request.key is not None or not limits.is_unlimited or not runtime.database.takes_single_statements:
        return None
    try:
        change = created(request, uid, runtime.now())
    except RqschedError:  # but that the id is taken is said first
        return None
    if runtime.notifier.owed([change]):
        return None
    if not runtime.database.transact_alone(lambda connection: one_change.create_alone(connection, change)):
        return None
    runtime.publish([change])
    return change.after


def _key_of(request: Request) -> Key | None:
    """Digest what the owner said, without what we add, to tell two requests under the same key apart."""
    if request.key is None:
        return None
    said = asdict(replace(request.definition, defaults="{}"))
    said["jitter"] = request.definition.jitter.total_seconds()
    if request.definition.notifications == "{}":
        del said["notifications"]  # the release before has no such field, and its keys live for a day
    digest = idempotency.digest_of(request.named.schedule_id, said, request.note, bool(request.paused))
    return Key(request.named.namespace, require_key(request.key), digest)


def created(request: Request, uid: str, now: datetime) -> Change:
    """Decide to create what a request asks for; raises InvalidSpecError for what never fires, where that matters."""
    if request.must_have_future:
        lifecycle.require_future(request.definition.parsed_spec, now)
    return lifecycle.decide_create(
        Identity(uid, request.named.namespace, request.named.schedule_id),
        request.definition,
        now=now,
        paused=bool(request.paused),
        note=request.note,
        tzdata=tzdata_version(),
        context=request.context,
        operation=uid,
    )


def switched(
    connection: Connection,
    change: Change,
    paused: bool,
    now: datetime,
    context: CommandContext | None,
    operation: str,
) -> Change:
    """Add to a change of a schedule that it is paused then, or fires again if it is paused or dead."""
    schedule = change.after
    if paused:
        if not schedule.is_active:
            return change
        return combined(change, lifecycle.decide_pause(schedule, now=now, context=context, operation=operation))
    decide = {ScheduleStatus.PAUSED: lifecycle.decide_resume, ScheduleStatus.DEAD: lifecycle.decide_restart}.get(
        schedule.status
    )
    if decide is None:
        return change
    runs = open_runs(connection, schedule)
    return combined(change, decide(schedule, runs, now=now, context=context, operation=operation))


def open_runs(connection: Connection, schedule: Schedule, overlap: OverlapPolicy | None = None) -> list[Run]:
    """Read what a decision about a locked schedule must see, and lock what it may end; `overlap` is its own policy."""
    found = {schedule.uid: changes.open_runs(connection, [schedule])[schedule.uid]}
    if may_end_others(schedule, overlap):
        found = changes.lock_open_runs(connection, found)
    return found[schedule.uid]


def purge(runtime: Runtime, uid: str) -> None:
    """Remove a deleted schedule's row with its runs, backfills, audit events and keys, for good.

    The jobs of runs that wait on their queues are withdrawn: a worker would report them as unknown.
    """

    def work(connection: Connection) -> list[Run]:
        waiting = changes.pending_runs(connection, uid)
        pruning.purge_schedule(connection, uid)
        return waiting

    runtime.transport.withdraw(runtime.database.transact(work))


def workflow_defaults(runtime: Runtime, name: str) -> dict[str, Any]:
    """Find the routing defaults of a workflow, registered here or by any other process, or importable by its path.

    Raises UnknownWorkflowError when there is none.
    """
    if (here := runtime.find_workflow(name)) is not None:
        return here.defaults
    row = runtime.database.read(lambda connection: registered_workflows.find(connection, name))
    if row is None:
        return runtime.resolve(name).defaults
    options = {name: value for name, value in loads(row["options"]).items() if name in (*_TOLD, "targets")}
    return {name: row[name] for name in ROUTING if row[name] is not None} | options


_TOLD = ("on_failure", "on_recovery")


def require_notifications(runtime: Runtime, options: Mapping[str, Any]) -> None:
    """Check that what a schedule's notifications need is here: the workflows they run, the secret, sentry-sdk.

    Raises UnknownWorkflowError, or InvalidInputError that names the option.
    """
    Notifications().with_options({name: options[name] for name in (*_TOLD, "notifications") if name in options})
    for option in _TOLD:
        if isinstance(name := options.get(option), str):
            try:
                workflow_defaults(runtime, name)
            except UnknownWorkflowError as error:
                error.add_note(f"named by {option}")
                raise
    wanted = options.get("notifications")
    if not isinstance(wanted, Mapping):
        return
    if wanted.get("webhook") is not None and runtime.settings.webhook_secret is None:
        raise InvalidInputError(
            "notifications.webhook", "is signed: set RQSCHED_WEBHOOK_SECRET here and in the workers"
        )
    if wanted.get("sentry") and not has_sentry():
        raise InvalidInputError("notifications.sentry", SENTRY_MISSING)


def with_named_targets(runtime: Runtime, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose `targets` is the name of a function that is registered somewhere or importable here.

    Raises UnknownWorkflowError, or InvalidInputError that names the option.
    """
    targets = options.get("targets")
    if targets is None:
        return dict(options)
    if not isinstance(targets, str) and not callable(targets):
        raise InvalidInputError("targets", f"{targets!r} is neither a function that returns ids nor the name of one")
    name = runtime.name_of(targets)
    try:
        workflow_defaults(runtime, name)
    except UnknownWorkflowError as error:
        error.add_note("named by targets")
        raise
    return {**options, "targets": name}


def require_connection(runtime: Runtime, name: str | None) -> None:
    """Check that a schedule's connection is a configured one; raises InvalidInputError."""
    known = runtime.settings.connections
    if name is not None and name not in known:
        configured = ", ".join(sorted(known)) or "none is"
        raise InvalidInputError("connection", f"{name!r} is not configured ({configured}); see RQSCHED_CONNECTIONS")


def require_queue(runtime: Runtime, name: str | None) -> None:
    """Check that runs do not go to the control queue; raises InvalidInputError.

    Workers of the control queue take every id on it for a link's, so such a run would never start.
    """
    if name is not None and name == runtime.settings.control_queue:
        reason = "is the control queue, which carries links only; name another, or leave it out for the default one"
        raise InvalidInputError("queue", f"{name!r} {reason}")


def is_registered(runtime: Runtime, name: str) -> bool:
    """Tell whether some process registered a workflow of this name; dotted paths do not count."""
    if runtime.find_workflow(name) is not None:
        return True
    return runtime.database.read(lambda connection: registered_workflows.find(connection, name)) is not None


def require_key(key: str) -> str:
    """Check an idempotency key: 1 to 255 printable characters; raises InvalidInputError."""
    if not isinstance(key, str) or not 1 <= len(key) <= 255 or not key.isprintable():
        raise InvalidInputError("idempotency_key", "must be 1 to 255 printable characters")
    return key
