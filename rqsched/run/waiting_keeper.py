"""A keeper that waits until it may keep a dispatcher, in a process that costs next to nothing.

It is started by its path, with Python's built-in modules alone: 3 MB in place of 30. Its arguments are the descriptor
that is at its end when its worker is gone, those of the places, separated by commas, and the command of the keeper.
"""

import fcntl
import os
import select
import sys

_LOOK_MILLISECONDS = 1000
_LOOKS = 20
"""A place other than the first is taken after so many looks in a row found one free. A worker that starts in that time
takes it instead, and its dispatcher, which is forked, needs half of the memory."""


def take(places: list[int]) -> int | None:
    """Lock a place and return it; None when others have all of them. The lock lasts while a process has it open."""
    for place in places:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError:  # a folder without locks: each worker has a dispatcher
            pass
        return place
    return None


def _wait(life: int, places: list[int], command: list[str]) -> None:
    """Become the keeper with a free place, or at once where the machine has no places; return when the worker is gone.

    The first place is taken as soon as it is free, so that schedules fire; the others some seconds later.
    """
    ending = select.poll()
    ending.register(life, select.POLLIN)
    place, looks = take(places), 0
    while place is None and places:
        if ending.poll(_LOOK_MILLISECONDS):
            return
        if (place := take(places[:1])) is not None:
            break
        free = take(places[1:])
        looks = 0 if free is None else looks + 1
        if looks >= _LOOKS:
            place = free
        elif free is not None:
            fcntl.flock(free, fcntl.LOCK_UN)
    os.execv(command[0], [*command, str(-1 if place is None else place)])  # noqa: S606 - a command of our own


if __name__ == "__main__":
    _wait(int(sys.argv[1]), [int(place) for place in sys.argv[2].split(",") if place], sys.argv[3:])
