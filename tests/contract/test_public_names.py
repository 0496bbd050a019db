"""The names code outside this repository imports: adding one is a decision, removing one breaks somebody."""

from __future__ import annotations

from pathlib import Path

import rqsched

PUBLIC_NAMES = {
    "CommandContext",
    "Cron",
    "Every",
    "Once",
    "OverlapPolicy",
    "RetryPolicy",
    "RqschedError",
    "RunCancelled",
    "Scheduler",
    "Spec",
    "current_run",
    "workflow",
}


def test_the_public_names_are_exactly_these() -> None:
    assert set(rqsched.__all__) == PUBLIC_NAMES


def test_every_public_name_exists_and_says_what_it_is() -> None:
    undocumented = [name for name in PUBLIC_NAMES if not getattr(rqsched, name).__doc__]
    assert undocumented == []


def test_the_package_ships_its_types() -> None:
    assert (Path(rqsched.__file__).parent / "py.typed").exists()
