"""`rqsched freeze` and `thaw`: their output for people and programs."""

from __future__ import annotations

import pytest

from rqsched import Every
from rqsched.errors import ConflictError
from tests.support.cli import HELLO, Cli


def test_freeze_preview_and_thaw_tell_people_what_they_did(cli: Cli) -> None:
    cli.past(hours=1).create("late", HELLO, Every("30m"))
    shown = cli("thaw", "--everything", "--preview").out
    assert "There is no freeze of everything.\nDue: 1 schedule, with 1 run to start" in shown
    assert cli.scheduler.frozen() == []
    assert cli("freeze", "--everything", "--history").out == "There has been no freeze of everything.\n"

    assert "Everything is frozen since " in (told := cli("freeze", "--everything", "--reason", "restore").out)
    assert "(restore), in Redis and SQL." in told
    assert "frozen since" in cli("trigger", "late", code=ConflictError.exit_code).err
    assert cli("tick").out == "No schedules due.\n"
    preview = cli("thaw", "--everything", "--preview", "-o", "json").json
    assert (preview["freeze"]["reason"], [row["schedule_id"] for row in preview["schedules"]]) == ("restore", ["late"])
    assert cli.findings(1)["all-frozen"]["level"] == "warning"

    told = cli("thaw", "--everything", "--missed", "none", "--cancel-pending").out

    assert told.startswith("Thawed: everything was frozen since ")
    assert "; due: 1 schedule with 0 occurrences fired, " in told
    assert told.endswith(" recorded as missed; 0 runs cancelled.\n")
    assert cli("thaw", "--everything").out == "There was no freeze of everything.\n"
    assert "restore" in cli("freeze", "--everything", "--history").out
    (over,) = cli("freeze", "--everything", "--history", "-o", "json").json
    assert (over["reason"], over["since"], over["kept_in"]) == ("restore", preview["freeze"]["since"], [])
    assert over["thawed_at"] > over["since"]
    assert cli("tick").out == "No schedules due.\n"


def test_since_alone_is_refused(cli: Cli) -> None:
    assert "missed" in cli("thaw", "--since", "2026-01-01T00:00:00Z", code=2).err


@pytest.mark.parametrize("options", [["--missed", "one"], ["--preview"], ["--list", "--history"]])
def test_a_freeze_with_options_of_a_thaw_or_of_two_lists_freezes_nothing(cli: Cli, options: list[str]) -> None:
    assert options[0] in cli("freeze", "tenant", *options, code=2).err
    assert cli.scheduler.frozen() == []


def test_a_process_that_is_frozen_by_its_environment_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.scheduler.create("daily", HELLO, Every("24h"))
    monkeypatch.setenv("RQSCHED_FREEZE", "1")
    assert "RQSCHED_FREEZE" in cli("trigger", "daily", code=ConflictError.exit_code).err


def test_a_frozen_namespace_is_deleted_by_its_name(cli: Cli) -> None:
    cli.scheduler.create("nightly", HELLO, Every("24h"), namespace="tenant")
    cli.scheduler.create("daily", HELLO, Every("24h"))
    delete = "namespace", "delete", "tenant"
    assert "is not frozen: run `rqsched freeze tenant` first" in cli(*delete, "--preview").out
    assert "rqsched freeze tenant" in cli(*delete, "--yes", code=ConflictError.exit_code).err
    cli("freeze", "tenant")
    assert cli(*delete, "--preview", "-o", "json").json["rows"]["schedules"] == 1
    assert "--yes: is missing" in cli(*delete, code=2).err
    assert [one.namespace for one in cli.scheduler.frozen()] == ["tenant"]

    told = cli(*delete, "--yes", "--reason", "it leaves").out

    assert told == "Namespace tenant is deleted (audit events: 1, schedules: 1); 0 runs terminated.\n"
    assert cli.scheduler.list(namespace="tenant").items == []
    assert [one.schedule_id for one in cli.scheduler.list().items] == ["daily"]
    assert cli.scheduler.frozen() == []


def test_a_namespace_is_frozen_looked_at_and_thawed(cli: Cli) -> None:
    cli.scheduler.create("nightly", HELLO, Every("24h"), namespace="tenant")
    cli.scheduler.create("daily", HELLO, Every("24h"))
    assert cli("freeze", "--list").out == "Nothing is frozen.\n"

    told = cli("freeze", "tenant", "--reason", "it moves").out

    assert told.startswith("Namespace tenant is frozen since ")
    assert "(it moves)" in told
    assert "rqsched thaw tenant" in cli("trigger", "nightly", "-n", "tenant", code=ConflictError.exit_code).err
    cli("trigger", "daily")
    assert [row["namespace"] for row in cli("freeze", "--list", "-o", "json").json] == ["tenant"]
    assert cli("thaw", "--preview", "--missed", "none", "tenant", "-o", "json").json["freeze"]["reason"] == "it moves"
    assert cli("thaw", "--preview").out.startswith("There is no freeze of namespace default.")
    found = cli.findings(1)
    assert (found["frozen"]["level"], found["all-frozen"]["level"]) == ("warning", "ok")
    assert "give one of them" in cli("thaw", "tenant", "-n", "default", code=2).err
    for both in (("tenant",), ("-n", "tenant")):
        assert "give one of them" in cli("freeze", "--everything", *both, code=2).err

    told = cli("thaw", "-n", "tenant", "--missed", "one", "--cancel-pending").out

    assert told.startswith("Thawed: namespace tenant was frozen since ")
    assert told.endswith("; due: 0 schedules with 0 occurrences fired, 0 recorded as missed; 0 runs cancelled.\n")
    assert cli("thaw", "tenant").out == "There was no freeze of namespace tenant.\n"
    assert "it moves" in cli("freeze", "tenant", "--history").out
    assert cli("freeze", "--history").out == "There has been no freeze of namespace default.\n"
