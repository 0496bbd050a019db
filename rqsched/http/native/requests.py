"""The request bodies of the native surface. Their fields' meaning is that of `rqsched.core.options.Options`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rqsched.http.native.fields import (
    Count,
    Crons,
    Id,
    Instant,
    Instants,
    JsonObject,
    Labels,
    Name,
    Note,
    NumberedName,
    Repeats,
    Retries,
    Seconds,
    Span,
)

_PIPELIT = "The Pipelit document's name for"


class Body(BaseModel):
    """A body: unknown fields and values of another type are refused, each by its name."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True, hide_input_in_errors=True)

    def said(self, name: str) -> bool:
        """Tell whether the caller gave the field, null included."""
        return name in self.model_fields_set


class RetryBody(Body):
    """How failed attempts are repeated; what is absent stays as it is, or takes its default."""

    max_retries: Retries | None = Field(default=None, description="Attempts after the first.")
    base: Span | None = Field(default=None, description="The first delay; null takes the interval, 60 s for cron.")
    factor: float | None = Field(default=None, ge=1, le=1000, description="The growth of the delays.")
    cap: Span | None = Field(default=None, description="The longest delay; null takes 10 x base.")
    jitter: Span | None = Field(default=None, description="The most that is added to a delay.")
    then: str | None = Field(default=None, description="When attempts are used up: dead, or continue.")
    max_consecutive_failures: Count | None = Field(
        default=None, description="Dead only after so many failed runs in a row."
    )


class TimingBody(Body):
    """When it happens: crons, intervals and instants mix; or one `spec` that says it all."""

    spec: JsonObject | None = Field(default=None, description="The durable-workflow spec form.")
    cron: Crons | None = Field(default=None, description="One cron expression, or several.")
    interval: Span | None = Field(default=None, description="An interval, counted from the registration.")
    interval_seconds: Annotated[int, Field(ge=1, le=10 * 366 * 86_400)] | None = Field(
        default=None, description="The Pipelit document's interval; resume then goes on one interval from now."
    )
    offset: Span | None = Field(default=None, description="Aligns the interval to the epoch, this much later.")
    from_completion: bool | None = Field(default=None, description="Counts the interval from the end of each run.")
    once: Instants | None = Field(default=None, description="One instant, or several.")
    timezone: Name | None = Field(default=None, description="IANA name, for crons that name none.")
    start_at: Instant | None = Field(default=None, description="No occurrence before it.")
    end_at: Instant | None = Field(default=None, description="No occurrence from it on.")


class DefinitionBody(TimingBody):
    """What an owner declares of a schedule, beside its id."""

    name: Name | None = Field(
        default=None, description="A name for people; the id's default where it has an id's form."
    )
    workflow: NumberedName | None = Field(default=None, description="The name of a registered workflow.")
    workflow_id: NumberedName | None = Field(default=None, description=f"{_PIPELIT} workflow.")
    trigger_node_id: Name | None = Field(default=None, description="Kept for the caller (Pipelit document).")
    args: list[Any] | None = None
    kwargs: JsonObject | None = None
    trigger_payload: JsonObject | None = Field(default=None, description=f"{_PIPELIT} kwargs.")
    overlap: Name | None = Field(default=None, description="skip, buffer_one, buffer_all, allow_all, cancel_other ...")
    overlap_policy: Name | None = Field(default=None, description="The same as overlap.")
    buffer_limit: Count | None = None
    missed: Name | None = Field(default=None, description="fire_once, skip or all.")
    catch_up_window: Span | None = None
    catch_up_limit: Count | None = None
    catch_up: Name | None = Field(default=None, description="Where resume goes on: next, once or from_now.")
    jitter: Span | None = None
    max_runs: Count | None = None
    on_exhausted: Name | None = Field(default=None, description="done or delete.")
    total_repeats: Repeats | None = Field(default=None, description="Done after so many successes; 0 is no bound.")
    environments: list[Name] | None = None
    retry: RetryBody | None = None
    max_retries: Retries | None = Field(default=None, description="The same as retry.max_retries.")
    timeout: Seconds | None = None
    timeout_seconds: Seconds | None = Field(default=None, description=f"{_PIPELIT} timeout.")
    queue: Name | None = None
    connection: Name | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    labels: Labels | None = None
    memo: JsonObject | None = None
    search_attributes: JsonObject | None = None
    description: Note | None = None
    owner: NumberedName | None = None
    user_profile_id: NumberedName | None = Field(default=None, description=f"{_PIPELIT} owner.")
    note: Note | None = Field(default=None, description="For the next operator.")


class DeclareBody(DefinitionBody):
    """A whole declaration: what is absent or null takes its default (PUT)."""

    executor: Name | None = Field(default=None, description="rq (default) or external.")
    paused: bool | None = Field(
        default=None, description="Absent: a known schedule stays as it is, a new one is active."
    )


class CreateBody(DeclareBody):
    """A new schedule."""

    schedule_id: Id | None = Field(
        default=None, description="Absent: the name, if it has an id's form, else a new UUID."
    )


class UpdateBody(DefinitionBody):
    """A change: what is absent stays, null takes the default (PATCH)."""


class PauseBody(Body):
    """Why it is paused."""

    note: Note | None = None
    reason: Note | None = None


class ResumeBody(Body):
    """Where it goes on."""

    catch_up: Name | None = Field(default=None, description="next, once or from_now; absent: as the schedule says.")
    note: Note | None = None


class NoteBody(Body):
    """A note for the next operator."""

    note: Note | None = None


class TriggerBody(Body):
    """How a run is started now."""

    overlap: Name | None = Field(default=None, description="Instead of the schedule's policy.")
    force: bool = Field(default=False, description="Also while paused.")
    idempotency_key: Name | None = Field(default=None, description="The same as the Idempotency-Key header.")


class BackfillBody(Body):
    """Which past range to fire."""

    start: Instant = Field(description="The first instant, inclusive.")
    end: Instant = Field(description="Exclusive; never after now.")
    overlap: Name | None = Field(default=None, description="Instead of the schedule's policy.")
    dry_run: bool = Field(default=False, description="Say what would be started; write nothing.")
    bound: Annotated[int, Field(ge=1, le=1_000_000)] = Field(default=10_000, description="The most occurrences.")


class BatchDeleteBody(Body):
    """Which schedules to delete; those that are not there are passed over."""

    schedule_ids: Annotated[list[Name], Field(min_length=1, max_length=500)] | None = None
    ids: Annotated[list[NumberedName], Field(min_length=1, max_length=500)] | None = Field(
        default=None, description="The same as schedule_ids."
    )
