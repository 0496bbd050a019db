"""The operations that viewers request. Each is confirmed first, and recorded with the viewer's name and reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from rqsched import BackfillRange, OverlapPolicy
from rqsched.api import backfills
from rqsched.api import runs as run_queries
from rqsched.api import schedules as schedule_queries
from rqsched.api.backfills import DEFAULT_BOUND
from rqsched.api.database import Connection
from rqsched.api.namespaces import delete_some
from rqsched.api.run_handle import RunHandle
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.states import skip_in_words
from rqsched.dashboard.rendering import field_text
from rqsched.dashboard.visit import Visit
from rqsched.errors import BackfillNotFoundError, InvalidInputError, RqschedError
from rqsched.http.auth import Role
from rqsched.http.dependencies import require_role
from rqsched.http.errors import ForbiddenError
from rqsched.types import Page, Run, RunStatus, Schedule

_MOST_DAYS = 30
WAITING = ("pending", "buffered", "retrying")
"""The statuses of a run whose next attempt has not begun."""
_MOST_CANCELLED, _CANCEL_SECONDS = 500, 3.0
"""The most runs of a backfill that are read at once, and the time after which a request cancels no further run."""


@dataclass(frozen=True, slots=True)
class Action:
    """One operation on a schedule."""

    name: str
    """Its name in forms."""
    label: str
    """The text of its button."""
    question: str
    """The question that asks for confirmation. `{id}` stands for the schedule's id."""
    effect: str
    """What will happen."""
    role: Role
    """The role that it requires."""
    statuses: frozenset[str]
    """The statuses of a schedule in which the operation is offered."""
    do: Callable[[Visit, ScheduleHandle], str]
    """Does the operation. Returns a sentence for the viewer about its effect."""
    is_danger: bool = False
    """Whether its button looks dangerous."""
    key: str | None = None
    """Its keyboard shortcut on a row of the list of schedules; None means no shortcut."""


def _pause(visit: Visit, handle: ScheduleHandle) -> str:
    until = until_of(visit)
    on_resume = None if until is None else visit.form.get("on_resume") or None
    handle.pause(reason=visit.context.reason, until=until, on_resume=on_resume, context=visit.context)
    end = "" if until is None else f" until {until.astimezone(visit.zone):%a %d %b %Y %H:%M %Z}"
    return f"{handle.schedule_id} is paused{end}."


def until_of(visit: Visit) -> datetime | None:
    """Read the end of a pause from the form; None if the field is empty. Raises InvalidInputError."""
    text = visit.form.get("until", "").strip()
    return visit.instant("until", text) if text else None


def count_of(visit: Visit) -> int:
    """Read the number of occurrences to skip; raises InvalidInputError."""
    text = visit.form.get("count", "1").strip()
    if not (text.isascii() and text.isdigit()):
        raise InvalidInputError("count", f"{text[:32]!r} is not a whole number; write one from 0 to 100")
    return int(text[:9])


def _skip_next(visit: Visit, handle: ScheduleHandle) -> str:
    handle.skip_next(count_of(visit), reason=visit.context.reason, context=visit.context)
    named = [f"{at.astimezone(visit.zone):%a %d %b %Y %H:%M %Z}" for at in handle.skips]
    return f"{handle.schedule_id} skips {', '.join(named) or 'nothing'}."


def _resume(visit: Visit, handle: ScheduleHandle) -> str:
    handle.resume(visit.form.get("on_resume") or None, context=visit.context)
    return f"{handle.schedule_id} {_fires_again(visit)}."


def _restart(visit: Visit, handle: ScheduleHandle) -> str:
    handle.restart(context=visit.context)
    return f"{handle.schedule_id} {_fires_again(visit)}, with its counters at zero."


def _fires_again(visit: Visit) -> str:
    return "fires again" if visit.stop is None else f"is active again, and nothing fires while {visit.stop}"


def _trigger(visit: Visit, handle: ScheduleHandle) -> str:
    result = handle.trigger(visit.form.get("overlap") or None, force=handle.status != "active", context=visit.context)
    if result.run is None:
        return f"Nothing was started: {skip_in_words(result.reason or '')}."
    return f"Run #{result.run.number} of {handle.schedule_id} is {result.outcome}."


def _backfill(visit: Visit, handle: ScheduleHandle) -> str:
    """Count the occurrences, or start a backfill. Its first chunk fires at once; the rest fires after the response."""
    overlap = visit.form.get("overlap")
    policy = OverlapPolicy.of(overlap) if overlap else None
    start_at, end_at = (visit.instant(name, visit.form.get(name, "")) for name in ("start", "end"))
    wanted = BackfillRange(start_at, end_at, policy, DEFAULT_BOUND, visit.context)
    if "dry_run" in visit.form:
        chunks = backfills.preview(visit.scheduler.runtime, handle.refresh().state, wanted)
        counts = Counter(row.outcome for rows in chunks for row in rows)
        told = f"{counts['would_start']} would start, {counts['already_run']} had run before"
        told += f", {counts['skipped']} would be skipped" * bool(counts["skipped"])
        return f"Of {counts.total()} occurrences in that range {told}. Nothing was started."
    done = next(iter(handle.backfill_in_chunks(wanted)))
    if done.uid is not None and not done.is_done:
        backfills.continue_later(visit.scheduler.runtime, done.uid)
        return f"{done.attempted} done so far; it continues, and its progress is shown below."
    return f"{done.started} started, {done.buffered} wait, {done.already_run} had run before, {done.skipped} skipped."


def _delete(visit: Visit, handle: ScheduleHandle) -> str:
    handle.delete(reason=visit.context.reason, context=visit.context)
    return f"{handle.schedule_id} is deleted. Its history stays."


_LIVE = frozenset({"active", "paused", "done", "dead"})
ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action(
            "trigger", "Run now", "Run {id} now?", "One run is started at once; the schedule's own times do not move.",
            Role.OPERATE, frozenset({"active", "paused"}), _trigger, key="r",
        ),
        Action(
            "pause", "Pause", "Pause {id}?", "It stops firing. Runs and their retries continue.",
            Role.OPERATE, frozenset({"active"}), _pause, key="p",
        ),
        Action(
            "skip_next", "Skip next", "Skip what {id} fires next?",
            "The next occurrences that are not due yet are skipped, and no others; the page of a schedule shows which.",
            Role.OPERATE, frozenset({"active"}), _skip_next,
        ),
        Action(
            "resume", "Resume", "Resume {id}?", "It fires again.", Role.OPERATE, frozenset({"paused"}), _resume,
            key="p",
        ),
        Action(
            "restart", "Restart", "Restart {id}?", "It fires again, with its counters at zero.",
            Role.OPERATE, frozenset({"done", "dead"}), _restart, key="p",
        ),
        Action(
            "backfill", "Backfill", "Backfill {id}?", "Past occurrences that have no run yet are run.",
            Role.OPERATE, _LIVE, _backfill,
        ),
        Action(
            "delete", "Delete", "Delete {id}?", "It never fires again and its id is free; its history stays.",
            Role.ADMIN, _LIVE, _delete, is_danger=True,
        ),
    )
}  # fmt: skip
"""The operations by name, in the order of the buttons."""


_OF_TIMES = frozenset({"backfill", "skip_next"})
"""The operations that a downstream schedule does not have, because it has no occurrences of its own."""
_STARTS = frozenset({"backfill", "trigger"})
"""The operations that start runs, which a freeze refuses."""


def offered(visit: Visit, schedule: Schedule) -> list[Action]:
    """Return the operations that the viewer may request, and that the status of the schedule allows."""
    may = [one for one in _allowed(visit) if schedule.status in one.statuses]
    return may if schedule.upstream_id is None else [one for one in may if one.name not in _OF_TIMES]


def offered_for_several(visit: Visit) -> list[Action]:
    """Return the operations that the viewer may request for several schedules at once. A backfill is none of them."""
    return [one for one in _allowed(visit) if one.name != "backfill"]


def _allowed(visit: Visit) -> list[Action]:
    may = [one for one in ACTIONS.values() if visit.principal.role >= one.role]
    return may if visit.may_start else [one for one in may if one.name not in _STARTS]


def confirm(visit: Visit) -> Response:
    """Ask whether to do an operation. The page offers the choices of the operation."""
    action = named(visit.query("action"))
    require_role(visit.principal, action.role)
    said = "" if action in _allowed(visit) else f"That is refused while {visit.stop}."
    return _question(visit, action, visit.schedule(), said)


def _question(visit: Visit, action: Action, handle: ScheduleHandle, said: str = "", status: int = 200) -> Response:
    """Ask whether to do an operation on a schedule, with a message and the form as it was filled in."""
    path = f"/schedules/{handle.schedule_id}"
    return ask(
        visit, action, action.question.replace("{id}", handle.schedule_id), f"{path}/do", back=visit.url(path),
        status=status, schedule=handle.state, said=said,
    )  # fmt: skip


def ask(
    visit: Visit, action: Action, question: str, path: str, *, back: str, status: int = 200, **values: object
) -> Response:
    """Show a question with the choices of the operation. The viewer's answer is sent to `path`."""
    given = {"schedule": None, "said": "", "about": "", "counted_at": None, "kept": {}, "chosen": (), **values}
    return visit.page(
        "confirm.html", status, action=action, question=question, path=path, back=back, overlaps=list(OverlapPolicy),
        **given,
    )  # fmt: skip


def act_on_schedule(visit: Visit) -> Response:
    """Do one operation on one schedule, and show the schedule's page.

    If a backfill only counted, or was refused, show its form again.
    """
    action = named(visit.form.get("action", ""))
    require_role(visit.principal, action.role)
    handle, status = visit.schedule(), 200
    try:
        message = action.do(visit, handle)
    except RqschedError as error:
        message, status = f"Not done: {error}", error.http_status
    if action.name == "backfill" and (status != 200 or "dry_run" in visit.form):
        return _question(visit, action, handle, message, status)
    path = "/schedules" if handle.status == "deleted" else f"/schedules/{handle.schedule_id}"
    return visit.done(message, path)


def confirm_retry_failed(visit: Visit) -> Response:
    """Ask whether to retry every run that failed since an instant (by default, a day ago). Show their number."""
    since, schedule_id = _since(visit, _asked(visit)), visit.query("schedule") or None
    rows = visit.scheduler.runs.retry_failed(since, schedule_id=schedule_id, namespace=visit.namespace, dry_run=True)
    return visit.page("retry_failed.html", since=since, schedule_id=schedule_id, count=len(rows), days=_MOST_DAYS)


def retry_failed(visit: Visit) -> Response:
    """Retry every run of one or all schedules that failed since an instant. The overlap policies of schedules apply."""
    context, schedule_id = visit.context, visit.form.get("schedule") or None
    rows = visit.scheduler.runs.retry_failed(
        _since(visit, visit.form.get("since", ""), patience=timedelta(days=1)), schedule_id=schedule_id,
        namespace=visit.namespace,
        reason=context.reason, context=context,
    )  # fmt: skip
    path = f"/schedules/{quote(schedule_id, safe='')}" if schedule_id else "/"
    return visit.done(f"{len(rows)} run{'s' * (len(rows) != 1)} retried.", path)


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


def confirm_freeze(visit: Visit) -> Response:
    """Ask whether to freeze the namespace, and why."""
    return visit.page("freeze.html")


def freeze(visit: Visit) -> Response:
    """Freeze the namespace: no fire and no attempt begins in it until the thaw."""
    context = visit.context
    try:
        visit.scheduler.freeze(context.reason, namespace=visit.namespace, context=context)
    except RqschedError as error:
        return visit.done(f"Not done: {error}", "/system")
    return visit.done(f"The namespace {visit.namespace} is frozen.", "/system")


def confirm_thaw(visit: Visit) -> Response:
    """Ask whether to thaw the namespace, or everything; list the due schedules and the waiting runs."""
    everything = visit.query("everything") == "yes"
    return visit.page(
        "thaw.html", everything=everything, found=visit.scheduler.preview_thaw(**_thawed(visit, everything))
    )


def thaw(visit: Visit) -> Response:
    """Thaw the namespace, or everything. Due occurrences are handled as chosen; waiting runs may be cancelled first."""
    cancels = "cancel_pending" in visit.form
    missed: Any = visit.form.get("missed") or None
    everything = visit.form.get("everything") == "yes"
    scope: dict[str, Any] = _thawed(visit, everything)
    try:
        done = visit.scheduler.thaw(missed=missed, cancel_pending=cancels, context=visit.context, **scope)
    except RqschedError as error:
        return visit.done(f"Not done: {error}", "/")
    also = f" {done.fired} occurrences fire, {done.missed} are recorded as missed." if missed else ""
    also += f" {done.cancelled} runs are cancelled." if cancels else ""
    what = "Everything" if everything else f"The namespace {visit.namespace}"
    return visit.done(f"{what} {'is thawed' if done.freeze else 'was not frozen'}.{also}", "/")


def _thawed(visit: Visit, everything: bool) -> dict[str, Any]:
    """Return the arguments that tell the scheduler what to thaw; raises ForbiddenError."""
    if everything:
        _require_all(visit)
        return {"everything": True}
    return {"namespace": visit.namespace}


def confirm_delete_namespace(visit: Visit) -> Response:
    """Ask whether to delete everything in the namespace. Show how much there is to delete."""
    return visit.page("delete_namespace.html", found=visit.scheduler.namespaces.preview_delete(visit.namespace))


def delete_namespace(visit: Visit) -> Response:
    """Delete some thousand rows of the namespace, if its name was typed. Then ask again, until no rows are left."""
    name, where = visit.namespace, "/namespace/delete"
    if visit.form.get("confirm", "").strip() != name:
        return visit.done(f"Not done: type {name}, the name of the namespace.", where)
    try:
        done = delete_some(visit.scheduler.runtime, name, visit.context, terminates="terminate" in visit.form)
    except RqschedError as error:
        return visit.done(f"Not done: {error}", where)
    told = ", ".join(f"{count} {what}" for what, count in sorted(done.rows.items())) or "nothing"
    if not done.is_over:
        return visit.done(f"Deleted so far: {told}. There is more: repeat it.", where)
    return visit.done(f"The namespace {name} is deleted: {told}.", "/audit")


def _require_all(visit: Visit) -> None:
    if not visit.sees_all:
        raise ForbiddenError("this concerns every namespace, and you see only some; use a token of all of them.")


def act_on_run(visit: Visit) -> Response:
    """Retry, cancel or terminate one run."""
    schedule, run = visit.run()
    handle = RunHandle(visit.scheduler.runtime, run)
    wanted = visit.form.get("action", "")
    try:
        if wanted == "retry":
            handle.retry(visit.context.reason, context=visit.context)
        elif wanted == "retry_failed_targets":
            handle.retry(visit.context.reason, failed_targets=True, context=visit.context)
        elif wanted == "cancel":
            handle.cancel(visit.context.reason, context=visit.context)
        elif wanted == "terminate":
            handle.terminate(visit.context.reason, context=visit.context)
        else:
            raise InvalidInputError("action", f"{wanted[:32]!r} is not offered for a run")
        message = f"Run #{run.number} of {schedule.schedule_id} is {handle.status}."
    except RqschedError as error:
        message = f"Not done: {error}"
    return visit.done(message, f"/runs/{run.uid}")


def named(name: str) -> Action:
    """Find an action by its name in forms; raises InvalidInputError."""
    if name not in ACTIONS:
        raise InvalidInputError("action", f"{name[:32]!r} is not one of {', '.join(ACTIONS)}")
    return ACTIONS[name]


def cancel_backfill(visit: Visit) -> Response:
    """Stop a backfill, or cancel its waiting runs, as the form says. Runs that have started continue."""
    uid = str(visit.request.path_params["uid"]).upper()
    found = backfills.get_backfill(visit.scheduler.runtime, uid)
    schedule = visit.read(lambda connection: schedule_queries.find(connection, found.schedule_uid))
    if schedule is None or schedule.namespace != visit.namespace:
        raise BackfillNotFoundError(uid)
    path = f"/schedules/{schedule.schedule_id}"
    if "waiting" in visit.form:
        return visit.done(_cancel_waiting(visit, found), path)
    ended = backfills.cancel(visit.scheduler.runtime, uid, reason=visit.context.reason, context=visit.context)
    return visit.done(f"The backfill is {ended.status}; what it has started continues.", path)


def _cancel_waiting(visit: Visit, found: backfills.Backfill) -> str:
    """Cancel waiting runs of a backfill for a few seconds. Begin with the newest, because the oldest may start soon."""

    def read(connection: Connection) -> Page[Run]:
        schedule, uid = found.schedule_uid, found.uid
        return run_queries.list_runs(connection, schedule, limit=_MOST_CANCELLED, statuses=WAITING, backfill_uid=uid)

    waiting = visit.read(read)
    cancelled, until = 0, time.monotonic() + _CANCEL_SECONDS
    for run in waiting.items:
        if time.monotonic() > until:
            break
        ended = RunHandle(visit.scheduler.runtime, run).cancel(visit.context.reason, context=visit.context)
        cancelled += ended.status == RunStatus.CANCELLED
    is_all = cancelled == len(waiting.items) and waiting.next_cursor is None
    return f"{cancelled} runs are cancelled." + ("" if is_all else " More wait: repeat it for the next ones.")
