"""Each feature can be removed: without its folder and its line in `features/list.py` the kernel does all its work.

This is a test and no configuration. Columns, tables, the migration and the types of options stay. A product has every
feature, because the list is code: a process that cannot import one of them does not start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from redis import Redis

from tests.contract.test_layers import own_imports
from tests.support.life import LIVED
from tests.support.removal import FEATURES, NEEDS, feature_of

GONE = {
    "after": "after",
    "backfill": "backfill",
    "bulk": "",
    "calendars": "calendars",
    "declarations": "",
    "external": "",
    "fan_out": "fan_out limits retry_on_request backfill",
    "freeze": "",
    "hours": "hours pruning",
    "limits": "limits fan_out retry_on_request backfill",
    "namespaces": "",
    "notifications": "notifications",
    "pruning": "pruning",
    "quotas": "quotas",
    "retry_on_request": "retry_on_request backfill",
    "run_again": "",
    "tracing": "",
}
"""Feature: the features whose lines leave the list with it, because they import it; an empty text if it has no line."""
ON_PURPOSE = {
    "tests/kernel/chain/test_unexecuted_results.py::"
    "test_generator_names_targets_and_a_target_that_yields_fails_without_retries": "fan_out",
    **{
        f"tests/kernel/chain/test_reconcile_passes.py::{name}": "backfill"
        for name in (
            "test_an_interrupted_backfill_is_continued",
            "test_each_chunk_of_a_resumed_backfill_is_a_batch_of_its_own",
            "test_full_pass_records_that_redis_holds_everything_before_it_continues_a_backfill",
        )
    },
}
"""Test of the kernel: the feature that it uses on purpose, although it calls no function of it."""
ALL = ",".join(FEATURES)


def _live(removed: str, database_url: str, redis_url: str) -> tuple[object, list[str]]:
    """Live a life without these features; returns its report, and the features whose lines were left out."""
    command = [sys.executable, "-m", "tests.support.removal", removed, "tests.support.life", database_url, redis_url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lived, gone = map(json.loads, done.stdout.splitlines())
    return lived, gone


@pytest.mark.parametrize("feature", FEATURES)
def test_schedule_fires_fails_retries_and_ends_without_a_feature(
    feature: str, sqlite_url: str, redis: Redis, redis_url: str
) -> None:
    assert _live(feature, sqlite_url, redis_url) == (LIVED, sorted(GONE[feature].split()))


def test_schedule_fires_fails_retries_and_ends_without_any_feature(database_url: str, redis_url: str) -> None:
    gone = {*" ".join(GONE.values()).split()}
    assert _live(ALL, database_url, redis_url) == (LIVED, sorted(gone))


def test_only_surfaces_name_a_feature() -> None:
    """The table can only shrink; `list.py` is the place where kernel and features meet."""
    found = defaultdict[str, set[str]](set)
    for one in own_imports():
        feature = feature_of(one.target)
        if feature is not None and not one.source.startswith("rqsched.features."):
            found[feature].add([*one.source.split("."), "__init__"][1])
    assert {feature: " ".join(sorted(parts)) for feature, parts in found.items()} == NEEDS


def test_product_without_the_folder_of_a_feature_does_not_start() -> None:
    code = "import sys; sys.modules['rqsched.features.quotas.chain'] = None; from rqsched.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "worker"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "rqsched.features.quotas.chain" in done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("feature", FEATURES)
def test_tests_of_the_kernel_pass_without_a_feature(feature: str) -> None:
    """The others are skipped: they call the feature, or are named above."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.support.removal",
        "-m",
        "not nightly and not postgres",
    ]
    deselected = [
        f"--deselect={test}" for test, used in ON_PURPOSE.items() if used in {feature, *GONE[feature].split()}
    ]
    done = subprocess.run(
        [*command, *deselected, "tests/kernel"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "WITHOUT": feature},
    )
    assert done.returncode == 0, done.stdout
