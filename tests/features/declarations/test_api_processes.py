"""A scheduler from the environment declares for its process, and imports RQSCHED_IMPORTS when it needs a workflow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rqsched import Scheduler
from rqsched.errors import ConfigError, UnknownWorkflowError
from rqsched.features.declarations.declarations import of_process
from rqsched.workflows import Registry

APPLICATION = """
from rqsched import Scheduler

scheduler = Scheduler.from_env()
{at_import}


@scheduler.cron("0 3 * * *", schedule_id="tidy-up", name="tidy-up")
def tidy_up() -> None: ...
"""
JOBS = """
from rqsched import workflow
from imported_application import scheduler, tidy_up


@workflow("report")
def report() -> None: ...
"""


@pytest.fixture(autouse=True)
def process(sqlite_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings of a process that has declared nothing yet, and a folder of its modules."""
    monkeypatch.setenv("RQSCHED_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("RQSCHED_REDIS_URL", redis_url)
    monkeypatch.setattr(of_process, "_declared", {})
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("imported_application", "imported_jobs"):
        if (module := sys.modules.pop(name, None)) is not None:
            module.scheduler.close()


def write(folder: Path, *, at_import: str = "") -> None:
    (folder / "imported_application.py").write_text(APPLICATION.format(at_import=at_import))
    (folder / "imported_jobs.py").write_text(JOBS)


def imported(name: str) -> ModuleType:
    __import__(name)
    return sys.modules[name]


def test_schedulers_of_the_process_share_what_is_declared_and_those_of_their_own_do_not(tmp_path: Path) -> None:
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    opened = [Scheduler.from_env(), Scheduler(), Scheduler(database_url=other_url), Scheduler(workflows=Registry())]
    mine, plain, other, registered = opened

    def nightly() -> None: ...

    mine.cron("0 3 * * *", schedule_id="nightly")(nightly)
    other.cron("0 4 * * *", schedule_id="nightly", note="of the other")(nightly)
    registered.cron("0 5 * * *", schedule_id="early")(nightly)

    assert plain.sync().created == ["nightly"]
    assert mine.sync().unchanged == ["nightly"]
    assert other.sync().created == ["nightly"]
    assert registered.sync().created == ["early"]
    assert (mine.get("nightly").note, other.get("nightly").note) == (None, "of the other")
    assert [one.schedule_id for one in other.list().items] == ["nightly"]
    for scheduler in opened:
        scheduler.close()


def test_modules_are_imported_by_the_first_operation_that_names_a_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.setenv("RQSCHED_IMPORTS", "imported_jobs")

    scheduler = imported("imported_application").scheduler
    assert scheduler.list().items == []
    assert "imported_jobs" not in sys.modules
    scheduler.create("weekly", "report", "1w")

    assert "imported_jobs" in sys.modules
    assert scheduler.sync().created == ["tidy-up"]


def test_sync_imports_what_may_declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setenv("RQSCHED_IMPORTS", "imported_jobs")
    with Scheduler.from_env() as scheduler:
        assert scheduler.sync().created == ["tidy-up"]


def test_nothing_is_imported_while_the_module_that_opened_the_scheduler_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, at_import="scheduler.create('early', 'builtins.print', '1h')")
    monkeypatch.setenv("RQSCHED_IMPORTS", "imported_jobs")

    scheduler = imported("imported_application").scheduler

    assert "imported_jobs" not in sys.modules
    assert scheduler.upsert("early", "report", "1h")[1] == "updated"


def test_sync_during_the_import_says_when_to_call_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, at_import="scheduler.sync()")
    monkeypatch.setenv("RQSCHED_IMPORTS", "imported_jobs")
    with pytest.raises(ConfigError, match=r"'imported_jobs'.* call this when your application is made"):
        imported("imported_application")


def test_a_module_that_cannot_be_imported_is_logged_once_and_named_where_a_workflow_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    monkeypatch.setenv("RQSCHED_IMPORTS", "no_such_module,imported_jobs")
    with Scheduler.from_env() as scheduler:
        scheduler.create("weekly", "report", "1w")
        for _ in range(2):
            with pytest.raises(UnknownWorkflowError, match="RQSCHED_IMPORTS names 'no_such_module'"):
                scheduler.create("daily", "nobody", "1d")
        with pytest.raises(ConfigError, match="no_such_module"):
            scheduler.sync()

    logged = [record.message for record in caplog.records if getattr(record, "action", "") == "import_failed"]
    assert len(logged) == 1
    assert "'no_such_module'" in logged[0]
