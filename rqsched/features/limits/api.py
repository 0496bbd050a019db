"""Read and change groups: how many runs of a group may run at once, or start in a window of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rqsched.api.groups import Group
from rqsched.errors import InvalidInputError, LimitNotFoundError
from rqsched.features.limits import store as limits
from rqsched.features.limits.chain import change_bounds
from rqsched.features.limits.decide import Bounds
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.limit_options import MAX_NUMBER, Rate, is_name, key_of, require_rate
from rqsched.kernel.decide.options import require_id
from rqsched.kernel.decide.results import MAX_PAGE, LimitDescription, Page, pages
from rqsched.kernel.queries.schedules import require_limit


class Limits(Group):
    """The groups that schedules name in `limit`. A group limits how many of its runs run at once, or start in a window.

    >>> [(one.name, one.number) for one in scheduler.limits.list().items]
    []
    """

    def list(
        self, *, namespace: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[LimitDescription]:
        """Read a page of a namespace's groups, sorted by name, with the numbers of their running and waiting runs."""
        require_limit(limit)
        where = require_id(self._namespace(namespace), "namespace")
        return self.runtime.database.read(
            lambda connection: limits.page(connection, where, cursor, limit, self.runtime.now())
        )

    def iter(self, *, namespace: str | None = None) -> Iterator[LimitDescription]:
        """Read all groups of a namespace, sorted by name, page by page."""
        return pages(lambda cursor: self.list(namespace=namespace, limit=MAX_PAGE, cursor=cursor))

    def set(
        self,
        name: str,
        number: int | None = None,
        *,
        rate: str | None = None,
        unset: Sequence[str] = (),
        namespace: str | None = None,
        context: CommandContext | None = None,
    ) -> LimitDescription:
        """Change how many runs of a group may run at once, or start in a window of time, or both. Return the group.

        Arguments that are not given change nothing. `unset` removes the `number` or the `rate`, not both. Running runs
        continue. If more runs are running than the new number allows, no run begins until enough of them have ended.
        The group records the caller and the reason. Raises LimitNotFoundError.

        Args:
            name: The name of the group, as in `limit` of a schedule.
            number: How many runs may run at once.
            rate: How many attempts may start in any window of time, such as `100/min`.
            unset: `number` or `rate`, to remove that limit.
            namespace: The namespace; default that of the scheduler.
            context: The caller and the reason.
        """
        is_number = isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= MAX_NUMBER
        if number is not None and not is_number:
            raise InvalidInputError("number", f"must be a whole number from 1 to {MAX_NUMBER}")
        text = require_rate("rate", rate)
        given = {"number": number, "rate": None if text is None else Rate.parse("rate", text)}
        off = {unset} if isinstance(unset, str) else {*unset}
        if unknown := off - given.keys():
            raise InvalidInputError("unset", f"must be 'number' or 'rate', not {min(unknown)!r}")
        if twice := [one for one in sorted(off) if given[one] is not None]:
            raise InvalidInputError("unset", f"{twice[0]!r} is given, too; say one of both")
        if not off and number is None and text is None:
            raise InvalidInputError("number", "is missing, and so is the rate; give one of them, or both")
        where = require_id(self._namespace(namespace), "namespace")
        if not is_name(name):
            raise LimitNotFoundError(where, name)

        def changed(bounds: Bounds) -> Bounds:
            kept = {one: None if one in off else value for one, value in bounds._asdict().items()}
            after = Bounds(**kept | {one: value for one, value in given.items() if value is not None})
            if not any(after):
                left = min(off)
                raise InvalidInputError("unset", f"the {left} is all that {name!r} has; give the other, or keep it")
            return after

        return change_bounds(self.runtime, key_of(where, name), changed, context or CommandContext(source="python"))
