"""The settings: one frozen value, read from the environment (`RQSCHED_*`) or from keyword arguments.

An invalid setting raises a ConfigError. The error names the variable and never repeats the value, which may hold a
password. A setting that may hold a password may be read from a file, which a variable or systemd names. This file only
reads settings: it opens no connection, creates no folder and imports no workflow.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from rqsched.errors import ConfigError, InvalidDurationError, InvalidInputError, InvalidPolicyError, did_you_mean
from rqsched.kernel.decide.define import read_retry
from rqsched.kernel.decide.notifications import workflow_name
from rqsched.kernel.decide.policy import Policies, RetryPolicy, no_retry
from rqsched.kernel.decide.quota_options import EVERY, Quota, parse_quotas
from rqsched.kernel.decide.retention import HOW_TO_SAY, Retention
from rqsched.when.duration import to_span
from rqsched.when.zones import require_timezone

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HOST = re.compile(r"((\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")
NO_CLUSTER = (
    "RQ, and so rqsched, needs one server: its keys and the ids of its jobs allow no hash tags, so what one script "
    "touches would lie on several nodes. Use one Redis or Valkey, with replicas and Sentinel against its loss"
)
"""Why Redis Cluster is refused, and what to do instead."""
_VALKEY = re.compile(r"^valkey(s?)(\+\w+)?://")
_SEVERAL_HOSTS = re.compile(
    r"^(?P<head>postgresql\+psycopg://(?:[^@/?]*@)?)(?P<hosts>[^/?@]*,[^/?@]*)(?P<path>/[^?]*)?(?:\?(?P<query>.*))?$"
)
_HOST_AND_PORT = re.compile(r"\[?(.*?)\]?(?::(\d+))?")
_POSTGRESQL = re.compile(r"^postgres(ql)?(\+psycopg)?://")
_OTHER_DRIVER = re.compile(r"^(?P<database>postgres(ql)?|sqlite)\+\w+://")
_PREFIX = "RQSCHED_"
_IN_FILE = "_FILE"
"""The suffix of the variable that holds the path of a file with a secret."""
_CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""The variable of the folder with a service's credentials from systemd (LoadCredential, SetCredential ...)."""
_LONGEST_SECRET = 1024 * 1024
LOGS_FIELDS = ("run", "job", "from", "to", "from_ms", "to_ms")
"""The names that may stand in braces in the setting `logs_url`."""
LOGS_FIELD = re.compile(rf"\{{({'|'.join(LOGS_FIELDS)})\}}")
"""One such field with its braces."""
LONGEST_WAIT = timedelta(minutes=5)
"""How long a run may wait for a worker by default before that is a problem."""
_SERIALIZER_ALIASES = {"pickle": "rq.serializers.DefaultSerializer", "json": "rq.serializers.JSONSerializer"}
"""Every version of RQ reads a dotted path; older versions do not know the short names."""


def _as_seconds(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    try:
        return timedelta(seconds=float(str(value)))
    except (ValueError, OverflowError):
        pass
    try:
        return to_span(str(value))
    except InvalidDurationError:
        raise ValueError("write a number of seconds, such as 15 or 0.5, or a length such as 10m or 30d") from None


def _as_json_object(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f'write a JSON object, such as {{"name": "value"}} ({error.msg})') from None


def _as_words(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return tuple(value.replace(",", " ").split())
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"write words separated by commas or spaces, or a JSON list ({error.msg})") from None


def _as_quotas(value: object) -> object:
    quotas = parse_quotas(_as_json_object(value))
    for namespace in quotas:
        if namespace != EVERY:
            _checked_name(namespace)
    return quotas


def _as_waits(value: object) -> object:
    by_queue = _as_json_object(value) if str(value).lstrip().startswith("{") or isinstance(value, Mapping) else value
    if not isinstance(by_queue, Mapping):
        return {EVERY: by_queue}
    for queue in by_queue:
        if queue != EVERY:
            _checked_name(queue)
    return {EVERY: LONGEST_WAIT, **by_queue}


def _checked_timezone(value: str) -> str:
    try:
        return require_timezone(value).key
    except InvalidInputError as error:
        raise ValueError(error.reason) from None


def _checked_workflow(value: str) -> str:
    try:
        return workflow_name("workflow", value) or value
    except InvalidInputError as error:
        raise ValueError(error.reason) from None


def _as_retry(name: str, blank: RetryPolicy) -> Callable[[object], object]:
    """Return a function that reads a RetryPolicy, or a mapping of the fields that differ from the default."""

    def read(value: object) -> object:
        if value is None:
            return None
        try:
            policy = read_retry(name, _as_json_object(value), blank, blank)
            Policies(**{name: policy})  # type: ignore[arg-type] # those of targets have no say about the schedule
        except InvalidPolicyError as error:
            field = error.field.removeprefix(name).removeprefix(".")
            raise ValueError(f"{field}: {error.reason}" if field else error.reason) from None
        return policy

    return read


def _checked_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("use 1 to 255 of A-Z a-z 0-9 . _ : -, with a letter or digit first")
    return value


def serializer_path(name: str) -> str:
    """Return the dotted path of a serializer, which may be named `pickle` or `json`."""
    return _SERIALIZER_ALIASES.get(name, name)


def _checked_serializer(value: str) -> str:
    if not _DOTTED_PATH.fullmatch(value) or ("." not in value and value not in _SERIALIZER_ALIASES):
        raise ValueError('write "pickle", "json" or the dotted path of a serializer class')
    return value


def _checked_redis_url(value: str) -> str:
    value = _VALKEY.sub(r"redis\1\2://", value)
    if re.match(r"^rediss?[+-]cluster://", value):
        raise ValueError(f"this names a Redis Cluster; {NO_CLUSTER}")
    if not value.startswith(_REDIS_SCHEMES):
        raise ValueError(
            "write redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///PATH?db=DB or "
            "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB"
        )
    return value


def _checked_retention(value: str) -> str:
    try:
        return str(Retention.parse(value))
    except InvalidPolicyError:
        raise ValueError(HOW_TO_SAY) from None


Name = Annotated[str, AfterValidator(_checked_name)]
"""A namespace or queue name: 1 to 255 characters of the ids' alphabet."""

RedisUrl = Annotated[str, AfterValidator(_checked_redis_url)]
"""The URL of one server, or of the Sentinels that know it; valkey:// is accepted and stored as redis://."""

WorkflowName = Annotated[str, AfterValidator(_checked_workflow)]
"""The registered name of a workflow, or its dotted path."""

SerializerName = Annotated[str, AfterValidator(_checked_serializer)]
"""`pickle`, `json`, or the dotted path of a serializer class."""

Seconds = Annotated[timedelta, BeforeValidator(_as_seconds), Field(gt=timedelta(0))]
"""A positive span; a number of seconds in the environment."""
SecondsOrZero = Annotated[timedelta, BeforeValidator(_as_seconds), Field(ge=timedelta(0))]
"""A span of zero or more; a number of seconds in the environment."""


@lru_cache(maxsize=1)
def _warn_of_unknown(names: frozenset[str]) -> None:
    """Log each `RQSCHED_*` variable that no setting reads, with the nearest name; once for the same variables."""
    known = [*(name.upper() for name in Settings.model_fields), *(f"{name.upper()}{_IN_FILE}" for name in secrets())]
    for name in sorted(names):
        own = name.upper().removeprefix(_PREFIX)
        if name.upper().startswith(_PREFIX) and own not in known:
            hint = did_you_mean(own, known, _PREFIX)
            _log.warning("%s is not a setting and is ignored%s", name, hint, extra={"action": "unknown_setting"})


Source = Callable[[], Mapping[str, Any]]
_sources: list[Source] = []


def provide(source: Source) -> None:
    """Take settings from the application if neither an argument nor the environment gives them.

    `source` returns a mapping from the names of the fields below to values; None means that a value is unknown. It is
    called whenever settings are read, in this process and its forks, and its errors are raised there. A new source
    replaces the old source.
    """
    _sources[:] = [source]


def _provided() -> dict[str, Any]:
    return {name: value for source in _sources for name, value in source().items() if value is not None}


def export() -> None:
    """Write the application's settings into the environment, for child processes that are not forks."""
    for name, value in _provided().items():
        if not is_in_environment(name):
            os.environ[variable_of(name)] = _as_text(value)


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{_PREFIX}{name.upper()}"


def secrets() -> list[str]:
    """Return the names of the settings that may hold a secret, which `repr` hides."""
    return [name for name, field in Settings.model_fields.items() if not field.repr]


def is_in_environment(name: str) -> bool:
    """Return whether the environment gives a setting, directly or by a file; it then overrides the application."""
    variable = variable_of(name)
    if os.environ.get(variable):
        return True
    folder = os.environ.get(_CREDENTIALS)
    return name in secrets() and bool(
        os.environ.get(variable + _IN_FILE) or (folder and os.path.lexists(Path(folder, variable)))
    )


def _from_files() -> dict[str, str]:
    """Return the secrets from files: from the file that a variable names, else from systemd's credentials."""
    given = {name.upper(): value for name, value in os.environ.items() if value}
    found: dict[str, str | None] = {}
    for name in secrets():
        variable = variable_of(name)
        if (file := given.get(variable + _IN_FILE)) is not None:
            what = f"{variable}{_IN_FILE} names {file}, which"
            if variable in given:
                raise ConfigError(f"{variable} and {variable}{_IN_FILE} are both set; unset one of them.")
            found[name] = _read_secret(Path(file), what)
            if found[name] is None:
                raise ConfigError(f"{what} does not exist; correct the path.")
        elif _CREDENTIALS in given and variable not in given:
            credential = Path(given[_CREDENTIALS], variable)
            found[name] = _read_secret(credential, f"The credential {credential}")
    return {name: text for name, text in found.items() if text is not None}


def _read_secret(file: Path, what: str) -> str | None:
    """Return the content of a file without its last newline; None without a file. `what` names it in errors."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe can be read once, and settings are read more often
            raise ConfigError(f"{what} is not a regular file; name one that can be read again.")
        with file.open("rb") as opened:
            text = opened.read(_LONGEST_SECRET + 1).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}. Let the user of this process read it.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what} is not text in UTF-8; write the value as it would stand in the variable.") from None
    if not text.strip():
        raise ConfigError(f"{what} is empty; write the value into it, or remove what names it.")
    if len(text) > _LONGEST_SECRET:
        raise ConfigError(f"{what} is longer than 1 MiB; name the file that holds this one value.")
    return text.rstrip("\r\n")


def _as_text(value: object) -> str:
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, str | Path) else json.dumps(to_jsonable_python(value))


class Settings(BaseSettings):
    """All settings of one process. Keyword arguments win over the environment; None means "not given".

    A setting that may hold a password (`repr=False`) may be read from a file: the file that the variable with the
    suffix `_FILE` names, or else systemd's credential with the variable's name. Raises ConfigError when a setting is
    missing, malformed or contradicts another one.

    >>> Settings(imports="billing.jobs, billing.reports").imports
    ('billing.jobs', 'billing.reports')
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    database_url: str | None = Field(default=None, repr=False)
    """SQLAlchemy URL of PostgreSQL (through psycopg 3) or SQLite. Unset: SQLite in `data_dir`, and `redis_url` must be
    unset, too. PostgreSQL may have several hosts, as libpq writes them: `//USER@A:5432,B:5432/DATABASE`."""

    database_pooler: Literal["transaction"] | None = None
    """The kind of pooler before PostgreSQL: `transaction` lends a session for one transaction only, as PgBouncer does
    with `pool_mode=transaction`. Nothing is then kept in a session."""

    redis_url: RedisUrl | None = Field(default=None, repr=False)
    """The Redis or Valkey that carries links and, unless a connection is named, run jobs. Unset: embedded Valkey."""

    connections: Annotated[dict[str, RedisUrl], NoDecode, BeforeValidator(_as_json_object)] = Field(
        default_factory=dict, repr=False
    )
    """Further Redis servers by name, for run jobs only: `{"eu": "redis://eu:6379/0"}`."""

    imports: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_as_words)] = ()
    """Modules to import so that their workflows register: separated by commas or spaces, or a JSON list."""

    control_queue: Name = "rqsched"
    """The queue that carries links and nothing else, so that a long run never delays a fire."""

    default_queue: Name = "default"
    """The queue of runs whose schedule and workflow name none."""

    serializer: SerializerName = "pickle"
    """How RQ writes jobs: pickle, json or a dotted path. Workers must use the same one."""

    queue_serializers: Annotated[dict[Name, SerializerName], NoDecode, BeforeValidator(_as_json_object)] = Field(
        default_factory=dict
    )
    """Queues whose workers use another serializer than `serializer`: `{"legacy": "json"}`."""

    namespace: Name = "default"
    """The namespace of schedules whose caller names none."""

    timezone: Annotated[str, AfterValidator(_checked_timezone)] = "UTC"
    """The timezone of cron expressions that name no timezone; in Django the default is the project's TIME_ZONE.

    This setting and the next four are stored with a schedule when it is created or declared. A change of these settings
    therefore reaches declared schedules with the next `sync`, and no other schedules.
    """

    retry: Annotated[InstanceOf[RetryPolicy] | None, NoDecode, BeforeValidator(_as_retry("retry", RetryPolicy()))] = (
        None
    )
    """How failed attempts are repeated by default: `{"max_retries": 5, "base": "30s"}`. A field that is set neither
    here nor by the schedule has the default of RetryPolicy: 3 retries, a minute or the interval apart."""

    target_retry: Annotated[
        InstanceOf[RetryPolicy] | None, NoDecode, BeforeValidator(_as_retry("target_retry", no_retry()))
    ] = None
    """The same for failed attempts of a target, which are not repeated by default: `{"max_retries": 2}`."""

    on_failure: WorkflowName | None = None
    """The workflow that is run when a run failed or was lost, and when a schedule is overdue; a schedule, or its
    workflow, may name another workflow."""

    on_recovery: WorkflowName | None = None
    """The workflow that is run at the first success after a failure; a schedule, or its workflow, may name another."""

    environment: str = ""
    """The environment this process runs in (production, staging); schedules may be limited to some."""

    tokens: SecretStr | None = Field(default=None, repr=False)
    """Bearer tokens of the HTTP surfaces, as a JSON list; each entry is checked when a server starts."""

    trusted_proxies: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_as_words)] = ()
    """Addresses and networks of trusted proxies, such as `127.0.0.1, 10.0.0.0/8`, and `unix` for UNIX sockets. The
    headers X-Forwarded-For, -Proto and -Prefix of these proxies are believed. By default no proxy is trusted."""

    notify: bool = True
    """Whether this process writes and sends notifications. Turn it off for a copy of a database, whose schedules name
    the receivers of the original."""

    webhook_url: str | None = Field(default=None, repr=False)
    """The URL to which failures, recoveries and overdue schedules are posted, signed; a schedule may name another
    URL."""

    webhook_secret: SecretStr | None = Field(default=None, repr=False)
    """The key that signs webhooks; without it no webhook is sent."""

    heartbeat_url: str | None = Field(default=None, repr=False)
    """The URL that is pinged when a run starts, succeeds or fails. `{namespace}` and `{schedule_id}` in it stand for
    those of the schedule."""

    logs_url: str | None = None
    """The https URL of a run's logs at your log service. The run's page in the dashboard links to it. `{run}` in it
    stands for the run's uid, and `{job}` for the id of its newest RQ job. `{from}` is a minute before the run was
    created, and `{to}` a minute after it ended (if it has not ended, the next full hour), in ISO 8601 and UTC.
    `{from_ms}` and `{to_ms}` are these times in milliseconds since 1970. The values are percent-encoded."""

    sentry_checkins: bool = False
    """Whether runs check in at Sentry, each under its schedule's id; sentry-sdk must be installed and set up."""

    otel: bool = False
    """Whether this process is traced with OpenTelemetry; the extra `otel` must be installed, and the SDK set up, as in
    a module of `imports`."""

    notification_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_as_words)] = ()
    """Hosts that URLs given over HTTP may name, such as `hc-ping.com, *.example.com`; by default none."""

    notification_queue: Name | None = None
    """The queue of notifications; by default the queue of the run, or of the notified workflow."""

    notification_timeout: Seconds = timedelta(seconds=10)
    """How long a receiver may take to answer."""

    data_dir: Path = Path(".rqsched")
    """Folder of the embedded default: SQLite database, Valkey data, logs. Relative to the working directory."""

    run_dir: Path | None = None
    """Folder of the sockets over which `rqsched ping` asks this machine's workers; only its user may write there. By
    default `rqsched-UID` among the temporary files."""

    run_timeout: Seconds = timedelta(seconds=600)
    """How long a run may take if neither its schedule nor its workflow has a timeout."""

    rq_result_ttl: SecondsOrZero = timedelta(0)
    """How long RQ keeps the job of a run that succeeded, with its result; by default not at all. SQL keeps the run and
    its result."""

    rq_failure_ttl: Seconds = timedelta(days=1)
    """How long RQ keeps the job of a run that failed. The history in SQL does not depend on this."""

    heartbeat_interval: Seconds = timedelta(seconds=10)
    """How often an executing run sends a heartbeat; must stay below `reconcile_interval`."""

    blocked_timeout: Seconds = timedelta(hours=1)
    """How long a run whose workflow no worker can find is offered to other workers before it fails."""

    completion_outage: Seconds = timedelta(minutes=10)
    """How long a process tries to record the end of a run while SQL is down."""

    reconcile_interval: Seconds = timedelta(seconds=15)
    """How often a worker compares SQL with Redis. A run whose worker died is lost after three of these intervals."""

    ojs_visibility: Seconds = timedelta(minutes=10)
    """How long an external worker holds a job without a heartbeat, unless its request gives a length (Open Job
    Spec)."""

    repair_grace: Seconds = timedelta(seconds=5)
    """How late a link or a run job may be before reconcile repairs it."""

    freeze: bool = False
    """Whether this process is frozen as by `rqsched freeze --everything`, whatever Redis and SQL say. This is for the
    first start after a restore. A frozen process takes no jobs, fires nothing, and refuses manual starts."""

    redis_timeout: SecondsOrZero = timedelta(seconds=1)
    """How long a `Scheduler` (a web process, a command) waits for Redis to answer. After that, operations are stored in
    SQL and answered without Redis, and Redis follows when it answers again. With 0, a `Scheduler` waits as long as a
    worker does."""

    longest_wait: Annotated[dict[str, Seconds], NoDecode, BeforeValidator(_as_waits)] = Field(
        default_factory=lambda: {EVERY: LONGEST_WAIT}
    )
    """How long runs may wait for a worker before doctor and the dashboard report a problem: a length, or lengths by
    queue such as `{"*": "5m", "reports": "2h"}`, where `*` is every other queue."""

    link_lease: Seconds = timedelta(seconds=2)
    """How long a dispatcher holds the links that it has taken. If it dies, the links are due again after this time."""

    clock_check_interval: Seconds = timedelta(minutes=1)
    """How often a process measures its clock against the database's."""

    fire_batch: int = Field(default=500, ge=1, le=10_000)
    """How many links a dispatcher fires in one transaction; SQLite takes 100 at most."""

    target_chunk: int = Field(default=500, ge=1, le=10_000)
    """How many targets of a fan-out are put on their queue at a time; the next follow when these have been taken."""

    retention: Annotated[str, AfterValidator(_checked_retention)] = "90d 1000"
    """How much history a schedule without its own retention keeps: an age, a number of runs, or both; 0 keeps all.

    Runs that ended longer ago than the age are deleted. If there are more runs than the number, the oldest are deleted.
    The last run, the last success, unfinished runs and runs that ended within a day are always kept.
    """

    quotas: Annotated[dict[str, Quota], NoDecode, BeforeValidator(_as_quotas)] = Field(default_factory=dict)
    """How many schedules a namespace may hold, and how many bytes they may declare, by namespace: `{"*": {"schedules":
    1000, "bytes": "10MiB"}, "acme": {"schedules": 50}}`. `*` stands for all others; by default there is no limit."""

    def __init__(self, **overrides: Any) -> None:
        given = {name: value for name, value in overrides.items() if value is not None}
        _warn_of_unknown(frozenset(os.environ))
        try:
            super().__init__(**given)
        except ValidationError as error:
            details = error.errors(include_input=False, include_url=False)
            raise ConfigError(" ".join(_explain(detail) for detail in details)) from None
        except SettingsError as error:
            raise ConfigError(f"{error}; correct it.") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: Any,
        env_settings: Any,
        dotenv_settings: Any,
        file_secret_settings: Any,
    ) -> tuple[Any, ...]:
        """Read arguments, then the environment, the files of secrets, and then the application's settings."""
        del settings_cls, dotenv_settings, file_secret_settings
        return init_settings, env_settings, _from_files, _provided

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: str | None) -> str | None:
        if value is None or re.match(r"^sqlite(\+pysqlite)?://", value):
            return value
        if not _POSTGRESQL.match(value):
            raise ValueError(_about_database_url(value))
        return _SEVERAL_HOSTS.sub(_hosts_in_query, _POSTGRESQL.sub("postgresql+psycopg://", value))

    @field_validator("imports")
    @classmethod
    def _check_imports(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for module in value:
            if not _DOTTED_PATH.fullmatch(module):
                raise ValueError(f"{module!r} is not a module name; write package.module, without .py")
        return value

    @field_validator("webhook_url", "heartbeat_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"^https?://[^\s/@]+(/[^\s#]*)?$", value):
            raise ValueError("write https://HOST/PATH, without blanks, a user or a fragment")
        return value

    @field_validator("logs_url")
    @classmethod
    def _check_logs_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not re.match(r"^https://[^\s/?#@{}]+([/?#]\S*)?$", value):
            raise ValueError("write https://HOST/PATH, without blanks or a user; write a blank as %20")
        if re.search(r"[{}]", LOGS_FIELD.sub("", value)):
            names = ", ".join(f"{{{name}}}" for name in LOGS_FIELDS)
            raise ValueError(f"the fields are {names}; write any other brace as %7B or %7D")
        return value

    @field_validator("notification_hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{host!r} is not a host; write hc-ping.com, *.example.com or [2001:db8::7]:8080")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            try:
                if network != "unix":
                    ip_network(network)
            except ValueError:
                raise ValueError("write addresses and networks such as 127.0.0.1, ::1, 10.0.0.0/8, or unix") from None
        return value

    @field_validator("tokens")
    @classmethod
    def _check_tokens(cls, value: SecretStr | None) -> SecretStr | None:
        try:
            is_list = value is None or isinstance(json.loads(value.get_secret_value()), list)
        except json.JSONDecodeError:
            is_list = False
        if not is_list:
            raise ValueError("write a JSON list")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        if self.redis_url is None and not self.is_sqlite:
            raise ValueError(
                "RQSCHED_DATABASE_URL names PostgreSQL but RQSCHED_REDIS_URL is unset; set it. "
                "The embedded Valkey serves one machine only"
            )
        if self.redis_url is not None and self.database_url is None:
            raise ValueError(
                "RQSCHED_REDIS_URL is set but RQSCHED_DATABASE_URL is unset; set it too. A new database in "
                f"{self.data_dir} would know none of the schedules and runs of that Redis. With neither set, rqsched "
                "uses SQLite and an embedded Valkey"
            )
        if self.database_pooler is not None and self.is_sqlite:
            raise ValueError("RQSCHED_DATABASE_POOLER is set, but RQSCHED_DATABASE_URL is not PostgreSQL's; unset it")
        if self.default_queue == self.control_queue:
            raise ValueError(
                "RQSCHED_DEFAULT_QUEUE and RQSCHED_CONTROL_QUEUE are the same queue; name another queue for runs: the "
                "dispatcher takes every job on the control queue for a link"
            )
        if self.notification_queue == self.control_queue:
            raise ValueError("RQSCHED_NOTIFICATION_QUEUE is the control queue, which carries links only; name another")
        if self.webhook_url is not None and self.webhook_secret is None:
            raise ValueError(
                "RQSCHED_WEBHOOK_URL is set but RQSCHED_WEBHOOK_SECRET is not; webhooks are signed: set it"
            )
        if self.heartbeat_interval >= self.reconcile_interval:
            raise ValueError("RQSCHED_HEARTBEAT_INTERVAL must be below RQSCHED_RECONCILE_INTERVAL, or runs look lost")
        return self

    @property
    def is_sqlite(self) -> bool:
        """Whether SQL is SQLite, named or by default."""
        return self.database_url is None or self.database_url.startswith("sqlite")

    def serializer_for(self, queue: str) -> str:
        """Return the dotted path of the serializer of this queue's jobs."""
        return serializer_path(self.queue_serializers.get(queue, self.serializer))

    def variables(self) -> dict[str, str]:
        """Return the variables, secrets included, that make the settings of another process equal to these.

        The variables for files of secrets are included as empty texts, to override inherited variables.
        """
        given = {name: value for name in self.model_fields_set if (value := getattr(self, name)) is not None}
        unset = {f"{variable_of(name)}{_IN_FILE}": "" for name in secrets() if name in given}
        return {variable_of(name): _as_text(value) for name, value in given.items()} | unset


def _hosts_in_query(url: re.Match[str]) -> str:
    """Write several hosts in the form that SQLAlchemy reads."""
    hosts, ports = zip(*(_HOST_AND_PORT.fullmatch(host).groups() for host in url["hosts"].split(",")), strict=True)  # type: ignore[union-attr]
    query = f"host={','.join(hosts)}&port={','.join(port or '5432' for port in ports)}"
    return f"{url['head']}{url['path'] or '/'}?{query}{'&' + url['query'] if url['query'] else ''}"


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


def _explain(detail: Mapping[str, Any]) -> str:
    reason = str(detail["msg"]).removeprefix("Value error, ").rstrip(".")
    where = [str(part) for part in detail["loc"] if part != "[key]"]
    if not where:
        return f"{reason}."
    if detail["type"] == "extra_forbidden":
        return f"{where[0]} is not a setting; rqsched.config.Settings documents them all."
    variable = variable_of(where[0].removeprefix(_PREFIX))
    return f"{variable}{''.join(f'[{part}]' for part in where[1:])}: {reason}."
