"""tick, recover, prune, upcoming, db."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from rqsched import Cron, Every, Once, Spec
from rqsched.kernel.store import metadata
from rqsched.kernel.store.tables import schedules
from rqsched.simulate.upcoming_cli import draw, until
from tests.support.cli import HELLO, Cli


def test_tick_with_nothing_due_says_so(cli: Cli) -> None:
    cli.scheduler.create("later", HELLO, Every("1h"))
    assert cli("tick").out == "No schedules due.\n"
    assert cli("tick", "--json").json == []


def test_tick_fires_what_is_due_and_prints_a_line_each(cli: Cli) -> None:
    past = cli.past()
    handle = past.create("a", HELLO, Every("30m"))
    past.create("b", HELLO, Every("30m"), overlap="skip").trigger()
    lines = cli("tick").out.splitlines()
    assert sorted(lines[:2]) == [
        f"[a] → {handle.runs().items[0].instance_id}",
        "[b] → skipped: overlap_policy_skip",
    ]
    assert lines[2:] == ["Processed 2 schedules."]
    assert cli("tick").out == "No schedules due.\n"


def test_tick_takes_a_limit_and_prints_the_documented_rows(cli: Cli) -> None:
    past = cli.past()
    for name in "ab":
        past.create(name, HELLO, Every("30m"))
    (row,) = cli("tick", "--limit", "1", "--json").json
    assert row["outcome"] == "triggered"
    assert set(row) >= {"schedule_id", "instance_id", "run_id", "occurrence_time", "last_fired_at", "next_fire_at"}


def test_tick_with_a_fire_that_fails_is_exit_code_1_and_fires_the_others(cli: Cli) -> None:
    past = cli.past()
    broken = past.create("broken", HELLO, Every("30m"))
    past.create("sound", HELLO, Every("30m"))
    with cli.scheduler.runtime.database.engine.begin() as connection:
        connection.execute(sa.update(schedules).where(schedules.c.uid == broken.uid).values(spec="{}"))
    answer = cli("tick", code=1)
    assert "[broken] → failed: " in answer.out
    assert "[sound] → schedule:sound:" in answer.out
    assert "Processed 2 schedules." in answer.out


@pytest.mark.parametrize("words", [["recover"], ["recover", "--deep"]], ids=" ".join)
def test_recover_arms_what_redis_lost_and_counts_it(cli: Cli, words: list[str]) -> None:
    cli.scheduler.create("a", HELLO, Every("1h"))
    cli.scheduler.runtime.transport.redis.flushall()
    counts = cli(*words, "-o", "json").json
    assert (counts["links"], counts["repaired"], counts["failed"]) == (1, 1, 0)
    assert cli(*words, "-o", "json").json["repaired"] == 0


def test_prune_deletes_events_that_are_old_in_one_namespace(cli: Cli) -> None:
    past = cli.past(hours=48)
    old = past.create("a", HELLO, Every("1h"))
    other = past.create("a", HELLO, Every("1h"), namespace="other")
    cli("trigger", "a")
    answer = cli("prune", "--events-before", "P1D", "--yes", "-o", "json").json
    assert answer["events"] == 1
    assert [event.sequence for event in old.history()] == [2]
    assert len(other.history()) == 1
    assert cli("prune", "--events-before", "24h", "--all-namespaces", "-y", "-o", "json").json["events"] == 1


def test_prune_of_events_without_a_terminal_requires_yes(cli: Cli) -> None:
    old = cli.past(hours=48).create("a", HELLO, Every("1h"))
    assert "--yes" in cli("prune", "--events-before", "2099-01-01T00:00:00Z", code=2).err
    assert len(old.history()) == 1


def test_prune_deletes_what_is_beyond_the_retention_and_says_what(cli: Cli) -> None:
    past = cli.past(hours=72).create("a", HELLO, Every("1h"))
    assert cli("prune", "--retention", "2d", "--dry-run", "-o", "json").json["events"] == 1
    assert "--yes" in cli("prune", "--retention", "2d", code=2).err
    assert len(past.history()) == 1
    assert "Pruned 1 events." in cli("prune", "--retention", "2d", "--yes").out
    assert past.history() == []
    assert "retention" in cli("prune", "--retention", "2 days", "--yes", code=2).err


def test_upcoming_merges_all_schedules_in_the_order_they_fire(cli: Cli) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5)
    cli.scheduler.create("once", HELLO, Once(soon))
    cli.scheduler.create("often", HELLO, Every("2m"))
    cli.scheduler.create("paused", HELLO, Every("2m"), paused=True)
    cli.scheduler.create("elsewhere", HELLO, Every("2m"), namespace="other")
    rows = cli("forecast", "upcoming", "--count", "4", "-o", "jsonl").lines
    assert [row["schedule_id"] for row in rows] == ["often", "often", "once", "often"]
    assert [row["fires_at"] for row in rows] == sorted(row["fires_at"] for row in rows)
    elsewhere = cli("forecast", "upcoming", "-n", "other", "-c", "1", "-o", "jsonl").lines
    assert [row["schedule_id"] for row in elsewhere] == ["elsewhere"]


def test_upcoming_of_one_schedule_is_a_table_and_a_timeline(cli: Cli) -> None:
    cli.scheduler.create("nightly", HELLO, Cron("0 2 * * *"))
    lines = cli("forecast", "upcoming", "nightly", "-c", "3").out.splitlines()
    assert [part.strip() for part in lines[0].split("  ") if part.strip()] == [
        "Fires At",
        "In",
        "Schedule ID",
        "Workflow Type",
    ]
    assert all("T02:00:00Z" in line for line in lines[1:4])
    assert lines[-1].startswith("nightly ")
    assert lines[-1].count("●") == 3


@pytest.mark.parametrize(
    ("left", "told"),
    [
        pytest.param(timedelta(0), "due", id="now"),
        pytest.param(-timedelta(hours=1), "due", id="late"),
        pytest.param(timedelta(milliseconds=400), "1s", id="less than a second"),
        pytest.param(timedelta(minutes=90, seconds=5), "1h30m5s", id="within a day"),
        pytest.param(timedelta(days=5, hours=1, minutes=59), "5d1h", id="days and hours"),
        pytest.param(timedelta(days=5, minutes=59), "5d", id="days"),
    ],
)
def test_the_time_until_a_fire_is_rounded_for_people(left: timedelta, told: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert until(now, now + left) == told


def test_why_says_it_in_two_lines(cli: Cli) -> None:
    cli.scheduler.create("nightly", HELLO, Cron("0 2 * * *"), paused=True)
    first, second = cli("why", "nightly", "2100-01-31T02:00Z").out.splitlines()
    assert first == "2100-01-31T02:00:00Z  paused"
    assert second.startswith("It has been paused since ")
    assert cli("why", "nightly", "-o", "json").json["answer"] == "paused"
    cli.scheduler.create("berlin", HELLO, Cron("0 2 * * *", "Europe/Berlin"))
    asked = cli("why", "berlin", "2100-01-31 02:00", "-o", "json").json
    assert (asked["answer"], asked["occurrence_at"]) == ("fires", "2100-01-31T01:00:00Z")
    assert "no_occurrence" in cli("why", "berlin", "2100-01-31").out
    assert "is not a valid instant" in cli("why", "berlin", "yesterday", code=2).err


def test_nothing_upcoming_says_so(cli: Cli) -> None:
    cli.scheduler.create("a", HELLO, Every("1h"), paused=True)
    assert cli("forecast", "upcoming", "a").out == "Nothing will fire.\n"
    assert cli("forecast", "upcoming", "-o", "json").json["upcoming"] == []


def test_a_timeline_places_fires_in_proportion_and_counts_what_falls_together() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    minutes = [("a", 0), ("a", 30), ("b", 30), ("b", 30), ("a", 59)]
    _, axis, first, second = draw([(now + timedelta(minutes=m), name, "w") for name, m in minutes], now)
    assert axis.split() == ["now", "12:00:00", "2026-01-01", "12:59:00", "UTC"]
    assert [index for index, cell in enumerate(first[2:]) if cell == "●"] == [0, 30, 59]
    assert second[2:][30] == "2"


def test_upcoming_names_the_local_times_that_the_clocks_leave_out(cli: Cli) -> None:
    year = datetime.now(UTC).year + 1
    start = datetime(year, 3, 25, tzinfo=UTC)  # the clocks of Berlin go forward on the last Sunday of March
    spec = Spec(Cron("30 2 * * *"), timezone="Europe/Berlin", start_at=start)
    cli.scheduler.create("nightly", HELLO, spec)
    cli.scheduler.create("daily", HELLO, Spec(Cron("30 2 * * *"), start_at=start))

    assert "nightly: 02:30:00 on Sun" in cli("forecast", "upcoming", "-c", "20").out
    [left_out] = cli("forecast", "upcoming", "nightly", "-c", "7", "-o", "json").json["left_out"]
    assert (left_out["schedule_id"], left_out["local_time"][:8], left_out["local_time"][10:]) == (
        "nightly",
        f"{year}-03-",
        "T02:30:00",
    )
    assert cli("forecast", "upcoming", "daily", "-o", "json").json["left_out"] == []


def test_db_upgrade_makes_the_schema_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", f"sqlite:///{tmp_path / 'fresh.db'}")
    assert cli("db", "status", "-o", "json", code=1).json["current"] is None
    assert cli("db", "upgrade", "-o", "json").json["upgraded"] is True
    assert cli("db", "upgrade", "-o", "json").json["upgraded"] is False
    assert cli("db", "status", "-o", "json").json["is_current"] is True


def test_db_adopt_ends_what_was_found_of_a_database_that_went_back(cli: Cli) -> None:
    runtime = cli.scheduler.runtime
    taken = f"{runtime.now().isoformat()} 7501 16384 2"
    runtime.database.transact(lambda connection: metadata.set_value(connection, metadata.TAKEN_OVER, taken))
    assert "took over from that of another server, 7501 16384 2" in cli("doctor", "-o", "json").out

    assert cli("db", "adopt", "--yes").out == "The control queue belongs to this database.\n"

    assert "took over" not in cli("doctor", "-o", "json").out
    assert "--yes" in cli("db", "adopt", code=2).err


def test_db_new_identity_makes_a_copy_another_database(cli: Cli) -> None:
    cli("recover")
    before = cli.scheduler.runtime.ownership.database_id()

    told = cli("db", "new-identity", "--yes", "-o", "json").json

    assert (told["before"], len(told["database_id"])) == (before, 26)
    assert cli.scheduler.runtime.ownership.database_id() == told["database_id"] != before
    assert "belongs to another database" in cli("recover", code=2).err


def test_db_commands_need_no_redis(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:1/0")
    cli("db", "upgrade")
