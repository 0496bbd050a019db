"""The states of a schedule and what leads from one to another, as a picture and as words."""

from __future__ import annotations

from typing import NamedTuple

from rqsched.core.model import ScheduleStatus


class State(NamedTuple):
    """A state and where its box lies."""

    name: str
    """Its name."""
    x: int
    """Its left edge."""
    y: int
    """Its upper edge."""
    steps: tuple[tuple[str, str], ...]
    """What leads away from it, and where to."""


class Arrow(NamedTuple):
    """What leads from one state to another."""

    line: str
    """The path of its line, to its head."""
    label: str
    """What it says; empty where another one says it."""
    x: int
    """Where its label begins."""
    y: int
    """The base line of its label."""


WIDTH, HEIGHT = 76, 26
"""Of a box."""
_DELETE = ("delete", "deleted")
_ENDS = (("nothing more to start", "done"), ("a run failed for good", "dead"), _DELETE)
STATES = (
    State("active", 14, 12, (("pause", "paused"), *_ENDS)),
    State("paused", 14, 80, (("resume", "active"), *_ENDS)),
    State("done", 222, 12, (("restart", "active"), _DELETE)),
    State("dead", 222, 80, (("restart", "active"), _DELETE)),
    State("deleted", 112, 150, ()),
)
"""Every state; those of the frame on the left fire, or will."""
ARROWS = (
    Arrow("M28 38V77", "pause", 33, 62),
    Arrow("M68 80V41", "resume", 73, 62),
    Arrow("M120 19H219", "no more runs", 140, 14),
    Arrow("M222 31H93", "restart", 158, 44),
    Arrow("M222 86L93 36", "", 0, 0),
    Arrow("M120 99H219", "failed for good", 134, 112),
    Arrow("M2 126H298M150 126V147", "delete", 156, 141),
)
"""What leads from a state, or from all of a frame, to another."""


def steps_of(status: ScheduleStatus) -> tuple[tuple[str, str], ...]:
    """Return what leads away from a state, and where to."""
    return next(state.steps for state in STATES if state.name == status.value)
