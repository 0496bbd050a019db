"""The points at which a feature takes part in what happens with a Change. The kernel calls them and names no feature.

A feature says by data when it is involved: by columns of the schedule that differ from their defaults before or after
the Change. An ordinary schedule has the default in each, so its fire enters no file of a feature. `feature_list` has
all of them; their order there is their order at each point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from rqsched.core.model import Change, Schedule
from rqsched.store.database import Connection


class Feature(Protocol):
    """A part of rqsched beside the kernel. It overrides the points at which it does something."""

    columns: ClassVar[Sequence[tuple[Callable[[Schedule], object], object]]]
    """Columns of a schedule and their defaults: the feature is involved where one of them differs."""

    def before_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Write what needs rows as they are before Changes are written, in the same transaction; may raise.

        Called once in each attempt at the transaction.
        """

    def follow(self, changes: Sequence[Change], *, skip_locked: bool) -> None:
        """Do what follows from committed Changes; raises nothing, for a pass of reconcile repeats it.

        Called at least once after each commit. With `skip_locked`, rows that another process holds are left to a pass.
        """


class Features:
    """The features of one process."""

    def __init__(self, listed: Sequence[Feature]) -> None:
        self._listed = listed

    def involved(self, changes: Sequence[Change]) -> list[Feature]:
        """Return the features that take part in what happens with these Changes."""
        return [
            feature
            for feature in self._listed
            if any(
                column(schedule) != default
                for column, default in feature.columns
                for change in changes
                for schedule in (change.before, change.after)
                if schedule is not None
            )
        ]
