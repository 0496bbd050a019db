"""A table in one test fails as a test a row would."""

from __future__ import annotations

import pytest

from tests.support.rows import every_row


def check(numbers: list[int], seen: list[int]) -> None:
    with every_row() as row:
        for number in numbers:
            with row(f"row {number}"):
                seen.append(number)
                assert number == 2, "odd"


def test_every_row_is_checked_and_all_that_fail_are_told() -> None:
    seen: list[int] = []
    with pytest.raises(AssertionError, match=r"(?s)2 rows fail\nrow 1: odd.*row 3: odd"):
        check([1, 2, 3], seen)

    assert seen == [1, 2, 3]


def test_rows_that_all_hold_pass() -> None:
    check([2, 2], [])
