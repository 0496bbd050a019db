"""The checks of `rqsched doctor`: each asks SQL or Redis one question, and its finding says what to do.

Checks only read. A check that cannot be made is itself a problem, never an exception.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from importlib.metadata import version
from typing import Any

from redis.exceptions import RedisError
from rq import Worker
from rq.registry import FailedJobRegistry

import rqsched
from rqsched.chain import deployment
from rqsched.chain.quotas import usage_of_all
from rqsched.chain.reconcile import SOON
from rqsched.chain.runtime import Runtime, import_workflows
from rqsched.cli.command import explain
from rqsched.config import Settings
from rqsched.core.deliveries import shown_destination
from rqsched.core.ids import iso_utc
from rqsched.embedded import resolve_urls
from rqsched.errors import ConfigError, RqschedError
from rqsched.store import deliveries, reconcile_queries, schedule_queries, schema_version
from rqsched.store.database import Connection, Database, DatabaseError, Patience, with_connect_timeout
from rqsched.store.migrations import HEAD
from rqsched.store.schedule_queries import Filters
from rqsched.transport import telemetry
from rqsched.transport.client import require_no_cluster
from rqsched.transport.transport import Arm

DEEP = 1_000
"""With more waiting links than this, the workers do not keep up."""
_MOST = 1_000
"""How many rows a check reads at most."""
_LATE = timedelta(minutes=10)
"""Notifications that wait longer are a warning."""
_A_DAY = timedelta(days=1)
_NEARLY_FULL = 0.9
"""The share of a quota from which on it is told."""
_NAMED = 5
"""How many schedules a finding names."""
_SECONDS = 3
"""How long a server may take to answer."""
_BACKENDS = (RqschedError, RedisError, DatabaseError, OSError)


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    """As it should be."""
    WARNING = "warning"
    """It works, but not as well as it could."""
    PROBLEM = "problem"
    """Schedules do not fire, or will stop."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    """The name of the check."""
    level: Level
    """How bad it is."""
    detail: str
    """What was found."""
    advice: str | None = None
    """What to do; None when there is nothing to do."""


Answer = tuple[Level, str] | tuple[Level, str, str]
Check = Callable[[Runtime], Answer]


def examine(read_settings: Callable[[], Settings]) -> Iterator[Finding]:
    """Yield one finding per check, most basic first; a check that needs another which failed is left out."""
    yield Finding("versions", Level.OK, _versions())
    try:
        settings = read_settings()
    except ConfigError as error:
        yield Finding("settings", Level.PROBLEM, explain(error), "Set it in the environment of every process alike.")
        return
    yield _asked("imports", lambda: _imports(settings), "Fix the module, or remove it from RQSCHED_IMPORTS.")
    try:
        runtime = _open(settings)
    except _BACKENDS as error:
        yield Finding("servers", Level.PROBLEM, explain(error), "Set RQSCHED_DATABASE_URL and RQSCHED_REDIS_URL.")
        return
    with closing(runtime):
        yield from _examine(runtime)


def _examine(runtime: Runtime) -> Iterator[Finding]:
    sound: set[str] = set()
    broken: set[str] = set()
    for name, needs, check, advice in _CHECKS:
        if not needs <= sound or (name in _OF_OWNERS and "ownership" in broken):
            continue
        finding = _asked(name, lambda check=check: check(runtime), advice)  # type: ignore[misc]
        (broken if finding.level is Level.PROBLEM else sound).add(name)
        yield finding


def _asked(name: str, check: Callable[[], Answer], advice: str) -> Finding:
    try:
        level, detail, *own = check()
    except _BACKENDS as error:
        return Finding(name, Level.PROBLEM, explain(error), advice)
    return Finding(name, level, detail, None if level is Level.OK else (own or [advice])[0])


def _open(settings: Settings) -> Runtime:
    """Open a runtime with short timeouts: doctor is there to find an unreachable server."""
    urls = resolve_urls(settings)
    patience = Patience(total=timedelta(seconds=_SECONDS))
    database = Database(
        with_connect_timeout(urls.database_url, _SECONDS), patience=patience, pooler=settings.database_pooler
    )
    runtime = Runtime(settings, database=database)
    runtime.transport.redis.connection_pool.connection_kwargs |= {
        "socket_connect_timeout": _SECONDS,
        "socket_timeout": _SECONDS,
    }
    return runtime


def _versions() -> str:
    names = ("rq", "redis", "SQLAlchemy", "croniter", "tzdata")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    return f"rqsched {rqsched.__version__}, Python {platform.python_version()}, {packages}"


def _imports(settings: Settings) -> Answer:
    import_workflows(settings)
    return Level.OK, ", ".join(settings.imports) or "none"


def _database(runtime: Runtime) -> Answer:
    where = runtime.database.engine.url
    return Level.OK, f"{runtime.database.server_version()} at {where.host or ''}{where.database}"


def _schema(runtime: Runtime) -> Answer:
    schema_version.require_current(runtime.database)
    return Level.OK, f"at {HEAD}"


def _overdue(runtime: Runtime) -> Answer:
    until = _late(runtime)
    rows, _ = runtime.database.read(lambda connection: reconcile_queries.due_links(connection, until, None, _MOST))
    if not rows:
        return Level.OK, "no schedule is overdue"
    count = f"{len(rows)}{'+' if len(rows) == _MOST else ''}"
    return Level.PROBLEM, f"{count} overdue, the oldest since {iso_utc(rows[0][1])}"


def _late(runtime: Runtime) -> datetime:
    """Return the latest due time that is overdue: a living dispatcher has fired what was due then."""
    return runtime.now() - runtime.settings.grace - runtime.settings.lease


def _dead(runtime: Runtime) -> Answer:
    filters = Filters(statuses=("dead",))
    page = runtime.database.read(
        lambda connection: schedule_queries.list_schedules(connection, filters, limit=_NAMED, cursor=None)
    )
    if not page.items:
        return Level.OK, "no schedule is dead"
    names = ", ".join(f"{schedule.namespace}/{schedule.schedule_id}" for schedule in page.items)
    return Level.WARNING, f"no longer fire because their runs failed: {names}{' ...' if page.next_cursor else ''}"


def _events(runtime: Runtime) -> Answer:
    """Look for events that machines declare and that no registration and no schedule of any namespace sends."""
    registered = {workflow for workflow, *_ in runtime.workflows.declared().values()}
    events = [known.name for known in runtime.workflows.all() if known.each is not None]

    def unused(connection: Connection) -> list[str]:
        rest = (name for name in events if name not in registered)
        return [name for name in rest if not schedule_queries.count_schedules(connection, Filters(workflow=name))]

    names = runtime.database.read(unused)
    if not names:
        return Level.OK, f"{len(events)} declared, each registered" if events else "no machine declares any"
    return Level.WARNING, f"declared and never registered: {', '.join(names)}"


def _quotas(runtime: Runtime) -> Answer:
    if not runtime.settings.quotas:
        return Level.OK, "none is set"
    known = runtime.database.read(lambda connection: usage_of_all(runtime, connection))
    full = sorted((one for one in known if one.share >= _NEARLY_FULL), key=lambda one: -one.share)
    if not full:
        return Level.OK, f"{len(known)} namespaces within theirs"
    named = ", ".join(f"{one.namespace} ({one.schedules} schedules, {one.bytes} bytes)" for one in full[:_NAMED])
    return Level.WARNING, f"nearly used up or exceeded: {named}{' ...' if len(full) > _NAMED else ''}"


def _silent(runtime: Runtime) -> Answer:
    filters = Filters(overdue=True)
    page = runtime.database.read(
        lambda connection: schedule_queries.list_schedules(connection, filters, limit=_NAMED, cursor=None)
    )
    if not page.items:
        return Level.OK, "no schedule lacks the success it expects"
    since = ", ".join(
        f"{one.namespace}/{one.schedule_id} (since {iso_utc(one.overdue_since)})"
        for one in page.items
        if one.overdue_since is not None
    )
    return Level.WARNING, f"no success in time: {since}{' ...' if page.next_cursor else ''}"


def _notifications(runtime: Runtime) -> Answer:
    now = runtime.now()
    waiting, late = runtime.database.read(lambda connection: deliveries.count_open(connection, now, _LATE))
    failed = runtime.database.read(lambda connection: deliveries.failed_since(connection, now - _A_DAY, _NAMED))
    if failed:
        told = "; ".join(f"{one.kind.value} {shown_destination(one)}: {one.error}" for one in failed)
        return Level.WARNING, f"given up within a day: {told}"
    if late:
        return Level.WARNING, f"{late} of {waiting} have waited for more than {_LATE.seconds // 60} minutes"
    return Level.OK, f"{waiting} wait"


def _redis(runtime: Runtime) -> Answer:
    redis = runtime.transport.redis
    before = time.perf_counter()
    redis.ping()
    took = time.perf_counter() - before
    require_no_cluster(redis)
    server: Any = redis.info("server")
    name = "Valkey" if "valkey_version" in server else "Redis"
    found = server.get("valkey_version") or server["redis_version"]
    return Level.OK, f"{name} {found} answers in {took * 1000:.1f} ms"


def _eviction(runtime: Runtime) -> Answer:
    memory: Any = runtime.transport.redis.info("memory")
    policy, limit = memory["maxmemory_policy"], memory["maxmemory"]
    if policy == "noeviction":
        return Level.OK, policy
    return Level.PROBLEM if limit else Level.WARNING, f"{policy}, maxmemory {limit}"


def _persistence(runtime: Runtime) -> Answer:
    info: Any = runtime.transport.redis.info("persistence")
    if info["aof_enabled"]:
        is_written = info.get("aof_last_write_status", "ok") == "ok"
        return (Level.OK, "append-only file") if is_written else (Level.PROBLEM, "the append-only file is not written")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return Level.PROBLEM, "snapshots fail"
    return Level.WARNING, "no append-only file"


def _connections(runtime: Runtime) -> Answer:
    others = runtime.transport.connections
    for name, redis in others.items():
        try:
            redis.ping()
            require_no_cluster(redis)
        except (RedisError, ConfigError) as error:
            return Level.PROBLEM, f"{name}: {error}"
    return Level.OK, ", ".join(others) or "none"


def _depth(runtime: Runtime) -> Answer:
    transport = runtime.transport
    waiting, armed = transport.count_due(now=runtime.now()), transport.count_armed()
    level = Level.WARNING if waiting > DEEP else Level.OK
    return level, f"{waiting} due, {armed} armed on {transport.control.name!r}"


def _failed_links(runtime: Runtime) -> Answer:
    count = FailedJobRegistry(queue=runtime.transport.control).count
    return (Level.WARNING if count else Level.OK), f"{count} failed"


def _ownership(runtime: Runtime) -> Answer:
    """Compare the database's id with the one in Redis; only reads, and says the same of a database without tables."""
    owner, mine = deployment.database_ids(runtime)
    if owner is None:
        return Level.WARNING, "Redis does not know this database: it was flushed, or no worker has run yet"
    if owner == mine:
        return Level.OK, "the control queue belongs to this database"
    queue, key = runtime.transport.control.name, runtime.transport.database_id_key
    what = f"is {mine}" if mine else "is empty"
    return (
        Level.PROBLEM,
        f"control queue {queue!r} belongs to another database: {owner}, this one {what}",
        "Set RQSCHED_DATABASE_URL to that database, or give this one a Redis database or a RQSCHED_CONTROL_QUEUE of "
        f"its own; if the other one is gone, delete the key {key!r}.",
    )


def _foreign_workers(runtime: Runtime) -> Answer:
    """Look for workers with another database that were given this one's jobs, on every Redis there is."""
    found = deployment.foreign_workers(runtime)
    if not found:
        return Level.OK, "no worker with another database was given a job"
    return Level.PROBLEM, f"workers with another database were given jobs of this one: {', '.join(found)}"


def _clock(runtime: Runtime) -> Answer:
    skews = deployment.clock_skews(runtime)
    detail = ", ".join(f"{name} {skew.total_seconds():+.3f} s" for name, skew in skews.items())
    return (Level.WARNING if any(abs(skew) > deployment.SKEW for skew in skews.values()) else Level.OK), detail


def _dispatchers(runtime: Runtime) -> Answer:
    transport = runtime.transport
    alive = telemetry.live_dispatchers(transport.redis, transport.control.name)
    if alive:
        return Level.OK, ", ".join(one.name for one in alive)
    filters = Filters(statuses=("active",))
    active = runtime.database.read(lambda connection: schedule_queries.count_schedules(connection, filters))
    plain = Worker.count(queue=transport.control)
    if plain:
        return Level.OK, f"none; {plain} plain RQ worker(s) fire the links, one at a time"
    return (Level.PROBLEM if active else Level.WARNING), f"none, and {active} active schedule(s)"


def _workers(runtime: Runtime) -> Answer:
    workers = Worker.all(connection=runtime.transport.control.connection)
    listening = Counter(name for one in workers for name in one.queue_names())
    before = runtime.now() - runtime.settings.grace
    waiting, _ = runtime.database.read(lambda connection: reconcile_queries.pending(connection, before, None, _MOST))
    own = [run.queue or runtime.settings.default_queue for run in waiting if run.connection is None]
    deserted = {name: count for name, count in Counter(own).items() if name not in listening}
    if deserted:
        names = ", ".join(f"{count} run(s) on {name!r}" for name, count in deserted.items())
        return Level.PROBLEM, f"no worker listens for {names}"
    if not listening:
        return Level.WARNING, "no RQ worker"
    found = telemetry.worker_versions(runtime.transport.redis, [one.key for one in workers])
    versions = Counter(f"rqsched {version}" if version else "RQ alone" for version in found)
    names, kinds = (", ".join(f"{name} ({n})" for name, n in counts.items()) for counts in (listening, versions))
    return Level.OK, f"{names}; {kinds}"


def _blocked(runtime: Runtime) -> Answer:
    """Look for runs whose code no worker had yet: which worker lacked what, once for each reason."""
    read = reconcile_queries.blocked
    rows, _ = runtime.database.read(lambda connection: read(connection, runtime.now(), None, _MOST))
    if not rows:
        return Level.OK, "no run waits for code"
    reasons = sorted({run.blocked_reason or "" for run in rows})
    told = "; ".join(reasons[:_NAMED]) + ("; ..." if len(reasons) > _NAMED else "")
    return Level.PROBLEM, f"{len(rows)}{'+' if len(rows) == _MOST else ''} run(s) whose code no worker had yet: {told}"


def _links(runtime: Runtime) -> Answer:
    links = _due_soon(runtime)
    dead = _not_live(runtime, links)
    if dead:  # or it fired between the read of SQL and the one of Redis
        dead &= _not_live(runtime, _due_soon(runtime))
    if dead:
        return Level.PROBLEM, f"{len(dead)} of {len(links)} due soon are not live in Redis"
    late = sum(link.due_at <= _late(runtime) for link in links)
    if late:
        return Level.OK, f"{len(links)} due soon or overdue, all in Redis, where {late} overdue wait for a dispatcher"
    return Level.OK, f"{len(links)} due soon, all live"


def _due_soon(runtime: Runtime) -> list[Arm]:
    """Read the links that must be in Redis by now: due soon, or overdue beyond the grace."""
    now = runtime.now()
    rows, _ = runtime.database.read(lambda connection: reconcile_queries.due_links(connection, now + SOON, None, _MOST))
    return [Arm(link, due_at) for link, due_at in rows if due_at > now or due_at < now - runtime.settings.grace]


def _not_live(runtime: Runtime, arms: Sequence[Arm]) -> set[Arm]:
    live = runtime.transport.live_links(arms, now=runtime.now())
    return {arm for arm, is_live in zip(arms, live, strict=True) if not is_live}


_START_WORKER = "Start `rqsched worker`, or `rq worker -c rqsched.preload`."
_OF_OWNERS = frozenset({"schema"})
"""Checks, and with them all that need them, that are left out in a database which Redis does not belong to."""
_CHECKS: tuple[tuple[str, frozenset[str], Check, str], ...] = tuple(
    (name, frozenset(needs.split()), check, advice)
    for name, needs, check, advice in (
        ("database", "", _database, "Start it, or set RQSCHED_DATABASE_URL to where it is."),
        ("redis", "", _redis, "Start it, or set RQSCHED_REDIS_URL to where it is."),
        ("ownership", "database redis", _ownership, "A worker's start or `rqsched recover` arms every link."),
        ("schema", "database", _schema, "Run `rqsched db upgrade`."),
        ("clock", "database redis", _clock, "Run NTP on every machine; fires are timed by SQL's clock meanwhile."),
        ("eviction", "redis", _eviction, "Set maxmemory-policy to noeviction: evicted links fire late."),
        ("persistence", "redis", _persistence, "Set appendonly to yes, or a Redis restart delays everything armed."),
        ("connections", "", _connections, "Fix RQSCHED_CONNECTIONS or start that server."),
        ("dispatchers", "schema redis", _dispatchers, _START_WORKER),
        ("workers", "schema redis", _workers, "Start `rqsched worker QUEUE` for that queue."),
        (
            "foreign workers",
            "schema redis",
            _foreign_workers,
            "Set RQSCHED_DATABASE_URL of these workers to this database's and restart them, or give each database run "
            "queues of its own (RQSCHED_DEFAULT_QUEUE).",
        ),
        (
            "blocked",
            "schema",
            _blocked,
            "Start a worker that has the code (RQSCHED_IMPORTS names the module, PYTHONPATH finds it), stop those that "
            "lack it, or cancel the runs: `rqsched runs ID --status blocked`.",
        ),
        ("overdue", "schema", _overdue, "Start `rqsched worker`; `rqsched recover` arms what is missing."),
        (
            "dead",
            "schema",
            _dead,
            "Fix the workflow and `rqsched restart ID`; `rqsched list --status dead` shows all.",
        ),
        (
            "events",
            "schema",
            _events,
            "MachineScheduler.register says when such an event is sent; without it, it is sent by hand alone.",
        ),
        ("quotas", "schema", _quotas, "Delete what is not needed, or raise RQSCHED_QUOTAS; `rqsched usage -n NAME`."),
        ("successes", "schema", _silent, "`rqsched history ID` says what became of its runs; then fix what it runs."),
        (
            "notifications",
            "schema",
            _notifications,
            "Fix the receiver, or start a worker for their queue; `rqsched deliveries ID` shows them.",
        ),
        ("links", "schema redis", _links, "Run `rqsched recover`; a worker does so every 15 seconds."),
        ("failed links", "redis", _failed_links, "`rq info` and the workers' logs say why; reconcile arms them again."),
        ("depth", "redis", _depth, "Start more workers."),
    )
)
