"""What a person on call sees first: what matters most, since when it is so, how late a run was, and who owns it."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from pathlib import Path

import pytest
from rq import Worker

from rqsched import After, Cron, Declaration, Every, RetryPolicy
from rqsched.api import health
from rqsched.dashboard import overview
from rqsched.dashboard.rendering import ago, duration
from rqsched.dashboard.system import Pace, judge
from tests.dashboard.test_statements import text_of
from tests.dashboard.test_system import cells
from tests.support.env import HOUR, MINUTE, NOON, ONCE
from tests.support.narrow import present
from tests.support.pages import Pages


def titles(page: str) -> list[str]:
    """The problems of the overview, in order."""
    return [text_of(one) for one in re.findall(r"<article.*?<h3>(.*?)</h3>", page, re.DOTALL)]


def test_dead_and_failing_schedules_come_before_runs_that_wait_for_a_worker(pages: Pages) -> None:
    env = pages.env
    Worker(["default"], connection=env.redis, name="host-1").register_birth()
    train = env.create("train", queue="gpu", spec=Cron("0 2 1 1 *"), overlap="allow_all")
    for _ in range(2):
        train.trigger()
    env.fail_next(env.create("gone", retry=RetryPolicy(max_retries=0, max_consecutive_failures=1)))
    failing = env.create("crm", retry=ONCE)
    for _ in range(5):
        env.fail_next(failing)
    found = [one for one in titles(pages.get("/")) if "dead" in one or "failing" in one or "Jobs wait" in one]
    assert found == ["1 schedule is dead", "1 schedule is failing repeatedly", "Jobs wait for a worker"]


@pytest.mark.every_database
def test_failing_schedule_says_since_when_how_often_and_when_it_succeeded_last(any_pages: Pages) -> None:
    env = any_pages.env
    never = env.create("never", retry=ONCE, spec=Every(HOUR))
    for _ in range(3):
        env.fail_next(never, HOUR)
    told = "3 failures in a row, the first 2 h ago , last success never"
    assert told in text_of(any_pages.get("/schedules/never"))
    never.delete()
    crm = env.create("crm", retry=ONCE, spec=Every(HOUR))
    env.run_next(crm, HOUR)
    for _ in range(5):
        env.fail_next(crm, HOUR)
    told = "5 failures in a row, the first 4 h ago , last success 5 h ago"
    assert told in text_of(any_pages.get("/schedules/crm"))
    assert told in text_of(any_pages.get("/"))


def test_failures_with_one_cause_are_one_line(pages: Pages) -> None:
    env = pages.env
    handles = [env.create(f"job-{number}", retry=ONCE) for number in range(3)]
    for handle in handles:
        env.fail_next(handle)
    env.fail_next(handles[0])
    shown = pages.get("/")
    assert len(re.findall(r'<a class="count"', shown)) == 1
    assert re.search(r">4\W</a>", shown)
    assert "and 2 more schedules" in text_of(shown)
    rows = pages.get("/runs?status=failures")
    assert len(re.findall(r'<td class="run">', rows)) == 3
    assert "1 more with this error" in rows


def test_why_reads_a_time_in_the_zone_of_the_schedule_and_leads_to_the_occurrences_beside_it(pages: Pages) -> None:
    env = pages.env
    env.create("nightly", spec=Cron("0 2 * * *"), timezone="Europe/Berlin")
    pages.cookies["rqsched_zone"] = "America/New_York"
    shown = pages.get("/schedules/nightly?at=2026-01-20T02:00")
    assert "Tue 20 Jan 2026 02:00 CET" in text_of(shown)
    assert 'value="2026-01-20T02:00"' in shown
    assert re.findall(r'rel="(prev|next)" href="/schedules/nightly\?at=([^"#]*)#why"', shown) == [
        ("prev", "2026-01-19T01%3A00%3A00Z"),
        ("next", "2026-01-21T01%3A00%3A00Z"),
    ]
    other = pages.get("/schedules/nightly?at=2026-01-19T20:00&zone=America/New_York")
    assert "Tue 20 Jan 2026 02:00 CET" in text_of(other)


@pytest.mark.every_database
def test_run_says_how_late_it_was_and_because_of_what(any_pages: Pages) -> None:
    env = any_pages.env
    handle = env.create("letters", spec=Cron("0 * * * *"))
    env.run_next(handle, HOUR)
    env.advance(HOUR)
    due = env.clock.now()
    env.advance(timedelta(minutes=1))
    env.dispatch()
    env.advance(timedelta(minutes=2))
    env.work()
    told = "3 minutes late (1 minute until a dispatcher fired it, 2 minutes for a worker of the default queue)"
    assert told in handle.why(due).text
    run = handle.runs().items[0]
    shown = text_of(any_pages.get(f"/runs/{run.uid}"))
    assert "Waited 3 min last success 0 ms" in shown
    assert "Last success #1" in shown


def test_schedule_that_is_declared_says_where_and_that_an_edit_is_overwritten(pages: Pages) -> None:
    env = pages.env
    env.create("by-hand")
    env.scheduler.sync([Declaration("by-sync", "note", Every(HOUR))])
    assert "overwrites" not in pages.get("/schedules/by-hand")
    for path in ("/schedules/by-sync", "/schedules/by-sync/edit"):
        assert "It is declared elsewhere, and a sync made it: the next sync overwrites what is edited here." in text_of(
            pages.get(path)
        )
    env.scheduler.declarations.add(Declaration("in-code", "report", Every(HOUR)))
    env.register("report", test_schedule_that_is_declared_says_where_and_that_an_edit_is_overwritten)
    env.scheduler.sync([Declaration("in-code", "report", Every(HOUR))])
    assert f"It is declared in {Path(__file__).name}: " in text_of(pages.get("/schedules/in-code"))


def pace(arriving: float, ended: float, busy: float) -> Pace:
    return Pace(10, 0, arriving, ended, busy, None, None)


@pytest.mark.parametrize(
    ("workers", "found", "is_slow", "told"),
    [
        (2, pace(60, 60, 0.5), False, "enough: 25% busy, needs about 1"),
        (2, pace(120, 60, 1.0), False, "too few: 50% busy, needs about 3"),
        (2, pace(60, 60, 0.5), True, "too few: 25% busy, needs about 3"),
        (0, pace(60, 0, 0), False, "too few: no worker listens"),
        (1, pace(60, 0, 0), False, "not known: nothing that came has ended"),
        (1, None, False, ""),
        (0, None, False, ""),
        (0, None, True, "too few: no worker listens"),
    ],
)
def test_verdict_on_the_workers_of_a_queue(workers: int, found: Pace | None, is_slow: bool, told: str) -> None:
    verdict = judge(workers, found, is_slow=is_slow)
    assert verdict.text == told
    assert verdict.is_bad == told.startswith("too few")


def test_queue_of_runs_of_an_hour_that_end_sooner_than_they_come_has_enough_workers(pages: Pages) -> None:
    env = pages.env
    Worker(["default"], connection=env.redis, name="host-1").register_birth()
    run = present(env.create("letters").trigger().run)
    env.claim(run)
    env.advance(6 * MINUTE)
    run.terminate()
    assert cells(pages.get("/system"), "default")[-2] == "enough: 10% busy, needs about 1"


def test_each_check_of_the_overview_has_its_words_and_its_place_among_the_problems() -> None:
    shown = {check.name for check in health._CHECKS if check.shown is not health._Shown.DOCTOR}
    assert {*overview._BY_CONSEQUENCE} == shown
    without_words = {"redis"}  # its findings are errors, which say what Redis said
    assert shown - overview._WORDS.keys() == without_words


def test_problem_is_a_sentence_with_times_by_the_viewers_clock(pages: Pages) -> None:
    env = pages.env
    Worker(["gpu"], connection=env.redis, name="host-1").register_birth()
    env.create("train", queue="gpu", spec=Cron("0 2 1 1 *")).trigger()
    env.advance(HOUR)
    Worker(["gpu"], connection=env.redis, name="host-2").register_birth()
    pages.cookies["rqsched_zone"] = "Europe%2FBerlin"
    shown = text_of(pages.get("/"))
    assert (
        "Runs wait too long for a worker: 1 run on 'gpu', the first since Thu 15 Jan 2026 13:00 CET."
        in html.unescape(shown)
    )


def test_a_freeze_is_told_once_and_all_is_not_said_to_be_well(pages: Pages) -> None:
    pages.env.scheduler.freeze("a move")
    shown = text_of(pages.get("/"))
    assert shown.count("is frozen") == 1
    assert "Everything is as it should be" not in shown


def test_outcomes_say_since_when_their_runs_were_created(pages: Pages) -> None:
    """The first bar begins at a full hour, so it may leave out a failure of the last 24 hours."""
    pages.env.run_next(pages.env.create("hourly", spec=Cron("0 * * * *")), HOUR)
    pages.env.advance(20 * MINUTE)
    assert "Runs created since Wed 14:00." in text_of(pages.get("/"))


@pytest.mark.parametrize(
    ("seconds", "told", "length"),
    [
        (61, "in 61 s", "1 min 1 s"),
        (120, "in 2 min", "2 min"),
        (7_140, "in 119 min", "1 h 59 min"),
        (172_740, "in 47 h", "1 d 23 h"),
        (259_200, "in 3 d", "3 d"),
    ],
)
def test_distance_is_not_half_of_what_it_is_and_a_length_has_no_zeros(seconds: int, told: str, length: str) -> None:
    assert ago(NOON + timedelta(seconds=seconds), NOON) == told
    assert duration(seconds) == length


def test_run_says_in_words_where_it_came_from(pages: Pages) -> None:
    env = pages.env
    first = env.create("first")
    env.create("second", spec=After("first"))
    first.trigger()
    env.execute_pending()
    shown = text_of(pages.get("/runs"))
    assert "after another schedule" in shown
    assert "started by hand" in shown


def test_history_names_skipped_occurrences_in_the_zone_of_the_schedule(pages: Pages) -> None:
    pages.env.create("hourly", spec=Cron("0 * * * *"), timezone="Europe/Berlin").skip_next(2)
    shown = text_of(pages.get("/schedules/hourly").partition('id="history"')[2].partition("<details>")[0])
    assert "Thu 15 Jan 2026 14:00 CET, Thu 15 Jan 2026 15:00 CET" in " ".join(shown.split()).replace(" ,", ",")


@pytest.mark.parametrize(("path", "list_of"), [("/runs/none", "/runs"), ("/schedules/none", "/schedules")])
def test_page_of_what_does_not_exist_leads_to_the_list_and_names_no_command(
    pages: Pages, path: str, list_of: str
) -> None:
    shown = pages.get(path, status=404).partition("<main")[2]
    assert f'<a class="button" href="{list_of}">' in shown
    assert "<code>" not in shown


def test_page_of_a_schedule_says_what_it_leaves_out_of_a_backfill(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("hourly", spec=Cron("0 * * * *"), overlap="allow_all")
    end = env.clock.now()
    schedule.backfill(end - 10 * HOUR, end)
    env.execute_pending()
    assert schedule.refresh().state.success_count == 10
    shown = text_of(pages.get("/schedules/hourly"))
    assert "None of the newest stored runs, without those of backfills, has started and ended." in shown
    assert "Without the events of runs of backfills." in shown
    (backfill,) = env.scheduler.backfills.list().items
    asked = pages.get(f"/backfills/{backfill.uid}/cancel")
    assert "there is nothing to cancel" in asked
    assert 'class="danger"' not in asked


def test_refused_operation_names_the_field_as_the_form_does(pages: Pages) -> None:
    pages.env.create("hourly", spec=Cron("0 * * * *"))
    fields = {"action": "backfill", "start": "2026-01-15T10:00", "end": "2026-01-15T09:00"}
    answer = pages.send("/schedules/hourly/do", **fields)
    assert answer.status_code == 422
    assert '<p class="problem bad" role="status">Not done: Until: must be after' in answer.text
