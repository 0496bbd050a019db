"""The search in the header of each page. It finds schedules by a part of their id, operations on them, and pages.

`pause night` finds the operation pause for each schedule whose id contains `night`. The page's script shows the results
in a list below the search field.
"""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import RedirectResponse, Response

from rqsched.api import schedules as schedule_queries
from rqsched.api.database import Connection
from rqsched.api.schedules import Filters
from rqsched.dashboard.actions import ACTIONS, Action, offered
from rqsched.dashboard.rendering import MENU
from rqsched.dashboard.visit import Visit
from rqsched.types import Schedule

_MOST = 8
"""How many schedules are shown."""
_WITH_ACTIONS = 3
"""For how many schedules the operations are shown, too, if the text names no operation."""


class _Wanted(NamedTuple):
    """The meaning of the typed text."""

    text: str
    """A part of an id."""
    actions: list[Action]
    """The operations that the first word may name; empty if it names none."""


def show(visit: Visit) -> Response:
    """Show the results. If the text is the id of a schedule, redirect to its page."""
    typed = visit.query("q")
    wanted = _wanted(typed)
    found, is_cut = visit.read(lambda connection: _find(connection, visit.namespace, wanted.text))
    is_script = "x-live" in visit.request.headers
    if not is_script and any(one.schedule_id == typed for one in found):
        return RedirectResponse(visit.url(f"/schedules/{typed}"), 303)
    return visit.page(
        "find.html", typed=typed, text=wanted.text, pages_found=_pages(visit, typed),
        found=[(one.schedule_id, _offered(visit, wanted, one, place)) for place, one in enumerate(found)],
        names_action=bool(wanted.actions), is_cut=is_cut, looked_at=schedule_queries.MOST_LOOKED_AT,
    )  # fmt: skip


def _wanted(typed: str) -> _Wanted:
    """Read an operation and a part of an id from a text. A single word is always a part of an id."""
    word, _, rest = typed.partition(" ")
    if typed.lower().startswith(run := f"{ACTIONS['trigger'].label.lower()} "):  # the only label of two words
        rest = typed[len(run) :]
    named = [one for one in ACTIONS.values() if one.label.lower().startswith(word.lower())] if rest.strip() else []
    return _Wanted(rest.strip(), named) if named else _Wanted(typed, [])


def _find(connection: Connection, namespace: str, text: str) -> tuple[list[Schedule], bool]:
    """Read the schedules whose ids contain a text. Ids that begin with the text come first.

    The second value says whether there may be more schedules.
    """
    if not text:
        return [], False
    search = Filters(namespace=namespace, text=text)
    begin, first = (
        schedule_queries.search_schedules(connection, search, sort="id", after=after, limit=_MOST)
        for after in ((text, ""), None)
    )
    every = {one.uid: one for one in (*begin.items, *first.items)}.values()
    found = sorted(every, key=lambda one: (not one.schedule_id.startswith(text), one.schedule_id))
    return found[:_MOST], first.following is not None


def _offered(visit: Visit, wanted: _Wanted, schedule: Schedule, place: int) -> list[Action]:
    may = offered(visit, schedule)
    if wanted.actions:
        return [one for one in may if one in wanted.actions]
    return may if place < _WITH_ACTIONS else []


def _pages(visit: Visit, typed: str) -> dict[str, str]:
    """Return the pages whose names contain the typed text, including forms that belong to no schedule."""
    forms = {
        "Limits": ("/limits", "read"),
        "New schedule": ("/schedules/new", "admin"),
        "Stop a namespace": ("/namespace/stop", "operate"),
        **({"Retry failed runs": ("/retry-failed", "operate")} if visit.may_start else {}),
    }
    every = MENU | {name: path for name, (path, role) in forms.items() if visit.may(role)}
    return {name: path for name, path in every.items() if typed.lower() in name.lower()}
