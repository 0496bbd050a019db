"""The base classes of the handles in `Client` and `AsyncClient`.

They keep the description as it was last read, and build requests.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from copy import copy
from dataclasses import replace
from typing import Any, Self

from rqsched.api.description import Description, RunDescription, RunFields, ScheduleFields
from rqsched.api.shown import Shown
from rqsched.client import responses
from rqsched.client.requests import Request, given, path_of


class RunView(RunFields):
    """One run: its description as it was last read."""

    _schedule_id: str
    description: RunDescription
    """Every field of the run."""

    @property
    def _record(self) -> RunDescription:
        return self.description

    def __repr__(self) -> str:
        return f"<Run {self.description.instance_id} {self.status}>"

    def _path(self, *parts: str) -> str:
        return path_of("schedules", self._schedule_id, "runs", self.uid, *parts)

    def _keep(self, description: RunDescription) -> Self:
        self.description = description
        return self

    def _edit(self, operation: str, body: dict[str, Any], *, is_repeatable: bool) -> Request[Self]:
        read = responses.one(RunDescription)
        return Request("POST", self._path(operation), read, body or None, is_repeatable=is_repeatable).then(self._keep)

    def _make(self, operation: str, body: dict[str, Any]) -> Request[Self]:
        """Return a request that makes another run. Its idempotency key allows to send it again."""
        keyed = {"idempotency_key": uuid.uuid4().hex, **body}
        read = responses.one(RunDescription)
        return Request("POST", self._path(operation), read, keyed, is_repeatable=True).then(copy(self)._keep)


class ScheduleView(ScheduleFields):
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
    def _record(self) -> Description:
        return self.description

    spec = Shown[dict[str, Any]]("When it happens, in the spec's JSON form; `Spec.from_stored` reads it.")

    def _keep(self, description: Description) -> Self:
        self._description = description
        return self

    def _keep_description(self, description: Description) -> Description:
        self._description = description
        return description

    def _keep_deleted(self, _: None) -> Self:
        if self._description is not None:
            self._description = replace(self._description, status="deleted", next_run_at=None, due_at=None)
        return self

    def _path(self, *parts: str) -> str:
        return path_of("schedules", self.schedule_id, *parts)

    def _if_match(self, version: int | None) -> dict[str, str]:
        """Return the header If-Match, with the ETag that this schedule has at a version."""
        return {} if version is None else {"If-Match": f'"{self.uid}.{version}"'}

    def _edit(self, operation: str, body: dict[str, Any], if_version: int | None) -> Request[Self]:
        headers = self._if_match(if_version)
        request = Request("POST", self._path(operation), responses.one(Description), given(body), headers=headers)
        return request.then(self._keep)
