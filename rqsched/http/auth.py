"""Authentication and roles by bearer tokens. Without tokens, only callers on the loopback interface are accepted.

The headers with which a proxy names its client are read only if RQSCHED_TRUSTED_PROXIES names the proxy. Tokens come
from the settings as a JSON list; each may be limited to some namespaces. A secret is compared by its SHA-256 digest, in
constant time. It is never stored, logged or shown.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from rqsched.api.options import is_id
from rqsched.config import Settings
from rqsched.errors import ConfigError
from rqsched.http.errors import ForbiddenError, UnauthorizedError
from rqsched.http.limits import TokenBuckets
from rqsched.http.root_path import collides, is_below

PRINCIPAL = "rqsched.principal"
"""The key under which a request's scope stores the principal, after the principal was found."""
REFUSED_PREFIX = "rqsched.refused_prefix"
"""The key under which a request's scope stores a trusted proxy's prefix, if it collides with a path of rqsched."""
_PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+")
_FORWARDED = re.compile(r"forwarded|via|x-real-ip|x-forwarded-.*")
"""Headers in which a proxy names the real client."""
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(:[0-9]*)?")
"""The plain form of the header Host; parsers differ about every other form."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Role(IntEnum):
    """The operations that a principal may call. Each role includes the operations of the roles before it."""

    READ = 1
    """Read schedules, runs, events and metrics."""
    OPERATE = 2
    """Pause, resume, restart, trigger, backfill, cancel and terminate; execute runs as an external worker."""
    ADMIN = 3
    """Create, change and delete."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    name: str
    """The name that the audit events of this caller's changes record."""
    role: Role
    """The operations that the caller may call."""
    namespaces: frozenset[str] | None = None
    """The namespaces that the caller may see; None means all. The answers treat other namespaces as nonexistent."""

    def sees(self, namespace: str) -> bool:
        """Return whether a namespace exists for this principal."""
        return self.namespaces is None or namespace in self.namespaces


LOCAL = Principal("local", Role.ADMIN)
"""The principal of every caller on the loopback interface, if no token is configured."""

Authenticate: TypeAlias = Callable[[HTTPConnection], "Principal | None"]
"""An application's own authentication: returns the principal of a request, or None to let tokens decide."""


class _Entry(BaseModel):
    """One token of RQSCHED_TOKENS."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=1, max_length=255)]
    role: Literal["read", "operate", "admin"]
    namespaces: Literal["*"] | list[str] | None = None
    """The namespaces that the token may see: None for the default of the settings, `*` for all."""
    token: Annotated[str, Field(min_length=16)] | None = None
    token_sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None

    @field_validator("namespaces", mode="before")
    @classmethod
    def _may_exist(cls, value: object) -> object:
        if value is None or value == "*":
            return value
        if not isinstance(value, list):
            raise ValueError('write a list of names, or "*" for all')  # noqa: TRY004 - pydantic reports ValueErrors
        if not value:
            raise ValueError("name one at least; without any the token sees nothing")
        if "*" in value:
            raise ValueError('"*" stands alone for all namespaces; write "namespaces": "*"')
        for name in value:
            if not is_id(name):
                raise ValueError(
                    f"{name!r:.300} could never exist; use A-Z a-z 0-9 . _ : -, a letter or digit first, 255 at most"
                )
        return value

    @model_validator(mode="after")
    def _has_one_secret(self) -> _Entry:
        if (self.token is None) == (self.token_sha256 is None):
            raise ValueError("give token_sha256 or token, not both")
        return self

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.token_sha256) if self.token_sha256 else _digest(self.token or "")

    def principal(self, default: str) -> Principal:
        seen = [default] if self.namespaces is None else self.namespaces
        return Principal(self.name, Role[self.role.upper()], None if seen == "*" else frozenset(seen))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class Tokens:
    """The configured tokens, as digests."""

    def __init__(self, entries: Sequence[tuple[bytes, Principal]] = ()) -> None:
        self._entries = tuple(entries)

    @classmethod
    def of(cls, settings: Settings) -> Tokens:
        """Read the tokens of the settings; raises ConfigError, which names the entry and never its value."""
        if settings.tokens is None:
            return cls()
        try:
            entries = [_entry(number, raw) for number, raw in enumerate(json.loads(settings.tokens.get_secret_value()))]
        except json.JSONDecodeError:
            raise ConfigError("RQSCHED_TOKENS is not valid JSON; write a JSON list.") from None
        return cls([(entry.digest, entry.principal(settings.namespace)) for entry in entries])

    def __bool__(self) -> bool:
        """Whether any token is configured."""
        return bool(self._entries)

    def entries(self) -> Sequence[tuple[bytes, Principal]]:
        """Return the digest and the principal of each token."""
        return self._entries

    def find(self, secret: str) -> Principal | None:
        """Return the principal of a secret, or None. All entries are compared, so that timing reveals no match."""
        digest, found = _digest(secret), None
        for known, principal in self._entries:
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def _entry(number: int, raw: Any) -> _Entry:
    try:
        return _Entry.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"RQSCHED_TOKENS[{number}]{'.' + where if where else ''}: {reason}.") from None


class Authenticator:
    """Finds the principal of a request: by the application's own rule, by token, or by the address of this machine."""

    def __init__(
        self, tokens: Tokens, authenticate: Authenticate | None = None, failures: TokenBuckets | None = None
    ) -> None:
        self.tokens = tokens
        self._authenticate = authenticate
        self._failures = failures

    def principal_of(self, connection: HTTPConnection) -> Principal:
        """Return the principal of a request. It is determined only once for each request.

        Raises UnauthorizedError or ForbiddenError.
        """
        found: Principal | None = connection.scope.get(PRINCIPAL)
        if found is None:
            found = connection.scope[PRINCIPAL] = self._find(connection)
        return found

    def _find(self, connection: HTTPConnection) -> Principal:
        if self._authenticate is not None and (principal := self._authenticate(connection)) is not None:
            return principal
        if self.tokens:
            scheme, _, secret = connection.headers.get("authorization", "").partition(" ")
            principal = self.find(secret, connection) if scheme.lower() == "bearer" else None
            if principal is None:
                raise UnauthorizedError
            return principal
        if self._authenticate is not None:
            raise UnauthorizedError
        _require_local(connection)
        return LOCAL

    def find(self, secret: str, connection: HTTPConnection) -> Principal | None:
        """Return the principal of a secret, or None. Raises RateLimitedError for an address with too many wrong tries.

        A known secret is always accepted, because clients behind a proxy may share an address with the attacker.
        """
        principal = self.tokens.find(secret.strip())
        if principal is None and self._failures is not None:
            self._failures.take(connection.client.host if connection.client else "")
        return principal


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback interface."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = address_in(name)
    return address is not None and address.is_loopback


def _require_local(connection: HTTPConnection) -> None:
    """Refuse peers on other machines, and web pages of other sites in a local browser (rebinding, cross-site forms)."""
    if any(_FORWARDED.fullmatch(name) for name in connection.headers):
        raise ForbiddenError("a proxy forwards this request, so it may come from anywhere; set RQSCHED_TOKENS.")
    peer = connection.client.host if connection.client else ""
    if address_in(peer) is not None and not is_loopback(peer):
        raise ForbiddenError("no token is configured, so only this machine may connect; set RQSCHED_TOKENS.")
    host = _HOST.fullmatch(connection.headers.get("host", ""))
    if host is None or not is_loopback(host["name"]):
        raise ForbiddenError("no token is configured, so only loopback host names are accepted; set RQSCHED_TOKENS.")
    if connection.scope["method"] not in SAFE_METHODS and _is_cross_site(connection):
        raise ForbiddenError("a page of another site may not make changes; use those of this server.")


def _is_cross_site(connection: HTTPConnection) -> bool:
    if connection.headers.get("sec-fetch-site", "none") in {"cross-site", "same-site"}:
        return True
    origin = connection.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != connection.headers.get("host")


UNIX = "unix"
"""The entry that means all peers on a UNIX socket, because these peers have no address."""
Address = IPv4Address | IPv6Address


class TrustedProxies:
    """The proxies of one application."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(network) for network in networks if network != UNIX]
        self._trusts_unix = UNIX in networks

    def look_through(self, scope: Scope) -> Scope:
        """Return the request's scope. If the peer is a trusted proxy, replace the proxy's address by the client's.

        X-Forwarded-For is read backwards, because the nearest proxy writes at its end. The first address that is not a
        trusted proxy's is the client. X-Forwarded-Proto says whether the client used HTTPS. X-Forwarded-Prefix is the
        path below which the proxy serves the application. If this prefix collides with a path of rqsched, it is not
        applied, but stored in the scope, and the guard refuses the request.
        """
        host = scope["client"][0] if scope.get("client") else ""
        peer = address_in(host)
        if not (self._trusts(peer) if peer else self._trusts_unix and not host):
            return scope
        headers = Headers(scope=scope)
        scheme = headers.get("x-forwarded-proto", "").strip().lower()
        hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
        root, path = str(scope.get("root_path", "")), str(scope["path"])
        prefix = headers.get("x-forwarded-prefix", "").rstrip("/")
        is_refused = not root and collides(prefix)
        if not root and _PREFIX.fullmatch(prefix) and not is_refused:
            root, path = prefix, path if is_below(path, prefix) else prefix + path
        return {
            **scope,
            REFUSED_PREFIX: prefix if is_refused else None,
            "root_path": root,
            "path": path,
            "client": (str(self._client(peer, hops) or ""), 0),
            "scheme": scheme if scheme in {"http", "https"} else scope["scheme"],
        }

    def _client(self, peer: Address | None, hops: Sequence[str]) -> Address | None:
        for hop in reversed(hops):
            address = address_in(hop.strip())
            if address is None:  # the hops before an unreadable one may be forged
                break
            peer = address
            if not self._trusts(peer):
                break
        return peer

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def address_in(text: str) -> Address | None:
    """Read an IP address with or without a port; None for anything else."""
    host = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    if host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
