"""Limit the work of a calculation by counting its steps (iterations of loops). The limit is the same on every host.

Each loop over days, spans of a zone (the times between two clock changes), excluded stretches or instants calls `spend`
in each iteration. A step costs at most a few microseconds of CPU. Steps are counted only inside `bounded` and
`answered`. A calculation also stops if its caller has stopped waiting.
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
"""The maximum number of steps that a request may take to compute when a schedule fires: less than a second of CPU."""
POLL_EVERY = 1_000
"""The number of steps between two checks whether the caller still waits."""


class Steps:
    """A limit of steps, and a function that tells whether the caller has stopped waiting.

    `most=None` sets no limit; then only `is_cancelled` stops a calculation. Only one thread at a time may use a `Steps`
    object. `is_cancelled` is called in that thread and must be quick, such as `threading.Event.is_set`.
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
        """Count `count` steps here and in every enclosing block of `bounded`.

        Raises TooMuchWorkError if more than `most` steps were taken. Checks every POLL_EVERY steps whether the caller
        still waits, and raises WorkCancelledError if it does not.
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
    """Count every step of this context inside the block in `steps`, and in every enclosing block of `bounded`.

    >>> with bounded(Steps(10)):
    ...     spend(11)
    Traceback (most recent call last):
    rqsched.errors.TooMuchWorkError: spec: needs more than 10 steps to find its times; ...

    The limit also applies to a thread that is started inside the block, if the thread runs in a copy of the context
    (`contextvars.copy_context`). `asyncio.to_thread` and Starlette's threadpool copy the context. Never `yield` to a
    caller from inside the block, because the limit would apply to the caller, too.
    """
    steps._outer = _current.get()
    token = _current.set(steps)
    try:
        yield steps
    finally:
        _current.reset(token)


def answered(question: Callable[[*Ts], T], *args: *Ts, otherwise: U) -> T | U:
    """Return `question(*args)`, or `otherwise` if the answer takes more than MOST_STEPS.

    Inside a block of `bounded` with a limit, that limit applies instead: the steps count towards it, and
    TooMuchWorkError is raised instead of returning `otherwise`.
    """
    outer = _current.get()
    while outer is not None:
        if outer.most is not None:
            return question(*args)
        outer = outer._outer
    steps = Steps()
    steps._outer = _current.get()
    token = _current.set(steps)  # not `bounded`, which would be a third of the cost of a small question
    try:
        return question(*args)
    except TooMuchWorkError:
        return otherwise
    finally:
        _current.reset(token)


def first_of(instants: Iterable[T]) -> list[T]:
    """Return the items of an iterator that are found within MOST_STEPS, in order.

    Inside a block of `bounded` with a limit, that limit applies instead, and TooMuchWorkError may be raised.
    """
    found: list[T] = []

    def walk() -> None:
        for one in instants:
            found.append(one)  # noqa: PERF402 - the items found before the limit are kept

    answered(walk, otherwise=None)
    return found


def spend(count: int = 1) -> None:
    """Count `count` steps in the enclosing `bounded` or `answered`, if any. Raises the errors of `Steps.spend`."""
    steps = _current.get()
    if steps is not None:
        steps.spend(count)
