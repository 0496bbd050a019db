"""What a worker of an older release imports: its workflows of then, none of which is asked for now."""

from __future__ import annotations

from rqsched import workflow


@workflow("acceptance.retired")
def retired() -> None:
    """What the old release did."""
