"""The commands in this process, against a real SQLite and a real Valkey."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rqsched.api.scheduler import Scheduler
from tests.support.cli import FLOWS, Cli


@pytest.fixture
def cli(sqlite_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RQSCHED_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("RQSCHED_REDIS_URL", redis_url)
    monkeypatch.setenv("RQSCHED_IMPORTS", FLOWS)
    monkeypatch.setenv("COLUMNS", "200")
    assert not os.environ.get("FORCE_COLOR")
    with closing(Scheduler.from_env()) as scheduler:
        scheduler.runtime.imports.require()  # other schedulers of the test rely on these imports
        yield Cli(scheduler)
