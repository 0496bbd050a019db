"""The first page: current problems and their remedies, the last day, the most frequent failures, and the next fires."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from redis.exceptions import RedisError
from starlette.responses import RedirectResponse, Response

from rqsched.api import health, outages
from rqsched.api import runs as run_queries
from rqsched.api import schedules as schedule_queries
from rqsched.api.database import Connection
from rqsched.api.health import NAMED, Finding, Level
from rqsched.api.states import REPEATEDLY
from rqsched.api.values import MOST_COUNTED, counted
from rqsched.dashboard.recent import MOST, MOST_FAILED, read_failures, read_recent
from rqsched.dashboard.schedule import NEWEST
from rqsched.dashboard.visit import Visit
from rqsched.dashboard.waits import waits_of
from rqsched.errors import ScheduleNotFoundError
from rqsched.types import Schedule

_log = logging.getLogger(__name__)
_SHOWN = 8
_REASONS = 3


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
    """The texts of a finding. Names in braces are replaced by values from `_spoken`."""

    title: str
    detail: str = "{detail}."
    remedy: str = "{advice}"
    action: str | None = None
    shows_error: bool = False
    list_of: _List | None = None


_WORDS: Mapping[str, _Words] = {
    "late": _Words(
        "{count} late",
        "{they} should have fired and did not.",
        "Check whether a dispatcher runs. `rqsched recover` restores what is missing in Redis.",
        list_of=_List("/schedules", {"problem": "late", "sort": "next"}),
    ),
    "dead": _Words(
        "{count} dead",
        "Too many runs in a row failed, and no further one is started.",
        "Fix the workflow and deploy it, then restart the schedule.",
        action="restart",
        shows_error=True,
        list_of=_List("/schedules", {"status": "dead"}),
    ),
    "blocked": _Words(
        "{count} blocked",
        "No worker had the code of their runs yet: {reasons}",
        "Start a worker that has it (RQSCHED_IMPORTS, PYTHONPATH), or stop those that lack it.",
        list_of=_List("/runs", {"status": "blocked"}),
    ),
    "limits": _Words("Runs with a limit wait", list_of=_List("/limits")),
    "successes": _Words(
        "{count} without a success in time",
        "No run succeeded within `expect_success_within`.",
        "See the runs and the history of each schedule.",
        action="trigger",
        shows_error=True,
        list_of=_List("/schedules", {"problem": "overdue"}),
    ),
    "failing": _Words(
        "{count} failing repeatedly",
        f"At least {REPEATEDLY} runs in a row failed.",
        "The newest run shows the traceback. Fix the cause, then run the schedule.",
        action="trigger",
        shows_error=True,
        list_of=_List("/schedules", {"problem": "failing"}),
    ),
    "quotas": _Words("The namespace is nearly full"),
    "notifications": _Words("Notifications do not arrive"),
    "dispatchers": _Words(
        "No dispatcher is alive",
        "Schedules fire only where `rqsched worker` or a plain RQ worker runs.",
        "Start `rqsched worker`.",
        list_of=_List("/system"),
    ),
    "waits": _Words(
        "Dispatchers wait for SQL",
        "The database answers, but refuses writes: schedules do not fire.",
        "`rqsched doctor` shows its answer. The most frequent cause is a full disk.",
        list_of=_List("/system"),
    ),
    "publishing": _Words("Redis refuses new jobs", "No job executes there: {detail}.", list_of=_List("/system")),
    "memory": _Words("Redis is nearly full", "When it is full, it refuses writes and schedules do not fire: {detail}."),
    "runners": _Words("Runners were damaged and replaced", "{detail}."),
    "foreign workers": _Words("Workers with another database take jobs of this one", "They cannot do them: {workers}."),
    "clock": _Words(
        "Clocks differ",
        "{clocks}. Fires are timed by the clock of SQL, heartbeats and leases by Redis.",
        "Run NTP on every machine.",
    ),
    "ownership": _Words(
        "Redis belongs to another database",
        "The control queue `{queue}` belongs to {owner}, but this page shows {mine}: changes made here have no effect.",
    ),
    "workers": _Words("Jobs wait for a worker", list_of=_List("/system")),
    "all-frozen": _Words("Everything is frozen", "{detail}."),
    "frozen": _Words("The namespace is frozen", "{detail}."),
    "writes": _Words(
        "The database takes no writes",
        "It is a standby, or read-only. The pages may be some seconds old, and nothing can be changed here.",
        "Use the pages of the primary.",
    ),
    "went back": _Words("Two databases write"),
    "long": _Words(
        "{count} running for too long",
        "A run takes longer than `expect_duration`. If that is not set: longer than the time to the next fire, or than "
        "`expect_success_within`.",
        "Look at the run; terminate it if it hangs, or give it a `timeout` or more time.",
        list_of=_List("/runs", {"status": "running"}),
    ),
}
_MILDER: Mapping[str, _Words] = {
    "went back": _Words("SQL or Redis went back to an older state, or was replaced"),
    "ownership": _Words("Redis does not know this database", "It was flushed, or no worker has run yet."),
    "workers": _Words(
        "No worker is alive", "Runs are executed by workers.", "Start `rqsched worker`.", list_of=_List("/system")
    ),
}
"""The texts of warnings, for the checks whose warning has another meaning than their problem."""


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
        late_until = health.late_until(visit.scheduler.runtime)
        counts = schedule_queries.count_by_status(connection, namespace, MOST_COUNTED)
        late = schedule_queries.count_late(connection, namespace, late_until, MOST_COUNTED, frozen)
        found = health.examine_work(visit.scheduler.runtime, connection, namespace, around)
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
    findings = sorted((*around, *values["problems"]), key=_rank)
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
    is_bad, spoken = finding.level is Level.PROBLEM, _spoken(visit, finding)
    words = _WORDS[finding.check] if is_bad else _MILDER.get(finding.check, _WORDS[finding.check])
    title, detail, remedy = (text.format_map(spoken) for text in words[:3])
    tone, some = "bad" if is_bad else "warn", tuple(finding.schedules[:NAMED])
    return Problem(tone, title, detail, remedy, some, words.action, words.shows_error, words.list_of)


def _spoken(visit: Visit, finding: Finding) -> dict[str, str]:
    """Return the values for the texts. Viewers of some namespaces see the number of workers, but not their names."""
    count = counted(finding.count or 0)
    names, numbers = finding.names, finding.numbers
    queues = ", ".join(f"{depth:.0f} on `{name}`" for name, depth in sorted(numbers.items())[:NAMED])
    return {
        "detail": finding.detail,
        "advice": finding.advice or "",
        "count": f"{count} schedule{'s are' if count != '1' else ' is'}",
        "they": "It" if count == "1" else "They",
        "reasons": "; ".join(names[:_REASONS]) + ("; ..." if len(names) > _REASONS else ""),
        "workers": ", ".join(names[:NAMED]) if visit.sees_all else str(len(names)),
        "queues": queues + (f" and {len(numbers) - NAMED} more queues" if len(numbers) > NAMED else ""),
        "clocks": " and ".join(
            f"{name}'s is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
            for name, skew in numbers.items()
        ),
        "queue": visit.scheduler.runtime.transport.control.name,
        "owner": next(iter(names), ""),
        "mine": next(reversed(names), ""),
    }
