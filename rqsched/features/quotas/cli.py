"""The command `usage`: what a namespace holds, and what its quota allows."""

from __future__ import annotations

from typing import Annotated

import typer

from rqsched.cli.command import Session, command
from rqsched.kernel.decide.quota_options import RESOURCES

app = typer.Typer(add_completion=False)


@command(app)
def usage(
    session: Session,
    every: Annotated[bool, typer.Option("--all-namespaces", help="Every namespace that has a quota.")] = False,
) -> None:
    """Show what a namespace holds, and what its quota allows. Quotas are set by RQSCHED_QUOTAS."""
    scheduler = session.scheduler
    found = scheduler.usages() if every else [scheduler.usage(namespace=session.namespace)]
    rows = [
        {"namespace": one.namespace, "resource": name, "used": getattr(one, name), "limit": getattr(one.limits, name)}
        for one in found
        for name in RESOURCES
    ]
    if not session.writer.for_programs(rows, rows):
        cells = [(row["namespace"], row["resource"], row["used"], row["limit"]) for row in rows]
        session.writer.table(("Namespace", "Resource", "Used", "Limit"), cells)
