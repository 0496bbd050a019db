"""A sweep over many targets: each execution of one leaves a line in a file before it does anything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rqsched import current_run, workflow
from tests.support.processes import wait_until

SWEEP = "acceptance.sweep"
FOLDER = "SWEEP_FOLDER"
"""The variable with the folder of the log and of the gates."""
SIZE = "SWEEP_SIZE"
"""The variable with the number of targets."""
LOG = "swept"
HALF = "half"
"""The gate at which the first attempt of a run waits that has named half of its targets."""
FIRST = "first"
"""The gate at which the first target of the first run waits."""
PATIENCE = 500.0


@dataclass(frozen=True)
class Swept:
    """One time that a target was begun."""

    run_uid: str
    target: str
    attempt: int
    pid: int


def name_targets() -> Iterator[str]:
    """Name the targets one by one; the first attempt waits at the half, if there is a gate."""
    size, half = int(os.environ[SIZE]), _path(HALF)
    for number in range(size):
        if number == size // 2 and current_run().attempt == 1 and half.with_suffix(".closed").exists():
            wait_until(half.exists, timeout=PATIENCE, what="the gate of the resolver")
        yield f"t-{number:07}"


@workflow(SWEEP, targets=name_targets)
def sweep(target: str) -> None:
    """Leave a line; the first target of the first run waits then, if there is a gate."""
    run = current_run()
    line = f"{run.uid} {target} {run.attempt:3} {os.getpid():9}\n"
    log = os.open(_path(LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line.encode())
    finally:
        os.close(log)
    first = _path(FIRST)
    if target.endswith("-0000000") and run.trigger_number == 1 and first.with_suffix(".closed").exists():
        wait_until(first.exists, timeout=PATIENCE, what="the gate of the first target")


def close_gate(folder: Path, gate: str) -> None:
    """Let a gate be closed from now on."""
    (folder / gate).with_suffix(".closed").touch()


def read_swept(folder: Path) -> list[Swept]:
    """Read every line."""
    log = folder / LOG
    lines = log.read_text().splitlines() if log.exists() else []
    return [Swept(uid, target, int(n), int(pid)) for uid, target, n, pid in (line.split() for line in lines)]


def count_swept(folder: Path) -> int:
    """Count the lines by the length of the file: they are equally long."""
    log = folder / LOG
    return log.stat().st_size // _LINE if log.exists() else 0


_LINE = 26 + 1 + 9 + 1 + 3 + 1 + 9 + 1


def _path(name: str) -> Path:
    return Path(os.environ[FOLDER]) / name
