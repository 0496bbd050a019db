"""The pages of limits: the list, a group with its line, and the form that changes its number and rate."""

from __future__ import annotations

import re

import pytest

from tests.features.limits.test_http import fill, findings
from tests.support.crowd import copy_run
from tests.support.env import SECOND, newest
from tests.support.narrow import present
from tests.support.pages import Pages


@pytest.mark.every_database
def test_limits_have_a_page_each_with_their_line_and_their_schedules(any_pages: Pages) -> None:
    env = any_pages.env
    env.create("idle", limit="quiet", limit_running=3)
    handle = env.create("letters", limit="vendor", limit_running=1, overlap="allow_all")
    runs = [present(handle.trigger().run) for _ in range(3)]
    env.claim(runs[0])
    listed = any_pages.get("/limits")
    assert 'href="/limits/quiet">quiet</a>' in listed
    assert 'href="/limits/vendor">vendor</a>' in listed
    shown = any_pages.get("/limits/vendor")
    (line,) = re.findall(r'data-live="line".*?</section>', shown, re.DOTALL)
    assert re.findall(r'class="count">(\d+)</span>.*?/runs/(\w+)', line) == [("1", runs[1].uid), ("2", runs[2].uid)]
    (running,) = re.findall(r'data-live="running".*?</section>', shown, re.DOTALL)
    assert runs[0].uid in running
    assert 'href="/schedules/letters">letters</a>' in shown
    assert "No run waits." in any_pages.get("/limits/quiet")
    any_pages.get("/limits/nothing", status=404)
    env.create("odd", limit="shop:eu/1?#%", limit_running=1)
    (where,) = re.findall(r'href="(/limits/shop[^"]*)"', any_pages.get("/schedules/odd"))
    assert "<h1>Limit shop:eu/1?#%</h1>" in any_pages.get(where)
    assert "Limit shop:eu/1?#%: 2 may run at once." in any_pages.do("/limits", name="shop:eu/1?#%", number="2")
    for path in ("/schedules/letters", f"/runs/{runs[1].uid}"):
        assert 'href="/limits/vendor">vendor</a>' in any_pages.get(path)
    assert "/limits" in any_pages.get("/find?q=limits")
    assert 'href="/limits/quiet"' not in any_pages.get("/system"), "only groups with open runs are on that page"


def test_pages_of_limits_go_on(pages: Pages) -> None:
    for number in range(101):
        pages.env.create(f"job-{number}", limit=f"group-{number:03}", limit_running=1)
    first = pages.get("/limits")
    assert "group-100" not in first
    following = re.findall(r'rel="next" href="([^"]*)"', first)[0].replace("&amp;", "&")
    assert "group-100" in pages.get(following)


def test_pages_say_who_waits_and_one_form_changes_the_number(pages: Pages) -> None:
    fill(pages.env)
    assert "shop:eu/1" in pages.get("/system")
    run = newest(pages.env.scheduler.get("c"))
    told = pages.get(f"/runs/{run.uid}")
    assert "in line of limit shop:eu/1: 0 of 1 running and 1 about to start, it is number 2 in line" in told

    assert "Limit shop:eu/1: 3 may run at once." in pages.do("/limits", name="shop:eu/1", number="3")

    assert "in line of limit" not in pages.get(f"/runs/{run.uid}")
    assert "Not done: number" in pages.do("/limits", name="shop:eu/1", number="x")
    assert "Not done: no group" in pages.do("/limits", name="<b>", number="1")


def test_pages_show_rates_and_one_form_changes_them(pages: Pages) -> None:
    fill(pages.env, limit_running=None, limit_rate="1/min")
    pages.env.work()
    shown = pages.get("/system")
    assert ('value="1/min"' in shown, "in the last minute" in shown) == (True, True)
    run = newest(pages.env.scheduler.get("c"))
    told = "in line of limit shop:eu/1: 0 running, 1 of 1 starts in the last minute, the next place on "
    assert f"{told}Thu 15 Jan 2026 13:01:03 UTC, it is number 2 in line" in pages.get(f"/runs/{run.uid}")

    changed = pages.do("/limits", name="shop:eu/1", number="4", rate="2/min")
    assert "Limit shop:eu/1: 4 may run at once and 2 may start in any minute." in changed
    assert "Limit shop:eu/1: 4 may run at once." in pages.do("/limits", name="shop:eu/1", number="4", rate=" ")
    assert "Not done: rate" in pages.do("/limits", name="shop:eu/1", number="4", rate="x")


@pytest.mark.every_database
def test_pages_count_the_runs_of_a_group_up_to_a_thousand(any_pages: Pages) -> None:
    env = any_pages.env
    handle = env.create("letters", limit="vendor", limit_running=1, overlap="allow_all")
    runs = [present(handle.trigger().run) for _ in range(2)]
    copy_run(env.runtime, runs[1], 999)
    (group,) = env.scheduler.limits.list().items
    assert (group.starting, group.waiting) == (1, 1_000)
    for path in ("/limits", "/limits/vendor", "/system"):
        assert 'data-label="waiting">1000+</td>' in any_pages.get(path), path
    assert "1000+ runs and targets wait in total." in any_pages.get("/limits/vendor")
    env.advance(max(env.runtime.settings.longest_wait.values()) + SECOND)
    assert findings(env)["limits"][1].startswith(
        "Runs wait too long for a place in their group: 1000+ of default/vendor (0 of 1"
    )
