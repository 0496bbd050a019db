"""The command `bulk`, and `update --paused`."""

from __future__ import annotations

import pytest

from rqsched import Every
from tests.support.cli import HELLO, Cli


def test_bulk_skips_the_next_occurrences_of_each(cli: Cli) -> None:
    handles = [cli.scheduler.create(name, HELLO, Every("1h")) for name in "ab"]
    done = cli("bulk", "skip", "--count", "3", "--reason", "the vendor moves")
    assert done.out.splitlines()[-1] == "Done: 2 skips_next."
    assert [len(handle.refresh().skips) for handle in handles] == [3, 3]
    assert "from 0 to 100" in cli("bulk", "skip", "--count", "101", code=2).err
    assert "leave it out of pause" in cli("bulk", "pause", "--count", "2", code=2).err


def test_bulk_shows_what_it_would_do_and_does_it(cli: Cli) -> None:
    for name in ("a", "b"):
        cli("create", name, HELLO, "--every", "1h", "--label", "team=x")
    planned = cli("bulk", "pause", "--label", "team=x", "--dry-run", "-o", "json").json
    assert planned["counts"] == {"would_pause": 2}
    assert cli("bulk", "pause", "--label", "team=x", "--reason", "later").out.splitlines()[-1] == "Done: 2 paused."
    assert cli("bulk", "pause").out.splitlines()[-1] == "Done: no schedules."
    assert cli("bulk", "resume", "-o", "jsonl").out.count("resumed") == 2


@pytest.mark.parametrize("option", ["--workflow", "--owner", "--text"])
def test_a_blank_filter_is_a_usage_error_and_touches_no_schedule(cli: Cli, option: str) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    assert f"{option}: is blank" in cli("bulk", "pause", option, "", code=2).err
    assert cli("describe", "a", "-o", "json").json["status"] == "active"


def test_update_pauses_and_makes_fire_again(cli: Cli) -> None:
    cli("create", "a", HELLO, "--every", "1h")
    for option, status in (("--paused", "paused"), ("--active", "active")):
        cli("update", "a", option)
        assert cli.scheduler.get("a").status == status
