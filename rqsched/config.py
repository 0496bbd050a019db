"""The settings: one frozen value, read from the environment (`RQSCHED_*`) or from keyword arguments.

Everything invalid is a ConfigError that names the variable and never repeats its value (it may hold a password).
This file reads settings; it opens no connection, creates no folder and imports no workflow.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from rqsched.core.did_you_mean import did_you_mean
from rqsched.core.quota import EVERY, Quota, parse_quotas
from rqsched.core.retention import HOW_TO_SAY, Retention
from rqsched.errors import ConfigError, InvalidDurationError, InvalidPolicyError
from rqsched.spec.duration import to_span

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.:_-]*[A-Za-z0-9])?")
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")
NO_CLUSTER = (
    "RQ, and so rqsched, needs one server: its keys and the ids of its jobs allow no hash tags, so what one script "
    "touches would lie on several nodes. Use one Redis or Valkey, with replicas and Sentinel against its loss"
)
"""Why Redis Cluster is refused, and what to do instead."""
_VALKEY = re.compile(r"^valkey(s?)(\+\w+)?://")
_POSTGRESQL = re.compile(r"^postgres(ql)?(\+psycopg)?://")
_OTHER_DRIVER = re.compile(r"^(?P<database>postgres(ql)?|sqlite)\+\w+://")
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_OBJECT, _LIST = (
    'write a JSON object, such as {"name": "value"}',
    "write names separated by commas or spaces, or a JSON list",
)
_PREFIX = "RQSCHED_"
_SERIALIZER_ALIASES = {"pickle": "rq.serializers.DefaultSerializer", "json": "rq.serializers.JSONSerializer"}
"""Every version of RQ reads a dotted path; the older ones do not know the short names."""


# What reads a setting takes text of the environment or a value, and raises a ValueError that says what to write.


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"write text, not {type(value).__name__}")  # noqa: TRY004 - readers raise ValueErrors
    return value


def _truth(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise ValueError("write true or false")
    return _WORDS[word]


def _batch_size(value: object) -> int:
    if isinstance(value, bool) or not _WHOLE.fullmatch(str(value)) or not 1 <= int(str(value)) <= 10_000:
        raise ValueError("write a whole number from 1 to 10000")
    return int(str(value))


def _seconds(value: object) -> timedelta:
    span = _seconds_or_zero(value)
    if not span:
        raise ValueError("write more than 0")
    return span


def _seconds_or_zero(value: object) -> timedelta:
    span = value if isinstance(value, timedelta) else _span(str(value))
    if span < timedelta(0):
        raise ValueError("write 0 or more")
    return span


def _span(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        pass
    try:
        return to_span(text)
    except InvalidDurationError:
        raise ValueError("write a number of seconds, such as 15 or 0.5, or a length such as 10m or 30d") from None


def _path(value: object) -> Path:
    return value if isinstance(value, Path) else Path(_text(value))


def _json(value: object, how: str) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"{how} ({error.msg})") from None


def _by_name(read: Callable[[object], str]) -> Callable[[object], dict[str, str]]:
    """Return the reader of an object whose members are read by another one."""

    def read_all(value: object) -> dict[str, str]:
        given = _json(value or {}, _OBJECT)
        if not isinstance(given, Mapping):
            raise ValueError(_OBJECT)  # noqa: TRY004 - as above
        return {_text(name): _member(_text(name), read, one) for name, one in given.items()}

    return read_all


def _member(name: str, read: Callable[[object], str], value: object) -> str:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return tuple(value.replace(",", " ").split())
    given = _json(value, _LIST)
    if not isinstance(given, list | tuple):
        raise ValueError(_LIST)  # noqa: TRY004 - as above
    return tuple(_text(word) for word in given)


def _modules(value: object) -> tuple[str, ...]:
    modules = _words(value)
    for module in modules:
        if not _DOTTED_PATH.fullmatch(module):
            raise ValueError(f"{module!r} is not a module name; write package.module, without .py")
    return modules


def _hosts(value: object) -> tuple[str, ...]:
    hosts = _words(value)
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is not a host; write names such as hc-ping.com or *.example.com")
    return hosts


def _quotas(value: object) -> dict[str, Quota]:
    quotas = parse_quotas(_json(value or {}, _OBJECT))
    for namespace in quotas:
        if namespace != EVERY:
            _name(namespace)
    return quotas


def _name(value: object) -> str:
    if not _NAME.fullmatch(_text(value)):
        raise ValueError("use 1 to 255 of A-Z a-z 0-9 . _ : -, with a letter or digit first")
    return _text(value)


def serializer_path(name: str) -> str:
    """Return the dotted path of a serializer, which may be named `pickle` or `json`."""
    return _SERIALIZER_ALIASES.get(name, name)


def _serializer(value: object) -> str:
    name = _text(value)
    if not _DOTTED_PATH.fullmatch(name) or ("." not in name and name not in _SERIALIZER_ALIASES):
        raise ValueError('write "pickle", "json" or the dotted path of a serializer class')
    return name


def _database_url(value: object) -> str:
    url = _text(value)
    if re.match(r"^sqlite(\+pysqlite)?://", url):
        return url
    if not _POSTGRESQL.match(url):
        raise ValueError(_about_database_url(url))
    return _POSTGRESQL.sub("postgresql+psycopg://", url)


def _about_database_url(value: str) -> str:
    other = _OTHER_DRIVER.match(value)
    if other is None:
        return "write postgresql://USER:PASSWORD@HOST:5432/DATABASE or sqlite:///PATH"
    if other["database"] == "sqlite":
        return "rqsched opens SQLite with Python's sqlite3; write sqlite:/// and the same path"
    return (
        "rqsched opens its connections to PostgreSQL with psycopg 3, whatever your application uses; write "
        "postgresql:// and the same address, with libpq's options (sslmode=require, not ssl=require)"
    )


def _pooler(value: object) -> str:
    if value != "transaction":
        raise ValueError("write transaction, or leave it unset")
    return "transaction"


def _redis_url(value: object) -> str:
    url = _VALKEY.sub(r"redis\1\2://", _text(value))
    if re.match(r"^rediss?[+-]cluster://", url):
        raise ValueError(f"this names a Redis Cluster; {NO_CLUSTER}")
    if not url.startswith(_REDIS_SCHEMES):
        raise ValueError(
            "write redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH?db=DB or "
            "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB"
        )
    return url


def _url(value: object) -> str:
    if not re.match(r"^https?://[^\s/@]+(/[^\s#]*)?$", _text(value)):
        raise ValueError("write https://HOST/PATH, without blanks, a user or a fragment")
    return _text(value)


def _tokens(value: object) -> str:
    if not isinstance(_json(_text(value), "write a JSON list"), list):
        raise ValueError("write a JSON list")  # noqa: TRY004 - as above
    return _text(value)


def _retention(value: object) -> str:
    try:
        return str(Retention.parse(_text(value)))
    except InvalidPolicyError:
        raise ValueError(HOW_TO_SAY) from None


Name = Annotated[str, _name]
"""A namespace or queue name: 1 to 255 characters of the ids' alphabet."""

Seconds = Annotated[timedelta, _seconds]
"""A positive span; a number of seconds in the environment."""
SecondsOrZero = Annotated[timedelta, _seconds_or_zero]
"""A span of zero or more; a number of seconds in the environment."""


@lru_cache(maxsize=1)
def _warn_of_unknown(names: frozenset[str]) -> None:
    """Log each `RQSCHED_*` variable that no setting reads, with the nearest name; once while they stay the same."""
    known = [name.upper() for name in _readers()]
    for name in sorted(names):
        own = name.upper().removeprefix(_PREFIX)
        if name.upper().startswith(_PREFIX) and own not in known:
            hint = did_you_mean(own, known, _PREFIX)
            _log.warning("%s is not a setting and is ignored%s", name, hint, extra={"action": "unknown_setting"})


Source = Callable[[], Mapping[str, Any]]
_sources: list[Source] = []


def provide(source: Source) -> None:
    """Take settings from the application where neither an argument nor the environment says anything.

    `source` returns values by the names of the fields below, None for what it does not know. It is called whenever
    settings are read, in this process and its forks; only the newest source counts. What it raises, reading raises.
    """
    _sources[:] = [source]


def _provided() -> dict[str, Any]:
    return {name: value for source in _sources for name, value in source().items() if value is not None}


def export() -> None:
    """Put what the application provides into the environment, for processes that are started anew, not forked."""
    for name, value in _provided().items():
        os.environ.setdefault(f"{_PREFIX}{name.upper()}", _as_text(value))


def _as_text(value: object) -> str:
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    return str(value) if isinstance(value, str | Path) else json.dumps(value, default=asdict)


def _environment() -> dict[str, str]:
    """Return what the environment gives, by the names of the fields; an empty variable is not given."""
    given = {name.upper(): text for name, text in os.environ.items() if text}
    variables = {name: f"{_PREFIX}{name.upper()}" for name in _readers()}
    return {name: given[variable] for name, variable in variables.items() if variable in given}


@dataclass(frozen=True, init=False)
class Settings:
    """All settings of one process. Keyword arguments win over the environment; None means "not given".

    Raises ConfigError when anything is missing, malformed or contradicts something else.

    >>> Settings(imports="billing.jobs, billing.reports").imports
    ('billing.jobs', 'billing.reports')
    """

    database_url: Annotated[str | None, _database_url] = field(default=None, repr=False)
    """SQLAlchemy URL of PostgreSQL (through psycopg 3) or SQLite. Unset, as `redis_url` is then: SQLite in
    `data_dir`."""

    database_pooler: Annotated[Literal["transaction"] | None, _pooler] = None
    """What stands before PostgreSQL: `transaction` is a pooler that lends a session for one transaction only, as
    PgBouncer does with `pool_mode=transaction`. Nothing is then kept in a session."""

    redis_url: Annotated[str | None, _redis_url] = field(default=None, repr=False)
    """The Redis or Valkey that carries links and, unless a connection is named, run jobs. Unset: embedded Valkey."""

    connections: Annotated[dict[str, str], _by_name(_redis_url)] = field(default_factory=dict, repr=False)
    """Further Redis servers by name, for run jobs only: `{"eu": "redis://eu:6379/0"}`."""

    imports: Annotated[tuple[str, ...], _modules] = ()
    """Modules to import so that their workflows register: separated by commas or spaces, or a JSON list."""

    control_queue: Name = "rqsched"
    """The queue of links. Its own, so that a long run never delays a fire."""

    default_queue: Name = "default"
    """The queue of runs whose schedule and workflow name none."""

    serializer: Annotated[str, _serializer] = "pickle"
    """How RQ writes jobs: pickle, json or a dotted path. Workers must read with the same one."""

    queue_serializers: Annotated[dict[str, str], _by_name(_serializer)] = field(default_factory=dict)
    """Queues whose workers use another serializer than `serializer`: `{"legacy": "json"}`."""

    namespace: Name = "default"
    """The namespace of schedules whose caller names none."""

    env: Annotated[str, _text] = ""
    """The environment this process runs in (production, staging); schedules may be limited to some."""

    tokens: Annotated[str | None, _tokens] = field(default=None, repr=False)
    """Bearer tokens of the HTTP surfaces, as a JSON list; what an entry holds is checked where they are used."""

    webhook_url: Annotated[str | None, _url] = field(default=None, repr=False)
    """Where failures, recoveries and overdue schedules are posted, signed; a schedule may name another URL."""

    webhook_secret: Annotated[str | None, _text] = field(default=None, repr=False)
    """The key of the signatures of webhooks; without it none is sent."""

    heartbeat_url: Annotated[str | None, _url] = field(default=None, repr=False)
    """Pinged when a run starts, succeeds and fails; `{namespace}` and `{schedule_id}` stand for the schedule's."""

    sentry_checkins: Annotated[bool, _truth] = False
    """Whether runs check in at Sentry, each under its schedule's id; sentry-sdk must be installed and set up."""

    notification_hosts: Annotated[tuple[str, ...], _hosts] = ()
    """Hosts that URLs given over HTTP may name, such as `hc-ping.com, *.example.com`; by default none."""

    notification_queue: Annotated[str | None, _name] = None
    """The queue of notifications; by default they go where the run went, or where the notified workflow runs."""

    notification_timeout: Seconds = timedelta(seconds=10)
    """How long a receiver may take to answer."""

    data_dir: Annotated[Path, _path] = Path(".rqsched")
    """Folder of the embedded default: SQLite database, Valkey data, logs. Relative to the working directory."""

    run_dir: Annotated[Path | None, _path] = None
    """Folder of the sockets over which `rqsched ping` asks this machine's workers; only its user may write there. By
    default `rqsched-UID` among the temporary files."""

    run_timeout: Seconds = timedelta(seconds=600)
    """How long a run may take when neither its schedule nor its workflow says so."""

    rq_result_ttl: SecondsOrZero = timedelta(0)
    """How long RQ keeps the job of a run that succeeded, with its result; by default nothing is left. SQL has both."""

    run_ttl: Seconds = timedelta(days=1)
    """How long RQ keeps the job of a run that failed. History is in SQL and is not touched by this."""

    heartbeat_interval: Seconds = timedelta(seconds=10)
    """How often an executing run shows that it lives; must stay below `reconcile_interval`."""

    blocked_timeout: Seconds = timedelta(hours=1)
    """How long a run whose workflow no worker can find is offered to others before it fails."""

    completion_outage: Seconds = timedelta(minutes=10)
    """How long an ended run retries to record its outcome while SQL is away."""

    reconcile_interval: Seconds = timedelta(seconds=15)
    """How often a worker compares SQL with Redis. A dead worker's run is lost after three of them."""

    ojs_visibility: Seconds = timedelta(minutes=10)
    """How long an external worker holds a job without a heartbeat, when its request does not say (Open Job Spec)."""

    grace: Seconds = timedelta(seconds=5)
    """How late a link or a run job may be before reconcile repairs it."""

    redis_breaker: SecondsOrZero = timedelta(seconds=1)
    """How long a `Scheduler` (a web process, a command) waits for Redis to answer. When it did not, operations are
    stored and answered without it until it answers again, and Redis follows then. 0 waits as long as a worker does."""

    lease: Seconds = timedelta(seconds=2)
    """After this long the links a dead dispatcher had taken are due again."""

    clock_refresh: Seconds = timedelta(minutes=1)
    """How often a process measures its clock against the database's."""

    fire_batch: Annotated[int, _batch_size] = 500
    """How many links a dispatcher fires in one transaction; SQLite takes 50 at most."""

    target_chunk: Annotated[int, _batch_size] = 500
    """How many targets of a fan-out are put on their queue at a time; the next ones follow when these were taken."""

    retention: Annotated[str, _retention] = "90d 1000"
    """How much history each schedule keeps, unless it says so itself: an age, a number of runs, or both; 0 keeps all.

    What ended longer ago goes, and so do runs beyond the newest so many. Always kept: the last run, the last success,
    what is unfinished and what ended within a day.
    """

    quotas: Annotated[dict[str, Quota], _quotas] = field(default_factory=dict)
    """How many schedules a namespace may hold, and how many bytes they may declare, by namespace: `{"*": {"schedules":
    1000, "bytes": "10MiB"}, "acme": {"schedules": 50}}`. `*` is every other one; by default there is no limit."""

    def __init__(self, **overrides: Any) -> None:
        _warn_of_unknown(frozenset(os.environ))
        given = _provided() | _environment() | {name: one for name, one in overrides.items() if one is not None}
        readers, wrong = _readers(), list[str]()
        for name in given.keys() - readers:
            wrong.append(f"{name} is not a setting; rqsched.config.Settings documents them all.")
        for name, read in readers.items():
            try:
                vars(self)[name] = read(given[name]) if name in given else default_of(name)
            except ValueError as error:
                wrong.append(f"{_PREFIX}{name.upper()}: {str(error).rstrip('.')}.")
        if wrong:
            raise ConfigError(" ".join(wrong))
        try:
            self._check_together()
        except ValueError as error:
            raise ConfigError(f"{error}.") from None

    def _check_together(self) -> None:
        if self.redis_url is None and not self.is_sqlite:
            raise ValueError(
                "RQSCHED_DATABASE_URL names PostgreSQL but RQSCHED_REDIS_URL is unset; set it. "
                "The embedded Valkey serves one machine only"
            )
        if self.redis_url is not None and self.database_url is None:
            raise ValueError(
                "RQSCHED_REDIS_URL is set but RQSCHED_DATABASE_URL is unset; set it too. A database of its own, in "
                f"{self.data_dir}, would know none of the schedules and runs in that Redis. Without both, rqsched "
                "brings its own"
            )
        if self.database_pooler is not None and self.is_sqlite:
            raise ValueError("RQSCHED_DATABASE_POOLER is for PostgreSQL, and RQSCHED_DATABASE_URL names none; unset it")
        if self.default_queue == self.control_queue:
            raise ValueError(
                "RQSCHED_DEFAULT_QUEUE and RQSCHED_CONTROL_QUEUE are the same queue; give runs one of their own: the "
                "dispatcher takes everything on the control queue for a link"
            )
        if self.notification_queue == self.control_queue:
            raise ValueError("RQSCHED_NOTIFICATION_QUEUE is the control queue, which carries links only; name another")
        if self.webhook_url is not None and self.webhook_secret is None:
            raise ValueError(
                "RQSCHED_WEBHOOK_URL is set but RQSCHED_WEBHOOK_SECRET is not; webhooks are signed: set it"
            )
        if self.heartbeat_interval >= self.reconcile_interval:
            raise ValueError("RQSCHED_HEARTBEAT_INTERVAL must be below RQSCHED_RECONCILE_INTERVAL, else runs look lost")

    @property
    def is_sqlite(self) -> bool:
        """Whether SQL is SQLite, named or by default."""
        return self.database_url is None or self.database_url.startswith("sqlite")

    def serializer_for(self, queue: str) -> str:
        """Return the dotted path of the serializer that jobs of this queue are written with."""
        return serializer_path(self.queue_serializers.get(queue, self.serializer))

    def variables(self) -> dict[str, str]:
        """Return the variables that make the settings of another process equal to these."""
        given = {name: value for name, value in vars(self).items() if value != default_of(name)}
        return {f"{_PREFIX}{name.upper()}": _as_text(value) for name, value in given.items()}

    def changed(self, **values: Any) -> Settings:
        """Return a copy with other values, which are taken as they are."""
        other = copy.copy(self)
        vars(other).update(values)
        return other


def default_of(name: str) -> Any:
    """Return what a setting is where nothing says anything."""
    one = next(one for one in fields(Settings) if one.name == name)
    return one.default if one.default_factory is MISSING else one.default_factory()


@lru_cache(maxsize=1)
def _readers() -> dict[str, Callable[[object], object]]:
    """Return what reads each setting, by its name: its annotation names it."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(Settings, include_extras=True).items()}
