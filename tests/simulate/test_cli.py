"""`simulate`: the output for a span, a file without any server, and the refusal of unreadable input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import HELLO, Cli

SPAN = ("--from", "2027-03-27T00:00:00Z", "--until", "3d")
FILE = """
[[schedules]]
schedule_id = "nightly"
workflow = "app.nightly"
cron = "30 2 * * *"
timezone = "Europe/Berlin"
queue = "slow"

[[schedules]]
schedule_id = "poll"
workflow = "app.poll"
interval = "5m"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "schedules.toml"
    path.write_text(FILE)
    return str(path)


def test_a_file_is_simulated_without_a_server(cli: Cli, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:1/0")
    words = ("--workers", "default=1,slow=1", "--duration", "90s", "--duration", "poll=6m", "--failure-rate", "5%")
    shown = cli("forecast", "simulate", file, *SPAN, *words).out
    head = "866 fires of 2 schedules from 2027-03-27 00:00 UTC to 2027-03-30 00:00 UTC, at most 2 a minute."
    assert shown.startswith(head)
    assert "02:30 fires at 03:30" in shown
    assert "Durations of 2 schedules are given." in shown
    assert any(line.split()[:3] == ["poll", "863", "452"] for line in shown.splitlines())
    found = cli("forecast", "simulate", file, *SPAN, *words, "-o", "json").json
    assert (found["fires"], found["seed"], len(found["days"])) == (866, 0, 3)
    assert cli("forecast", "simulate", file, *SPAN, *words, "-o", "json").json == found


def test_what_is_stored_is_simulated(cli: Cli) -> None:
    cli("create", "hourly", HELLO, "--cron", "0 * * * *")
    ahead = ["--from", "2099-03-27T00:00:00Z", "--until", "3d"]
    assert cli("forecast", "simulate", *ahead, "-o", "json").json["fires"] == 72
    [row] = cli("forecast", "simulate", *ahead, "--all-namespaces", "-o", "json").json["schedules"]
    assert row["name"] == "default/hourly"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "default"), "--workers: 'default' is refused; write name=value"),
        (("--workers", "default=x"), "--workers: default='x' is not a whole number; write default=4,slow=1"),
        (("--workers", "default=1, default=2"), "--workers: has a name twice; give each name once"),
        (("--workers", "dfault=1"), "--workers: no simulated schedule uses the queue 'dfault'; did you mean"),
        (("--duration", "soon"), "--duration"),
        (("--duration", "nightyl=1m"), "did you mean nightly?"),
        (("--duration", "1m", "--duration", "2m"), "--duration: is given twice without a name"),
        (("--duration", "poll=1m", "--duration", "poll=2m"), "--duration: is given twice for poll; give one"),
        (("--failure-rate", "nan"), "--failure-rate: 'nan' is not a fraction; write 2% or 0.02"),
        (("--failure-rate", "often"), "--failure-rate: 'often' is not a fraction; write 2% or 0.02"),
        (("--html", "none/year.html"), "--html: none is no folder; create it, or choose another"),
        (("--until", "99999999d"), "--until: '99999999d' ends after the year 9999; give a shorter length"),
        (("--until", "2026-01-01T00:00:00Z"), "--until: must be at least a minute after the start, or nothing happens"),
        (("--until", "1101d"), "--until: is more than 1100 days after the start; simulate a shorter span"),
        (("--failure-rate", "200%"), "--failure-rate: must be from 0 to 1"),
        (("--workers", "default=0"), "--workers: default=0 must be a whole number from 1 to 1,000,000"),
        (("--duration", "other=1m"), "--duration: 'other' is not a simulated schedule or its workflow"),
        (("--from", "yesterday"), "--from: 'yesterday' is not a valid instant"),
        (("--all-namespaces",), "--all-namespaces: cannot be combined with a file or --namespace"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_the_name_of_its_option(
    cli: Cli, file: str, words: tuple[str, ...], message: str
) -> None:
    assert message in cli("forecast", "simulate", file, *SPAN[: 2 if "--until" in words else 4], *words, code=2).err


def test_a_file_has_the_errors_that_sync_gives(cli: Cli, file: str) -> None:
    for wrong in ('cron = "61 * * * *"', 'cron = "0 0 * * *"\noverlp = "skip"', "interval = "):
        Path(file).write_text(f'[[schedules]]\nschedule_id = "a"\nworkflow = "{HELLO}"\n{wrong}\n')
        assert cli("forecast", "simulate", file, code=2).err == cli("sync", file, code=2).err


def test_fires_a_day_are_those_of_whole_days_wherever_the_span_begins(cli: Cli, file: str, tmp_path: Path) -> None:
    page = tmp_path / "day.html"
    words = ("--from", "2027-03-26T12:00:00Z", "--until", "1d", "--html", str(page))
    assert cli("forecast", "simulate", file, *words).out.startswith("288 fires of 2 schedules")
    assert "Fires a day</dt><dd>288.0</dd>" in page.read_text()


def test_a_limit_whose_line_grows_is_shown_in_the_text_and_on_the_page(cli: Cli, tmp_path: Path) -> None:
    limited, page = tmp_path / "limited.toml", tmp_path / "limited.html"
    limited.write_text(FILE.replace('"5m"', '"5m"\noverlap = "allow_all"\nlimit = "mail"\nlimit_running = 1'))
    words = (*SPAN, "--duration", "1m", "--duration", "poll=6m")
    shown = cli("forecast", "simulate", str(limited), *words, "--html", str(page)).out
    assert any(line.split()[:2] == ["mail", "1"] and "wait at the end" in line for line in shown.splitlines())
    assert "Limits that do not keep up: mail." in page.read_text()
    assert "Waits for places" in page.read_text()


def test_a_rate_is_shown_with_the_time_that_runs_waited_for_it(cli: Cli, tmp_path: Path) -> None:
    path, page = tmp_path / "rated.toml", tmp_path / "rated.html"
    of_group = '"5m"\noverlap = "allow_all"\nlimit = "api"\nlimit_rate = "1/2min"'
    path.write_text(FILE.replace('"5m"', of_group).replace('"30 2 * * *"', '"*/5 * * * *"\nlimit = "api"'))
    shown = cli("forecast", "simulate", str(path), *SPAN, "--duration", "1s", "--html", str(page)).out
    assert any(line.split()[:3] == ["api", "any", "1/2min"] and " 40% " in line for line in shown.splitlines())
    assert "<td>1/2min</td>" in page.read_text()
