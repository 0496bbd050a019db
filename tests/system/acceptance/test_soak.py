"""The soak in its short form: `make soak` is the same for as long as you like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.soak.play import Plan, soak

PLAN = Plan(minutes=0.25, kills=20, schedules=20, workers=2, seed=20)


@pytest.mark.acceptance
@pytest.mark.postgres
@pytest.mark.timeout(400)
def test_nothing_is_lost_or_doubled_while_everything_is_killed(tmp_path: Path) -> None:
    report = soak(PLAN, tmp_path)

    report.assert_clean()
    assert sum(report.disasters.values()) >= PLAN.kills / 2, "the disasters struck nobody"
    assert report.fired >= PLAN.schedules / 2, "hardly anything fired"
    assert report.attempts >= report.runs["succeeded"]
