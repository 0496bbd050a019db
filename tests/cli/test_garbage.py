"""The garbage collector rests while a command's modules are loaded, and works while the command does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import atexit, gc, sys
from rqsched.cli import main
atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000))
sys.argv = ["rqsched", *{words!r}]
main()
"""


@pytest.mark.parametrize("words", [["db", "status"], ["list", "--help"]])
def test_command_works_with_the_collector_and_what_was_loaded_before_is_never_looked_through(
    tmp_path: Path, words: list[str]
) -> None:
    environment = {"RQSCHED_DATABASE_URL": f"sqlite:///{tmp_path}/a.db", "RQSCHED_REDIS_URL": "redis://127.0.0.1:9/0"}
    code = LOADED.format(words=words)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.splitlines()[-1] == "True True", done.stderr
