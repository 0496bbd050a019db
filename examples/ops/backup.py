"""Back a SQLite database up while others write to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from rqsched import current_run, workflow


@workflow("ops.backup", timeout=300)
def back_up(database: str, folder: str, keep: int = 5) -> dict[str, object]:
    """Copy a SQLite database through its backup API, check the copy, keep the newest `keep` of them.

    The name comes from the occurrence, so a repeated attempt replaces its own copy.
    """
    source, target = Path(database), Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    copy = target / f"{source.stem}-{current_run().occurrence_at:%Y%m%dT%H%M%SZ}.db"
    unfinished = copy.with_suffix(".part")
    _copy(source, unfinished)
    unfinished.replace(copy)
    pruned = _prune(target, f"{source.stem}-*.db", keep)
    return {"copy": copy.name, "bytes": copy.stat().st_size, "pruned": pruned}


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    # mode=ro: a wrong path is an error, not a new empty database.
    read_only = f"{source.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(read_only, uri=True)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)
        (verdict,) = there.execute("PRAGMA quick_check").fetchone()
    if verdict != "ok":
        raise RuntimeError(f"the copy of {source} is damaged: {verdict}")


def _prune(folder: Path, pattern: str, keep: int) -> int:
    surplus = sorted(folder.glob(pattern))[:-keep]
    for path in surplus:
        path.unlink()
    return len(surplus)
