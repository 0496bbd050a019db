"""The commands `bulk ...`, and `update --set paused=...`."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Every
from rqsched.errors import RedisUnavailableError
from rqsched.features.bulk import api as bulk
from rqsched.features.bulk import runs as bulk_runs
from tests.support.cli import HELLO, Cli


def test_bulk_skips_the_next_occurrences_of_each(cli: Cli) -> None:
    handles = [cli.scheduler.create(name, HELLO, Every("1h")) for name in "ab"]
    done = cli("bulk", "skip", "--count", "3", "--reason", "the vendor moves")
    assert done.out.splitlines()[-1] == "Done: 2 skips_next."
    assert [len(handle.refresh().skips) for handle in handles] == [3, 3]
    assert "from 0 to 100" in cli("bulk", "skip", "--count", "101", code=2).err
    assert "--count" in cli("bulk", "pause", "--count", "2", code=2).err


def test_bulk_shows_what_it_would_do_and_does_it(cli: Cli) -> None:
    for name in ("a", "b"):
        cli("create", name, HELLO, "--every", "1h", "--label", "team=x")
    planned = cli("bulk", "pause", "--label", "team=x", "--dry-run", "-o", "json").json
    assert planned["counts"] == {"would_pause": 2}
    assert "stays done" not in cli("bulk", "pause", "--label", "team=x", "--dry-run").err
    assert cli("bulk", "pause", "--label", "team=x", "--reason", "later").out.splitlines()[-1] == "Done: 2 paused."
    assert cli("bulk", "pause").out.splitlines()[-1] == "Done: no schedules."
    assert cli("bulk", "resume", "-o", "jsonl").out.count("resumed") == 2


@contextmanager
def interrupted_by(number: int) -> Iterator[None]:
    """Press Ctrl-C while the schedule of this number is paused."""
    updates = list[str]()

    def press(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        updates.extend([statement] if statement.startswith("UPDATE rqsched_schedules") else [])
        if len(updates) == number:
            updates.append("pressed")
            signal.raise_signal(signal.SIGINT)

    sa.event.listen(sa.Engine, "after_cursor_execute", press)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", press)


@pytest.fixture
def takes_ctrl_c() -> Iterator[None]:
    """Python's handler of SIGINT, which a shell's background job ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("takes_ctrl_c")
def test_ctrl_c_stops_bulk_between_two_chunks_and_the_told_token_goes_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 3)
    for number in range(7):
        cli.scheduler.create(f"job-{number}", HELLO, Every("1h"))
    before = signal.getsignal(signal.SIGINT)
    with interrupted_by(2):
        stopped = cli("bulk", "pause", "-o", "json", code=130)
    assert (stopped.json["outcome"], stopped.json["counts"]) == ("stopped", {"paused": 3})
    assert signal.getsignal(signal.SIGINT) is before
    (token,) = re.findall(r"What is done stays done. To go on, .* --page-token '(.*)'", stopped.err)
    assert stopped.json["next_page_token"] == token
    assert cli.scheduler.count(status="paused") == 3
    assert cli("bulk", "pause", "--page-token", token).out.splitlines()[-1] == "Done: 4 paused."
    assert "cursor" in cli("bulk", "resume", "--page-token", token, code=2).err


def seven(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven schedules, and chunks of three."""
    monkeypatch.setattr(bulk, "CHUNK", 3)
    for number in range(7):
        cli.scheduler.create(f"job-{number}", HELLO, Every("1h"))


@contextmanager
def failing_at(number: int) -> Iterator[None]:
    """Lose the connection to the database when the schedule of this number is paused."""
    updates = list[str]()

    def lose(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        updates.extend([statement] if statement.startswith("UPDATE rqsched_schedules") else [])
        if len(updates) == number:
            raise RedisUnavailableError

    sa.event.listen(sa.Engine, "before_cursor_execute", lose)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", lose)


def test_a_chunk_that_fails_leaves_the_outcomes_of_the_ones_before_and_the_token(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seven(cli, monkeypatch)
    with failing_at(5):
        failed = cli("bulk", "pause", "-o", "json", code=RedisUnavailableError.exit_code)
    assert (failed.json["outcome"], failed.json["counts"]) == ("interrupted", {"paused": 3})
    assert "redis_unavailable" in failed.err
    token = failed.json["next_page_token"]
    with failing_at(1):
        table = cli("bulk", "pause", "--page-token", token, code=RedisUnavailableError.exit_code)
    assert (table.out, f"--page-token '{token}'" in table.err) == ("Interrupted: no schedules.\n", True)
    assert cli("bulk", "pause", "--page-token", token).out.splitlines()[-1].endswith("paused.")
    assert cli.scheduler.count(status="paused") == 7
    assert "To go on" not in cli("bulk", "pause", "--page-token", "x", code=2).err


@pytest.mark.usefixtures("takes_ctrl_c")
def test_a_dry_run_that_is_stopped_does_not_say_that_something_is_done(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seven(cli, monkeypatch)
    monkeypatch.setattr(bulk, "MAX_PAGE", 3)
    chunks = bulk.do_chunk

    def press(*given: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return chunks(*given, **more)

    monkeypatch.setattr(bulk, "do_chunk", press)
    stopped = cli("bulk", "pause", "--dry-run", code=130)
    assert ("To go on" in stopped.err, "stays done" in stopped.err) == (True, False)


def test_bulk_leaves_ctrl_c_alone_where_it_is_ignored_and_in_another_thread(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seven(cli, monkeypatch)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupted_by(2):
            assert cli("bulk", "pause").out.splitlines()[-1] == "Done: 7 paused."
    finally:
        signal.signal(signal.SIGINT, before)
    with ThreadPoolExecutor() as threads:
        assert threads.submit(cli, "bulk", "resume").result().out.splitlines()[-1] == "Done: 7 resumed."


@pytest.mark.parametrize("option", ["--workflow", "--owner", "--text"])
def test_a_blank_filter_is_a_usage_error_and_touches_no_schedule(cli: Cli, option: str) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    assert f"{option}: is blank" in cli("bulk", "pause", option, "", code=2).err
    assert cli("describe", "a", "-o", "json").json["status"] == "active"


def test_update_pauses_and_makes_fire_again(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    for paused, status in (("true", "paused"), ("false", "active")):
        cli("update", "a", "--set", f"paused={paused}")
        assert cli.scheduler.get("a").status == status


@pytest.mark.usefixtures("takes_ctrl_c")
def test_an_age_is_counted_from_the_first_command_where_another_one_goes_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_runs, "CHUNK", 2)
    schedule = cli.scheduler.create("a", HELLO, Every("1h"))
    for _ in range(3):
        schedule.trigger("allow_all")
    with interrupted_by(1):
        stopped = cli("bulk", "cancel", "--since", "1h", "-o", "json", code=130).json
    assert stopped["counts"] == {"cancelled": 2}
    done = cli("bulk", "cancel", "--since", "1h", "--page-token", stopped["next_page_token"]).out
    assert done.splitlines()[-1] == "Done: 1 cancelled."


def test_bulk_cancels_and_retries_the_runs_that_match(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_runs, "CHUNK", 2)
    one, other = (cli.scheduler.create(name, HELLO, Every("1h")) for name in "ab")
    for _ in range(3):
        one.trigger("allow_all")
    other.trigger()
    shown = cli("bulk", "cancel", "--schedule", "a", "--since", "1h", "--dry-run", "-o", "json").json
    assert shown["counts"] == {"would_cancel": 3}
    assert "more than 3 runs match" in cli("bulk", "cancel", "--bound", "3", code=2).err
    assert "is not one of" in cli("bulk", "retry", "--status", "running", code=2).err
    done = cli("bulk", "cancel", "--schedule", "a", "--status", "pending", "--reason", "the wrong month").out
    assert done.splitlines()[-1] == "Done: 3 cancelled."
    assert (one.runs().items[0].uid in done, other.runs().items[0].status) == (True, "pending")
    assert cli("bulk", "retry", "--schedule", "a").out.splitlines()[-1] == "Done: no runs."
    one.delete()
    named = cli("bulk", "retry", "--status", "cancelled", "-o", "json", code=4).json
    assert named["counts"] == {"skipped": 3}
    assert {row["reason"] for row in named["results"]} == {"it is cancelled: Its schedule is deleted; create it again."}
