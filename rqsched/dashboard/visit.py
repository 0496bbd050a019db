"""One request of a browser, with its principal and namespace, and the methods that render its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rqsched import CommandContext
from rqsched.api import outages
from rqsched.api import runs as run_queries
from rqsched.api import schedules as schedule_queries
from rqsched.api.database import Connection
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.scheduler import Scheduler
from rqsched.api.values import is_uid
from rqsched.dashboard import session
from rqsched.dashboard.rendering import html, render
from rqsched.errors import InvalidInputError, RunNotFoundError
from rqsched.http.auth import Principal, Role
from rqsched.http.dependencies import require_role, wiring_of
from rqsched.types import Freeze, Run, Schedule
from rqsched.when.zones import known_timezones

T = TypeVar("T")
_MOST_NAMESPACES = 100


@dataclass(frozen=True)
class Visit:
    """One authenticated request of a browser."""

    request: Request
    """The request."""
    scheduler: Scheduler
    """The scheduler whose schedules are shown."""
    principal: Principal
    """The viewer."""
    namespace: str
    """The namespace that is shown. The principal may see it."""
    request_id: str
    """Recorded in audit events and logs."""
    now: datetime
    """When the request came, by the scheduler's clock, before any read."""
    form: Mapping[str, str] = field(default_factory=dict)
    """The fields of a submitted form; empty for a page."""
    chosen: tuple[str, ...] = ()
    """The ids that a form's checkboxes chose."""

    @property
    def context(self) -> CommandContext:
        """The context that audit events of this request record, with the reason that the viewer typed."""
        reason = self.form.get("reason", "").strip() or None
        return CommandContext(
            principal=self.principal.name, request_id=self.request_id, source="dashboard", reason=reason
        )

    @property
    def zone(self) -> ZoneInfo:
        """The viewer's time zone, which the browser sends in a cookie. It is UTC until the browser has sent it."""
        name = unquote(self.request.cookies.get(session.ZONE, ""))
        return ZoneInfo(name if name in known_timezones() else "UTC")

    def read(self, query: Callable[[Connection], T]) -> T:
        """Read from the database."""
        return self.scheduler.runtime.database.read(query)

    def schedule(self) -> ScheduleHandle:
        """Find the schedule in the path, even a deleted schedule; raises ScheduleNotFoundError."""
        return self.scheduler.newest(self.request.path_params["schedule_id"], namespace=self.namespace)

    def run(self) -> tuple[Schedule, Run]:
        """Find the run in the path, with its schedule; raises RunNotFoundError."""
        uid = str(self.request.path_params["uid"]).upper()
        find = partial(run_queries.find_run_with_schedule, namespace=self.namespace, uid=uid)
        found = self.read(find) if is_uid(uid) else None
        if found is None:
            raise RunNotFoundError(uid[:64])
        return found

    def may(self, role: str) -> bool:
        """Return whether the viewer has a role: `read`, `operate` or `admin`."""
        return self.principal.role >= Role[role.upper()]

    def require(self, role: Role) -> None:
        """Raise ForbiddenError unless the viewer has the role."""
        require_role(self.principal, role)

    @property
    def sees_all(self) -> bool:
        """Whether the viewer sees every namespace. Other viewers see only a part of queues, workers and repairs."""
        return self.principal.namespaces is None

    def query(self, name: str, default: str = "") -> str:
        """Return a parameter of the page's address."""
        return self.request.query_params.get(name, default).strip()

    def instant(self, name: str, text: str, zone: ZoneInfo | None = None) -> datetime:
        """Read a typed time; raises InvalidInputError. Without an offset, it is in `zone`, or in the viewer's zone."""
        try:
            at = datetime.fromisoformat(text.strip())
            return (at if at.tzinfo else at.replace(tzinfo=zone or self.zone)).astimezone(UTC)
        except (ValueError, OverflowError):
            raise InvalidInputError(name, f"{text[:64]!r} is not a time; write one such as 2026-01-31 02:00") from None

    def url(self, path: str = "", /, **query: Any) -> str:
        """Return the address of a page, below the mount point and in the namespace of this visit."""
        if self.namespace != self.scheduler.settings.namespace:
            query.setdefault("namespace", self.namespace)
        given = {name: value for name, value in query.items() if value not in {None, ""}}
        base = str(self.request.scope.get("root_path", ""))
        return f"{base}{path or '/'}" + (f"?{urlencode(given)}" if given else "")

    def here(self, **changes: Any) -> str:
        """Return the address of this page with some changed parameters. The value None removes a parameter."""
        path = self.request.url.path.removeprefix(str(self.request.scope.get("root_path", "")))
        return self.url(quote(path, safe="/:@"), **{**dict(self.request.query_params), **changes})

    def page(self, template: str, /, status: int = 200, **values: Any) -> Response:
        """Render a page."""
        csrf = session.csrf_of(self.request)
        flash = unquote(self.request.cookies.get(session.FLASH, ""))
        text = render(template, visit=self, csrf=session.masked(csrf), flash=flash, **values)
        response = html(self.request, text, status)
        if flash:
            session.forget(response, self.request, session.FLASH)
        if csrf != self.request.cookies.get(session.CSRF):
            session.remember(response, self.request, session.CSRF, csrf)
        return response

    def done(self, message: str, path: str, **query: Any) -> Response:
        """Return the response to a form. The browser then shows the page at `path` with a message."""
        response = RedirectResponse(self.url(path, **query), 303)
        session.remember(response, self.request, session.FLASH, quote(message[:1000]), seconds=30)
        return response

    @cached_property
    def all_frozen(self) -> Freeze | None:
        """The freeze of everything, for the banner of every page; None if there is none."""
        gate = self.scheduler.runtime.freezes
        gate.look()
        return gate.known

    @cached_property
    def freeze(self) -> Freeze | None:
        """The freeze of the namespace, for the banner of every page; None if the namespace is not frozen."""
        gate = self.scheduler.runtime.freezes
        gate.look()
        return gate.find_frozen().get(self.namespace)

    @property
    def may_start(self) -> bool:
        """Whether a viewer may start runs in the namespace. A freeze forbids it."""
        return self.all_frozen is None and self.freeze is None

    @property
    def stop(self) -> str | None:
        """Why nothing fires in the namespace now, as a part of a sentence; None if schedules fire."""
        if self.all_frozen is not None:
            return "everything is frozen"
        if self.freeze is not None:
            return "the namespace is frozen"
        return self.redis_problem

    @property
    def stop_word(self) -> str:
        """The word that pages add to the status of active schedules if nothing fires now; empty if schedules fire."""
        return "" if self.stop is None else "stopped" if self.may_start else "frozen"

    @cached_property
    def redis_problem(self) -> str | None:
        """The error of the last request to Redis, as a sentence; None if Redis answered.

        Without Redis, pages lack many values.
        """
        gate = self.scheduler.runtime.freezes
        gate.look()
        return None if gate.redis_error is None else outages.briefly(gate.redis_error)

    @property
    def stopped_at(self) -> datetime | None:
        """When the freeze that stops the namespace began; None if there is no freeze, or if its start is not known."""
        stop = self.all_frozen or self.freeze
        return None if stop is None else stop.since

    @property
    def stream(self) -> str:
        """The address of the stream of changes; empty if streams are turned off."""
        return self.url("/stream") if wiring_of(self.request).feed.limits.streams else ""

    @cached_property
    def namespaces(self) -> list[str]:
        """The namespaces among which the viewer can choose."""
        if self.principal.namespaces is not None:
            return sorted(self.principal.namespaces)
        known = self.scheduler.runtime.database.read(
            lambda connection: schedule_queries.namespaces(connection, _MOST_NAMESPACES), is_alone=True
        )
        return sorted({*known, self.namespace, self.scheduler.settings.namespace})
