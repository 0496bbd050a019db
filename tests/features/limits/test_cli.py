"""Limits on the command line: groups are listed, and their numbers changed."""

from __future__ import annotations

from rqsched import Every
from rqsched.errors import ConflictError
from tests.support.cli import HELLO, Cli


def test_groups_are_listed_and_their_numbers_changed(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--set", "limit=shop", "--set", "limit_running=2")
    assert "shop" in cli("limits", "list").out
    (group,) = cli("limits", "list", "-o", "json").json
    assert (group["name"], group["number"], group["waiting"], group["waiting_since"]) == ("shop", 2, 0, None)

    assert cli("limits", "set", "shop", "--number", "5").out == "Of shop 5 may run at once.\n"

    assert cli("limits", "set", "shop", "--number", "6", "-o", "json").json["number"] == 6
    assert "give --number N, --rate N/min or --unset" in cli("limits", "set", "shop", code=2).err
    assert "no group 'other'" in cli("limits", "set", "other", "--number", "5", code=3).err


def test_runs_say_their_group_and_their_place_in_line(cli: Cli) -> None:
    for name in ("a", "b"):
        cli.scheduler.create(name, HELLO, Every("1h"), limit="shop", limit_running=1)
        cli("trigger", name)
    found = {run["schedule_id"]: (run["limit"], run["place_in_line"]) for run in cli("runs", "-o", "json").json["runs"]}
    assert found == {"a": ("shop", None), "b": ("shop", 1)}
    assert cli("run", "show", "1", "--schedule", "b", "-o", "json").json["place_in_line"] == 1

    cli("limits", "set", "shop", "--number", "2", "--reason", "the sale")
    (change,) = cli("limits", "list", "-o", "json").json[0]["changes"]
    assert (change["was"], change["number"], change["reason"]) == (1, 2, "the sale")
    assert change["by"]


def test_rates_are_listed_changed_and_taken_off(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h", "--set", "limit=shop", "--set", "limit_rate=100/minute")
    assert "100/min" in cli("limits", "list").out
    (group,) = cli("limits", "list", "-o", "json").json
    assert (group["number"], group["rate"], group["started"]) == (None, "100/min", 0)

    said = cli("limits", "set", "shop", "--number", "5", "--rate", "9/30s").out
    assert said == "Of shop 5 may run at once and 9 may start in any 30 s.\n"
    changed = cli("limits", "set", "shop", "--unset", "rate", "-o", "json").json
    change = changed["changes"][0]
    assert (changed["rate"], change["was_rate"], change["rate"], change["number"]) == (None, "9/30s", None, 5)
    assert "give the other, or keep it" in cli("limits", "set", "shop", "--unset", "number", code=2).err
    assert "does not name a window" in cli("limits", "set", "shop", "--rate", "5/year", code=2).err


def test_another_number_is_refused(cli: Cli) -> None:
    cli.scheduler.create("a", HELLO, Every("1h"), limit="shop", limit_running=2)
    refused = cli("create", "b", HELLO, "--every", "1h", "--set", "limit=shop", "--set", "limit_running=3", code=4)
    assert ConflictError.exit_code == 4
    assert "rqsched limits set NAME --number N" in refused.err
