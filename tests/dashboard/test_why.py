"""Pages say why nothing ran, when that was, and all else that is known of a schedule and of its runs' neighbours."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from rqsched import Cron, Every
from rqsched.api.description import Description
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.policy import MissedPolicy
from rqsched.kernel.decide.reasons import EndReason, SkipReason, end_in_words, miss_in_words, skip_in_words
from tests.support.env import DAY, HOUR, MINUTE
from tests.support.pages import Pages

_TEMPLATE = Path(__file__).parents[2] / "rqsched/dashboard/templates/schedule.html"
_SKIPS = (
    "overlap_policy_skip", "buffer_full", "remaining_actions_exhausted", "status_not_triggerable", "environment",
    "dst_skip", "skip_next", "disabled", "deleted", "frozen", "paused",
)  # fmt: skip
_ENDS = ("total_repeats_reached", "retries_exhausted", "max_runs_exhausted", "spec_ended")


def test_every_reason_has_words_and_what_somebody_typed_stays() -> None:
    assert (sorted(SkipReason), sorted(EndReason)) == (sorted(_SKIPS), sorted(_ENDS))  # codes are stored
    assert [code for code in _SKIPS if skip_in_words(code) == code] == []
    assert [code for code in (*MissedPolicy, *_SKIPS) if miss_in_words(code, has_fired=True) == code] == []
    assert [code for code in _ENDS if end_in_words(code) == code] == []
    typed = ("the vendor moves", *MissedPolicy, *_SKIPS)
    assert [end_in_words(text) for text in typed] == [*typed]


def test_reason_that_somebody_typed_is_shown_as_it_is_although_it_is_a_code_too(pages: Pages) -> None:
    handle = pages.env.create("slow")
    handle.pause(reason="all")
    shown = pages.get("/schedules/slow")
    assert "Paused: <bdi>all<" in shown
    assert "more were late" not in shown


def test_reason_of_a_trigger_that_was_skipped_is_shown_beside_why(pages: Pages) -> None:
    pages.env.create("slow").trigger()
    pages.do("/schedules/slow/do", action="trigger", reason="the boss wants it")
    shown = pages.get("/schedules/slow")
    assert re.search(r"an earlier run was unfinished</span> <span>\S <bdi>the boss wants it</bdi></span>", shown)


@pytest.mark.every_database
@pytest.mark.parametrize("is_whole", [True, False], ids=["all of it", "a part"])
def test_misses_under_a_freeze_say_that_everything_was_frozen_by_whom_and_why(any_pages: Pages, is_whole: bool) -> None:
    env, hostile = any_pages.env, "ada\u202e<b>"
    env.create("hourly", spec=Cron("0 * * * *"), fire_within=MINUTE)
    env.advance(MINUTE if is_whole else 1.5 * HOUR)
    env.scheduler.freeze("restoring", everything=True, context=CommandContext(principal=hostile))
    env.advance(2 * HOUR)
    env.scheduler.thaw(everything=True)
    env.advance(MINUTE)
    env.scheduler.tick()
    shown = any_pages.get("/schedules/hourly")
    told = " by ada\N{REPLACEMENT CHARACTER}&lt;b&gt; (restoring)"
    assert (f"<bdi>everything was frozen from Thu 15 Jan 12:01 to Thu 15 Jan 14:01,{told}" in shown) == is_whole
    assert ("<bdi>nothing fired in time; everything was frozen from Thu 15 Jan 13:30" in shown) == (not is_whole)
    assert told in shown


def test_misses_before_and_after_a_freeze_do_not_name_it(pages: Pages) -> None:
    env = pages.env
    env.create("hourly", spec=Cron("0 * * * *"), fire_within=MINUTE)
    env.advance(1.5 * HOUR)
    env.scheduler.tick()
    env.scheduler.freeze("restoring", everything=True)
    env.advance(MINUTE)
    env.scheduler.thaw(everything=True)
    env.advance(HOUR)
    env.scheduler.tick()
    shown = pages.get("/schedules/hourly")
    assert shown.count("nothing fired in time") >= 2
    assert "was frozen" not in shown


def test_misses_for_which_nothing_fired_promise_no_run(pages: Pages) -> None:
    env = pages.env
    env.create("hourly", spec=Cron("0 * * * *"), fire_within=MINUTE)
    env.advance(3.5 * HOUR)
    env.scheduler.tick()
    shown = pages.get("/schedules/hourly")
    assert "Missed 3:" in shown
    assert "nothing fired in time" in shown
    assert "makes up for" not in shown


def test_what_was_skipped_before_a_restart_is_still_told(pages: Pages) -> None:
    env = pages.env
    handle = env.create("once", max_runs=1)
    handle.trigger()
    handle.trigger()
    env.work()
    handle.restart()
    assert "Skipped: " in pages.get("/schedules/once")


def test_page_of_a_schedule_shows_all_that_describe_knows() -> None:
    shown = set(re.findall(r"\babout\.(\w+)", _TEMPLATE.read_text()))
    assert {field.name for field in fields(Description)} - shown == set()


@pytest.mark.every_database
def test_skip_and_misses_are_told_in_words_with_their_times(any_pages: Pages) -> None:
    env = any_pages.env
    env.create("slow", spec=Every(MINUTE))
    env.advance(MINUTE)
    env.scheduler.tick()
    env.advance(MINUTE)
    env.scheduler.tick()
    env.create("hourly", spec=Cron("0 * * * *"), timezone="America/New_York")
    env.advance(3 * HOUR)
    env.scheduler.tick()
    slow, hourly = any_pages.get("/schedules/slow"), any_pages.get("/schedules/hourly")
    assert "an earlier run was unfinished" in slow
    assert "overlap_policy_skip" not in re.sub(r"<pre.*?</pre>", "", slow, flags=re.DOTALL)
    assert re.search(r"Skipped: <time[^>]*>Thu 15 Jan 2026 12:02 UTC", slow)
    assert re.search(r"Missed 2: <time[^>]*>Thu 15 Jan 2026 09:00 EST</time> to <time[^>]*>[^<]* 10:00 EST", hourly)
    assert "nothing fired in time, and one run makes up for all" in hourly
    timeline = any_pages.get("/timeline")
    assert "skipped Thu 15 Jan 12:02: an earlier run was unfinished" in timeline
    marked = re.findall(r'<g><title>(missed 2, [^<]*)</title><path class="halo"', timeline)
    assert (
        marked == ["missed 2, Thu 15 Jan 14:00 to Thu 15 Jan 15:00: " + miss_in_words("fire_once", has_fired=True)] * 2
    )


def test_misses_before_many_later_events_are_still_told(pages: Pages) -> None:
    env = pages.env
    handle = env.create("hourly", spec=Cron("0 * * * *"), overlap="allow_all")
    env.advance(3 * HOUR)
    env.scheduler.tick()
    end = env.clock.now() - DAY
    handle.backfill(end - 10 * DAY, end)
    assert "Missed 2:" in pages.get("/schedules/hourly")


def test_trigger_that_starts_nothing_says_why_in_words(pages: Pages) -> None:
    pages.env.create("slow").trigger()
    shown = pages.do("/schedules/slow/do", action="trigger")
    assert "Nothing was started: an earlier run was unfinished." in shown


def test_schedule_that_ended_says_why_in_words(pages: Pages) -> None:
    env = pages.env
    env.run_next(env.create("thrice", max_runs=1))
    assert "Done: <bdi>its max_runs are used up" in pages.get("/schedules/thrice")


def test_run_leads_to_the_run_before_and_after_it(pages: Pages) -> None:
    env = pages.env
    handle = env.create("hourly")
    runs = [env.run_next(handle) for _ in range(3)]
    links = [re.findall(r'rel="(prev|next)" href="/runs/(\w+)"', pages.get(f"/runs/{run.uid}")) for run in runs]
    one, two, three = (run.uid for run in runs)
    assert links == [[("next", two)], [("prev", one), ("next", three)], [("prev", two)]]


def test_list_shows_the_next_fire_by_the_clock_of_the_schedule_and_of_the_viewer(pages: Pages) -> None:
    pages.env.create("nightly", spec=Cron("0 2 * * *"), timezone="America/New_York")
    pages.env.create("yearly", spec=Cron("0 0 1 1 *"), timezone="Asia/Tokyo")
    pages.cookies["rqsched_zone"] = "Asia%2FTokyo"
    shown = pages.get("/schedules").replace("\N{NO-BREAK SPACE}", " ")
    assert "Fri 02:00 EST, 16:00 your time" in shown
    assert ">01 Jan 2027 00:00 JST<" in shown
    pages.cookies["rqsched_zone"] = "Pacific%2FAuckland"
    assert "Fri 02:00 EST, 20:00 your time" in pages.get("/schedules").replace("\N{NO-BREAK SPACE}", " ")
    pages.env.advance(DAY)
    pages.cookies["rqsched_zone"] = "Pacific%2FKiritimati"
    assert "01 Jan 2027 00:00 JST, 05:00 your time" in pages.get("/schedules").replace("\N{NO-BREAK SPACE}", " ")


def test_pause_and_death_are_why_nothing_runs(pages: Pages) -> None:
    env = pages.env
    env.create("calm", spec=Cron("0 * * * *"))
    pages.do("/schedules/calm/do", action="pause", reason="the vendor moves")
    env.create("frail", spec=Cron("0 * * * *"), retry={"max_retries": 0, "then": "dead"})
    env.failing = True
    env.run_next(env.scheduler.get("frail"), HOUR)
    env.advance(3 * DAY)
    shown = pages.get("/schedules/calm")
    assert re.search(r"<strong>paused</strong> . <bdi>It has been paused since [^<]*: the vendor moves", shown)
    assert "No occurrence was skipped" not in shown
    shown = pages.get("/schedules/frail")
    assert re.search(r"<strong>dead</strong> . <bdi>It has been dead since Thu 15 Jan 2026 at 13:00 UTC", shown)
    assert "its runs failed as often as its retry policy allows" in shown
    assert "too many" not in shown, "one failure was enough"


def test_page_answers_for_an_instant_that_is_asked_in_the_namespace_that_is_shown(pages: Pages) -> None:
    env = pages.env
    env.create("hourly", spec=Cron("0 * * * *"), namespace="tenant")
    shown = pages.get("/schedules/hourly?namespace=tenant&at=2026-01-15T13:00")
    assert re.search("<strong>fires</strong> . <bdi>It fires on Thu 15 Jan 2026 at 13:00 UTC.</bdi>", shown)
    assert shown.count('<input type="hidden" name="namespace" value="tenant">') >= 2  # its form, and that of the runs
    assert "is not a time" in pages.get("/schedules/hourly?namespace=tenant&at=soon", status=422)
