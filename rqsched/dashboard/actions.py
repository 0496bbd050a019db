"""The operations on schedules and runs that viewers request.

Each is confirmed first, and recorded with the viewer's name and reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from starlette.responses import Response

from rqsched import BackfillRange, OverlapPolicy, Rerun
from rqsched.api import backfills
from rqsched.api.backfills import DEFAULT_BOUND, PRUNED, RERUN
from rqsched.api.run_handle import RunHandle
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.states import skip_in_words
from rqsched.api.values import number_of
from rqsched.dashboard.equivalent import (
    Equivalent,
    call,
    command,
    handle,
    in_namespace,
    loop,
    quoted,
    reason_in_context,
    with_imports,
)
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, RqschedError
from rqsched.http.auth import Role
from rqsched.http.dependencies import require_role
from rqsched.types import Run, Schedule


class Wording(NamedTuple):
    """An operation with its choices, in the words of its command and in the arguments of its method."""

    command: str
    """The name of the command."""
    flags: Mapping[str, Any]
    """The flags of the command, besides the reason."""
    named: Mapping[str, Any]
    """The arguments of the method that are given by name."""
    given: tuple[Any, ...] = ()
    """The other arguments of the method."""
    number: int | None = None
    """The number of occurrences, which the command takes without a flag; None for most operations."""


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
    wording: Callable[[Visit, bool], Wording | None]
    """Returns the operation in words, with the choices of the form. The flag says whether a schedule may be paused.
    None means that a choice is missing."""
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
    rerun = visit.form.get("rerun")
    wanted = BackfillRange(start_at, end_at, policy, DEFAULT_BOUND, visit.context, Rerun.of(rerun) if rerun else None)
    if "dry_run" in visit.form:
        chunks = backfills.preview(visit.scheduler.runtime, handle.refresh().state, wanted)
        rows = [row for some in chunks for row in some]
        counts, reasons = Counter(row.outcome for row in rows), Counter(row.reason for row in rows)
        told = f"{counts['would_start']} would start" + f" ({reasons[RERUN]} as a retry)" * bool(reasons[RERUN])
        told += f", {counts['already_run'] - reasons[PRUNED]} already have a run"
        told += f", {reasons[PRUNED]} have no history any more and are left out" * bool(reasons[PRUNED])
        told += f", {counts['skipped']} would be skipped" * bool(counts["skipped"])
        return f"Of {number_of(len(rows), 'occurrence')} in that range {told}. Nothing was started."
    done = next(iter(handle.backfill_in_chunks(wanted)))
    if done.uid is not None and not done.is_done:
        backfills.continue_later(visit.scheduler.runtime, done.uid)
        return f"{done.attempted} done so far. The backfill continues; its progress is shown below."
    return (
        f"{done.started} started, {done.buffered} wait, {done.already_run} already had a run, {done.skipped} skipped."
    )


def _delete(visit: Visit, handle: ScheduleHandle) -> str:
    handle.delete(reason=visit.context.reason, context=visit.context)
    return f"{handle.schedule_id} is deleted. Its history stays."


def _say_pause(visit: Visit, _: bool) -> Wording:
    until = until_of(visit)
    ends = {"until": until, "on_resume": None if until is None else visit.form.get("on_resume") or None}
    return Wording("pause", ends, {"reason": visit.context.reason, **ends})


def _say_skip_next(visit: Visit, _: bool) -> Wording:
    count = count_of(visit)
    return Wording("skip", {}, {"reason": visit.context.reason}, (count,), count)


def _say_resume(visit: Visit, _: bool) -> Wording:
    where = visit.form.get("on_resume", "next") or None  # "next" is chosen when the form appears
    return Wording("resume", {"on_resume": where}, {"on_resume": where, "context": reason_in_context(visit)})


def _say_restart(visit: Visit, _: bool) -> Wording:
    return Wording("restart", {}, {"context": reason_in_context(visit)})


def _say_trigger(visit: Visit, may_be_paused: bool) -> Wording:
    choices = {"overlap": visit.form.get("overlap") or None, "force": may_be_paused}
    return Wording("trigger", choices, {**choices, "context": reason_in_context(visit)})


def _say_backfill(visit: Visit, _: bool) -> Wording | None:
    texts = [visit.form.get(name, "") for name in ("start", "end")]
    if not all(texts):
        return None
    start, end = (visit.instant(name, text) for name, text in zip(("start", "end"), texts, strict=True))
    policy = {"overlap": visit.form.get("overlap") or None}
    named = {**policy, "context": reason_in_context(visit)}
    return Wording("backfill", {"start": start, "end": end, **policy}, named, (start, end))


def _say_delete(visit: Visit, _: bool) -> Wording:
    return Wording("delete", {}, {"reason": visit.context.reason})


def equivalent_of(visit: Visit, action: Action, ids: Sequence[str], *, may_be_paused: bool) -> Equivalent:
    """Return an operation on schedules as commands and in Python."""
    said = action.wording(visit, may_be_paused)
    if said is None:
        return Equivalent(remark="Fill in the form first.")
    number = None if said.number is None else str(said.number)
    commands = [command(visit, said.command, one, number, **said.flags) for one in ids]
    done = call(f"{handle(visit, ids[0] if len(ids) == 1 else None)}.{action.name}", *said.given, **said.named)
    listed = "".join(f"\n    {quoted(one)}," for one in ids)
    code = done if len(ids) == 1 else loop(f"for schedule_id in [{listed}\n]", done)
    return Equivalent("\n".join(commands), with_imports(code))


_LABELS = {"start": "From", "end": "Until", "until": "Until", "count": "How many"}
"""The labels of the fields of the form, by their names in operations."""
_LIVE = frozenset({"active", "paused", "done", "dead"})
ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action(
            "trigger", "Run now", "Run {id} now?", "One run starts at once. The schedule's own times do not change.",
            Role.OPERATE, frozenset({"active", "paused"}), _trigger, _say_trigger, key="r",
        ),
        Action(
            "pause", "Pause", "Pause {id}?", "It stops firing. Runs and their retries continue.",
            Role.OPERATE, frozenset({"active"}), _pause, _say_pause, key="p",
        ),
        Action(
            "skip_next", "Skip next", "Skip what {id} fires next?",
            "Only the next occurrences that are not due yet are skipped. The page of a schedule lists them.",
            Role.OPERATE, frozenset({"active"}), _skip_next, _say_skip_next,
        ),
        Action(
            "resume", "Resume", "Resume {id}?", "It fires again.", Role.OPERATE, frozenset({"paused"}), _resume,
            _say_resume, key="p",
        ),
        Action(
            "restart", "Restart", "Restart {id}?", "It fires again, with its counters at zero.",
            Role.OPERATE, frozenset({"done", "dead"}), _restart, _say_restart, key="p",
        ),
        Action(
            "backfill", "Backfill", "Backfill {id}?", "Past occurrences without a run get one.",
            Role.OPERATE, _LIVE, _backfill, _say_backfill,
        ),
        Action(
            "delete", "Delete", "Delete {id}?",
            "It never fires again. Its history stays, and another schedule may get its id.",
            Role.ADMIN, _LIVE, _delete, _say_delete, is_danger=True,
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
    """Return the operations that the viewer may request for several schedules at once. A backfill is not among them."""
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


def show_again(visit: Visit) -> Response:
    """Ask again, with the form as it was filled in, after a login has interrupted it."""
    action = named(visit.form.get("action", ""))
    require_role(visit.principal, action.role)
    return _question(visit, action, visit.schedule())


def _question(visit: Visit, action: Action, handle: ScheduleHandle, said: str = "", status: int = 200) -> Response:
    """Ask whether to do an operation on a schedule, with a message and the form as it was filled in."""
    path = f"/schedules/{handle.schedule_id}"
    return ask(
        visit, action, action.question.replace("{id}", handle.schedule_id), f"{path}/do", back=visit.url(path),
        status=status, schedule=handle.state, said=said, same=_readable(visit, action, handle),
    )  # fmt: skip


def equivalent(visit: Visit) -> Equivalent:
    """Return the operation of a form on one schedule as a command and in Python."""
    return _equivalent(visit, named(visit.form.get("action", "")), visit.schedule())


def _equivalent(visit: Visit, action: Action, of: ScheduleHandle) -> Equivalent:
    return equivalent_of(visit, action, [of.schedule_id], may_be_paused=of.status != "active")


def _readable(visit: Visit, action: Action, of: ScheduleHandle) -> Equivalent:
    """Return the operation as a command and in Python; if a field is refused, the reason instead."""
    try:
        return _equivalent(visit, action, of)
    except InvalidInputError as error:
        return Equivalent(remark=str(error))


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
        message, status = f"Not done: {_refusal(error)}", error.http_status
    if action.name == "backfill" and (status != 200 or "dry_run" in visit.form):
        return _question(visit, action, handle, message, status)
    path = "/schedules" if handle.status == "deleted" else f"/schedules/{handle.schedule_id}"
    return visit.done(message, path)


def _refusal(error: RqschedError) -> str:
    """Return why an operation was refused. A refused field has the label of the form."""
    label = _LABELS.get(error.field) if isinstance(error, InvalidInputError) else None
    return f"{label}: {error.reason}" if label and isinstance(error, InvalidInputError) else str(error)


ON_RUNS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "retry": ("retry", {}),
    "retry_failed_targets": ("retry", {"failed_targets": True}),
    "cancel": ("cancel", {}),
    "terminate": ("terminate", {}),
}
"""The operations on runs by their names in forms: the method, which is also the command, and its choices."""


def act_on_run(visit: Visit) -> Response:
    """Retry, cancel or terminate one run."""
    schedule, run = visit.run()
    of = RunHandle(visit.scheduler.runtime, run)
    try:
        method, choices = _on_run(visit.form.get("action", ""))
        getattr(of, method)(visit.context.reason, context=visit.context, **choices)
        message = f"Run #{run.number} of {schedule.schedule_id} is {of.status}."
    except RqschedError as error:
        message = f"Not done: {error}"
    return visit.done(message, f"/runs/{run.uid}")


def equivalent_on_run(visit: Visit) -> Equivalent:
    """Return the operation of a form on one run as a command and in Python."""
    return equivalent_of_run(visit, visit.form.get("action", ""), *visit.run())


def equivalent_of_run(visit: Visit, wanted: str, schedule: Schedule, run: Run) -> Equivalent:
    """Return an operation on one run as a command and in Python."""
    method, choices = _on_run(wanted)
    words = (run.uid,) if method == "retry" else (schedule.schedule_id, run.uid)
    found = call("scheduler.runs.get", run.uid, **in_namespace(visit))
    code = call(f"{found}.{method}", reason=visit.context.reason, **choices)
    return Equivalent(command(visit, method, *words, **choices), code)


def _on_run(wanted: str) -> tuple[str, dict[str, Any]]:
    if wanted not in ON_RUNS:
        raise InvalidInputError("action", f"{wanted[:32]!r} is not offered for a run")
    return ON_RUNS[wanted]


def named(name: str) -> Action:
    """Find an action by its name in forms; raises InvalidInputError."""
    if name not in ACTIONS:
        raise InvalidInputError("action", f"{name[:32]!r} is not one of {', '.join(ACTIONS)}")
    return ACTIONS[name]
