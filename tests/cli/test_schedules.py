"""create, upsert, update, list, describe: SQL stores the options given on the command line."""

from __future__ import annotations

import getpass
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rqsched import Every, Once, RetryPolicy
from rqsched.kernel.queries.schedules import MOST_LOOKED_AT
from rqsched.testing import execute_pending
from tests.support.cli import BOOM, BY_PATH, HELLO, Cli
from tests.support.crowd import copy_schedule
from tests.support.narrow import present

EVERYTHING = [
    "--cron", "0 2 * * *", "--every", "1h", "--once", "2099-01-01T00:00:00Z", "--timezone", "America/New_York",
    "--set", "start_at=2026-01-01T00:00:00+01:00", "--set", "end_at=2100-01-01T00:00:00Z", "--set", "jitter=30",
    "--set", "spread=1h", "--args", '["eu"]', "--kwargs", '{"deep": {"x": 1}}', "--queue", "slow",
    "--timeout", "10m", "--set", "priority=5", "--overlap", "buffer_all", "--set", "buffer_limit=7",
    "--set", "missed=all", "--set", "fire_within=PT2H", "--set", "missed_limit=9", "--set", "on_resume=once",
    "--set", "max_runs=12", "--set", "on_max_runs=delete", "--set", "max_successes=11",
    "--set", "environments=production", "--set", "environments=staging", "--max-retries", "5",
    "--set", "retention=30d,500", "--set", "fan_out=never", "--set", "overlap_until=dispatched",
    "--set", f"targets={HELLO}", "--set", "max_parallel=8", "--set", "target_timeout=20s",
    "--set", "target_retry.max_retries=2", "--set", "target_retry.base=5s", "--set", "retry.retry_on=OSError",
    "--set", "retry.retry_on=requests.*", "--set", "retry.give_up_on=KeyError", "--set", "target_retry.factor=4",
    "--set", "target_retry.cap=2m", "--set", "retry.then=continue", "--set", "retry.base=10s",
    "--set", "retry.factor=3", "--set", "retry.cap=1m", "--set", "retry.max_consecutive_failures=4",
    "--label", "team=ops", "--label", "tier=1", "--set", 'memo={"m": [1]}',
    "--set", 'search_attributes={"count": 3, "city": "Rome"}', "--set", "description=all of it", "--set", "owner=me",
    "--note", "a note", "--set", "paused=true",
]  # fmt: skip


def test_every_option_of_create_is_stored(cli: Cli) -> None:
    cli("create", "all", HELLO, *EVERYTHING)
    described = cli("describe", "all", "-o", "json").json
    assert described["spec"]["cron_expressions"] == ["0 2 * * *"]
    assert described["spec"]["instants"] == ["2099-01-01T00:00:00Z"]
    assert described["spec"]["intervals"][0]["every"] == "PT1H"
    assert described["spec"]["start_at"] == "2025-12-31T23:00:00Z"
    assert described["spec"]["end_at"] == "2100-01-01T00:00:00Z"
    wanted = {
        "status": "paused",
        "timezone": "America/New_York",
        "jitter": 30.0,
        "args": ["eu"],
        "kwargs": {"deep": {"x": 1}},
        "queue": "slow",
        "timeout": 600,
        "priority": 5,
        "overlap": "buffer_all",
        "max_runs": 12,
        "remaining_runs": 12,
        "labels": {"team": "ops", "tier": "1"},
        "memo": {"m": [1]},
        "search_attributes": {"count": 3, "city": "Rome"},
        "description": "all of it",
        "owner": "me",
        "note": "a note",
    }
    assert {name: described[name] for name in wanted} == wanted


def test_every_policy_of_create_is_stored(cli: Cli) -> None:
    cli("create", "all", HELLO, *EVERYTHING)
    policies = cli("describe", "all", "-o", "json").json["policies"]
    assert policies == {
        "overlap": "buffer_all",
        "buffer_limit": 7,
        "missed": "all",
        "spread": 3600.0,
        "fire_within": 7200.0,
        "missed_limit": 9,
        "on_resume": "once",
        "on_max_runs": "delete",
        "max_successes": 11,
        "environments": ["production", "staging"],
        "retry": {
            "max_retries": 5,
            "then": "continue",
            "base": 10.0,
            "factor": 3.0,
            "cap": 60.0,
            "jitter": 0.0,
            "max_consecutive_failures": 4,
            "retry_on": ["OSError", "requests.*"],
            "give_up_on": ["KeyError"],
        },
        "retention": "30d 500",
        "fan_out": "never",
        "overlap_until": "dispatched",
        "max_parallel": 8,
        "limit": None,
        "limit_running": None,
        "limit_rate": None,
        "start_within": None,
        "targets": HELLO,
        "target_timeout": 20,
        "target_retry": {
            "max_retries": 2,
            "base": 5.0,
            "factor": 4.0,
            "cap": 120.0,
            "jitter": 0.0,
            "retry_on": [],
            "give_up_on": [],
        },
    }


def test_create_arms_the_link_and_records_who_and_why(cli: Cli) -> None:
    created = cli("create", "a", BY_PATH, "--every", "1h", "--reason", "ticket 7", "-o", "json").json
    assert created["outcome"] == "created"
    assert cli.scheduler.runtime.transport.redis.zcard(cli.scheduler.runtime.transport.scheduled_key) == 1
    context = cli("history", "a", "-o", "json").json["events"][0]["payload"]["command_context"]
    assert context == {"principal": getpass.getuser(), "source": "cli", "reason": "ticket 7"}


def test_a_workflow_takes_its_queue_from_its_registration(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    assert cli("describe", "a", "-o", "json").json["queue"] == "high"


def test_an_offset_aligns_an_interval_and_from_completion_follows_the_run(cli: Cli) -> None:
    cli("create", "aligned", HELLO, "--every", "1h", "--set", "offset=5m")
    cli("create", "after", HELLO, "--every", "90", "--set", "from_completion=true")
    assert cli("describe", "aligned", "-o", "json").json["timing"] == "every 1h offset 5m"
    assert cli("describe", "after", "-o", "json").json["timing"] == "every 1m30s after completion"


def test_upsert_says_created_unchanged_and_updated(cli: Cli) -> None:
    words = ["upsert", "a", HELLO, "--every", "1h", "-o", "json"]
    outcomes = [cli(*words).json["outcome"], cli(*words).json["outcome"]]
    changed = cli(*words, "--queue", "other", "--set", "paused=true").json
    assert [*outcomes, changed["outcome"]] == ["created", "unchanged", "updated"]
    assert changed["status"] == "paused"


def test_upsert_leaves_a_paused_schedule_paused_unless_told(cli: Cli) -> None:
    words = ["upsert", "a", HELLO, "--every", "1h", "-o", "json"]
    cli(*words, "--set", "paused=true")
    assert cli(*words, "--label", "x=y").json["status"] == "paused"
    assert cli(*words, "--label", "x=y", "--set", "paused=false").json["status"] == "active"


def test_update_changes_what_is_given_and_nothing_else(cli: Cli) -> None:
    cli("create", "all", HELLO, *EVERYTHING)
    before = cli("describe", "all", "-o", "json").json
    assert cli("update", "all", "--max-retries", "1", "--queue", "fast", "-o", "json").json["outcome"] == "updated"
    after = cli("describe", "all", "-o", "json").json
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"queue", "policies", "version", "updated_at"}
    assert after["policies"]["retry"] == before["policies"]["retry"] | {"max_retries": 1}


def test_create_warns_of_the_next_change_of_the_clocks(cli: Cli) -> None:
    words = "nightly", HELLO, "--cron", "30 2 * * *", "--timezone", "America/New_York"
    assert "fires at 03:30 (dst_gap=shift)" in cli("create", *words).err
    changed = cli("update", "nightly", "--set", "dst_gap=skip", "-o", "json")
    (warning,) = changed.json["warnings"]
    assert warning.endswith("does not fire (dst_gap=skip)")
    assert "Warning: 02:30 does not occur on " in changed.err
    assert "occur" not in cli("update", "nightly", "--timezone", "UTC").err
    assert cli("export", "-o", "jsonl").lines[0]["dst_gap"] == "skip"


def test_update_keeps_timezone_and_window_when_only_the_cron_changes(cli: Cli) -> None:
    cli(
        "create",
        "a",
        HELLO,
        "--cron",
        "0 2 * * *",
        "--timezone",
        "Europe/Berlin",
        "--set",
        "end_at=2100-01-01T00:00:00Z",
    )
    cli("update", "a", "--cron", "0 3 * * *")
    spec = cli("describe", "a", "-o", "json").json["spec"]
    assert spec == {
        "dst_gap": "shift",
        "cron_expressions": ["0 3 * * *"],
        "timezone": "Europe/Berlin",
        "end_at": "2100-01-01T00:00:00Z",
    }


def test_update_keeps_the_members_when_only_timezone_or_window_changes(cli: Cli) -> None:
    cli("create", "a", HELLO, "--cron", "0 2 * * *", "--set", "end_at=2100-01-01T00:00:00Z")
    cli("update", "a", "--timezone", "Asia/Tokyo", "--unset", "end_at")
    spec = cli("describe", "a", "-o", "json").json["spec"]
    assert spec == {"cron_expressions": ["0 2 * * *"], "timezone": "Asia/Tokyo", "dst_gap": "shift"}


def test_unset_makes_an_option_blank(cli: Cli) -> None:
    cli("create", "all", HELLO, *EVERYTHING)
    cli("update", "all", "--unset", "max_runs", "--unset", "labels", "--unset", "jitter", "--unset", "retry")
    described = cli("describe", "all", "-o", "json").json
    assert (described["max_runs"], described["labels"], described["jitter"]) == (None, {}, 0.0)
    assert described["policies"]["retry"]["max_retries"] == 3


def test_update_with_nothing_new_says_unchanged(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--queue", "q")
    assert cli("update", "a", "--queue", "q", "-o", "json").json["outcome"] == "unchanged"


def test_update_of_another_version_is_a_conflict(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    assert "version 1" in cli("update", "a", "--queue", "q", "--if-version", "9", code=4).err


def test_cron_seconds_last_reads_six_fields_as_rqs_cron_does(cli: Cli) -> None:
    answer = cli("create", "a", HELLO, "--cron", "0 9 * * * 30", "--set", "cron_seconds=last")
    assert cli.scheduler.get("a").state.spec.primary_cron == "30 0 9 * * *"
    assert "Warning" not in answer.err
    assert "reads them last" in cli("create", "b", HELLO, "--cron", "0 0 9 * * *").err
    assert "seconds" in cli("create", "c", HELLO, "--cron", "0 0 9 * * *", "--set", "cron_seconds=x", code=2).err


def test_list_has_the_columns_of_the_durable_workflow_cli(cli: Cli) -> None:
    cli("create", "a", HELLO, "--once", "2099-01-01T00:00:00Z")
    namespace, head, row = cli("list").out.splitlines()
    assert namespace == "Namespace: default"
    assert [part.strip() for part in head.split("  ") if part.strip()] == [
        "Schedule ID",
        "Workflow Type",
        "Status",
        "Next Fire",
        "Last Fire",
        "Last Outcome",
        "Timing",
    ]
    assert row.split()[:6] == ["a", HELLO, "active", "2099-01-01T00:00:00Z", "-", "-"]


def test_list_says_the_timing_in_words_and_how_the_newest_run_ended(cli: Cli) -> None:
    weekdays = cli.scheduler.create("weekdays", HELLO, "0 9 * * 1-5", timezone="Europe/Berlin", overlap="allow_all")
    broken = cli.scheduler.create("broken", BOOM, "10m", retry=RetryPolicy(max_retries=0))
    for handle in (weekdays, broken):
        handle.trigger()
    execute_pending(cli.scheduler, "high")
    execute_pending(cli.scheduler)

    rows = {row["schedule_id"]: row for row in cli("list", "-o", "jsonl").lines}
    assert (rows["weekdays"]["timing_in_words"], rows["weekdays"]["last_outcome"]) == (
        "at 09:00, Monday to Friday, Berlin time",
        "succeeded",
    )
    assert (rows["broken"]["timing_in_words"], rows["broken"]["last_outcome"]) == ("every 10 minutes", "failed")
    assert cli("describe", "broken", "-o", "json").json["last_outcome"] == broken.refresh().last_outcome == "failed"
    assert re.search(r"^broken .* failed +every 10 minutes$", cli("list").out, re.MULTILINE)


def test_list_pages_by_token(cli: Cli) -> None:
    for name in "abc":
        cli("create", name, HELLO, "--every", "1h")
    first = cli("list", "--limit", "2")
    token = first.out.splitlines()[-1].removeprefix("Next page token: ")
    second = cli("list", "--limit", "2", "--page-token", token, "-o", "json").json
    assert [item["schedule_id"] for item in second["schedules"]] == ["c"]
    assert second["next_page_token"] is None


def test_list_all_reads_every_page_and_jsonl_is_a_line_each(cli: Cli) -> None:
    for name in "abc":
        cli("create", name, HELLO, "--every", "1h")
    lines = cli("list", "--all", "--limit", "1", "-o", "jsonl").lines
    assert [item["schedule_id"] for item in lines] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(["--status", "paused"], ["b"], id="status"),
        pytest.param(["--workflow", BY_PATH], ["b"], id="workflow"),
        pytest.param(["--label", "team=ops"], ["a"], id="label"),
        pytest.param(["--owner", "me"], ["a"], id="owner"),
        pytest.param(["--text", "B"], ["b"], id="part of the id"),
        pytest.param(["--query", f'Status = "active" AND WorkflowType = "{HELLO}" AND tier = 2'], ["a"], id="query"),
        pytest.param(["--query", "tier = 3"], [], id="query that nothing meets"),
        pytest.param(["--query", "ScheduleId = b", "--workflow", HELLO], [], id="query against a filter"),
        pytest.param(["--query", "status = paused"], [], id="query of a search attribute of that name"),
        pytest.param(["--query", "Status = 'deleted'"], ["d"], id="query of the deleted"),
        pytest.param(["--namespace", "other"], ["c"], id="namespace"),
        pytest.param(["--status", "deleted"], ["d"], id="deleted"),
        pytest.param([], ["a", "b"], id="none"),
    ],
)
def test_list_filters(cli: Cli, words: list[str], found: list[str]) -> None:
    scheduler, hourly = cli.scheduler, Every("1h")
    scheduler.create("a", HELLO, hourly, labels={"team": "ops"}, owner="me", search_attributes={"tier": 2})
    scheduler.create("b", BY_PATH, hourly, paused=True)
    scheduler.create("c", HELLO, hourly, namespace="other")
    scheduler.create("d", HELLO, hourly).delete()
    assert [item["schedule_id"] for item in cli("list", *words, "-o", "json").json["schedules"]] == found


@pytest.mark.parametrize("option", ["--workflow", "--owner", "--text", "--query", "--page-token"])
@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_filter_of_a_list_is_a_usage_error(cli: Cli, option: str, blank: str) -> None:
    assert f"{option}: is blank" in cli("list", option, blank, code=2).err


@pytest.mark.parametrize("query", ["status ~ x", "Status = 'nope'", "a = 1 OR b = 2", "a = 1 AND"])
def test_an_invalid_query_is_a_usage_error(cli: Cli, query: str) -> None:
    assert "query: " in cli("list", "--query", query, code=2).err


@pytest.mark.parametrize("limit", ["0", "501", "many", "1.5"])
def test_a_limit_out_of_bounds_is_a_usage_error(cli: Cli, limit: str) -> None:
    cli("list", "--limit", limit, code=2)


def test_json_may_be_in_a_file(cli: Cli, tmp_path: Path) -> None:
    args, kwargs, memo = (tmp_path / name for name in ("args.json", "kwargs.json", "memo.json"))
    args.write_text('["eu", 1]')
    kwargs.write_text('{"region": "\u00e9"}', encoding="utf-8")
    memo.write_text('{"ticket": 7}')
    words = ["--args", f"@{args}", "--kwargs", f"@{kwargs}", "--set", f"memo=@{memo}"]
    cli("create", "a", HELLO, "--every", "1h", *words)
    described = cli("describe", "a", "-o", "json").json
    assert [described[name] for name in ("args", "kwargs", "memo")] == [["eu", 1], {"region": "\u00e9"}, {"ticket": 7}]


def test_json_may_be_on_standard_input(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--args", "[1]", "--kwargs", '{"region": "eu"}')
    cli("update", "a", "--kwargs", "@-", stdin='{"region": "us"}')
    described = cli("describe", "a", "-o", "json").json
    assert (described["args"], described["kwargs"]) == ([1], {"region": "us"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"[1", "--args: is not valid JSON", id="no JSON"),
        pytest.param(b"{}", "--args: is the wrong kind of JSON", id="no list"),
        pytest.param(b"\xff[]", "--args: is not UTF-8", id="no text"),
        pytest.param(None, "cannot be read (No such file or directory); name a file", id="no file"),
    ],
)
def test_a_file_of_arguments_that_cannot_be_read_is_a_usage_error(
    cli: Cli, content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "input.json"
    if content is not None:
        path.write_bytes(content)
    assert message in cli("create", "a", HELLO, "--every", "1h", "--args", f"@{path}", code=2).err
    assert cli("list", "-o", "json").json["schedules"] == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(["--sort", "id"], "abc", id="by id"),
        pytest.param(["--sort", "-id"], "cba", id="by id, turned round"),
        pytest.param(["--sort", "-created"], "acb", id="the newest first"),
        pytest.param(["--sort", "next"], "ab", id="the soonest first"),
        pytest.param(["--sort=-next", "--all"], "ba", id="the latest first, all pages"),
        pytest.param(["--created-since", "2026-01-01T00:00:00Z"], "bca", id="created since"),
        pytest.param(["--created-until", "2026-01-01T00:00:00Z"], "", id="created until"),
        pytest.param(["--next-since", "2098-01-01T01:00:00+01:00"], "b", id="next since"),
        pytest.param(["--next-until", "2098-01-01T00:00:00Z", "--all"], "a", id="next until"),
        pytest.param(["--next-since", "2090-01-01T00:00:00Z", "--sort", "next", "--limit", "1"], "a", id="together"),
    ],
)
def test_list_is_sorted_and_takes_spans_of_time(cli: Cli, words: list[str], found: str) -> None:
    for schedule_id, year in (("b", 2098), ("c", 2099), ("a", 2097)):
        cli.scheduler.create(schedule_id, HELLO, Once(datetime(year, 1, 1, tzinfo=UTC)), paused=schedule_id == "c")
    assert "".join(item["schedule_id"] for item in cli("list", *words, "-o", "json").json["schedules"]) == found


def test_list_pages_on_in_its_order(cli: Cli) -> None:
    for schedule_id in "bca":
        cli.scheduler.create(schedule_id, HELLO, "1h")
    first = cli("list", "--sort", "-id", "--limit", "2", "-o", "json").json
    token = first["next_page_token"]
    rest = cli("list", "--sort", "-id", "--page-token", token, "-o", "json").json
    assert [item["schedule_id"] for page in (first, rest) for item in page["schedules"]] == ["c", "b", "a"]


def test_list_goes_on_past_many_that_do_not_match(cli: Cli) -> None:
    for name in ("rare-1", "model", "rare-2"):
        model = cli.scheduler.create(name, HELLO, "1h")
        if name == "model":
            copy_schedule(cli.scheduler.runtime, model, MOST_LOOKED_AT)
    words = ("list", "--text", "rare", "-o", "json")
    assert [item["schedule_id"] for item in cli(*words).json["schedules"]] == ["rare-1", "rare-2"]
    token = cli(*words, "--limit", "1").json["next_page_token"]
    rest = cli(*words, "--page-token", token).json
    assert [item["schedule_id"] for item in rest["schedules"]] == ["rare-2"]
    assert rest["next_page_token"] is None


def test_an_empty_list_says_so(cli: Cli) -> None:
    assert cli("list").out == "Namespace: default\nNo schedules.\n"
    empty: dict[str, object] = {"namespace": "default", "schedules": [], "next_page_token": None}
    assert cli("list", "-o", "json").json == empty


def test_an_update_of_nothing_is_a_usage_error(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    assert "nothing to change" in cli("update", "a", code=2).err


def test_describe_shows_the_fields_and_the_next_fires(cli: Cli) -> None:
    cli("create", "a", HELLO, "--cron", "0 2 * * *", "--note", "why")
    told = dict(line.split(maxsplit=1) for line in cli("describe", "a").out.splitlines())
    assert told["note"] == "why"
    assert told["timing"] == "cron 0 2 * * * UTC"
    assert len(told["upcoming"].split(", ")) == 5
    assert "policies" not in told


def test_describe_shows_only_policies_that_differ_from_the_default(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--set", "missed=skip")
    told = dict(line.split(maxsplit=1) for line in cli("describe", "a").out.splitlines())
    assert told["policies"] == '{"missed": "skip"}'


def test_describe_shows_the_first_line_of_an_error(cli: Cli) -> None:
    handle = cli.scheduler.create("a", BOOM, Every("1h"))
    handle.trigger()
    execute_pending(cli.scheduler)
    told = dict(line.split(maxsplit=1) for line in cli("describe", "a").out.splitlines())
    assert told["last_error"] == "ValueError: no"
    last_error = present(handle.describe().last_error)
    assert len(last_error.splitlines()) > 1


def test_stored_text_cannot_control_the_terminal(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--set", "description=\x1b[31mred [bold]x[/bold]\nline")
    out = cli("describe", "a").out
    assert "\x1b" not in out
    assert "\N{REPLACEMENT CHARACTER}[31mred [bold]x[/bold]\N{REPLACEMENT CHARACTER}line" in out


def test_a_schedule_comes_after_another_and_commands_say_so(cli: Cli, tmp_path: Path) -> None:
    cli("create", "nightly", HELLO, "--every", "1h")
    cli("create", "report", HELLO, "--after", "nightly", "--set", "on=failure")
    assert cli("describe", "report", "-o", "json").json["spec"] == {"after": {"schedule": "nightly", "on": "failure"}}
    assert "It fires after each failure of nightly: no times ahead." in cli("forecast", "upcoming", "report").out
    assert "none has ended yet" in cli("why", "report").out
    cli("update", "report", "--after", "nightly")
    file = tmp_path / "all.yaml"
    cli("export", str(file))
    assert "after: nightly\n  'on': success\n" in file.read_text()
    file.write_text(file.read_text().replace("'on': success", "on: end"))  # which YAML 1.1 reads as true
    cli("sync", str(file))
    assert cli("describe", "report", "-o", "json").json["spec"]["after"]["on"] == "end"
    file.write_text(file.read_text().replace("on: end", "start_at: 2026-01-01T00:00:00Z"))
    assert "start_at: does not apply" in cli("sync", str(file), code=2).err
    assert "after: is missing" in cli("create", "x", HELLO, "--set", "on=end", code=2).err
    cli("delete", "nightly")
    assert "which is not there any more" in cli("why", "report").out
    assert cli.findings(1)["after"]["level"] == "warning"
