"""A real Prometheus, and promtool; Debian's package `prometheus` has both."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.support.processes import SOON, start, wait_until
from tests.support.servers import free_port

_PATH = f"{os.environ.get('PATH', '')}:{sys.prefix}/prometheus/usr/bin"
PROMETHEUS, PROMTOOL = (shutil.which(name, path=_PATH) for name in ("prometheus", "promtool"))
"""None where they are not installed and `make prometheus` could not fetch them."""


class Prometheus(NamedTuple):
    """A server that scrapes one target every second."""

    url: str
    """The URL for queries."""

    def ask(self, query: str) -> list[float]:
        """Return the finite values of a query now."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=SOON)
        assert answer.status_code == 200, f"{query}: {answer.text}"
        found = (float(one["value"][1]) for one in answer.json()["data"]["result"])
        return [value for value in found if math.isfinite(value)]


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the `/metrics` of a server, as the job rqsched."""
    assert PROMETHEUS is not None
    jobs = [{"job_name": "rqsched", "static_configs": [{"targets": [target.removeprefix("http://")]}]}]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    command = [
        PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    process = start(command, log_path=folder / "prometheus.log", cwd=folder)
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: _is_ready(server), timeout=SOON, what=lambda: f"Prometheus:\n{process.log()}")
        yield server
    finally:
        process.kill_tree()


def _is_ready(server: Prometheus) -> bool:
    try:
        return httpx.get(f"{server.url}/-/ready", timeout=SOON).status_code == 200
    except httpx.TransportError:
        return False


def refuted(
    rules: Path, series: dict[str, float], firing: set[str], folder: Path, grows: Mapping[str, float] | None = None
) -> str:
    """Let promtool evaluate rules for two hours over constant series; return its report if not exactly `firing` fires.

    A series in `grows` grows by that value each minute. The report is empty if exactly the alerts in `firing` fire.
    """
    assert PROMTOOL is not None
    expected: list[dict[str, Any]] = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)]
    asked = {"expr": 'group by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "2h", "exp_samples": expected}
    steps = grows or {}
    values = [{"series": name, "values": f"{value:f}+{steps.get(name, 0)}x120"} for name, value in series.items()]
    test = {"interval": "1m", "input_series": values, "promql_expr_test": [asked]}
    whole = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yml").write_text(json.dumps(whole))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"
