"""The dashboard: what each page costs as the tables grow, as a ratio to the smallest size.

    python -m benchmarks.dashboard --smallest 1000 --largest 100000 --runs 10 --rounds 15
    python -m benchmarks.dashboard --smallest 5000 --largest 100000 --runs 8 --rounds 15

The first command compares a world of 100 000 schedules and 1 000 000 runs with a world of 1 000 and 10 000, on
PostgreSQL and SQLite. The second compares 100 000 schedules and 800 000 runs with 5 000 and 40 000. Each world has its
own `rqsched web`. Every page is read over HTTP, from the two worlds in turn. There are four aims:

- The ratio of the two worlds is at most 1.5.
- The median of the first byte of each page is at most 150 ms.
- The first byte comes within 300 ms in 95 of 100 reads. `slow` names the pages that miss an aim of time.
- A page, its style sheet and its script have at most 150 KB together.

A page that searches looks at up to 5 000 failures or events, of which the smaller world has 100 and 1 000. So its
ratio is to the page over as few schedules and runs with as many failures and events as it looks at;
`ratio_to_less_to_search` is that to the smaller world.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from redis import Redis

from benchmarks.lab import DATABASES, Lab, arguments, lab, ratio, report, summary
from benchmarks.processes import environment
from benchmarks.world import GROUP, World
from rqsched import Scheduler
from rqsched.config import Settings
from rqsched.kernel.queries.run_pages import MOST_LOOKED_AT
from tests.support.processes import rqsched_command, running, wait_until
from tests.support.servers import free_port

PAGES = {
    "overview": "/",
    **{f"schedules_by_{order}": f"/schedules?sort={order}" for order in ("id", "next", "newest")},
    **{
        f"schedules_{name}_by_{order}": f"/schedules?sort={order}&{query}"
        for name, query in {
            "paused": "status=paused",
            "dead": "status=dead",
            "failed": "outcome=failed",
            "workflow": "workflow=workflow-3",
            "rare_workflow": "workflow=rare",
            "label": "label=team:3",
            "rare_label": "label=team:rare",
            "text": "q=-3",
            "rare_text": "q=rare",
        }.items()
        for order in ("id", "newest")
    },
    "schedule": "/schedules/{schedule}",
    "run": "/runs/{run}",
    "timeline": "/timeline",
    "timeline_of_a_week": "/timeline?hours=168",
    "workers": "/system",
    "runs": "/runs",
    **{
        f"runs_{name}": f"/runs?{query}"
        for name, query in {
            "failed": "status=failures&within=24h",
            "blocked": "status=blocked",
            "in_line": "status=in_line",
            "queued": "status=queued",
            "workflow": "workflow=workflow-3",
            "rare_workflow": "workflow=rare",
            "of_a_schedule": "schedule={schedule}",
            "text": "q=usual",
            "rare_text": "q=rare",
        }.items()
    },
    "limits": "/limits",
    "limit": f"/limits/{GROUP}",
    "calendars": "/calendars",
    "audit": "/audit",
    **{
        f"audit_{name}": f"/audit?{query}"
        for name, query in {
            "person": "who=person-3",
            "rare_person": "who=rare",
            "action": "action=ScheduleCreated",
            "of_a_schedule": "schedule={schedule}",
            "within": "within=7d",
        }.items()
    },
    **{
        f"find_{name}": f"/find?q={text}"
        for name, text in {"text": "-3", "rare_text": "rare", "action": "pause+-3"}.items()
    },
}
"""The pages by name; half-way through a world lies the schedule and its run."""
SEARCHES = frozenset(name for name in PAGES if name.startswith(("runs_text", "runs_rare_text", "audit")))
"""Pages that search all failures, or all events with a principal, up to a bound."""
Read = tuple[float, float, int]
"""Milliseconds to the first byte of a page and to its last, and its bytes."""
_SOON = {"median": 150, "p95": 300}
"""The most milliseconds to the first byte of a page."""
_AIM = {"ratio": 1.5, "first_byte_ms": _SOON, "kilobytes": 150}


@dataclass
class Site:
    """A web process over a database of one size."""

    client: httpx.Client
    pages: dict[str, str]

    def read(self, page: str) -> Read:
        """Read a page; returns milliseconds to its first byte and to its last, and its bytes."""
        started = time.perf_counter()
        with self.client.stream("GET", self.pages[page]) as answer:
            first = time.perf_counter()
            size = sum(len(chunk) for chunk in answer.iter_raw())
            assert answer.status_code == 200, (page, answer.status_code)
        return (first - started) * 1000, (time.perf_counter() - started) * 1000, size

    def assets(self) -> int:
        """Return the bytes of the style sheet and the script, which a browser reads once."""
        return sum(len(self.client.get(f"/static/{name}").content) for name in ("app.css", "app.js", "icon.svg"))


def build(place: Lab, kind: str, world: World, number: int, stack: ExitStack) -> Site:
    url, redis = place.database_url(kind), f"{place.valkey.url.rpartition('/')[0]}/{number}"
    Redis.from_url(redis).flushdb()
    started = time.perf_counter()
    with Scheduler(settings=Settings(database_url=url, redis_url=redis)) as scheduler:
        run = world.build(scheduler)
    print(f"{kind}, {world.schedules}: written in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    port = free_port()
    env = {**environment(place, url), "RQSCHED_REDIS_URL": redis}
    log = place.folder / f"web-{kind}-{number}.log"
    process = stack.enter_context(running(rqsched_command("web", "--port", str(port)), log_path=log, env=env))
    process.wait_for_log(str(port), timeout=60)
    client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120))
    wait_until(lambda: _answers(client), timeout=60, what="an answer of the web process")
    names = {"schedule": f"job-{world.schedules // 2}-{world.schedules // 2 % 10}", "run": run}
    return Site(client, {name: path.format(**names) for name, path in PAGES.items()})


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def measure(place: Lab, kind: str, sizes: tuple[int, int], runs: int, rounds: int) -> dict[str, dict[str, Any]]:
    now = datetime.now(UTC) - timedelta(minutes=1)
    small, large = (World(size, runs, now) for size in sizes)
    eventful = replace(small, events=-(-MOST_LOOKED_AT // small.schedules), failing_days=runs // 2)
    with ExitStack() as stack:
        sites = [build(place, kind, world, number, stack) for number, world in enumerate((small, large, eventful))]
        found = {page: [list[Read]() for _ in (sites if page in SEARCHES else sites[:2])] for page in PAGES}
        for number in range(-2, rounds):
            for page in PAGES:
                for site, samples in zip(sites, found[page], strict=False):
                    read = site.read(page)
                    if number >= 0:
                        samples.append(read)
        return {page: _figures(samples, sites[1].assets()) for page, samples in found.items()}


def _figures(samples: Sequence[Sequence[Read]], assets: int) -> dict[str, Any]:
    """Return the cost of a page over the smallest world, the largest, and the smallest with as much to search."""
    times = [[last for _, last, _ in some] for some in samples]
    firsts = [summary([first for first, _, _ in some]) for some in samples]
    to_less = {"ratio_to_less_to_search": ratio(times[1], times[0])} if len(samples) > 2 else {}
    names = "smallest", "largest", "smallest_with_as_much_to_search"
    return {
        "ratio": ratio(times[1], times[-1] if to_less else times[0]),
        **to_less,
        "first_byte_ms": dict(zip(names, firsts, strict=False)),
        "kilobytes": round((samples[1][0][2] + assets) / 1000, 1),
    }


def main() -> None:
    given = arguments(__doc__, smallest=1_000, largest=100_000, runs=10, rounds=15)
    sizes = given.smallest, given.largest
    with lab() as place:
        figures = {kind: measure(place, kind, sizes, given.runs, given.rounds) for kind in DATABASES}
    slow = {kind: [page for page, one in found.items() if _is_slow(one)] for kind, found in figures.items()}
    report("dashboard", vars(given), {**figures, "slow": slow, "aim": _AIM})


def _is_slow(figures: Mapping[str, Any]) -> bool:
    """Return whether the first byte of a page came later than the aim, at any size."""
    return any(one[name] > most for one in figures["first_byte_ms"].values() for name, most in _SOON.items())


if __name__ == "__main__":
    main()
