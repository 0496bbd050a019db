"""Play worlds by hand: `python -m tests.system.worlds --seeds 20000`, or one step by step: `--seed 1234`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.system.worlds.play import memory_folder, play
from tests.system.worlds.stage import Stage


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.worlds", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and print its steps")
    parser.add_argument("--seeds", type=int, default=2_000, help="how many to play (2000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--skewed", action="store_true", help="clocks far apart that jump often, and no reconcile")
    parser.add_argument("--steps", type=int, help="steps a world has (25 to 50)")
    arguments = parser.parse_args()
    with memory_folder() as folder, tempfile.TemporaryDirectory() as other:
        stage = Stage(folder or Path(other))
        options = {"steps": arguments.steps, "is_skewed": arguments.skewed}
        if arguments.seed is not None:
            print("\n".join(play(stage, arguments.seed, **options).log))
            return 0
        return _play_many(stage, range(arguments.first, arguments.first + arguments.seeds), options)


def _play_many(stage: Stage, seeds: range, options: dict[str, Any]) -> int:
    failed: list[int] = []
    began = time.monotonic()
    for seed in seeds:
        try:
            play(stage, seed, **options)
        except Exception:  # noqa: BLE001 - every failing seed is to be named
            traceback.print_exc()
            failed.append(seed)
    print(f"{len(seeds)} worlds in {time.monotonic() - began:.1f} s, failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
