"""The page that retries every run that failed since an instant, of one schedule or of all."""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import quote

from starlette.responses import Response

from rqsched.dashboard.equivalent import Equivalent, call, command, in_namespace, with_imports
from rqsched.dashboard.frame import form, page
from rqsched.dashboard.rendering import field_text
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError
from rqsched.http.auth import Role
from rqsched.kernel.decide.results import number_of

_MOST_DAYS = 30


def confirm_retry_failed(visit: Visit) -> Response:
    """Ask whether to retry every run that failed since an instant (by default, a day ago). Show their number."""
    since, schedule_id = _since(visit, _asked(visit)), visit.query("schedule") or None
    rows = visit.scheduler.runs.retry_failed(since, schedule_id=schedule_id, namespace=visit.namespace, dry_run=True)
    return visit.page(
        "retry_on_request/retry_failed.html",
        since=since,
        schedule_id=schedule_id,
        count=len(rows),
        days=_MOST_DAYS,
        same=_equivalent(visit, since, schedule_id),
    )


def retry_failed(visit: Visit) -> Response:
    """Retry every run of one or all schedules that failed since an instant. The overlap policies of schedules apply."""
    context, schedule_id = visit.context, visit.form.get("schedule") or None
    rows = visit.scheduler.runs.retry_failed(
        _since(visit, visit.form.get("since", ""), patience=timedelta(days=1)), schedule_id=schedule_id,
        namespace=visit.namespace,
        reason=context.reason, context=context,
    )  # fmt: skip
    path = f"/schedules/{quote(schedule_id, safe='')}" if schedule_id else "/"
    return visit.done(f"{number_of(len(rows), 'run')} retried.", path)


def equivalent(visit: Visit) -> Equivalent:
    """Return the retry as a command and in Python."""
    since = _since(visit, visit.form.get("since", ""), patience=timedelta(days=1))
    return _equivalent(visit, since, visit.form.get("schedule") or None)


def _equivalent(visit: Visit, since: datetime, schedule_id: str | None) -> Equivalent:
    code = call(
        "scheduler.runs.retry_failed", since, schedule_id=schedule_id, reason=visit.context.reason,
        **in_namespace(visit),
    )  # fmt: skip
    return Equivalent(command(visit, "retry", failed=True, since=since, schedule=schedule_id), with_imports(code))


def _asked(visit: Visit) -> str:
    """Return the instant that was typed. If the field is unchanged, return the exact instant that was shown.

    The field has no UTC offset. Therefore its text is ambiguous in an hour that occurs twice.
    """
    typed, shown = visit.query("since"), visit.query("shown")
    is_left = bool(shown) and field_text(visit.instant("shown", shown), visit.zone) == typed
    return shown if is_left else typed


def _since(visit: Visit, text: str, *, patience: timedelta = timedelta(minutes=1)) -> datetime:
    """Read an instant. `patience` is how long a viewer may look at the form. The limit is extended by this time."""
    since = visit.instant("since", text) if text else (visit.now - timedelta(days=1)).replace(second=0, microsecond=0)
    if not visit.now - timedelta(days=_MOST_DAYS) - patience <= since <= visit.now:
        raise InvalidInputError("since", f"must be in the last {_MOST_DAYS} days")
    return since


ROUTES = (
    page("/retry-failed", confirm_retry_failed, Role.OPERATE),
    form("/retry-failed", retry_failed, equivalent=equivalent),
)
"""The addresses of this page in the dashboard."""
