"""The command `import`: copy the schedules of another scheduler, and report what could not be imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from rqsched.cli.arguments import DryRun
from rqsched.cli.command import FAILED, Session, command
from rqsched.cli.output import progress_bar, shown
from rqsched.config import Settings
from rqsched.errors import InvalidInputError
from rqsched.features.declarations import schedule_file
from rqsched.features.declarations.schedule_file import declaration_of
from rqsched.importers.handing_over import Fires, HandingOver, Imported, Outcome, labelled
from rqsched.importers.kinds import OPENERS
from rqsched.importers.source import Reading, Source
from rqsched.when.zones import require_timezone

app = typer.Typer(add_completion=False)
_VARIABLE = re.compile(r"env:([A-Z_][A-Z0-9_]*)")
_SHOWN = 5
"""The maximum number of ids that a sentence about many schedules lists."""
_DISABLE = "run this with --disable-source, and take out of your application what schedules them there"
_HEAD = (
    "Where the import wrote these, too, they wait there until --disable-source, and a sync leaves them so.",
    "Elsewhere a sync makes them fire at once: disable the source first.",
)
_LEFT = {Outcome.NOT_IMPORTED, Outcome.TAKEN}

Kind = Annotated[
    str, typer.Argument(metavar="KIND", help=f"One of {', '.join(OPENERS)}.", autocompletion=lambda: list(OPENERS))
]
Address = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Where the other scheduler keeps its schedules; env:NAME reads it from that environment variable.",
    ),
]


@command(app, "import")
def import_(
    session: Session,
    kind: Kind,
    source: Address,
    dry_run: DryRun = False,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="FILE", help="Also write a file for `rqsched sync`; with --dry-run nothing else."
        ),
    ] = None,
    disable_source: Annotated[
        bool, typer.Option("--disable-source", help="Let the source fire them no more, and then ours.")
    ] = False,
    source_is_stopped: Annotated[
        bool, typer.Option("--source-is-stopped", help="Let ours fire: you have stopped the source yourself.")
    ] = False,
    trust_source: Annotated[
        bool,
        typer.Option(
            "--trust-source",
            help="Run code of the source: its configuration file, or its pickles, in a process with limits.",
        ),
    ] = False,
    another_source: Annotated[
        bool,
        typer.Option(
            "--another-source", help="What another namespace has of the same ids came from another source than this."
        ),
    ] = False,
    timezone: Annotated[
        str | None,
        typer.Option("--timezone", help="The zone of the source's host, for cron expressions; default UTC."),
    ] = None,
) -> None:
    """Bring over the schedules of another scheduler. They stay paused until you disable the originals."""
    if kind not in OPENERS:
        raise InvalidInputError("KIND", f"{kind!r} is not one of {', '.join(OPENERS)}")
    if disable_source and source_is_stopped:
        raise InvalidInputError("--source-is-stopped", "contradicts --disable-source; give one")
    if timezone is not None:
        require_timezone(timezone)
    if write is not None:
        schedule_file.require_format(write)
    with closing(OPENERS[kind](_address(source), Reading(trust_source, timezone))) as opened:
        if disable_source and opened.cannot_disable:
            raise InvalidInputError("--disable-source", opened.cannot_disable)
        said: list[str] = []
        with progress_bar("Handing over", None) as advance:
            moving = HandingOver(
                session.scheduler,
                opened,
                declaration_of,
                namespace=session.namespace,
                is_another=another_source,
                context=session.context,
                progress=advance,
            )
            if dry_run:
                found = moving.preview()
            elif disable_source:
                found, done = moving.hand_over()
                said = [done] if done else []
            else:
                found = moving.resume() if source_is_stopped else moving.write()
        if write is not None:
            _write(write, kind, found, session.settings)
        said += [*_advice(moving, opened, found), *_place(session.settings)]
        _show(session, opened, found, said, is_preview=dry_run)
    if not all(_is_importable(one) and one.outcome is not Outcome.FAILED for one in found):
        raise typer.Exit(FAILED)


def _address(source: str) -> str:
    """Return SOURCE. For `env:NAME`, return the variable's value. Other users can see arguments, but not variables."""
    variable = _VARIABLE.fullmatch(source)
    if variable is None:
        return source
    if not (address := os.environ.get(variable[1])):
        raise InvalidInputError("SOURCE", f"names the environment variable {variable[1]}, which is not set")
    return address


def _is_importable(one: Imported) -> bool:
    return one.outcome not in _LEFT


def _write(path: Path, kind: str, found: Sequence[Imported], settings: Settings) -> None:
    """Write the imported schedules as a file for `sync`. A comment above each entry says what was lost."""
    written = [
        (labelled(one.source.entry, kind), one.lost) for one in found if one.source.entry and _is_importable(one)
    ]
    text = schedule_file.text_of(
        [schedule_file.tidied(entry, settings) for entry, _ in written],
        schedule_file.require_format(path),
        head=[f"From {kind}, by rqsched import.", *_HEAD],
        remarks={entry["schedule_id"]: lost for entry, lost in written},
    )
    schedule_file.write(path, text)


def _show(
    session: Session, source: Source, found: Sequence[Imported], sentences: Sequence[str], *, is_preview: bool
) -> None:
    rows = [_row(one) for one in found]
    document = {"kind": source.kind, "entries": rows, "notes": list(source.notes), "next": sentences}
    if session.writer.for_programs(rows, document):
        return
    columns = ("source_id", "schedule_id", "timing", "outcome", "fires")
    session.writer.table(("Source", "Schedule ID", "When", "Outcome", "Fires"), [[r[c] for c in columns] for r in rows])
    for sentence, ids in _by_sentence(found).items():
        session.writer.say(shown(f"- {sentence} ({_listed(ids)})"))
    for sentence in source.notes:
        session.writer.say(f"- {sentence}")
    counts = {one: sum(row.outcome is one for row in found) for one in Outcome}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "nothing there"
    session.writer.say(f"{'Would be: ' if is_preview else ''}{told}.")
    for sentence in sentences:
        session.writer.say(shown(sentence))


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more


def _row(one: Imported) -> dict[str, Any]:
    request = one.request
    definition = one.schedule.definition if one.schedule else request.definition if request else None
    entry = one.source.entry or {}
    return {
        "source_id": one.source.source_id,
        "schedule_id": entry.get("schedule_id"),
        "workflow": entry.get("workflow"),
        "timing": definition.parsed_spec.describe() if definition else None,
        "outcome": one.outcome.value,
        "fires": one.fires.value,
        "next_at_source": one.source.next_at,
        "lost": list(one.lost),
    }


def _by_sentence(found: Sequence[Imported]) -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}
    for one in found:
        for sentence in one.lost:
            told.setdefault(sentence, []).append(one.source.source_id)
    return told


def _advice(moving: HandingOver, source: Source, found: Sequence[Imported]) -> Iterator[str]:
    """Yield sentences about where each schedule fires, and about the remaining steps."""
    at_source = f"at {source.kind}"
    where = {fires: [one for one in found if one.fires is fires] for fires in Fires}
    if both := where[Fires.BOTH]:
        yield (
            f"{len(both)} fire {at_source} and here, unless it is stopped: {source.cannot_disable or _DISABLE} "
            f"({_listed(_ids(both))})."
        )
    if waiting := [one for one in where[Fires.SOURCE] if moving.is_waiting(one) or one.outcome is Outcome.CREATED]:
        yield f"{len(waiting)} fire {at_source}; ours wait, paused: {source.cannot_disable or _DISABLE}."
        if late := [one for one in waiting if moving.is_owed(one)]:
            yield (
                f"{len(late)} of them are late there: each fires once, at once, when it is handed over "
                f"({_listed(_ids(late))})."
            )
    if paused := [one for one in where[Fires.SOURCE] if one.is_paused and not moving.is_waiting(one)]:
        yield (
            f"{len(paused)} fire {at_source}: ours were paused here by somebody ({_listed(_ids(paused))}). To move "
            f"them, stop {source.kind} and resume ours; then {source.cannot_disable or _DISABLE}."
        )
    if over := [one for one in where[Fires.SOURCE] if one.schedule is not None and not one.is_paused]:
        yield (
            f"{len(over)} fire {at_source} alone, and ours of the same id are over: delete ours, and run this again "
            f"({_listed(_ids(over))})."
        )
    yield from _advice_on_silent(moving, at_source, where[Fires.NOWHERE])
    if left := [one for one in found if not _is_importable(one)]:
        yield f"{len(left)} are not imported, and stay {at_source} ({_listed(_ids(left))})."
    if failed := [one for one in found if one.outcome is Outcome.FAILED]:
        yield f"{len(failed)} failed, and the others went on: run this again ({_listed(_ids(failed))})."
    if vanished := moving.vanished(found):
        yield (
            f"{len(vanished)} were imported before and are not {at_source} any more, where they fired for the last "
            f"time or were cancelled; ours stay paused: delete them, or resume what is to fire ({_listed(vanished)})."
        )


def _advice_on_silent(moving: HandingOver, at_source: str, silent: Sequence[Imported]) -> Iterator[str]:
    """Yield sentences that say why some schedules fire in no scheduler, and what is left to do."""
    moved = [one for one in silent if moving.is_moving(one)]
    waiting = [one for one in silent if moving.is_waiting(one) and one not in moved]
    resting = [one for one in silent if one.is_paused and not moving.is_waiting(one)]
    if moved:
        yield f"{len(moved)} fire nowhere: they are disabled {at_source}, and ours wait. Run --disable-source again."
    if waiting:
        yield (
            f"{len(waiting)} fire nowhere: somebody disabled them {at_source} while ours waited "
            f"({_listed(_ids(waiting))}). Resume ours where they are to fire here."
        )
    if resting:
        yield f"{len(resting)} fire nowhere: they are disabled {at_source}, and paused here ({_listed(_ids(resting))})."


def _place(settings: Settings) -> Iterator[str]:
    """Yield a warning if no setting names a database, because an application may use another database than ours."""
    if settings.database_url is None:
        yield (
            f"Ours belong to {settings.data_dir}, for RQSCHED_DATABASE_URL is unset. An application with a database of "
            "its own does not fire them: import with its settings, in Django by manage.py rqsched."
        )


def _ids(entries: Sequence[Imported]) -> list[str]:
    return [one.source.source_id for one in entries]
