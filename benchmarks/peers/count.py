"""Count from the log of a job which due times ran, how often, and how late. All functions are pure.

All instants are seconds since the begin of a window, in which one fault is caused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Run = tuple[float, float | None]
"""When a run began, and the time for which it was due if the job knew it."""
EARLY = 0.1
"""Seconds by which a run may begin before its due time, because two clocks differ."""
REACH = 15.0
"""A run counts for a due time that is at most so many seconds older."""
SILENT = 15.0
"""If nothing ran in so many seconds at the end of a window, the job has not come back."""


class Window(NamedTuple):
    """The part of the log of one job in which one fault was caused."""

    runs: Sequence[Run]
    """The runs from a little before the window until a little after it."""
    length: float
    """Its due times are those from 0 to this."""
    every: float
    """Seconds between two due times."""
    phase: float = 0.0
    """The first due time that is not before 0."""
    down: tuple[float, float] | None = None
    """The span in which nothing ran, if the fault was that everything was down."""


class Counted(NamedTuple):
    """How often the due times of a window were run."""

    due: int
    lost: int
    """The due times that never ran."""
    doubled: int
    """The runs beyond the first of their due time."""
    late: list[float]
    """By how many seconds the first run of each due time was late."""
    is_back: bool
    """Whether the job still ran at the end of the window."""

    @property
    def executed(self) -> int:
        """Return how many due times ran."""
        return self.due - self.lost


def count(window: Window) -> Counted:
    """Match runs to due times.

    If the job knows its due time, its run counts for that time. Any other run counts for the latest due time before it
    that has no run yet and is at most REACH seconds older; soon after an outage, it may be as old as the outage. If
    there is no such due time, the run is one too many.
    """
    runs = sorted(window.runs, key=lambda run: run[0])
    oldest = runs[0][0] + EARLY - window.every if runs else 0.0  # the first run counts for no time further back
    before = math.ceil(REACH / window.every) + 1
    after = math.floor((window.length - window.phase) / window.every) + before
    dues = [window.phase + number * window.every for number in range(-before, after)]
    open_dues = [due for due in dues if due > oldest]
    first: dict[float, float] = {}
    doubled = 0
    for began, known in runs:
        due = _nearest(dues, known) if known is not None else _latest_free(open_dues, first, began, window.down)
        if due is not None and due not in first:
            first[due] = began
        elif 0 <= (began if due is None else due) < window.length:
            doubled += 1
    judged = [due for due in dues if 0 <= due < window.length]
    late = [first[due] - due for due in judged if due in first]
    is_back = any(window.length - SILENT <= began for began, _ in window.runs)
    return Counted(len(judged), len(judged) - len(late), doubled, late, is_back)


def _nearest(dues: Sequence[float], known: float) -> float:
    return min(dues, key=lambda due: abs(due - known))


def _latest_free(
    dues: Sequence[float], taken: dict[float, float], began: float, down: tuple[float, float] | None
) -> float | None:
    oldest = began - REACH
    if down is not None and down[1] <= began < down[1] + 2 * REACH:
        oldest = min(oldest, down[0])
    free = [due for due in dues if oldest <= due <= began + EARLY and due not in taken]
    return max(free, default=None)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that so large a share of the values does not exceed; None without values."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else None
