"""Processes beside this one: their answers in order, how they go on, and what they raise."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from rqsched.api.side_by_side import in_turn, side_by_side
from rqsched.errors import InvalidInputError, RqschedError


def square(number: int, advance: Callable[[int], None]) -> int:
    advance(number)
    return number * number


def refuse(number: int, advance: Callable[[int], None]) -> int:
    del advance
    raise InvalidInputError("number", f"{number} is refused")


def die(number: int, advance: Callable[[int], None]) -> int:
    del advance
    os._exit(number)


def test_answers_come_in_the_order_of_the_arguments_and_progress_is_told() -> None:
    told: list[int] = []
    with side_by_side(2) as mapped:
        assert [*mapped(square, range(7), told.append)] == [*in_turn(square, range(7), told.append)]
        assert [*mapped(square, [9], told.append)] == [81]
    assert sorted(told) == sorted([*range(7), *range(7), 9])


def test_what_a_process_raises_is_raised_here() -> None:
    with side_by_side(1) as mapped, pytest.raises(InvalidInputError, match="number: 3 is refused"):
        [*mapped(refuse, [3], print)]


def test_a_process_that_ends_by_itself_is_an_error_that_says_how() -> None:
    with side_by_side(2) as mapped, pytest.raises(RqschedError, match=r"has ended \(exit code 7\)"):
        [*mapped(die, [7], print)]
