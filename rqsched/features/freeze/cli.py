"""The commands `hold` and `release`, by which nothing begins in any namespace until an operator says so.

`freeze` and `thaw` do the same for one namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from rqsched.api.scheduler import Scheduler
from rqsched.cli import arguments
from rqsched.cli.command import Session, command
from rqsched.cli.output import shown
from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.hold import Hold, Released, ReleasePreview

app = typer.Typer(add_completion=False)

Since = Annotated[
    str | None,
    typer.Option("--since", metavar="INSTANT", help="With --missed: only what is due since then; ISO 8601."),
]
CancelPending = Annotated[bool, typer.Option("--cancel-pending", help="Cancel every run that waits to begin.")]
Where = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="The namespace; default: --namespace, or RQSCHED_NAMESPACE.")
]


class Missed(StrEnum):
    """The occurrences that a thaw fires for each due schedule."""

    ONE = "one"
    """The oldest occurrence."""
    ALL = "all"
    """All, up to its `missed_limit`."""
    NONE = "none"
    """None."""


ThawMissed = Annotated[
    Missed | None,
    typer.Option(
        "--missed",
        help="What fires of each schedule that is due, instead of what its policy says: the oldest occurrence, all up "
        "to its missed_limit, or none. The rest is recorded as missed.",
    ),
]
AsMissed = Annotated[bool, typer.Option("--missed", help="Record what is due as missed instead of firing it.")]


@command(app)
def hold(
    session: Session,
    preview: Annotated[
        bool, typer.Option("--preview", help="Hold nothing: show what a release would do, and which runs wait.")
    ] = False,
    since: Since = None,
    missed: AsMissed = False,
    history: Annotated[
        bool, typer.Option("--history", help="Hold nothing: list the holds that there were, who released them and why.")
    ] = False,
) -> None:
    """Let nothing begin until `rqsched release`, in any namespace: before a restore, or while something is wrong.

    Runs that have begun go on. --reason says why.
    """
    if history:
        _list(session, session.scheduler.holds(), "Nothing has been held.")
        return
    if preview:
        found = session.scheduler.preview_release(since=_instant(since), missed=missed)
        _show(session, found)
        return
    with closing(Scheduler.from_env(settings=session.settings)) as scheduler:  # its database may be down
        held = scheduler.hold(session.reason, context=session.context)
    session.writer.record({"held": True, **held.to_dict()}, f"Everything is {held}, in {_places(held)}.")


@command(app)
def release(
    session: Session,
    since: Since = None,
    missed: AsMissed = False,
    cancel_pending: CancelPending = False,
) -> None:
    """Let everything begin again; what is due fires by each schedule's policy. `rqsched hold --preview` says what."""
    done = session.scheduler.release(
        since=_instant(since),
        missed=missed,
        cancel_pending=cancel_pending,
        reason=session.reason,
        context=session.context,
    )
    what = "Nothing was held" if done.hold is None else f"Released: everything was {done.hold}"
    also = [f"{done.missed} occurrence(s) of {done.schedules} schedule(s) are recorded as missed"] if missed else []
    _record(session, done, [what, *also], cancel_pending=cancel_pending)


@command(app)
def freeze(
    session: Session,
    where: Where = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="Freeze nothing: show what a thaw would do, and which runs wait.")
    ] = False,
    missed: ThawMissed = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Freeze nothing: list the namespaces that are frozen.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option("--history", help="Freeze nothing: list the freezes that there were, who ended them and why."),
    ] = False,
) -> None:
    """Let nothing begin in a namespace until `rqsched thaw`: an outage on purpose, of one tenant or one purpose.

    Runs that have begun go on. --reason says why.
    """
    namespace = _namespace(session, where)
    if listed or history:
        found = session.scheduler.frozen() if listed else session.scheduler.freezes(namespace=namespace)
        _list(session, found, "Nothing is frozen." if listed else f"Namespace {namespace} has not been frozen.")
    elif preview:
        _show(session, session.scheduler.preview_thaw(missed=_said(missed), namespace=namespace), namespace)
    else:
        frozen = session.scheduler.freeze(session.reason, namespace=namespace, context=session.context)
        session.writer.record({"frozen": True, **frozen.to_dict()}, f"Namespace {namespace} is {frozen}.")


@command(app)
def thaw(
    session: Session, where: Where = None, missed: ThawMissed = None, cancel_pending: CancelPending = False
) -> None:
    """Let everything of a namespace begin again; what is due fires by each schedule's policy.

    `rqsched freeze NAMESPACE --preview` says what.
    """
    namespace = _namespace(session, where)
    done = session.scheduler.thaw(
        missed=_said(missed),
        cancel_pending=cancel_pending,
        namespace=namespace,
        reason=session.reason,
        context=session.context,
    )
    told = f"Thawed: namespace {namespace} was {done.hold}"
    what = f"Namespace {namespace} was not frozen" if done.hold is None else told
    also = f"of {done.schedules} schedule(s) {done.fired} occurrence(s) fire and {done.missed} are recorded as missed"
    _record(session, done, [what] if missed is None else [what, also], cancel_pending=cancel_pending)


def _said(missed: Missed | None) -> Any:
    return None if missed is None else missed.value


def _namespace(session: Session, where: str | None) -> str:
    """Return the namespace that the argument or the option names."""
    if where is not None and session.namespace not in {None, where}:
        raise InvalidInputError(
            "namespace", f"is {where!r} and, by --namespace, {session.namespace!r}; give one of them"
        )
    return session.named if where is None else where


def _record(session: Session, done: Released, told: list[str], *, cancel_pending: bool) -> None:
    told += [f"{done.cancelled} run(s) cancelled"] if cancel_pending else []
    fields = {**asdict(done), "hold": None if done.hold is None else done.hold.to_dict()}
    session.writer.record(fields, "; ".join(told) + ".")


def _instant(text: str | None) -> datetime | None:
    return None if text is None else arguments.instant("--since", text)


def _places(held: Hold) -> str:
    missing = [name for name in ("Redis", "SQL") if name.lower() not in held.kept_in]
    kept = " and ".join(name for name in ("Redis", "SQL") if name.lower() in held.kept_in) or "this process alone"
    return f"{kept}; {' and '.join(missing)} will be told" if missing and "process" not in held.kept_in else kept


def _list(session: Session, found: Sequence[Hold], nothing: str) -> None:
    rows = [one.to_dict() for one in found]
    if session.writer.for_programs(rows, rows):
        return
    if not found:
        session.writer.say(nothing)
        return
    names = ("since", "by", "reason", "released_at", "released_by", "release_reason")
    columns = ("Namespace", "Since", "By", "Why", "Ended", "By", "Why")
    session.writer.table(columns, [(one.namespace or "all", *(getattr(one, name) for name in names)) for one in found])


def _show(session: Session, found: ReleasePreview, namespace: str | None = None) -> None:
    writer = session.writer
    hold = None if found.hold is None else found.hold.to_dict()
    schedules, runs = [asdict(one) for one in found.schedules], [asdict(one) for one in found.runs]
    document: dict[str, Any] = {"hold": hold, "schedules": schedules, "runs": runs, "has_more": found.has_more}
    if writer.for_programs([*schedules, *runs], document):
        return
    what = "Everything" if namespace is None else f"Namespace {namespace}"
    nothing = "Nothing is held." if namespace is None else f"{what} is not frozen."
    writer.say(nothing if found.hold is None else f"{what} is {found.hold}.")
    fires = sum(len(one.fires) for one in found.schedules)
    missed = sum(one.missed for one in found.schedules)
    more = ", and more" if found.has_more else ""
    writer.say(
        f"{len(schedules)} schedule(s) are due: {fires} run(s) would start, {missed} occurrence(s) would be missed; "
        f"{len(runs)} run(s) wait{more}."
    )
    for one in found.schedules:
        if one.error is not None:
            writer.say(f"{one.namespace}/{one.schedule_id} cannot be decided: {one.error}")
    if schedules:
        columns = ("Namespace", "Schedule", "Due", "Fires", "Missed", "Skipped", "Next")
        cells = [
            (one.namespace, one.schedule_id, one.due_at, _times(one.fires), one.missed, one.skipped, one.next_at)
            for one in found.schedules
        ]
        writer.table(columns, cells)
    if runs:
        names = ("namespace", "schedule_id", "uid", "status", "attempt", "occurrence_at")
        of_runs = ("Namespace", "Schedule", "Run", "Status", "Attempt", "Occurrence")
        writer.table(of_runs, [tuple(getattr(one, name) for name in names) for one in found.runs])


def _times(fires: list[datetime]) -> str:
    first = ", ".join(shown(one) for one in fires[:2])
    return f"{first} and {len(fires) - 2} more" if len(fires) > 2 else first
