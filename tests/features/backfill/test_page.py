"""Backfills on the pages: counted, started, continued and stopped."""

from __future__ import annotations

import re
from datetime import timedelta

from rqsched import Cron
from rqsched.features.backfill.chain import BackfillRange
from tests.support.env import DAY
from tests.support.pages import Pages
from tests.support.processes import wait_until


def test_a_backfill_is_counted_first_and_then_runs(pages: Pages) -> None:
    env = pages.env
    handle = env.create("daily", spec=Cron("0 2 * * *"), overlap="allow_all")
    env.advance(timedelta(days=2))
    end = env.clock.now()
    span = {"start": (end - 5 * DAY).isoformat(), "end": (end - 2 * DAY).isoformat()}
    act = "/schedules/daily/do"
    assert "3 would start, 0 had run before" in pages.send(act, action="backfill", dry_run="yes", **span).text
    assert handle.runs().items == []
    assert "3 started" in pages.do(act, action="backfill", **span)
    assert len(handle.runs().items) == 3
    assert "is not a time" in pages.send(act, action="backfill", start="x", end="y").text


def test_a_backfill_shows_how_far_it_is_and_is_stopped_from_its_page(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("hourly", spec=Cron("0 * * * *"))
    end = env.clock.now()
    wanted = BackfillRange(end - timedelta(hours=600), end)
    next(iter(schedule.backfill_in_chunks(wanted)))  # the process that did more of it is gone
    shown = pages.get("/schedules/hourly")
    assert '<progress max="100" value="8' in shown
    assert "500 occurrences:" in shown
    (path,) = re.findall(r'action="(/backfills/[^"]+/cancel)"', shown)
    assert "The backfill is stopped" in pages.do(path, reason="the wrong month")
    shown = pages.get("/schedules/hourly")
    assert "<progress" not in shown
    assert "by <bdi>local</bdi> (<bdi>dashboard</bdi>)" in shown
    pages.do(path, reason="once more")  # one that has ended stays as it is
    (event,) = [event for event in schedule.iter_history() if event.event_type == "BackfillStopped"]
    context = event.payload.pop("command_context")
    assert (context["principal"], context["source"], context["reason"]) == ("local", "dashboard", "the wrong month")
    assert event.payload == {
        "backfill_id": path.split("/")[2],
        "start_at": "2025-12-21T12:00:00Z",
        "end_at": "2026-01-15T12:00:00Z",
        "stopped_at": "2026-01-15T12:00:00Z",
        "attempted": 500,
        "reason": "the wrong month",
    }
    assert pages.send("/backfills/01KAMVZZZZZZZZZZZZZZZZZZZZ/cancel").status_code == 404


def test_a_backfill_larger_than_a_chunk_continues_after_the_response(pages: Pages) -> None:
    env = pages.env
    env.create("hourly", spec=Cron("0 * * * *"), overlap="allow_all")
    start, end = (f"{env.clock.now() - timedelta(hours=hours):%Y-%m-%dT%H:%M}" for hours in (600, 0))
    assert "it continues" in pages.do("/schedules/hourly/do", action="backfill", start=start, end=end)
    wait_until(
        lambda: "600 runs</a>, of which 0 ended, 0 running, 600 waiting" in pages.get("/schedules/hourly"),
        timeout=120,
        what="the rest",
    )


def test_backfill_that_is_counted_or_refused_keeps_its_form(pages: Pages) -> None:
    pages.env.create("daily")
    typed = {"start": "2026-01-01T02:00", "end": "2026-01-03T02:00", "reason": "the <rest>", "overlap": "allow_all"}
    for fields, status, said in (
        ({**typed, "dry_run": "yes"}, 200, "had run before. Nothing was started."),
        ({**typed, "end": "2025-01-01T00:00"}, 422, "Not done: "),
        ({**typed, "start": "tomorrow"}, 422, "is not a time"),
    ):
        answer = pages.send("/schedules/daily/do", action="backfill", **fields)
        assert (answer.status_code, said in answer.text) == (status, True)
        assert f'name="start" required value="{fields["start"]}"' in answer.text
        assert f'name="end" required value="{fields["end"]}"' in answer.text
        assert 'value="the &lt;rest&gt;"' in answer.text
        assert "<option selected>allow_all</option>" in answer.text
