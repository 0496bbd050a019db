"""The first stage of a keeper (see `keeper`): it waits with little memory until it may keep a dispatcher.

A place is a file whose lock allows one dispatcher. This file is started by its path and imports only Python's built-in
modules, so it needs 3 MB instead of 30. Its arguments are the descriptor of the pipe that its worker holds open, the
descriptors of the places, separated by commas, and the command of the keeper.
"""

import fcntl
import os
import select
import sys

_LOOK_MILLISECONDS = 1000
_LOOKS = 20
"""The first place is taken at once. Any other place is taken only after this many checks in a row have found it
free. Until then a starting worker may take it, because the dispatcher of that worker is a fork and needs half of the
memory."""


def take(places: list[int]) -> int | None:
    """Lock a place and return it; None if all places are taken.

    The lock lasts as long as a process has the file open.
    """
    for place in places:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError:  # the folder supports no locks, so each worker has a dispatcher
            pass
        return place
    return None


def _wait(life: int, places: list[int], command: list[str]) -> None:
    """Wait for a free place, and become the keeper; without any places, do so at once. Return if the worker is gone.

    The first place is taken as soon as it is free, so that schedules fire. Other places are taken some seconds later.
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
