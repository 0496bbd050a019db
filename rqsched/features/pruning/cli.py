"""The commands `prune` and `prune-history`, which delete what is beyond its retention, or older than an instant."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rqsched.cli import arguments
from rqsched.cli.arguments import Yes
from rqsched.cli.command import Session, command, confirm
from rqsched.cli.output import progress_bar
from rqsched.errors import InvalidInputError
from rqsched.features.pruning import store as pruning

app = typer.Typer(add_completion=False)

EveryNamespace = Annotated[bool, typer.Option("--all-namespaces", help="Every namespace, not only this one.")]
_KINDS = ("runs", "targets", "events", "backfills", "deliveries", "tasks")


@command(app)
def prune(
    session: Session,
    retention: Annotated[
        str | None,
        typer.Option("--retention", help="Instead of RQSCHED_RETENTION and the schedules' own: 90d, 1000, '90d 1000'."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go; delete nothing.")] = False,
    every: EveryNamespace = False,
    yes: Yes = False,
) -> None:
    """Delete the runs and history that are beyond their retention. They are gone for good; workers do the same."""
    namespace, where = _scope(session, every=every)
    if not dry_run:
        confirm(f"Delete what is beyond the retention in {where} for good?", yes)
    scheduler = session.scheduler
    total = scheduler.runtime.database.read(lambda connection: pruning.count_schedules(connection, namespace))
    with progress_bar("Pruning", total) as advance:
        done = scheduler.prune(
            retention=retention, namespace=namespace, dry_run=dry_run, progress=lambda step: advance(step.schedules)
        )
    counts = asdict(done)
    told = ", ".join(f"{counts[name]} {name}" for name in _KINDS if counts[name]) or "nothing"
    busy = f"; {done.busy} schedules were busy, run it again" if done.busy else ""
    fields = counts | {"dry_run": dry_run, "namespace": namespace}
    session.writer.record(fields, f"{'Dry run: would prune' if dry_run else 'Pruned'} {told}{busy}.")


def _scope(session: Session, *, every: bool) -> tuple[str | None, str]:
    """Return the namespace to prune, None for all, and its name for people."""
    namespace = None if every else session.named
    return namespace, "every namespace" if namespace is None else f"namespace {namespace!r}"


@command(app)
def prune_history(
    session: Session,
    before: Annotated[str | None, typer.Option("--before", help="An instant, ISO 8601.")] = None,
    older_than: Annotated[str | None, typer.Option("--older-than", help="An age such as P90D or 720h.")] = None,
    every: EveryNamespace = False,
    yes: Yes = False,
) -> None:
    """Delete audit events recorded before an instant, for good."""
    if (before is None) == (older_than is None):
        raise InvalidInputError("--before", "or --older-than is needed; give one of them")
    scheduler = session.scheduler
    if older_than is not None:
        until = scheduler.runtime.now() - arguments.span("--older-than", older_than)
    else:
        until = arguments.instant("--before", before or "")
    namespace, where = _scope(session, every=every)
    confirm(f"Delete the audit events of {where} recorded before {until.isoformat()} for good?", yes)
    count = scheduler.prune_history(until, namespace=namespace)
    session.writer.record({"pruned": count, "before": until, "namespace": namespace}, f"Pruned {count} event(s).")
