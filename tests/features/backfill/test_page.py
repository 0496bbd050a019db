"""Backfills on the pages: counted, started, continued and stopped."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from rqsched import Cron
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.features.backfill.chain import BackfillRange
from tests.features.bulk.test_page import hidden
from tests.support.env import DAY, ONCE, all_runs, last
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages
from tests.support.processes import wait_until
from tests.support.web import MakeWeb


def test_a_backfill_is_counted_first_and_then_runs(pages: Pages) -> None:
    env = pages.env
    handle = env.create("daily", spec=Cron("0 2 * * *"), overlap="allow_all")
    env.advance(timedelta(days=2))
    end = env.clock.now()
    span = {"start": (end - 5 * DAY).isoformat(), "end": (end - 2 * DAY).isoformat()}
    act = "/schedules/daily/do"
    assert "3 would start, 0 already have a run" in pages.send(act, action="backfill", dry_run="yes", **span).text
    assert handle.runs().items == []
    assert "3 started" in pages.do(act, action="backfill", **span)
    assert len(handle.runs().items) == 3
    assert "is not a time" in pages.send(act, action="backfill", start="x", end="y").text


def begun(pages: Pages, hours: int = 600, **options: Any) -> ScheduleHandle:
    """An hourly schedule, and a backfill whose process died after its first 500 occurrences."""
    env = pages.env
    schedule = env.create("hourly", spec=Cron("0 * * * *"), **options)
    end = env.clock.now()
    next(iter(schedule.backfill_in_chunks(BackfillRange(end - timedelta(hours=hours), end))))
    return schedule


def stop_button(page: str) -> tuple[str, str]:
    """The path and the text of the button that stops the only backfill."""
    ((path, words),) = re.findall(r'<a class="button small" data-dialog href="(/backfills/[^"]+)">([^<]*)</a>', page)
    return path, words


@pytest.mark.every_database
def test_a_backfill_is_stopped_and_what_waits_is_cancelled_part_by_part(any_pages: Pages) -> None:
    pages = any_pages
    schedule = begun(pages)
    shown = pages.get("/schedules/hourly")
    assert '<progress max="100" value="8' in shown
    assert "500 occurrences so far:" in shown
    path, words = stop_button(shown)
    assert words == "Stop and cancel 500 runs that wait"
    asked = pages.get(path)
    assert "It creates no more runs." in asked
    assert "500 runs wait now. They are cancelled." in asked
    assert (pages.env.scheduler.backfills.list().items[0].status, schedule.runs().items[0].status) == (
        "running",
        "buffered",
    )

    first = pages.send(path, reason="the wrong month")
    assert "of 500 so far" in first.text
    fields, count = hidden(first.text), 1
    while "cursor" in fields:
        answer = pages.send(path, **fields)
        fields, count = hidden(answer.text), count + 1
    assert count >= 5
    assert "500 cancelled" in answer.text
    assert {run.status for run in schedule.iter_runs()} == {"cancelled"}
    shown = pages.get("/schedules/hourly")
    assert 'data-dialog href="/backfills' not in shown
    assert "by <bdi>local</bdi> (<bdi>dashboard</bdi>)" in shown
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
    assert last(schedule, "RunCancelled")["reason"] == "the wrong month"
    assert "No run was left to cancel." in pages.do(path, reason="once more")
    check_invariants(pages.env.runtime)


def test_a_stop_works_until_the_last_run_has_ended_and_its_button_says_what_it_does(pages: Pages) -> None:
    schedule = begun(pages, 3, overlap="allow_all")
    first, _, third = schedule.runs().items
    path, words = stop_button(pages.get("/schedules/hourly"))
    assert words == "Cancel 3 runs that wait", "the backfill has created all of its runs"
    claim = pages.env.claim(third)
    asked = pages.get(path)
    assert "2 runs wait now. They are cancelled." in asked
    assert "1 run executes now. It continues unless you choose otherwise." in asked
    assert 'name="running" value="yes" >' in asked
    assert "2 runs cancelled." in pages.do(path)
    assert (first.refresh().status, third.refresh().status) == ("cancelled", "running")

    _, words = stop_button(pages.get("/schedules/hourly"))
    assert words == "Cancel 1 run that executes"
    assert 'name="running" value="yes" checked>' in pages.get(path)
    assert "1 run cancelled." in pages.do(path, running="yes")
    assert third.refresh().status == "cancelled"
    assert 'data-dialog href="/backfills' not in pages.get("/schedules/hourly")
    assert claim.run.uid == third.uid


def test_a_stop_of_a_backfill_without_runs_says_so(pages: Pages) -> None:
    begun(pages)
    path, _ = stop_button(pages.get("/schedules/hourly"))
    [*pages.env.scheduler.bulk.cancel_runs()]
    _, words = stop_button(pages.get("/schedules/hourly"))
    assert words == "Stop"
    assert "The backfill is stopped. No run was left to cancel." in pages.do(path)


def test_a_stop_needs_the_role_and_the_namespace_of_the_backfill(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    begun(Pages(web))
    uid = present(web.env.scheduler.backfills.list().items[0].uid)
    operator, reader, tenant = (Pages(web).log_in(name) for name in ("operator", "reader", "tenant"))
    assert "/backfills/" not in reader.get("/schedules/hourly")
    path = f"/backfills/{uid}/cancel"
    reader.get(path, status=403)
    assert reader.send(path).status_code == 403
    tenant.get(path, status=404)
    assert tenant.send(path).status_code == 404
    assert operator.send(path, csrf="0" * 64).status_code == 403
    assert operator.send("/backfills/01KAMVZZZZZZZZZZZZZZZZZZZZ/cancel").status_code == 404
    assert web.env.scheduler.backfills.get(uid).status == "running"
    assert "of 500 so far" in operator.send(path).text
    assert web.env.scheduler.backfills.get(uid).status == "stopped"


def test_a_backfill_larger_than_a_chunk_continues_after_the_response(pages: Pages) -> None:
    env = pages.env
    env.create("hourly", spec=Cron("0 * * * *"), overlap="allow_all")
    start, end = (f"{env.clock.now() - timedelta(hours=hours):%Y-%m-%dT%H:%M}" for hours in (600, 0))
    assert "The backfill continues" in pages.do("/schedules/hourly/do", action="backfill", start=start, end=end)
    wait_until(
        lambda: "600 runs</a>, of which 0 ended, 0 running, 600 waiting" in pages.get("/schedules/hourly"),
        timeout=120,
        what="the rest",
    )


def test_backfill_that_is_counted_or_refused_keeps_its_form(pages: Pages) -> None:
    pages.env.create("daily")
    typed = {"start": "2026-01-01T02:00", "end": "2026-01-03T02:00", "reason": "the <rest>", "overlap": "allow_all"}
    for fields, status, said in (
        ({**typed, "dry_run": "yes"}, 200, "already have a run. Nothing was started."),
        ({**typed, "end": "2025-01-01T00:00"}, 422, "Not done: "),
        ({**typed, "start": "tomorrow"}, 422, "is not a time"),
    ):
        answer = pages.send("/schedules/daily/do", action="backfill", **fields)
        assert (answer.status_code, said in answer.text) == (status, True)
        assert f'name="start" required value="{fields["start"]}"' in answer.text
        assert f'name="end" required value="{fields["end"]}"' in answer.text
        assert 'value="the &lt;rest&gt;"' in answer.text
        assert "<option selected>allow_all</option>" in answer.text


def test_a_backfill_counts_and_retries_what_failed_only_if_that_is_chosen(pages: Pages) -> None:
    env = pages.env
    handle = env.create("daily", spec=Cron("0 2 * * *"), retry=ONCE, max_runs=4)
    env.fail_next(handle, DAY)
    env.run_next(handle, DAY)
    env.fail_next(handle, DAY)
    end = env.clock.now()
    act, span = "/schedules/daily/do", {"start": (end - 3 * DAY).isoformat(), "end": end.isoformat()}

    def count(**fields: str) -> str:
        return pages.send(act, action="backfill", dry_run="yes", **span, **fields).text

    assert "Of 3 occurrences in that range 0 would start, 3 already have a run." in count()
    counted = count(rerun="failed")
    assert "2 would start (2 as a retry), 1 already have a run. Nothing was started." in counted
    assert '<option value="failed" selected>' in counted
    span["start"] = (end - 5 * DAY).isoformat()  # two more, of which the first uses the last of max_runs
    counted = count(rerun="all")
    assert "Of 5 occurrences in that range 1 would start, 3 already have a run, 1 would be skipped." in counted
    span["start"] = (end - 3 * DAY).isoformat()
    done = pages.do(act, action="backfill", rerun="failed", **span)
    assert "1 started, 1 wait, 1 already had a run, 0 skipped" in done
    assert [run.attempt for run in all_runs(handle)] == [2, 1, 2]
    (backfill,) = env.scheduler.backfills.list().items
    for path in ("/schedules/daily/confirm?action=backfill", f"/backfills/{backfill.uid}/cancel"):
        shown = pages.get(path)
        assert "A stop of the backfill does not cancel the runs that it retries" in shown
        assert {f"/runs?schedule=daily&amp;status={status}" for status in ("buffered", "pending")} <= {
            *re.findall(r'href="([^"]*)"', shown)
        }
