"""Arguments and options that several commands have, alone, so that a command of few options is not slowed by many."""

from __future__ import annotations

from typing import Annotated

import typer

from rqsched.cli.completion import schedule_ids
from rqsched.core.option_table import METADATA, POLICY
from rqsched.core.policy import OverlapPolicy

Texts = list[str] | None

NewId = Annotated[str, typer.Argument(metavar="SCHEDULE_ID", help="The id, unique in its namespace.")]
ScheduleId = Annotated[
    str, typer.Argument(metavar="SCHEDULE_ID", help="The id in the namespace.", autocompletion=schedule_ids)
]
Note = Annotated[str | None, typer.Option("--note", help="Free text kept with the schedule.", rich_help_panel=METADATA)]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap-policy",
        "--overlap",
        help=f"What to do while an earlier run is unfinished: {', '.join(OverlapPolicy)}.",
        autocompletion=lambda: list(OverlapPolicy),
        rich_help_panel=POLICY,
    ),
]
