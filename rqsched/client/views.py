"""What handles of both clients show: the description as it was last read. No requests."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime
from typing import Self

from rqsched.api.description import Description
from rqsched.client.responses import RunDescription


class RunView:
    """One run: its description as it was last read."""

    description: RunDescription
    """Every field of the run."""

    def __repr__(self) -> str:
        return f"<Run {self.description.instance_id} {self.status}>"

    @property
    def uid(self) -> str:
        """The run's uid."""
        return self.description.uid

    @property
    def status(self) -> str:
        """The run's status as it was last read."""
        return self.description.status

    def _keep(self, description: RunDescription) -> Self:
        self.description = description
        return self


class ScheduleView:
    """One schedule by its id: its description as it was last read."""

    def __init__(self, schedule_id: str, description: Description | None) -> None:
        self.schedule_id = schedule_id
        self._description = description

    def __repr__(self) -> str:
        return f"<Schedule {self.schedule_id} {self._description.status if self._description else 'unread'}>"

    @property
    @abstractmethod
    def description(self) -> Description:
        """Every field of the schedule."""

    @property
    def uid(self) -> str:
        """The incarnation: a schedule that is deleted and created again has a new one."""
        return self.description.uid

    @property
    def status(self) -> str:
        """`active`, `paused`, `done`, `dead` or `deleted`, as it was last read."""
        return self.description.status

    @property
    def next_run_at(self) -> datetime | None:
        """The nominal time of the next occurrence, as it was last read."""
        return self.description.next_run_at

    def _keep(self, description: Description) -> Self:
        self._description = description
        return self

    def _keep_description(self, description: Description) -> Description:
        self._description = description
        return description
