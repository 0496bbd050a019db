"""The lines of a simulated group: when grants that nobody claims are looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rqsched.features.limits.decide import GRANT_LIFE, Bounds
from rqsched.simulate.lines import GroupLine
from tests.support.decisions import run
from tests.support.env import NOON, SECOND


def test_a_grant_that_grows_old_before_the_planned_look_brings_the_look_forward() -> None:
    group, state = GroupLine(Bounds(2)), SimpleNamespace(given=SimpleNamespace(queue="default"))
    for number, passed_count, granted_at in ((1, 1, NOON), (2, 0, NOON + 10 * SECOND)):
        fields: dict[str, Any] = {
            "limit_group": "g",
            "limit_at": NOON,
            "granted_at": granted_at,
            "passed_count": passed_count,
        }
        one = run(number, "pending", **fields)
        group.move(one, state, granted_at)
        at = group.next_look(granted_at, [one.uid])
        group.look_at = at if at is not None else group.look_at

    assert group.look_at == NOON + 10 * SECOND + GRANT_LIFE, "the first grant is kept twice as long"
