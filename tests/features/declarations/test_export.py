"""export: schedules that exist become a file that sync reads."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rqsched import Declaration, Every, Once
from tests.support.cli import HELLO, Cli

HOOK = "https://hooks.example.com/secret"


def test_an_export_is_what_sync_reads_and_changes_nothing_where_it_was_made(cli: Cli, tmp_path: Path) -> None:
    cli("create", "nightly", HELLO, "--cron", "0 2 * * *", "--timezone", "Europe/Berlin", "--args", '["eu", null]')
    cli("create", "often", HELLO, "--every", "15m", "--label", "team=a", "--set", "paused=true")

    answer = cli("export", "s.toml")

    assert answer.out == "2 schedules written to s.toml.\n"
    assert "left out" not in answer.err
    assert cli("sync", "s.toml").out == "0 created, 0 updated, 2 unchanged, 0 removed.\n"
    cli("sync", "s.toml", "-n", "elsewhere")
    assert cli("export", "-n", "elsewhere").out == (tmp_path / "s.toml").read_text()


@pytest.mark.parametrize("name", ["s.yaml", "s.yml", "s.json", "s.toml"])
def test_the_name_of_the_file_says_its_format(cli: Cli, name: str) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--kwargs", '{"at": "2026-01-01", "no": null}')
    cli("export", name)
    assert cli("sync", name, "-o", "json").json["unchanged"] == ["a"]


def test_without_a_file_it_is_on_standard_output_in_the_format_that_is_asked_for(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    entry = {"schedule_id": "a", "workflow": HELLO, "interval": "1h"}

    assert tomllib.loads(cli("export").out) == {"schedules": [entry]}
    assert cli("export", "--format", "yaml").out.startswith("schedules:\n- schedule_id: a\n")
    assert cli("export", "-o", "json").json == cli("export", "--format", "json").json == {"schedules": [entry]}
    assert cli("export", "-o", "jsonl").lines == [entry]


def test_filters_of_list_choose(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--set", "owner=ops")
    cli("create", "b", HELLO, "--every", "1h", "--label", "team=x", "--set", "paused=true")
    cli("create", "c", HELLO, "--every", "1h")

    def chosen(*words: str) -> list[str]:
        return [entry["schedule_id"] for entry in cli("export", "-o", "jsonl", *words).lines]

    assert chosen() == ["a", "b", "c"]
    assert (chosen("--owner", "ops"), chosen("--label", "team=x"), chosen("--status", "paused")) == (
        ["a"],
        ["b"],
        ["b"],
    )
    assert chosen("--query", 'ScheduleId = "c"', "--workflow", HELLO) == ["c"]


def test_what_is_done_is_left_out_unless_it_is_asked_for(cli: Cli) -> None:
    ended = Once(datetime.now(UTC) - timedelta(seconds=1))
    cli.scheduler.sync([Declaration("ended", HELLO, ended)])
    cli("create", "ahead", HELLO, "--once", "2099-01-01T00:00:00Z")
    assert cli.scheduler.get("ended").status == "done"

    answer = cli("export", "s.toml", "-o", "json")

    assert answer.json["left_out"] == ["ended"]
    assert "Left out because done (--status done writes them): ended." in answer.err
    assert [entry["schedule_id"] for entry in cli("export", "-o", "jsonl", "--status", "done").lines] == ["ended"]


def test_what_a_file_cannot_hold_is_left_out_and_said_in_the_file_and_beside_it(cli: Cli, tmp_path: Path) -> None:
    surface: Any = {"surface": {"ojs": {}}, "dead_letter": True}
    cli.scheduler.create("job", HELLO, Every("1h"), **surface)
    cli("create", "kept", HELLO, "--every", "1h")
    line = "job is left out, because a file cannot hold: ojs, dead_letter."

    answer = cli("export", "s.toml")

    assert line in answer.err.splitlines()
    assert (tmp_path / "s.toml").read_text().startswith(f'# {line}\n\n[[schedules]]\nschedule_id = "kept"\n')
    cli("export", "s.json")
    assert json.loads((tmp_path / "s.json").read_text())["$comment"] == [line]
    assert cli("sync", "s.json").err.count("ignored") == 0


def test_urls_that_may_be_secrets_are_told_of(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--set", f"notifications.heartbeat={HOOK}")

    answer = cli("export", "-o", "json")

    assert answer.json["schedules"][0]["notifications"] == {"heartbeat": HOOK}
    assert "The file holds URLs of notifications, which may be secrets: a." in answer.err


REFUSED = {
    "a name that says nothing": (["s.txt"], "must end in"),
    "a name of another format": (["s.toml", "--format", "yaml"], "--format: is yaml, but sync reads s.toml as toml"),
    "json as yaml": (["--format", "yaml", "-o", "json"], "--format: is yaml, but -o json is JSON"),
    "what is deleted": (["--status", "deleted"], "--status: is deleted"),
    "no folder": (["none/s.toml"], "cannot be written: No such file or directory"),
    "a blank filter": (["--owner", ""], "--owner: is blank"),
}


@pytest.mark.parametrize(("words", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_export_says_why_and_writes_nothing(cli: Cli, words: list[str], hint: str, tmp_path: Path) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    before = sorted(tmp_path.iterdir())
    assert hint in cli("export", *words, code=2).err
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode_and_its_link(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    target, link = tmp_path / "shared" / "s.toml", tmp_path / "s.toml"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    cli("create", "a", HELLO, "--every", "1h")

    cli("export", "s.toml")

    assert link.is_symlink()
    assert tomllib.loads(target.read_text())["schedules"][0]["schedule_id"] == "a"
    assert (target.stat().st_mode & 0o777, list(target.parent.iterdir())) == (0o640, [target])


def test_a_file_holds_an_h_as_it_was_written(cli: Cli, tmp_path: Path) -> None:
    cli("create", "a", HELLO, "--cron", "H H * * *")
    cli("create", "b", HELLO, "--cron", "H 2 * * *", "--timezone", "Europe/Berlin")
    cli("export", "s.toml")
    assert 'cron = "H H * * *"' in (tmp_path / "s.toml").read_text()
    assert cli("sync", "s.toml").out == "0 created, 0 updated, 2 unchanged, 0 removed.\n"
    assert "H H * * *" in cli("describe", "a").out
