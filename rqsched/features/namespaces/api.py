"""Whole namespaces: read their usage and quota, count their data, and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rqsched.api.groups import Group
from rqsched.features.namespaces import chain as namespaces
from rqsched.features.quotas import chain as quotas
from rqsched.features.quotas.decide import Usage
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.options import require_id, require_note
from rqsched.kernel.decide.results import NamespaceData


class Namespaces(Group):
    """Whole namespaces: their usage, and their deletion.

    >>> scheduler.namespaces.usage(namespace="acme").limits
    Quota(schedules=None, bytes=None)
    """

    def usage(self, *, namespace: str | None = None) -> Usage:
        """Count a namespace's schedules and the bytes of their declarations. Also return its quota (RQSCHED_QUOTAS)."""
        return quotas.usage_of(self.runtime, require_id(self._namespace(namespace), "namespace"))

    def usages(self) -> Sequence[Usage]:
        """Count the usage of each namespace that has a quota, sorted by name."""
        return self.runtime.database.read(lambda connection: quotas.usages(self.runtime, connection, with_bytes=True))

    def preview_delete(self, name: str) -> NamespaceData:
        """Return the data that `delete` would delete, and whether it may begin. Nothing is written."""
        return namespaces.preview(self.runtime, require_id(name, "name"))

    def delete(
        self,
        name: str,
        reason: str | None = None,
        *,
        terminate: bool = False,
        context: CommandContext | None = None,
    ) -> NamespaceData:
        """Delete everything in a frozen namespace for good: schedules, runs, history, calendars, limits, jobs in Redis.

        >>> scheduler.freeze("the tenant leaves", namespace="acme").namespace
        'acme'
        >>> scheduler.namespaces.delete("acme", "the tenant leaves").is_over
        True

        One line stays on the audit page of the namespace: when, who, why and how many rows. The deletion also ends the
        freeze. Each step is a transaction of some hundred rows. After an interruption the namespace is still frozen,
        and another call continues. Jobs are removed from Redis after the rows. If that fails, dispatchers and workers
        drop the jobs. States of machines, registered workflows and targets that were sent by hand belong to no
        namespace and stay.

        Raises ConflictError if the namespace is not frozen, or if its runs execute and `terminate` is not set. Raises
        DatabaseUnavailableError.
        """
        require_note(reason, "reason")
        given = context or CommandContext(source="python")
        asked = given if reason is None else replace(given, reason=reason)
        return delete_some(self.runtime, name, asked, terminates=terminate, steps=None)


def delete_some(
    runtime: Runtime, name: str, context: CommandContext, *, terminates: bool, steps: int | None = 20
) -> NamespaceData:
    """Make at most `steps` steps of a deletion (None: all).

    The default deletes some thousand rows in a short request.
    """
    where = require_id(name, "name")
    return namespaces.delete(runtime, where, context, terminates=terminates, steps=steps)
