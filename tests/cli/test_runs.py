"""history, runs, cancel, terminate."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from rqsched import Every, RetryPolicy
from rqsched.api.description import RunDescription
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.cli.runs import _RunFilter
from rqsched.kernel.decide.model import BLOCKED, EXPIRED, RunStatus
from rqsched.testing import execute_pending, run_due
from tests.support.cli import BOOM, HELLO, LONG, Cli
from tests.support.env import block
from tests.support.narrow import present

HINT = "More events available: continue with --after-sequence=2 or --all."


@pytest.fixture
def handle(cli: Cli) -> ScheduleHandle:
    """Five events: created, triggered, paused, resumed, triggered."""
    handle = cli.scheduler.create("a", HELLO, Every("1h"), overlap="allow_all")
    handle.trigger()
    handle.pause()
    handle.resume()
    handle.trigger()
    return handle


def test_history_is_the_table_of_the_durable_workflow_cli(cli: Cli, handle: ScheduleHandle) -> None:
    head, created, triggered, *_ = cli("history", "a").out.splitlines()
    assert [part.strip() for part in head.split("  ") if part.strip()] == [
        "Seq",
        "Event",
        "Recorded At",
        "Workflow Refs",
        "Reason",
    ]
    assert created.split()[:2] == ["1", "ScheduleCreated"]
    run = handle.runs().items[-1]
    assert f"wf={run.instance_id} run={run.uid}" in triggered


def test_history_without_events_says_so(cli: Cli, handle: ScheduleHandle) -> None:
    assert cli("history", "a", "--after-sequence", "99").out == "No audit events recorded for schedule a.\n"
    assert cli("history", "a", "--after-sequence", "99", "-o", "json").json["events"] == []


def test_history_shows_why_each_thing_happened(cli: Cli) -> None:
    broken = cli.scheduler.create("broken", BOOM, Every("1h"), retry=RetryPolicy(max_retries=0, then="dead"))
    cli("pause", "broken", "--reason", "ticket 8")
    cli("trigger", "broken", code=4)
    broken.refresh().trigger(force=True)
    execute_pending(cli.scheduler)

    lines = {line.split()[1]: line for line in cli("history", "broken").out.splitlines()}
    assert lines["SchedulePaused"].endswith("ticket 8")
    assert lines["ScheduleTriggerSkipped"].endswith("status_not_triggerable")
    assert lines["RunFailed"].endswith("ValueError: no")


def test_history_shows_how_many_occurrences_were_missed_and_why(cli: Cli) -> None:
    cli.past(4.5).create("hourly", HELLO, Every("1h"))
    run_due(cli.scheduler)

    (line,) = (line for line in cli("history", "hourly").out.splitlines() if "ScheduleMissed" in line)
    assert line.endswith("3 missed: nothing fired in time, and one run makes up for all")


def test_runs_show_the_whole_first_line_of_an_error(cli: Cli) -> None:
    text = f"the invoice {'x' * 100} is missing"
    cli.scheduler.create("long", LONG, Every("1h"), args=[text], retry=RetryPolicy(max_retries=0)).trigger()
    execute_pending(cli.scheduler)
    assert cli("runs", "long").out.splitlines()[1].endswith(f"ValueError: {text}")


def test_run_shows_one_run_whole(cli: Cli) -> None:
    retry = RetryPolicy(max_retries=0, then="continue")
    for name, workflow in (("broken", BOOM), ("fine", HELLO)):
        cli.scheduler.create(name, workflow, Every("1h"), retry=retry, queue="default").trigger()
    execute_pending(cli.scheduler)

    broken = cli("run", "show", "1", "--schedule", "broken").out
    assert re.search(r"^status +failed$", broken, re.MULTILINE)
    assert re.search(r"^1 +failed .*ValueError: no$", broken, re.MULTILINE), "its attempts"
    assert 'raise ValueError("no")' in broken, "where it was raised"
    uid = cli.scheduler.get("fine").runs().items[0].uid
    assert cli("run", "show", uid).out.endswith('\nResult:\n"hello world"\n')
    assert cli("run", "show", uid, "-o", "json").json["result"] == "hello world"
    cli("run", "show", "nobody", code=3)


def test_history_hints_at_more_and_continues_after_a_sequence(cli: Cli, handle: ScheduleHandle) -> None:
    first = cli("history", "a", "--limit", "2").out.splitlines()
    assert first[-1] == HINT
    rest = cli("history", "a", "--limit", "3", "--after-sequence", "2").out.splitlines()
    assert [line.split()[0] for line in rest] == ["Seq", "3", "4", "5"]


def test_history_all_reads_every_page_without_a_hint(cli: Cli, handle: ScheduleHandle) -> None:
    lines = cli("history", "a", "--limit", "2", "--all").out.splitlines()
    assert [line.split()[0] for line in lines] == ["Seq", "1", "2", "3", "4", "5"]


def test_history_as_json_has_the_envelope_of_the_http_route(cli: Cli, handle: ScheduleHandle) -> None:
    page = cli("history", "a", "--limit", "2", "-o", "json").json
    assert {name: page[name] for name in ("schedule_id", "namespace", "next_cursor", "has_more")} == {
        "schedule_id": "a",
        "namespace": "default",
        "next_cursor": 2,
        "has_more": True,
    }
    assert [event["sequence"] for event in page["events"]] == [1, 2]
    last = cli("history", "a", "--after-sequence", "4", "-o", "json").json
    assert (last["has_more"], last["next_cursor"]) == (False, None)


def test_history_as_jsonl_is_self_contained_events(cli: Cli, handle: ScheduleHandle) -> None:
    events = cli("history", "a", "--all", "-o", "jsonl").lines
    assert [event["event_type"] for event in events][:2] == ["ScheduleCreated", "ScheduleTriggered"]
    assert set(events[1]) >= {"sequence", "event_type", "payload", "workflow_instance_id", "workflow_run_id"}


def test_runs_are_shown_newest_first_and_paged(cli: Cli, handle: ScheduleHandle) -> None:
    first = cli("runs", "a", "--limit", "1", "-o", "json").json
    second = cli("runs", "a", "--page-token", first["next_page_token"], "-o", "jsonl").lines
    assert [first["runs"][0]["number"], second[0]["number"]] == [2, 1]
    assert second[0]["kind"] == "manual"
    assert (second[0]["args"], second[0]["kwargs"]) == ([], {})
    assert set(second[0]) == {field.name for field in fields(RunDescription)}, "as HTTP shows it, and so no token"


def test_runs_as_a_table_filter_by_status(cli: Cli, handle: ScheduleHandle) -> None:
    handle.run("1").cancel()
    lines = cli("runs", "a", "--status", "cancelled").out.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:2] == ["1", "manual"]
    assert cli("runs", "a", "--status", "lost").out == "No runs.\n"


@pytest.mark.parametrize(("command", "status"), [("cancel", "cancelled"), ("terminate", "terminated")])
def test_a_run_is_ended_by_number_and_again_without_an_error(
    cli: Cli, handle: ScheduleHandle, command: str, status: str
) -> None:
    assert cli(command, "a", "1", "-o", "json", "--reason", "it hangs").json["status"] == status
    (event,) = [event for event in handle.history() if event.event_type == f"Run{status.capitalize()}"]
    assert (event.payload["reason"], event.payload["command_context"]["source"]) == ("it hangs", "cli")
    assert cli(command, "a", "1").out.endswith(f"is {status}.\n")
    assert handle.run("1").status == status


def test_a_run_that_ended_otherwise_is_a_conflict(cli: Cli, handle: ScheduleHandle) -> None:
    run = handle.run("2").cancel()
    assert "is cancelled; it had already ended" in cli("terminate", "a", run.uid, code=4).out


def test_a_run_of_a_deleted_schedule_can_still_be_ended(cli: Cli, handle: ScheduleHandle) -> None:
    run = handle.run("2")
    handle.delete()
    assert cli("runs", "a", "-o", "jsonl").lines
    cli("cancel", "a", run.instance_id)
    assert run.refresh().status == "cancelled"


def test_a_blocked_run_is_shown_as_such_with_its_reason_and_can_be_listed_alone(cli: Cli) -> None:
    handle = cli.scheduler.create("a", HELLO, Every("1h"), overlap="allow_all")
    run = block(cli.scheduler.runtime, present(handle.trigger().run), "no billing")
    handle.trigger()

    (line,) = cli("runs", "a", "--status", "blocked").out.splitlines()[1:]
    assert "blocked" in line.split()
    assert present(run.blocked_reason)[:30] in line
    assert [found["number"] for found in cli("runs", "a", "--status", "blocked", "-o", "json").json["runs"]] == [1]
    both = cli("runs", "a", "--status", "blocked", "--status", "pending", "-o", "json").json["runs"]
    assert [(found["number"], found["status"], found["blocked_reason"]) for found in both] == [
        (2, "pending", None),
        (1, "pending", run.blocked_reason),
    ]
    assert cli("describe", "a", "-o", "json").json["blocked_reason"] is None, "its newest run is not blocked"
    assert "Invalid value" in cli("runs", "a", "--status", "blokced", code=2).err


def test_every_status_can_be_asked_for() -> None:
    assert set(_RunFilter) == {*RunStatus, BLOCKED, EXPIRED}


def test_runs_without_an_id_are_those_of_all_schedules(cli: Cli) -> None:
    for name, workflow in (("sound", HELLO), ("broken", BOOM)):
        cli.scheduler.create(name, workflow, Every("1h"), retry=RetryPolicy(0)).trigger()
        execute_pending(cli.scheduler)
    rows = [line.split()[0] for line in cli("runs").out.splitlines()[1:]]
    assert sorted(rows) == ["broken", "sound"]
    found = cli("runs", "-o", "json").json
    assert {run["schedule_id"] for run in found["runs"]} == {"broken", "sound"}
    assert [run["schedule_id"] for run in cli("runs", "--status", "failed", "-o", "json").json["runs"]] == ["broken"]
    (failed,) = cli("runs", "--error", "boom", "--since", "1h", "--workflow", BOOM, "-o", "json").json["runs"]
    assert (failed["schedule_id"], failed["status"]) == ("broken", "failed")
    of_one = cli("runs", "sound", "--error", "boom", "-o", "json").json
    assert (of_one["schedule_id"], of_one["runs"]) == ("sound", [])
    assert cli("runs", "--until", "2020-01-01T00:00:00Z").out == "No runs.\n"
    first = cli("runs", "--limit", "1", "-o", "json").json
    second = cli("runs", "--limit", "1", "--page-token", first["next_page_token"], "-o", "json").json
    assert {run["schedule_id"] for page in (first, second) for run in page["runs"]} == {"broken", "sound"}
    assert "--error" in cli("runs", "--error", " ", code=2).err
    assert "--since" in cli("runs", "--since", "yesterday", code=2).err


def test_a_run_is_run_again_by_its_uid_or_number(cli: Cli, handle: ScheduleHandle) -> None:
    execute_pending(cli.scheduler)
    first, second = reversed(handle.runs().items)

    found = cli("run", "again", first.uid, "--reason", "the file is complete", "-o", "json").json

    assert (found["copied_from"], found["status"], found["number"]) == (first.uid, "pending", 3)
    told = cli("run", "again", "2", "--schedule", "a", "--kwargs", "{}", "--downstream").out
    copy = handle.runs().items[0]
    assert told == f"Run {copy.instance_id} is pending.\n"
    assert copy.copied_from == second.uid
    assert cli("history", "a").out.count("the file is complete") == 1
    assert "has not ended" in cli("run", "again", copy.uid, code=4).err
    assert "reason" in cli("run", "again", first.uid, "--args", "[1]", code=2).err
    assert "JSON list" in cli("run", "again", first.uid, "--args", "{}", code=2).err
    assert "rqsched run again" in cli("again", first.uid, code=2).err
