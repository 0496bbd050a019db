"""What endpoints ask for: a Call that knows the scheduler, who asks, in which namespace, and what to record of it.

>>> @router.post("/schedules/{schedule_id}/pause/")  # doctest: +SKIP
... def pause(call: Operate, schedule_id: str) -> ...:
...     call.schedule(schedule_id).pause(context=call.context)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Query
from fastapi.security import HTTPBearer
from starlette.requests import Request

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.core.audit import CommandContext
from rqsched.core.options import require_id
from rqsched.http.auth import Authenticator, Principal, Role
from rqsched.http.errors import ForbiddenError, NamespaceNotFoundError
from rqsched.http.limits import TokenBuckets
from rqsched.http.metrics.collector import Meter
from rqsched.http.middleware import tag_of


@dataclass(frozen=True)
class Wiring:
    """What an application holds; `app.state.rqsched`."""

    scheduler: Scheduler
    authenticator: Authenticator
    buckets: TokenBuckets
    meter: Meter


@dataclass(frozen=True)
class Call:
    """One request, admitted."""

    scheduler: Scheduler
    principal: Principal
    namespace: str
    """It exists for the principal."""
    request_id: str

    @property
    def context(self) -> CommandContext:
        """Who asks, for audit events."""
        return CommandContext(principal=self.principal.name, request_id=self.request_id, source="http")

    def schedule(self, schedule_id: str) -> ScheduleHandle:
        """Find a schedule that is not deleted; raises ScheduleNotFoundError."""
        return self.scheduler.get(schedule_id, namespace=self.namespace)

    def newest(self, schedule_id: str) -> ScheduleHandle:
        """Find the newest incarnation, deleted or not: its history stays readable."""
        return self.scheduler.newest(schedule_id, namespace=self.namespace)


def wiring_of(request: Request) -> Wiring:
    """Give what this application holds."""
    wiring: Wiring = request.app.state.rqsched
    return wiring


def get_scheduler(request: Request) -> Scheduler:
    """Give the application's scheduler."""
    return wiring_of(request).scheduler


async def principal_of(request: Request) -> Principal:
    """Authenticate and take one request's worth of the principal's rate; raises UnauthorizedError and others."""
    wiring = wiring_of(request)
    principal = wiring.authenticator.principal_of(request)
    wiring.buckets.take(principal.name)
    return principal


SignedIn = Annotated[Principal, Depends(principal_of)]


async def namespace_of(
    request: Request,
    principal: SignedIn,
    x_namespace: Annotated[str | None, Header(description="The namespace; wins over the query.")] = None,
    namespace: Annotated[str | None, Query(description="The namespace.")] = None,
) -> str:
    """Give the namespace that is asked for: header, then query, then the default; one it sees, or not found.

    Raises InvalidIdError and NamespaceNotFoundError.
    """
    default = get_scheduler(request).settings.namespace
    if not principal.sees(default) and len(principal.namespaces or ()) == 1:
        (default,) = principal.namespaces or (default,)  # a tenant with one namespace need not name it
    wanted = require_id(x_namespace or namespace or default, "namespace")
    if not principal.sees(wanted):
        raise NamespaceNotFoundError(wanted)
    return wanted


Namespace = Annotated[str, Depends(namespace_of)]


def require_role(principal: Principal, role: Role) -> None:
    """Raise ForbiddenError unless the principal has the role."""
    if principal.role < role:
        raise ForbiddenError(
            f"this needs the role {role.name.lower()!r}; the token has {principal.role.name.lower()!r}."
        )


def allow(role: Role) -> Callable[..., Awaitable[Call]]:
    """Make the dependency that admits principals of a role. A foreign namespace is not found before it is forbidden."""

    async def admit(request: Request, principal: SignedIn, namespace: Namespace) -> Call:
        require_role(principal, role)
        return Call(get_scheduler(request), principal, namespace, tag_of(request).request_id)

    return admit


Read = Annotated[Call, Depends(allow(Role.READ))]
"""Anyone who may look."""
Operate = Annotated[Call, Depends(allow(Role.OPERATE))]
"""Anyone who may pause, resume, restart, trigger, backfill, cancel, terminate, or execute external runs."""
Admin = Annotated[Call, Depends(allow(Role.ADMIN))]
"""Anyone who may create, change and delete."""

bearer = HTTPBearer(auto_error=False, description="A token of RQSCHED_TOKENS; none is needed where none is configured.")
"""For the OpenAPI document; `principal_of` does the work."""
