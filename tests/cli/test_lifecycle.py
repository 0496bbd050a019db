"""pause, resume, restart, delete, trigger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rqsched import CommandContext, Cron, Every
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.cli.output import shown
from rqsched.kernel.decide.ids import iso_utc
from tests.support.cli import HELLO, Cli


@pytest.fixture
def handle(cli: Cli) -> ScheduleHandle:
    return cli.scheduler.create("a", HELLO, Every("1h"))


def events(handle: ScheduleHandle) -> list[str]:
    return [event.event_type for event in handle.history()]


def test_pause_and_resume_say_what_the_schedule_is_now(cli: Cli, handle: ScheduleHandle) -> None:
    paused = cli("pause", "a", "--note", "holiday", "--reason", "ticket 8", "-o", "json").json
    assert (paused["outcome"], paused["status"], paused["next_run_at"]) == ("paused", "paused", None)
    resumed = cli("resume", "a", "-o", "json").json
    assert (resumed["outcome"], resumed["status"]) == ("resumed", "active")
    assert resumed["next_run_at"]
    assert handle.refresh().note == "holiday"
    assert handle.history()[1].payload["reason"] == "ticket 8"


def test_pause_takes_its_end_as_an_instant_or_a_length_from_now(cli: Cli, handle: ScheduleHandle) -> None:
    said = cli("pause", "a", "--until", "2125-01-31T08:00:00Z", "--on-resume", "once")
    assert said.out == "Schedule a paused (until 2125-01-31T08:00:00Z).\n"
    assert (handle.refresh().resume_at, handle.resume_mode) == (datetime(2125, 1, 31, 8, tzinfo=UTC), "once")
    before = datetime.now(UTC)
    again = cli("pause", "a", "--until", "2h", "-o", "json").json
    assert before + timedelta(hours=2) <= datetime.fromisoformat(again["resume_at"])
    assert "names no timezone" in cli("pause", "a", "--until", "2125-01-31T08:00", code=2).err
    assert "has passed" in cli("pause", "a", "--until", "2025-01-31T08:00Z", code=2).err
    assert "add `until`" in cli("pause", "a", "--on-resume", "once", code=2).err


def test_skip_says_what_is_skipped_and_takes_it_back(cli: Cli) -> None:
    handle = cli.scheduler.create("a", HELLO, Cron("0 9 1 1 *"))
    first = handle.next_run_at

    said = cli("skip", "a", "--reason", "a holiday")

    skips = ", ".join(shown(at) for at in handle.refresh().skips)
    assert (handle.skips, skips in said.out) == ([first], True)
    assert said.out.startswith("Schedule a changed (active; skips ")
    assert cli("skip", "a", "2", "-o", "json").json["skips"] == [iso_utc(at) for at in handle.refresh().skips]
    assert skips in cli("describe", "a").out
    assert "a holiday" in cli("history", "a").out
    assert "skips" not in cli("skip", "a", "0").out
    assert handle.refresh().next_run_at == first
    assert "from 0 to 100" in cli("skip", "a", "101", code=2).err


def test_history_says_who_asked_to_skip(cli: Cli) -> None:
    past = cli.past().create("a", HELLO, Every("20m"))
    past.skip_next(context=CommandContext(principal="ann", reason="a holiday"))

    cli("tick")

    assert "skip_next; asked by ann; a holiday" in cli("history", "a").out


def test_resume_takes_on_resume(cli: Cli) -> None:
    past = cli.past().create("late", HELLO, Every("40m"))
    past.pause()
    was_next = past.state.paused_next_run_at
    cli("resume", "late", "--on-resume", "once")
    assert cli.scheduler.get("late").next_run_at == was_next


def test_restart_revives_what_is_done(cli: Cli) -> None:
    done = cli.scheduler.create("a", HELLO, Every("1h"), max_runs=1)
    done.trigger()
    assert done.refresh().status == "done"
    assert cli("restart", "a", "-o", "json").json["status"] == "active"


def test_delete_leaves_the_history_and_frees_the_id(cli: Cli, handle: ScheduleHandle) -> None:
    assert cli("delete", "a", "--reason", "gone", "-o", "json").json["outcome"] == "deleted"
    assert events(handle) == ["ScheduleCreated", "ScheduleDeleted"]
    assert "ScheduleDeleted" in cli("history", "a").out
    cli("create", "a", HELLO, "--every", "1h")


def test_purge_removes_a_deleted_schedule_with_everything(cli: Cli, handle: ScheduleHandle) -> None:
    cli("delete", "a")
    assert cli("delete", "a", "--purge", "--yes").out.startswith("Schedule a purged")
    cli("history", "a", code=3)


def test_trigger_prints_the_run(cli: Cli, handle: ScheduleHandle) -> None:
    answer = cli("trigger", "a", "-o", "json").json
    assert answer["outcome"] == "triggered"
    assert answer["instance_id"].startswith("schedule:a:manual:")
    assert answer["run"]["status"] == "pending"
    assert [run.uid for run in handle.runs().items] == [answer["run_id"]]


def test_trigger_line_is_id_and_instance(cli: Cli, handle: ScheduleHandle) -> None:
    line = cli("trigger", "a").out
    assert line.startswith("[a] → schedule:a:manual:")


def test_a_skipped_trigger_is_exit_code_4_with_its_reason(cli: Cli, handle: ScheduleHandle) -> None:
    cli("trigger", "a")
    answer = cli("trigger", "a", "-o", "json", code=4).json
    assert (answer["outcome"], answer["reason"], answer["run_id"]) == ("skipped", "overlap_policy_skip", None)


def test_trigger_with_another_policy_starts_beside_or_waits(cli: Cli, handle: ScheduleHandle) -> None:
    cli("trigger", "a")
    assert cli("trigger", "a", "--overlap", "allow_all", "-o", "json").json["outcome"] == "triggered"
    waiting = cli("trigger", "a", "--overlap", "buffer_one", "-o", "json").json
    assert (waiting["outcome"], waiting["buffer_depth"]) == ("buffered", 1)


def test_a_paused_schedule_is_triggered_only_by_force(cli: Cli, handle: ScheduleHandle) -> None:
    handle.pause()
    refused = cli("trigger", "a", code=4)
    assert "status_not_triggerable" in refused.out
    assert "--force" in refused.err
    cli("trigger", "a", "--force")


def test_an_idempotency_key_starts_one_run(cli: Cli, handle: ScheduleHandle) -> None:
    first, again = (cli("trigger", "a", "--idempotency-key", "k", "-o", "json").json["run_id"] for _ in range(2))
    assert first == again
    assert handle.refresh().run_count == 1


def test_the_output_has_the_status_unless_the_outcome_says_it(cli: Cli) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    when = f"next fire {soon:%Y-%m-%dT%H:%M:%SZ}"
    told = [
        cli("create", "new", HELLO, "--once", soon.isoformat()).out,
        cli("pause", "new").out,
        cli("update", "new", "--queue", "q").out,
        cli("resume", "new").out,
        cli("delete", "new").out,
        cli("delete", "new", "--purge", "--yes").out,
    ]
    assert told == [
        f"Schedule new created (active; {when}).\n",
        "Schedule new paused.\n",
        "Schedule new updated (paused).\n",
        f"Schedule new resumed (active; {when}).\n",
        "Schedule new deleted.\n",
        "Schedule new purged.\n",
    ]


def test_the_printed_next_fire_includes_jitter(cli: Cli) -> None:
    told = cli("create", "new", HELLO, "--cron", "0 2 * * *", "--set", "jitter=20h").out
    due_at = cli.scheduler.get("new").state.due_at
    assert f"next fire {due_at:%Y-%m-%dT%H:%M:%SZ}" in told
