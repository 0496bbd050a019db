"""The command `retry`: retry runs, and show the outcome of each. The exit code is 4 if a run was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from rqsched.api.run_handle import RunHandle
from rqsched.cli import arguments
from rqsched.cli.arguments import DryRun
from rqsched.cli.command import CONFLICT, Session, command
from rqsched.cli.output import show_outcomes
from rqsched.errors import ConflictError, InvalidInputError
from rqsched.features.retry_on_request.chain import DEFAULT_BOUND, require_retryable
from rqsched.kernel.decide.results import RetryRow

app = typer.Typer(add_completion=False)

_RUNS = {"Schedule": "schedule_id", "Instance": "instance_id", "Outcome": "outcome", "Reason": "reason"}


@command(app)
def retry(
    session: Session,
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Uids of runs; with --schedule their numbers or instance ids too."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All runs that failed or were lost since --since.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", help="With --failed: runs that ended since this instant, or within this time (1h)."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="With --failed: runs that ended before this instant.")
    ] = None,
    schedule: Annotated[str | None, typer.Option("--schedule", metavar="ID", help="Only of this schedule.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="With --failed: only of this workflow.")] = None,
    bound: Annotated[
        int, typer.Option("--bound", min=1, help="With --failed: refuse more runs than this.")
    ] = DEFAULT_BOUND,
    failed_targets: Annotated[
        bool,
        typer.Option("--failed-targets", help="Retry the failed targets of each run, even if the run succeeded."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Retry runs that failed or were lost, cancelled or terminated.

    Each run gets one more attempt. It starts when the overlap policy of its schedule allows: several runs of one
    schedule may have to wait for each other.
    """
    if failed == bool(runs):
        raise InvalidInputError("RUN", "is missing; name runs, or give --failed --since 1h for all recent failures")
    if not failed and (since or until or workflow):
        raise InvalidInputError("--since", "--since, --until and --workflow need --failed")
    if failed and failed_targets:
        raise InvalidInputError("--failed-targets", "needs RUN; --failed retries failed targets in any case")
    if not failed:
        found = [session.run(name, schedule) for name in runs or ()]  # first, so that a wrong name changes nothing
        rows: Sequence[RetryRow] = [
            _retry_one(session, run, dry_run=dry_run, failed_targets=failed_targets) for run in found
        ]
    elif since is None:
        raise InvalidInputError("--since", "is missing; give --since 1h or --since 2026-01-31T08:00:00Z")
    else:
        rows = session.scheduler.runs.retry_failed(
            arguments.instant_or_age("--since", since, session.scheduler.runtime.now()),
            until=None if until is None else arguments.instant("--until", until),
            schedule_id=schedule,
            workflow=workflow,
            namespace=session.namespace,
            bound=bound,
            dry_run=dry_run,
            context=session.context,
        )
    counts = show_outcomes(session.writer, "Retried", rows, _RUNS, noun="runs", dry_run=dry_run)
    if "skipped" in counts:
        raise typer.Exit(CONFLICT)


def _retry_one(session: Session, run: RunHandle, *, dry_run: bool, failed_targets: bool) -> RetryRow:
    named = run.uid, str(run.lineage.get("schedule_id") or run.schedule_uid), run.instance_id
    try:
        if dry_run:
            require_retryable(session.scheduler.runtime, run.uid, failed_targets=failed_targets)
            return RetryRow(*named, "would_retry")
        run.retry(failed_targets=failed_targets, context=session.context)
    except ConflictError as error:
        return RetryRow(*named, "skipped", str(error))
    return RetryRow(*named, "buffered" if run.status == "buffered" else "started")
