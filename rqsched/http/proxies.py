"""Proxies that RQSCHED_TRUSTED_PROXIES names: what they say of who asks is believed, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import Scope

UNIX = "unix"
"""What names every peer on a UNIX socket: it has no address."""
Address = IPv4Address | IPv6Address


class TrustedProxies:
    """The proxies of one application."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(network) for network in networks if network != UNIX]
        self._trusts_unix = UNIX in networks

    def look_through(self, scope: Scope) -> Scope:
        """Return the scope of a request as its client sent it, where its peer is a trusted proxy; else as it is.

        X-Forwarded-For is read from its end, where the nearest proxy wrote, up to the first address that is not a
        trusted proxy's. X-Forwarded-Proto says whether the client came by HTTPS.
        """
        host = scope["client"][0] if scope.get("client") else ""
        peer = address_in(host)
        if not (self._trusts(peer) if peer else self._trusts_unix and not host):
            return scope
        headers = Headers(scope=scope)
        scheme = headers.get("x-forwarded-proto", "").strip().lower()
        hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
        return {
            **scope,
            "client": (str(self._client(peer, hops) or ""), 0),
            "scheme": scheme if scheme in {"http", "https"} else scope["scheme"],
        }

    def _client(self, peer: Address | None, hops: Sequence[str]) -> Address | None:
        for hop in reversed(hops):
            address = address_in(hop.strip())
            if address is None:  # nobody knows who wrote what stands before it
                break
            peer = address
            if not self._trusts(peer):
                break
        return peer

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def address_in(text: str) -> Address | None:
    """Read an address, which may have a port; None for anything else."""
    host = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    if host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
