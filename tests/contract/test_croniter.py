"""The assumptions of `rqsched.when` about croniter, and the traps it avoids. An upgrade that changes one fails here."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from croniter import CroniterBadCronError, CroniterBadDateError, croniter

from rqsched.when.cron import parse_cron
from tests.contract.sources import imports_of, modules
from tests.contract.test_layers import part_of
from tests.support.processes import REPOSITORY

VECTORS = REPOSITORY / "tests" / "data" / "cron-vectors.json"

JANUARY = datetime(2026, 1, 1)  # noqa: DTZ001 - we give croniter naive days only


def forward(expression: str, count: int = 3, start: datetime = JANUARY) -> list[str]:
    walker = croniter(expression, start)
    return [walker.get_next(datetime).strftime("%Y-%m-%d %H:%M") for _ in range(count)]


def days(expression: str, start: datetime = JANUARY) -> list[str]:
    return [fire[:10] for fire in forward(expression, start=start)]


def users_of(package: str) -> set[str]:
    """The modules that import a package."""
    return {
        module
        for module, path in modules().items()
        for one in imports_of(module, path)
        if one.target.partition(".")[0] == package
    }


def test_croniter_is_asked_for_days_and_nothing_else() -> None:
    # docs/times.md and pyproject.toml say so. An import compares what RQ's cron, which asks croniter, makes of a text.
    assert users_of("croniter") == {"rqsched.when.cron", "rqsched.importers.rq_cron"}
    expressions = [vector["expr"] for vector in json.loads(VECTORS.read_text())["vectors"]]
    walks = {walk for expression in expressions for walk in parse_cron(expression).days.all_walks}
    assert {walk for walk in walks if not re.fullmatch(r"0 0 (\S+ \S+ \*|\* \S+ \S+)", walk)} == set()


def test_of_what_decides_when_something_happens_only_the_backoff_uses_tenacity() -> None:
    deciding = {module for module in users_of("tenacity") if part_of(module) in {"when", "kernel.decide", "decide"}}
    assert deciding == {"rqsched.kernel.decide.delays"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 * * *", ["2026-01-02", "2026-01-03", "2026-01-04"]),
        ("0 0 1,15,L * *", ["2026-01-15", "2026-01-31", "2026-02-01"]),
        ("0 0 31,5 1,3 *", ["2026-01-05", "2026-01-31", "2026-03-05"]),
        ("0 0 * * 0,6", ["2026-01-03", "2026-01-04", "2026-01-10"]),
        ("0 0 * * 0#2", ["2026-01-11", "2026-02-08", "2026-03-08"]),
        ("0 0 * * 3#5", ["2026-04-29", "2026-07-29", "2026-09-30"]),
        ("0 0 * * L5", ["2026-01-30", "2026-02-27", "2026-03-27"]),
        ("0 0 * 2 L0", ["2026-02-22", "2027-02-28", "2028-02-27"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
    ],
)
def test_spellings_that_we_write_are_walked_correctly_over_naive_days(expression: str, expected: list[str]) -> None:
    assert days(expression) == expected


def test_steps_exclude_the_start_in_both_directions() -> None:
    assert forward("0 0 1 * *", 1) == ["2026-02-01 00:00"]
    assert croniter("0 0 1 * *", JANUARY).get_prev(datetime).strftime("%Y-%m-%d") == "2025-12-01"


def test_a_gap_of_40_years_is_walked_and_a_day_that_never_comes_raises() -> None:
    assert days("0 0 * 2 1#5", datetime(2073, 1, 1))[0] == "2112-02-29"  # noqa: DTZ001
    with pytest.raises(CroniterBadDateError):
        croniter("0 0 30 2 *", JANUARY).get_next(datetime)


def test_a_range_of_one_value_means_the_whole_field() -> None:
    # So we never write one: our grammar expands ranges itself.
    assert forward("0 9-9 * * *", 2) == ["2026-01-01 01:00", "2026-01-01 02:00"]


def test_the_sixth_field_is_seconds() -> None:
    # Ours come first, so croniter is given days only.
    assert croniter("30 0 1 * * *", JANUARY).get_next(datetime).strftime("%H:%M:%S") == "00:30:00"


@pytest.mark.parametrize("expression", ["0 0 LW * *", "0 0 1W,15W * *", "0 0 * * 5L"])
def test_spellings_of_our_dialect_that_croniter_rejects(expression: str) -> None:
    with pytest.raises(CroniterBadCronError):
        croniter(expression, JANUARY)


def test_a_day_of_month_beside_an_nth_weekday_is_not_a_union() -> None:
    with pytest.raises(CroniterBadDateError):
        days("0 0 20 * 1#1")


def test_aware_walks_fire_in_gaps() -> None:
    start = datetime(2026, 3, 7, 12, tzinfo=ZoneInfo("America/New_York"))
    following = croniter("30 2 * * *", start).get_next(datetime)
    assert following.astimezone(UTC).strftime("%Y-%m-%d") == "2026-03-08"


def test_an_expression_that_is_not_text_does_not_raise_value_error() -> None:
    with pytest.raises((AttributeError, TypeError)):
        croniter(None, JANUARY)
