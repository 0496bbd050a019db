"""The workflows of a worker of an older release. No schedule needs them any more."""

from __future__ import annotations

from rqsched import workflow


@workflow("acceptance.retired")
def retired() -> None:
    """Do the work of the old release."""
