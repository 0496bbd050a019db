"""The benchmark of one step gives a ratio to croniter for each kind of expression; it runs as a plain script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.acceptance
@pytest.mark.nightly
def test_the_benchmark_prints_one_json_object_of_medians_and_ratios() -> None:
    command = [sys.executable, "benchmarks/next_after.py", "--rounds", "2", "--count", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    report = json.loads(done.stdout)
    assert report["parameters"]["count"] == 3
    for kind in report["kinds"].values():
        assert kind["rqsched"]["median_us"] > 0
        assert kind["croniter"]["p95_us"] > 0
        assert kind["ratio"] > 0
    assert report["excluded"]["ratio"] > 0
    assert report["moved"]["next_ratio"] > 0
    assert report["moved"]["previous_ratio"] > 0
