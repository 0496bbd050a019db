"""The table of docs/comparison.md, from the raw results alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.peers.count import Counted, Window, count, percentile
from tests.support.processes import REPOSITORY

RESULTS = Path(__file__).parent / "results"
PAGE = REPOSITORY / "docs" / "comparison.md"
PART = re.compile(r"(<!-- faults: begin -->\n).*?(<!-- faults: end -->)", re.DOTALL)
COLUMNS = {
    "kills": "ten kills of the scheduler",
    "emptied": "Redis emptied",
    "second": "a second scheduler",
    "down": "all down for 2 min",
    "deployment": "a deployment",
}


def newest() -> dict[str, Any]:
    """Return the newest results."""
    found: dict[str, Any] = json.loads(max(RESULTS.glob("*.json")).read_text())
    return found


def counted(window: dict[str, Any], every: float) -> Counted:
    """Count one window of the raw results."""
    runs = [(began, due[0] if due else None) for began, *due in window["runs"]]
    down = tuple(window["down"]) if window["down"] else None
    return count(Window(runs, window["length"], every, window["phase"], down))


def render(results: dict[str, Any]) -> str:
    """Return the table, and a line on when and where it was measured, as Markdown."""
    every = results["parameters"]["every"]
    first = results["setups"][0]["windows"]
    heads = [f"{text} ({counted(first[name], every).due} due)" for name, text in COLUMNS.items()]
    rows = [
        ["", "made up, by its docs", *heads, "p50/p99 of lateness when idle (ms)", "CPU when idle (%)", "memory (MB)"]
    ]
    for one in results["setups"]:
        setup, windows = one["setup"], one["windows"]
        title = f"{setup['name']}, hardened" if setup["variant"] == "hardened" else setup["name"]
        cells = [_cell(setup, windows, name, every) for name in COLUMNS]
        rows.append([title, setup["makes_up"], *cells, *_idle(setup, windows["idle"], every)])
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join([*lines, "", _circumstances(results), ""])


def _circumstances(results: dict[str, Any]) -> str:
    machine, (least, most) = results["machine"], results["load_average_during"]
    begin = f"Measured on {results['began_at'][:10]}, Python {machine['python']}, {machine['system']}"
    return f"{begin}, {machine['cores']} cores with a load average of {least:.0f} to {most:.0f}."


def _cell(setup: dict[str, Any], windows: dict[str, Any], fault: str, every: float) -> str:
    if fault not in windows:
        return "no Redis"
    if "error" in windows[fault]:
        return "failed"
    found = counted(windows[fault], every)
    text = f"{found.lost}/{found.doubled}"
    if fault == "second" and not setup["admits_second"]:
        return f"unsupported ({text})"
    return text if found.is_back else f"{text} not back"


def _idle(setup: dict[str, Any], window: dict[str, Any], every: float) -> list[str]:
    if "error" in window:
        return ["failed"] * 3
    late = counted(window, every).late
    shares = [percentile(late, share) for share in (0.5, 0.99)]
    text = "/".join("-" if value is None else f"{value * 1000:.0f}" for value in shares)
    return [text if setup["times"] else "no fixed times", f"{window['cpu_ms_per_s'] / 10:.1f}", f"{window['mib']:.0f}"]


def write_table(results: dict[str, Any]) -> None:
    """Put the table between its marks in the page."""
    table = render(results)
    PAGE.write_text(PART.sub(lambda found: f"{found[1]}{table}{found[2]}", PAGE.read_text()))
