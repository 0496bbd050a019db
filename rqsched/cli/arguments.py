"""Arguments and options that several commands have, and their completion in a shell.

They are apart from the commands, so that a command of few options is not slowed by many. Without a database, or with
one that does not answer soon, completion offers nothing: it prints no error, starts no server and creates no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from rqsched.cli import parsing
from rqsched.config import Settings
from rqsched.core.model import LastOutcome, ScheduleStatus
from rqsched.core.option_table import METADATA, POLICY
from rqsched.core.page import MAX_PAGE
from rqsched.core.policy import OverlapPolicy
from rqsched.embedded import database_url
from rqsched.errors import RqschedError
from rqsched.store import registered_workflows, schedule_queries
from rqsched.store.database import Connection, Database, DatabaseError, Patience, sqlite_path, with_connect_timeout

_MOST = 100
"""The most ids that are offered."""
_SECONDS = 2
"""How long a connection may take: the user waits for the completion."""


def schedule_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the ids of the namespace that begin with the text, at most 100."""
    named = context.params.get("namespace")
    return _offer(
        lambda connection, settings: schedule_queries.ids(connection, named or settings.namespace, incomplete, _MOST)
    )


def workflow_names(incomplete: str) -> list[str]:
    """Offer the workflows, registered by any process, whose names begin with the text."""
    names = _offer(lambda connection, _: sorted(registered_workflows.read_all(connection)))
    return [name for name in names if name.startswith(incomplete)]


def _offer(read: Callable[[Connection, Settings], list[str]]) -> list[str]:
    try:
        settings = Settings()
        url = _known_url(settings)
        if url is None:
            return []
        with closing(Database(url, patience=Patience(total=timedelta(0)), pooler=settings.database_pooler)) as database:
            return database.read(lambda connection: read(connection, settings))
    except (RqschedError, DatabaseError, OSError):
        return []


def _known_url(settings: Settings) -> str | None:
    """Return the database's URL; None for a file that does not exist: opening it would create it."""
    if settings.database_url is None and not settings.data_dir.exists():
        return None
    url = database_url(settings)
    path = sqlite_path(url)
    if path is not None and not path.is_file():
        return None
    return with_connect_timeout(url, _SECONDS)


Texts = list[str] | None

NewId = Annotated[str, typer.Argument(metavar="SCHEDULE_ID", help="The id, unique in its namespace.")]
ScheduleId = Annotated[
    str, typer.Argument(metavar="SCHEDULE_ID", help="The id in the namespace.", autocompletion=schedule_ids)
]
Note = Annotated[str | None, typer.Option("--note", help="Free text kept with the schedule.", rich_help_panel=METADATA)]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        help=f"What to do while an earlier run is unfinished: {', '.join(OverlapPolicy)}.",
        autocompletion=lambda: list(OverlapPolicy),
        rich_help_panel=POLICY,
    ),
]


@dataclass(frozen=True)
class Matching:
    """The options that choose schedules, as `list` and `bulk` have them."""

    outcome: Annotated[
        list[LastOutcome] | None,
        typer.Option("--outcome", help="Only schedules whose newest run ended so; may be repeated."),
    ] = None
    label: Annotated[Texts, typer.Option("--label", "-l", help="name=value; all must match.")] = None
    owner: Annotated[str | None, typer.Option("--owner", help="Only schedules of this owner.")] = None
    text: Annotated[str | None, typer.Option("--text", help="Only schedules whose id contains this.")] = None
    overdue: Annotated[
        bool | None,
        typer.Option(
            "--overdue/--not-overdue", help="Only schedules without a success for as long as expected, or only others."
        ),
    ] = None

    def filters(self, status: Sequence[ScheduleStatus] | None, workflow: str | None) -> dict[str, Any]:
        """Return the filters of the scheduler; raises InvalidInputError for a blank one."""
        return {
            "status": [one.value for one in status or ()],
            "outcome": [one.value for one in self.outcome or ()],
            "workflow": parsing.given_text("--workflow", workflow),
            "labels": parsing.pairs("--label", self.label or ()),
            "owner": parsing.given_text("--owner", self.owner),
            "text": parsing.given_text("--text", self.text),
            "overdue": self.overdue,
        }


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MAX_PAGE, help="The size of a page.")]
PageToken = Annotated[
    str | None, typer.Option("--page-token", help="Where the page begins: the token that the previous page shows.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Its uid; with --schedule its number or instance id too.")]
ScheduleOfRun = Annotated[str | None, typer.Option("--schedule", metavar="ID", help="The schedule it is one of.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
