"""The requests of the native surface: parameters, bodies, and the types and limits of their values.

The fields for options are made from the table `rqsched.kernel.decide.options.OPTIONS`, which documents each option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from rqsched.api.definitions import MAX_SKIPS
from rqsched.api.options import MAX_ERROR_TYPES, OPTIONS, PARTS, Kind, Option, help_of
from rqsched.api.values import MAX_PAGE
from rqsched.http.errors import MORE, MOST_ERRORS
from rqsched.http.examples import shown
from rqsched.when.duration import parse_span
from rqsched.when.exclusion import MAX_EXCLUSIONS
from rqsched.when.members import ENDS

MAX_SECONDS = 100 * 366 * 86_400
MAX_LABELS = 64
_FIRST_YEAR, _LAST_YEAR = 1970, 2500


def read_instant(value: Any) -> datetime:
    """Read an ISO 8601 instant with an offset; raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("must be text, such as 2026-01-31T08:00:00Z")  # noqa: TRY004 - pydantic reports ValueErrors
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("is not a valid instant; write 2026-01-31T08:00:00Z") from None
    if instant.tzinfo is None:
        raise ValueError("has no timezone; add Z or an offset such as +01:00")
    if not _FIRST_YEAR <= instant.year <= _LAST_YEAR:
        raise ValueError(f"is outside the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return instant.astimezone(UTC)


def read_span(value: Any) -> timedelta:
    """Read a duration: a number of seconds, or text such as `90s`, `1h30m` or ISO 8601 `PT30M`; raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("must be seconds, or text such as 30m or PT30M")  # noqa: TRY004 - pydantic reports ValueErrors
    if isinstance(value, str):
        return parse_span(value)
    if not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"must be from 0 to {MAX_SECONDS} seconds")
    return timedelta(seconds=value)


def listed(value: Any) -> Any:
    """Return a single value as a list of one; a list and None stay as they are."""
    return value if value is None or isinstance(value, list) else [value]


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _few_labels(value: Any) -> Any:
    """Check the number of labels first, because pydantic would list every wrong label."""
    if isinstance(value, dict) and len(value) > MAX_LABELS:
        raise ValueError(f"must be at most {MAX_LABELS} labels, not {len(value)}")
    return value


Instant = Annotated[datetime, BeforeValidator(read_instant), WithJsonSchema({"type": "string", "format": "date-time"})]
"""ISO 8601 with an offset."""
_SPAN_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": MAX_SECONDS, "description": "Seconds."},
        {"type": "string", "maxLength": 64, "examples": ["30m", "PT30M"]},
    ]
}
Span = Annotated[timedelta, BeforeValidator(read_span), WithJsonSchema(_SPAN_SCHEMA)]
"""Seconds, `1h30m` or `PT30M`."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
Id = Annotated[str, Field(pattern=rf"^{ID.pattern}$")]
"""A schedule id, or another name of the same characters."""
MAX_NAME = 255
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
_NUMBERED = {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 255}, {"type": "integer"}]}
NumberedName = Annotated[Name, BeforeValidator(_text_of_number), WithJsonSchema(_NUMBERED)]
"""A name, or a number, such as an id in another system."""
Note = Annotated[str, Field(max_length=4096)]
Crons = Annotated[
    list[Annotated[str, Field(max_length=1024)]],
    Field(max_length=100),  # checked before the items, because pydantic would list every wrong item
    BeforeValidator(listed),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 100}]}),
]
"""One cron expression, or several."""
Instants = Annotated[
    list[Instant],
    Field(max_length=1000),
    BeforeValidator(listed),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date-time"},
                {"type": "array", "items": {"type": "string", "format": "date-time"}, "maxItems": 1000},
            ]
        }
    ),
]
"""One instant, or several."""
Count = Annotated[int, Field(ge=1, le=2**53)]
Seconds = Annotated[int, Field(ge=1, le=86_400 * 30)]
Retries = Annotated[int, Field(ge=0, le=1_000_000)]
Repeats = Annotated[int, Field(ge=0, le=2**53)]
"""The Pipelit document's count: 0 means no limit."""
JsonObject = dict[str, Any]
Labels = Annotated[dict[str, str], BeforeValidator(_few_labels), Field(max_length=MAX_LABELS)]


ScheduleId = Annotated[str, Path(max_length=255, description="The id, unique in its namespace.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="The size of a page; large items make shorter ones.")]
ShownFields = Annotated[
    Literal["full", "summary"],
    Query(description="summary leaves out what may be large: arguments, memo, search attributes, attempts, results."),
]
MAX_QUERY = 4_000
ListQuery = Annotated[str, Field(max_length=MAX_QUERY)]
QUERY_HELP = (
    'An AND of equalities, such as WorkflowType = "invoice-sync" AND region = "eu": ScheduleId, Status, WorkflowType, '
    "TaskQueue, Note and search attributes."
)
Cursor = Annotated[str | None, Query(max_length=500, description="The next_cursor of the previous page.")]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, description="The same key returns the same response.")
]
IfMatch = Annotated[str | None, Header(description="The ETag or version the schedule must have.", max_length=255)]


_PIPELIT = "The Pipelit document's name for"
_NOTE = "A note for the next operator."


class RequestBody(BaseModel):
    """A body. It is refused if it has an unknown field or a value of a wrong type. The error names the field."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        """Refuse many unknown fields here, because pydantic takes 25 microseconds for each. List only the first few."""
        known = cls.model_fields
        unknown = [name for name in value if name not in known] if isinstance(value, dict) else []
        if len(unknown) <= MOST_ERRORS:
            return value
        errors = [InitErrorDetails(type="extra_forbidden", loc=(name,), input=None) for name in unknown[:MOST_ERRORS]]
        rest = PydanticCustomError(MORE, "more fields are not known", {"count": len(unknown) - MOST_ERRORS})
        raise ValidationError.from_exception_data(cls.__name__, [*errors, InitErrorDetails(type=rest, input=None)])

    def has(self, name: str) -> bool:
        """Return whether the caller sent the field, null included."""
        return name in self.model_fields_set


def _described(option: str, field: str, least: float | None = None, most: float | None = None) -> Any:
    return Field(default=None, ge=least, le=most, description=help_of(PARTS[option][field]))


ErrorNames = Annotated[list[Name], Field(max_length=MAX_ERROR_TYPES)]
"""Names of error types."""


class TargetRetryRequest(RequestBody):
    """How failed attempts of a target are repeated. Absent fields keep their value, or get the default if it is new."""

    max_retries: Retries | None = _described("target_retry", "max_retries")
    base: Span | None = _described("target_retry", "base")
    factor: float | None = _described("target_retry", "factor", 1, 1000)
    cap: Span | None = _described("target_retry", "cap")
    jitter: Span | None = _described("target_retry", "jitter")
    retry_on: ErrorNames | None = _described("target_retry", "retry_on")
    give_up_on: ErrorNames | None = _described("target_retry", "give_up_on")


class RetryRequest(TargetRetryRequest):
    """How failed attempts are repeated. Absent fields keep their value, or get the default if the schedule is new."""

    max_retries: Retries | None = _described("retry", "max_retries")
    then: str | None = _described("retry", "then")
    max_consecutive_failures: Count | None = _described("retry", "max_consecutive_failures")


class NotificationsRequest(RequestBody):
    """Further recipients of failures, recoveries and runs (docs/alerts.md); absent fields follow the settings.

    Only hosts in RQSCHED_NOTIFICATION_HOSTS are called.
    """

    webhook: Annotated[str, Field(max_length=2000)] | None = _described("notifications", "webhook")
    events: Annotated[list[Name], Field(max_length=100)] | None = _described("notifications", "events")
    heartbeat: Annotated[str, Field(max_length=2000)] | None = _described("notifications", "heartbeat")
    sentry: Name | None = _described("notifications", "sentry")


class TimingRequest(RequestBody):
    """When a schedule fires: any mixture of crons, intervals and instants; or one complete `spec`."""

    spec: JsonObject | str | None = Field(
        default=None, description="The durable-workflow spec form, or one text: a cron, a length or an instant."
    )
    cron: Crons | None = Field(default=None, description="One cron expression, or several.")
    interval: Span | None = Field(default=None, description="An interval, counted from the registration.")
    interval_seconds: Annotated[int, Field(ge=1, le=10 * 366 * 86_400)] | None = Field(
        default=None, description="The Pipelit document's interval; resume then continues one interval from now."
    )
    offset: Span | None = Field(default=None, description="Aligns the interval to the epoch plus this offset.")
    from_completion: bool | None = Field(default=None, description="Counts the interval from the end of each run.")
    once: Instants | None = Field(default=None, description="One instant, or several.")
    after: Name | None = Field(
        default=None,
        description="The id of a schedule, of this namespace, whose runs it comes after; nothing beside it.",
    )
    on: Name | None = Field(default=None, description=f"Which of their ends count: {', '.join(ENDS)}.")
    timezone: Name | None = Field(default=None, description="IANA name, for crons that name no timezone.")
    start_at: Instant | None = Field(default=None, description="No occurrence before this instant.")
    end_at: Instant | None = Field(default=None, description="No occurrence at or after this instant.")


Texts = Annotated[
    list[Name],
    Field(max_length=MAX_EXCLUSIONS),
    BeforeValidator(listed),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": MAX_EXCLUSIONS}]}
    ),
]
"""One text, or several."""
_REQUESTS: Mapping[str, Any] = {
    "retry": RetryRequest,
    "target_retry": TargetRetryRequest,
    "notifications": NotificationsRequest,
}
"""The options that are objects of known fields."""
_KINDS: Mapping[Kind, Any] = {
    Kind.CHOICE: Name,
    Kind.LENGTH: Span,
    Kind.NAMES: Annotated[list[Name], Field(max_length=100)],
    Kind.TEXTS: Texts,
    Kind.ARGUMENTS: list[Any],
    Kind.OBJECT: JsonObject,
    Kind.LABELS: Labels,
    Kind.ATTRIBUTES: JsonObject,
}


def _type_of(name: str, option: Option) -> Any:
    if name in _REQUESTS:
        return _REQUESTS[name]
    if option.kind is Kind.COUNT:
        return Annotated[int, Field(ge=option.least, le=option.most)]
    if option.kind is Kind.TEXT:
        least = 0 if option.most_characters > MAX_NAME else 1
        text = Annotated[str, Field(min_length=least, max_length=option.most_characters)]
        return NumberedName if option.is_number_allowed else text
    return _KINDS[option.kind]


def _fields(*, is_fixed: bool) -> dict[str, Any]:
    """Return fields for the options that may be changed. If `is_fixed`, return those that only a create may set."""
    return {
        name: (_type_of(name, option) | None, Field(default=None, description=help_of(option)))
        for name, option in OPTIONS.items()
        if option.is_fixed is is_fixed and name != "timezone"  # the time zone belongs to the timing
    }


_Options: Any = create_model("_Options", __base__=TimingRequest, **_fields(is_fixed=False))
_FixedOptions: Any = create_model("_FixedOptions", __base__=RequestBody, **_fields(is_fixed=True))


class DefinitionRequest(_Options, TimingRequest):  # type: ignore[misc] # made from the table of options
    """The definition of a schedule without its id: timing, options, and fields named as in the Pipelit document."""

    name: Name | None = Field(default=None, description="A display name; also the default id when it is a valid id.")
    workflow: NumberedName | None = Field(default=None, description="The name of a registered workflow.")
    workflow_id: NumberedName | None = Field(default=None, description=f"{_PIPELIT} workflow.")
    trigger_node_id: Name | None = Field(default=None, description="Kept for the caller (Pipelit document).")
    trigger_payload: JsonObject | None = Field(default=None, description=f"{_PIPELIT} kwargs.")
    max_retries: Retries | None = Field(default=None, description="The same as retry.max_retries.")
    total_repeats: Repeats | None = Field(default=None, description=f"{_PIPELIT} max_successes; 0 means no limit.")
    timeout_seconds: Seconds | None = Field(default=None, description=f"{_PIPELIT} timeout.")
    user_profile_id: NumberedName | None = Field(default=None, description=f"{_PIPELIT} owner.")
    note: Note | None = Field(default=None, description=_NOTE)


class DeclareRequest(
    DefinitionRequest,
    _FixedOptions,  # type: ignore[misc] # the same
    json_schema_extra=shown({"workflow": "invoice-sync", "interval": "30m", "overlap": "buffer_one"}),
):
    """A complete declaration: absent or null fields take their default (PUT)."""

    paused: bool | None = Field(
        default=None, description="Absent: an existing schedule keeps its status, a new one is active."
    )


class CreateRequest(
    DeclareRequest,
    json_schema_extra=shown(
        {
            "schedule_id": "nightly",
            "workflow": "invoice-sync",
            "cron": "0 2 * * *",
            "timezone": "Europe/Berlin",
            "args": ["eu"],
        }
    ),
):
    """A new schedule."""

    schedule_id: Id | None = Field(default=None, description="Absent: the name when it is a valid id, else a new UUID.")

    @property
    def is_in_pipelit_words(self) -> bool:
        """Whether the body uses names of the Pipelit document. If it does, a failed run ends the schedule."""
        return self.interval_seconds is not None or self.total_repeats is not None


class SyncedScheduleRequest(
    DeclareRequest, json_schema_extra=shown({"schedule_id": "nightly", "workflow": "invoice-sync", "cron": "0 2 * * *"})
):
    """One schedule of a declared set."""

    schedule_id: Id = Field(description="Its id, unique in the set.")


class SyncRequest(
    RequestBody,
    json_schema_extra=shown(
        {
            "schedules": [{"schedule_id": "nightly", "workflow": "invoice-sync", "cron": "0 2 * * *"}],
            "delete_removed": True,
        }
    ),
):
    """A set of schedules that are declared together, or a part of such a set."""

    schedules: Annotated[list[SyncedScheduleRequest], FailFast(), Field(max_length=500)] = Field(
        description="Each declared whole. The errors of the first wrong one are listed."
    )
    delete_removed: bool = Field(default=False, description="Delete what an earlier sync made and neither list has.")
    keep: Annotated[list[Name], FailFast(), Field(max_length=20_000)] = Field(
        default_factory=list, description="Ids of the set that other requests declare: not deleted."
    )
    dry_run: bool = Field(default=False, description="Return what would be done, with the same checks; write nothing.")


class UpdateRequest(DefinitionRequest, json_schema_extra=shown({"cron": "0 3 * * *"})):
    """A change: absent fields keep their value, null takes the default (PATCH)."""

    paused: bool | None = Field(
        default=None, description="true also pauses it, false makes a paused or dead one fire again; null: as it is."
    )


class TriggerRequest(RequestBody, json_schema_extra=shown({"overlap": "allow_all"})):
    """How to start a run now."""

    overlap: Name | None = Field(default=None, description="Instead of the schedule's policy.")
    force: bool = Field(default=False, description="Also while paused.")
    idempotency_key: Name | None = Field(default=None, description="The same as the Idempotency-Key header.")


class BackfillRequest(
    RequestBody,
    json_schema_extra=shown({"start": "2026-01-01T00:00:00Z", "end": "2026-01-08T00:00:00Z", "dry_run": True}),
):
    """The past range to fire."""

    start: Instant = Field(description="The first instant, inclusive.")
    end: Instant = Field(description="Exclusive; never after now.")
    overlap: Name | None = Field(default=None, description="Instead of the schedule's policy.")
    rerun: Name | None = Field(
        default=None,
        description="failed: retry those whose run failed or was lost, too; all: and fire what was pruned.",
    )
    dry_run: bool = Field(default=False, description="Return what would start; write nothing.")
    bound: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=10_000, description="The most occurrences to fire."
    )


def _read_since(value: Any) -> datetime | timedelta:
    try:
        return read_instant(value)
    except ValueError:
        if isinstance(value, str) and value[:4].isdigit() and "-" in value:
            raise
        return read_span(value)


_SINCE_SCHEMA = {"anyOf": [{"type": "string", "format": "date-time"}, *_SPAN_SCHEMA["anyOf"]]}
Since = Annotated[datetime | timedelta, BeforeValidator(_read_since), WithJsonSchema(_SINCE_SCHEMA)]
"""An instant, or how long ago."""


class BulkRequest(RequestBody, json_schema_extra=shown({"labels": {"team": "billing"}, "dry_run": True})):
    """The filter of schedules, all of which must match, and the parameters of the operation."""

    status: list[Name] | None = Field(default=None, description="Default: active; paused for resume.")
    outcome: list[Name] | None = Field(
        default=None, description="Only those whose newest run ended so: succeeded, failed, lost."
    )
    workflow: Name | None = Field(default=None, description="Only of this workflow.")
    owner: Name | None = Field(default=None, description="Only of this owner.")
    managed_by: Name | None = Field(default=None, description="sync, import: only those that one of these made.")
    labels: Labels | None = Field(default=None, description="Only with these labels.")
    search_attributes: JsonObject | None = Field(default=None, description="Only with these search attributes.")
    q: Name | None = Field(default=None, description="A part of the id, in any case.")
    overdue: bool | None = Field(default=None, description="Without a success for as long as expected, or not.")
    created_since: Instant | None = Field(default=None, description="Created then or later.")
    created_until: Instant | None = Field(default=None, description="Created before.")
    next_since: Instant | None = Field(default=None, description="Fires next then or later.")
    next_until: Instant | None = Field(default=None, description="Fires next before.")
    query: ListQuery | None = Field(default=None, description=QUERY_HELP)
    reason: Note | None = Field(default=None, description="Why, for the audit events of a pause.")
    note: Note | None = Field(default=None, description="For the next operator; pause and resume leave it.")
    on_resume: Name | None = Field(
        default=None, description="Where resume, or a pause with `until`, continues: next, once or from_now."
    )
    until: Instant | None = Field(default=None, description="Of a pause: they fire again by themselves then.")
    overlap: Name | None = Field(default=None, description="Of a trigger, instead of each schedule's policy.")
    count: Annotated[int, Field(ge=0, le=MAX_SKIPS)] = Field(
        default=1, description="Of skip_next: how many occurrences of each are skipped; 0 takes back what is skipped."
    )
    idempotency_key: Name | None = Field(default=None, description="Of a trigger: sent again it starts nothing twice.")
    dry_run: bool = Field(default=False, description="Return what would be done; write nothing.")
    bound: Count = Field(default=500, description="Refuse more schedules than this when they are counted.")
    cursor: Annotated[str, Field(max_length=500)] | None = Field(
        default=None, description="The next_cursor of the previous response; without it the schedules are only counted."
    )


class BulkRunsRequest(RequestBody, json_schema_extra=shown({"status": ["pending"], "workflow": "invoice-sync"})):
    """The filter of runs, all of which must match, and the parameters of the operation."""

    status: list[Name] | None = Field(
        default=None, description="Default: every run that has not ended for cancel; failed and lost for retry."
    )
    schedule_id: Name | None = Field(default=None, description="Only of schedules that have, or had, this id.")
    workflow: Name | None = Field(default=None, description="Only of this workflow.")
    limit: Name | None = Field(default=None, description="Only of the group with this name.")
    in_line: bool | None = Field(
        default=None, description="Only pending runs that wait for a place of their group, or only those that do not."
    )
    since: Instant | None = Field(
        default=None, description="Created then or later; ended then or later, if only failed and lost runs match."
    )
    until: Instant | None = Field(default=None, description="Created, or ended, before.")
    error: Name | None = Field(default=None, description="A part of the text of their error, in any case.")
    backfill_uid: Name | None = Field(default=None, description="Only of this backfill.")
    reason: Note | None = Field(default=None, description="Why, for the audit event of each run.")
    dry_run: bool = Field(default=False, description="Return what would be done; write nothing.")
    bound: Count = Field(default=500, description="Refuse more runs than this when they are counted.")
    cursor: Annotated[str, Field(max_length=500)] | None = Field(
        default=None, description="The next_cursor of the previous response; without it the runs are only counted."
    )


class BatchDeleteRequest(RequestBody, json_schema_extra=shown({"schedule_ids": ["nightly", "weekly"]})):
    """The schedules to delete; ids that do not exist are ignored."""

    schedule_ids: Annotated[list[Name], Field(min_length=1, max_length=500)] | None = Field(
        default=None, description="The ids to delete."
    )
    ids: Annotated[list[NumberedName], Field(min_length=1, max_length=500)] | None = Field(
        default=None, description="The same as schedule_ids."
    )
