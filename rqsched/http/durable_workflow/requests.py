"""What this surface is sent: its version header, its bodies, and their checks."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Header
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from rqsched.http.durable_workflow.errors import VERSION, VERSION_HEADER, ReasonError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

Note = Annotated[str, Field(max_length=1_000)]
Jitter = Annotated[int, Field(ge=0, le=3_600, strict=True)]
MaxRuns = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Overlap = Annotated[str, Field(max_length=32)]


class Body(BaseModel):
    """A body; fields it does not know are refused by nobody, as the server this imitates has it."""

    model_config = ConfigDict(extra="ignore")


class UpdateRequest(Body):
    """What PUT may change; what is absent stays."""

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
    """What POST takes."""

    schedule_id: Annotated[str, Field(max_length=128)] | None = None


class NoteRequest(Body):
    """What pause and resume take."""

    note: Note | None = None


class TriggerRequest(Body):
    """What trigger takes."""

    overlap_policy: Overlap | None = None


class BackfillRequest(Body):
    """What backfill takes."""

    start_time: AwareDatetime
    end_time: AwareDatetime
    overlap_policy: Overlap | None = None


def require_schedule_id(schedule_id: str) -> str:
    """Check an id: at most 128 characters here."""
    if not _ID.fullmatch(schedule_id):
        raise ReasonError(422, "validation_failed", f"schedule_id: {schedule_id!r} is refused.")
    return schedule_id


def require_range(start: datetime, end: datetime) -> None:
    """Refuse an empty range."""
    if end <= start:
        raise ReasonError(422, "invalid_time_range", "end_time must be after start_time.")


async def require_version(
    version: Annotated[str | None, Header(alias=VERSION_HEADER, description="The control plane's version: 2.")] = None,
) -> None:
    """Refuse a request that does not say version 2, before anything else is looked at."""
    if version is None:
        raise ReasonError(400, "missing_control_plane_version", f"the header {VERSION_HEADER}: {VERSION} is needed.")
    if version.strip() != VERSION:
        raise ReasonError(
            400, "unsupported_control_plane_version", f"version {version!r} is not served; send {VERSION}."
        )


Versioned = Depends(require_version)
