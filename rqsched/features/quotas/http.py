"""The route `/usage/`: the usage and the quota of a namespace."""

from __future__ import annotations

from typing import Any

from rqsched.features.quotas.decide import Usage
from rqsched.http.dependencies import ReadHeavy
from rqsched.http.errors import TooManyHeavyReadsError
from rqsched.http.native.operation import Operation, routes, shown
from rqsched.http.openapi import Schema
from rqsched.kernel.decide.quota_options import RESOURCES


class ResourceResponse(Schema):
    """A namespace's usage of one resource."""

    used: int
    """The amount in use."""
    limit: int | None
    """The quota; null is no limit."""


class UsageResponse(Schema):
    """The usage of a namespace."""

    namespace: str
    """The namespace."""
    schedules: ResourceResponse
    """Schedules that are not deleted."""
    bytes: ResourceResponse
    """The bytes of their declarations: timing, arguments, memo, labels and other options."""


OPERATIONS = (
    Operation(
        "read_usage", "GET", "/usage/", "namespaces.usage", ReadHeavy, UsageResponse, (TooManyHeavyReadsError,),
        is_repeatable=True,
    ),
)  # fmt: skip
router = routes(OPERATIONS, "usage")


@shown.register
def _(usage: Usage) -> dict[str, Any]:
    pairs = {name: {"used": getattr(usage, name), "limit": getattr(usage.limits, name)} for name in RESOURCES}
    return {"namespace": usage.namespace, **pairs}
