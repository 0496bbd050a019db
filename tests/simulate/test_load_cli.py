"""What `load` shows: the hours as bars, the peaks with those that make them, and the queues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.support.cli import HELLO, Cli


def crons_far_from_now() -> tuple[str, str]:
    """Return a daily and an hourly cron that do not fire in this minute, with which the load begins."""
    at = datetime.now(UTC) + timedelta(hours=12, minutes=20)
    return f"{at.minute} {at.hour} * * *", f"{(at.minute + 20) % 60} * * * *"


def test_load_shows_bars_peaks_and_queues(cli: Cli) -> None:
    daily, hourly = crons_far_from_now()
    for number in range(6):
        cli("create", f"nightly-{number}", HELLO, "--cron", daily, "--queue", "reports")
    cli("create", "hourly", HELLO, "--cron", hourly)
    shown = cli("forecast", "load").out
    assert "30 fires of 7 schedules in 24 hours, at most 6 a minute." in shown
    assert ", 1 more" in shown.partition("Peak")[2]
    assert any(line.split()[:3] == ["reports", "6", "6"] for line in shown.splitlines())
    assert "Each fire counts as one run" in shown
    week = cli("forecast", "load", "--hours", "168", "-o", "json").json
    assert (len(week["minutes"]), week["fires"], week["queues"][0]["queue"]) == (7 * 24 * 60, 6 * 7 + 24 * 7, "high")
    assert cli("forecast", "load", "--hours", "48", "-o", "jsonl").lines[0]["fires"] == 2 * week["fires"] / 7


def test_load_of_all_namespaces_names_them(cli: Cli) -> None:
    daily, _ = crons_far_from_now()
    for namespace in ("one", "two"):
        cli("create", "nightly", HELLO, "--cron", daily, "-n", namespace)
    assert cli("forecast", "load").out.startswith("0 fires of 0 schedules in 24 hours, at most 0 a minute.")
    [peak] = cli("forecast", "load", "--all-namespaces", "-o", "json").json["peaks"]
    assert sorted(peak["schedules"]) == ["one/nightly", "two/nightly"]


def test_an_even_load_says_that_no_minute_stands_out(cli: Cli) -> None:
    cli("create", "hourly", HELLO, "--cron", "30 * * * *")
    assert "No minute stands out." in cli("forecast", "load").out


def test_a_span_beyond_a_month_is_refused(cli: Cli) -> None:
    cli("forecast", "load", "--hours", "745", code=2)
