"""The soak in its short form: `make soak` is the same for as long as you like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.soak.play import Plan, soak
from tests.system.soak.turns import KINDS, TurnsPlan, play_turns

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


@pytest.mark.nightly
@pytest.mark.acceptance
@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_each_promotion_restore_and_copy_of_sql_does_no_more_than_its_replication_allows(tmp_path: Path) -> None:
    report = play_turns(TurnsPlan(turns=len(KINDS), schedules=10, workers=2, seed=20), tmp_path)

    report.assert_clean()
    assert [turn.name for turn in report.turns] == [*KINDS]
    assert all(turn.executed for turn in report.turns)
    assert report.turns[2].again + report.turns[2].refired > 0, "the standby lost nothing that it had not received"
