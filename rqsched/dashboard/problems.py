"""What is wrong now, worst first: each with what to do and, where there is one, the button."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from redis.exceptions import RedisError

from rqsched.chain import deployment
from rqsched.core.model import REPEATEDLY, Schedule
from rqsched.dashboard.queues import deserted_queues
from rqsched.dashboard.visit import Visit
from rqsched.errors import BackendUnavailableError
from rqsched.store import run_queries, schedule_queries
from rqsched.store.database import Connection
from rqsched.store.schedule_queries import Filters
from rqsched.transport import telemetry

_log = logging.getLogger(__name__)
_NAMED = 5
_REASONS = 3


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
    shows_error: bool = False
    """Whether the last error of each of them says more."""


def find_problems(visit: Visit, connection: Connection) -> list[Problem]:
    """Return what is wrong in the namespace and with the servers."""
    namespace = visit.namespace
    return [
        *_overdue(connection, namespace, _late_before(visit)),
        *_dead(connection, namespace),
        *_blocked(connection, namespace),
        *_unsuccessful(connection, namespace),
        *_failing(connection, namespace),
    ]


def find_server_problems(visit: Visit) -> list[Problem]:
    """Return what is wrong with Redis, clocks, databases and queues; it asks them, outside of a transaction."""
    try:
        return [*_databases(visit), *_processes(visit), *_clocks(visit)]
    except (RedisError, BackendUnavailableError, OSError) as error:
        _log.warning("Redis does not answer: %s", error, extra={"action": "dashboard_redis"})
        return [
            Problem(
                "bad", "Redis does not answer", "Nothing fires until it is back. What is stored meanwhile is not lost.",
                "Start it, or set RQSCHED_REDIS_URL to where it is; `rqsched doctor` says more.",
            )
        ]  # fmt: skip


def by_rank(problems: Iterable[Problem]) -> list[Problem]:
    """Return the worst first."""
    return sorted(problems, key=lambda problem: problem.tone != "bad")


def _databases(visit: Visit) -> Iterator[Problem]:
    runtime = visit.scheduler.runtime
    owner, mine = deployment.database_ids(runtime)
    if owner is not None and owner != mine:
        yield Problem(
            "bad", "Redis belongs to another database",
            f"The control queue `{runtime.transport.control.name}` carries the schedules of {owner}, this page shows "
            f"{mine}: what is changed here does not fire.",
            "Set RQSCHED_DATABASE_URL to that database, or give this one a Redis database or a RQSCHED_CONTROL_QUEUE "
            f"of its own; if the other one is gone, delete the key `{runtime.transport.database_id_key}`.",
        )  # fmt: skip
    foreign = deployment.foreign_workers(runtime)
    if foreign:
        who = ", ".join(foreign[:_NAMED]) if visit.sees_all else str(len(foreign))
        yield Problem(
            "bad", "Workers with another database take jobs of this one", f"They cannot do them: {who}.",
            "Set RQSCHED_DATABASE_URL of these workers to this database's and restart them, or give each database run "
            "queues of its own (RQSCHED_DEFAULT_QUEUE).",
        )  # fmt: skip


def _processes(visit: Visit) -> Iterator[Problem]:
    transport = visit.scheduler.runtime.transport
    yield from _deserted(deserted_queues(visit))
    if not telemetry.live_dispatchers(transport.redis, transport.control.name):
        yield Problem(
            "bad", "No dispatcher is alive", "Schedules fire only where `rqsched worker` or a plain RQ worker runs.",
            "Start `rqsched worker`.",
        )  # fmt: skip


def _deserted(queues: Mapping[str, int]) -> Iterator[Problem]:
    if queues:
        names = ", ".join(f"{depth} on `{name}`" for name, depth in sorted(queues.items())[:_NAMED])
        more = f" and {len(queues) - _NAMED} more queues" if len(queues) > _NAMED else ""
        yield Problem(
            "bad", "Jobs wait where no worker listens", f"Nobody takes them: {names}{more}.",
            "Start `rqsched worker` with their names.",
        )  # fmt: skip


def _clocks(visit: Visit) -> Iterator[Problem]:
    skews = deployment.clock_skews(visit.scheduler.runtime)
    wrong = {name: skew for name, skew in skews.items() if abs(skew) > deployment.SKEW}
    if wrong:
        told = " and ".join(f"{name}'s is {_apart(skew)} this machine's" for name, skew in wrong.items())
        yield Problem(
            "warn", "Clocks differ", f"{told}. Fires are timed by the clock of SQL, heartbeats and leases by Redis.",
            "Run NTP on every machine.",
        )  # fmt: skip


def _apart(skew: timedelta) -> str:
    return f"{abs(skew).total_seconds():.1f} s {'ahead of' if skew > timedelta(0) else 'behind'}"


def _late_before(visit: Visit) -> datetime:
    settings = visit.scheduler.settings
    return visit.now - settings.grace - settings.lease


def _overdue(connection: Connection, namespace: str, since: datetime) -> Iterator[Problem]:
    late = schedule_queries.overdue_schedules(connection, namespace, since, _NAMED + 1)
    if late:
        yield Problem(
            "bad", f"{_count(late)} overdue", f"{_they(late)} should have fired and did not.",
            "Look whether a dispatcher runs; `rqsched recover` arms what is missing in Redis.", tuple(late[:_NAMED]),
        )  # fmt: skip


def _dead(connection: Connection, namespace: str) -> Iterator[Problem]:
    filters = Filters(namespace=namespace, statuses=("dead",))
    dead = schedule_queries.list_schedules(connection, filters, limit=_NAMED + 1, cursor=None, newest_first=True).items
    if dead:
        yield Problem(
            "bad", f"{_count(dead)} dead", "Too many runs in a row failed, and no further one is started.",
            "Fix the workflow, then restart what runs it.", tuple(dead[:_NAMED]), "restart", shows_error=True,
        )  # fmt: skip


def _blocked(connection: Connection, namespace: str) -> Iterator[Problem]:
    found = run_queries.blocked_runs(connection, namespace, _NAMED + 1)
    if found:
        schedules = list({schedule.uid: schedule for schedule, _ in found}.values())
        reasons = list(dict.fromkeys(reason or "" for _, reason in found))
        told = "; ".join(reasons[:_REASONS]) + ("; ..." if len(reasons) > _REASONS else "")
        yield Problem(
            "bad", f"{_count(schedules)} blocked", f"No worker had the code of their runs yet: {told}",
            "Start a worker that has it (RQSCHED_IMPORTS, PYTHONPATH), or stop those that lack it.",
            tuple(schedules[:_NAMED]),
        )  # fmt: skip


def _failing(connection: Connection, namespace: str) -> Iterator[Problem]:
    failing = schedule_queries.failing(connection, namespace, _NAMED + 1)
    if failing:
        yield Problem(
            "warn", f"{_count(failing)} failing repeatedly", f"At least {REPEATEDLY} runs in a row failed.",
            "Their newest run shows the traceback; fix what it says, then run them.",
            tuple(failing[:_NAMED]), "trigger", shows_error=True,
        )  # fmt: skip


def _unsuccessful(connection: Connection, namespace: str) -> Iterator[Problem]:
    found = schedule_queries.unsuccessful(connection, namespace, _NAMED + 1)
    if found:
        yield Problem(
            "bad", f"{_count(found)} without the success that was expected",
            "No run succeeded within `expect_success_within`.",
            "Their runs and their history say why.", tuple(found[:_NAMED]), "trigger", shows_error=True,
        )  # fmt: skip


def _they(found: list[Schedule]) -> str:
    return "It" if len(found) == 1 else "They"


def _count(found: list[Schedule]) -> str:
    count = f"More than {_NAMED}" if len(found) > _NAMED else str(len(found))
    return f"{count} schedule{'s are' if count != '1' else ' is'}"
