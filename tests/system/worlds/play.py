"""Playing seeds: a failing one says how to replay it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.system.worlds.stage import Stage
from tests.system.worlds.world import World

_MEMORY = Path("/dev/shm")


def play(stage: Stage, seed: int, *, steps: int | None = None, is_skewed: bool = False) -> World:
    """Play one world; an AssertionError names the seed, the way to replay it and what led to it."""
    world = World(stage, seed, is_skewed=is_skewed)
    try:
        world.live(steps)
    except BaseException as error:
        how = f"python -m tests.system.worlds --seed {seed}{' --skewed' if is_skewed else ''}"
        error.add_note(f"seed {seed}; replay it with: {how}\n" + "\n".join(world.log))
        raise
    return world


def trace(stage: Stage, seed: int) -> list[str]:
    """Return the log of a world, step by step."""
    return play(stage, seed).log


@contextmanager
def memory_folder() -> Iterator[Path | None]:
    """A folder in memory where there is one: a world writes thousands of times."""
    if not _MEMORY.is_dir():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rqsched-worlds-", dir=_MEMORY) as name:
        yield Path(name)
