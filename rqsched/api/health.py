"""Health checks: the one place that finds problems. `rqsched doctor`, pages, metrics and probes show its findings.

A check asks SQL or Redis one question and only reads, with one exception: only a write can show that Redis takes
writes. A check that cannot be made is reported as a problem, never raised, and the checks that depend on it are left
out. So no advice rests on values that could not be read. A check of schedules and runs covers one namespace or all.

Each surface asks as much as it can afford. `doctor` makes every check: it also looks for causes of late schedules, such
as the configuration of Redis and missing links. A page is read again with each change, and makes only the checks that
concern its viewer (`examine_processes`, `examine_work`). Metrics count by namespace, with the same conditions and
limits. A readiness probe asks only whether the backends respond (`backend_questions`).
"""

from __future__ import annotations

import shlex
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum, auto
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from redis.exceptions import NoPermissionError, RedisError
from rq.registry import FailedJobRegistry

from rqsched.clock import SystemClock
from rqsched.config import Settings
from rqsched.errors import ConfigError, RqschedError, SchemaError, WorkCancelledError, in_words
from rqsched.features.after import store as upstream_ends
from rqsched.features.calendars import store as calendars
from rqsched.features.limits import store as limits
from rqsched.features.limits.chain import told_of_use
from rqsched.features.notifications import store as deliveries
from rqsched.features.notifications.decide import shown_destination
from rqsched.features.quotas.chain import usages
from rqsched.features.quotas.decide import Usage
from rqsched.kernel.chain import option_checks, rollback_marks
from rqsched.kernel.chain.error_text import explain
from rqsched.kernel.chain.ownership import MAY_GO_ON, REFUSALS
from rqsched.kernel.chain.reconcile.repair import SOON
from rqsched.kernel.chain.rollback_marks import Told
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.model import REPEATEDLY, Schedule, ScheduleStatus
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.kernel.decide.quota_options import EVERY, RESOURCES
from rqsched.kernel.decide.results import LimitDescription, number_of
from rqsched.kernel.decide.rollback_marks import WentBack
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.queries import runs as run_queries
from rqsched.kernel.queries import schedules as schedule_queries
from rqsched.kernel.queries.runs import Waiting
from rqsched.kernel.queries.schedules import Filters
from rqsched.kernel.store import metadata, privileges, schema_version
from rqsched.kernel.store.database import Connection, DatabaseError, Patience, sqlite_path
from rqsched.kernel.store.migrations import HEAD
from rqsched.kernel.transport import refusal, telemetry
from rqsched.kernel.transport.client import require_no_cluster
from rqsched.kernel.transport.telemetry import LiveDispatcher, LiveRqWorker
from rqsched.kernel.transport.transport import Arm
from rqsched.when.steps import MOST_STEPS, Steps, answered, bounded

T = TypeVar("T")
GIVEN_UP_WITHIN = timedelta(days=1)
"""How long a notification that was given up stays a finding."""
NAMED = 5
"""The maximum number of schedules, workers or reasons that a surface lists."""
_TOLD = NAMED + 1
"""The maximum number of items that are read: one more than is listed, to know whether there are more."""
_DEEP = 1_000
"""The maximum number of waiting links without a warning. If there are more, the workers do not keep up."""
_MOST, _MOST_WAITING = 1_000, 5_000
"""The maximum number of schedules or blocked runs, and of waiting runs and targets, that are counted."""
_LATE = timedelta(minutes=10)
"""Notifications that wait longer are a warning."""
_ENDS_SOON = timedelta(days=90)
"""A calendar in use that ends within this span is a warning."""
_NEARLY_FULL = 0.9
"""A quota, or Redis's memory, is a warning when this share of it is used."""
_GOES_ON = timedelta(minutes=5)
"""How long a finding that two databases write to one Redis is valid. While they do, each pass renews the finding."""
_MIB = 1024 * 1024
_FOLLOWED_WITHIN = timedelta(minutes=1)
"""If a downstream run has not started this long after the end of the upstream run, that is a problem."""
_SKEW = 1.0
"""If two clocks differ by more seconds, that is a warning."""
BACKEND_ERRORS = (RqschedError, RedisError, DatabaseError, OSError)
"""The errors that a check raises when SQL or Redis does not answer it."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    """Nothing is wrong."""
    WARNING = "warning"
    """Schedules fire and runs start, but somebody should look: a schedule fails, or a limit is near."""
    PROBLEM = "problem"
    """Schedules do not fire or runs do not start, now or soon, until somebody acts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check."""

    level: Level
    """How bad it is."""
    detail: str
    """The finding in words: one sentence if something is wrong."""
    listed: str = ""
    """The first things that it concerns, in one line; empty if `detail` names them."""
    schedules: Sequence[Schedule] = ()
    """The first schedules that it concerns. If there are more than a surface lists, this holds one more."""
    advice: str | None = None
    """What to do; None if there is nothing to do."""
    error: Exception | None = None
    """Why the check could not be made; None if it was made."""
    check: str = ""
    """The name of the check."""
    count: int | None = None
    """The number of schedules that it concerns, counted up to 1 000; None if it concerns no schedules."""

    @property
    def told(self) -> str:
        """The detail with the things that it concerns."""
        end = "." if self.detail.endswith(".") and not self.listed.endswith(".") else ""
        return f"{self.detail.removesuffix('.')}: {self.listed}{end}" if self.listed else self.detail


@dataclass(frozen=True)
class _Scope:
    """The scope of checks, and answers of Redis that several checks need."""

    runtime: Runtime
    """The processes and servers."""
    namespace: str | None = None
    """The namespace whose schedules, runs and notifications count; None for all namespaces."""
    connection: Connection | None = None
    """The transaction of the caller; None gives each statement its own transaction."""

    def read(self, query: Callable[[Connection], T]) -> T:
        """Read from SQL, in the caller's transaction if there is one."""
        if self.connection is None:
            return self.runtime.database.read(query, is_alone=True)
        return query(self.connection)

    @cached_property
    def dispatchers(self) -> list[LiveDispatcher]:
        """The live dispatchers of the control queue."""
        transport = self.runtime.transport
        return telemetry.live_dispatchers(transport.redis, transport.control.name)

    @cached_property
    def workers(self) -> list[LiveRqWorker]:
        """The RQ workers that are registered."""
        return telemetry.registered_workers(self.runtime.transport.redis)


class _Shown(Enum):
    """The part of the dashboard that makes a check. `rqsched doctor` makes every check."""

    DOCTOR = auto()
    """No part: only doctor makes the check."""
    PROCESSES = auto()
    """The part about servers, workers and clocks."""
    WORK = auto()
    """The part about the schedules, runs and notifications of a namespace."""


class _Check(NamedTuple):
    name: str
    needs: frozenset[str]
    """The checks that must be without a problem before this check is made."""
    advice: str
    """The default advice, for a finding without its own."""
    shown: _Shown
    """The part of the dashboard that also makes it."""
    ask: Callable[[_Scope], Finding]


_CHECKS: list[_Check] = []
"""Every check in the order of this file, the most basic first."""


def _check(
    name: str, needs: str, advice: str, shown: _Shown = _Shown.DOCTOR
) -> Callable[[Callable[[_Scope], Finding]], Callable[[_Scope], Finding]]:
    """Add a check. `needs` names the checks that must be without a problem, separated by spaces.

    A finding without its own advice gets `advice`. `docs/troubleshooting.md` lists the names.
    """

    def add(ask: Callable[[_Scope], Finding]) -> Callable[[_Scope], Finding]:
        _CHECKS.append(_Check(name, frozenset(needs.split()), advice, shown, ask))
        return ask

    return add


def examine(runtime: Runtime) -> Iterator[Finding]:
    """Make every check over all namespaces, most basic first. If a check fails, leave out the checks that need it.

    If Redis belongs to another database, the check of the schema and the checks that need it are left out, too, because
    an upgrade would not help.
    """
    scope, sound, is_ours = _Scope(runtime), set[str](), True
    for check in _CHECKS:
        if check.needs <= sound and (is_ours or check.name != "schema"):
            finding = asked(check.name, partial(check.ask, scope), check.advice)
            if finding.level is not Level.PROBLEM:
                sound.add(check.name)
            elif check.name == "ownership":
                is_ours = False
            yield finding


def asked(name: str, question: Callable[[], Finding], advice: str) -> Finding:
    """Ask a question and return its finding. An error of SQL or Redis becomes a finding with the level of a problem."""
    try:
        return _named(name, question(), advice)
    except WorkCancelledError:
        raise
    except BACKEND_ERRORS as error:
        advice = refusal.advice_for(error, advice)
        return Finding(Level.PROBLEM, explain(error), advice=in_words(advice), error=error, check=name)


def _named(name: str, found: Finding, advice: str) -> Finding:
    if found.level is Level.OK:
        return replace(found, check=name, advice=None)
    detail, listed, todo = map(in_words, (found.detail, found.listed, found.advice or advice))
    return replace(found, check=name, detail=detail, listed=listed, advice=todo)


def examine_processes(runtime: Runtime, namespace: str | None) -> list[Finding]:
    """Return the warnings and problems of servers, workers and clocks, for a viewer of a namespace."""
    return _wrong(_Shown.PROCESSES, _Scope(runtime, namespace), {"database", "schema"})


def examine_work(
    runtime: Runtime, connection: Connection, namespace: str, of_processes: Sequence[Finding] = ()
) -> list[Finding]:
    """Return the warnings and problems of a namespace's schedules, runs and notifications, in the caller's transaction.

    Checks that depend on a problem of `examine_processes` (`of_processes`) are left out.
    """
    unsound = {finding.check for finding in of_processes if finding.level is Level.PROBLEM}
    sound = {"database", "schema", *(one.name for one in _CHECKS if one.shown is _Shown.PROCESSES)} - unsound
    return _wrong(_Shown.WORK, _Scope(runtime, namespace, connection), sound)


_ASK_OPERATOR = "Ask an operator: `rqsched doctor` says what to do."


def _wrong(shown: _Shown, scope: _Scope, sound: set[str]) -> list[Finding]:
    """Make the checks of a part, except checks that need a failed check; return the warnings and problems.

    Viewers of one namespace are not told the names of workers, servers, users and tables.
    """
    wrong = []
    for check in _CHECKS:
        if check.shown is shown and check.needs <= sound:
            finding = asked(check.name, partial(check.ask, scope), check.advice)
            if finding.error is not None and scope.connection is not None and not isinstance(finding.error, RedisError):
                raise finding.error  # the caller's transaction cannot continue
            if finding.level is not Level.PROBLEM:
                sound.add(check.name)
            if finding.level is not Level.OK:
                if shown is _Shown.PROCESSES and scope.namespace is not None:
                    usual = in_words(check.advice)
                    advice = usual if finding.advice == usual else in_words(_ASK_OPERATOR)
                    finding = replace(finding, listed="", advice=advice)
                wrong.append(finding)
    return wrong


def backend_questions(runtime: Runtime) -> dict[str, Callable[[], object]]:
    """Return, by name, functions that ask whether each backend responds and whether Redis takes writes.

    If the answer is no, the function raises one of BACKEND_ERRORS. It does not retry.
    """
    at_once = Patience(total=timedelta(0))
    return {
        "database": partial(runtime.database.ping, patience=at_once),
        "schema": partial(schema_version.require_current, runtime.database, patience=at_once),
        "redis": runtime.transport.try_write,
    }


def late_until(runtime: Runtime) -> datetime:
    """Return the newest due time that counts as late. A live dispatcher would have fired what was due by then."""
    return runtime.now() - runtime.settings.repair_grace - runtime.settings.link_lease


def waiting_by_queue(runtime: Runtime, connection: Connection, namespace: str | None) -> dict[str, Waiting]:
    """Count, by queue of the main Redis, the runs and targets that wait for a worker, in a namespace or in all."""
    waiting: dict[str, Waiting] = {}
    for one in run_queries.waiting_by_queue(connection, namespace, _MOST_WAITING, [*runtime.freezes.frozen]):
        name = one.queue or runtime.settings.default_queue
        known = waiting.get(name, Waiting(name, 0, None))
        since = min(filter(None, (known.since, one.since)), default=None)
        waiting[name] = Waiting(name, known.number + one.number, since)
    return waiting


@_check("database", "", "Start it, or set RQSCHED_DATABASE_URL to where it is.")
def _database(scope: _Scope) -> Finding:
    # Read first: in a forked process, `engine` forgets the connections that the process has inherited.
    version, where = scope.runtime.database.server_version(), scope.runtime.database.engine.url
    told, path = f"{version} at {where.host or ''}{where.database}", sqlite_path(scope.runtime.database.url)
    files = [Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm")] if path is not None else []
    readable = [str(one) for one in files if one.is_file() and one.stat().st_mode & stat.S_IROTH]
    if path is None or not readable:
        return Finding(Level.OK, told)
    told += f"; every user of this machine who may enter its folder can read {', '.join(readable)}"
    is_open = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.absolute().parents)
    return Finding(Level.WARNING if is_open else Level.OK, told, advice=f"chmod o= {shlex.join(readable)}")


@_check(
    "writes",
    "database",
    "Use the pages of the primary, or set RQSCHED_DATABASE_URL to it. If the primary is lost, promote this server. "
    "Until then workers wait, and these pages change nothing.",
    _Shown.PROCESSES,
)
def _writes(scope: _Scope) -> Finding:
    """Ask whether the database takes writes, and whether its user has every privilege that rqsched needs."""
    database = scope.runtime.database
    if database.takes_writes():
        secured = scope.read(privileges.find_secured)
        if not secured:
            return Finding(Level.OK, "the database takes writes")
        told = "Row level security hides rows of tables from the user of the database."
        advice = "Run `ALTER ROLE ... BYPASSRLS`, or disable it for these tables: rqsched has to see every row."
        return Finding(Level.WARNING, told, ", ".join(secured), advice=advice)
    if lacking := database.lacking.privileges:
        advice = f"Run as the owner of the tables: {database.lacking.text} Workers wait until then."
        return Finding(Level.PROBLEM, "The user of the database lacks privileges.", "; ".join(lacking), advice=advice)
    if not database.dialect.has_server:
        advice = "Let the user of this process write to the database's file, and to the folder that it is in."
        return Finding(Level.PROBLEM, "The database's file cannot be written.", advice=advice)
    told = "The database takes no writes, because it is a standby or its transactions are read-only."
    return Finding(Level.WARNING, told)


@_check("redis", "", "Start it, or set RQSCHED_REDIS_URL to where it is.", _Shown.PROCESSES)
def _redis(scope: _Scope) -> Finding:
    """Ask Redis to write. A Redis that refuses writes still answers reads, but then nothing fires."""
    redis = scope.runtime.transport.redis
    before = time.perf_counter()
    redis.ping()
    took = time.perf_counter() - before
    require_no_cluster(redis)
    scope.runtime.transport.try_write()
    answers = f"answers in {took * 1000:.1f} ms and takes writes"
    try:
        server: Any = redis.info("server")
    except NoPermissionError:
        return Finding(Level.OK, f"Redis {answers}; this user may not ask for its version (INFO)")
    name = "Valkey" if "valkey_version" in server else "Redis"
    found = server.get("valkey_version") or server["redis_version"]
    return Finding(Level.OK, f"{name} {found} {answers}" + _lifetime(scope.runtime.settings, server["process_id"]))


def _where_permitted(ask: Callable[[_Scope], Finding]) -> Callable[[_Scope], Finding]:
    """Wrap a check so that it reports OK if this user of Redis may not run INFO, or if INFO lacks the field."""

    def asked_if_permitted(scope: _Scope) -> Finding:
        try:
            return ask(scope)
        except (NoPermissionError, KeyError):
            return Finding(Level.OK, "not known: Redis does not tell this user (INFO)")

    return asked_if_permitted


def _lifetime(settings: Settings, pid: int) -> str:
    """Return text on how to stop the embedded Valkey, which lives longer than the process that started it."""
    if settings.redis_url is not None:
        return ""
    return f"; it is the embedded one of {settings.data_dir}, and runs until `kill {pid}`, which keeps its data"


@_check(
    "ownership", "database redis", "Start a worker, or run `rqsched recover`: both arm every link.", _Shown.PROCESSES
)
def _ownership(scope: _Scope) -> Finding:
    """Compare the database's id with the id in Redis, even if the database has no tables."""
    runtime, transport = scope.runtime, scope.runtime.transport
    owner, mine = transport.database_id(), None
    with suppress(SchemaError):  # the database has no tables
        mine = runtime.ownership.database_id()
    if owner is None:
        told = "Redis does not know this database, because it was flushed or no worker has run yet."
        return Finding(Level.WARNING, told)
    if owner == mine:
        return _server(runtime)
    what = f"is {mine}" if mine else "is empty"
    return Finding(
        Level.PROBLEM,
        f"The control queue {transport.control.name!r} belongs to another database ({owner}; this one {what}), so "
        "nothing that changes here has an effect.",
        advice="Set RQSCHED_DATABASE_URL to that database, or give this one a Redis database or a "
        f"RQSCHED_CONTROL_QUEUE of its own; if the other one is gone, delete the key {transport.database_id_key!r}.",
    )


def _server(runtime: Runtime) -> Finding:
    """Compare the database's server with the recorded server, because a copy has the same database id."""
    standing, mine = runtime.ownership.standing(), str(runtime.database.identity or "")
    if standing.outcome in MAY_GO_ON:
        return Finding(Level.OK, "the control queue belongs to this database")
    return Finding(
        Level.PROBLEM,
        f"The control queue {runtime.transport.control.name!r} {REFUSALS[standing.outcome].format(mine=mine)}.",
        advice="If this server is the right one, `rqsched db adopt` lets it go on at once.",
    )


@_check(
    "encoding",
    "database",
    "Create a database with ENCODING 'UTF8' TEMPLATE template0, and move the tables there with pg_dump and pg_restore.",
)
def _encoding(scope: _Scope) -> Finding:
    encoding = scope.runtime.database.encoding()
    if encoding in {None, schema_version.UTF8}:
        return Finding(Level.OK, encoding or "every text")
    return Finding(Level.PROBLEM, f"the database's encoding is {encoding}: other texts are stored with escapes")


@_check("schema", "database", "Run `rqsched db upgrade`.")
def _schema(scope: _Scope) -> Finding:
    schema_version.require_current(scope.runtime.database)
    return Finding(Level.OK, f"at {HEAD}")


@_check("publishing", "schema redis", "Correct what Redis says; then everything continues by itself.", _Shown.PROCESSES)
def _publishing(scope: _Scope) -> Finding:
    """Look for queues on which no job executes, because Redis has permanently refused a process's writes."""
    found = scope.read(partial(scope.runtime.refusals.find, now=scope.runtime.now()))
    if not found:
        return Finding(Level.OK, "Redis takes what is published")
    told = f"Redis refuses new jobs in {_number_of(len(found), 'place')}, so nothing is executed there."
    if scope.namespace is not None:
        return Finding(Level.PROBLEM, told, advice=found[0].advice)
    listed = _listed(f"{one.what}: {one.text}, since {_when(one.since)}" for one in found)
    return Finding(Level.PROBLEM, told, listed, advice=" ".join(dict.fromkeys(one.advice for one in found)))


@_check(
    "went back",
    "schema",
    "See what was lost (`rqsched history ID` ends there); runs of the time since may be executed again. "
    "`rqsched db adopt` says that this database is right, and ends this.",
    _Shown.PROCESSES,
)
def _went_back(scope: _Scope) -> Finding:
    """Report if passes found that SQL or Redis went back to older data, or that two databases write to one Redis."""
    now = scope.runtime.now()

    def read(connection: Connection) -> tuple[list[Told], str | None]:
        found = rollback_marks.find_told(scope.runtime, now, connection)
        return found, metadata.find_value(connection, metadata.TAKEN_OVER)

    found, taken = scope.read(read)
    texts = [f"{one.text} (noticed {_when(one.noticed_at)})" for one in found]
    if taken is not None and datetime.fromisoformat((parts := taken.partition(" "))[0]) > now - rollback_marks.STANDS:
        texts.append(f"This database took over from that of another server, {parts[2]}, at {parts[0]}")
    if not texts:
        return Finding(Level.OK, "neither SQL nor Redis, within a day")
    told = ". ".join(texts) + "."
    if two := [one for one in found if one.which is WentBack.TWO_DATABASES]:
        goes_on = two[0].noticed_at > now - _GOES_ON
        advice = "Stop the processes of one of the two, and give a copy that shall live a Redis of its own."
        return Finding(Level.PROBLEM if goes_on else Level.WARNING, told, advice=advice)
    return Finding(Level.WARNING, told)


@_check(
    "all-frozen",
    "schema redis",
    "`rqsched thaw --everything --preview` shows what a thaw would do; `rqsched thaw --everything` ends it.",
    _Shown.PROCESSES,
)
def _all_frozen(scope: _Scope) -> Finding:
    scope.runtime.freezes.look(is_fresh=True)
    found = scope.runtime.freezes.known
    if found is None:
        return Finding(Level.OK, "everything may begin")
    return Finding(Level.WARNING, f"Everything is {found}, so nothing begins.")


@_check(
    "frozen",
    "all-frozen",
    "`rqsched thaw NAMESPACE --preview` shows what a thaw would do; `rqsched thaw NAMESPACE` ends it.",
    _Shown.WORK,
)
def _frozen(scope: _Scope) -> Finding:
    frozen = scope.runtime.freezes.frozen
    found = [one for name, one in sorted(frozen.items()) if scope.namespace in {None, name}]
    if not found:
        return Finding(Level.OK, "no namespace is frozen")
    told = _listed(f"namespace {one.namespace!r} is {one}" for one in found)
    return Finding(Level.WARNING, f"{told[:1].upper()}{told[1:]}, so nothing begins there.")


@_check(
    "clock",
    "database redis",
    "Run NTP on every machine. Meanwhile fires follow the clock of SQL, heartbeats and leases that of Redis.",
    _Shown.PROCESSES,
)
def _clock(scope: _Scope) -> Finding:
    """Compare this host's clock with the clocks of Redis and SQL; SQLite has no other clock."""
    seconds, microseconds = cast(Any, scope.runtime.transport.redis.time())
    theirs = {"Redis": datetime.fromtimestamp(seconds + microseconds / 1_000_000, UTC)}
    host, database = SystemClock().now(), scope.runtime.database
    if database.dialect.has_server:
        theirs["SQL"] = database.now(host)
    skews = {name: (at - host).total_seconds() for name, at in theirs.items()}
    wrong = [
        f"{name}'s clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
        for name, skew in skews.items()
        if abs(skew) > _SKEW
    ]
    if wrong:
        return Finding(Level.WARNING, f"{' and '.join(wrong)}.")
    return Finding(Level.OK, ", ".join(f"{name} {skew:+.3f} s" for name, skew in skews.items()))


@_check("eviction", "redis", "Set maxmemory-policy to noeviction: evicted links fire late.")
@_where_permitted
def _eviction(scope: _Scope) -> Finding:
    _, limit, policy = telemetry.read_memory(scope.runtime.transport.redis)
    if policy == "noeviction":
        return Finding(Level.OK, policy)
    return Finding(Level.PROBLEM if limit else Level.WARNING, f"{policy}, maxmemory {limit}")


@_check(
    "memory",
    "redis",
    "Give it more memory (`maxmemory`), or delete what others keep there.",
    _Shown.PROCESSES,
)
@_where_permitted
def _memory(scope: _Scope) -> Finding:
    """Check whether Redis will soon be full. Under `noeviction`, which rqsched needs, it then refuses writes."""
    used, limit, policy = telemetry.read_memory(scope.runtime.transport.redis)
    told = f"{used / _MIB:.0f} MiB used" + (f" of {limit / _MIB:.0f}" if limit else ", no limit")
    if not limit or policy != "noeviction" or used < _NEARLY_FULL * limit:
        return Finding(Level.OK, told)
    share = f"{used / _MIB:.0f} of {limit / _MIB:.0f} MiB"
    return Finding(Level.WARNING, f"Redis uses {share}. If it is full, it refuses writes, and nothing fires.")


@_check("persistence", "redis", "Set appendonly to yes, or a Redis restart delays everything armed.")
@_where_permitted
def _persistence(scope: _Scope) -> Finding:
    info: Any = scope.runtime.transport.redis.info("persistence")
    if info["aof_enabled"]:
        if info.get("aof_last_write_status", "ok") == "ok":
            return Finding(Level.OK, "append-only file")
        return Finding(Level.PROBLEM, "the append-only file is not written")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return Finding(Level.PROBLEM, "snapshots fail")
    return Finding(Level.WARNING, "no append-only file")


@_check("connections", "", "Fix RQSCHED_CONNECTIONS or start that server.")
def _connections(scope: _Scope) -> Finding:
    transport, failed = scope.runtime.transport, dict[str, RedisError | ConfigError]()
    for name, redis in transport.connections.items():
        try:
            require_no_cluster(redis)
            transport.try_write(redis)
        except (RedisError, ConfigError) as error:
            failed[name] = error
    if not failed:
        return Finding(Level.OK, ", ".join(transport.connections) or "none")
    told = _listed(f"{name}: {explain(error)}" for name, error in failed.items())
    advice = refusal.advice_for(next(iter(failed.values())), "Fix RQSCHED_CONNECTIONS or start that server.")
    return Finding(Level.PROBLEM, told, advice=advice.replace("RQSCHED_REDIS_URL", "RQSCHED_CONNECTIONS"))


@_check(
    "dispatchers",
    "schema redis publishing",
    "Start `rqsched worker`, or `rq worker -c rqsched.preload`. Where one runs, `rqsched ping` on its machine says "
    "what it waits for.",
    _Shown.PROCESSES,
)
def _dispatchers(scope: _Scope) -> Finding:
    if scope.dispatchers:
        return Finding(Level.OK, ", ".join(one.name for one in scope.dispatchers))
    control = scope.runtime.transport.control.name
    plain = sum(control in one.queues for one in scope.workers if not one.is_silent)
    if plain:
        return Finding(Level.OK, f"none; {_number_of(plain, 'plain RQ worker')} fire the links, one at a time")
    active = scope.read(partial(schedule_queries.count_active, namespace=scope.namespace, most=_MOST))
    if not active:
        return Finding(Level.WARNING, "No dispatcher is alive, and no schedule is active.")
    return Finding(Level.PROBLEM, f"No dispatcher is alive to fire {_number_of(active, 'active schedule')}.")


@_check(
    "waits",
    "schema redis publishing",
    "Correct what the database says to `rqsched doctor`, such as a full disk; then they continue by themselves.",
    _Shown.PROCESSES,
)
def _waits(scope: _Scope) -> Finding:
    """Look for dispatchers that can read SQL but cannot write to it. A check that only reads would not notice this."""
    alive = scope.dispatchers
    waiting = [one for one in alive if one.waits_for]
    if not waiting:
        return Finding(Level.OK, "no dispatcher waits for SQL")
    told = _listed(f"{one.name} ({one.waits_for.rstrip('.')})" for one in waiting)
    level = Level.PROBLEM if len(waiting) == len(alive) else Level.WARNING
    some = "All" if level is Level.PROBLEM else "Some"
    return Finding(level, f"{some} dispatchers cannot write to the database, and fire nothing.", told)


@_check(
    "environments",
    "schema redis publishing",
    "Set RQSCHED_ENVIRONMENT of every dispatcher to one of them, or change them: "
    "`rqsched update ID --set environments=NAME`.",
)
def _environments(scope: _Scope) -> Finding:
    """Compare the `environments` of schedules with RQSCHED_ENVIRONMENT of the dispatchers.

    Each dispatcher may take any schedule. If every dispatcher has an RQSCHED_ENVIRONMENT, a schedule that names none of
    them is no problem. For example, schedules of production are not meant to fire in staging.
    """
    alive = scope.dispatchers
    limited = scope.read(
        lambda connection: schedule_queries.limited_to_environments(connection, scope.namespace, _MOST)
    )
    here = {one.environment for one in alive}
    if not limited or not alive:
        return Finding(Level.OK, f"{_number_of(len(limited), 'schedule')} limited to environments")
    skipped = [one for one in limited if here - {*one.policies.environments}]
    if not skipped:
        return Finding(
            Level.OK, f"{_number_of(len(limited), 'schedule')} limited to environments, one of which is here"
        )
    named = _listed(f"{_path(one)} ({', '.join(one.policies.environments)})" for one in skipped)
    where = ", ".join(repr(name) if name else "none" for name in sorted(here))
    is_meant = "" not in here and all(here.isdisjoint(one.policies.environments) for one in skipped)
    told = f"{'do not fire here' if is_meant else 'are skipped by dispatchers'} (RQSCHED_ENVIRONMENT: {where}): {named}"
    return Finding(Level.OK if is_meant else Level.WARNING, told, schedules=skipped[:_TOLD])


@_check("workers", "schema redis publishing", "Start `rqsched worker QUEUE` for that queue.", _Shown.PROCESSES)
def _workers(scope: _Scope) -> Finding:
    registered = scope.workers
    workers = [one for one in registered if not one.is_silent]
    silent = f"; silent and not counted: {len(registered) - len(workers)}" if len(workers) < len(registered) else ""
    listening = Counter(name for one in workers for name in one.queues)
    waiting = scope.read(lambda connection: waiting_by_queue(scope.runtime, connection, scope.namespace))
    deserted = {name: one.number for name, one in waiting.items() if name not in listening}
    if deserted:
        told = _listed(f"{number_of(count, 'run')} on {name!r}" for name, count in deserted.items())
        advice = f"Start `rqsched worker {shlex.join(deserted)}`, or cancel the runs that wait there."
        return Finding(Level.PROBLEM, f"No worker listens for {told}.", advice=advice)
    slow = [one for one in waiting.values() if waits_too_long(scope.runtime, str(one.queue), one.since)]
    if slow and not scope.runtime.freezes.is_all_frozen:
        told = _listed(
            f"{number_of(one.number, 'run')} on {one.queue!r}, the first since {_when(one.since)}" for one in slow
        )
        advice = "Start more workers for these queues, or set RQSCHED_LONGEST_WAIT if they may wait so long."
        return Finding(Level.PROBLEM, f"Runs wait too long for a worker: {told}.", advice=advice)
    if not listening:
        return Finding(Level.WARNING, f"No RQ worker is alive, so no run is executed{silent}.")
    versions = Counter(f"rqsched {one.version}" if one.version else "RQ alone" for one in workers)
    names, kinds = (", ".join(f"{name} ({n})" for name, n in counts.items()) for counts in (listening, versions))
    return Finding(Level.OK, f"{names}; {kinds}{silent}")


def waits_too_long(runtime: Runtime, queue: str, since: datetime | None) -> bool:
    """Return whether a run that has waited on a queue since an instant has waited too long."""
    longest = runtime.settings.longest_wait
    return since is not None and runtime.now() - since > longest.get(queue, longest[EVERY])


@_check(
    "runners",
    "database redis",
    "A run closed files, or changed the user or a limit of its process: start workers with --isolate, or let such code "
    "run in a process of its own.",
)
def _runners(scope: _Scope) -> Finding:
    """Look for runners that were replaced because they were damaged."""
    found = telemetry.damaged_runners(scope.runtime.transport.redis, now=scope.runtime.now())
    if not found:
        return Finding(Level.OK, "no runner was damaged within the last hour")
    return Finding(Level.WARNING, f"runners were damaged and replaced: {'; '.join(found)}")


@_check(
    "foreign workers",
    "schema redis publishing",
    "Set RQSCHED_DATABASE_URL of these workers to this database's and restart them, or give each database run "
    "queues of its own (RQSCHED_DEFAULT_QUEUE).",
    _Shown.PROCESSES,
)
def _foreign_workers(scope: _Scope) -> Finding:
    """Look, on every Redis, for workers of another database that received jobs of this database."""
    runtime = scope.runtime
    redises = [runtime.transport.redis, *runtime.transport.connections.values()]
    mine, now = runtime.ownership.known_database_id(), runtime.now()
    found = sorted({name for redis in redises for name in telemetry.foreign_workers(redis, mine, now=now)})
    if not found:
        return Finding(Level.OK, "no worker with another database was given a job")
    told = "Workers of another database take jobs of this one, and cannot execute them."
    return Finding(Level.PROBLEM, told, ", ".join(found))


@_check(
    "blocked",
    "schema",
    "Start a worker that has the code (RQSCHED_IMPORTS names the module, PYTHONPATH finds it), stop those that "
    "lack it, or cancel the runs: `rqsched runs ID --status blocked`.",
    _Shown.WORK,
)
def _blocked(scope: _Scope) -> Finding:
    """Look for blocked runs, whose code no worker had. List each reason once, with the workers that lacked the code."""
    found = scope.read(lambda connection: run_queries.blocked_runs(connection, scope.namespace, _MOST))
    if not found:
        return Finding(Level.OK, "no run waits for code")
    lacking = defaultdict[str, set[str]](set)
    for _, reason in found:
        worker, _, lacks = (reason or "").partition(": ")
        lacking[lacks].add(worker)
    reasons = sorted(f"{_listed(sorted(workers))}: {lacks}" for lacks, workers in lacking.items())
    told = "; ".join(reasons[:NAMED]) + ("; ..." if len(reasons) > NAMED else "")
    schedules = {schedule.uid: schedule for schedule, _ in found}
    what = f"No worker has the code of {_number_of(len(found), 'run')} yet ({told})."
    return Finding(Level.PROBLEM, what, schedules=[*schedules.values()], count=len(schedules))


@_check(
    "limits",
    "schema redis publishing",
    "See who runs there (`rqsched limits list`), then let more begin (`rqsched limits set`), or fire less.",
    _Shown.WORK,
)
def _limits(scope: _Scope) -> Finding:
    """Look for groups in which a run or target waits too long for a place, and for places that are not claimed."""
    runtime, most = scope.runtime, scope.runtime.settings.longest_wait[EVERY]
    passed = scope.read(lambda connection: limits.passed_over(connection, scope.namespace))
    if passed and not runtime.freezes.is_all_frozen:
        queues = {queue or runtime.settings.default_queue: count for queue, count in passed}
        more = "+" if sum(queues.values()) >= _MOST else ""
        told = _listed(
            f"{count}{more} {'run or target' if count == 1 else 'runs or targets'} on {queue!r}"
            for queue, count in queues.items()
        )
        advice = f"Start `rqsched worker {shlex.join(queues)}`, or more of them, or cancel the runs that wait there."
        return Finding(Level.WARNING, "Runs had a place in their group, and no worker took them.", told, advice=advice)
    now, frozen = runtime.now(), [*runtime.freezes.frozen]

    def slow(connection: Connection) -> list[LimitDescription]:
        groups = limits.with_slow_line(connection, now - most, scope.namespace, frozen, _TOLD)
        return limits.describe(connection, groups, now, _MOST) if groups else []

    found = [] if runtime.freezes.is_all_frozen else scope.read(slow)
    if not found:
        return Finding(Level.OK, "nobody waits too long for a place of a group")
    told = _listed(
        f"{_counted(one.waiting)} of {one.namespace}/{one.name} ({', '.join(told_of_use(one))}), the first since "
        f"{_when(one.waiting_since)}"
        for one in found
    )
    return Finding(Level.WARNING, "Runs wait too long for a place in their group.", told)


@_check("excluded", "schema", "`rqsched update ID --exclude ...` leaves it some, `--unset exclude` all.")
def _excluded(scope: _Scope) -> Finding:
    """Look for schedules without a next time: all times are excluded, or finding one takes too many steps."""
    now = scope.runtime.now()
    idle = scope.read(lambda connection: schedule_queries.excluding_without_next(connection, scope.namespace, _MOST))
    excluded, heavy = list[Schedule](), list[Schedule]()
    with bounded(Steps(None)) as steps:
        for one in idle:
            if steps.taken > 10 * MOST_STEPS:
                break
            is_excluded = answered(one.spec.is_all_excluded_after, now, otherwise=None)
            if is_excluded is None:
                heavy.append(one)
            elif is_excluded:
                excluded.append(one)
    wrong = "all occurrences of the next ten years are excluded"
    if not heavy:
        return _of(excluded, len(excluded), "no schedule excludes all its occurrences", wrong)
    told = f"the next time is not found in {MOST_STEPS} steps; each pass looks again, and a fire may be late"
    told += f": {_listed(map(_path, heavy))}"
    if excluded:
        told += f"; {wrong}: {_listed(map(_path, excluded))}"
    return Finding(Level.WARNING, told, schedules=[*heavy, *excluded], count=len(heavy) + len(excluded))


@_check("calendars", "schema", "Run `rqsched calendar import` again for more years, or `rqsched calendar set`.")
def _calendars(scope: _Scope) -> Finding:
    """Look for calendars in use that are missing, or that end soon, after which schedules would fire on holidays."""
    gone = scope.read(lambda connection: calendars.lacking(connection, scope.namespace, _MOST))
    if gone:
        named = [f"{name}, which {namespace}/{schedule_id} names" for namespace, schedule_id, name in gone]
        advice = "`rqsched calendar set` it again; or `rqsched update ID --exclude ...` without it."
        told = f"are gone, so that nothing fires: {_listed(named)}"
        return Finding(Level.PROBLEM, told, advice=advice)
    today = scope.runtime.now().date()
    found = scope.read(lambda connection: calendars.ending(connection, scope.namespace, today + _ENDS_SOON, _MOST))
    if not found:
        return Finding(Level.OK, f"no calendar in use ends within {_ENDS_SOON.days} days")
    ends = [f"{one.name} {'ended' if (one.reaches or today) < today else 'ends'} {one.reaches}" for one in found]
    return Finding(Level.WARNING, f"nothing is excluded any more after: {_listed(ends)}")


@_check(
    "newer release", "schema redis publishing", "Start workers of that release; those of this one leave them alone."
)
def _newer_release(scope: _Scope) -> Finding:
    """Look for late schedules that only a newer release can fire."""
    until = late_until(scope.runtime)
    late = scope.read(lambda connection: schedule_queries.late(connection, scope.namespace, until, _MOST))
    found = [schedule for schedule in late if schedule.spec.newer]
    wrong = "late, and of a newer release, whose processes alone fire them"
    return _of(found, len(found), "no schedule waits for a process of a newer release", wrong)


@_check(
    "late",
    "schema redis publishing",
    "Start `rqsched worker`. If one runs, `rqsched recover` restores what is missing in Redis.",
    _Shown.WORK,
)
def _late(scope: _Scope) -> Finding:
    if scope.runtime.freezes.is_all_frozen:
        return Finding(Level.OK, "everything is frozen")
    until, namespace, frozen = late_until(scope.runtime), scope.namespace, [*scope.runtime.freezes.frozen]
    found = scope.read(lambda connection: schedule_queries.late(connection, namespace, until, _TOLD, frozen))
    if not found:
        return Finding(Level.OK, "no schedule is late")
    count = scope.read(lambda connection: schedule_queries.count_late(connection, namespace, until, _MOST, frozen))
    listed = _listed(f"{_path(one)} (due {_when(one.due_at)})" for one in found)
    told = f"{_number_of(count, 'schedule')} should have fired, and did not."
    return Finding(Level.PROBLEM, told, listed, found, count=count)


def _counted(count: int) -> str:
    return f"{count}{'+' if count == _MOST else ''}"


def _number_of(count: int, noun: str) -> str:
    return number_of(count, noun, "+" if count == _MOST else "")


def _when(at: datetime | None) -> str:
    return "" if at is None else iso_utc(at.replace(microsecond=0))


@_check("after", "schema", "Create what it comes after again, or `rqsched update ID` with other times.")
def _after(scope: _Scope) -> Finding:
    """Look for schedules whose upstream is missing, and for ends of upstream runs that no run has followed."""
    before, freezes = scope.runtime.now() - _FOLLOWED_WITHIN, scope.runtime.freezes
    owed = scope.read(lambda connection: upstream_ends.late(connection, scope.namespace, before, _MOST))
    late = {} if freezes.is_all_frozen else {one: error for one, error in owed if one.namespace not in freezes.frozen}
    if late:
        errors = [f"{_path(one)} ({error or 'no process has tried'})" for one, error in late.items()]
        told = f"what they come after has ended, and they have not started: {_listed(errors)}"
        advice = "It is tried again for ever; correct what the error says. `rqsched why ID` says when."
        return Finding(Level.PROBLEM, told, schedules=[*late], advice=advice, count=len(late))
    found = scope.read(lambda connection: upstream_ends.gone(connection, scope.namespace, _MOST))
    return _of(found, len(found), "what schedules come after is there", "what they come after is gone")


@_check(
    "long",
    "schema",
    "Look at the run (`rqsched runs ID --status running`). Terminate it if it hangs, or give its schedule a `timeout` "
    "or more time.",
    _Shown.WORK,
)
def _long(scope: _Scope) -> Finding:
    """Look for runs that take longer than expected or, without an expectation, than the time between two fires."""
    now = scope.runtime.now()
    found = scope.read(lambda connection: run_queries.running(connection, scope.namespace, _MOST))
    over = [schedule for schedule, began_at in found if _takes_too_long(schedule, began_at, now)]
    schedules = [*{one.uid: one for one in over}.values()]
    wrong = "Runs take longer than `expect_duration`, than `expect_success_within`, or than the time between two fires."
    return _of(schedules, len(schedules), "no run takes too long", wrong)


def _takes_too_long(schedule: Schedule, began_at: datetime, now: datetime) -> bool:
    if schedule.expect_duration is not None:
        return now - began_at > schedule.expect_duration
    expected, spec = schedule.expect_success_within, schedule.spec
    if expected is not None and now - began_at > expected:
        return True
    if not spec.is_known or spec.is_from_completion or schedule.policies.overlap is OverlapPolicy.ALLOW_ALL:
        return False  # no fire is known to wait for this run
    first = spec.next_after(began_at)
    second = None if first is None or first > now else spec.next_after(first)
    return first is not None and second is not None and now - began_at > second - first


@_check(
    "dead",
    "schema",
    "Fix the workflow and deploy it, then restart the schedule (`rqsched restart ID`).",
    _Shown.WORK,
)
def _dead(scope: _Scope) -> Finding:
    found = scope.read(lambda connection: schedule_queries.dead(connection, scope.namespace, _TOLD))
    count = _count(scope, Filters(scope.namespace, statuses=(ScheduleStatus.DEAD.value,)), found)
    return _of(
        found,
        count,
        "no schedule is dead",
        "Runs failed as often as the retry policy allows, so no further run starts.",
    )


@_check(
    "failing",
    "schema",
    "Fix the cause, which the newest run shows (`rqsched runs ID`), then trigger the schedule.",
    _Shown.WORK,
)
def _failing(scope: _Scope) -> Finding:
    found = scope.read(lambda connection: schedule_queries.failing(connection, scope.namespace, _TOLD))
    count = _count(scope, Filters(scope.namespace, failing=True), found)
    return _of(found, count, "no schedule fails repeatedly", f"At least {REPEATEDLY} runs in a row failed.")


def _count(scope: _Scope, filters: Filters, found: Sequence[Schedule]) -> int:
    """Return the number of schedules. If there may be more than were `found`, count them in SQL."""
    if len(found) < _TOLD:
        return len(found)
    return scope.read(lambda connection: schedule_queries.count_up_to(connection, filters, _MOST))


def _of(
    found: list[Schedule], count: int, fine: str, wrong: str, told: Callable[[Schedule], str] | None = None
) -> Finding:
    if not found:
        return Finding(Level.OK, fine)
    return Finding(Level.WARNING, wrong, _listed(map(told or _path, found)), found, count=count)


def _path(schedule: Schedule) -> str:
    return f"{schedule.namespace}/{schedule.schedule_id}"


def _listed(told: Iterable[str]) -> str:
    """Return the first few texts in one line, and say if there are more."""
    first = [*islice(told, _TOLD)]
    return ", ".join(first[:NAMED]) + (" ..." if len(first) > NAMED else "")


@_check(
    "events",
    "schema",
    "MachineScheduler.register says when such an event is sent; without it, it is sent by hand alone.",
)
def _events(scope: _Scope) -> Finding:
    """Look for declared events of state machines that no registration and no schedule in any namespace sends."""
    registered = {workflow for workflow, *_ in scope.runtime.workflows.declared().values()}
    events = [known.name for known in scope.runtime.workflows.all() if known.each is not None]

    def unused(connection: Connection) -> list[str]:
        rest = (name for name in events if name not in registered)
        return [name for name in rest if not schedule_queries.count_schedules(connection, Filters(workflow=name))]

    names = scope.read(unused)
    if not names:
        return Finding(Level.OK, f"{len(events)} declared, each registered" if events else "no machine declares any")
    return Finding(Level.WARNING, f"declared and never registered: {', '.join(names)}")


@_check(
    "quotas",
    "schema",
    "Delete schedules that are not needed, or raise RQSCHED_QUOTAS.",
    _Shown.WORK,
)
def _quotas(scope: _Scope) -> Finding:
    if not scope.runtime.settings.quotas:
        return Finding(Level.OK, "none is set")
    known = scope.read(lambda connection: usages(scope.runtime, connection, scope.namespace))
    full = sorted((one for one in known if one.share >= _NEARLY_FULL), key=lambda one: -one.share)
    if not full:
        return Finding(Level.OK, f"{len(known)} namespaces within theirs")
    return Finding(Level.WARNING, "Quotas are nearly used up or exceeded.", _listed(map(_held, full)))


def _held(usage: Usage) -> str:
    """Say what a namespace has of each limited resource."""
    pairs = ((name, getattr(usage, name), getattr(usage.limits, name)) for name in RESOURCES)
    told = [f"{used} of {most} {name}" for name, used, most in pairs if most is not None]
    return f"{usage.namespace} has {' and '.join(told)}"


@_check("successes", "schema", "See what became of the runs (`rqsched history ID`), then fix the cause.", _Shown.WORK)
def _successes(scope: _Scope) -> Finding:
    frozen = [*scope.runtime.freezes.frozen]
    if scope.namespace in frozen:
        return Finding(Level.OK, "the namespace is frozen")
    found = scope.read(lambda connection: schedule_queries.unsuccessful(connection, scope.namespace, _TOLD, frozen))
    count = _count(scope, Filters(scope.namespace, overdue=True), found)
    return _of(
        found, count, "no schedule lacks the success it expects", "No run succeeded within `expect_success_within`.",
        lambda one: f"{_path(one)} (since {_when(one.overdue_since)})",
    )  # fmt: skip


@_check(
    "notifications",
    "schema redis publishing",
    "Fix the receiver, or start a worker for their queue; `rqsched run deliveries ID` shows them.",
    _Shown.WORK,
)
def _notifications(scope: _Scope) -> Finding:
    if not scope.runtime.settings.notify:
        advice = "Leave it off in a copy; elsewhere set it to 1, or remove it."
        return Finding(Level.WARNING, "Nobody is notified, because RQSCHED_NOTIFY is off here.", advice=advice)
    if unknown := option_checks.unknown_told(scope.runtime):
        told = ", ".join(f"RQSCHED_{option.upper()} names {name!r}" for option, name in unknown.items())
        advice = "Name a workflow that is registered, or start a worker that has it; until then nothing can be created."
        return Finding(Level.WARNING, f"{told}, which no process has registered.", advice=advice)
    now, namespace = scope.runtime.now(), scope.namespace
    failed = scope.read(lambda connection: deliveries.failed_since(connection, namespace, now - GIVEN_UP_WITHIN, NAMED))
    if failed:
        told = "; ".join(f"{one.kind.value} {shown_destination(one)}: {one.error}" for one in failed)
        return Finding(Level.WARNING, "Notifications were given up within the last day.", told)
    waiting, late = scope.read(lambda connection: deliveries.count_open(connection, namespace, now - _LATE, _MOST))
    if late:
        told = f"Notifications have waited for more than {_LATE.seconds // 60} minutes."
        return Finding(Level.WARNING, told, f"{_counted(late)} of {_counted(waiting)}")
    return Finding(Level.OK, f"{_counted(waiting)} wait")


@_check("links", "schema redis publishing", "Run `rqsched recover`; a worker does so every 15 seconds.")
def _links(scope: _Scope) -> Finding:
    links = _due_soon(scope)
    dead = _not_live(scope, links)
    if dead:  # a schedule may have fired between the read of SQL and the read of Redis
        dead &= _not_live(scope, _due_soon(scope))
    if dead:
        return Finding(Level.PROBLEM, f"{len(dead)} of {len(links)} due soon are not live in Redis")
    late = sum(link.due_at <= late_until(scope.runtime) for link in links)
    if late:
        told = f"{len(links)} due soon or late, all in Redis, where {late} late wait for a dispatcher"
        return Finding(Level.OK, told)
    return Finding(Level.OK, f"{len(links)} due soon, all live")


def _due_soon(scope: _Scope) -> list[Arm]:
    """Read the links that must be in Redis by now: links due soon, and links late by more than the grace."""
    now = scope.runtime.now()
    rows, _ = scope.read(lambda connection: reconcile_queries.due_links(connection, now + SOON, None, _MOST))
    return [Arm(link, at) for link, at in rows if at > now or at < now - scope.runtime.settings.repair_grace]


def _not_live(scope: _Scope, arms: Sequence[Arm]) -> set[Arm]:
    live = scope.runtime.transport.live_links(arms, now=scope.runtime.now())
    return {arm for arm, is_live in zip(arms, live, strict=True) if not is_live}


@_check("failed links", "redis", "`rq info` and the workers' logs say why; reconcile arms them again.")
def _failed_links(scope: _Scope) -> Finding:
    count = FailedJobRegistry(queue=scope.runtime.transport.control).count
    return Finding(Level.WARNING if count else Level.OK, f"{count} failed")


@_check("depth", "database redis", "Start more workers.")
def _depth(scope: _Scope) -> Finding:
    transport = scope.runtime.transport
    waiting, armed = transport.count_due(now=scope.runtime.now()), transport.count_armed()
    level = Level.WARNING if waiting > _DEEP else Level.OK
    return Finding(level, f"{waiting} due, {armed} armed on {transport.control.name!r}")
