"""Actions on several schedules or runs: on schedules that the viewer chose, or on all that match the list's filters.

An action on all that match runs in chunks. Its page shows the progress, and the form on the page starts the
next chunk. The form holds the cursor and the outcomes so far; the server stores nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.responses import Response

from rqsched.dashboard import actions
from rqsched.dashboard import runs as run_list
from rqsched.dashboard.actions import Action, offered_for_several
from rqsched.dashboard.equivalent import Equivalent, call, command, flag, in_namespace, loop, with_imports
from rqsched.dashboard.frame import form
from rqsched.dashboard.rendering import filters_in_words
from rqsched.dashboard.schedules import FILTERS, filters_of, kept_of
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, InvalidLimitError, RqschedError
from rqsched.features.bulk.api import OPERATIONS, Bulk, count_matching, do_chunk
from rqsched.features.bulk.runs import BulkRuns
from rqsched.features.bulk.runs import count_matching as count_matching_runs
from rqsched.features.bulk.runs import do_chunk as do_chunk_of_runs
from rqsched.http.dependencies import require_role
from rqsched.kernel.decide.policy import OnResume, OverlapPolicy
from rqsched.kernel.decide.reasons import skip_in_words
from rqsched.kernel.decide.results import MOST_COUNTED, BulkProgress, BulkRow, number_of
from rqsched.kernel.queries.run_pages import RunFilters
from rqsched.kernel.queries.schedules import Filters

MOST_CHOSEN = 500
"""The maximum number of schedules that a viewer may choose one by one."""
_NAMED = 10
"""The maximum number of schedules that the question before the action names."""
_SKIPPED = 50
"""The maximum number of skipped schedules that are named with their reason. The others are only counted."""
MOST_MATCHING = 100_000
"""The maximum number of runs of one action, and the bound in the texts of an action on all that match."""
_NAMED_RUNS = 5
"""The maximum number of skipped runs that are named for each reason. The others are only counted."""
_MOST_REASONS = 20
"""The maximum number of reasons. Runs that were skipped for a further reason are one group."""
_OTHERS = "for other reasons"
_RUN_EFFECTS = {
    "cancel": "Runs that wait never start. Runs that execute stop at their next checkpoint. Each of them ends as "
    "cancelled.",
    "retry": "Each run gets one more attempt, when the overlap policy and the limit of its schedule allow it. This "
    "also applies to schedules that allow no retries, whose runs may have done a part of their work.",
}
"""The actions on runs, each with its effect."""
_CHOICES = ("on_resume", "overlap", "until", "count", "reason")
"""The fields with the viewer's choices, which each chunk needs again."""


def ask(visit: Visit) -> Response:
    """Ask the viewer to confirm an action on the chosen schedules, or on all that match. Then do the action."""
    action = actions.named(visit.form.get("action", ""))
    require_role(visit.principal, action.role)
    if action.name == "backfill":
        raise InvalidInputError("action", f"{action.name} is done to one schedule only")
    kept, chosen = kept_of(visit), visit.chosen[: MOST_CHOSEN + 1]
    if action not in offered_for_several(visit):
        return visit.done(f"Not done: {action.label} is refused while {visit.stop}.", "/schedules", **kept)
    if "all" in visit.form:
        return _do_next(visit, action, kept) if "cursor" in visit.form else _ask_about_all(visit, action, kept)
    if not chosen:
        return visit.done("Choose schedules first.", "/schedules", **kept)
    if len(chosen) > MOST_CHOSEN:
        raise InvalidInputError("id", f"more than {MOST_CHOSEN} schedules were chosen; choose all that match instead")
    if "confirmed" in visit.form:
        return visit.done(_do_chosen(visit, action, chosen), "/schedules", **kept)
    more = f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else ""
    return actions.ask(
        visit, action, f"{action.label}: {_schedules(len(chosen))}?", "/bulk", back=visit.url("/schedules", **kept),
        about=", ".join(chosen[:_NAMED]) + more, kept={**kept, "confirmed": "yes"}, chosen=chosen,
        same=equivalent(visit),
    )  # fmt: skip


def _schedules(count: int) -> str:
    return number_of(count, "schedule", "+" if count == MOST_COUNTED else "")


def _bulk(visit: Visit, action: Action) -> Bulk:
    """Return the requested bulk action with its choices; raises InvalidInputError."""
    until = actions.until_of(visit) if action.name == "pause" else None
    on_resume, overlap = visit.form.get("on_resume"), visit.form.get("overlap")
    mode = OnResume.of(on_resume) if on_resume else None
    bulk = Bulk(
        action.name,
        reason=visit.context.reason,
        on_resume=mode if action.name == "resume" or until is not None else None,  # each question has the field
        until=until,
        overlap=OverlapPolicy.of(overlap) if overlap else None,
        context=visit.context,
        force=True,
        skips=actions.count_of(visit) if action.name == "skip_next" else 1,
    )
    bulk.require(visit.now)
    return bulk


def _do_chosen(visit: Visit, action: Action, chosen: tuple[str, ...]) -> str:
    bulk, rows = _bulk(visit, action), list[BulkRow]()
    for schedule_id in chosen:
        try:
            rows.append(bulk.apply(visit.scheduler.get(schedule_id, namespace=visit.namespace)))
        except RqschedError as error:
            rows.append(BulkRow(schedule_id, "skipped", str(error)))
    skipped = [f"{row.schedule_id}: {skip_in_words(row.reason or '')}" for row in rows if row.outcome == "skipped"]
    more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
    refused = f" Not done: {'; '.join(skipped[:3])}{more}" if skipped else ""
    return f"{action.label}: {len(rows) - len(skipped)} of {len(rows)} done.{refused}"


def _ask_about_all(visit: Visit, action: Action, kept: dict[str, str]) -> Response:
    filters = _filters(visit, action, kept)
    matching = count_matching(visit.scheduler.runtime, filters, _identity(visit, action, kept), most=MOST_COUNTED)
    if matching.next_cursor is None:
        return visit.done(f"{action.label}: no schedule matches for which that is possible.", "/schedules", **kept)
    return actions.ask(
        visit, action, f"{action.label}: all {_schedules(matching.matched)} that match?", "/bulk",
        back=visit.url("/schedules", **kept), about=_in_words(filters, kept), counted_at=visit.now,
        kept={**kept, "all": "yes", "cursor": matching.next_cursor},
        same=equivalent(visit),
    )  # fmt: skip


def equivalent(visit: Visit) -> Equivalent:
    """Return the action on the chosen schedules, or on all that match, as commands and in Python."""
    action = actions.named(visit.form.get("action", ""))
    if "all" not in visit.form:
        ids = visit.chosen[:MOST_CHOSEN]
        return actions.equivalent_of(visit, action, ids, may_be_paused=True) if ids else Equivalent()
    filters, said = _filters(visit, action, kept_of(visit)), action.wording(visit, False)
    if said is None or filters.failing or filters.next_until is not None:
        return Equivalent(remark="Neither a command nor the methods for many schedules have this filter.")
    is_usual = filters.statuses == (OPERATIONS.get(action.name),)
    wanted: dict[str, Any] = {
        "status": None if is_usual else list(filters.statuses), "outcome": list(filters.outcomes) or None,
        "workflow": filters.workflow, "labels": dict(filters.labels) or None, "text": filters.text,
        "overdue": filters.overdue,
    }  # fmt: skip
    if action.name not in OPERATIONS or (action.name == "trigger" and "paused" in filters.statuses):
        forced = {"force": True} if action.name == "trigger" else {}
        body = call(f"handle.{action.name}", *said.given, **{**said.named, **forced})
        handles = call("scheduler.iter", **wanted, **in_namespace(visit))
        return Equivalent("", with_imports(loop(f"for handle in {handles}", body)))
    wanted["bound"] = MOST_MATCHING
    chunks = call(f"scheduler.bulk.{action.name}", *said.given, **said.named, **wanted, **in_namespace(visit))
    labels = flag("--label", [f"{name}={value}" for name, value in filters.labels.items()])
    flags = {name: value for name, value in wanted.items() if name != "labels"}
    return Equivalent(
        command(visit, "bulk", said.command, *labels, **said.flags, count=said.number, **flags),
        with_imports(progress_loop(chunks)),
    )


def progress_loop(chunks: str) -> str:
    """Return a loop of Python over the chunks that a call yields."""
    return loop(f"for progress in {chunks}", "print(progress.done, progress.matched)")


def _do_next(visit: Visit, action: Action, kept: dict[str, str]) -> Response:
    """Do one chunk of an action on all that match, and show the progress."""
    filters, bulk = _filters(visit, action, kept), _bulk(visit, action)
    counts, skipped = _so_far(visit.form.get("so_far", ""))
    of = _identity(visit, action, kept)
    progress = do_chunk(visit.scheduler.runtime, bulk, filters, visit.form["cursor"], of=of)
    counts.update(row.outcome for row in progress.items)
    skipped += [(row.schedule_id, row.reason or "") for row in progress.items if row.outcome == "skipped"]
    choices = {name: visit.form[name] for name in _CHOICES if visit.form.get(name, "").strip()}
    so_far = json.dumps([counts, skipped[:_SKIPPED]])
    following = {**kept, **choices, "all": "yes", "cursor": progress.next_cursor or "", "so_far": so_far}
    return visit.page(
        "bulk/bulk.html", progress=progress, is_known=progress.matched < MOST_COUNTED,
        question=f"{action.label}: {_schedules(progress.matched)}",
        about=_in_words(filters, kept), counts=counts, skipped=skipped[:_SKIPPED], choices=choices,
        following=following | {"action": action.name}, path="/bulk", part="Schedules",
        back=visit.url("/schedules", **kept), groups=None, leads_to="",
    )  # fmt: skip


def _identity(visit: Visit, action: Action, kept: Mapping[str, str]) -> tuple[object, ...]:
    """Return the values that are the same for each chunk of an action: the filters as the viewer chose them.

    The filter `late` is represented by its name, because its instant moves. The choices of the action are left out,
    because the viewer makes them after the count.
    """
    return "dashboard", action.name, visit.namespace, [(name, kept[name]) for name in FILTERS if name in kept]


def _so_far(text: str) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Read the outcomes of the earlier chunks, which the form contains; raises InvalidInputError."""
    try:
        counts, skipped = json.loads(text or "[{}, []]")
        named = [(str(schedule_id), str(reason)) for schedule_id, reason in skipped]
        return Counter({name: int(times) for name, times in counts.items()}), named
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InvalidInputError("so_far", "cannot be read; go back to the list of schedules and begin again") from None


def _filters(visit: Visit, action: Action, kept: Mapping[str, str]) -> Filters:
    """Return the filters of an action. Without a status, they have the statuses to which the action applies.

    Paused schedules are triggered only if the viewer chose that status, as in `scheduler.bulk`.
    """
    filters = filters_of(visit, kept)
    meant = (OPERATIONS[action.name],) if action.name in OPERATIONS else tuple(sorted(action.statuses))
    return filters if filters.statuses else replace(filters, statuses=meant)


def _in_words(filters: Filters, kept: Mapping[str, str]) -> str:
    """Return text on the filters that the schedules of an action match."""
    return filters_in_words({**kept, "status": " or ".join(filters.statuses)}, FILTERS)


def ask_about_runs(visit: Visit) -> Response:
    """Ask the viewer to confirm an action on all runs that match. Then do it, chunk by chunk."""
    name, kept, filters = _wanted_on_runs(visit)
    asked = BulkRuns.among(name, filters, reason=visit.context.reason, context=visit.context)
    label, back = f"{name.capitalize()} all that match", visit.url("/runs", **kept)
    about = _runs_in_words(visit, asked, kept)
    if "cursor" in visit.form:
        before = runs_so_far(visit)
        progress = do_chunk_of_runs(visit.scheduler.runtime, asked, visit.form["cursor"])
        return show_chunk_of_runs(
            visit, progress, before, name, about=about, fields={**kept, "action": name}, path="/bulk/runs",
            part="Runs", back=back,
        )  # fmt: skip
    if name == "retry" and not visit.may_start:
        return visit.done(f"Not done: {label} is refused while {visit.stop}.", "/runs", **kept)
    try:
        counted = count_matching_runs(visit.scheduler.runtime, asked, bound=MOST_MATCHING)
    except InvalidLimitError:
        return visit.done(
            f"Not done: more than {MOST_MATCHING} runs match. Choose fewer with the filters.", "/runs", **kept
        )
    if counted.next_cursor is None:
        return visit.done(f"{label}: no run matches for which that is possible.", "/runs", **kept)
    return visit.page(
        "bulk/runs.html", question=f"{name.capitalize()} {number_of(counted.matched, 'run')}?",
        button=f"{name.capitalize()} {number_of(counted.matched, 'run')}", effect=_RUN_EFFECTS[name], about=about,
        counted_at=visit.now, is_danger=name == "cancel", back=back,
        kept={**kept, "action": name, "cursor": counted.next_cursor}, same=equivalent_on_runs(visit),
    )  # fmt: skip


def equivalent_on_runs(visit: Visit) -> Equivalent:
    """Return the action on all runs that match as a command and in Python."""
    name, kept, filters = _wanted_on_runs(visit)
    given: dict[str, Any] = {
        "status": list(filters.statuses) or None, "workflow": filters.workflow, "limit": kept.get("limit") or None,
        "since": filters.since, "until": filters.until, "error": filters.error,
    }  # fmt: skip
    line_up = {} if filters.is_in_line is None else {"in_line": filters.is_in_line}
    chunks = call(
        f"scheduler.bulk.{name}_runs", **given, schedule_id=filters.schedule_id, reason=visit.context.reason,
        bound=MOST_MATCHING, **in_namespace(visit), options=line_up,
    )  # fmt: skip
    text = "" if line_up else command(visit, "bulk", name, schedule=filters.schedule_id, **given, bound=MOST_MATCHING)
    return Equivalent(text, with_imports(progress_loop(chunks)))


def _wanted_on_runs(visit: Visit) -> tuple[str, dict[str, str], RunFilters]:
    """Return the action of the form, and its filters as fields and as read; raises InvalidInputError."""
    name, read = visit.form.get("action", ""), visit.form.get
    if name not in _RUN_EFFECTS:
        raise InvalidInputError("action", f"{name[:32]!r} is not one of {', '.join(_RUN_EFFECTS)}")
    kept = run_list.kept_of(visit, lambda field: (read(field) or "").strip())
    return name, kept, run_list.filters_of(visit, lambda field: kept.get(field, ""))


class RunsSoFar(NamedTuple):
    """The outcomes of the chunks that are done."""

    counts: Counter[str]
    """How many runs had each outcome."""
    groups: dict[str, tuple[int, list[tuple[str, str]]]]
    """For each reason, how many runs were skipped, and the schedule id and uid of the first few."""


def show_chunk_of_runs(
    visit: Visit,
    progress: BulkProgress,
    before: RunsSoFar,
    name: str,
    *,
    about: str,
    fields: Mapping[str, str],
    path: str,
    part: str,
    back: str,
    leads_to: str = "",
) -> Response:
    """Show how far an action on runs is. A form with the given fields does the next chunk at `path`."""
    counts, groups = before
    counts.update(row.outcome for row in progress.items)
    for row in progress.items:
        if row.outcome == "skipped":
            why = row.reason or ""
            why = why if why in groups or len(groups) < _MOST_REASONS else _OTHERS
            number, named = groups.get(why, (0, []))
            groups[why] = number + 1, [*named, (row.schedule_id, row.run_uid or "")][:_NAMED_RUNS]
    choices = {"reason": text} if (text := visit.form.get("reason", "").strip()) else {}
    following = {**fields, **choices, "cursor": progress.next_cursor or "", "so_far": json.dumps([counts, groups])}
    return visit.page(
        "bulk/bulk.html", progress=progress, is_known=True,
        question=f"{name.capitalize()} {number_of(progress.matched, 'run')}", about=about, counts=counts, skipped=[],
        groups=groups, choices=choices, following=following, path=path, part=part, back=back, leads_to=leads_to,
    )  # fmt: skip


def runs_so_far(visit: Visit) -> RunsSoFar:
    """Read the outcomes of the earlier chunks, which the form contains; raises InvalidInputError."""
    try:
        counts, groups = json.loads(visit.form.get("so_far") or "[{}, {}]")
        found = {
            str(why): (int(number), [(str(schedule_id), str(uid)) for schedule_id, uid in named])
            for why, (number, named) in groups.items()
        }
        return RunsSoFar(Counter({name: int(times) for name, times in counts.items()}), found)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InvalidInputError("so_far", "cannot be read; go back to the list of runs and begin again") from None


def _runs_in_words(visit: Visit, asked: BulkRuns, kept: Mapping[str, str]) -> str:
    """Return text on the filters that the runs of an action match."""
    words = {"q": "error contains", "schedule": "schedule", "workflow": "workflow", "limit": "limit"}
    told = [f"{word} {kept[name]}" for name, word in words.items() if name in kept]
    times = {"since": asked.filters.since, "until": asked.filters.until}
    told += [f"{name} {at.astimezone(visit.zone):%a %d %b %Y %H:%M %Z}" for name, at in times.items() if at]
    status = kept.get("status", "")
    statuses = run_list.IN_WORDS.get(status, status) or " or ".join(asked.filters.statuses)
    return ", ".join([*told, f"status {statuses}"])


ROUTES = (
    form("/bulk", ask, counts="all", equivalent=equivalent),
    form("/bulk/runs", ask_about_runs, counts="action", equivalent=equivalent_on_runs),
)
"""The addresses of these pages in the dashboard."""
