"""The load ahead, above the rows of the timeline."""

from __future__ import annotations

import html
import re

from rqsched import Cron
from tests.support.env import HOUR, SECOND
from tests.support.pages import Pages

BAR = re.compile(r"<title>(\d+) fires?, (.*?)</title>")


def chart_of(page: str) -> str:
    return html.unescape(page.partition('class="lane load"')[2].partition("</svg>")[0])


def test_the_timeline_charts_what_fires_and_names_who_makes_the_peak(pages: Pages) -> None:
    for number in range(7):
        pages.env.create(f"nightly-{number}", spec=Cron("0 2 * * *"))
        pages.env.advance(SECOND)
    pages.env.create("hourly", spec=Cron("30 * * * *"), labels={"team": "a"})
    page = pages.get("/timeline?hours=48")
    assert "31 fires to come, at most 7 in 7 minutes" in chart_of(page)
    bars = {label: int(number) for number, label in BAR.findall(chart_of(page))}
    assert sum(bars.values()) == 31
    assert bars["Fri 16 Jan 02:00"] == 7
    listed = re.sub(r"<[^>]*>", "", page.partition('class="peaks')[2].partition("</ul>")[0])
    assert "7 fires at Fri 16 Jan 02:00: nightly-0, nightly-1, nightly-2, nightly-3, nightly-4 and 2 more" in listed
    assert 'href="/schedules/nightly-0"' in page
    assert "24 fires to come, at most 1 in 7 minutes" in chart_of(pages.get("/timeline?hours=48&label=team:a"))


def test_the_load_of_a_picture_that_begins_later_is_that_of_its_hours(pages: Pages) -> None:
    pages.env.create("hourly", spec=Cron("30 * * * *"))
    shown = chart_of(pages.get("/timeline?hours=3&at=2026-01-17T00:00Z"))
    assert [label for _, label in BAR.findall(shown)] == ["Fri 16 Jan 22:30", "Fri 16 Jan 23:30", "Sat 17 Jan 00:30"]


def test_what_is_over_has_no_load(pages: Pages) -> None:
    pages.env.create("hourly", spec=Cron("30 * * * *"))
    pages.env.advance(100 * HOUR)
    assert chart_of(pages.get("/timeline?hours=24&at=2026-01-15T12:00Z")) == ""
