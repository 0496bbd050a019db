"""Every benchmark runs at a tiny size, so that none rots; figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES

ROOT = Path(__file__).parents[3]
TINY = {
    "bloat": ["--minutes", "0.1", "--schedules", "3", "--every", "1", "--keep", "2"],
    "create": ["--count", "3", "--declared", "5", "--own", "3", "--rounds", "1"],
    "dashboard": ["--smallest", "5", "--largest", "20", "--runs", "2", "--rounds", "1"],
    "failover": ["--rounds", "1", "--peer", "0", "--warmup", "3", "--settle", "1"],
    "fan_out": ["--targets", "5", "--workers", "1", "--rounds", "1"],
    "fires": ["--links", "20", "--jobs", "5", "--rounds", "1"],
    "growth": ["--smallest", "10", "--largest", "30", "--runs", "4", "--rounds", "1"],
    "herd": ["--schedules", "20", "--executed", "3", "--rounds", "1"],
    "http": ["--schedules", "60", "--requests", "60", "--rounds", "1"],
    "lateness": ["--seconds", "3", "--schedules", "2", "--every", "1", "--warmup", "3", "--crowd", "2"],
    "limits": ["--runs", "4", "--runners", "1", "--clients", "2", "--rounds", "1"],
    "memory": ["--schedules", "50", "--fires", "10", "--peer", "10"],
    "next_after": ["--rounds", "1", "--count", "2"],
    "pruning": ["--schedules", "5", "--runs", "3", "--rounds", "1"],
    "recover": ["--schedules", "30", "--rounds", "1"],
    "run_cost": ["--runs", "3"],
    "runs": ["--forked", "3", "--simple", "5", "--rounds", "1"],
    "simulate": ["--schedules", "20", "--days", "3"],
    "startup": ["--rounds", "1", "--started", "1"],
    "worker_memory": ["--concurrency", "1", "--runs", "2", "--workers", "2"],
    "scale": ["--smallest", "2", "--largest", "200", "--rounds", "1"],
}


@pytest.mark.acceptance
@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_one_json_object(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *TINY[name]], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["cores"] >= 1
