"""The pages show the state of the schedules in words, escaped and bounded."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Cron, Every, RetryPolicy
from rqsched.api import schedules as schedule_queries
from rqsched.dashboard.rendering import NOTHING, STATIC
from rqsched.features.hours import store as run_hours
from rqsched.features.pruning.chain import Pruning, prune_all
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.model import Change, RunStatus, tone_of
from rqsched.kernel.decide.retention import Retention
from rqsched.kernel.store import changes
from rqsched.kernel.store.tables import schedules
from rqsched.workflows import make_workflow
from tests.dashboard.test_statements import text_of
from tests.kernel.store.samples import run_of
from tests.support.crowd import copy_schedule
from tests.support.env import DAY, HOUR, MINUTE, ONCE, SECOND
from tests.support.lamp import lamp_of
from tests.support.narrow import present
from tests.support.pages import Pages
from tests.support.servers import ValkeyServer
from tests.support.serving import reading, served
from tests.support.web import MakeWeb

HOSTILE = "<script>alert(1)</script>\"'&"


def test_an_empty_dashboard_says_how_to_begin(pages: Pages) -> None:
    assert "Nothing is scheduled to fire." in pages.get("/")
    assert "No schedules yet" in pages.get("/schedules")
    assert "Nothing ran or fires in these hours." in pages.get("/timeline")


@pytest.mark.every_database
def test_every_page_shows_a_schedule_that_ran(any_pages: Pages) -> None:
    env = any_pages.env
    env.create("nightly", spec=Cron("0 2 * * MON-FRI"), timezone="America/New_York", labels={"team": "billing"})
    run = present(env.scheduler.get("nightly").trigger().run)
    env.execute_pending()
    assert "nightly" in any_pages.get("/")
    listed = any_pages.get("/schedules")
    assert "at 02:00, Monday to Friday, New York time" in listed
    assert "team:billing" in listed
    shown = any_pages.get("/schedules/nightly")
    assert "1, of which 1 succeeded" in shown
    assert "<strong>Run queued</strong>" in shown
    assert "Run #1" in any_pages.get(f"/runs/{run.uid}")
    assert "nightly: 1 succeeded;" in any_pages.get("/timeline")
    assert "runs in the last hour" in any_pages.get("/system")


def test_a_failed_run_shows_its_error_and_is_listed_first(pages: Pages) -> None:
    env = pages.env
    run = env.fail_next(env.create("crm", retry=ONCE))
    assert run.status == "failed"
    assert "RuntimeError: as the test wants it" in pages.get(f"/runs/{run.uid}")
    overview = pages.get("/")
    assert overview.index("Failed in the last 24 hours") < overview.index("RuntimeError: as the test wants it")
    assert "1 run in a row" in pages.get("/schedules/crm")


def test_what_a_tenant_wrote_is_never_markup(pages: Pages) -> None:
    env = pages.env
    env.create("hostile", description=HOSTILE, note=HOSTILE, labels={"x": HOSTILE[:60]}, kwargs={"a": HOSTILE})
    env.scheduler.get("hostile").pause(reason=HOSTILE)
    for path in ("/", "/schedules", "/schedules/hostile", "/schedules/hostile/edit", "/timeline"):
        assert "<script>alert" not in pages.get(path), path
    assert html.escape(HOSTILE, quote=False)[:20] in pages.get("/schedules/hostile")
    assert "<script>alert" not in pages.get(f"/schedules?q={HOSTILE}")


def test_filters_and_pages_show_each_schedule_once(pages: Pages) -> None:
    env = pages.env
    for number in range(60):
        env.create(f"job-{number:02}", spec=Every(timedelta(minutes=5 + number)))
    for sort in ("id", "next", "newest"):
        first = pages.get(f"/schedules?sort={sort}")
        following = html.unescape(first.split('rel="next" href="')[1].split('"')[0])
        seen = [first.count("/schedules/job-"), pages.get(following).count("/schedules/job-")]
        assert seen == [50, 10], sort
    for sort in ("id", "newest"):
        assert pages.get(f"/schedules?sort={sort}&outcome=failed").count("/schedules/job-") == 0
    assert pages.get("/schedules?q=job-07").count("/schedules/job-") == 1
    assert "No schedule matches." in pages.get("/schedules?status=dead")


def ids_of(shown: str) -> list[str]:
    """The schedules of a list, in order."""
    return re.findall(r'<td class="name"><a class="id" href="/schedules/([^"?]*)', shown)


@pytest.mark.every_database
def test_schedules_with_problems_come_first_the_gravest_before_the_others(any_pages: Pages) -> None:
    env = any_pages.env
    for name in ("b-well", "a-late", "c-overdue"):
        env.create(name, spec=Cron("0 0 1 1 *"))
    env.failing = True
    env.create("d-failing", spec=Cron("0 0 1 1 *"), retry=ONCE).trigger()
    env.create("e-dead", spec=Cron("0 0 1 1 *"), retry=RetryPolicy(max_retries=0, then="dead")).trigger()
    env.execute_pending()
    change: dict[str, dict[str, Any]] = {
        "a-late": {"due_at": env.clock.now() - DAY},
        "c-overdue": {"overdue_since": env.clock.now() - DAY},
        "d-failing": {"consecutive_failures": 3, "overdue_since": env.clock.now() - DAY},
    }
    for name, values in change.items():
        statement = sa.update(schedules).where(schedules.c.schedule_id == name).values(**values)
        env.runtime.database.transact(partial(sa.Connection.execute, statement=statement))
    copy_schedule(env.runtime, env.scheduler.get("b-well"), 60, "well-")
    first = any_pages.get("/schedules?sort=worst")
    following = html.unescape(first.split('rel="next" href="')[1].split('"')[0])
    listed = ids_of(first) + ids_of(any_pages.get(following))
    assert listed[:6] == ["a-late", "e-dead", "d-failing", "c-overdue", "b-well", "well-00000"]
    assert len(listed) == len({*listed}) == 65
    assert ids_of(any_pages.get("/schedules?sort=worst&status=active&q=-"))[0] == "a-late"
    assert ids_of(any_pages.get("/schedules?sort=worst&status=dead")) == ["e-dead"]
    assert ids_of(any_pages.get("/schedules?sort=worst&problem=overdue")) == ["d-failing", "c-overdue"]
    row = first.partition("/schedules/a-late")[2].partition("</tr>")[0]
    assert '<div class="small error-line">late</div>' in row


def test_page_in_the_order_of_problems_never_skips_schedules_of_one_problem(pages: Pages) -> None:
    env = pages.env
    env.create("model", spec=Cron("0 0 1 1 *"))
    is_overdue = sa.update(schedules).values(overdue_since=env.clock.now() - DAY)
    env.runtime.database.transact(partial(sa.Connection.execute, statement=is_overdue))
    copy_schedule(env.runtime, env.scheduler.get("model"), 120, "overdue-")
    path, listed = "/schedules?sort=worst", list[str]()
    while path:
        shown = pages.get(path)
        listed += ids_of(shown)
        path = html.unescape(shown.split('rel="next" href="')[1].split('"')[0]) if 'rel="next"' in shown else ""
    assert len(listed) == len({*listed}) == 121


def test_rows_are_grouped_by_the_values_of_a_label(pages: Pages) -> None:
    for name, labels in (("a", {"team": "sales"}), ("b", {"team": "<billing>"}), ("c", {}), ("d", {"team": "sales"})):
        pages.env.create(name, labels=labels)
    shown = pages.get("/schedules?group=team")
    assert ids_of(shown) == ["b", "a", "d", "c"]
    heads = re.findall(r'<tr class="group"><th colspan="7" scope="rowgroup">(.*?)</th>', shown)
    assert [html.unescape(text_of(head)) for head in heads] == [
        "team: <billing> 1 on this page",
        "team: sales 2 on this page",
        "without the label team 1 on this page",
    ]
    assert "<option selected>team</option>" in shown
    assert ids_of(pages.get(html.unescape(re.findall('href="([^"]*)"', heads[1])[0]))) == ["a", "d"]
    assert '<tr class="group">' not in pages.get("/schedules")


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/schedules?status=dead&label=team:a%E2%80%AEb", "Schedules: label team:a\ufffdb, status dead"),
        ("/schedules?q=+&sort=next", "Schedules"),
        ("/runs?status=failures&within=24h", "Runs: status failed or lost, last 24h"),
        ("/timeline?q=night", "Timeline: id contains night"),
        ("/audit?who=ada&action=SchedulePaused", "Audit: who ada, action paused"),
        ("/find?q=night", "Find: night"),
    ],
)
def test_each_filtered_page_has_its_own_title(pages: Pages, path: str, title: str) -> None:
    pages.env.create("nightly")
    assert f"<title>{title} \N{MIDDLE DOT} rqsched</title>" in pages.get(path)


@pytest.mark.parametrize(
    "path",
    [
        "/schedules?status=x",
        "/schedules?outcome=x",
        "/schedules?sort=x",
        "/schedules?label=x",
        "/schedules?after=x",
        "/schedules?sort=next&after=01KAMVZZZZZZZZZZZZZZZZZZZZ~2026-01-01T00:00:00",
        "/timeline?hours=5",
        "/timeline?at=0001-01-01T00:00Z",
        "/timeline?at=9999-12-31T23:59Z",
        "/timeline?at=1969-12-31T00:00Z",
    ],
)
def test_a_refused_parameter_is_a_page_that_says_what_to_write(pages: Pages, path: str) -> None:
    assert "That cannot be read" in pages.get(path, status=422)


def test_a_reason_cannot_forge_the_line_of_the_history_it_stands_in(pages: Pages) -> None:
    forged = "\u202e)draobhsad( nimda yb desuaP\u2066\x1b"
    context = CommandContext(principal="mallory\u202e", source="cli\u202e", reason=forged)
    pages.env.create("nightly").pause(context=context)
    shown = pages.get("/schedules/nightly")
    assert "by <bdi>mallory\ufffd</bdi> (<bdi>cli\ufffd</bdi>)" in shown
    assert "<bdi>\ufffd)draobhsad( nimda yb desuaP\ufffd\ufffd</bdi>" in shown
    assert "\\u202e)draobhsad" in shown, "the details escape it"
    assert not {"\u202e", "\u2066", "\x1b"} & {*shown}


@pytest.mark.parametrize("at", ["1970-01-01T00:00Z", "9000-12-31T23:59Z"])
@pytest.mark.parametrize("zone", ["Pacific%2FKiritimati", "Pacific%2FPago_Pago"])
def test_the_timeline_reaches_the_ends_of_time(pages: Pages, at: str, zone: str) -> None:
    pages.env.create("nightly")
    pages.cookies["rqsched_zone"] = zone
    assert 'class="lane"' in pages.get(f"/timeline?hours=336&at={at}")


def test_a_form_with_too_many_fields_is_a_page_that_says_so(pages: Pages) -> None:
    answer = pages.send("/bulk", **{f"field-{number}": "x" for number in range(2_001)})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/html; charset=utf-8")
    assert "The form cannot be read; load the page again." in answer.text


def test_a_defect_is_a_page_with_the_request_by_which_the_log_has_it(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(schedule_queries, "search_schedules", fail)
    shown = pages.get("/timeline", status=500)
    assert "Something went wrong" in shown
    assert re.search(r"Request [\w-]+", shown)
    assert "ZeroDivisionError" not in shown


def test_what_does_not_exist_is_a_page_that_says_so(pages: Pages) -> None:
    assert "Not found" in pages.get("/schedules/nope", status=404)
    assert "Not found" in pages.get("/runs/nope", status=404)
    assert "Not found" in pages.get("/runs/01KAMVZZZZZZZZZZZZZZZZZZZZ", status=404)


def test_a_deleted_schedule_keeps_its_page_and_offers_nothing(pages: Pages) -> None:
    pages.env.create("gone").delete(reason="no longer needed")
    shown = pages.get("/schedules/gone")
    assert "no longer needed" in shown
    assert "/confirm?action=" not in shown


def test_an_overdue_schedule_is_what_is_wrong_first(pages: Pages) -> None:
    pages.env.create("late", spec=Every(MINUTE))
    pages.env.clock.advance(HOUR)
    shown = pages.get("/")
    assert "1 schedule is late" in shown
    assert shown.index("1 schedule is late") < shown.index("Fires next")


def test_a_schedule_without_its_expected_success_is_a_problem(pages: Pages) -> None:
    env = pages.env
    env.create("quiet", spec=Cron("0 2 1 * *"), expect_success_within="1h")
    env.clock.advance(2 * HOUR)
    env.recover()
    assert "1 schedule is without a success in time" in pages.get("/")


def test_skips_are_explained_with_the_run_that_blocked_them(pages: Pages) -> None:
    env = pages.env
    handle = env.create("slow", spec=Every(MINUTE))
    blocking = handle.trigger().run
    env.clock.advance(MINUTE)
    env.scheduler.tick()
    shown = pages.get("/schedules/slow")
    assert blocking is not None
    assert f'/runs/{blocking.uid}">blocking run' in shown


def test_times_are_shown_in_the_viewers_zone(pages: Pages) -> None:
    pages.env.create("nightly", spec=Cron("0 2 * * *"), timezone="America/New_York")
    pages.cookies["rqsched_zone"] = "Asia%2FTokyo"
    shown = pages.get("/schedules/nightly")
    assert "02:00 EST" in shown
    assert "16:00 your time" in shown
    pages.cookies["rqsched_zone"] = "../etc/passwd"
    assert "times in UTC" in pages.get("/")


def test_while_redis_is_away_the_pages_say_so_and_show_what_is_stored(
    make_web: MakeWeb, own_valkey: ValkeyServer
) -> None:
    pages = Pages(make_web(redis_url=own_valkey.url))
    pages.env.create("nightly")
    own_valkey.kill()
    assert "Redis does not answer" in pages.get("/")
    assert "nightly" in pages.get("/schedules")
    system = pages.get("/system")
    assert "Not known" in system
    assert "No queue exists yet" not in system


def test_jobs_that_no_worker_takes_are_a_problem_and_show_since_when_they_wait(pages: Pages) -> None:
    pages.env.create("nightly", queue="letters").trigger()
    shown = pages.get("/")
    assert "Jobs wait for a worker" in shown
    assert "No worker listens for 1 run on &#39;letters&#39;." in shown
    (row,) = [line for line in pages.get("/system").split("<tr>") if ">letters</td>" in line]
    assert '<td class="number" data-label="waiting">1</td>' in row
    assert "<time datetime=" in row


@pytest.mark.every_database
def test_the_outcome_filter_holds_over_pages_and_changes_between_them(any_pages: Pages) -> None:
    env = any_pages.env
    env.failing = True
    for number in range(55):
        env.create(f"job-{number:02}", retry=ONCE).trigger()
    env.create("waiting")
    env.execute_pending()
    env.failing = False
    first = any_pages.get("/schedules?outcome=failed")
    assert first.count('href="/schedules/job-') == 50
    env.scheduler.get("job-03").trigger()  # it leaves the list while one reads its first page
    env.execute_pending()
    following = html.unescape(first.split('rel="next" href="')[1].split('"')[0])
    assert "outcome=failed" in following
    assert any_pages.get(following).count('href="/schedules/job-') == 5
    assert "job-03" in any_pages.get("/schedules?outcome=succeeded")
    assert "waiting" not in any_pages.get("/schedules?outcome=succeeded")


def test_the_timeline_shows_each_schedule_once_over_its_pages(pages: Pages) -> None:
    env = pages.env
    for number in range(45):
        env.create(f"job-{number:02}", spec=Cron(f"{number} 14 * * *"), labels={"team": str(number % 2)})
    first = pages.get("/timeline")
    following = html.unescape(first.split('rel="next" href="')[1].split('"')[0])
    seen = [page.count('class="lane"') for page in (first, pages.get(following))]
    assert seen == [40, 5]
    assert pages.get("/timeline?label=team:1").count('class="lane"') == 22
    assert "No schedule matches." in pages.get("/timeline?q=nothing")


def test_the_timeline_of_long_ago_shows_what_ran_then(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("often", overlap="allow_all")
    for _ in range(3):
        env.run_due()
    then = env.clock.now()
    env.advance(HOUR * 24 * 3)
    for _ in range(3):
        env.run_due(HOUR)
    (run, *_) = [one for one in schedule.runs(100).items if one.number == 2]
    shown = pages.get(f"/timeline?hours=1&at={then:%Y-%m-%dT%H:%M:%SZ}")
    assert f"/runs/{run.uid}" in shown
    assert "often: 3 succeeded;" in shown
    assert f"/runs/{run.uid}" not in pages.get("/timeline?hours=1")


def test_runs_that_cannot_be_told_apart_are_a_stack_of_their_outcomes(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("often", retry=ONCE, overlap="allow_all")
    for is_failing in (False, True, False):
        env.failing = is_failing
        env.run_due(SECOND * 60)
    (failed,) = [run for run in schedule.runs(10).items if run.status == "failed"]
    shown = pages.get("/timeline?hours=48")
    assert "often: 2 succeeded, 1 failed;" in shown
    (stack,) = re.findall(rf'<a href="/runs/{failed.uid}"[^>]*><title>([^<]*)</title>(.*?)</a>', shown)
    assert stack[0].startswith("2 succeeded, 1 failed, Thu 15 Jan 12:0")
    parts = re.findall(r'<rect class="(\w+)" x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"/>', stack[1])
    assert [tone for tone, *_ in parts] == ["bad", "ok"]
    assert len({(x, width) for _, x, _, width, _ in parts}) == 1
    assert [float(height) for *_, height in parts] == [4.0, 8.0]


def test_one_failure_among_hundreds_of_runs_is_one_column_of_the_timeline(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("often", spec=MINUTE * 5, retry=ONCE, overlap="allow_all")
    state = env.state(schedule)
    begin = env.clock.now() - 24 * HOUR
    made = []
    for n in range(1, 289):
        at, status = begin + n * MINUTE * 5, RunStatus.FAILED if n == 100 else RunStatus.SUCCEEDED
        run = run_of(state, n, status, occurrence_at=at, due_at=at, started_at=at, ended_at=at)
        made.append(replace(run, created_at=at))
    change = Change(state, replace(state, run_number=288), new_runs=tuple(made))
    env.runtime.database.transact(lambda connection: changes.write(connection, [change]))
    shown = pages.get("/timeline?hours=48").partition('class="lane"')[2].partition("</svg>")[0]
    assert "often: 287 succeeded, 1 failed;" in shown
    (bad,) = re.findall(r'<rect class="bad" x="([^"]*)" y="[^"]*" width="([^"]*)"', shown)
    assert float(bad[1]) < 5
    drawn = [
        (float(x), float(width))
        for x, width in re.findall(r'<rect class="ok" x="([^"]*)" y="[^"]*" width="([^"]*)"', shown)
    ]
    assert min(x for x, _ in drawn) < 5, "all of the day is drawn"
    assert max(x + width for x, width in drawn) > 499
    for hours in (168, 8784):
        assert "often: 287 succeeded, 1 failed;" in pages.get(f"/timeline?hours={hours}")


@pytest.mark.parametrize("status", ["paused", "done", "dead"])
def test_the_timeline_marks_a_schedule_that_does_not_fire_from_then_on(pages: Pages, status: str) -> None:
    bring_to(pages, status)
    pages.env.advance(6 * HOUR)
    shown = pages.get("/timeline?hours=24").partition('class="lane"')[2].partition("</svg>")[0]
    assert f'<span class="pill {tone_of(status)}">{status}</span>' in shown
    assert f'aria-label="one, {status}: ' in shown
    ((x, width),) = re.findall(r'<rect class="rest" x="([^"]*)" y="0" width="([^"]*)" height="20">', shown)
    assert float(x) == pytest.approx(250, abs=2)
    assert float(x) + float(width) == pytest.approx(1000)


def test_the_timeline_has_a_band_for_a_freeze_and_for_a_time_in_which_nothing_fired(pages: Pages) -> None:
    env = pages.env
    env.create("hourly", spec=Cron("0 * * * *"), missed="skip", fire_within=MINUTE)
    env.advance(6 * HOUR)
    env.recover()
    env.dispatch()
    env.scheduler.freeze("a <restore>", everything=True)
    env.advance(3 * HOUR)
    env.scheduler.thaw(everything=True, missed="none")
    shown = pages.get("/timeline?hours=24")
    ((x, width, label),) = re.findall(r'<rect class="outage" x="([^"]*)" y="0" width="([^"]*)".*?<title>(.*?)<', shown)
    assert float(x) + float(width) == pytest.approx(500 - 3 / 24 * 1000, abs=2)
    assert "nothing fired in time" in label
    ((x, width),) = re.findall(r'<rect class="frozen" x="([^"]*)" y="0" width="([^"]*)"', shown)
    assert float(x) == pytest.approx(375, abs=2)
    assert float(width) == pytest.approx(125, abs=2)
    assert "everything was frozen from Thu 15 Jan 18:00 to Thu 15 Jan 21:00 (a &lt;restore&gt;)" in shown


def test_what_the_timeline_copies_into_each_lane_is_styled_there(pages: Pages) -> None:
    """Copies by `<use>` have no ancestor that a selector could name. Without a style, a band is black."""
    pages.env.create("one")
    pages.env.scheduler.freeze("a move")
    pages.env.advance(HOUR)
    copied = pages.get("/timeline?hours=24").partition("<symbol")[2].partition("</symbol>")[0]
    names = set(re.findall(r'class="([a-z]+)"', copied))
    style = re.sub(r"/\*.*?\*/", "", (STATIC / "app.css").read_text())
    selectors = {one.strip() for found in re.findall(r"([^{}]+)\{", style) for one in found.split(",")}
    assert names == {"frozen", "grid", "now"}
    assert {name for name in names if not {f".{name}", f"rect.{name}", f"path.{name}"} & selectors} == set()


def test_lane_of_a_frozen_namespace_leaves_room_for_the_name(pages: Pages) -> None:
    pages.env.create("one")
    pages.env.scheduler.freeze("a move")
    name = pages.get("/timeline?hours=24").partition('class="lane"')[2].partition("<svg")[0]
    assert re.findall(r'class="pill [a-z]+">([^<]*)', name) == ["frozen"]


def test_an_hour_of_runs_leads_to_the_day_around_it(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("often", overlap="allow_all")
    for _ in range(3):
        env.run_due()
    env.runtime.database.transact(lambda c: run_hours.count_some(c, schedule.uid))
    shown = html.unescape(pages.get("/timeline?hours=168"))
    assert 'href="/timeline?hours=24&at=2026-01-15T12%3A00%3A00Z"' in shown
    assert "3 succeeded, Thu 15 Jan 12:00 to 14:00" in shown


def test_a_schedules_page_shows_its_year_its_durations_and_its_interval(pages: Pages) -> None:
    env = pages.env

    def take() -> None:
        env.clock.advance(3 * MINUTE)
        if env.failing:
            raise RuntimeError("as the test wants it")

    env.registry.add(make_workflow("take", take))
    often = env.scheduler.create("often", "take", Every(MINUTE), overlap="allow_all", retry=ONCE)
    for is_failing in (False, True):
        env.failing = is_failing
        run = env.run_next(often)
    shown = pages.get("/schedules/often")
    today = f"{env.clock.now():%a %d %b %Y}"
    assert f"{today}: 1 succeeded, 1 failed" in shown
    assert shown.count("0 succeeded, 0 failed") >= 52 * 7 - 1
    assert f'aria-label="#{run.number} failed, 180.0 s"' in shown
    assert '<line class="limit"' in shown


def test_a_schedules_page_shows_its_hours_and_what_runs_took_also_of_those_that_were_pruned(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("often", retry=ONCE, timezone="America/New_York", overlap="allow_all")
    for is_failing in (False, True, False):
        env.failing = is_failing
        env.run_due()
    cell = "Thu 15 Jan 07:00: 2 succeeded, 1 failed"
    taken = re.compile(r'aria-label="(How long runs took, [^"]*)"')
    shown = pages.get("/schedules/often")
    assert cell in shown
    assert "Thu 15 Jan 2026: 2 succeeded, 1 failed" in shown
    (told,) = taken.findall(shown)
    assert told.endswith("to Thu 15 Jan 12:00: half of the runs took at most 0 ms, 95 % at most 0 ms")
    env.advance(3 * 24 * HOUR)
    prune_all(env.runtime, Pruning(retention=Retention.parse("1d")))
    assert [run.number for run in schedule.runs(10).items] == [3]
    assert cell in pages.get("/schedules/often")


def test_a_backfill_is_a_picture_of_its_occurrences(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("hourly", spec=Cron("0 * * * *"), overlap="allow_all")
    end = env.clock.now()
    schedule.backfill(end - timedelta(hours=10), end)
    waiting = pages.get("/schedules/hourly").partition('aria-label="Its runs at their occurrences: ')[2]
    assert waiting.startswith("10 pending")
    places = re.findall(r'<rect class="idle" x="([^"]*)"', waiting.partition("</svg>")[0])
    assert len(places) == 10
    env.execute_pending()
    shown = pages.get("/schedules/hourly")
    assert 'aria-label="Its runs at their occurrences: 10 succeeded"' in shown


@pytest.mark.parametrize("hours", [70, 119, 120, 121, 240])
def test_picture_of_a_backfill_has_no_gap_if_no_run_is_missing(pages: Pages, hours: int) -> None:
    env = pages.env
    schedule = env.create("hourly", spec=Cron("5 * * * *"), overlap="allow_all")
    end = env.clock.now()
    schedule.backfill(end - timedelta(hours=hours), end)
    picture = pages.get("/schedules/hourly").partition('aria-label="Its runs at their occurrences: ')[2]
    assert picture.startswith(f"{hours} pending")
    assert picture.partition("</svg>")[0].count('<rect class="idle"') == 1


@pytest.mark.parametrize("status", ["active", "paused", "done", "dead", "deleted"])
def test_a_schedules_page_marks_its_state_among_all_states(pages: Pages, status: str) -> None:
    bring_to(pages, status)
    shown = pages.get("/schedules/one")
    states = re.findall(r"<li class=\"([^\"]*)\" ?([^>]*)>(\w+)</li>", shown)
    assert [name for _, _, name in states] == ["active", "paused", "done", "dead", "deleted"]
    assert [name for _, current, name in states if 'aria-current="true"' in current] == [status]
    boxes = re.findall(r'<g class="(current \w+|other)"><rect[^>]*/><text[^>]*>(\w+)</text></g>', shown)
    assert [name for tone, name in boxes if tone != "other"] == [status]
    steps = re.findall(r"<li>([\w ]+) <span[^>]*>→</span><span[^>]*>leads to</span> <strong>(\w+)</strong></li>", shown)
    ends = [("nothing more to start", "done"), ("a run failed for good", "dead")]
    assert (
        steps
        == {
            "active": [("pause", "paused"), *ends, ("delete", "deleted")],
            "paused": [("resume", "active"), *ends, ("delete", "deleted")],
            "done": [("restart", "active"), ("delete", "deleted")],
            "dead": [("restart", "active"), ("delete", "deleted")],
            "deleted": [],
        }[status]
    )


def test_the_preview_keeps_the_letters_of_a_zone(pages: Pages) -> None:
    shown = pages.get("/preview?kind=cron&timing=0+*/2+*+*+*&timezone=UTC")
    assert "<strong>Every 2 hours, UTC</strong>" in shown


def test_a_schedule_that_sends_an_event_shows_the_state_machine_and_what_it_sends(pages: Pages) -> None:
    env = pages.env
    lamp_of(env)
    env.scheduler.create("lamps", "machine:Lamp:SWITCH", Every(MINUTE))
    env.create("other")
    found = re.findall(
        r"<li (.*?)><span>(\w+) <span[^>]*>→</span><span[^>]*>to</span> (\w+)</span><span[^>]*>([^<]*)</span></li>",
        pages.get("/schedules/lamps"),
    )
    sent = ('class="sent"', "SWITCH, sent by this schedule")
    assert found == [
        (sent[0], "off", "on", sent[1]),
        (sent[0], "on", "off", sent[1]),
        ("", "on", "on", "BLINK"),
    ]
    assert "State machine" not in pages.get("/schedules/other")


def bring_to(pages: Pages, status: str) -> None:
    """Create the schedule `one` in a status."""
    env = pages.env
    limits: dict[str, dict[str, Any]] = {
        "done": {"max_runs": 1},
        "dead": {"retry": RetryPolicy(max_retries=0, then="dead")},
    }
    one = env.create("one", **limits.get(status, {}))
    env.failing = status == "dead"
    if status in limits:
        env.run_next(one)
    elif status == "paused":
        one.pause()
    elif status == "deleted":
        one.delete()


def test_the_timeline_marks_where_the_clocks_of_a_schedules_zone_change(pages: Pages) -> None:
    pages.env.create("berlin", spec=Cron("0 * * * *"), timezone="Europe/Berlin")
    pages.env.create("new-york", spec=Cron("0 * * * *"), timezone="America/New_York")
    autumn = pages.get("/timeline?hours=24&at=2026-10-25T01:00:00Z")
    assert "Berlin time: clocks go back 1 h" in autumn
    assert '<path d="M500.0 0V20" class="change"/>' in autumn
    assert "America/New_York" not in autumn
    spring = pages.get("/timeline?hours=24&at=2027-03-14T07:00:00Z")
    assert "New York time: clocks go forward 1 h" in spring
    assert "clocks go" not in pages.get("/timeline?hours=24&at=2026-12-01T00:00:00Z")


def test_a_backfill_makes_nothing_late_and_its_waiting_runs_no_long_bars(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("hourly", spec=Cron("0 * * * *"), overlap="allow_all")
    end = env.clock.now()
    schedule.backfill(end - timedelta(hours=20), end)
    waiting = pages.get("/timeline?hours=48").partition("<use")[2]
    assert re.findall(r'class="\w+" x="[^"]*" y="4"', waiting) == []
    marks = [float(found) for found in re.findall(r'class="idle" x="[^"]*" y="17" width="([^"]*)"', waiting)]
    assert (len(marks), max(marks)) == (20, 4.2), "each in the column of its occurrence"
    env.execute_pending()
    figures = pages.get("/system").partition('aria-label="The last hour"')[2].partition("</section>")[0]
    assert "20</strong>" in figures
    assert re.findall(r"<strong>([^<]*)</strong><span>(?:median )?delay", figures) == [NOTHING, NOTHING]


def test_a_backfill_hides_no_live_run(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("hourly", spec=Cron("0 * * * *"), overlap="allow_all")
    env.run_next(schedule, HOUR)
    begin = env.clock.now() - timedelta(hours=100)
    done = schedule.backfill(begin, begin + timedelta(hours=90))
    for name in ("hourly", "hourly?run_status=succeeded"):
        shown = pages.get(f"/schedules/{name}")
        listed = shown.partition('id="runs"')[2].partition('id="history"')[0]
        assert (listed.count('<td class="run">'), "#1<" in listed) == (1, True)
    history = shown.partition('id="history"')[2].partition("</ol>")[0]
    assert "<strong>Run queued</strong>" in history
    assert history.count("<li>") == 2
    assert "the newest 1 runs took" in shown
    assert re.search(r"90 runs</a>, of which 0 ended, 0 running, 90 waiting;", shown)
    assert '1 newest runs: succeeded"' in pages.get("/schedules")
    env.execute_pending()
    env.advance(MINUTE)
    of_backfill = pages.get(f"/schedules/hourly?backfill={done.uid}")
    assert of_backfill.count('<td class="run">') == 20
    assert "90 runs</a>, of which 90 ended, 0 running, 0 waiting;" in of_backfill


def test_who_paused_it_and_when_stands_in_the_header_and_in_the_list(pages: Pages) -> None:
    pages.env.create("calm", spec=Cron("0 * * * *"))
    pages.do("/schedules/calm/do", action="pause", reason="the vendor moves")
    header = pages.get("/schedules/calm").partition("<h1>")[2].partition("</div>")[0]
    assert re.search(r"Paused: <bdi>the vendor moves</bdi> . by <bdi>local</bdi> . <time", header)
    assert re.search(r"by <bdi>local</bdi>, <time[^>]*>now</time>: <bdi>the vendor moves", pages.get("/schedules"))


def test_pages_are_compressed_and_a_form_carries_another_value_each_time(pages: Pages) -> None:
    pages.env.create("nightly")
    path = "/schedules/nightly/confirm?action=pause"
    sizes = {}
    for coding in ("gzip", "identity", "gzip;q=0", "br, gzip;q=0.5"):
        answer = pages.web.get(path, headers={"accept-encoding": coding})
        sizes[coding] = int(answer.headers["content-length"])
        assert (answer.headers.get("content-encoding") == "gzip") is (coding in {"gzip", "br, gzip;q=0.5"})
        assert "accept-encoding" in answer.headers["vary"].lower()
        assert "Pause nightly?" in answer.text
    assert sizes["gzip"] * 2 < sizes["identity"]
    others = {"/static/app.css": "--bg", "/static/app.js": "use strict", "/schedules/none": "Not found"}
    for other, found in others.items():
        answer = pages.web.get(other, headers={"accept-encoding": "gzip"})
        assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert found in answer.text
        assert "content-encoding" not in pages.web.get(other, headers={"accept-encoding": "identity"}).headers
    with served(pages.web.app) as url, reading(f"{url}/stream", headers={"accept-encoding": "gzip"}) as lines:
        lines.wait_for(lambda those: those.found, "the stream")
        assert "content-encoding" not in lines.headers
    pages.get(path)
    (first,) = pages.csrf
    pages.get(path)
    (second,) = pages.csrf
    assert first != second
    assert pages.send("/schedules/nightly/do", csrf=first, action="pause").status_code == 303
