"""A call that may be repeated: attempts, their start, and the next server."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import monotonic

import pytest
import tenacity

from rqsched.kernel.patience import call_patiently


class Calls:
    """A function that fails as often as it is told, and remembers when it was called."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.at: list[float] = []

    def __call__(self) -> int:
        self.at.append(monotonic())
        if self.failures:
            raise self.failures.pop(0)
        return len(self.at)


def loop(attempts: int = 3, *, stop: Callable[[tenacity.RetryCallState], bool] | None = None) -> tenacity.Retrying:
    return tenacity.Retrying(
        stop=stop or tenacity.stop_after_attempt(attempts),
        wait=tenacity.wait_none(),
        retry=tenacity.retry_if_exception_type(OSError),
        reraise=True,
    )


def test_what_succeeds_is_called_once() -> None:
    assert call_patiently(loop(), calls := Calls()) == 1
    assert len(calls.at) == 1


def test_first_failure_counts_as_an_attempt() -> None:
    failures = [OSError("first"), OSError("second"), OSError("third")]
    calls = Calls(*failures)
    with pytest.raises(OSError, match="second"):
        call_patiently(loop(attempts=2), calls)
    assert len(calls.at) == 2


def test_what_may_pass_is_called_again() -> None:
    assert call_patiently(loop(), Calls(OSError(), OSError())) == 3


def test_another_function_may_take_over() -> None:
    first, again = Calls(OSError("lost"), OSError("never seen")), Calls(OSError())
    assert call_patiently(loop(), first, again) == 2
    assert (len(first.at), len(again.at)) == (1, 2)


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()], ids=["an error", "an interrupt"])
def test_what_will_not_pass_is_raised_as_it_is(error: BaseException) -> None:
    def call() -> None:
        calls.append(None)
        raise error

    calls: list[None] = []
    with pytest.raises(type(error)) as caught:
        call_patiently(loop(), call)
    assert caught.value is error
    assert len(calls) == 1


def test_time_runs_since_the_first_call_began() -> None:
    began: list[float] = []

    def is_over(state: tenacity.RetryCallState) -> bool:
        began.append(state.start_time)
        return False

    calls = Calls(OSError(), OSError())
    call_patiently(loop(stop=is_over), calls)
    assert len(began) == 2
    assert max(began) <= calls.at[0]


class Lost:
    """Something that a failed call had opened."""


def test_what_a_failed_call_held_is_let_go_before_the_next() -> None:
    held: list[weakref.ref[Lost]] = []

    def call() -> int:
        if held:
            return sum(one() is not None for one in held)
        lost = Lost()
        held.append(weakref.ref(lost))
        raise OSError

    assert call_patiently(loop(), call) == 0
