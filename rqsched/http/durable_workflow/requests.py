"""The requests of this surface: its version header, its bodies, and their checks."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Header
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from rqsched.http.dependencies import SignedIn
from rqsched.http.durable_workflow.errors import VERSION, VERSION_HEADER, ReasonError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

Note = Annotated[str, Field(max_length=1_000)]
Jitter = Annotated[int, Field(ge=0, le=3_600, strict=True)]
MaxRuns = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Overlap = Annotated[str, Field(max_length=32)]


class RequestBody(BaseModel):
    """A body; unknown fields are ignored, as by the server that this surface imitates."""

    model_config = ConfigDict(extra="ignore")


class UpdateRequest(RequestBody):
    """The body of PUT; absent fields stay."""

    spec: dict[str, Any] | None = None
    action: dict[str, Any] | None = None
    overlap_policy: Overlap | None = None
    jitter_seconds: Jitter | None = None
    max_runs: MaxRuns | None = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    note: Note | None = None
    paused: Annotated[bool, Field(strict=True)] | None = None


class CreateRequest(UpdateRequest):
    """The body of POST."""

    schedule_id: Annotated[str, Field(max_length=128)] | None = None


class NoteRequest(RequestBody):
    """The body of pause and resume."""

    note: Note | None = None


class TriggerRequest(RequestBody):
    """The body of trigger."""

    overlap_policy: Overlap | None = None


class BackfillRequest(RequestBody):
    """The body of backfill."""

    start_time: AwareDatetime
    end_time: AwareDatetime
    overlap_policy: Overlap | None = None


def require_schedule_id(schedule_id: str) -> str:
    """Check an id: at most 128 characters here."""
    if not _ID.fullmatch(schedule_id):
        raise ReasonError(
            422,
            "validation_failed",
            f"schedule_id: {schedule_id!r} is not valid; use 1 to 128 of A-Z a-z 0-9 . _ : -, a letter or digit first.",
        )
    return schedule_id


def require_range(start: datetime, end: datetime) -> None:
    """Refuse an empty range."""
    if end <= start:
        raise ReasonError(422, "invalid_time_range", "end_time must be after start_time.")


async def require_version(
    principal: SignedIn,
    version: Annotated[str | None, Header(alias=VERSION_HEADER, description="The control plane's version: 2.")] = None,
) -> None:
    """Refuse a request without version 2, before anything but its token is checked."""
    del principal
    if version is None:
        raise ReasonError(400, "missing_control_plane_version", f"the header {VERSION_HEADER}: {VERSION} is required.")
    if version.strip() != VERSION:
        raise ReasonError(
            400, "unsupported_control_plane_version", f"version {version!r} is not supported; send {VERSION}."
        )


Versioned = Depends(require_version)
