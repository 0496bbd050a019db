"""A process that a test starts ends with its whole tree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from tests.support.processes import is_gone, kill_all, process_tree, start, wait_until

SPAWNING = """
import os, sys
opened = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ, file_actions=[opened])
"""


def test_process_that_waits_for_its_new_child_is_killed_with_it(tmp_path: Path) -> None:
    """The child opens a pipe that nobody writes to, before its exec. Until the exec, the kernel holds its parent."""
    os.mkfifo(tmp_path / "pipe")
    process = start([sys.executable, "-c", SPAWNING, tmp_path / "pipe"], log_path=tmp_path / "log")
    tree = process_tree(process.pid)
    try:
        wait_until(lambda: len(process_tree(process.pid)) == 2, what="a child")
        tree = process_tree(process.pid)
        wait_until(lambda: tree[0].status() == psutil.STATUS_DISK_SLEEP, what="a parent that is held")

        process.kill_tree()

        wait_until(lambda: all(is_gone(one) for one in tree), what="the end of both")
    finally:
        kill_all(tree)
