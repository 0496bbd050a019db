"""The first page: how the last day went, what fails most, and where each problem and each question leads."""

from __future__ import annotations

import html
import re

import pytest
import sqlalchemy as sa

from rqsched import Cron, RetryPolicy, RunHandle
from rqsched.dashboard import recent
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.store.tables import runs
from tests.dashboard.test_runs import fail, listed
from tests.support.crowd import copy_run, copy_schedule
from tests.support.env import DAY, HOUR, MINUTE, ONCE, SECOND, Env, block
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages
from tests.support.sql import queries
from tests.support.web import MakeWeb


def legend(page: str) -> dict[str, int]:
    """How many runs of each outcome the chart has."""
    text = re.search(r'data-live="outcomes".*?</section>', page, re.DOTALL)
    return {word: int(count) for count, word in re.findall(r"</i>(\d+) ([a-z ]+)</span>", text[0] if text else "")}


def groups(page: str) -> list[tuple[str, str, str]]:
    """The groups of failures: how many, of which schedule, and the error."""
    count = '<a class="count" [^>]*>([0-9]+)\N{MULTIPLICATION SIGN}</a>'
    row = rf'{count}.*?class="id" href="[^"]*">([^<]*)</a>.*?title="([^"]*)"'
    return [(count, name, html.unescape(error)) for count, name, error in re.findall(row, page, re.DOTALL)]


def follow(pages: Pages, page: str, text: str) -> str:
    """Read the page that the link around a text leads to; without a script."""
    (href,) = {html.unescape(found) for found in re.findall(rf'<a [^>]*href="([^"]*)"[^>]*>(?:<[^>]*>)*{text}', page)}
    return pages.get(href)


@pytest.mark.every_database
def test_outcomes_of_the_day_are_counted_by_the_hour_and_each_bar_leads_to_its_runs(any_pages: Pages) -> None:
    env = any_pages.env
    env.run_next(env.create("yesterday"))
    env.advance(DAY + HOUR)
    env.run_next(env.create("sound"))
    env.advance(2 * HOUR)
    fail(any_pages, "crm", "no customer")
    present(env.create("waits").trigger().run)
    present(env.create("stopped").trigger().run).cancel()
    env.create("expires", start_within=MINUTE).trigger()
    env.advance(MINUTE)
    assert env.recover().expired == 1
    page = any_pages.get("/")
    assert "Outcomes of the last 24 hours" in page
    assert legend(page) == {"succeeded": 1, "failed or lost": 1, "expired": 1, "stopped": 1, "not ended": 1}
    bars = re.findall(r'<a href="(/runs\?since[^"]*)"[^>]*><title>([^<]*)</title>', page)
    assert [label.partition(": ")[2] for _, label in bars] == [
        "1 succeeded", "1 not ended, 1 stopped, 1 expired, 1 failed or lost",
    ]  # fmt: skip
    assert sorted(listed(any_pages.get(html.unescape(bars[1][0])))) == ["crm", "expires", "stopped", "waits"]
    assert listed(any_pages.get(html.unescape(bars[0][0]))) == ["sound"]


def test_a_failure_among_many_runs_is_seen(pages: Pages) -> None:
    env = pages.env
    model = env.run_next(env.create("often", overlap="allow_all"))
    copy_run(env.runtime, model, 900)
    fail(pages, "crm", "no customer")
    page = pages.get("/")
    assert legend(page) == {"succeeded": 901, "failed or lost": 1}
    (height,) = re.findall(r'<rect class="bad"[^>]* height="([^"]*)"', page)
    assert float(height) >= 2


def test_a_day_of_more_runs_than_are_read_shows_the_longest_span_that_is_whole(pages: Pages) -> None:
    env = pages.env
    model = env.run_next(env.create("often", overlap="allow_all"))
    copy_run(env.runtime, model, 10)
    env.advance(5 * HOUR)
    second = env.run_next(env.create("again", overlap="allow_all"))
    copy_run(env.runtime, second, recent.MOST - 5)
    env.advance(HOUR)
    page = pages.get("/")
    assert "Outcomes of the last 6 hours" in page
    assert "24 hours had more than 3000 runs." in page
    assert legend(page)["succeeded"] == recent.MOST - 4
    env.advance(DAY + HOUR)
    copy_run(env.runtime, env.run_next(env.create("flood", overlap="allow_all")), 2 * recent.MOST)
    page = pages.get("/")
    assert "Only the 3000 newest runs of all namespaces are counted." in page
    assert legend(page)["succeeded"] == recent.MOST


@pytest.mark.every_database
def test_what_fails_most_stands_first_with_its_count_and_leads_to_these_failures(any_pages: Pages) -> None:
    env = any_pages.env
    fail(any_pages, "mail", "550 no such mailbox")
    for number in range(3):
        env.advance(MINUTE)
        fail(any_pages, "crm", f"timeout of job 0x{number}f12")
    page = any_pages.get("/")
    assert groups(page) == [
        ("3", "crm", "ValueError: timeout of job 0x2f12"), ("1", "mail", "ValueError: 550 no such mailbox"),
    ]  # fmt: skip
    assert listed(follow(any_pages, page, "3\N{MULTIPLICATION SIGN}")) == ["crm"]
    assert listed(follow(any_pages, page, "4<")) == ["crm", "mail"]
    assert "2 more with this error" in follow(any_pages, page, "4<")
    env.advance(DAY + HOUR)
    assert "No run failed." in any_pages.get("/")


def test_error_of_an_external_worker_is_grouped_by_its_end_and_shown_by_its_own_line(pages: Pages) -> None:
    env = pages.env
    frames = '  File "job.rb", line 1\n' * 40
    handle = env.create("external", retry=ONCE)
    for line, error in ((5, "KeyError: 'a'"), (6, "KeyError: 'a'"), (7, "TypeError: no")):
        text = f'Traceback (most recent call last):\n{frames}  File "job.py", line {line}\n    do()\n{error}'
        set_error(env, env.fail_next(handle), text)
    assert [(count, error) for count, _, error in groups(pages.get("/"))] == [
        ("2", "KeyError: 'a'"),
        ("1", "TypeError: no"),
    ]


def set_error(env: Env, run: RunHandle, text: str) -> None:
    """The stored error of a run is this text."""
    statement = sa.update(runs).where(runs.c.uid == run.uid).values(error=text)
    env.runtime.database.transact(lambda connection: connection.execute(statement))


@pytest.mark.every_database
def test_each_problem_leads_to_all_that_it_concerns_with_their_true_number(any_pages: Pages) -> None:
    env = any_pages.env
    dying = env.create("dying", retry=RetryPolicy(max_retries=0, then="dead"))
    env.failing = True
    dying.trigger()
    env.execute_pending()
    failing = env.create("failing", spec=Cron("0 2 1 * *"), retry=ONCE)
    for _ in range(3):
        failing.trigger()
        env.execute_pending()
    env.failing = False
    copy_schedule(env.runtime, dying.refresh(), 11, "dead-")
    copy_schedule(env.runtime, failing.refresh(), 6, "failing-")
    copy_schedule(env.runtime, env.create("late"), 8, "late-")
    block(env.runtime, present(env.create("blocked", spec=Cron("0 2 1 * *")).trigger().run))
    env.advance(HOUR)
    page = any_pages.get("/")
    found = {
        "12 schedules are dead": 12, "7 schedules are failing repeatedly": 7, "9 schedules are late": 9,
        "1 schedule is blocked": 1,
    }  # fmt: skip
    for title, count in found.items():
        assert title in page
        link = re.search(rf'<h3>{title}</h3><a [^>]*href="([^"]*)"', page)
        shown = any_pages.get(html.unescape(present(link)[1]))
        names = {*re.findall(r'<a class="id" href="/schedules/([^"]*)"', shown)}
        assert len(names) == count, title
    assert re.search(r"problem=late[^>]*><strong>9</strong><span>late</span>", page)


@pytest.mark.every_database
def test_overview_asks_sql_nothing_twice_and_no_more_for_many_failing_schedules(any_pages: Pages) -> None:
    env = any_pages.env
    failing = env.create("failing", spec=Cron("0 2 1 * *"), retry=ONCE)
    env.failing = True
    for _ in range(3):
        failing.trigger()
        env.execute_pending()
    copy_schedule(env.runtime, env.create("late"), 1, "late-")
    env.advance(HOUR)
    any_pages.get("/")
    with queries(env.runtime) as of_one:
        any_pages.get("/")
    copy_schedule(env.runtime, failing.refresh(), 4, "failing-")
    with queries(env.runtime) as of_five:
        assert any_pages.get("/").count("3 failures in a row") == 5
    assert len({*of_one}) == len(of_one)
    assert len(of_five) == len(of_one)


def test_is_anything_late_is_answered_where_nothing_is(pages: Pages) -> None:
    pages.env.create("nightly")
    assert re.search(r"problem=late[^>]*><strong>0</strong><span>late</span>", pages.get("/"))
    assert "No schedule matches." in pages.get("/schedules?problem=late&sort=next")
    pages.get("/schedules?problem=none", status=422)


def asked(pages: Pages, schedule_id: str) -> str:
    """Submit the overview's form, and return only the answer of the page that it leads to."""
    answer = pages.led_to(f"/why?schedule={schedule_id}")
    found = re.search(r'<p class="answer">(.*?)</p>', pages.get(answer), re.DOTALL)
    return re.sub(r"<[^>]*>", "", present(found)[1])


@pytest.mark.every_database
def test_why_a_schedule_did_not_run_is_asked_on_the_first_page(any_pages: Pages) -> None:
    env = any_pages.env
    env.create("paused").pause(context=CommandContext(principal="ada", reason="the vendor moves"))
    dying = env.create("dying", spec=Cron("0 2 * * *"), retry=RetryPolicy(max_retries=0, then="dead"))
    env.failing = True
    dying.trigger()
    env.execute_pending()
    env.failing = False
    blocked, idle = env.create("blocked"), env.create("no-worker")
    block(env.runtime, env.fire_next(blocked))
    env.deliver(idle.refresh())
    assert re.search(r"paused .* by ada: the vendor moves\.", asked(any_pages, "paused"))
    assert re.search(r"dead .* The error: RuntimeError: as the test wants it\.", asked(any_pages, "dying"))
    assert "waits for its workflow" in asked(any_pages, "blocked")
    assert "waits for a worker of its queue" in asked(any_pages, "no-worker")
    assert any_pages.led_to("/why?schedule=work") == "/schedules?q=work"


def test_overview_of_one_namespace_counts_no_runs_of_others(make_web: MakeWeb) -> None:
    pages = Pages(make_web(tokens=TOKENS)).log_in("tenant")
    fail(pages, "secret-plan", "the secret of others")
    pages.env.create("mine", namespace="tenant").trigger()
    pages.env.advance(SECOND)
    page = pages.get("/")
    assert legend(page) == {"succeeded": 0, "failed or lost": 0, "not ended": 1}
    assert "secret" not in page
    assert pages.led_to("/why?schedule=secret-plan") == "/schedules?q=secret-plan&namespace=tenant"
