"""Conditional changes: If-Match is honoured where one schedule changes, and refused on every other route that changes.

A condition that is ignored would be worse than none: its caller believes that it held.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from rqsched.core.model import Schedule
from rqsched.errors import VersionConflictError
from rqsched.http.dependencies import Admin, Call, Operate
from rqsched.http.errors import MalformedError

_REFUSED = ("If-Match", "If-None-Match", "If-Unmodified-Since")


def version_of(schedule: Schedule, condition: str | None) -> int | None:
    """Read If-Match: an ETag of ours, a bare version, or `*`; raises VersionConflictError for another incarnation."""
    if condition is None or condition.strip() == "*":
        return None
    text, _, _ = condition.strip().removeprefix("W/").strip('"').partition("-")  # a read adds what its content is
    uid, _, version = text.rpartition(".")
    if not version.isascii() or not version.isdigit() or len(version) > 18:
        raise MalformedError("If-Match must be the ETag of a schedule or a version.")
    if uid and uid != schedule.uid:
        raise VersionConflictError(schedule.schedule_id, int(version), schedule.version)
    return int(version)


def _refuse(request: Request, call: Call) -> Call:
    for name in _REFUSED:
        if name in request.headers:
            raise MalformedError(
                f"{name} is not honoured here, and nothing was done. Omit it; PATCH, DELETE, pause, resume and restart "
                "of a schedule take If-Match."
            )
    return call


def _operate(request: Request, call: Operate) -> Call:
    return _refuse(request, call)


def _admin(request: Request, call: Admin) -> Call:
    return _refuse(request, call)


OperateAlways = Annotated[Call, Depends(_operate)]
"""A call that requires the role `operate`, and refuses conditions."""
AdminAlways = Annotated[Call, Depends(_admin)]
"""A call that requires the role `admin`, and refuses conditions."""
