"""What marks tell: which side went back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.rollback_marks import Mark, WentBack, judge, parse_mark

BEGAN = datetime(2026, 1, 15, 12, tzinfo=UTC)


def line(count: int, *, after: Mark | None = None, since: int = 0) -> list[Mark]:
    """Marks of one database, the newest first, one each quarter of a minute."""
    marks = [] if after is None else [after]
    for number in range(since, since + count):
        parent = marks[-1].uid if marks else ""
        marks.append(Mark(new_uid(BEGAN + number * timedelta(seconds=15)), parent))
    return marks[::-1]


LINE = line(6)
NEWEST, OLDEST = LINE[0], LINE[-1]
BRANCH = line(2, after=LINE[3], since=7)
"""Marks of a copy that was made two passes before the newest mark."""
NEXT = Mark(new_uid(BEGAN + timedelta(minutes=2)), NEWEST.uid)
AFTER_NEXT = Mark(new_uid(BEGAN + timedelta(minutes=2, seconds=15)), NEXT.uid)
STRANGE = Mark(new_uid(BEGAN + timedelta(seconds=37)), new_uid(BEGAN))
FIRST = Mark(new_uid(BEGAN + timedelta(minutes=3)))
EARLY = Mark(new_uid(BEGAN - timedelta(hours=1)), new_uid(BEGAN - timedelta(hours=2)))
LATE = Mark(new_uid(BEGAN + timedelta(hours=1)), new_uid(BEGAN + timedelta(hours=1)))


@pytest.mark.parametrize(
    ("mark", "marks", "told"),
    [
        pytest.param(None, [], None, id="the first start"),
        pytest.param(NEWEST, [], None, id="a flushed Redis"),
        pytest.param(NEWEST, LINE, None, id="as it was left"),
        pytest.param(NEXT, LINE, None, id="a pass that died between SQL and Redis"),
        pytest.param(LINE[2], LINE, WentBack.SQL, id="SQL by two passes"),
        pytest.param(OLDEST, LINE, WentBack.SQL, id="SQL to the oldest mark that Redis has"),
        pytest.param(EARLY, LINE, WentBack.SQL, id="SQL to before all that Redis has"),
        pytest.param(None, LINE, WentBack.SQL, id="SQL to before its first mark"),
        pytest.param(AFTER_NEXT, LINE, WentBack.REDIS, id="Redis by two passes"),
        pytest.param(LATE, LINE, WentBack.REDIS, id="Redis by hours"),
        pytest.param(STRANGE, LINE, WentBack.TWO_DATABASES, id="a mark that Redis never had"),
        pytest.param(NEWEST, [*BRANCH[:2], *LINE], WentBack.TWO_DATABASES, id="a copy has gone on"),
        pytest.param(LINE[3], [*BRANCH[:2], *LINE], WentBack.SQL, id="SQL once more to where it was restored to"),
        pytest.param(NEXT, [*BRANCH[:2], *LINE], WentBack.TWO_DATABASES, id="both go on"),
        pytest.param(NEWEST, [FIRST, *LINE], WentBack.TWO_DATABASES, id="a copy from before the first mark"),
        pytest.param(LINE[2], [LATE, *LINE], WentBack.SQL, id="a line with a gap tells nothing of two"),
    ],
)
def test_marks_tell_which_side_went_back(mark: Mark | None, marks: list[Mark], told: WentBack | None) -> None:
    assert judge(mark, marks) is told


@pytest.mark.parametrize("mark", [NEWEST, OLDEST])
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert parse_mark(str(mark)) == mark
    assert BEGAN <= mark.at <= BEGAN + timedelta(minutes=2)
