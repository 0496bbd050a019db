"""What is refused: one line that says what to write, the documented exit code, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.kernel.store.migrations import VERSION_TABLE
from tests.support.cli import HELLO, Cli
from tests.support.rows import every_row

CREATE = ["create", "a", HELLO]
HOURLY = [*CREATE, "--every", "1h"]
INVALID = {
    "no timing": (CREATE, "--cron, --every, --once or --after"),
    "a cron of six words": ([*CREATE, "--cron", "1 2 3 4 5 6 7"], "cron"),
    "a cron that never fires": ([*CREATE, "--cron", "0 0 31 2 *"], "cron"),
    "an unknown timezone": ([*CREATE, "--cron", "0 2 * * *", "--timezone", "Mars/Phobos"], "timezone"),
    "an interval that is none": ([*CREATE, "--every", "often"], "--every"),
    "an interval of months": ([*CREATE, "--every", "P1M"], "--every"),
    "an interval of no length": ([*CREATE, "--every", "0"], "at least one second"),
    "an offset without interval": ([*CREATE, "--cron", "0 2 * * *", "--set", "offset=5m"], "--every"),
    "a naive instant": ([*CREATE, "--once", "2099-01-01T00:00:00"], "--once"),
    "an instant that is none": ([*CREATE, "--once", "tomorrow"], "--once"),
    "a spec that is over": ([*CREATE, "--once", "2001-01-01T00:00:00Z"], "spec"),
    "a bad id": (["create", "a b", HELLO, "--every", "1h"], "schedule_id"),
    "a bad namespace": ([*HOURLY, "--namespace", "a/b"], "namespace"),
    "an unknown workflow": (["create", "a", "nobody", "--every", "1h"], "workflow"),
    "a path that is not there": (["create", "a", "no.such.place", "--every", "1h"], "no.such.place"),
    "a path that is no function": (
        ["create", "a", "tests.support.cli_flows.__doc__", "--every", "1h"],
        "nor a class",
    ),
    "args that are no JSON": ([*HOURLY, "--args", "eu"], "--args"),
    "args that are no list": ([*HOURLY, "--args", "{}"], "--args"),
    "kwargs that are no object": ([*HOURLY, "--kwargs", "[]"], "--kwargs"),
    "kwargs with an infinity": ([*HOURLY, "--kwargs", '{"x": Infinity}'], "kwargs"),
    "args nested without end": ([*HOURLY, "--args", "[" * 100_000], "--args"),
    "args beyond the limit": ([*HOURLY, "--args", json.dumps(["x" * 300_000])], "limit"),
    "a label without value": ([*HOURLY, "--label", "team"], "--label"),
    "a memo that is no object": ([*HOURLY, "--set", "memo=3"], "--set memo"),
    "an unknown overlap policy": ([*HOURLY, "--overlap", "maybe"], "overlap"),
    "an unknown missed policy": ([*HOURLY, "--set", "missed=maybe"], "missed"),
    "a limit without its policy": ([*HOURLY, "--set", "buffer_limit=3"], "buffer_limit"),
    "a jitter that is none": ([*HOURLY, "--set", "jitter=-5s"], "--set jitter"),
    "a jitter too long": ([*HOURLY, "--set", "jitter=P2D"], "jitter"),
    "no runs at all": ([*HOURLY, "--set", "max_runs=0"], "max_runs"),
    "a timeout of half a second": ([*HOURLY, "--timeout", "0.5"], "timeout: must be whole seconds"),
    "fewer than no retries": ([*HOURLY, "--max-retries", "-1"], "max_retries"),
    "an unknown end of retries": ([*HOURLY, "--set", "retry.then=shrug"], "retry.then"),
    "an unknown executor": ([*HOURLY, "--set", "executor=pigeon"], "executor"),
    "a note too long": ([*HOURLY, "--note", "x" * 5000], "note"),
    "an unknown option": ([*HOURLY, "--frobnicate"], "--frobnicate"),
    "a name that is no option": ([*HOURLY, "--set", "jiter=5s"], "did you mean jitter?"),
    "a name that has a flag": ([*HOURLY, "--set", "queue=high"], "write --queue"),
    "a name without a value": ([*HOURLY, "--set", "jitter"], "write NAME=VALUE"),
    "a name set twice": ([*HOURLY, "--set", "jitter=5s", "--set", "jitter=6s"], "given twice"),
    "neither true nor false": ([*HOURLY, "--set", "from_completion=yes"], "must be true or false, not 'yes'"),
    "an unknown output": ([*HOURLY, "--output", "xml"], "xml"),
    "a word for a number": ([*HOURLY, "--set", "max_runs=many"], "--set max_runs: must be a whole number, not 'many'"),
    "digits with an underscore": ([*HOURLY, "--set", "max_runs=1_0"], "must be a whole number, not '1_0'"),
    "seconds without a cron": ([*HOURLY, "--set", "cron_seconds=last"], "--cron: is missing"),
    "no workflow": (["create", "a"], "WORKFLOW"),
}


def test_create_refuses_invalid_options(cli: Cli) -> None:
    with every_row() as row:
        for name, (words, hint) in INVALID.items():
            with row(name):
                answer = cli(*words, code=2)
                assert hint in answer.err
                assert answer.out == ""
                assert cli.ids() == []


OTHERS = {
    "unset of what cannot be blank": (["update", "known", "--unset", "workflow"], "--unset"),
    "a history before the beginning": (["history", "known", "--after-sequence", "-1"], "--after-sequence"),
    "a page too large": (["history", "known", "--limit", "501"], "--limit"),
    "a token nobody gave": (["list", "--page-token", "?"], "cursor"),
    "a token of runs nobody gave": (["runs", "known", "--page-token", "x"], "cursor"),
    "an unknown order": (["list", "--sort", "name"], "--sort"),
    "a span without a zone": (["list", "--created-since", "2026-01-01T00:00:00"], "--created-since"),
    "a span that is no time": (["list", "--next-until", "soon"], "--next-until"),
    "an unknown status": (["list", "--status", "sleeping"], "sleeping"),
    "a backfill that ends before it starts": (
        ["backfill", "known", "--start", "2026-01-02T00:00:00Z", "--end", "2026-01-01T00:00:00Z"],
        "after start",
    ),
    "a backfill of the future": (
        ["backfill", "known", "--start", "2099-01-01T00:00:00Z", "--end", "2099-01-02T00:00:00Z"],
        "past",
    ),
    "a backfill beyond its bound": (
        ["backfill", "known", "--start", "2020-01-01T00:00:00Z", "--end", "2020-02-01T00:00:00Z", "--bound", "9"],
        "bound",
    ),
    "an unknown on_resume": (["resume", "known", "--on-resume", "maybe"], "on_resume"),
    "a purge nobody agreed to": (["delete", "known", "--purge"], "--yes"),
    "pruning before no instant": (["prune", "--yes", "--events-before", "x"], "--events-before"),
    "an empty idempotency key": (["trigger", "known", "--idempotency-key", ""], "idempotency_key"),
    "an unknown command": (["frobnicate"], "frobnicate"),
    "a command of a group": (["upcoming"], "rqsched forecast upcoming"),
    "a file that is not there": (["sync", "nowhere.json"], "nowhere.json"),
}


def test_other_commands_refuse_and_write_nothing(cli: Cli) -> None:
    known = cli.scheduler.create("known", HELLO, Every("1h"))
    before = known.describe()
    with every_row() as row:
        for name, (words, hint) in OTHERS.items():
            with row(name):
                answer = cli(*words, code=2)
                assert hint in answer.err
                assert answer.out == ""
                assert known.describe() == before
                assert len(known.history()) == 1


UNKNOWN = [
    ["describe", "x"],
    ["update", "x", "--queue", "q"],
    ["pause", "x"],
    ["resume", "x"],
    ["restart", "x"],
    ["delete", "x"],
    ["delete", "x", "--purge", "--yes"],
    ["trigger", "x"],
    ["backfill", "x", "--start", "2026-01-01T00:00:00Z", "--end", "2026-01-02T00:00:00Z"],
    ["history", "x"],
    ["runs", "x"],
    ["cancel", "x", "1"],
    ["terminate", "x", "1"],
    ["retry", "x"],
    ["retry", "1", "--schedule", "known"],
    ["retry", "1", "--schedule", "x"],
    ["forecast", "upcoming", "x"],
    ["why", "x"],
    ["describe", "known", "--namespace", "other"],
    ["cancel", "known", "1"],
]


def test_an_unknown_schedule_or_run_is_exit_code_3(cli: Cli) -> None:
    cli.scheduler.create("known", HELLO, Every("1h"))
    with every_row() as row:
        for words in UNKNOWN:
            with row(" ".join(words)):
                assert cli(*words, code=3).err.splitlines()[-1].startswith("Error: no ")


def test_a_conflict_with_the_state_is_exit_code_4(cli: Cli) -> None:
    cli.scheduler.create("a", HELLO, Every("1h"))
    cli.scheduler.create("paused", HELLO, Every("1h"), paused=True)
    with every_row() as row:
        for words in (HOURLY, ["resume", "a"], ["restart", "a"], ["pause", "paused"]):
            with row(" ".join(words)):
                assert cli(*words, code=4).err.splitlines()[-1].startswith("Error: ")


def test_an_error_is_json_when_the_output_is(cli: Cli) -> None:
    answer = cli("describe", "x", "-o", "jsonl", code=3)
    error = json.loads(answer.err.splitlines()[-1])
    assert error["error"] == "schedule_not_found"
    assert "'x'" in error["message"]
    assert answer.out == ""


def test_a_wrong_setting_is_exit_code_2_and_keeps_its_secret(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", "mysql://me:secret@host/db")
    err = cli("list", code=2).err
    assert "RQSCHED_DATABASE_URL" in err
    assert "secret" not in err


def test_a_database_that_cannot_be_opened_is_exit_code_5(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", "sqlite:////nowhere/at/all.db")
    answer = cli("list", code=5)
    assert answer.err.splitlines()[-1].startswith("Error: the database does not answer (unable to open database file)")


@pytest.mark.postgres
def test_command_asks_postgresql_for_its_schema_once(
    cli: Cli, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", postgres_url)
    asked: list[str] = []

    def note(*said: Any) -> None:
        asked.append(said[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        assert cli("list").out.splitlines()[-1] == "No schedules."
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert [VERSION_TABLE in one for one in asked] == [True, True, False], asked


def test_a_redis_that_does_not_answer_is_exit_code_5(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:1/0")
    assert "Redis does not answer" in cli("recover", code=5).err


def test_a_schedule_created_while_redis_is_away_is_durable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:1/0")
    assert cli(*HOURLY, "-o", "json").json["outcome"] == "created"
    assert cli.ids() == ["a"]


def test_a_module_that_cannot_be_imported_is_exit_code_2(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_IMPORTS", "no.such.module")
    assert "'no.such.module', which cannot be imported" in cli("runs", code=2).err


def test_a_list_of_schedules_imports_no_modules_and_asks_no_redis(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_IMPORTS", "no.such.module")
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:1/0")
    assert cli("list").out == "Namespace: default\nNo schedules.\n"


def test_what_a_module_of_workflows_calls_wrongly_is_found_in_that_module(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["from rqsched import workflow", "@workflow('too-short', timeout=0.5)", "def too_short(): ..."]
    (tmp_path / "timed_wrongly.py").write_text("\n".join(lines))
    monkeypatch.setenv("RQSCHED_IMPORTS", "timed_wrongly")
    assert "timed_wrongly.py, line 2)" in cli("runs", code=2).err


def test_a_module_that_raises_is_exit_code_2_and_says_where(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("raising.py").write_text("x = 1\nx / 0\n")
    cli("create", "a", "raising.flow", "--every", "1h", code=2)
    monkeypatch.setenv("RQSCHED_IMPORTS", "raising")
    err = cli("runs", code=2).err
    assert "ZeroDivisionError: division by zero" in err
    assert "raising.py, line 2" in err
