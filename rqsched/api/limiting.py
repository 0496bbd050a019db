"""Limits: which groups of runs there are, how many of each run at once, and how that is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rqsched.core.audit import CommandContext
from rqsched.core.limit import MAX_NUMBER, is_name, key_of
from rqsched.core.option_table import is_id, require_id
from rqsched.core.results import MAX_PAGE, LimitDescription, Page, pages
from rqsched.errors import InvalidInputError, LimitNotFoundError
from rqsched.store import limits
from rqsched.store.schedule_queries import require_limit


class Limiting:
    """The part of a Scheduler that shows and changes the groups of `limit`."""

    def limits(
        self: Any, *, namespace: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[LimitDescription]:
        """Read a page of the groups of a namespace, by name, with how many of their runs run and wait.

        >>> [(one.name, one.number) for one in scheduler.limits().items]
        []
        """
        require_limit(limit)
        where = require_id(self._here(namespace), "namespace")
        page: Page[LimitDescription] = self.runtime.database.read(
            lambda connection: limits.page(connection, where, cursor, limit)
        )
        return page

    def iter_limits(self: Any, *, namespace: str | None = None) -> Iterator[LimitDescription]:
        """Read all groups of a namespace by name, page by page."""
        return pages(lambda cursor: self.limits(namespace=namespace, limit=MAX_PAGE, cursor=cursor))

    def set_limit(
        self: Any, name: str, number: int, *, namespace: str | None = None, context: CommandContext | None = None
    ) -> LimitDescription:
        """Change how many runs of a group may run at once, and return the group.

        What runs goes on: after the number was lowered nothing begins until fewer run. The group remembers who
        (`context`) asked, and why. Raises LimitNotFoundError.
        """
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_NUMBER:
            raise InvalidInputError("number", f"must be a whole number from 1 to {MAX_NUMBER}")
        where = self._here(namespace)
        if not is_id(where) or not is_name(name):
            raise LimitNotFoundError(where, name)
        found: LimitDescription = self.runtime.limits.set_number(
            key_of(where, name), number, context or CommandContext(source="python")
        )
        return found
