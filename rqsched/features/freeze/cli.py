"""The commands `freeze` and `thaw`: begin and end a freeze of a namespace or of everything."""

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
from rqsched.kernel.decide.freeze import Freeze, ThawPreview
from rqsched.kernel.decide.results import number_of

app = typer.Typer(add_completion=False)

Where = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="The namespace; default: --namespace, or RQSCHED_NAMESPACE.")
]
Everything = Annotated[bool, typer.Option("--everything", help="Every namespace at once: for a restore, say.")]


class Missed(StrEnum):
    """The occurrences that a thaw fires for each due schedule."""

    ONE = "one"
    """The oldest occurrence."""
    ALL = "all"
    """All occurrences, up to the schedule's `missed_limit`."""
    NONE = "none"
    """No occurrence."""


ThawMissed = Annotated[
    Missed | None,
    typer.Option(
        "--missed",
        help="What fires of each schedule that is due, instead of what its policy says: the oldest occurrence, all up "
        "to its missed_limit, or none. The rest is recorded as missed.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="INSTANT", help="With --missed none: only what is due since then; ISO 8601."),
]


@command(app)
def freeze(
    session: Session,
    where: Where = None,
    everything: Everything = False,
    listed: Annotated[bool, typer.Option("--list", help="Freeze nothing: list what is frozen.")] = False,
    history: Annotated[
        bool,
        typer.Option("--history", help="Freeze nothing: list the freezes that there were, who ended them and why."),
    ] = False,
) -> None:
    """Let nothing begin in a namespace, or anywhere, until `thaw`.

    Freeze a namespace while a tenant moves, and everything before a restore, or while something is wrong. Runs that
    have begun go on. --reason says why.
    """
    namespace = _namespace(session, where, everything=everything)
    if listed and history:
        raise InvalidInputError("--list", "and --history were both given; give one of them")
    if listed:
        _list(session, session.scheduler.frozen(), "Nothing is frozen.")
    elif history:
        found = session.scheduler.freezes(everything=everything, namespace=namespace)
        _list(session, found, f"There has been no freeze of {_named(namespace)}.")
    else:
        with closing(Scheduler.from_env(settings=session.settings)) as scheduler:  # its database may be down
            reason, by = session.reason, session.context
            frozen = scheduler.freeze(reason, everything=everything, namespace=namespace, context=by)
        places = f", in {_places(frozen)}" if everything else ""
        session.writer.record({"frozen": True, **frozen.to_dict()}, f"{_upper(_named(namespace))} is {frozen}{places}.")


@command(app)
def thaw(
    session: Session,
    where: Where = None,
    everything: Everything = False,
    missed: ThawMissed = None,
    since: Since = None,
    cancel_pending: Annotated[
        bool, typer.Option("--cancel-pending", help="Cancel every run that waits to begin.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Thaw nothing: show what would fire, and which runs wait.")
    ] = False,
) -> None:
    """Let a namespace, or everything, begin again.

    Due schedules fire by their policies. `--preview` shows what the same options would do.
    """
    namespace = _namespace(session, where, everything=everything)
    wanted: dict[str, Any] = {
        "everything": everything, "namespace": namespace, "missed": _said(missed), "since": _instant(since),
    }  # fmt: skip
    if preview:
        _show(session, session.scheduler.preview_thaw(**wanted), namespace)
        return
    done = session.scheduler.thaw(
        **wanted,
        cancel_pending=cancel_pending,
        reason=session.reason,
        context=session.context,
    )
    what = _named(namespace)
    told = [f"There was no freeze of {what}" if done.freeze is None else f"Thawed: {what} was {done.freeze}"]
    if missed is not None:
        fired = f"{number_of(done.fired, 'occurrence')} fired, {done.missed} recorded as missed"
        told.append(f"due: {number_of(done.schedules, 'schedule')} with {fired}")
    told += [f"{number_of(done.cancelled, 'run')} cancelled"] if cancel_pending else []
    fields = {**asdict(done), "freeze": None if done.freeze is None else done.freeze.to_dict()}
    session.writer.record(fields, "; ".join(told) + ".")


def _said(missed: Missed | None) -> Any:
    return None if missed is None else missed.value


def _namespace(session: Session, where: str | None, *, everything: bool) -> str | None:
    """Return the namespace that the argument or the option names; None for everything."""
    if everything and (where is not None or session.namespace is not None):
        raise InvalidInputError("namespace", "and --everything were both given; give one of them")
    if where is not None and session.namespace not in {None, where}:
        raise InvalidInputError(
            "namespace", f"is {where!r} and, by --namespace, {session.namespace!r}; give one of them"
        )
    if everything:
        return None
    return session.named if where is None else where


def _named(namespace: str | None) -> str:
    return "everything" if namespace is None else f"namespace {namespace}"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _instant(text: str | None) -> datetime | None:
    return None if text is None else arguments.instant("--since", text)


def _places(freeze: Freeze) -> str:
    missing = [name for name in ("Redis", "SQL") if name.lower() not in freeze.kept_in]
    kept = " and ".join(name for name in ("Redis", "SQL") if name.lower() in freeze.kept_in) or "this process alone"
    return f"{kept}; {' and '.join(missing)} will be told" if missing and "process" not in freeze.kept_in else kept


def _list(session: Session, found: Sequence[Freeze], nothing: str) -> None:
    rows = [one.to_dict() for one in found]
    if session.writer.for_programs(rows, rows):
        return
    if not found:
        session.writer.say(nothing)
        return
    names = ("since", "by", "reason", "thawed_at", "thawed_by", "thaw_reason")
    columns = ("Namespace", "Since", "By", "Why", "Ended", "By", "Why")
    session.writer.table(columns, [(one.namespace or "all", *(getattr(one, name) for name in names)) for one in found])


def _show(session: Session, found: ThawPreview, namespace: str | None) -> None:
    writer = session.writer
    freeze = None if found.freeze is None else found.freeze.to_dict()
    schedules, runs = [asdict(one) for one in found.schedules], [asdict(one) for one in found.runs]
    has_more = {"has_more_schedules": found.has_more_schedules, "has_more_runs": found.has_more_runs}
    document: dict[str, Any] = {"freeze": freeze, "schedules": schedules, "runs": runs, **has_more}
    if writer.for_programs([*schedules, *runs], document):
        return
    what = _named(namespace)
    writer.say(f"There is no freeze of {what}." if found.freeze is None else f"{_upper(what)} is {found.freeze}.")
    fires = sum(len(one.fires) for one in found.schedules)
    missed = sum(one.missed for one in found.schedules)
    more = "+" if found.has_more_schedules else ""
    due = f"{number_of(len(schedules), 'schedule', more)}, with {number_of(fires, 'run', more)} to start"
    writer.say(
        f"Due: {due} and {number_of(missed, 'occurrence', more)} to count as missed. "
        f"Waiting to start: {number_of(len(runs), 'run', '+' if found.has_more_runs else '')}."
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
