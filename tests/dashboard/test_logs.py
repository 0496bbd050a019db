"""The id of a run's RQ job, and the link to its logs, on the page of the run."""

from __future__ import annotations

import html
import re
from datetime import timedelta

from rqsched.kernel.transport.transport import job_id_of
from tests.support.env import MINUTE, NOON, ONCE
from tests.support.narrow import present
from tests.support.pages import Pages
from tests.support.web import MakeWeb


def link_of(page: str) -> str | None:
    found = re.search(r'<a href="([^"]*)" rel="noreferrer">Logs of this run</a>', page)
    return html.unescape(found[1]) if found else None


def test_each_field_of_the_template_is_replaced_and_percent_encoded(make_web: MakeWeb) -> None:
    template = "https://logs.example.com/?q={run}%20{job}&a={from}&b={to}&c={from_ms}&d={to_ms}#{run}"
    pages = Pages(make_web(logs_url=template))
    env = pages.env
    run = present(env.create().trigger().run)
    job = str(job_id_of(run.state))
    noon_ms = int(NOON.timestamp()) * 1000
    begin = f"https://logs.example.com/?q={run.uid}%20{job}&a=2026-01-15T11%3A59%3A00Z"
    assert f'<dt>RQ job</dt><dd class="wrap"><code>{job}</code>' in pages.get(f"/runs/{run.uid}")
    assert link_of(pages.get(f"/runs/{run.uid}")) == (
        f"{begin}&b=2026-01-15T13%3A00%3A00Z&c={noon_ms - 60_000}&d={noon_ms + 3_600_000}#{run.uid}"
    )
    env.clock.advance(MINUTE)
    env.execute_pending()
    assert link_of(pages.get(f"/runs/{run.uid}")) == (
        f"{begin}&b=2026-01-15T12%3A02%3A00Z&c={noon_ms - 60_000}&d={noon_ms + 120_000}#{run.uid}"
    )


def test_page_names_the_job_of_the_current_attempt(pages: Pages) -> None:
    env = pages.env
    run = env.fail_next(env.create(retry=ONCE))
    assert f"<code>run-{run.uid}-a1-d1</code>" in pages.get(f"/runs/{run.uid}")
    env.scheduler.runs.get(run.uid).retry()
    shown = pages.get(f"/runs/{run.uid}")
    assert f"<code>run-{run.uid}-a2-d1</code>" in shown
    assert link_of(shown) is None, "no template is set"


def test_run_without_a_job_names_none_and_has_a_link_only_if_the_template_needs_none(make_web: MakeWeb) -> None:
    web = make_web(logs_url="https://logs.example.com/{job}")
    pages = Pages(web)
    schedule = pages.env.create(spec=timedelta(hours=1), overlap="buffer_all")
    present(schedule.trigger().run)
    buffered = present(schedule.trigger().run)
    outside = present(pages.env.create("outside", executor="external").trigger().run)
    for run in (buffered, outside):
        shown = pages.get(f"/runs/{run.uid}")
        assert "RQ job" not in shown
        assert link_of(shown) is None
    other = Pages(make_web(logs_url="https://logs.example.com/{run}"))
    assert link_of(other.get(f"/runs/{outside.uid}")) == f"https://logs.example.com/{outside.uid}"
