"""The first page: current problems and their remedies, the last day, the most frequent failures, and the next fires."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from redis.exceptions import RedisError
from starlette.responses import RedirectResponse, Response

from rqsched.api import health, outages
from rqsched.api import runs as run_queries
from rqsched.api import schedules as schedule_queries
from rqsched.api.database import Connection
from rqsched.api.health import NAMED, Finding, Level
from rqsched.api.values import MOST_COUNTED, counted
from rqsched.dashboard.recent import MOST, MOST_FAILED, read_failures, read_recent
from rqsched.dashboard.rendering import exact
from rqsched.dashboard.schedule import NEWEST
from rqsched.dashboard.visit import Visit
from rqsched.dashboard.waits import waits_of
from rqsched.errors import ScheduleNotFoundError
from rqsched.types import Schedule

_log = logging.getLogger(__name__)
_SHOWN = 8
_INSTANT = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


class _List(NamedTuple):
    """A page with its query."""

    path: str
    query: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    tone: str
    """`bad` for a problem, `warn` for a warning (`Level`)."""
    title: str
    """The problem, in one line."""
    detail: str
    """Its meaning."""
    remedy: str
    """Its remedy."""
    schedules: tuple[Schedule, ...] = ()
    """The first few schedules that have the problem."""
    action: str | None = None
    """The operation that a button offers for each of these schedules; None means no button."""
    shows_error: bool = False
    """Whether the page also shows the last error of each of these schedules."""
    list_of: _List | None = None
    """The page that lists all schedules with the problem; None if there is no such page."""


class _Words(NamedTuple):
    """The title of a finding, and what the page offers. `{count}` in a title is how many schedules it concerns."""

    title: str
    list_of: _List | None = None
    action: str | None = None
    shows_error: bool = False


_SYSTEM = _List("/system")
_WORDS: Mapping[str, _Words] = {
    "late": _Words("{count} late", _List("/schedules", {"problem": "late", "sort": "next"})),
    "dead": _Words("{count} dead", _List("/schedules", {"status": "dead"}), "restart", shows_error=True),
    "blocked": _Words("{count} blocked", _List("/runs", {"status": "blocked"})),
    "limits": _Words("Runs with a limit wait", _List("/limits")),
    "successes": _Words(
        "{count} without a success in time", _List("/schedules", {"problem": "overdue"}), "trigger", shows_error=True
    ),
    "failing": _Words(
        "{count} failing repeatedly", _List("/schedules", {"problem": "failing"}), "trigger", shows_error=True
    ),
    "quotas": _Words("The namespace is nearly full", _List("/schedules")),
    "notifications": _Words("Notifications do not arrive"),
    "dispatchers": _Words("No dispatcher is alive", _SYSTEM),
    "waits": _Words("Dispatchers wait for SQL", _SYSTEM),
    "publishing": _Words("Redis refuses new jobs", _SYSTEM),
    "memory": _Words("Redis is nearly full", _SYSTEM),
    "foreign workers": _Words("Workers with another database take jobs of this one", _SYSTEM),
    "clock": _Words("Clocks differ", _SYSTEM),
    "ownership": _Words("Redis belongs to another database", _SYSTEM),
    "workers": _Words("Jobs wait for a worker", _SYSTEM),
    "all-frozen": _Words("Everything is frozen"),
    "frozen": _Words("The namespace is frozen"),
    "writes": _Words("The database cannot be used fully", _SYSTEM),
    "went back": _Words("Two databases write", _SYSTEM),
    "long": _Words("{count} running for too long", _List("/runs", {"status": "running"})),
}
_MILDER: Mapping[str, _Words] = {
    "went back": _Words("SQL or Redis went back to an older state, or was replaced", _SYSTEM),
    "ownership": _Words("Redis does not know this database", _SYSTEM),
    "workers": _Words("No worker is alive", _SYSTEM),
}
"""The titles of warnings, for the checks whose warning has another meaning than their problem."""


_BY_CONSEQUENCE = (
    "redis", "ownership", "writes", "publishing", "went back", "all-frozen", "frozen", "dispatchers", "waits", "late",
    "dead", "failing", "successes", "foreign workers", "blocked", "workers", "limits", "long", "notifications",
    "memory", "quotas", "clock",
)  # fmt: skip
"""The checks in the order in which the page lists their findings. Findings that stop all fires come first. Then come
findings that stop some schedules, or make all their runs fail. Then come findings that make runs wait. Findings that
may become a problem come last."""
_AS_GRAVE = frozenset({"all-frozen", "frozen", "dead", "failing", "successes"})
"""The checks whose warnings are listed among the problems, because schedules do not fire or their runs fail."""


def _rank(finding: Finding) -> tuple[bool, int]:
    is_grave = finding.level is Level.PROBLEM or finding.check in _AS_GRAVE
    place = _BY_CONSEQUENCE.index(finding.check) if finding.check in _BY_CONSEQUENCE else len(_BY_CONSEQUENCE)
    return not is_grave, place


def show(visit: Visit) -> Response:
    """Show the overview."""
    namespace, now = visit.namespace, visit.now
    frozen = [namespace] if visit.freeze else []
    around = health.examine_processes(visit.scheduler.runtime, None if visit.sees_all else namespace)

    def read(connection: Connection) -> dict[str, Any]:
        counts = schedule_queries.count_by_status(connection, namespace, MOST_COUNTED)
        found = health.examine_work(visit.scheduler.runtime, connection, namespace, around)
        late = next((finding.count for finding in found if finding.check == "late"), None)
        if late is None:  # no schedule is late, or the check was left out
            late_until = health.late_until(visit.scheduler.runtime)
            late = schedule_queries.count_late(connection, namespace, late_until, MOST_COUNTED, frozen)
        shown = {one.uid: one for finding in found for one in finding.schedules[:NAMED]}
        return {
            "problems": found,
            "streaks": run_queries.streaks(connection, shown.values()),
            "counts": counts | {"late": 0 if visit.all_frozen else late},
            "day": read_recent(connection, namespace, now),
            "failures": read_failures(connection, namespace, now),
            "soonest": schedule_queries.soonest(connection, namespace, _SHOWN),
            "recent": run_queries.recent_runs(connection, namespace, _SHOWN),
        }

    values = visit.read(read)
    values["waits"] = waits_of(visit, [run for _, run in values["recent"]])
    told = {"all-frozen": visit.all_frozen, "frozen": visit.freeze}  # by the notice above every page, which thaws
    findings = sorted((one for one in (*around, *values["problems"]) if not told.get(one.check)), key=_rank)
    values["problems"] = [_problem(visit, finding) for finding in findings]
    return visit.page("overview.html", most_failed=MOST_FAILED, most_runs=MOST, **values)


def ask_why(visit: Visit) -> Response:
    """Redirect to the answer on the schedule's page. If no schedule has this id, redirect to a search for the text."""
    text = visit.query("schedule")
    try:
        id_ = visit.scheduler.newest(text, namespace=visit.namespace).schedule_id
    except ScheduleNotFoundError:
        return RedirectResponse(visit.url("/schedules", q=text), 303)
    return RedirectResponse(f"{visit.url(f'/schedules/{id_}', at=visit.query('at') or NEWEST)}#why", 303)


def _unasked(visit: Visit, finding: Finding, error: Exception) -> Problem:
    """Return the problem of a check that could not be made. Only viewers of all namespaces see addresses and users."""
    _log.warning("the check %s is not made: %s", finding.check, finding.detail, extra={"action": "dashboard_unasked"})
    if not isinstance(error, RedisError):
        return Problem("bad", f"The check {finding.check!r} could not be made", "", finding.advice or "")
    detail = "Until this is over, nothing fires. Stored data is not lost."
    if visit.sees_all:
        detail = f"{finding.detail.rstrip('.')}. {detail}"
    return Problem("bad", outages.briefly(error), detail, f"{finding.advice} `rqsched doctor` says more.")


def _problem(visit: Visit, finding: Finding) -> Problem:
    if finding.error is not None:
        return _unasked(visit, finding, finding.error)
    is_bad, count = finding.level is Level.PROBLEM, counted(finding.count or 0)
    words = _WORDS[finding.check] if is_bad else _MILDER.get(finding.check, _WORDS[finding.check])
    title = words.title.format(count=f"{count} schedule{'s are' if count != '1' else ' is'}")
    some = tuple(finding.schedules[:NAMED])
    detail = finding.detail if some else finding.told  # the page links to the schedules instead
    detail, remedy = (_by_clock(visit, text) for text in (detail, finding.advice or ""))
    tone = "bad" if is_bad else "warn"
    return Problem(tone, title, detail, remedy, some, words.action, words.shows_error, words.list_of)


def _by_clock(visit: Visit, text: str) -> str:
    """Return the words of a finding with its instants by the viewer's clock.

    A text that has the form of an instant and is none, such as a 30th of February, stays as it is.
    """

    def shown(found: re.Match[str]) -> str:
        try:
            return str(exact(datetime.fromisoformat(found[0]), visit.zone).striptags())
        except (ValueError, OverflowError):
            return found[0]

    return _INSTANT.sub(shown, text)
