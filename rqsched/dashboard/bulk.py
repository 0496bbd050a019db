"""Actions on several schedules: on the chosen ones of a page, or on all that match the list's filters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from starlette.responses import RedirectResponse, Response

from rqsched.api import bulk_actions
from rqsched.api.bulk import MOST, OPERATIONS, Bulk, fix
from rqsched.api.bulk_actions import BulkAction
from rqsched.core.policy import CatchUp, OverlapPolicy
from rqsched.core.reasons import skip_in_words
from rqsched.core.results import BulkRow
from rqsched.dashboard import actions
from rqsched.dashboard.actions import ACTIONS, Action, offered_for_several
from rqsched.dashboard.schedules import FILTERS, filters_of, kept_of
from rqsched.dashboard.visit import Visit
from rqsched.errors import InvalidInputError, RqschedError
from rqsched.http.dependencies import require_role
from rqsched.store.schedule_queries import Filters

MOST_CHOSEN = 500
"""The most schedules that are chosen one by one."""
_NAMED = 10
"""The most schedules that the question names."""


def ask(visit: Visit) -> Response:
    """Ask about the chosen schedules, or count all that match; act on the chosen ones once that is confirmed."""
    action = actions.named(visit.form.get("action", ""))
    require_role(visit.principal, action.role)
    if action not in offered_for_several(visit):
        raise InvalidInputError("action", f"{action.name} is done to one schedule only")
    kept, chosen = kept_of(visit), visit.chosen[: MOST_CHOSEN + 1]
    if "all" in visit.form:
        return _count(visit, action, kept)
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
    )  # fmt: skip


def _schedules(count: int) -> str:
    return f"{count} schedule{'s' * (count != 1)}"


def _bulk(visit: Visit, action: Action) -> Bulk:
    """Return the requested bulk action with its choices; raises InvalidInputError."""
    catch_up, overlap = visit.form.get("catch_up"), visit.form.get("overlap")
    bulk = Bulk(
        action.name,
        reason=visit.context.reason,
        catch_up=CatchUp.of(catch_up) if catch_up else None,
        until=actions.until_of(visit) if action.name == "pause" else None,
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


def _count(visit: Visit, action: Action, kept: dict[str, str]) -> Response:
    asked = {name: kept[name] for name in FILTERS if name in kept}
    runtime = visit.scheduler.runtime
    fixed = fix(runtime, _filters(visit, action, asked), MOST)
    if not fixed:
        return visit.done(f"{action.label}: no schedule matches for which that is possible.", "/schedules", **kept)
    counted = bulk_actions.count(runtime, action.name, visit.namespace, fixed, asked)
    return RedirectResponse(visit.url(f"/bulk/{counted.uid}", **kept), 303)


def _filters(visit: Visit, action: Action, asked: dict[str, str]) -> Filters:
    """Return the filters of an action; without a status, the statuses that it applies to.

    Paused schedules are triggered only on request, as in `Scheduler.bulk`.
    """
    filters = filters_of(visit, asked)
    meant = (OPERATIONS[action.name],) if action.name in OPERATIONS else tuple(sorted(action.statuses))
    return filters if filters.statuses else replace(filters, statuses=meant)


def _in_words(visit: Visit, found: BulkAction) -> str:
    """Say what the schedules of a bulk action have in common."""
    words = {
        "q": "id contains",
        "outcome": "last outcome",
        "problem": "problem",
        "workflow": "workflow",
        "label": "label",
    }
    told = [f"{word} {found.asked[name]}" for name, word in words.items() if name in found.asked]
    statuses = _filters(visit, ACTIONS[found.operation], found.asked).statuses
    return ", ".join([*told, f"status {' or '.join(statuses)}"])


def show(visit: Visit) -> Response:
    """Ask for a confirmation with the count, or show the progress."""
    found, kept = _find(visit), kept_of(visit)
    action, back = ACTIONS[found.operation], visit.url("/schedules", **kept)
    about = _in_words(visit, found)
    if found.status == "counted":
        require_role(visit.principal, action.role)
        return actions.ask(
            visit, action, f"{action.label}: all {_schedules(found.total)} that match?", f"/bulk/{found.uid}",
            back=back, about=about, counted_at=found.created_at, kept=kept,
        )  # fmt: skip
    done = Counter(found.counts)
    skipped = done.pop("skipped", 0)
    return visit.page(
        "bulk.html", bulk=found, action=action, question=f"{action.label}: {_schedules(found.total)}", about=about,
        done=done, skipped=skipped, kept=kept, back=back, is_interrupted=found.is_interrupted(visit.now),
        ends_at=found.ends_at(visit.now),
    )  # fmt: skip


def act(visit: Visit) -> Response:
    """Begin, continue or stop a bulk action, and show its progress."""
    runtime, found = visit.scheduler.runtime, _find(visit)
    action = ACTIONS[found.operation]
    require_role(visit.principal, action.role)
    if visit.form.get("action") == "stop":
        bulk_actions.stop(runtime, found, visit.principal.name)
    else:
        bulk_actions.begin(runtime, found, _filters(visit, action, found.asked), _bulk(visit, action))
    return RedirectResponse(visit.url(f"/bulk/{found.uid}", **kept_of(visit)), 303)


def _find(visit: Visit) -> BulkAction:
    uid = str(visit.request.path_params["uid"]).upper()
    return bulk_actions.find(visit.scheduler.runtime, visit.namespace, uid)
