"""The command `prune`: delete history beyond its retention, and audit events from before an instant."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rqsched.cli import arguments
from rqsched.cli.arguments import Yes
from rqsched.cli.command import Session, command, confirm
from rqsched.cli.output import progress_bar
from rqsched.features.pruning import store as pruning
from rqsched.kernel.decide.results import number_of

app = typer.Typer(add_completion=False)

_KINDS = ("runs", "targets", "events", "backfills", "deliveries", "tasks")


@command(app)
def prune(
    session: Session,
    retention: Annotated[
        str | None,
        typer.Option("--retention", help="Replaces RQSCHED_RETENTION and the schedules' own: 90d, 1000, '90d 1000'."),
    ] = None,
    events_before: Annotated[
        str | None,
        typer.Option("--events-before", help="Also delete all audit events before this instant, or of this age (90d)."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rows; delete nothing.")] = False,
    every: Annotated[bool, typer.Option("--all-namespaces", help="Every namespace, not only this one.")] = False,
    yes: Yes = False,
) -> None:
    """Delete runs and history beyond their retention, permanently. Idle workers do the same by themselves."""
    namespace = None if every else session.named
    scheduler = session.scheduler
    before = None
    if events_before is not None:
        before = arguments.instant_or_age("--events-before", events_before, scheduler.runtime.now())
    if not dry_run:
        where = "every namespace" if namespace is None else f"namespace {namespace!r}"
        also = f", and every audit event recorded before {before.isoformat()}," if before else ""
        confirm(f"Permanently delete the history beyond its retention{also} in {where}?", yes)
    total = scheduler.runtime.database.read(lambda connection: pruning.count_schedules(connection, namespace))
    with progress_bar("Pruning", total) as advance:
        done = scheduler.prune(
            retention=retention,
            events_before=before,
            namespace=namespace,
            dry_run=dry_run,
            progress=lambda step: advance(step.schedules),
        )
    counts = asdict(done)
    told = ", ".join(f"{counts[name]} {name}" for name in _KINDS if counts[name]) or "nothing"
    busy = f"; {number_of(done.busy, 'schedule')} locked, run the command again for these" if done.busy else ""
    fields = counts | {"dry_run": dry_run, "namespace": namespace}
    session.writer.record(fields, f"{'Dry run: would prune' if dry_run else 'Pruned'} {told}{busy}.")
