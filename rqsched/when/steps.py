"""Steps: a bound on the work of a question about times, the same on every host, and a check that a caller still waits.

Each loop over days, spans of a zone, excluded stretches or instants calls `spend`. A step costs at most a few
microseconds of CPU. Outside `bounded` and `answered`, steps are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

from rqsched.errors import TooMuchWorkError, WorkCancelledError

T = TypeVar("T")
U = TypeVar("U")
Ts = TypeVarTuple("Ts")
MOST_STEPS = 100_000
"""The steps that a request may take to find out when a schedule fires: under a second of CPU."""
POLL_EVERY = 1_000
"""The number of steps between two checks that the caller still waits."""


class Steps:
    """A budget of steps, and a function that says whether the caller has stopped waiting.

    `most=None` sets no limit, for a caller that only wants to stop when its client disconnects. One object belongs to
    one thread at a time; `is_cancelled` is called in that thread and must be quick, such as `threading.Event.is_set`.
    """

    def __init__(
        self, most: int | None = MOST_STEPS, *, is_cancelled: Callable[[], bool] | None = None, field: str = "spec"
    ) -> None:
        self.most = most
        self.taken = 0
        self._is_cancelled = is_cancelled
        self._field = field
        self._outer: Steps | None = None
        self._poll_at = POLL_EVERY

    def spend(self, count: int = 1) -> None:
        """Take `count` steps, from the bound around this one too.

        Raises TooMuchWorkError when more than `most` are taken. Checks every POLL_EVERY steps whether the caller still
        waits, and raises WorkCancelledError if not.
        """
        self.taken += count
        if self._outer is not None:
            self._outer.spend(count)
        if self.most is not None and self.taken > self.most:
            raise TooMuchWorkError(self._field, self.most)
        if self.taken >= self._poll_at:
            self._poll_at = self.taken + POLL_EVERY
            if self._is_cancelled is not None and self._is_cancelled():
                raise WorkCancelledError


_current: ContextVar[Steps | None] = ContextVar("rqsched_steps", default=None)


@contextmanager
def bounded(steps: Steps) -> Iterator[Steps]:
    """Charge every step that this context takes inside the block to `steps`, and to the bound around the block.

    >>> with bounded(Steps(10)):
    ...     spend(11)
    Traceback (most recent call last):
    rqsched.errors.TooMuchWorkError: spec: needs more than 10 steps to find its times; ...

    A thread that is started inside the block is bound too if it runs in a copy of the context
    (`contextvars.copy_context`), as `asyncio.to_thread` and Starlette's threadpool arrange. Never `yield` to a caller
    from inside the block: the bound would apply to the caller, too.
    """
    steps._outer = _current.get()
    token = _current.set(steps)
    try:
        yield steps
    finally:
        _current.reset(token)


def answered(question: Callable[[*Ts], T], *args: *Ts, otherwise: U) -> T | U:
    """Return `question(*args)`, or `otherwise` if the answer takes more than MOST_STEPS.

    Inside a bound with a limit the question counts as part of the bounded work, and this raises TooMuchWorkError as
    `spend` does.
    """
    outer = _current.get()
    while outer is not None:
        if outer.most is not None:
            return question(*args)
        outer = outer._outer
    steps = Steps()
    steps._outer = _current.get()
    token = _current.set(steps)  # not with `bounded`: its calls would be a third of the cost of a small question
    try:
        return question(*args)
    except TooMuchWorkError:
        return otherwise
    finally:
        _current.reset(token)


def first_of(instants: Iterable[T]) -> list[T]:
    """Return the items of an iterator in order, as many as are found in MOST_STEPS.

    Inside a bound with a limit it raises TooMuchWorkError, as `answered` does.
    """
    found: list[T] = []

    def walk() -> None:
        for one in instants:
            found.append(one)  # noqa: PERF402 - what was found before the bound is kept

    answered(walk, otherwise=None)
    return found


def spend(count: int = 1) -> None:
    """Take `count` steps from the bound around this call, if there is one. Raises as `Steps.spend` does."""
    steps = _current.get()
    if steps is not None:
        steps.spend(count)
