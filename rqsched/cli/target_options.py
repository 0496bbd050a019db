"""The options of create, upsert and update about runs that name targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from rqsched.cli import parsing
from rqsched.cli.schedule_options import given, span
from rqsched.core.policy import FanOutPolicy, OverlapUntil, RetryPolicy, no_retry
from rqsched.core.schedule_options import Options

TARGETS = "Targets"
"""The heading under which `--help` lists them."""


@dataclass(frozen=True)
class FanOut:
    """What becomes of the targets of a run, and what they mean for it."""

    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            help="What returns the ids to call the workflow for: a registered name or a dotted path.",
            rich_help_panel=TARGETS,
        ),
    ] = None
    max_parallel: Annotated[
        int | None,
        typer.Option(
            "--max-parallel", help="The most targets of a run that are handled at once.", rich_help_panel=TARGETS
        ),
    ] = None
    target_timeout: Annotated[
        str | None,
        typer.Option("--target-timeout", help="The longest a target may take.", rich_help_panel=TARGETS),
    ] = None
    target_retries: Annotated[
        int | None,
        typer.Option("--target-retries", help="Attempts of a target after the first.", rich_help_panel=TARGETS),
    ] = None
    target_backoff_base: Annotated[
        str | None,
        typer.Option("--target-backoff-base", help="The first delay of a target's retry.", rich_help_panel=TARGETS),
    ] = None
    target_backoff_factor: Annotated[
        float | None,
        typer.Option("--target-backoff-factor", help="How much each delay grows; default 2.", rich_help_panel=TARGETS),
    ] = None
    target_backoff_cap: Annotated[
        str | None,
        typer.Option("--target-backoff-cap", help="The longest delay; default 10 x base.", rich_help_panel=TARGETS),
    ] = None
    fan_out: Annotated[
        str | None,
        typer.Option(
            "--fan-out", help=f"When a run with targets fails: {', '.join(FanOutPolicy)}.", rich_help_panel=TARGETS
        ),
    ] = None
    overlap_until: Annotated[
        str | None,
        typer.Option(
            "--overlap-until",
            help=f"How long the overlap policy sees a run with targets: {', '.join(OverlapUntil)}.",
            rich_help_panel=TARGETS,
        ),
    ] = None

    def options(self, retry: RetryPolicy | None = None) -> Options:
        """Return the options that were given; those about retries change `retry`."""
        changes = self._retry()
        timeout = self.target_timeout
        return given(
            targets=self.targets,
            max_parallel=self.max_parallel,
            target_timeout=None if timeout is None else parsing.seconds("--target-timeout", timeout),
            target_retry=replace(retry or no_retry(), **changes) if changes else None,
            fan_out=self.fan_out,
            overlap_until=self.overlap_until,
        )

    def _retry(self) -> dict[str, Any]:
        said = {
            "max_retries": self.target_retries,
            "base": span("--target-backoff-base", self.target_backoff_base),
            "factor": self.target_backoff_factor,
            "cap": span("--target-backoff-cap", self.target_backoff_cap),
        }
        return {name: value for name, value in said.items() if value is not None}
