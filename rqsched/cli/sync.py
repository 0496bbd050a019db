"""The command `sync`: creates and updates the schedules that a file, or the application, declares.

The file is JSON or TOML with a list of schedules; docs/cli.md describes it. The keys of an entry are `schedule_id`,
`workflow`, when (`cron`, `interval`, `once` or `spec`), and the options of `Scheduler.create`. An unknown key is
refused in an entry, and warned about beside the list; both messages name the nearest key.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from rqsched.api.declarations import Declaration
from rqsched.cli import arguments
from rqsched.cli.arguments import DryRun
from rqsched.cli.command import Session, command
from rqsched.cli.output import progress_bar
from rqsched.core.option_table import OPTIONS, Options
from rqsched.core.results import Synced
from rqsched.errors import InvalidInputError, did_you_mean
from rqsched.spec.spec import Cron, Every, Once, Spec

app = typer.Typer(add_completion=False)
_log = logging.getLogger(__name__)

_CALLED_ELSEWHERE = {"every": "interval"}
"""What Python and flags call a key."""
_WHEN = ("cron", "interval", "once", "spec", "offset", "from_completion", "timezone", "start_at", "end_at")
_OWN = ("schedule_id", "workflow", "note", "paused", "cron_seconds", *_WHEN)
_ENTRIES = "schedules"

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
    dry_run: DryRun = False,
) -> None:
    """Create or update the schedules that a file or the application declares."""
    if file is None:
        declared = session.scheduler.declarations.all()
        if not declared:  # with --prune it would delete everything
            raise InvalidInputError(
                "file", "is not given and the imported modules declare no schedule; name a file, or see RQSCHED_IMPORTS"
            )
    else:
        declared = read(file)
    if dry_run:
        _show(session, session.scheduler.preview_sync(declared, prune=prune, namespace=session.namespace), "Would be: ")
        return
    with progress_bar("Synchronising", len(declared)) as advance:
        synced = session.scheduler.sync(
            declared,
            prune=prune,
            namespace=session.namespace,
            context=session.context,
            progress=lambda *_: advance(1),
        )
    _show(session, synced, "")


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


def read(path: Path) -> list[Declaration]:
    """Read a file of declarations; raises InvalidInputError that names the entry."""
    found = _parse(path)
    entries = found
    if isinstance(found, Mapping):
        entries = found.get(_ENTRIES)
        for name in sorted(set(found) - {_ENTRIES, "$schema"}):  # perhaps a table whose name is misspelt
            hint = did_you_mean(name, [_ENTRIES])
            _log.warning("%s: %s is not a key of this file and is ignored%s", path.name, name, hint)
    if not isinstance(entries, list):
        raise InvalidInputError(path.name, "has no list of schedules; see docs/cli.md for the form")
    return [_entry(index, entry) for index, entry in enumerate(entries)]


def _parse(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix.lower() == ".toml" else "JSON (name it .toml if it is TOML)"
        raise InvalidInputError(path.name, f"is not valid {kind}: {error}") from None
    except OSError as error:
        raise InvalidInputError(path.name, f"cannot be read: {error.strerror}") from None


def _entry(index: int, entry: object) -> Declaration:
    if not isinstance(entry, Mapping):
        raise InvalidInputError(f"schedules[{index}]", f"is a {type(entry).__name__}; write an object")
    fields = {str(name): value for name, value in entry.items()}
    try:
        return _declaration(fields)
    except InvalidInputError as error:
        error.add_note(f"in schedules[{index}] {fields.get('schedule_id', '')}".rstrip())
        raise


def _declaration(fields: Mapping[str, Any]) -> Declaration:
    options = {name: value for name, value in fields.items() if name not in _OWN}
    for name in sorted(set(options) - set(OPTIONS)):
        named = _CALLED_ELSEWHERE.get(name)
        hint = f"; did you mean {named}?" if named else did_you_mean(name, {*OPTIONS, *_OWN})
        raise InvalidInputError(name, f"is not an option{hint or '; docs/cli.md lists them'}")
    for name in ("schedule_id", "workflow"):
        if not isinstance(fields.get(name), str):
            raise InvalidInputError(name, "is missing, or is not a text")
    if not isinstance(fields.get("paused"), bool | None):
        raise InvalidInputError("paused", "must be true or false")
    return Declaration(
        fields["schedule_id"],
        fields["workflow"],
        _spec(fields),
        cast("Options", options),
        fields.get("note"),
        fields.get("paused"),
    )


def _spec(fields: Mapping[str, Any]) -> Spec:
    timezone = fields.get("timezone")
    if "spec" in fields:
        if extra := [name for name in _WHEN if name in fields and name not in {"spec", "timezone"}]:
            raise InvalidInputError(extra[0], "cannot be given beside spec; put it inside spec, or leave spec out")
        return Spec.coerce(fields["spec"], timezone)
    members: list[Cron | Every | Once] = [
        Cron(text, seconds=fields.get("cron_seconds")) for text in _several(fields, "cron")
    ]
    offset = None if "offset" not in fields else arguments.span("offset", fields["offset"])
    from_completion = fields.get("from_completion", False)
    members += [
        Every(arguments.span("interval", value), offset=offset, from_completion=from_completion)
        for value in _several(fields, "interval")
    ]
    members += [Once(arguments.instant("once", value)) for value in _several(fields, "once")]
    if not members:
        raise InvalidInputError("spec", "is missing; give cron, interval, once or spec")
    start_at, end_at = (
        arguments.instant(name, fields[name]) if name in fields else None for name in ("start_at", "end_at")
    )
    return Spec(members, timezone or None, start_at, end_at)


def _several(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name, [])
    return list(value) if isinstance(value, list) else [value]
