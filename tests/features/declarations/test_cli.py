"""sync: a file of schedules is brought about."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rqsched import Every
from rqsched.workflows import registry
from tests.support.cli import HELLO, Cli

TOML = f"""
[[schedules]]
schedule_id = "nightly"
workflow = "{HELLO}"
cron = "0 2 * * *"
timezone = "Europe/Berlin"
timeout = "10m"
target_timeout = 60
args = ["eu"]
jitter = "30s"
overlap = "buffer_one"
labels = {{ team = "ops" }}
note = "from a file"

[schedules.retry]
max_retries = 5
base = "10s"

[[schedules]]
schedule_id = "often"
workflow = "{HELLO}"
interval = ["30m", 3600]
start_at = 2026-01-01T00:00:00Z
paused = true

[[schedules]]
schedule_id = "form"
workflow = "{HELLO}"
spec = {{ cron_expressions = ["0 3 * * *"], intervals = [{{ every = "PT1H" }}], timezone = "Asia/Tokyo" }}

[[schedules]]
schedule_id = "single"
workflow = "{HELLO}"
once = 2099-01-01T00:00:00Z
max_runs = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "schedules.toml"
    path.write_text(TOML)
    return path


def write(path: Path, *entries: object) -> str:
    path.write_text(json.dumps(list(entries)))
    return str(path)


def entry(schedule_id: str, **more: object) -> dict[str, object]:
    return {"schedule_id": schedule_id, "workflow": HELLO, "cron": "0 2 * * *", **more}


def test_a_toml_file_becomes_schedules(cli: Cli, file: Path) -> None:
    names = ["nightly", "often", "form", "single"]
    synced = cli("sync", str(file), "-o", "json").json
    assert synced == {"created": names, "updated": [], "unchanged": [], "removed": []}
    nightly = cli.scheduler.get("nightly").describe()
    assert (nightly.timeout, nightly.policies["target_timeout"]) == (600, 60)
    assert (nightly.timezone, nightly.args, nightly.jitter) == ("Europe/Berlin", ["eu"], 30.0)
    assert (nightly.overlap, nightly.labels, nightly.note) == ("buffer_one", {"team": "ops"}, "from a file")
    assert (nightly.policies["retry"]["max_retries"], nightly.policies["retry"]["base"]) == (5, 10.0)
    often = cli.scheduler.get("often").describe()
    assert (often.status, often.timing) == ("paused", "every 30m; every 1h from 2026-01-01T00:00:00Z")
    assert cli.scheduler.get("form").describe().timezone == "Asia/Tokyo"
    assert cli.scheduler.get("single").describe().max_runs == 1


def test_the_same_file_again_changes_nothing(cli: Cli, file: Path) -> None:
    cli("sync", str(file))
    assert cli("sync", str(file)).out == "0 created, 0 updated, 4 unchanged, 0 removed.\n"


def test_sync_says_what_changed_and_prunes_what_it_made(cli: Cli, tmp_path: Path) -> None:
    cli("create", "by-hand", HELLO, "--every", "1h")
    path = tmp_path / "s.json"
    cli("sync", write(path, entry("a"), entry("b"), entry("c")))
    lines = cli("sync", "--delete-removed", write(path, entry("a"), entry("b", queue="q")), "-o", "jsonl").lines
    assert sorted((line["schedule_id"], line["outcome"]) for line in lines) == [
        ("a", "unchanged"),
        ("b", "updated"),
        ("c", "removed"),
    ]
    assert cli.ids() == ["by-hand", "a", "b"]


def test_a_dry_run_prints_the_same_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    cli("sync", write(path, entry("a"), entry("b"), entry("c"), entry("d", paused=True)))
    before = [handle.describe() for handle in cli.scheduler.iter()]
    changed = write(path, entry("a"), entry("b", queue="q"), entry("d", paused=False), entry("e"))
    planned = cli("sync", "--dry-run", "--delete-removed", changed, "-o", "json").json
    assert [handle.describe() for handle in cli.scheduler.iter()] == before
    assert planned == {"created": ["e"], "updated": ["b", "d"], "unchanged": ["a"], "removed": ["c"]}
    assert cli("sync", "--delete-removed", changed, "-o", "json").json == planned


REFUSED = {
    "no JSON": ("{", "is not valid JSON"),
    "a key twice": ('[{"schedule_id": "a", "schedule_id": "b"}]', "schedule_id occurs twice in an object"),
    "no list": ('{"x": 1}', "no list of schedules"),
    "an entry that is none": ("[3]", "schedules[0]"),
    "no id": ('[{"workflow": "cli-hello", "interval": "1h"}]', "schedule_id: must be given, as text"),
    "no workflow": ('[{"schedule_id": "a", "interval": "1h"}]', "workflow: must be given"),
    "no timing": ('[{"schedule_id": "a", "workflow": "cli-hello"}]', "cron, interval, once, after or spec"),
    "a bad cron": ('[{"schedule_id": "a", "workflow": "cli-hello", "cron": "x"}]', "in schedules[0] a"),
    "two timings": ('[{"schedule_id": "a", "workflow": "cli-hello", "cron": "* * * * *", "spec": {}}]', "beside spec"),
    "an unknown key": (json.dumps([entry("a", colour=1)]), "colour: is not an"),
    "a misspelt key": (json.dumps([entry("a", timezon="UTC")]), "did you mean timezone?"),
    "the name of a decorator": (
        '[{"id": "a", "workflow": "cli-hello", "interval": "1h"}]',
        "did you mean schedule_id?",
    ),
    "the name of a flag": (json.dumps([entry("a", every="1h")]), "every: is not an option; did you mean interval?"),
    "one of several": (json.dumps([entry("a", environment="x")]), "did you mean environments?"),
    "a misspelt timing": ('[{"schedule_id": "a", "workflow": "cli-hello", "crom": "* * * * *"}]', "did you mean cron?"),
    "an unknown retry key": (json.dumps([entry("a", retry={"x": 1})]), "retry.x"),
    "a word for retry": (json.dumps([entry("a", retry="often")]), "retry"),
    "a word for paused": (json.dumps([entry("a", paused="yes")]), "paused"),
    "an unknown workflow": (
        '[{"schedule_id": "a", "workflow": "nobody", "interval": "1h"}]',
        "in the declaration of 'a'",
    ),
    "an id twice": (json.dumps([entry("a"), entry("a")]), "declared twice"),
    "a bad one after a good one": (json.dumps([entry("a"), entry("b", jitter="x")]), "in the declaration of 'b'"),
}


@pytest.mark.parametrize(("text", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_a_file_with_one_invalid_entry_changes_nothing(cli: Cli, tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    assert hint in cli("sync", str(path), code=2).err
    assert cli.ids() == []


def test_what_is_no_schedule_is_warned_about_with_the_nearest_name(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(f'owner = "ops"\n{TOML}\n[[schedule]]\nschedule_id = "lost"\nworkflow = "x"\ninterval = "1h"\n')

    answer = cli("sync", str(path))

    assert answer.err.splitlines()[:2] == [
        "s.toml: owner is not a key of this file and is ignored",
        "s.toml: schedule is not a key of this file and is ignored; did you mean schedules?",
    ]
    assert "lost" not in cli.ids()


def test_a_json_file_may_name_its_schema(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"$schema": "https://example.com/s.json", "schedules": [entry("a")]}))

    assert "ignored" not in cli("sync", str(path)).err
    assert cli.ids() == ["a"]


def test_a_toml_file_with_a_fault_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("[[schedules]")
    assert "is not valid TOML" in cli("sync", str(path), code=2).err


def test_without_a_file_it_is_what_the_imported_modules_declare(cli: Cli) -> None:
    registry.declare("declared", HELLO, Every("1h"), {"queue": "slow"}, "from code")
    try:
        assert cli("sync", "--dry-run", "-o", "json").json["created"] == ["declared"]
        assert cli("sync", "--delete-removed", "-o", "json").json["created"] == ["declared"]
    finally:
        registry.withdraw("declared")
    declared = cli.scheduler.get("declared")
    assert (declared.state.note, declared.state.definition.queue) == ("from code", "slow")


def test_without_a_file_and_without_declarations_nothing_is_pruned(cli: Cli, tmp_path: Path) -> None:
    cli("sync", write(tmp_path / "s.json", entry("kept")))
    assert "the imported modules declare no schedule" in cli("sync", "--delete-removed", code=2).err
    assert cli.ids() == ["kept"]


def test_a_difference_is_shown_field_by_field_and_nothing_is_written(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    cli("sync", write(path, entry("a"), entry("b", labels={"team": "x"}, note="old"), entry("c"), entry("d")))
    before = [handle.describe() for handle in cli.scheduler.iter()]
    changed = write(
        path,
        entry("a"),
        entry("b", cron="0 3 * * *", timezone="Asia/Tokyo", labels={"team": "y", "new": ""}, retry={"max_retries": 5}),
        entry("d", paused=True, args=[None]),
        {"schedule_id": "e", "workflow": HELLO, "interval": 900},
    )

    answer = cli("sync", "--diff", "--delete-removed", changed, code=6)

    assert [handle.describe() for handle in cli.scheduler.iter()] == before
    assert answer.out.splitlines() == [
        "~ b",
        "    cron: 0 2 * * * -> 0 3 * * *",
        "    timezone: UTC -> Asia/Tokyo",
        "    retry.max_retries: 3 -> 5",
        '    labels.new: - -> ""',
        "    labels.team: x -> y",
        "~ d",
        "    args: [] -> [null]",
        "    status: active -> paused",
        "+ e",
        f"    workflow: {HELLO}",
        "    interval: 15m",
        "    status: active",
        "- c",
        "Would be: 1 created, 2 updated, 1 unchanged, 1 removed.",
    ]
    found = cli("sync", "--diff", "--delete-removed", changed, "-o", "json", code=6).json
    assert found["updated"] == ["b", "d"]
    assert found["differences"][1] == {
        "schedule_id": "d",
        "outcome": "updated",
        "fields": [
            {"field": "args", "before": [], "after": [None]},
            {"field": "status", "before": "active", "after": "paused"},
        ],
    }
    assert cli("sync", "--diff", "--delete-removed", changed, "-o", "jsonl", code=6).lines == found["differences"]
    cli("sync", "--delete-removed", changed)
    same = "Would be: 0 created, 0 updated, 4 unchanged, 0 removed.\n"
    assert cli("sync", "--diff", "--delete-removed", changed).out == same


def test_a_difference_without_prune_knows_no_deletes(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    cli("sync", write(path, entry("a"), entry("b")))
    smaller = write(path, entry("a"))
    assert cli("sync", "--diff", smaller, "-o", "json").json["differences"] == []
    assert cli("sync", "--diff", "--delete-removed", smaller, code=6).out.splitlines()[0] == "- b"


def test_what_a_sync_would_take_away_is_a_difference(cli: Cli, tmp_path: Path) -> None:
    surface: Any = {"surface": {"name": "Nightly"}, "dead_letter": True}
    cli.scheduler.create("a", HELLO, "0 2 * * *", **surface)
    file = write(tmp_path / "s.json", entry("a"))

    out = cli("sync", "--diff", file, code=6).out.splitlines()

    assert out[:-1] == ["~ a", "    name: Nightly -> -", "    dead_letter: true -> -"]
    cli("sync", file)
    assert cli("sync", "--diff", file).out.startswith("Would be: 0 created, 0 updated")


def test_other_defaults_of_a_workflow_are_a_difference(cli: Cli, tmp_path: Path) -> None:
    file = write(tmp_path / "s.json", entry("a"))
    cli("sync", file)
    known = registry.resolve(HELLO)
    registry.add(replace(known, queue="low"))
    try:
        out = cli("sync", "--diff", file, code=6).out
    finally:
        registry.add(known)
    assert out.splitlines()[1] == "    workflow_defaults.queue: high -> low"


def test_of_a_url_that_differs_only_the_host_is_shown(cli: Cli, tmp_path: Path) -> None:
    file = write(tmp_path / "s.json", entry("a", notifications={"heartbeat": "https://example.com/one"}))
    cli("sync", file)
    file = write(tmp_path / "s.json", entry("a", notifications={"heartbeat": "https://example.com/two"}))

    out = cli("sync", "--diff", file, code=6).out

    assert out.splitlines()[1] == "    notifications.heartbeat: https://example.com/... -> https://example.com/..."


@pytest.mark.parametrize(("text", "code"), [("{", 2), ('[{"schedule_id": "a", "workflow": "x", "cron": "x"}]', 2)])
def test_a_file_that_cannot_be_compared_is_an_error_and_no_difference(
    cli: Cli, tmp_path: Path, text: str, code: int
) -> None:
    (tmp_path / "s.json").write_text(text)
    assert cli("sync", "--diff", "s.json", code=code).out == ""
