"""The commands `hold` and `release`: nothing begins, in any namespace, until an operator says so."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from rqsched.api.scheduler import Scheduler
from rqsched.cli import arguments
from rqsched.cli.command import Session, command
from rqsched.cli.output import shown
from rqsched.core.hold import Hold, ReleasePreview

app = typer.Typer(add_completion=False)

Since = Annotated[
    str | None,
    typer.Option("--since", metavar="INSTANT", help="With --missed: only what is due since then; ISO 8601."),
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
        _list(session, session.scheduler.holds())
        return
    if preview:
        found = session.scheduler.preview_release(since=_instant(since), missed=missed)
        _show(session, found)
        return
    with closing(Scheduler.from_env(settings=session.settings)) as scheduler:  # whose database may be away
        held = scheduler.hold(session.reason, context=session.context)
    session.writer.record({"held": True, **held.to_dict()}, f"Everything is {held}, in {_places(held)}.")


@command(app)
def release(
    session: Session,
    since: Since = None,
    missed: AsMissed = False,
    cancel_pending: Annotated[
        bool, typer.Option("--cancel-pending", help="Cancel every run that waits to begin.")
    ] = False,
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
    also = [
        *([f"{done.missed} occurrence(s) of {done.schedules} schedule(s) are recorded as missed"] if missed else []),
        *([f"{done.cancelled} run(s) cancelled"] if cancel_pending else []),
    ]
    fields = {**asdict(done), "hold": None if done.hold is None else done.hold.to_dict()}
    session.writer.record(fields, "; ".join([what, *also]) + ".")


def _instant(text: str | None) -> datetime | None:
    return None if text is None else arguments.instant("--since", text)


def _places(held: Hold) -> str:
    missing = [name for name in ("Redis", "SQL") if name.lower() not in held.kept_in]
    kept = " and ".join(name for name in ("Redis", "SQL") if name.lower() in held.kept_in) or "this process alone"
    return f"{kept}; {' and '.join(missing)} will be told" if missing and "process" not in held.kept_in else kept


def _list(session: Session, found: Sequence[Hold]) -> None:
    rows = [one.to_dict() for one in found]
    if session.writer.for_programs(rows, rows):
        return
    if not found:
        session.writer.say("Nothing has been held.")
        return
    names = ("since", "by", "reason", "released_at", "released_by", "release_reason")
    columns = ("Held since", "By", "Why", "Released", "By", "Why")
    session.writer.table(columns, [tuple(getattr(one, name) for name in names) for one in found])


def _show(session: Session, found: ReleasePreview) -> None:
    writer = session.writer
    hold = None if found.hold is None else found.hold.to_dict()
    schedules, runs = [asdict(one) for one in found.schedules], [asdict(one) for one in found.runs]
    document: dict[str, Any] = {"hold": hold, "schedules": schedules, "runs": runs, "has_more": found.has_more}
    if writer.for_programs([*schedules, *runs], document):
        return
    writer.say("Nothing is held." if found.hold is None else f"Everything is {found.hold}.")
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
