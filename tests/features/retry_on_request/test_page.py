"""The page that retries what failed since an instant: its question, its instants and what it refuses."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from tests.support.env import DAY, HOUR, MINUTE, ONCE
from tests.support.narrow import present
from tests.support.pages import Pages


def test_what_failed_today_is_retried_together_after_a_question_with_its_number(pages: Pages) -> None:
    env = pages.env
    run = env.fail_next(env.create("crm", retry=ONCE))
    assert "Retry 1 run?" in pages.get("/retry-failed")
    ended = present(run.ended_at)
    since = {"since": (ended - HOUR).isoformat()}
    assert "1 run retried." in pages.do("/retry-failed", **since, reason="the CRM is back")
    env.work()
    assert run.refresh().status == "succeeded"
    assert "Retry 0 runs?" in pages.get("/retry-failed")


def test_failed_runs_are_counted_since_the_instant_that_was_shown_also_where_clocks_repeat_an_hour(
    pages: Pages,
) -> None:
    """01:45 comes twice in New York in that night, and the field has no offset."""
    pages.env.clock.set(datetime(2026, 11, 2, 6, 45, tzinfo=UTC))
    pages.cookies["rqsched_zone"] = "America%2FNew_York"
    first = pages.get("/retry-failed")
    assert "01 Nov 2026 01:45" in first
    assert "EST</time>" in first
    shown = re.findall(r'name="shown" value="([^"]+)"', first)[0]
    typed = re.findall(r'name="since" required value="([^"]+)"', first)[0]
    again = pages.get(f"/retry-failed?since={typed}&shown={shown}")
    assert re.findall(r'name="shown" value="([^"]+)"', again) == [shown]
    other = pages.get(f"/retry-failed?since=2026-11-01T03:45&shown={shown}")
    assert 'value="2026-11-01T08:45:00' in other


def test_what_was_asked_about_the_oldest_instant_is_done_minutes_later(pages: Pages) -> None:
    env = pages.env
    since = env.clock.now() - 30 * DAY
    assert "Retry 0 runs?" in pages.get(f"/retry-failed?since={since:%Y-%m-%dT%H:%M}")
    env.advance(5 * MINUTE)
    assert "0 runs retried." in pages.do("/retry-failed", since=since.isoformat())


def test_failed_runs_are_retried_since_an_instant_in_the_viewers_zone_and_of_one_schedule(pages: Pages) -> None:
    env = pages.env
    env.failing = True
    early = env.run_next(env.create("early", retry=ONCE))
    env.advance(2 * HOUR)
    crm = env.run_next(env.create("crm", retry=ONCE))
    late = env.run_next(env.create("late", retry=ONCE))
    env.failing = False
    pages.cookies["rqsched_zone"] = "Asia%2FTokyo"
    since = (env.clock.now() - HOUR).astimezone(ZoneInfo("Asia/Tokyo")).strftime("%Y-%m-%dT%H:%M")
    assert "Retry 3 runs?" in pages.get("/retry-failed")
    assert "Retry 2 runs?" in pages.get(f"/retry-failed?since={since}")
    asked = pages.get(f"/retry-failed?since={since}&schedule=crm")
    assert "Retry 1 run of crm?" in asked
    assert f'value="{since}"' in asked
    assert "1 run retried." in pages.do("/retry-failed", since=since, schedule="crm")
    assert [one.refresh().status for one in (early, crm, late)] == ["failed", "pending", "failed"]
    assert "1 run retried." in pages.do("/retry-failed", since=since)
    assert [one.refresh().status for one in (early, crm, late)] == ["failed", "pending", "pending"]


def test_retry_since_refuses_what_is_no_time_or_too_long_ago(pages: Pages) -> None:
    for since in ("yesterday", "2020-01-01T00:00", "9999-12-31T23:59+00:00", "0001-01-01T00:00+14:00"):
        pages.get("/retry-failed?" + urlencode({"since": since}), status=422)
