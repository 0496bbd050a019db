"""Arguments and options that several commands share: their types, the reading of their texts, and shell completion.

An error about a text names the option and says what to write.

This module is separate from the commands, so that no command loads the options of the others. If there is no database,
or if it does not answer soon, completion offers nothing. Completion prints no error, starts no server and creates no
file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from typing import Annotated, Any

import typer

from rqsched import OnResume, OverlapPolicy
from rqsched.api import schedules as schedule_queries
from rqsched.api.database import Connection, Database, DatabaseError, Patience, sqlite_path, with_connect_timeout
from rqsched.api.values import MAX_PAGE
from rqsched.config import Settings
from rqsched.embedded import database_url
from rqsched.errors import InvalidDurationError, InvalidInputError, InvalidPayloadError, RqschedError
from rqsched.types import LastOutcome, ScheduleStatus
from rqsched.when.duration import parse_span

_MOST = 100
"""The maximum number of ids that completion offers."""
_SECONDS = 2
"""How long a connection may take. It is short, because the user waits for the completion."""
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_FORMS = {"list": "list, such as '[1, \"eu\"]'", "dict": 'object, such as \'{"region": "eu"}\''}


def schedule_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the ids of the namespace that begin with the text, at most 100."""
    named = context.params.get("namespace")
    return _offer(
        lambda connection, settings: schedule_queries.ids(connection, named or settings.namespace, incomplete, _MOST)
    )


def workflow_names(incomplete: str) -> list[str]:
    """Offer the names of registered workflows that begin with the text."""
    from rqsched.api import workflows as registered_workflows  # noqa: PLC0415 - for completion only

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
    """Return the URL of the database; None for a file that does not exist, because opening it would create it."""
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
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="INSTANT", help="The pause ends then, or in so long (2h)."),
]
Note = Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Free text kept with the schedule.")]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        help="While a run is unfinished: skip ...",
        metavar="POLICY",
        autocompletion=lambda: list(OverlapPolicy),
    ),
]

WhereResumed = Annotated[
    str | None, typer.Option("--on-resume", metavar="WHERE", help=f"Continue: {', '.join(OnResume)}.")
]
IdempotencyKey = Annotated[
    str | None, typer.Option("--idempotency-key", metavar="KEY", help="A key starts a run once.")
]


@dataclass(frozen=True)
class Matching:
    """The options that choose schedules in `list` and `bulk`."""

    outcome: Annotated[
        list[LastOutcome] | None,
        typer.Option("--outcome", metavar="OUTCOME", help="Whose last run ended so; may be repeated."),
    ] = None
    label: Annotated[Texts, typer.Option("--label", "-l", metavar="NAME=VALUE", help="All must match.")] = None
    owner: Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Of this owner.")] = None
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="Whose id contains this.")] = None
    overdue: Annotated[bool, typer.Option("--overdue", help="Without a success for too long.")] = False

    def filters(self, status: Sequence[ScheduleStatus] | None, workflow: str | None) -> dict[str, Any]:
        """Return the filters of the scheduler; raises InvalidInputError for a blank text."""
        return {
            "status": [one.value for one in status or ()],
            "outcome": [one.value for one in self.outcome or ()],
            "workflow": given_text("--workflow", workflow),
            "labels": pairs("--label", self.label or ()),
            "owner": given_text("--owner", self.owner),
            "text": given_text("--text", self.text),
            "overdue": self.overdue or None,
        }


@dataclass(frozen=True)
class Listed(Matching):
    """The options that choose schedules in `list`."""

    status: Annotated[
        list[ScheduleStatus] | None,
        typer.Option("--status", metavar="STATUS", help="Of this status; may be repeated."),
    ] = None
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", metavar="NAME", help="Of this workflow.", autocompletion=workflow_names),
    ] = None
    query: Annotated[str | None, typer.Option("--query", metavar="QUERY", help="Such as 'Status = \"paused\"'.")] = None
    created_since: Annotated[
        str | None, typer.Option("--created-since", metavar="INSTANT", help="Created then or later.")
    ] = None
    created_until: Annotated[str | None, typer.Option("--created-until", metavar="INSTANT", help="Created before.")] = (
        None
    )
    next_since: Annotated[
        str | None, typer.Option("--next-since", metavar="INSTANT", help="Fires next then or later.")
    ] = None
    next_until: Annotated[str | None, typer.Option("--next-until", metavar="INSTANT", help="Fires next before.")] = None

    def all_filters(self) -> dict[str, Any]:
        """Return the filters of the scheduler; raises InvalidInputError for a blank text or a naive instant."""
        times = {name: getattr(self, name) for name in ("created_since", "created_until", "next_since", "next_until")}
        return {
            **self.filters(self.status, self.workflow),
            "query": given_text("--query", self.query),
            **{name: instant(f"--{name.replace('_', '-')}", text) for name, text in times.items() if text},
        }


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MAX_PAGE, metavar="N", help="The size of a page.")]
PageToken = Annotated[str | None, typer.Option("--page-token", metavar="TOKEN", help="Of the page before this one.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Its uid; with --schedule its number or instance id too.")]
ScheduleOfRun = Annotated[str | None, typer.Option("--schedule", metavar="ID", help="The schedule it is one of.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def given_text(option: str, text: str | None) -> str | None:
    """Return the text of an option; raises InvalidInputError for a blank text, such as from an unset shell variable."""
    if text is not None and not text.strip():
        raise InvalidInputError(option, "is blank; give a value, or leave the option out")
    return text


def instant(option: str, text: object, zone: tzinfo | None = None) -> datetime:
    """Read an ISO 8601 instant; raises InvalidInputError. Dates and numbers from a file are refused, too.

    An instant without an offset is a local time of `zone`. If `zone` is None, such an instant is refused.
    """
    try:
        value = datetime.fromisoformat(text) if isinstance(text, str) else text
    except ValueError:
        value = None
    if not isinstance(value, datetime):
        raise InvalidInputError(option, f"{str(text)!r} is not a valid instant; write 2026-01-31T08:00:00Z")
    if value.tzinfo is None and zone is not None:
        return value.replace(tzinfo=zone)
    if value.tzinfo is None:
        raise InvalidInputError(option, f"{text!s} names no timezone; add Z or an offset such as +01:00")
    return value


def day(option: str, value: object) -> date:
    """Read a day from a text, or from a date that a file contains; raises InvalidInputError."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise InvalidInputError(option, f"{str(value)[:32]!r} is not a date; write 2028-12-31") from None


def instant_ahead(option: str, text: str, now: datetime) -> datetime:
    """Read an instant. A length is also accepted: it is added to now."""
    try:
        return now + span(option, text)
    except OverflowError:
        raise InvalidInputError(option, f"{text!r} ends after the year 9999; give a shorter length") from None
    except InvalidDurationError:
        return instant(option, text)


def instant_or_age(option: str, text: str, now: datetime) -> datetime:
    """Read an instant. A length is also accepted: it is subtracted from now."""
    try:
        return now - span(option, text)
    except OverflowError:
        raise InvalidInputError(option, f"{text!r} begins before the year 1; give a shorter length") from None
    except InvalidDurationError:
        return instant(option, text)


def span(option: str, text: str | float) -> timedelta:
    """Read a length: a number of seconds, or a text such as `90s`, `1h30m` or ISO 8601 `PT30M`."""
    shown = str(text)
    if _NUMBER.fullmatch(shown):
        return timedelta(seconds=float(shown))
    try:
        return parse_span(shown)
    except InvalidDurationError as error:
        raise InvalidDurationError(option, error.reason) from error


def json_of(option: str, text: str, *kinds: type[Any]) -> Any:
    """Read JSON whose value has one of the types `kinds` (list, dict)."""
    forms = " or a JSON ".join(_FORMS[kind.__name__] for kind in kinds)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidPayloadError(option, f"is not valid JSON ({error}); write a JSON {forms}") from None
    except RecursionError:
        raise InvalidPayloadError(option, "is nested too deeply; flatten it") from None
    if not isinstance(value, kinds):
        raise InvalidPayloadError(option, f"is the wrong kind of JSON; write a JSON {forms}")
    return value


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Read `name=value` texts. If a name occurs several times, its last value is used."""
    split = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, split, strict=True):
        if not (name and equals):
            raise InvalidInputError(option, f"{text!r} is refused; write name=value")
    return {name: value for name, _, value in split}
