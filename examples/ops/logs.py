"""Tend a folder of logs: rotate large logs, compress rotated ones, prune old ones."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from rqsched import current_run, workflow


@workflow("ops.logs", timeout=120)
def tend_logs(folder: str, largest: int = 65_536, keep: int = 5) -> dict[str, int]:
    """Rotate logs above `largest` bytes, compress rotated ones, keep the newest `keep` of each log.

    Every step may be repeated: the next attempt completes one that died half-way.
    """
    logs = sorted(Path(folder).glob("*.log"))
    rotated = [_rotate(log) for log in logs if log.stat().st_size > largest]
    compressed = [_compress(path) for log in logs for path in log.parent.glob(f"{log.name}.*") if _is_plain(path)]
    pruned = sum(_prune(log, keep) for log in logs)
    return {"rotated": len(rotated), "compressed": len(compressed), "pruned": pruned}


def _rotate(log: Path) -> Path:
    # Copied and emptied, not renamed: the writing process holds the file open (in append mode).
    rotated = log.with_name(f"{log.name}.{current_run().occurrence_at:%Y%m%dT%H%M%SZ}")
    shutil.copyfile(log, rotated)
    with log.open("r+b") as file:
        file.truncate()
    return rotated


def _is_plain(path: Path) -> bool:
    return path.suffix not in {".gz", ".part"}


def _compress(path: Path) -> Path:
    packed, unfinished = (path.with_name(path.name + end) for end in (".gz", ".part"))
    with path.open("rb") as plain, gzip.open(unfinished, "wb") as target:
        shutil.copyfileobj(plain, target)
    unfinished.replace(packed)
    path.unlink()
    return packed


def _prune(log: Path, keep: int) -> int:
    surplus = sorted(log.parent.glob(f"{log.name}.*.gz"))[:-keep]
    for path in surplus:
        path.unlink()
    return len(surplus)
