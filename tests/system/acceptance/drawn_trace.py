"""`python -m tests.system.acceptance.drawn_trace docs/images/trace.svg`: one trace of a real flow, drawn.

An application triggers a run within the span of a request; a worker that forks for every run executes it: the first
attempt fails, the second names three targets. All export by OTLP to a receiver here, and what arrived is drawn.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from rqsched import Every, RetryPolicy, Scheduler
from tests.support.narrow import present
from tests.support.processes import BIN, Processes, wait_until
from tests.support.receiver import receiver
from tests.support.servers import valkey
from tests.support.spans import Seen, of_otlp
from tests.system.acceptance import invoices
from tests.system.acceptance.traced import set_up, tracer

_NAMES, _WIDTH, _ROW = 250, 900, 24
_FILLS = {"rqsched": "#3b6fd4", "error": "#c0392b", "application": "#8a94a6"}


def flow(folder: Path) -> list[Seen]:
    """Perform it; returns the spans of its trace."""
    with receiver(folder) as hook, valkey(folder) as server:
        environment = {
            "RQSCHED_DATABASE_URL": f"sqlite:///{folder}/rqsched.db",
            "RQSCHED_REDIS_URL": server.url,
            "RQSCHED_IMPORTS": "tests.system.acceptance.invoices",
            "RQSCHED_RUN_DIR": str(folder / "run"),
            "RQSCHED_OTEL": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": hook.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        processes = Processes(folder, environment)
        scheduler = Scheduler(database_url=environment["RQSCHED_DATABASE_URL"], redis_url=server.url, otel=True)
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = hook.url
        provider = set_up()
        retry = RetryPolicy(max_retries=1, base=timedelta(milliseconds=300))
        schedule = scheduler.create("nightly", invoices.invoice_sync, Every("24h"), retry=retry)
        try:
            processes.start([BIN / "rqsched", "worker"])
            wait_until(lambda: scheduler.runtime.transport.redis.keys("rq:worker:*"), what="a worker")
            with tracer.start_as_current_span("POST /invoices/sync"):
                run = present(schedule.trigger().run)
            wait_until(lambda: run.refresh().status == "succeeded", what="the run")
            provider.force_flush()

            def of_run() -> list[Seen]:
                found = [one for one in of_otlp(hook.got) if one.trace == present(run.traceparent).split("-")[1]]
                return found if sum(one.name.startswith("target") for one in found) == len(invoices.REGIONS) else []

            return wait_until(of_run, what="the spans")
        finally:
            processes.close()
            scheduler.close()


def draw(spans: list[Seen]) -> str:
    """Draw a trace: a row for each span, below the one that it belongs to."""
    begin, end = min(one.began for one in spans), max(one.ended for one in spans)
    per_ms = (_WIDTH - _NAMES - 90) / max(end - begin, 1e-9)
    rows = list(_in_order(spans, None, 0, {one.span for one in spans}))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_ROW * len(rows) + 30}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        "<title>One trace: a request, its trigger, two attempts of the run and three targets</title>",
        f'<rect width="{_WIDTH}" height="{_ROW * len(rows) + 30}" fill="#fff"/>',
    ]
    for number, (one, depth) in enumerate(rows):
        y, x = 8 + number * _ROW, _NAMES + (one.began - begin) * per_ms
        width = max((one.ended - one.began) * per_ms, 2)
        kind = "error" if one.is_error else "rqsched" if "messaging.system" in one.attributes else "application"
        told = f"{one.ended - one.began:.0f} ms" + (
            f", attempt {one.attributes[ATTEMPT]}" if ATTEMPT in one.attributes else ""
        )
        parts += [
            f'<text x="{8 + 14 * depth}" y="{y + 14}" fill="#223">{escape(one.name)}</text>',
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="14" rx="2" fill="{_FILLS[kind]}"/>',
            f'<text x="{x - 5:.1f}" y="{y + 14}" fill="#556" text-anchor="end">{told}</text>'
            if x + width > _WIDTH - 130
            else f'<text x="{x + width + 5:.1f}" y="{y + 14}" fill="#556">{told}</text>',
        ]
    axis = _ROW * len(rows) + 22
    parts += [f'<text x="{_NAMES}" y="{axis}" fill="#556">0</text>']
    parts += [f'<text x="{_WIDTH - 150}" y="{axis}" fill="#556">{end - begin:.0f} ms</text>', "</svg>"]
    return "\n".join(parts) + "\n"


ATTEMPT = "rqsched.run.attempt"


def _in_order(spans: list[Seen], parent: str | None, depth: int, known: set[str]) -> list[tuple[Seen, int]]:
    """Return spans below their parents, by when they began."""
    found: list[tuple[Seen, int]] = []
    for one in sorted(spans, key=lambda one: one.began):
        if one.parent == parent or (parent is None and one.parent not in known):
            found += [(one, depth), *_in_order(spans, one.span, depth + 1, known)]
    return found


def main() -> None:
    with TemporaryDirectory() as folder:
        Path(sys.argv[1]).write_text(draw(flow(Path(folder))))


if __name__ == "__main__":
    main()
