"""The commands `namespace ...`: show what a namespace holds and what its quota allows, or delete everything in it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from rqsched.cli.arguments import Yes
from rqsched.cli.command import Session, command
from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.quota_options import RESOURCES
from rqsched.kernel.decide.results import MOST_EXECUTING, NamespaceData, number_of

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show what a namespace holds, or delete all of it for good."
)

Name = Annotated[str, typer.Argument(metavar="NAMESPACE", help="The namespace.")]


@app.callback()
def namespace() -> None:
    """Show what a namespace holds, or delete all of it for good."""


@command(app)
def usage(
    session: Session,
    every: Annotated[bool, typer.Option("--all-namespaces", help="Every namespace that has a quota.")] = False,
) -> None:
    """Show what a namespace holds, and what its quota allows. Quotas are set by RQSCHED_QUOTAS."""
    scheduler = session.scheduler
    found = scheduler.namespaces.usages() if every else [scheduler.namespaces.usage(namespace=session.namespace)]
    rows = [
        {"namespace": one.namespace, "resource": name, "used": getattr(one, name), "limit": getattr(one.limits, name)}
        for one in found
        for name in RESOURCES
    ]
    if not session.writer.for_programs(rows, rows):
        cells = [(row["namespace"], row["resource"], row["used"], row["limit"]) for row in rows]
        session.writer.table(("Namespace", "Resource", "Used", "Limit"), cells)


@command(app)
def delete(
    session: Session,
    name: Name,
    preview: Annotated[bool, typer.Option("--preview", help="Delete nothing: count what would be deleted.")] = False,
    terminate: Annotated[bool, typer.Option("--terminate", help="Terminate the runs that execute.")] = False,
    yes: Yes = False,
) -> None:
    """Delete everything in a frozen namespace for good, in SQL and in Redis. One line for the audit stays.

    Run `rqsched freeze NAMESPACE` first. If the deletion is interrupted, run the command again. --reason says why.
    """
    scheduler = session.scheduler
    found = scheduler.namespaces.preview_delete(name)
    if preview:
        frozen = "is frozen" if found.is_frozen else f"is not frozen: run `rqsched freeze {name}` first"
        executing = number_of(found.executing, "run", "+" if found.executing >= MOST_EXECUTING else "")
        text = f"Namespace {name} {frozen}. It holds {_told(found)}. Executing now: {executing}."
        session.writer.record(asdict(found), text)
        return
    if found.is_frozen and not yes:
        _ask(found)
    done = scheduler.namespaces.delete(name, session.reason, terminate=terminate, context=session.context)
    session.writer.record(
        asdict(done), f"Namespace {name} is deleted ({_told(done)}); {number_of(done.executing, 'run')} terminated."
    )


def _ask(found: NamespaceData) -> None:
    """Let the user type the name of the namespace; raises InvalidInputError."""
    if not sys.stdin.isatty():
        raise InvalidInputError("--yes", "is missing; without a terminal there is nobody to ask")
    typer.echo(f"This deletes {_told(found)} of namespace {found.namespace} for good.", err=True)
    if typer.prompt("Type the name of the namespace to delete it", err=True) != found.namespace:
        raise InvalidInputError("namespace", "is not the one that was typed; nothing was deleted, repeat the command")


def _told(found: NamespaceData) -> str:
    rows = [f"{name.replace('_', ' ')}: {count}" for name, count in sorted(found.rows.items()) if count]
    return ", ".join(rows) or "nothing"
