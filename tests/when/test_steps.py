"""Steps: the limit of a computation, and its end when no client waits any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import copy_context

import pytest

from rqsched.errors import InvalidInputError, TooMuchWorkError, WorkCancelledError
from rqsched.when.steps import MOST_STEPS, POLL_EVERY, Steps, answered, bounded, first_of, spend


def test_a_bound_refuses_the_first_step_beyond_it_and_names_the_limit() -> None:
    with bounded(Steps(3, field="exclude")) as steps:
        spend(3)
        with pytest.raises(TooMuchWorkError, match="exclude: needs more than 3 steps") as refused:
            spend()
    assert (refused.value.limit, refused.value.http_status, steps.taken) == (3, 422, 4)
    assert isinstance(refused.value, InvalidInputError)


def test_nothing_is_counted_outside_of_a_bound() -> None:
    with bounded(Steps(1)) as steps:
        pass
    spend(100)
    assert steps.taken == 0


def test_an_inner_bound_charges_the_one_around_it() -> None:
    with bounded(Steps(10)) as outer:
        for _ in range(2):
            with bounded(Steps(5)):
                spend(4)
        assert outer.taken == 8
        with bounded(Steps(5)), pytest.raises(TooMuchWorkError, match="more than 10 steps"):
            spend(3)


def test_nobody_who_waits_stops_the_work_also_without_a_limit() -> None:
    gone: list[int] = []
    with bounded(Steps(None, is_cancelled=lambda: bool(gone))):
        spend(10 * POLL_EVERY)
        gone.append(1)
        with pytest.raises(WorkCancelledError):
            spend(POLL_EVERY)


def test_a_question_has_another_answer_where_it_takes_too_many_steps() -> None:
    assert answered(len, "abc", otherwise=None) == 3
    assert answered(spend, MOST_STEPS + 1, otherwise="too much") == "too much"
    with bounded(Steps(None)) as around:
        assert answered(spend, MOST_STEPS + 1, otherwise="too much") == "too much"
    assert around.taken == MOST_STEPS + 1


def test_a_question_inside_of_a_bound_that_refuses_is_refused_by_it() -> None:
    with bounded(Steps(3)), bounded(Steps(None)), pytest.raises(TooMuchWorkError, match="more than 3 steps"):
        answered(spend, 4, otherwise=None)


def test_the_first_instants_are_those_found_in_the_steps() -> None:
    def instants() -> Iterator[int]:
        for number in range(5):
            spend(MOST_STEPS // 3)
            yield number

    assert first_of(instants()) == [0, 1, 2]
    assert first_of(range(3)) == [0, 1, 2]


def test_a_thread_in_a_copy_of_the_context_is_bound_too() -> None:
    with bounded(Steps(1)):
        context = copy_context()
    with pytest.raises(TooMuchWorkError):
        context.run(spend, 2)
