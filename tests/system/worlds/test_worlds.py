"""Shuffled worlds, each from one seed: 100 in `make test`, 300 in `make test-all`, as many as WORLDS says.

`python -m tests.system.worlds` plays them by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.sizes import sized
from tests.system.worlds.play import memory_folder, play, trace
from tests.system.worlds.stage import Stage

SEEDS = int(os.environ.get("WORLDS", sized(300, 2_000)))
SKEWED = max(SEEDS // 20, 40)
CHUNK = 50


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with memory_folder() as folder:
        stage = Stage(folder or tmp_path_factory.mktemp("worlds"))
        yield stage
        stage.close()


def _chunks(seeds: int) -> list[Any]:
    """Make the cases of so many worlds, the first hundred of them for `make test`."""
    return [
        pytest.param(first, id=f"seeds-{first}", marks=[pytest.mark.once] if first < 100 else [])
        for first in range(0, seeds, CHUNK)
    ]


@pytest.mark.parametrize("first", _chunks(SEEDS))
def test_every_invariant_holds_in_a_shuffled_world(stage: Stage, first: int) -> None:
    worlds = [play(stage, seed) for seed in range(first, min(first + CHUNK, SEEDS))]
    drawn = [bool(world.owed) for world in worlds if world.owes_in_freezes]
    assert sum(drawn) * 2 >= len(drawn), "ends are owed in the freezes of few worlds"


@pytest.mark.parametrize("first", _chunks(SKEWED))
def test_every_invariant_holds_where_clocks_are_far_apart(stage: Stage, first: int) -> None:
    for seed in range(first, min(first + CHUNK, SKEWED)):
        play(stage, seed, is_skewed=True)


@pytest.mark.once
def test_a_seed_replays_step_by_step(stage: Stage) -> None:
    assert trace(stage, 7) == trace(stage, 7)


def test_different_seeds_are_different_worlds(stage: Stage) -> None:
    assert trace(stage, 7) != trace(stage, 8)
