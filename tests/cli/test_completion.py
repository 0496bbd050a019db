"""Shell completion offers the ids and names in SQL, and nothing if there are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rqsched import Every
from tests.support.cli import HELLO, Cli

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return bash's completions for a line with an unfinished last word."""

    def words_for(*words: str) -> list[str]:
        monkeypatch.setenv("_RQSCHED_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["rqsched", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        answer = cli()
        assert answer.err == ""
        return answer.out.split()

    return words_for


@pytest.mark.parametrize(
    "command", ["describe", "pause", "backfill", "history", "forecast upcoming", "update", "cancel"]
)
def test_schedule_ids_with_the_prefix_are_offered(cli: Cli, complete: Complete, command: str) -> None:
    for name in ("nightly-eu", "nightly-us", "hourly", "night_"):
        cli.scheduler.create(name, HELLO, Every("1h"))
    cli.scheduler.create("nightly-gone", HELLO, Every("1h")).delete()
    cli.scheduler.create("nightly-other", HELLO, Every("1h"), namespace="other")

    words = command.split()
    assert complete(*words, "nightly") == ["nightly-eu", "nightly-us"]
    assert complete(*words, "night_") == ["night_"], "no pattern of LIKE"
    assert complete(*words, "-n", "other", "n") == ["nightly-other"]


def test_no_id_is_offered_for_a_new_schedule(cli: Cli, complete: Complete) -> None:
    cli.scheduler.create("nightly", HELLO, Every("1h"))
    assert complete("create", "n") == []


def test_workflow_names_with_the_prefix_are_offered(cli: Cli, complete: Complete) -> None:
    cli.scheduler.runtime.record_workflows()
    assert complete("create", "new", "cli-h") == [HELLO]
    assert complete("update", "a", "--workflow", "cli-h") == [HELLO]


def test_command_names_with_the_prefix_are_offered(complete: Complete) -> None:
    assert complete("re") == ["resume", "restart", "retry", "recover"]


SILENT = {
    "a file that is not there": "sqlite:///nowhere.db",
    "a folder that is not there": "sqlite:////nowhere/at/all.db",
    "a server that does not answer": "postgresql://u:p@127.0.0.1:1/x",
    "a URL that is none": "nonsense",
}


@pytest.mark.parametrize("url", SILENT.values(), ids=SILENT.keys())
def test_without_a_database_nothing_is_offered_and_nothing_created(
    complete: Complete, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", url)
    before = set(Path.cwd().iterdir())
    assert complete("describe", "n") == []
    assert set(Path.cwd().iterdir()) == before


def test_a_completion_does_not_start_the_embedded_default(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RQSCHED_DATABASE_URL")
    assert complete("describe", "n") == []
    assert not Path(".rqsched").exists()


def test_a_database_without_our_tables_offers_nothing(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("empty.db").touch()
    monkeypatch.setenv("RQSCHED_DATABASE_URL", "sqlite:///empty.db")
    assert complete("describe", "n") == []
