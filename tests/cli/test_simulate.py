"""What `simulate` shows of a span, of a file without any server, and how it refuses what it cannot read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import HELLO, Cli
from tests.support.processes import SOON, wait_until

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
    shown = cli("simulate", file, *SPAN, *words).out
    head = "866 fires of 2 schedules from 2027-03-27 00:00 UTC to 2027-03-30 00:00 UTC, at most 2 a minute;"
    assert shown.startswith(head)
    assert "02:30 fires at 03:30" in shown
    assert "Durations of 2 schedules are given." in shown
    assert any(line.split()[:3] == ["poll", "863", "452"] for line in shown.splitlines())
    found = cli("simulate", file, *SPAN, *words, "-o", "json").json
    assert (found["fires"], found["seed"], len(found["days"])) == (866, 0, 3)
    assert cli("simulate", file, *SPAN, *words, "-o", "json").json == found


def test_ctrl_c_ends_all_processes_of_a_simulation_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "much.toml"
    file.write_text('[[schedules]]\nschedule_id = "a"\nworkflow = "app.a"\ninterval = "1m"\n')
    words = ("simulate", str(file), "--until", "1100d", "--processes", "3")
    command = subprocess.Popen(  # who started these tests in the background may have them ignore interrupts
        ["env", "--default-signal=INT", sys.executable, "-m", "rqsched", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    others = Path(f"/proc/{command.pid}/task/{command.pid}/children")

    def have_begun() -> bool:
        """Whether Python has begun in all: the three and the tracker of their resources answer or ignore interrupts."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in others.read_text().split()]
        masks = [re.findall(r"^Sig(?:Cgt|Ign):\s*(\w+)", text, re.MULTILINE) for text in texts]
        return len(masks) == 4 and all(any(int(mask, 16) & 2 for mask in some) for some in masks)

    wait_until(have_begun, interval=0.001, what="the processes of the simulation")
    os.killpg(command.pid, signal.SIGINT)  # as a terminal does, while they import
    out, err = command.communicate(timeout=SOON)

    assert (command.returncode, out, err) == (130, "", "Stopped; nothing was written.\n")


def test_a_process_that_is_killed_ends_the_simulation_with_an_error(tmp_path: Path) -> None:
    file = tmp_path / "much.toml"
    file.write_text('[[schedules]]\nschedule_id = "a"\nworkflow = "app.a"\ninterval = "1m"\n')
    words = ("simulate", str(file), "--until", "1100d", "--processes", "2")
    command = subprocess.Popen(
        [sys.executable, "-m", "rqsched", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    others = Path(f"/proc/{command.pid}/task/{command.pid}/children")

    def computing() -> list[int]:
        pids = [int(pid) for pid in others.read_text().split()]
        return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    wait_until(lambda: len(computing()) == 2, interval=0.001, what="the processes of the simulation")
    for pid in computing():
        os.kill(pid, signal.SIGKILL)
    out, err = command.communicate(timeout=SOON)

    assert (command.returncode, out) == (1, "")
    assert "a process that computed a part has ended (exit code -9)" in err
    assert "Traceback" not in err


def test_what_is_stored_is_simulated(cli: Cli) -> None:
    cli("create", "hourly", HELLO, "--cron", "0 * * * *")
    assert cli("simulate", *SPAN, "-o", "json").json["fires"] == 72
    [row] = cli("simulate", *SPAN, "--all-namespaces", "-o", "json").json["schedules"]
    assert row["name"] == "default/hourly"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "default"), "--workers: 'default' is refused; write name=value"),
        (("--workers", "default=x"), "--workers: default='x' is not a whole number; write default=4,slow=1"),
        (("--targets", "poll"), "--targets"),
        (("--targets", "poll=1", "--targets", "poll=2"), "--targets: names one twice; give its number once"),
        (("--targets", "poll=many"), "--targets: poll='many' is not a whole number; write nightly=100"),
        (("--targets", "pole=3"), "--targets: 'pole' must be a schedule or a workflow of one; did you mean poll?"),
        (("--workers", "default=1, default=2"), "--workers: names one twice; give its number once"),
        (("--workers", "dfault=1"), "--workers: 'dfault' is a queue of no schedule that is simulated; did you mean"),
        (("--duration", "soon"), "--duration"),
        (("--duration", "nightyl=1m"), "did you mean nightly?"),
        (("--duration", "1m", "--duration", "2m"), "--duration: is given twice without a name"),
        (("--duration", "poll=1m", "--duration", "poll=2m"), "--duration: is given twice for poll; give one"),
        (("--failure-rate", "nan"), "--failure-rate: 'nan' is not a part; write 2% or 0.02"),
        (("--failure-rate", "often"), "--failure-rate: 'often' is not a part; write 2% or 0.02"),
        (("--html", "none/year.html"), "--html: none is no folder; make it, or name a file of another"),
        (("--until", "99999999d"), "--until: '99999999d' ends after the year 9999; give a shorter length"),
        (("--until", "2026-01-01T00:00:00Z"), "--until: must be a minute or more after the begin, or nothing happens"),
        (("--until", "1101d"), "--until: is more than 1100 days after the begin; simulate a shorter span"),
        (("--failure-rate", "200%"), "--failure-rate: must be from 0 to 1"),
        (("--workers", "default=0"), "--workers: default=0 must be a whole number from 1 to 1,000,000"),
        (("--processes", "5000"), "--processes: must be a whole number from 1 to 1,000"),
        (("--duration", "other=1m"), "--duration: 'other' must be a schedule or a workflow of one"),
        (("--from", "yesterday"), "--from: 'yesterday' is not a valid instant"),
        (("--all-namespaces",), "--all-namespaces: goes with neither a file nor --namespace"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_the_name_of_its_option(
    cli: Cli, file: str, words: tuple[str, ...], message: str
) -> None:
    assert message in cli("simulate", file, *SPAN[: 2 if "--until" in words else 4], *words, code=2).err


def test_a_file_has_the_errors_that_sync_gives(cli: Cli, file: str) -> None:
    for wrong in ('cron = "61 * * * *"', 'cron = "0 0 * * *"\noverlp = "skip"', "interval = "):
        Path(file).write_text(f'[[schedules]]\nschedule_id = "a"\nworkflow = "{HELLO}"\n{wrong}\n')
        assert cli("simulate", file, code=2).err == cli("sync", file, code=2).err


@pytest.fixture
def changed(file: str, tmp_path: Path) -> str:
    path = tmp_path / "new.toml"
    more = 'schedule_id = "extra"\nworkflow = "app.extra"\ncron = "30 2 * * *"\n'
    path.write_text(FILE.replace('"5m"', '"2m"') + "\n[[schedules]]\n" + more)
    return str(path)


COMPARED = (*SPAN, "--workers", "default=1,slow=1", "--duration", "90s", "--duration", "extra=3m")


def test_a_comparison_says_what_a_change_moves(cli: Cli, file: str, changed: str) -> None:
    shown = cli("simulate", "--compare", file, changed, *COMPARED).out
    assert shown.startswith("Fires a day: 288.667 -> 721.667 (+150%). Highest minute: 2.")
    assert "Runs overlap that did not: poll." in shown
    found = cli("simulate", "--compare", file, changed, *COMPARED, "-o", "json").json
    assert [(one["name"], one["outcome"], one["fields"]) for one in found["schedules"]] == [
        ("extra", "added", []),
        ("poll", "changed", ["timing", "fires", "overlapped"]),
    ]
    assert (found["new_overlaps"], found["falls_behind"], found["broken"]) == (["poll"], [], [])
    removed = cli("simulate", "--compare", changed, file, *COMPARED, "-o", "json").json
    assert [(one["name"], one["outcome"]) for one in removed["schedules"]] == [
        ("extra", "removed"),
        ("poll", "changed"),
    ]
    same = cli("simulate", "--compare", file, file, *SPAN).out
    assert "Nothing else moves." in same


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("overlaps", "runs overlap that did not: poll"),
        ("fires=100%", "fires a day: 288.667 -> 721.667 (+150%), more than 100%"),
        ("fires=1.5", None),
        ("peak=20%", None),
        ("wait=60s", None),
        ("behind", None),
    ],
)
def test_a_change_that_does_what_it_may_not_ends_with_exit_code_6(
    cli: Cli, file: str, changed: str, limit: str, said: str | None
) -> None:
    found = cli("simulate", "--compare", file, changed, *COMPARED, "--fail-on", limit, code=6 if said else 0)
    assert found.err == (f"Refused: {said}.\n" if said else "")


def test_a_queue_that_falls_behind_fails_a_change(cli: Cli, file: str, changed: str) -> None:
    words = (*SPAN, "--workers", "default=1", "--duration", "1m", "--duration", "poll=3m", "--duration", "extra=1m")
    text = Path(changed).read_text().replace('interval = "2m"', 'interval = "2m"\noverlap = "buffer_all"')
    more = '\n[[schedules]]\nschedule_id = "more"\nworkflow = "app.more"\ninterval = "1m"\noverlap = "allow_all"\n'
    Path(changed).write_text(text + more)
    found = cli("simulate", "--compare", file, changed, *words, "--fail-on", "behind", "--fail-on", "wait=10m", code=6)
    assert found.err.splitlines() == [
        "Refused: no longer keeps up: default.",
        "Refused: 95 of 100 attempts wait longer than 10 min on default.",
    ]


def test_a_limit_whose_line_grows_fails_a_change_and_is_shown(cli: Cli, file: str, tmp_path: Path) -> None:
    limited = tmp_path / "limited.toml"
    limited.write_text(FILE.replace('"5m"', '"5m"\noverlap = "allow_all"\nlimit = "mail"\nlimit_running = 1'))
    words = (*SPAN, "--duration", "1m", "--duration", "poll=6m")
    fails = ("--fail-on", "behind", "--fail-on", "wait=10m")
    found = cli("simulate", "--compare", file, str(limited), *words, *fails, code=6)
    assert found.err.splitlines() == [
        "Refused: no longer keeps up: limit mail.",
        "Refused: 95 of 100 attempts wait longer than 10 min on limit mail.",
    ]
    assert any(line.split()[:2] == ["mail", "0.0"] and "falls behind" in line for line in found.out.splitlines())
    page = tmp_path / "limited.html"
    shown = cli("simulate", str(limited), *words, "--html", str(page)).out
    assert any(line.split()[:2] == ["mail", "1"] and "wait at the end" in line for line in shown.splitlines())
    assert "Limits whose lines do not keep up: mail." in page.read_text()
    assert "Waits for places" in page.read_text()


def test_targets_are_told_by_schedule_and_those_of_which_nobody_says_the_number_are_listed(
    cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "fans.toml"
    path.write_text(FILE.replace('"5m"', '"5m"\ntargets = "app.names"'))
    words = (*SPAN, "--duration", "1m", "--workers", "default=2")
    assert "its targets: nobody says how many a run has" in cli("simulate", str(path), *words).out
    page = tmp_path / "fans.html"
    shown = cli("simulate", str(path), *words, "--targets", "poll=4", "--html", str(page)).out
    assert "Not simulated" not in shown
    [row] = [line for line in shown.splitlines() if line.startswith("poll ")]
    assert "863 succeeded, 3452 targets succeeded" in row
    assert any(line.split()[:3] == ["default", "2", str(863 * 5)] for line in shown.splitlines())
    assert "3452 targets succeeded" in page.read_text()


def test_a_rate_that_is_lowered_is_shown_with_what_it_moves(cli: Cli, tmp_path: Path) -> None:
    files = [tmp_path / "old.toml", tmp_path / "new.toml"]
    for path, rate in zip(files, ("2/min", "1/2min"), strict=True):
        of_group = f'"5m"\noverlap = "allow_all"\nlimit = "api"\nlimit_rate = "{rate}"'
        path.write_text(FILE.replace('"5m"', of_group).replace('"30 2 * * *"', '"*/5 * * * *"\nlimit = "api"'))
    words = (*SPAN, "--duration", "1s")
    found = cli("simulate", "--compare", *map(str, files), *words, "--fail-on", "wait=1m", code=6)
    assert found.err == "Refused: 95 of 100 attempts wait longer than 1 min on limit api.\n"
    [row] = [line for line in found.out.splitlines() if line.startswith("api ")]
    assert " ".join(row.split()) == "api 0.0 s -> 2 min keeps up keeps up 2/min -> 1/2min 0% -> 40%"
    page = tmp_path / "new.html"
    shown = cli("simulate", str(files[1]), *words, "--html", str(page)).out
    assert any(line.split()[:3] == ["api", "any", "1/2min"] and " 40% " in line for line in shown.splitlines())
    assert "<td>1/2min</td>" in page.read_text()


def test_fires_a_day_are_those_of_whole_days_wherever_the_span_begins(cli: Cli, file: str, tmp_path: Path) -> None:
    page = tmp_path / "day.html"
    words = ("--from", "2027-03-26T12:00:00Z", "--until", "1d", "--html", str(page))
    assert cli("simulate", file, *words).out.startswith("288 fires of 2 schedules")
    assert "Fires a day</dt><dd>288.0</dd>" in page.read_text()


def test_what_is_stored_is_compared_with_a_file(cli: Cli, file: str) -> None:
    cli("create", "hourly", HELLO, "--cron", "0 * * * *")
    found = cli("simulate", "--compare", file, *SPAN, "-o", "json").json
    assert [(one["name"], one["outcome"]) for one in found["schedules"]] == [
        ("hourly", "removed"), ("nightly", "added"), ("poll", "added"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--compare",), "--compare: needs a file"),
        (("--fail-on", "overlaps"), "--fail-on: is for --compare"),
        (("--compare", "FILE", "--fail-on", "often"), "write overlaps, behind, fires=20%, peak=20% or wait=60s"),
        (("--compare", "FILE", "--fail-on", "peak=nan"), "--fail-on: 'nan' is not a part"),
        (("--compare", "FILE", "--fail-on", "fires=-5%"), "--fail-on: '-5%' is not a part"),
        (("--compare", "FILE", "--fail-on", "peak=x"), "--fail-on: 'x' is not a part"),
        (("FILE", "FILE"), "FILE: is one file; name one, or with --compare two"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(cli: Cli, file: str, words: tuple[str, ...], message: str) -> None:
    assert message in cli("simulate", *(file if word == "FILE" else word for word in words), code=2).err
