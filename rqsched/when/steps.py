"""Steps: the bound on the work of one question about times, the same on every host, and the check that a caller still
waits.

Each loop over days, spans of a zone, excluded stretches or instants calls `spend`. A step costs a few microseconds of
CPU at most. Outside `bounded` nothing is counted.
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
"""The number of steps between two checks whether the caller still waits."""


class Steps:
    """A number of steps that may be taken, and a function that says whether nobody waits for the result any more.

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
        """Take `count` steps, also of the bound around this one.

        Raises TooMuchWorkError when more than `most` are taken, and WorkCancelledError, looked at every POLL_EVERY
        steps, when nobody waits any more.
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
    (`contextvars.copy_context`), as those of `asyncio.to_thread` and Starlette's threadpool do. Never `yield` to a
    caller from inside the block: the bound would be the caller's, too.
    """
    steps._outer = _current.get()
    token = _current.set(steps)
    try:
        yield steps
    finally:
        _current.reset(token)


def answered(question: Callable[[*Ts], T], *args: *Ts, otherwise: U) -> T | U:
    """Return `question(*args)`, or `otherwise` where the answer takes more than MOST_STEPS.

    Inside a bound that has a limit the question is part of the bounded work: then this raises TooMuchWorkError as
    `spend` does.
    """
    outer = _current.get()
    while outer is not None:
        if outer.most is not None:
            return question(*args)
        outer = outer._outer
    steps = Steps()
    steps._outer = _current.get()
    token = _current.set(steps)  # as `bounded`, which would be a third of the calls of a small question
    try:
        return question(*args)
    except TooMuchWorkError:
        return otherwise
    finally:
        _current.reset(token)


def first_of(instants: Iterable[T]) -> list[T]:
    """Return what an iterator yields, in order: all, or as many as are found in MOST_STEPS.

    Inside a bound that has a limit, as `answered`.
    """
    found: list[T] = []

    def walk() -> None:
        for one in instants:
            found.append(one)  # noqa: PERF402 - what was found before the bound is kept

    answered(walk, otherwise=None)
    return found


def spend(count: int = 1) -> None:
    """Take `count` steps of the bound around this call; does nothing where there is none. Raises as `Steps.spend`."""
    steps = _current.get()
    if steps is not None:
        steps.spend(count)
