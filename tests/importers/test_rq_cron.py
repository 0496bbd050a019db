"""A configuration file of RQ's own cron becomes entries; it is run only where the user trusts it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from croniter import croniter

from rqsched.errors import ConfigError, InvalidInputError
from rqsched.importers.rq_cron import RqCron, open_source
from rqsched.importers.source import Reading, distinct
from rqsched.when.members import Cron

TRUSTED = Reading(is_trusted=True)
TASKS = """
def report(*args, **kwargs):
    return [*args, kwargs]

class Thing:
    def method(self): ...
    @staticmethod
    def plain(): ...
"""
Configured = Callable[..., RqCron]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Configured]:
    """The source of a file that registers these; its folder is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_tasks.py").write_text(TASKS)

    def make(*registers: str, reading: Reading = TRUSTED, name: str = "cron_config.py") -> RqCron:
        lines = [f"cron.register({one})" for one in registers]
        head = "from rq import cron\nimport their_tasks\nfrom their_tasks import report, Thing\n"
        (tmp_path / "cron_config.py").write_text("\n".join([head, *lines]))
        sys.modules.pop("cron_config", None)
        return open_source(name, reading)

    yield make
    for name in ("their_tasks", "cron_config"):
        sys.modules.pop(name, None)


def only(source: RqCron) -> Any:
    (one,) = source.entries()
    return one


def test_a_file_is_not_run_without_trust(tmp_path: Path) -> None:
    path = tmp_path / "cron_config.py"
    path.write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    with pytest.raises(InvalidInputError, match="--trust-source: is missing"):
        open_source(str(path), Reading())
    assert not (tmp_path / "mark").exists()


def test_an_interval_counts_from_the_import(configured: Configured) -> None:
    one = only(configured("report, 'low', args=('eu',), kwargs={'a': 1}, interval=90, job_timeout='2m', name='north'"))
    assert (one.source_id, one.enabled, one.next_at) == ("north", True, None)
    assert one.entry == {
        "schedule_id": "rq-cron:north",
        "workflow": "their_tasks.report",
        "queue": "low",
        "args": ["eu"],
        "kwargs": {"a": 1},
        "timeout": 120,
        "overlap": "allow_all",
        "retry": {"max_retries": 0},
        "interval": 90,
    }
    assert one.lost == ("RQ fires it at each start of `rq cron`, and then every 90 s; rqsched counts from the import.",)


@pytest.mark.parametrize(
    ("written", "seconds"), [("0 9 * * *", None), ("0 9 * * * 30", "last"), ("@daily", None), ("0 0 13 * FRI", None)]
)
def test_a_cron_expression_is_read_in_the_zone_of_its_host(
    written: str, seconds: str | None, configured: Configured
) -> None:
    source = configured(f"report, 'low', cron={written!r}, job_timeout=60")
    entry = only(source).entry
    assert (entry["cron"], entry["timezone"], entry.get("cron_seconds")) == (written, "UTC", seconds)
    assert ["zone of the host" in note for note in source.notes] == [True]
    berlin = configured(f"report, 'low', cron={written!r}", reading=Reading(True, "Europe/Berlin"))
    assert (only(berlin).entry["timezone"], berlin.notes) == ("Europe/Berlin", [])


@pytest.mark.parametrize(
    ("written", "gap", "lost"),
    [
        ("30 2 * * *", "shift", ()),
        ("*/15 2 * * * 30", "shift",
         ("When the clocks go forward over several of its times, RQ runs one of them; rqsched runs each.",)),
        ("0 * * * *", None, ("When the clocks go back, RQ runs nothing in the repeated hour; rqsched does.",)),
    ],
)  # fmt: skip
def test_a_cron_expression_does_what_rq_does_when_clocks_change_or_it_is_said(
    written: str, gap: str | None, lost: tuple[str, ...], configured: Configured
) -> None:
    one = only(configured(f"report, 'low', cron={written!r}, job_timeout=60", reading=Reading(True, "Europe/Berlin")))
    assert (one.entry.get("dst_gap"), one.lost) == (gap, lost)
    assert "dst_gap" not in only(configured(f"report, 'low', cron={written!r}, job_timeout=60")).entry, "UTC"


@pytest.mark.parametrize(
    ("written", "expression"),
    [
        ("0 9 * * sat-sun", "0 9 * * 0,6"),
        ("0 9 * * mon-sun", "0 9 * * 0-6"),
        ("0 9 1 * mon-sun", "0 9 1 * 0-6"),
        ("0 9 * * fri-mon/2", "0 9 * * 0,5"),
        ("0 9 * * 7-1", "0 9 * * 0-1"),
        ("0 0 1 nov-mar *", "0 0 1 1-3,11-12 *"),
        ("0 0 28-3/2 * *", "0 0 1,3,28,30 * *"),
        ("0 22-2 * * *", "0 0-2,22-23 * * *"),
        ("50-10/5 22-2 * * * 30", "30 0,5,10,50,55 0-2,22-23 * * *"),
    ],
)
def test_a_range_that_runs_over_the_end_of_its_field_is_imported_as_rq_reads_it(
    written: str, expression: str, configured: Configured
) -> None:
    entry = only(configured(f"report, 'low', cron={written!r}, job_timeout=60")).entry
    assert entry["cron"] == expression
    ours, at = Cron(expression, seconds="first"), datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(200):
        expected = croniter(written, at).get_next(datetime)
        assert ours.next_after(at) == expected
        at = expected


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("0 9 31W * *", "RQ fires it next at"),
        ("*/5 * 31W * *", "RQ fires it next at"),
        ("*/5 * * feb-mar *,sat#3", "RQ fires it next at"),
        ("0 9 * * 7-7", "RQ fires it next at"),
        ("0 9 15-15 * *", "RQ fires it next at"),
        ("0 9 * * *,sat#3", "RQ fires it next at"),
        ("0 9 LW * *", "not acceptable"),
        ("H 3 * * *", "hash_id"),
    ],
)
def test_an_expression_that_rq_reads_otherwise_is_not_imported(written: str, told: str, configured: Configured) -> None:
    one = only(configured(f"report, 'low', cron={written!r}, job_timeout=60"))
    assert one.entry is None
    assert told in one.lost[0]


def test_one_without_a_name_is_named_by_what_it_does(configured: Configured) -> None:
    ids = [
        [one.entry["schedule_id"] for one in distinct(configured(*registers).entries()) if one.entry]
        for registers in (
            ["report, 'low', interval=60", "report, 'low', interval=61"],
            ["report, 'other', interval=61", "report, 'low', interval=60, ttl=7"],
        )
    ]
    assert sorted(ids[0]) == sorted(ids[1])
    assert len({*ids[0]}) == 2
    assert all(one.startswith("rq-cron:their_tasks.report-") for one in ids[0])


def test_a_name_that_several_share_names_none(configured: Configured) -> None:
    entries = configured("report, 'low', interval=60, name='x'", "report, 'low', interval=61, name='x'").entries()
    assert len({one.entry["schedule_id"] for one in entries if one.entry} - {"rq-cron:x"}) == 2


def test_what_a_schedule_has_not_is_said(configured: Configured) -> None:
    one = only(configured("report, 'low', cron='0 9 * * *', ttl=9, failure_ttl=9, result_ttl=9, meta={'who': 1}"))
    assert [sentence.partition(":")[0] for sentence in one.lost] == [
        "It has no timeout of its own",
        "Its ttl is lost",
        "Its failure_ttl is lost",
        "Its result_ttl is lost",
        "Its meta is lost (who)",
    ]


@pytest.mark.parametrize(
    ("registers", "reason"),
    [
        ("lambda: None, 'low', interval=60", "a function in a module"),
        ("Thing().method, 'low', interval=60", "a function in a module"),
        ("report, 'low', interval=60, args=({1},)", "an argument holds a set"),
        ("report, 'low'", "needs either an interval or a cron"),
        ("report, 'low', interval=60, cron='* * * * *'", "needs either an interval or a cron"),
        ("report, 'low', interval=60, job_timeout='soon'", "imeout"),
    ],
)
def test_what_cannot_become_a_schedule_is_said(registers: str, reason: str, configured: Configured) -> None:
    good, bad = sorted(configured("report, 'low', interval=60", registers).entries(), key=lambda one: one.entry is None)
    assert good.entry is not None
    assert bad.entry is None
    assert reason in bad.lost[0]


def test_a_file_given_by_its_whole_path_names_functions_of_modules(configured: Configured, tmp_path: Path) -> None:
    source = configured("report, 'low', interval=60", name=str(tmp_path / "cron_config.py"))
    assert only(source).entry["workflow"] == "their_tasks.report"


def test_a_function_of_the_file_itself_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "their_config.py"
    path.write_text("from rq import cron\ndef own(): ...\ncron.register(own, 'low', interval=60)\n")
    assert "move it into a module" in only(open_source(str(path), TRUSTED)).lost[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("1/0", "division by zero"), ("import no_such_module", "no_such_module"), ("raise SystemExit(3)", "it exits")],
)
def test_a_file_that_cannot_be_run_is_an_error_that_says_why(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "their_config.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        open_source(str(path), TRUSTED)


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot be run"):
        open_source("no/such/file.py", TRUSTED)


def test_it_cannot_be_disabled_and_says_what_to_do(configured: Configured) -> None:
    source = configured("report, 'low', interval=60")
    with pytest.raises(InvalidInputError, match="stop `rq cron`"):
        source.disable(source.entries())
