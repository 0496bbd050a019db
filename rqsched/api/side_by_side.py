"""Side by side: a function over many arguments, in processes of their own that end with the block.

Each process has a pipe of its own and shares no lock with another, so that one which is killed keeps nobody waiting:
its pipe ends, and the caller is told. A pool of `multiprocessing` waits for ever for what such a process had taken.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, NoReturn, TypeAlias

from rqsched.errors import RqschedError

_Function: TypeAlias = Callable[[Any, Callable[[int], None]], Any]
"""It is called with one argument, and with what it tells how far it has come since."""


class _Side(NamedTuple):
    """One process, and the end of its pipe that is ours."""

    process: Any
    pipe: Connection

    def end(self) -> None:
        self.process.kill()  # it holds nothing that is worth an orderly end
        self.process.join()
        self.pipe.close()

    def send(self, call: tuple[_Function, Any]) -> None:
        try:
            self.pipe.send(call)
        except OSError:
            self._fail()

    def read(self) -> tuple[str, Any]:
        """Return what it says next, `advanced` or `done`; raises what the function raised.

        Raises RqschedError when the process has ended.
        """
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            self._fail()
        if kind == "raised":
            raise value
        return kind, value

    def _fail(self) -> NoReturn:
        self.process.join()
        raise RqschedError(
            f"a process that computed a part has ended (exit code {self.process.exitcode}): give it more memory, or "
            "use fewer processes"
        )


@contextmanager
def side_by_side(number: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield what maps a function over arguments, in their order, in so many processes that end with the block.

    Like `in_turn`, which does it in this process.
    """
    resource_tracker.ensure_running()  # by itself it would take interrupts off the mask while processes begin
    with ExitStack() as stack:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:  # Ctrl-C is for this process alone: the others inherit the mask, also before they have begun
            sides = [_begin(stack) for _ in range(number)]
        finally:  # one that came meanwhile is raised here, and ends them
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield partial(_map, sides)


def in_turn(function: _Function, arguments: Iterable[Any], advance: Callable[[int], None]) -> Iterator[Any]:
    """Yield what a function makes of each argument; `advance` is told how it goes on."""
    return (function(one, advance) for one in arguments)


def _begin(stack: ExitStack) -> _Side:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that ours ends when that process does
    side = _Side(process, ours)
    stack.callback(side.end)
    return side


def _serve(pipe: Connection) -> None:
    """Answer each call, until there is nobody to ask."""
    while True:
        try:
            function, argument = pipe.recv()
        except EOFError:
            return
        try:
            answer = "done", function(argument, lambda steps: pipe.send(("advanced", steps)))
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is read
            answer = "raised", error
        pipe.send(answer)


def _map(
    sides: Iterable[_Side], function: _Function, arguments: Iterable[Any], advance: Callable[[int], None]
) -> Iterator[Any]:
    todo, idle = iter(enumerate(arguments)), [*sides]
    busy, answers, following = dict[Any, tuple[_Side, int]](), dict[int, Any](), 0
    while True:
        while idle and (found := next(todo, None)) is not None:
            place, argument = found
            side = idle.pop()
            side.send((function, argument))
            busy[side.pipe] = side, place
        while following in answers:
            yield answers.pop(following)
            following += 1
        if not busy:
            return
        for pipe in wait([*busy]):
            side, place = busy[pipe]
            kind, value = side.read()
            if kind == "advanced":
                advance(value)
                continue
            del busy[pipe]
            answers[place] = value
            idle.append(side)
