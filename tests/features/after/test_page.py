"""A schedule after another on the pages: made by the form, previewed, linked with its upstream."""

from __future__ import annotations

import pytest

from rqsched import After
from tests.support.env import ONCE, all_runs
from tests.support.pages import Pages


@pytest.mark.parametrize("on", ["success", "failure", "end"])
def test_the_form_makes_one_and_shows_it_again(pages: Pages, on: str) -> None:
    pages.env.create("nightly")
    pages.get("/schedules/new")
    sent = pages.send("/schedules", schedule_id="report", workflow="note", kind=f"after-{on}", timing="nightly")
    assert sent.status_code == 303
    assert pages.env.scheduler.get("report").state.spec.after == After("nightly", on=on)
    assert f'<option value="after-{on}" selected>' in pages.get("/schedules/report/edit")
    assert "after each" in pages.get("/schedules")


def test_the_form_says_what_is_refused(pages: Pages) -> None:
    pages.get("/schedules/new")
    sent = pages.send("/schedules", schedule_id="report", workflow="note", kind="after-success", timing="nowhere")
    assert sent.status_code == 422
    assert " first, or name another schedule" in sent.text


def test_the_preview_says_it_in_words_and_whether_the_other_is_there(pages: Pages) -> None:
    asked = "/preview?kind=after-failure&timing=nightly&timezone=Europe/Berlin&exclude=&dst_gap=shift&dst_fold=first"
    assert "there is no schedule" in pages.get(asked)
    pages.env.create("nightly")
    shown = pages.get(asked)
    assert "After each failure of nightly" in shown
    assert "It has no times of its own." in shown
    assert "exclude: does not apply" in pages.get(asked.replace("exclude=", "exclude=Sat"))


def test_runs_and_schedules_are_linked_both_ways(pages: Pages) -> None:
    env = pages.env
    nightly, report = env.create("nightly", retry=ONCE), env.create("report", After("nightly"))
    upstream = env.run_next(nightly)
    (run,) = all_runs(report)
    assert f"/runs/{run.uid}" in pages.get(f"/runs/{upstream.uid}")
    assert f"/runs/{upstream.uid}" in pages.get(f"/runs/{run.uid}")
    assert "/schedules/report" in pages.get("/schedules/nightly")
    shown = pages.get("/schedules/report")
    assert "/schedules/nightly" in shown
    assert "It runs after each success of nightly." in shown
    assert "Run now" in shown
    assert "Backfill</a>" not in shown
    assert "Skip next</a>" not in shown
    nightly.delete()
    assert "which does not exist any more" in pages.get("/schedules/report")
    assert "report" in pages.get("/timeline")
