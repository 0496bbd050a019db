"""Play worlds by hand: `python -m tests.worlds --seeds 20000`, or one step by step: `--seed 1234`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.worlds.play import memory_folder, play
from tests.worlds.stage import Stage


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and print its steps")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many to play (2000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--steps", type=int, help="steps a world has (25 to 50)")
    arguments = parser.parse_args()
    with memory_folder() as folder, tempfile.TemporaryDirectory() as other:
        stage = Stage(folder or Path(other))
        if arguments.seed is not None:
            print("\n".join(play(stage, arguments.seed, steps=arguments.steps).log))
            return 0
        return _play_many(stage, range(arguments.first, arguments.first + arguments.seeds), arguments.steps)


def _play_many(stage: Stage, seeds: range, steps: int | None) -> int:
    failed: list[int] = []
    began = time.monotonic()
    for seed in seeds:
        try:
            play(stage, seed, steps=steps)
        except Exception:  # noqa: BLE001 - every failing seed is to be named
            traceback.print_exc()
            failed.append(seed)
    print(f"{len(seeds)} worlds in {time.monotonic() - began:.1f} s, failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
