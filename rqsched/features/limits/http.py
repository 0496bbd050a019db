"""`/limits/`: list the groups of a namespace, and change what a group allows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rqsched.errors import InvalidLimitError, InvalidPolicyError, LimitNotFoundError
from rqsched.http.dependencies import OperateAlways, Read
from rqsched.http.native.operation import Operation, routes
from rqsched.http.native.responses import LimitResponse, LimitsResponse
from rqsched.kernel.decide.limit_options import MAX_NUMBER

OPERATIONS = (
    Operation(
        "list_limits", "GET", "/limits/", "limits.list", Read, LimitsResponse, (InvalidLimitError,), is_repeatable=True
    ),
    Operation(
        "set_limit", "PUT", "/limits/", "limits.set", OperateAlways, LimitResponse,
        (LimitNotFoundError, InvalidPolicyError),
        is_repeatable=True,
        types={
            "number": Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None,
            "rate": Annotated[str, Field(max_length=64)] | None,
            "unset": Annotated[list[Literal["number", "rate"]], Field(max_length=2)],
        },
        example={"name": "tenant:42", "number": 5},
    ),
)  # fmt: skip
router = routes(OPERATIONS, "limits")
