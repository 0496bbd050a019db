"""How runs of a schedule ended, as lists of schedules tell it."""

from __future__ import annotations

from enum import StrEnum

REPEATEDLY = 3
"""So many failed runs in a row are a problem of their own; an index of the tables says the same."""


class LastOutcome(StrEnum):
    """How the newest run of a schedule ended; a run that was cancelled or killed leaves it as it was."""

    SUCCEEDED = "succeeded"
    """Its workflow returned."""
    FAILED = "failed"
    """Every attempt of it failed."""
    LOST = "lost"
    """Its process vanished and no attempt was left."""
