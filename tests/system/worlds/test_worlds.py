"""Two thousand shuffled worlds, each from one seed. WORLDS=20000 plays more; `python -m tests.system.worlds` too."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.system.worlds.play import memory_folder, play, trace
from tests.system.worlds.stage import Stage

SEEDS = int(os.environ.get("WORLDS", "2000"))
CHUNK = 50


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with memory_folder() as folder:
        stage = Stage(folder or tmp_path_factory.mktemp("worlds"))
        yield stage
        stage.close()


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK), ids=lambda first: f"seeds-{first}")
def test_every_invariant_holds_in_a_shuffled_world(stage: Stage, first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        play(stage, seed)


@pytest.mark.parametrize("first", range(0, SEEDS // 20, CHUNK), ids=lambda first: f"seeds-{first}")
def test_every_invariant_holds_where_clocks_are_far_apart(stage: Stage, first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS // 20)):
        play(stage, seed, is_skewed=True)


def test_a_seed_replays_step_by_step(stage: Stage) -> None:
    assert trace(stage, 7) == trace(stage, 7)


def test_different_seeds_are_different_worlds(stage: Stage) -> None:
    assert trace(stage, 7) != trace(stage, 8)
