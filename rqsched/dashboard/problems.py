"""What is wrong now, worst first: each with what to do and, where there is one, the button."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from redis.exceptions import RedisError

from rqsched.core.model import Schedule
from rqsched.dashboard.system import deserted_queues
from rqsched.dashboard.visit import Visit
from rqsched.store import listing, overview
from rqsched.store.database import Connection
from rqsched.store.listing import Filters
from rqsched.transport import telemetry

_log = logging.getLogger(__name__)
_NAMED = 5
_FAILING = 3
"""So many failures in a row are a problem of their own."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    tone: str
    """`bad` when schedules do not fire or work is not done, `warn` when they soon may not."""
    title: str
    """What is wrong, in one line."""
    detail: str
    """What it means."""
    remedy: str
    """What to do."""
    schedules: tuple[Schedule, ...] = ()
    """Which schedules, the first few."""
    action: str | None = None
    """The operation that a button offers for each of them; None without one."""


def find_problems(visit: Visit) -> list[Problem]:
    """Return what is wrong in the namespace and with the servers."""
    found = [*_redis(visit), *_overdue(visit), *_dead(visit), *_blocked(visit), *_unsuccessful(visit), *_failing(visit)]
    return sorted(found, key=lambda problem: problem.tone != "bad")


def _redis(visit: Visit) -> list[Problem]:
    transport = visit.scheduler.runtime.transport
    try:
        alive = telemetry.live_dispatchers(transport.redis, transport.control.name)
        deserted = deserted_queues(visit)
    except (RedisError, OSError) as error:
        _log.warning("Redis does not answer: %s", error, extra={"action": "dashboard_redis"})
        return [
            Problem(
                "bad", "Redis does not answer", "Nothing fires until it is back. What is stored meanwhile is not lost.",
                "Start it, or set RQSCHED_REDIS_URL to where it is; `rqsched doctor` says more.",
            )
        ]  # fmt: skip
    if alive:
        return _deserted(deserted)
    return [
        *_deserted(deserted),
        Problem(
            "bad", "No dispatcher is alive", "Schedules fire only where `rqsched worker` or a plain RQ worker runs.",
            "Start `rqsched worker`.",
        )
    ]  # fmt: skip


def _deserted(queues: Mapping[str, int]) -> list[Problem]:
    if not queues:
        return []
    names = ", ".join(f"{depth} on `{name}`" for name, depth in sorted(queues.items())[:_NAMED])
    more = f" and {len(queues) - _NAMED} more queues" if len(queues) > _NAMED else ""
    return [
        Problem(
            "bad", "Jobs wait where no worker listens", f"Nobody takes them: {names}{more}.",
            "Start `rqsched worker` with their names.",
        )
    ]  # fmt: skip


def _overdue(visit: Visit) -> list[Problem]:
    settings = visit.scheduler.settings
    since = visit.now - settings.grace - settings.lease
    late = visit.read(lambda connection: overview.overdue_schedules(connection, visit.namespace, since, _NAMED + 1))
    if not late:
        return []
    return [
        Problem(
            "bad", f"{_count(late)} overdue", "They should have fired and did not.",
            "Look whether a dispatcher runs; `rqsched recover` arms what is missing in Redis.", tuple(late[:_NAMED]),
        )
    ]  # fmt: skip


def _dead(visit: Visit) -> list[Problem]:
    dead = _with_status(visit, "dead")
    if not dead:
        return []
    return [
        Problem(
            "bad", f"{_count(dead)} dead", "They no longer fire, because their runs failed too often.",
            "Fix the workflow, then restart them.", tuple(dead[:_NAMED]), "restart",
        )
    ]  # fmt: skip


def _blocked(visit: Visit) -> list[Problem]:
    found = visit.read(lambda connection: overview.blocked_runs(connection, visit.namespace, _NAMED + 1))
    if not found:
        return []
    schedules = list({schedule.uid: schedule for schedule, _ in found}.values())
    return [
        Problem(
            "bad", f"{_count(schedules)} blocked", f"No worker had the code of their runs yet: {found[0][1]}",
            "Start a worker that has it (RQSCHED_IMPORTS, PYTHONPATH), or stop those that lack it.",
            tuple(schedules[:_NAMED]),
        )
    ]  # fmt: skip


def _failing(visit: Visit) -> list[Problem]:
    def read(connection: Connection) -> list[Schedule]:
        return overview.failing(connection, visit.namespace, visit.now - timedelta(days=1), _FAILING, _NAMED + 1)

    failing = visit.read(read)
    if not failing:
        return []
    return [
        Problem(
            "warn", f"{_count(failing)} failing repeatedly", f"At least {_FAILING} runs in a row failed.",
            "Their newest run shows the traceback.", tuple(failing[:_NAMED]),
        )
    ]  # fmt: skip


def _unsuccessful(visit: Visit) -> list[Problem]:
    filters = Filters(namespace=visit.namespace, overdue=True)
    found = visit.read(lambda c: listing.list_schedules(c, filters, limit=_NAMED + 1, cursor=None)).items
    if not found:
        return []
    count = f"{_count(found)} without the success that was expected"
    return [
        Problem(
            "bad", count, "No run succeeded within `expect_success_within`.",
            "Their runs and their history say why.", tuple(found[:_NAMED]), "trigger",
        )
    ]  # fmt: skip


def _with_status(visit: Visit, status: str) -> list[Schedule]:
    filters = Filters(namespace=visit.namespace, statuses=(status,))
    page = visit.read(lambda c: listing.list_schedules(c, filters, limit=_NAMED + 1, cursor=None, newest_first=True))
    return page.items


def _count(found: list[Schedule]) -> str:
    count = f"More than {_NAMED}" if len(found) > _NAMED else str(len(found))
    return f"{count} schedule{'s are' if count != '1' else ' is'}"
