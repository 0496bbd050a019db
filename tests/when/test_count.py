"""Counting occurrences: exact, by whole days, and the same as listing them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from rqsched.when.spec import Cron

ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Pacific/Apia", "Australia/Lord_Howe", "Africa/Casablanca"]
EXPRESSIONS = [
    "*/30 * * * *",
    "*/30 1-5 * * *",
    "30 2 * * *",
    "0 0 31 * *",
    "0 0 29 2 *",
    "15 */2 15W,L * *",
    "0 0 * * 5#3,1",
    "*/7 0,1,2,3,23 1-10 * MON",
    "15 30 0,1,2,23 * 3,10,11 *",
]


def listed(cron: Cron, after: datetime, until: datetime) -> int:
    tick = timedelta(microseconds=1)
    return sum(1 for _ in cron.between(after + tick, until + tick))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_count_is_the_length_of_the_list_across_every_change_of_offset(expression: str) -> None:
    random = Random(expression)
    for _ in range(30):
        cron = Cron(expression, random.choice(ZONES))
        month = random.choice([1, 3, 4, 10, 11, 12])
        after = datetime(random.choice([2011, 2024, 2025]), month, 1, tzinfo=UTC)
        after += timedelta(seconds=random.randrange(28 * 86_400), microseconds=random.choice([0, 1, 500_000]))
        until = after + timedelta(seconds=random.choice([0, random.randrange(7_200), random.randrange(30 * 86_400)]))
        assert cron.count_between(after, until) == (listed(cron, after, until), False), (cron, after, until)


def test_a_count_over_decades_jumps_over_the_months_without_a_day() -> None:
    first, last = datetime(2000, 2, 29, tzinfo=UTC), datetime(2028, 2, 29, tzinfo=UTC)
    assert Cron("0 0 29 2 *").count_between(first, last) == (7, False)
