"""Specs in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rqsched.when.cron import ALIASES
from rqsched.when.spec import Cron, Every, Once, Spec
from rqsched.when.words import cron_in_words, in_words


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 2 * * MON-FRI", "at 02:00, Monday to Friday, New York time"),
        ("0 9,17 * * *", "at 09:00 and 17:00, every day, New York time"),
        ("30 0 2 * * *", "at 02:00:30, every day, New York time"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56"),
        ("0 * * * *", "every hour"),
        ("1 2,3,9,12,15 * * *", "1 minute past the hours 02, 03, 09, 12 and 15, every day, New York time"),
        ("1 * * * *", "1 minute past every hour"),
        ("0 */2 * * *", "every 2 hours, New York time"),
        ("*/10 8-18 * * 1-5", "every 10 minutes of the hours 08 to 18, Monday to Friday, New York time"),
        ("*/5 * * * * *", "every 5 seconds"),
        ("0 0 1,15 * *", "at 00:00, on the 1st and 15th, New York time"),
        ("0 0 L * *", "at 00:00, on the last day of the month, New York time"),
        ("0 0 15W * *", "at 00:00, on the weekday nearest the 15th, New York time"),
        ("0 0 LW * *", "at 00:00, on the last weekday of the month, New York time"),
        ("0 0 * * 5L", "at 00:00, on the last Friday of the month, New York time"),
        ("0 9 * * MON#1", "at 09:00, on the first Monday of the month, New York time"),
        ("0 0 13 * FRI", "at 00:00, on the 13th or Friday, New York time"),
        ("0 0 6 * SUN-SAT", "at 00:00, every day, New York time"),
        ("0 0 * * 6,7", "at 00:00, Saturday and Sunday, New York time"),
        ("0 12 1 1,7 *", "at 12:00, on the 1st, in January and July, New York time"),
        ("0 0 */2 * *", "at 00:00, on every 2nd day of the month from the 1st, New York time"),
    ],
)
def test_a_cron_expression_is_told_as_people_say_it(expression: str, words: str) -> None:
    Cron(expression)
    assert cron_in_words(expression, "America/New_York") == words


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_is_told_as_what_it_stands_for(alias: str) -> None:
    assert cron_in_words(alias, "UTC") == cron_in_words(ALIASES[alias], "UTC")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Spec(Every(timedelta(minutes=90))), "every 90 minutes"),
        (Spec(Every(timedelta(hours=1))), "every hour"),
        (Spec(Every(timedelta(days=1, hours=6))), "every 30 hours"),
        (Spec(Every(timedelta(seconds=3661))), "every 1 hour 1 minute 1 second"),
        (Spec(Every("1h", offset="5m")), "every hour, 5 minutes past"),
        (Spec(Every("10m", from_completion=True)), "every 10 minutes after the last run ended"),
        (Spec(Cron("@every 2h")), "every 2 hours"),
        (Spec(Once(datetime(2026, 12, 24, 18, tzinfo=UTC))), "once, at 2026-12-24 18:00:00 UTC"),
        (
            Spec(["@daily", Cron("0 9 * * *", "Asia/Tokyo")]),
            "at 00:00, every day, UTC; at 09:00, every day, Tokyo time",
        ),
        (
            Spec("@daily", end_at=datetime(2027, 1, 1, tzinfo=UTC)),
            "at 00:00, every day, UTC until 2027-01-01 00:00 UTC",
        ),
        (
            Spec("@daily", exclude=["Sat, Sun", "2026-12-25", "2026-12-30/2027-01-02", "Mon-Thu 22:00-06:00"]),
            "at 00:00, every day, UTC, not on 2026-12-25, nor from 2026-12-30 to 2027-01-02, nor on Monday to Thursday "
            "from 22:00 to 06:00, nor on Saturday and Sunday",
        ),
        (
            Spec("@daily", exclude=["12:00-13:00", *(f"2026-0{month}-01" for month in range(1, 9))]),
            "at 00:00, every day, UTC, not from 12:00 to 13:00, nor on 2026-01-01, nor on 2026-02-01, nor on "
            "2026-03-01, nor on 2026-04-01, nor on 2026-05-01, nor at 3 more",
        ),
    ],
)
def test_a_spec_is_told_with_its_members_and_its_window(spec: Spec, words: str) -> None:
    assert in_words(spec) == words
