"""The command `retry`: named runs, or all that failed since an instant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from rqsched.api.run_handle import RunHandle
from rqsched.chain.retrying import DEFAULT_BOUND, RetryRow
from rqsched.cli import outcomes, parsing
from rqsched.cli.command import command
from rqsched.cli.session import Session
from rqsched.errors import ConflictError, InvalidDurationError, InvalidInputError

app = typer.Typer(add_completion=False)

COLUMNS = {"Schedule": "schedule_id", "Instance": "instance_id", "Outcome": "outcome", "Reason": "reason"}


@command(app)
def retry(
    session: Session,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Uids of runs; with --schedule their numbers or instance ids too."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All that failed or were lost since --since.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", help="With --failed: ended since this instant, or so long ago (1h).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="With --failed: ended before this instant.")] = None,
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="ID", help="Only of this schedule.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="With --failed: only of this workflow.")] = None,
    bound: Annotated[
        int, typer.Option("--bound", min=1, help="With --failed: refuse more runs than this.")
    ] = DEFAULT_BOUND,
    failed_targets: Annotated[
        bool,
        typer.Option("--failed-targets", help="Of each run the targets that failed; also if it succeeded."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be retried; write nothing.")] = False,
) -> None:
    """Run again what failed, was lost, cancelled or terminated.

    Each gets one more attempt as the same run. It starts as the overlap policy of its schedule allows; several of one
    schedule run one after another.
    """
    if failed == bool(runs):
        raise InvalidInputError("RUN", "name runs, or pass --failed --since 1h for all that failed since then")
    if not failed and (since or until or workflow):
        raise InvalidInputError("--since", "--since, --until and --workflow need --failed")
    if failed and failed_targets:
        raise InvalidInputError("--failed-targets", "needs the runs; --failed handles failed targets again in any case")
    if not failed:
        rows = _retry_named(session, runs or [], schedule, dry_run=dry_run, failed_targets=failed_targets)
        _show(session, rows, dry_run=dry_run)
        return
    if since is None:
        raise InvalidInputError("--since", "say since when, such as --since 1h or --since 2026-01-31T08:00:00Z")
    found = session.scheduler.retry_failed(
        _since(session, since),
        until=None if until is None else parsing.instant("--until", until),
        schedule_id=schedule,
        workflow=workflow,
        namespace=session.namespace,
        bound=bound,
        dry_run=dry_run,
        context=session.context,
    )
    _show(session, found, dry_run=dry_run)


def _since(session: Session, text: str) -> datetime:
    try:
        return session.scheduler.runtime.now() - parsing.span("--since", text)
    except InvalidDurationError:
        return parsing.instant("--since", text)


def _retry_named(
    session: Session, names: Sequence[str], schedule: str | None, *, dry_run: bool, failed_targets: bool
) -> list[RetryRow]:
    """Find every run before any is retried; one that cannot be is a row that says why."""
    handle = None if schedule is None else session.newest(schedule)
    found = [handle.run(name) if handle else session.scheduler.run(name, namespace=session.namespace) for name in names]
    return [_retry_one(session, run, dry_run=dry_run, failed_targets=failed_targets) for run in found]


def _retry_one(session: Session, run: RunHandle, *, dry_run: bool, failed_targets: bool) -> RetryRow:
    named = run.uid, str(run.lineage.get("schedule_id") or run.schedule_uid), run.instance_id
    try:
        if dry_run:
            run.require_retryable(failed_targets=failed_targets)
            return RetryRow(*named, "would_retry")
        run.retry(failed_targets=failed_targets, context=session.context)
    except ConflictError as error:
        return RetryRow(*named, "skipped", str(error))
    return RetryRow(*named, "buffered" if run.status == "buffered" else "started")


def _show(session: Session, rows: Sequence[RetryRow], *, dry_run: bool) -> None:
    outcomes.show(session.writer, "Retried", rows, COLUMNS, noun="runs", dry_run=dry_run)
