"""The pages of limits: the list of all groups, and one group with its line, its runs and its schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from rqsched.dashboard.equivalent import Equivalent, call, command, in_namespace, reason_in_context, with_imports
from rqsched.dashboard.frame import form, page
from rqsched.dashboard.system import shown_limit
from rqsched.dashboard.visit import Visit
from rqsched.errors import LimitNotFoundError, RqschedError
from rqsched.features.limits import store
from rqsched.features.limits.decide import Bounds
from rqsched.kernel.decide.limit_options import key_of
from rqsched.kernel.decide.results import MOST_COUNTED, LimitDescription
from rqsched.kernel.queries.pages import bind_cursor, unbind_cursor
from rqsched.kernel.store.database import Connection

_PAGE = 100
_MOST_RUNS = 50
"""The maximum number of runs in line, and of running runs, that a page shows."""
_MOST_SCHEDULES = 50


def show_all(visit: Visit) -> Response:
    """Show a page of the namespace's groups, sorted by name."""
    cursor = unbind_cursor(visit.query("after") or None, "page of limits", visit.namespace)
    found = visit.read(lambda c: store.page(c, visit.namespace, cursor, _PAGE, visit.now, MOST_COUNTED))
    following = bind_cursor(found.next_cursor, "page of limits", visit.namespace)
    return visit.page("limits/limits.html", groups=[shown_limit(one) for one in found.items], following=following)


def show(visit: Visit) -> Response:
    """Show one group."""
    name = str(visit.request.path_params["name"])
    group = key_of(visit.namespace, name)

    def read(connection: Connection) -> tuple[list[LimitDescription], store.Members]:
        described = store.describe(connection, [group], visit.now, MOST_COUNTED)
        return described, store.members(connection, group, _MOST_RUNS, _MOST_SCHEDULES)

    found, members = visit.read(read)
    if not found:
        raise LimitNotFoundError(visit.namespace, name)
    present = {"number": str(found[0].number or ""), "rate": found[0].rate or ""}
    same = _equivalent(visit, found[0].name, present)
    return visit.page("limits/limit.html", one=shown_limit(found[0]), members=members, same=same)


def set_limit(visit: Visit) -> Response:
    """Change how many runs of a group may run at once, or start in a window. An empty field removes that limit."""
    try:
        changed = visit.scheduler.limits.set(
            visit.form.get("name", "").strip(), **_wanted(visit.form), namespace=visit.namespace, context=visit.context
        )
    except RqschedError as error:
        return visit.done(f"Not done: {error}", "/limits")
    return visit.done(
        f"Limit {changed.name}: {Bounds.read(changed.number, changed.rate)}.", f"/limits/{quote(changed.name)}"
    )


def _wanted(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that change a limit. An empty field removes its limit."""
    number, rate = (fields.get(field, "").strip() for field in ("number", "rate"))
    is_number = number.isascii() and number.isdigit() and len(number) <= 9
    most = (int(number) if is_number else 0) if number else None
    unset = [field for field in ("number", "rate") if not fields.get(field, "-").strip()]
    return {"number": most, "rate": rate or None, "unset": unset}


def equivalent(visit: Visit) -> Equivalent:
    """Return the change of a limit as a command and in Python."""
    return _equivalent(visit, visit.form.get("name", "").strip(), visit.form)


def _equivalent(visit: Visit, name: str, fields: Mapping[str, str]) -> Equivalent:
    wanted = _wanted(fields)
    code = call(
        "scheduler.limits.set", name, **wanted | {"unset": wanted["unset"] or None}, **in_namespace(visit),
        context=reason_in_context(visit),
    )  # fmt: skip
    return Equivalent(command(visit, "limits", "set", name, **wanted), with_imports(code))


ROUTES = (
    page("/limits", show_all),
    page("/limits/{name:path}", show),
    form("/limits", set_limit, equivalent=equivalent),
)
"""The addresses of these pages in the dashboard."""
