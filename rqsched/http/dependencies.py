"""Give each endpoint a Call: the scheduler, the principal, the namespace and the audit context of a request.

>>> @router.post("/schedules/{schedule_id}/pause/")  # doctest: +SKIP
... def pause(call: Operate, schedule_id: str) -> ...:
...     call.schedule(schedule_id).pause(context=call.context)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Query
from fastapi.security import HTTPBearer
from starlette.requests import Request

from rqsched import CommandContext
from rqsched.api import schedules
from rqsched.api.database import Connection
from rqsched.api.options import is_id, refused_url, require_id
from rqsched.api.runs import LastRun, last_runs
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.api.values import parse_traceparent
from rqsched.errors import InvalidInputError, NamespaceNotFoundError, ScheduleNotFoundError
from rqsched.http.auth import Authenticator, Principal, Role
from rqsched.http.ended_sessions import EndedSessions
from rqsched.http.errors import ForbiddenError, MalformedError
from rqsched.http.event_feed import EventFeed
from rqsched.http.heavy_reads import HeavyReads
from rqsched.http.limits import Limits, TokenBuckets
from rqsched.http.middleware import ADDED_HEADERS, tag_of
from rqsched.http.readiness import Readiness
from rqsched.metrics.meter import Meter
from rqsched.types import Schedule

T = TypeVar("T")


@dataclass(frozen=True)
class Wiring:
    """The objects that serve one application. They are stored as `app.state.rqsched`."""

    scheduler: Scheduler
    """The scheduler whose schedules are served."""
    authenticator: Authenticator
    """Finds the principal of a request."""
    buckets: TokenBuckets
    """The rate of each principal."""
    meter: Meter
    """The metrics."""
    readiness: Readiness
    """Which backends respond."""
    feed: EventFeed
    """Audit events as they are recorded."""
    ended_sessions: EndedSessions
    """The dashboard's sessions that were logged out."""
    heavy_reads: HeavyReads
    """Admits requests that compute for seconds."""

    @classmethod
    def of(cls, scheduler: Scheduler, authenticator: Authenticator, limits: Limits) -> Wiring:
        """Return the objects that serve `scheduler` within `limits`."""
        return cls(
            scheduler,
            authenticator,
            TokenBuckets(limits.rate, limits.burst),
            Meter(scheduler.runtime),
            Readiness(scheduler.runtime),
            EventFeed(scheduler.runtime, limits),
            EndedSessions(scheduler.runtime),
            HeavyReads(),
        )


@dataclass(frozen=True)
class Call:
    """One authenticated and authorized request."""

    scheduler: Scheduler
    """The scheduler of the application."""
    principal: Principal
    """The caller."""
    namespace: str
    """The requested namespace. The principal may see it."""
    request_id: str
    """Recorded in audit events and logs."""
    traceparent: str | None = None
    """The caller's span, from the header `traceparent`; None without this header."""

    @property
    def context(self) -> CommandContext:
        """The context that audit events of this request record."""
        name, own, span = self.principal.name, self.request_id, self.traceparent
        return CommandContext(principal=name, request_id=own, source="http", traceparent=span)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Read from the database, in one transaction."""
        return self.scheduler.runtime.database.read(work)

    def schedule(self, schedule_id: str) -> ScheduleHandle:
        """Find a schedule that is not deleted; raises ScheduleNotFoundError."""
        return self.scheduler.get(schedule_id, namespace=self.namespace)

    def schedule_and_run(self, schedule_id: str) -> tuple[Schedule, LastRun | None]:
        """Read a schedule that is not deleted and its newest run, in one transaction; raises ScheduleNotFoundError."""

        def look(connection: Connection) -> tuple[Schedule, LastRun | None] | None:
            schedule = schedules.find_named(connection, self.namespace, schedule_id)
            if schedule is None:
                return None
            return schedule, last_runs(connection, [schedule]).get(schedule.uid)

        found = self.read(look) if is_id(schedule_id) else None
        if found is None:
            raise ScheduleNotFoundError(schedule_id, self.namespace)
        return found

    def newest(self, schedule_id: str) -> ScheduleHandle:
        """Find the newest schedule with an id, even if it is deleted: its history can still be read."""
        return self.scheduler.newest(schedule_id, namespace=self.namespace)


def wiring_of(request: Request) -> Wiring:
    """Return the objects that serve this application."""
    wiring: Wiring = request.app.state.rqsched
    return wiring


def get_scheduler(request: Request) -> Scheduler:
    """Return the application's scheduler."""
    return wiring_of(request).scheduler


async def principal_of(request: Request) -> Principal:
    """Authenticate the request, and count it against the principal's rate limit; raises HttpError."""
    wiring = wiring_of(request)
    principal = wiring.authenticator.principal_of(request)
    allowance = wiring.buckets.take(principal.name)
    if allowance is not None:
        request.scope[ADDED_HEADERS] = allowance.headers
    return principal


SignedIn = Annotated[Principal, Depends(principal_of)]


async def namespace_of(
    request: Request,
    principal: SignedIn,
    x_namespace: Annotated[str | None, Header(description="The namespace; takes precedence over the query.")] = None,
    namespace: Annotated[str | None, Query(description="The namespace.")] = None,
) -> str:
    """Return the requested namespace: header, then query, then the default.

    Raises InvalidIdError. Raises NamespaceNotFoundError if the principal may not see the namespace.
    """
    default = get_scheduler(request).settings.namespace
    if not principal.sees(default) and len(principal.namespaces or ()) == 1:
        (default,) = principal.namespaces or (default,)  # the only namespace of the token is its default
    wanted = require_id(x_namespace or namespace or default, "namespace")
    if not principal.sees(wanted):
        raise NamespaceNotFoundError(wanted)
    return wanted


Namespace = Annotated[str, Depends(namespace_of)]


def require_role(principal: Principal, role: Role) -> None:
    """Raise ForbiddenError unless the principal has the role."""
    if principal.role < role:
        raise ForbiddenError(
            f"this requires the role {role.name.lower()!r}; the token has {principal.role.name.lower()!r}. "
            "Use a token of that role."
        )


def require_all(call: Call) -> None:
    """Refuse a principal that sees only some namespaces; raises ForbiddenError."""
    if call.principal.namespaces is not None:
        raise ForbiddenError("this concerns every namespace, and the token sees only some; use one of all namespaces.")


def require_allowed_hosts(scheduler: Scheduler, notifications: object) -> None:
    """Refuse URLs on hosts that the operator does not allow, because the operator's network would call these URLs."""
    refused = refused_url(notifications, scheduler.settings.notification_hosts)
    if refused is not None:
        name, host = refused
        reason = f"the host {host!r} is not allowed here; the operator lists hosts in RQSCHED_NOTIFICATION_HOSTS"
        raise InvalidInputError(f"notifications.{name}", reason)


def allow(role: Role, *, takes_conditions: bool = True) -> Callable[..., Awaitable[Call]]:
    """Return the dependency that requires a role.

    If the principal may not see the namespace, the response is 404, even if the principal also lacks the role (403). If
    `takes_conditions` is False, a conditional request is refused. Otherwise its caller would believe that the condition
    was checked.
    """

    async def admit(request: Request, principal: SignedIn, namespace: Namespace) -> Call:
        require_role(principal, role)
        for name in () if takes_conditions else _CONDITIONS:
            if name in request.headers:
                raise MalformedError(
                    f"{name} is not honoured here, and nothing was done. Omit it; PATCH, DELETE, pause, skip-next, "
                    "resume and restart of a schedule take If-Match."
                )
        span = parse_traceparent(request.headers.get("traceparent", ""))
        tag = tag_of(request)
        return Call(get_scheduler(request), principal, namespace, tag.request_id, span and str(span))

    return admit


_CONDITIONS = ("If-Match", "If-None-Match", "If-Unmodified-Since")
Read = Annotated[Call, Depends(allow(Role.READ))]
"""A call that requires the role `read`."""
Operate = Annotated[Call, Depends(allow(Role.OPERATE))]
"""A call that requires the role `operate`. Its endpoint checks conditions, such as If-Match."""
OperateAlways = Annotated[Call, Depends(allow(Role.OPERATE, takes_conditions=False))]
"""A call that requires the role `operate`, and refuses conditions."""
Admin = Annotated[Call, Depends(allow(Role.ADMIN))]
"""A call that requires the role `admin`. Its endpoint checks conditions, such as If-Match."""
AdminAlways = Annotated[Call, Depends(allow(Role.ADMIN, takes_conditions=False))]
"""A call that requires the role `admin`, and refuses conditions."""


def _heavy(
    role: Role, *, takes_conditions: bool = True, only: Callable[[dict[str, Any]], bool] | None = None
) -> Callable[..., AsyncIterator[Call]]:
    """Return the dependency of a call that computes for seconds. If `only` refuses the body, the call is not heavy."""
    admitted: Any = Depends(allow(role, takes_conditions=takes_conditions))

    async def admit(request: Request, call: Call = admitted) -> AsyncIterator[Call]:
        async with AsyncExitStack() as stack:
            if only is None or only(await _body_of(request)):
                wiring = wiring_of(request)
                await stack.enter_async_context(wiring.heavy_reads.admit(request, call.principal.name))
            yield call

    return admit


async def _body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request, or an empty one."""
    body = await request.json() if await request.body() else None
    return body if isinstance(body, dict) else {}


def _is_dry(body: dict[str, Any]) -> bool:
    return bool(body.get("dry_run"))


def _counts(body: dict[str, Any]) -> bool:
    return _is_dry(body) or body.get("cursor") is None


ReadHeavy = Annotated[Call, Depends(_heavy(Role.READ))]
"""A call that requires the role `read` and computes for seconds."""
AdminHeavy = Annotated[Call, Depends(_heavy(Role.ADMIN))]
"""A call that requires the role `admin` and computes for seconds."""
OperateOrHeavy = Annotated[Call, Depends(_heavy(Role.OPERATE, takes_conditions=False, only=_is_dry))]
"""A call like `OperateAlways`. As a dry run, it computes for seconds."""
OperateOrCount = Annotated[Call, Depends(_heavy(Role.OPERATE, takes_conditions=False, only=_counts))]
"""A call like `OperateOrHeavy`. Without a cursor, it also computes for seconds, because it counts the schedules."""
AdminOrHeavy = Annotated[Call, Depends(_heavy(Role.ADMIN, takes_conditions=False, only=_is_dry))]
"""A call like `AdminAlways`. As a dry run, it computes for seconds."""

bearer = HTTPBearer(auto_error=False, description="A token of RQSCHED_TOKENS; not required when none is configured.")
"""The security scheme for the OpenAPI document. It checks nothing, because `principal_of` authenticates."""
