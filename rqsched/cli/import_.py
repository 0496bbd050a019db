"""The command `import`: brings the schedules of another scheduler over, and says what each becomes and what is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from rqsched.cli.arguments import DryRun
from rqsched.cli.command import FAILED, Session, command
from rqsched.cli.sync import _declaration as declaration_of
from rqsched.coming_over.handing_over import Fires, HandingOver, Imported, Outcome, labelled
from rqsched.coming_over.kinds import OPENERS
from rqsched.coming_over.source import Reading, Source
from rqsched.errors import InvalidInputError
from rqsched.spec.zones import require_timezone

app = typer.Typer(add_completion=False)
_SHOWN = 5
"""How many ids are listed for a sentence that is true of many."""
_BAD = {Outcome.NOT_IMPORTED, Outcome.TAKEN}

Kind = Annotated[
    str, typer.Argument(metavar="KIND", help=f"One of {', '.join(OPENERS)}.", autocompletion=lambda: list(OPENERS))
]
Address = Annotated[str, typer.Argument(metavar="SOURCE", help="Where the other scheduler keeps its schedules.")]


@command(app, "import")
def import_(
    session: Session,
    kind: Kind,
    source: Address,
    dry_run: DryRun = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="Also write a file for `rqsched sync`; with --dry-run nothing else."),
    ] = None,
    disable_source: Annotated[
        bool, typer.Option("--disable-source", help="Let the source fire them no more, and then ours.")
    ] = False,
    source_is_stopped: Annotated[
        bool, typer.Option("--source-is-stopped", help="Let ours fire: you have stopped the source yourself.")
    ] = False,
    trust_source: Annotated[
        bool, typer.Option("--trust-source", help="Run code of the source: its pickles, its configuration file.")
    ] = False,
    timezone: Annotated[
        str | None,
        typer.Option("--timezone", "--tz", help="The zone of the source's host, for cron expressions; default UTC."),
    ] = None,
) -> None:
    """Bring the schedules of another scheduler over; ours wait, paused, until its are disabled."""
    if kind not in OPENERS:
        raise InvalidInputError("KIND", f"{kind!r} is not one of {', '.join(OPENERS)}")
    if disable_source and source_is_stopped:
        raise InvalidInputError("--source-is-stopped", "contradicts --disable-source; give one")
    if timezone is not None:
        require_timezone(timezone)
    with closing(OPENERS[kind](source, Reading(trust_source, timezone))) as opened:
        if disable_source and opened.cannot_disable:
            raise InvalidInputError("--disable-source", opened.cannot_disable)
        moving = HandingOver(
            session.scheduler, opened, declaration_of, namespace=session.namespace, context=session.context
        )
        said = ""
        if dry_run:
            found = moving.preview()
        elif disable_source:
            found, said = moving.hand_over()
        else:
            found = moving.resume() if source_is_stopped else moving.write()
        if write is not None:
            _write(write, [labelled(one.source.entry, kind) for one in found if one.source.entry and _is_good(one)])
        _show(session, opened, found, moving.vanished(found), said, is_preview=dry_run)
    if not all(map(_is_good, found)):
        raise typer.Exit(FAILED)


def _is_good(one: Imported) -> bool:
    return one.outcome not in _BAD


def _write(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    raise InvalidInputError("--write", f"is not there yet ({path}, {len(entries)} entries)")


def _show(
    session: Session, source: Source, found: Sequence[Imported], vanished: Sequence[str], said: str, *, is_preview: bool
) -> None:
    advice = [*_advice(source, found, vanished)]
    rows = [_row(one) for one in found]
    document = {"kind": source.kind, "entries": rows, "notes": list(source.notes), "done": said, "next": advice}
    if session.writer.for_programs(rows, document):
        return
    columns = ("source_id", "schedule_id", "timing", "outcome", "fires")
    session.writer.table(("Source", "Schedule ID", "When", "Outcome", "Fires"), [[r[c] for c in columns] for r in rows])
    for sentence, ids in _by_sentence(found).items():
        more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
        session.writer.say(f"- {sentence} ({', '.join(ids[:_SHOWN])}{more})")
    for sentence in source.notes:
        session.writer.say(f"- {sentence}")
    counts = {one: sum(row.outcome is one for row in found) for one in Outcome}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or "nothing there"
    session.writer.say(f"{'Would be: ' if is_preview else ''}{told}. {said}".rstrip())
    for sentence in advice:
        session.writer.say(sentence)


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


def _advice(source: Source, found: Sequence[Imported], vanished: Sequence[str]) -> Iterator[str]:
    """Say what fires where, and what is left to do."""

    def listed(ids: Sequence[str]) -> str:
        return ", ".join(ids[:_SHOWN])

    both = [one.source.source_id for one in found if one.fires is Fires.BOTH]
    nowhere = [one.source.source_id for one in found if one.fires is Fires.NOWHERE and one.is_paused]
    waiting = [one for one in found if one.fires is Fires.SOURCE and _is_good(one)]
    left = [one for one in found if not _is_good(one)]
    if both:
        yield (
            f"{len(both)} fire at {source.kind} and here, unless it is stopped ({listed(both)}): run this "
            "with --disable-source, and take what schedules them out of your application."
        )
    if waiting:
        how = source.cannot_disable or "--disable-source disables them there and lets ours fire"
        yield f"{len(waiting)} fire at {source.kind} still; ours wait, paused: {how}."
    if nowhere:
        yield f"{len(nowhere)} fire nowhere: they are disabled at {source.kind}, and paused here ({listed(nowhere)})."
    if left:
        yield f"{len(left)} are not imported and stay at {source.kind}."
    if vanished:
        yield (
            f"{len(vanished)} were imported before and are not at {source.kind} any more: they fired there "
            f"for the last time, or were cancelled. Ours stay paused; delete them ({listed(vanished)})."
        )
