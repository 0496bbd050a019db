"""HTTP: requests a second of one process, beside a bare FastAPI route that selects the same rows with SQLAlchemy.

    python -m benchmarks.http --schedules 1000 --requests 500 --rounds 5

A read of one schedule, a list of 50 (slim) and a create, over 50 connections that stay open, on PostgreSQL. Both
servers are one uvicorn process without an access log, and they are asked in turn. The bare route has no authentication,
no validation beyond its types, no error forms, no ETag, no Redis, and no response model: it hands what it read to
JSONResponse. Its create writes the same schedule and one audit event. The aim is at least 0.6 of it for get and list.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from benchmarks.lab import (
    START,
    Lab,
    alternate,
    analyse,
    arguments,
    fill,
    fire_all,
    lab,
    minutes,
    paired,
    report,
    summary,
)
from benchmarks.processes import environment
from rqsched import Cron
from rqsched.kernel.chain.runtime import Runtime
from rqsched.testing import ManualClock
from tests.support.processes import running, wait_until
from tests.support.servers import free_port

CONNECTIONS = 50
PAGE = 50
MINUTELY = Cron("* * * * *")
NEW = {"workflow": "benchmark-noop", "cron": "0 2 * * *"}


@dataclass(frozen=True)
class Site:
    """One server, and how its requests look."""

    port: int
    prefix: str
    page: str

    def get(self, number: int) -> bytes:
        """Give the request for one schedule."""
        return self._request("GET", f"{self.prefix}/s{number}{self.page and '/'}")

    def list(self) -> bytes:
        """Give the request for a page."""
        return self._request("GET", f"{self.prefix}{self.page or f'?limit={PAGE}'}")

    def create(self, name: str) -> bytes:
        """Give the request that creates a schedule."""
        body = json.dumps({"schedule_id": name, **NEW}).encode()
        path = f"{self.prefix}{self.page and '/'}"
        return self._request("POST", path, f"content-type: application/json\r\ncontent-length: {len(body)}\r\n") + body

    def _request(self, method: str, path: str, more: str = "") -> bytes:
        return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n{more}\r\n".encode()


async def ask(port: int, requests: Iterator[bytes], wanted: bytes) -> None:
    """Send requests over one connection, each when the last is answered; a client that does as little as it can."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    for request in requests:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(wanted, 9):
            raise RuntimeError(head.decode())
        _, _, rest = head.lower().partition(b"content-length:")
        await reader.readexactly(int(rest.partition(b"\r\n")[0]))
    writer.close()


async def ask_all(port: int, requests: Iterator[bytes], wanted: bytes) -> float:
    """Send requests over all connections; returns seconds."""
    started = time.perf_counter()
    await asyncio.gather(*(ask(port, requests, wanted) for _ in range(CONNECTIONS)))
    return time.perf_counter() - started


def rates(site: Site, schedules: int, requests: int, names: Iterator[int]) -> dict[str, Callable[[], float]]:
    """Give what measures each operation, in requests a second."""

    def measure(make: Callable[[int], bytes], wanted: bytes = b"200") -> float:
        return requests / asyncio.run(ask_all(site.port, map(make, range(requests)), wanted))

    return {
        "get": lambda: measure(lambda number: site.get(number % schedules)),
        "list": lambda: measure(lambda _: site.list()),
        "create": lambda: measure(lambda _: site.create(f"new-{next(names)}"), b"201"),
    }


@contextmanager
def serving(place: Lab, runtime: Runtime, kind: str) -> Iterator[Site]:
    port = free_port()
    url = runtime.settings.database_url or ""
    words = [sys.executable, "-m", "benchmarks.http_servers", kind, str(port), url, runtime.settings.redis_url or ""]
    if kind == "ours":
        site = Site(port, "/api/v1/schedules", f"/?limit={PAGE}&fields=summary")
    else:
        site = Site(port, "/schedules", "")
    with running(words, log_path=place.folder / f"{kind}.log", env=environment(place, url)) as process:
        wait_until(lambda: answers(site), timeout=60, what=f"{kind}:\n{process.log()}")
        yield site


def answers(site: Site) -> bool:
    try:
        asyncio.run(ask(site.port, iter([site.get(0)]), b"200"))
    except (OSError, EOFError):
        return False
    return True


def main() -> None:
    given = arguments(__doc__, schedules=1_000, requests=500, rounds=5)
    clock, names = ManualClock(START), count()
    with lab() as place, place.runtime("postgres", clock) as runtime:
        fill(runtime, given.schedules, MINUTELY)
        clock.advance(minutes(1))
        fire_all(runtime, given.schedules)  # each has a newest run, as schedules have
        runtime.record_workflows()
        analyse(runtime)
        with serving(place, runtime, "ours") as ours, serving(place, runtime, "bare") as bare:
            sides = {
                kind: rates(site, given.schedules, given.requests, names)
                for kind, site in {"ours": ours, "bare": bare}.items()
            }
            found = {
                name: alternate(given.rounds + 1, {kind: sides[kind][name] for kind in sides}) for name in sides["ours"]
            }
    found = {
        name: {kind: one[1:] for kind, one in samples.items()} for name, samples in found.items()
    }  # the first warms
    report(
        "http",
        {**vars(given), "connections": CONNECTIONS, "page": PAGE},
        {
            "per_second": {
                name: {kind: summary(one) for kind, one in samples.items()} for name, samples in found.items()
            },
            "ratio": {name: paired(samples["ours"], samples["bare"]) for name, samples in found.items()},
            "aim": "get and list: at least 0.6",
        },
    )


if __name__ == "__main__":
    main()
