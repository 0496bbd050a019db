"""A small disk: a real file system of some megabytes, to fill. It takes root, and a system that lets it mount."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

_BLOCK = b"x" * 4096


class Disk(NamedTuple):
    """A file system that is mounted."""

    folder: Path
    """Where it is."""

    def fill(self) -> None:
        """Leave no room."""
        with (self.folder / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(_BLOCK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def make_room(self) -> None:
        """Have room again."""
        (self.folder / "filler").unlink()


@contextmanager
def small_disk(megabytes: int = 64) -> Iterator[Disk]:
    """A file system is mounted while the block runs; the test is skipped where that is not allowed.

    It is not below pytest's own temporary folder: that is closed to the user of PostgreSQL.
    """
    with tempfile.TemporaryDirectory(prefix="rqsched-disk-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs root, and a system that lets it mount: {done.stderr.strip()}")
        try:
            yield Disk(folder)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)
