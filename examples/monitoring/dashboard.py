"""The dashboard of Grafana, made from code: `python examples/monitoring/dashboard.py` writes dashboard.json.

It writes the table of its panels at the end of README.md, too.

Import that file in Grafana, or provision it. Its panels ask for the metrics of one `rqsched web`; a test executes each
query in a real Prometheus that scrapes a real one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FILE, README = (Path(__file__).with_name(name) for name in ("dashboard.json", "README.md"))
HERE = '{namespace=~"$namespace"}'
"""The namespaces that are chosen at the top of the page."""


class Panel(NamedTuple):
    """One picture."""

    title: str
    queries: Sequence[tuple[str, str]]
    """Each query with its legend."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    about: str = ""
    red_from: float | None = None
    """The value from which on it is red."""


def _rate(metric: str, by: str, of: str = HERE) -> str:
    return f"sum by ({by}) (rate({metric}{of}[$__rate_interval]))"


def _quantiles(metric: str, by: str = "", shares: Sequence[float] = (0.5, 0.95)) -> list[tuple[str, str]]:
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return [
        (f"histogram_quantile({share}, {_rate(f'{metric}_bucket', labels)})", f"{legend}p{share * 100:g}")
        for share in shares
    ]


def _problem(title: str, query: str, about: str, *, red_from: float = 1, unit: str = "short") -> Panel:
    """Return a number that is 0 while all is well; a series of nothing is absent."""
    return Panel(title, [(f"{query} or vector(0)", "")], unit, "stat", 3, about, red_from)


ROWS: dict[str, Sequence[Panel]] = {
    "Is anything wrong?": (
        Panel("Backends that respond", [("sum(rqsched_up)", "")], "short", "stat", 3, "SQL and Redis: two."),
        Panel("Dispatchers", [("rqsched_dispatchers", "")], "short", "stat", 3, "None fires nothing."),
        _problem("Late", f"sum(rqsched_late{HERE})", "Schedules that should have fired."),
        _problem("Longest wait", "max(rqsched_queue_waiting_seconds)", "For a worker.", red_from=300, unit="s"),
        _problem("Blocked", f"sum(rqsched_runs_blocked{HERE})", "Runs whose code no worker had yet."),
        _problem("Failing", f"sum(rqsched_schedules_failing{HERE})", "Three runs in a row failed, or more."),
        _problem("Dead", f'sum(rqsched_schedules{HERE[:-1]}, status="dead"}})', "They fire no more."),
        _problem("No success in time", f"sum(rqsched_schedules_without_success{HERE})", "`expect_success_within`."),
        _problem("Long", f"sum(rqsched_runs_long{HERE})", "Runs that take longer than `expect_duration`."),
        _problem("Went back", "max(rqsched_went_back)", "SQL or Redis, or two databases write; within a day."),
        _problem("Everything frozen", "rqsched_all_frozen", "1: nothing begins."),
        _problem(
            "Notifications given up",
            f'sum(rqsched_notifications{HERE[:-1]}, status="failed"}})',
            "Within a day.",
        ),
    ),
    "Fires": (
        Panel("Fires by outcome", [(_rate("rqsched_fires_total", "outcome"), "{{outcome}}")], "ops"),
        Panel("Skips by reason", [(_rate("rqsched_skips_total", "reason"), "{{reason}}")], "ops"),
        Panel("Lateness of fires", _quantiles("rqsched_fire_lateness_seconds", shares=(0.5, 0.95, 0.99)), "s"),
    ),
    "Runs": (
        Panel("Ended by outcome", [(_rate("rqsched_runs_ended_total", "outcome"), "{{outcome}}")], "ops"),
        Panel("Open by status", [(f"sum by (status) (rqsched_runs_open{HERE})", "{{status}}")]),
        Panel("Ended by workflow", [(_rate("rqsched_run_duration_seconds_count", "workflow"), "{{workflow}}")], "ops"),
        Panel("Duration by workflow", _quantiles("rqsched_run_duration_seconds", "workflow"), "s", width=12),
        Panel("Lateness by workflow", _quantiles("rqsched_run_lateness_seconds", "workflow", (0.95,)), "s", width=12),
    ),
    "Queues": (
        Panel("Waiting by queue", [("rqsched_queue_waiting", "{{queue}}")]),
        Panel("The longest wait by queue", [("rqsched_queue_waiting_seconds", "{{queue}}")], "s"),
        Panel("Waits of ended runs by queue", _quantiles("rqsched_run_queue_wait_seconds", "queue"), "s"),
    ),
    "What is stored": (
        Panel("Schedules by status", [(f"sum by (status) (rqsched_schedules{HERE})", "{{status}}")]),
        Panel("Links that wait for their time", [("rqsched_links_scheduled", "links")]),
        Panel(
            "Redis",
            [
                ("rqsched_redis_memory_used_bytes", "used"),
                ("rqsched_redis_memory_limit_bytes", "limit, if there is one"),
            ],
            "bytes",
        ),
        Panel("The last pass of reconcile", [("rqsched_reconcile_last_seconds", "seconds")], "s", width=12),
        Panel(
            "Repaired by reconcile",
            [
                ("sum by (kind) (rate(rqsched_links_rearmed_total[$__rate_interval]))", "links: {{kind}}"),
                ("sum by (what) (rate(rqsched_repaired_total[$__rate_interval]))", "{{what}}"),
            ],
            "ops",
            width=12,
        ),
    ),
}
"""The panels in their order, from left to right and from top to bottom."""
_WIDTH, _HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana stores it."""
    return {
        "uid": "rqsched",
        "title": "rqsched",
        "tags": ["rqsched"],
        "timezone": "browser",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "namespace",
                    "label": "Namespace",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": "label_values(rqsched_schedules, namespace)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    top, number = 0, 0
    for title, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        left, top = 0, top + 1
        for panel in panels:
            number += 1
            height = _HEIGHT // 2 if panel.kind == "stat" else _HEIGHT
            if left + panel.width > _WIDTH:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            left += panel.width
        top += height


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, str | float | None]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """Return the dashboard as its file has it."""
    return json.dumps(dashboard(), indent=2) + "\n"


def table() -> str:
    """Return the panels as the end of README.md has them: the metrics of each."""
    rows = [
        f"| {row} | {panel.title} | {', '.join(f'`{name}`' for name in _metrics(panel))} |"
        for row, panels in ROWS.items()
        for panel in panels
    ]
    return "\n".join(["| row | panel | metrics |", "|---|---|---|", *rows]) + "\n"


def _metrics(panel: Panel) -> list[str]:
    found = (name for query, _ in panel.queries for name in re.findall(r"rqsched_\w+", query))
    return list(dict.fromkeys(name.removesuffix("_bucket") for name in found))


if __name__ == "__main__":
    FILE.write_text(text())
    README.write_text(README.read_text().partition("| row ")[0] + table())
