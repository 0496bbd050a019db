"""URLs of Redis: one server over TCP, TLS or a UNIX socket, or the master that Sentinels name.

`redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/SERVICE/DB` asks the Sentinels for SERVICE at each new connection.
`rediss+sentinel://` speaks TLS to the Sentinels and to the servers. The query has redis-py's connection options;
`sentinel_username` and `sentinel_password` are for the Sentinels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

import redis
from redis import ConnectionPool, Redis, SSLConnection
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from rqsched.errors import ConfigError

SENTINEL_PORT = 26_379
_SENTINEL = re.compile(
    r"redis(?P<tls>s?)\+sentinel://((?P<login>[^@/?]*)@)?(?P<hosts>[^/?@]+)/(?P<service>[^/?]+)(/(?P<db>\d+))?"
    r"(\?(?P<query>.*))?"
)
_HOST = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d+))?")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_ca_path")
_TLS = (*_FILES, "ssl_cert_reqs", "ssl_check_hostname", "ssl_keyfile_password")
_ABOUT_SENTINELS = "sentinel_"
_LIBRARY = "driver_info"
_LIBRARY_OPTIONS = (_LIBRARY, "lib_name", "lib_version")
"""redis-py's options for the name of the library that a connection sends to the server."""


class SentinelAddress(NamedTuple):
    """The Sentinels of a URL, and the options of connections to them and to their servers."""

    sentinels: tuple[tuple[str, int], ...]
    """Hosts and ports."""
    service: str
    """The name under which the Sentinels know the master."""
    is_tls: bool
    """Whether connections to the Sentinels and to the servers use TLS."""
    options: Mapping[str, Any]
    """redis-py's options of a connection to a server."""
    sentinel_options: Mapping[str, Any]
    """redis-py's options of a connection to a Sentinel."""


def parse_sentinel(url: str) -> SentinelAddress | None:
    """Parse a URL of Sentinels; None for any other URL. Raises ConfigError if a URL of Sentinels is malformed."""
    if "+sentinel://" not in url:
        return None
    found = _SENTINEL.fullmatch(url)
    hosts = [_HOST.fullmatch(host) for host in found["hosts"].split(",")] if found else []
    if found is None or None in hosts:
        raise ConfigError(
            "a URL of Sentinels is not valid; write redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/SERVICE/DB."
        )
    sentinels = tuple((host["v6"] or host["name"], int(host["port"] or SENTINEL_PORT)) for host in hosts if host)
    login, query = found["login"], found["query"]
    plain = f"redis://{login + '@' if login else ''}x/{found['db'] or 0}{'?' + query if query else ''}"
    options = {name: value for name, value in _parsed(plain).items() if name != "host"}
    own = {name: options.pop(name) for name in list(options) if name.startswith(_ABOUT_SENTINELS)}
    shared = {name: value for name, value in options.items() if name.startswith(("ssl_", "socket_"))}
    sentinel_options = shared | {name.removeprefix(_ABOUT_SENTINELS): value for name, value in own.items()}
    is_tls = bool(found["tls"])
    _require_usable({**options, "ssl": is_tls})
    return SentinelAddress(sentinels, unquote(found["service"]), is_tls, options, sentinel_options)


def _parsed(url: str) -> dict[str, Any]:
    try:
        return dict(parse_url(url))
    except ValueError as error:
        raise ConfigError(f"a Redis URL is not valid: {error}; write redis://USER:PASSWORD@HOST:6379/0.") from None


def open_client(
    url: str,
    *,
    pool: type[ConnectionPool] = ConnectionPool,
    sentinel_pool: type[SentinelConnectionPool] = SentinelConnectionPool,
    timeouts: Mapping[str, float],
    **options: Any,
) -> Redis:
    """Open a client for a URL. Its pool gets the `options`, and opens no connection yet.

    Raises ConfigError for a URL that can never work: it has an unknown option, or a TLS file is missing.
    """
    address = parse_sentinel(url)
    if address is None:
        parsed = _parsed(url)
        _require_usable({**parsed, "ssl": parsed.get("connection_class") is SSLConnection})
        client = Redis.from_pool(pool.from_url(url, **options, **timeouts))
    else:
        client = _open_behind(address, sentinel_pool, timeouts, options)
    opened = client.connection_pool
    name_library(opened)
    try:
        opened.connection_class(**opened.connection_kwargs)  # connects to nothing
    except TypeError as error:
        raise _unknown_option(error) from None
    return client


def name_library(pool: ConnectionPool) -> None:
    """Give the connections of a pool the name of the library, which this process or its parent looked up once.

    Otherwise each connection would look up the name on the disk, which takes milliseconds in each forked work horse.
    """
    options = pool.connection_kwargs
    found = _library()
    if found and issubclass(pool.connection_class, AbstractConnection) and options.keys().isdisjoint(_LIBRARY_OPTIONS):
        options[_LIBRARY] = found


@cache
def _library() -> Any:
    """Return the name of the library; None before redis-py 7.2, because older versions look it up at import."""
    is_option = _LIBRARY in signature(AbstractConnection.__init__).parameters
    return redis.DriverInfo() if is_option else None


def without_library(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return connection options without the name of the library, which cannot be written as text for a new process."""
    return {name: value for name, value in options.items() if name != _LIBRARY}


def _open_behind(
    address: SentinelAddress,
    pool: type[SentinelConnectionPool],
    timeouts: Mapping[str, float],
    options: Mapping[str, Any],
) -> Redis:
    # Each Sentinel is asked once. If it does not answer, the next Sentinel is asked.
    asking = {**address.sentinel_options, "ssl": address.is_tls, "retry": Retry(NoBackoff(), 0), **timeouts}
    try:
        sentinel = Sentinel(address.sentinels, sentinel_kwargs=asking)
    except TypeError as error:
        raise _unknown_option(error) from None
    servers = {**address.options, "ssl": address.is_tls, **options, **timeouts}
    client: Redis = sentinel.master_for(address.service, connection_pool_class=pool, **servers)
    return client


def as_rq_setting(address: SentinelAddress) -> dict[str, Any]:
    """Return the value of SENTINEL in a settings module of RQ (`rq worker -c`)."""
    options = dict(address.options)
    return {
        "INSTANCES": list(address.sentinels),
        "MASTER_NAME": address.service,
        "DB": options.pop("db", 0),
        "USERNAME": options.pop("username", None),
        "PASSWORD": options.pop("password", None),
        "SSL": address.is_tls,
        "CONNECTION_KWARGS": options,
        "SENTINEL_KWARGS": {**address.sentinel_options, "ssl": address.is_tls},
    }


def _unknown_option(error: TypeError) -> ConfigError:
    name = re.search(r"'(\w+)'", str(error))
    return ConfigError(f"a Redis URL has an option that is not known: {name[1] if name else error}; remove it.")


def _require_usable(options: Mapping[str, Any]) -> None:
    """Refuse options that redis-py would report as an outage: missing files, and TLS options without TLS."""
    given = [name for name in _TLS if options.get(name)]
    if given and not options["ssl"]:
        raise ConfigError(f"a Redis URL has {given[0]} and does not speak TLS; write rediss:// or rediss+sentinel://.")
    for name in _FILES:
        if options.get(name) and not Path(options[name]).exists():
            raise ConfigError(f"a Redis URL names {options[name]} as {name}, which does not exist; correct it.")


def url_of(client: Redis) -> str:
    """Return a URL of the server that a client talks to; raises ConfigError if the client has no address."""
    pool = client.connection_pool
    options = pool.connection_kwargs
    if isinstance(pool, SentinelConnectionPool):
        return _url_behind(pool)
    path, host = options.get("path"), options.get("host")
    if path is None and host is None:
        raise ConfigError("RQSCHED_REDIS_URL is unset, and RQ's connection has no address; set RQSCHED_REDIS_URL.")
    login, number = _login(options), options.get("db") or 0
    if path is not None:
        return f"unix://{login}{quote(path)}?db={number}"
    is_tls = issubclass(pool.connection_class, SSLConnection)
    address = f"{_host(str(host))}:{options.get('port') or 6379}"
    return f"redis{'s' if is_tls else ''}://{login}{address}/{number}{_query(options) if is_tls else ''}"


def _url_behind(pool: SentinelConnectionPool) -> str:
    options, manager = pool.connection_kwargs, pool.sentinel_manager
    is_tls = issubclass(pool.connection_class, SSLConnection)
    known = [one.connection_pool.connection_kwargs for one in manager.sentinels]
    hosts = ",".join(f"{_host(str(one['host']))}:{one['port']}" for one in known)
    own = {f"{_ABOUT_SENTINELS}{name}": known[0].get(name) for name in ("username", "password")}
    query = _query({**(options if is_tls else {}), **own}, also=tuple(own))
    where = f"{hosts}/{quote(pool.service_name, safe='')}/{options.get('db') or 0}"
    return f"redis{'s' if is_tls else ''}+sentinel://{_login(options)}{where}{query}"


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _login(options: Mapping[str, Any]) -> str:
    if not options.get("password"):
        return ""
    return f"{quote(options.get('username') or '', safe='')}:{quote(str(options['password']), safe='')}@"


def _query(options: Mapping[str, Any], *, also: tuple[str, ...] = ()) -> str:
    given = {name: options[name] for name in (*_TLS, *also) if isinstance(options.get(name), (str, bool))}
    return f"?{urlencode(given)}" if given else ""
