"""The command `sync`: creates and updates a declared set of schedules."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rqsched.api.declarations import Declaration, Synced
from rqsched.cli.command import command
from rqsched.cli.output import progress_bar
from rqsched.cli.session import Session
from rqsched.cli.sync_file import read
from rqsched.errors import InvalidInputError

app = typer.Typer(add_completion=False)

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="JSON or TOML; default: what the imported modules declare (RQSCHED_IMPORTS, schedules.py of Django apps).",
    ),
]


@command(app)
def sync(
    session: Session,
    file: File = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete schedules that an earlier sync made and this one lacks.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; write nothing.")] = False,
) -> None:
    """Create or update the schedules that a file or the application declares."""
    declared = _in_code(session) if file is None else read(file)
    if dry_run:
        _show(session, session.scheduler.preview_sync(declared, prune=prune, namespace=session.namespace), "Would be: ")
    else:
        _show(session, _synced(session, declared, prune=prune), "")


def _in_code(session: Session) -> list[Declaration]:
    """Return what the modules declare; none at all is refused, for with --prune it would delete everything."""
    declared = session.scheduler.declarations.all()
    if not declared:
        raise InvalidInputError(
            "file", "is not given and the imported modules declare no schedule; name a file, or see RQSCHED_IMPORTS"
        )
    return declared


def _synced(session: Session, declared: list[Declaration], *, prune: bool) -> Synced:
    with progress_bar("Synchronising", len(declared)) as advance:
        return session.scheduler.sync(
            declared,
            prune=prune,
            namespace=session.namespace,
            context=session.context,
            progress=lambda *_: advance(1),
        )


def _show(session: Session, synced: Synced, intro: str) -> None:
    outcomes = asdict(synced)
    changed = [(schedule_id, name) for name, ids in outcomes.items() for schedule_id in ids]
    if session.writer.is_lines:
        session.writer.lines({"schedule_id": schedule_id, "outcome": name} for schedule_id, name in changed)
        return
    shown = [row for row in changed if row[1] != "unchanged"]
    if session.writer.is_table and shown:
        session.writer.table(("Schedule ID", "Outcome"), shown)
    session.writer.record(outcomes, intro + ", ".join(f"{len(ids)} {name}" for name, ids in outcomes.items()) + ".")
