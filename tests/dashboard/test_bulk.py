"""Actions on several schedules: the chosen ones or all that match, with a question, progress, a stop, the filters."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from rqsched import After
from rqsched.api import bulk_actions
from rqsched.api.bulk import BATCH
from rqsched.dashboard.schedules import PAGE
from rqsched.store import metadata
from tests.support.env import HOUR, NOON, Env, last
from tests.support.pages import TOKENS, Pages
from tests.support.processes import wait_until
from tests.support.web import MakeWeb

FILTER = {"label": "team:billing", "sort": "next"}


def create(env: Env, count: int) -> None:
    for number in range(count):
        env.create(f"job-{number:03}", labels={"team": "billing"})
    env.create("other", labels={"team": "sales"})


def count_all(pages: Pages, action: str = "pause") -> str:
    """Ask for all that match; returns the address of the question."""
    answer = pages.send("/bulk", action=action, all="yes", **FILTER)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def read_until(pages: Pages, path: str, text: str) -> str:
    """Read a page until it says something."""
    wait_until(lambda: text in pages.get(path), interval=0.1, what=text)
    return pages.get(path)


def statuses(env: Env) -> set[str]:
    return {one.status for one in env.scheduler.iter(labels={"team": "billing"})}


@pytest.mark.every_database
def test_all_that_match_are_counted_on_every_page_and_changed_after_a_question(any_pages: Pages) -> None:
    env, number = any_pages.env, PAGE + 5
    create(env, number)
    address = count_all(any_pages)
    question = any_pages.get(address)
    assert f"Pause: all {number} schedules that match?" in question
    assert "label team:billing, status active" in question
    assert statuses(env) == {"active"}

    shown = any_pages.do(urlsplit(address).path, action="pause", reason="the bank is away", **FILTER)

    assert f"Pause: {number} schedules</h1>" in shown
    done = read_until(any_pages, address, "<strong>Done.</strong>")
    assert f"{number} paused" in done
    assert 'href="/schedules?label=team%3Abilling&amp;sort=next"' in done
    assert statuses(env) == {"paused"}
    assert env.scheduler.get("other").status == "active"
    event = env.scheduler.get("job-000").history()[-1]
    assert (event.payload["command_context"]["source"], event.payload["reason"]) == ("dashboard", "the bank is away")


def test_what_is_stopped_shows_how_far_it_came_on_its_page_and_in_the_list_and_is_continued(pages: Pages) -> None:
    create(pages.env, 2 * BATCH)
    address = count_all(pages)
    path = urlsplit(address).path

    def stop(*_: object) -> None:
        pages.env.scheduler.runtime.subscribers.remove(stop)
        stopper = Pages(pages.web, dict(pages.cookies), set(pages.csrf))
        stopper.send(path, action="stop")

    pages.get(address)
    pages.env.scheduler.runtime.subscribers.append(stop)
    pages.send(path, action="pause")
    stopped = read_until(pages, address, "<strong>Stopped</strong>")
    assert f"by <bdi>local</bdi> after {BATCH} of {2 * BATCH}" in stopped
    assert f"{BATCH} paused" in stopped
    listed = pages.get("/schedules")
    assert f"Pause: {BATCH} of {2 * BATCH} schedules</a>, stopped" in listed
    told = re.search(
        rf'<td class="name">Pause: {2 * BATCH} schedules, after 0</td>.*?</tr>', pages.get("/audit"), re.DOTALL
    )
    assert told is not None
    assert told[0].count("<bdi>local</bdi>") == 2, "who stopped it, and who had begun it"
    pages.do(path, action="continue")
    assert f"{2 * BATCH} paused" in read_until(pages, address, "<strong>Done.</strong>")
    assert "schedules</a>, stopped" not in pages.get("/schedules")


def test_without_scripts_progress_is_a_page_that_loads_itself_again(pages: Pages) -> None:
    create(pages.env, 1)
    address, may_go_on = count_all(pages), threading.Event()

    def wait(*_: object) -> None:
        may_go_on.wait()

    again = '<noscript><meta http-equiv="refresh" content="3"></noscript>'
    assert again not in pages.get(address)
    pages.env.scheduler.runtime.subscribers.append(wait)
    try:
        shown = pages.do(urlsplit(address).path, action="pause")
    finally:
        may_go_on.set()
    assert again in shown
    assert "0 of 1 so far." in shown
    assert "Nothing is done yet." in shown
    assert again not in read_until(pages, address, "<strong>Done.</strong>")


def test_what_its_process_left_is_continued(pages: Pages) -> None:
    env = pages.env
    create(env, 2)
    address = count_all(pages)
    uid = urlsplit(address).path.rpartition("/")[2]
    runtime = env.scheduler.runtime
    counted = bulk_actions.find(runtime, "default", uid)
    left = replace(counted, status="running", begun_at=counted.created_at, context={"principal": "ada"})
    env.runtime.database.transact(lambda connection: metadata.set_value(connection, f"bulk:{uid}", left.dumps()))
    assert "0 of 2 so far." in pages.get(address)
    env.advance(2 * bulk_actions.SILENT)
    assert "schedules</a>, interrupted" in pages.get("/schedules")
    shown = pages.get(address)
    assert "<strong>Interrupted</strong> after 0 of 2" in shown
    assert "Begun by <bdi>ada</bdi>" in shown
    pages.do(urlsplit(address).path, action="continue")
    assert "2 paused" in read_until(pages, address, "<strong>Done.</strong>")
    assert "schedules</a>, interrupted" not in pages.get("/schedules")


def test_filters_survive_an_action_on_chosen_schedules(pages: Pages) -> None:
    create(pages.env, 2)
    asked = pages.send("/bulk", action="pause", id=["job-000", "job-001"], q="job", **FILTER)
    kept = dict(re.findall(r'<input type="hidden" name="(q|label|sort)" value="([^"]*)">', asked.text))
    assert kept == {"q": "job", **FILTER}
    done = pages.send("/bulk", action="pause", id=["job-000", "job-001"], confirmed="yes", **kept)
    assert done.headers["location"] == "/schedules?q=job&label=team%3Abilling&sort=next"
    assert statuses(pages.env) == {"paused"}
    nothing = pages.send("/bulk", action="pause", **kept)
    assert nothing.headers["location"] == done.headers["location"]


def test_nothing_to_do_is_said_and_nothing_is_asked(pages: Pages) -> None:
    create(pages.env, 1)
    answer = pages.send("/bulk", action="resume", all="yes", **FILTER)
    assert answer.headers["location"] == "/schedules?label=team%3Abilling&sort=next"
    assert "no schedule matches for which that is possible" in pages.get(answer.headers["location"])
    assert "is not a status" in pages.send("/bulk", action="pause", all="yes", status="asleep").text


@pytest.mark.parametrize(
    ("action", "before", "asked", "outcome"),
    [
        ("resume", "paused", "paused", "resumed"),
        ("delete", "paused", "active or dead or done or paused", "deleted"),
        ("trigger", "active", "active", "triggered"),
        ("restart", "done", "dead or done", "restarted"),
        ("skip_next", "active", "active", "skips next"),
    ],
)
def test_each_action_is_done_to_all_for_which_it_is_possible(
    pages: Pages, action: str, before: str, asked: str, outcome: str
) -> None:
    env = pages.env
    create(env, 3)
    if before == "paused":
        env.scheduler.bulk("pause", labels={"team": "billing"})
    if before == "done":
        for handle in env.scheduler.iter(labels={"team": "billing"}):
            handle.trigger()
            handle.update(max_runs=1)
    address = count_all(pages, action)
    assert f"status {asked}</bdi>" in pages.get(address)
    pages.do(urlsplit(address).path, action=action)
    assert f"3 {outcome}" in read_until(pages, address, "<strong>Done.</strong>")


def test_so_many_of_the_next_are_skipped_of_chosen_ones_and_of_all(pages: Pages) -> None:
    env = pages.env
    create(env, 2)
    env.create("job-after", After("other"), labels={"team": "billing"})
    assert 'name="count"' in pages.send("/bulk", action="skip_next", id=["job-000", "job-after"], **FILTER).text
    said = pages.do("/bulk", action="skip_next", id=["job-000", "job-after"], confirmed="yes", count="2", **FILTER)
    assert "Skip next: 1 of 2 done. Not done: job-after" in said
    assert [len(env.scheduler.get(name).skips) for name in ("job-000", "job-001")] == [2, 0]

    address = count_all(pages, "skip_next")
    assert 'name="count"' in pages.get(address)
    assert pages.send(urlsplit(address).path, action="skip_next", count="101").status_code == 422
    pages.do(urlsplit(address).path, action="skip_next", count="3", reason="the bank is away")

    done = read_until(pages, address, "<strong>Done.</strong>")
    assert "2 skips next" in done
    assert "1 skipped" in done
    assert "the bank is away</bdi> · count 3" in done
    assert [len(env.scheduler.get(name).skips) for name in ("job-000", "job-001")] == [3, 3]
    assert last(env.scheduler.get("job-001"), "SkipsSet")["reason"] == "the bank is away"


def test_pause_of_several_ends_by_itself_where_that_was_asked(pages: Pages) -> None:
    env = pages.env
    create(env, 2)
    until = {"until": "2026-01-16T12:00", "catch_up": "once"}
    pages.do("/bulk", action="pause", id=["other"], confirmed="yes", **until)
    address = count_all(pages)
    past = pages.send(urlsplit(address).path, action="pause", until="2020-01-01T00:00")
    assert (past.status_code, statuses(env)) == (422, {"active"})
    pages.do(urlsplit(address).path, action="pause", **until)
    read_until(pages, address, "<strong>Done.</strong>")
    found = {name: env.state(env.scheduler.get(name)) for name in ("other", "job-000", "job-001")}
    assert {(one.resume_at, one.resume_catch_up) for one in found.values()} == {(NOON + 24 * HOUR, "once")}


def test_paused_ones_run_only_where_the_list_shows_the_paused(pages: Pages) -> None:
    env = pages.env
    create(env, 2)
    env.scheduler.get("job-001").pause()
    assert "all 1 schedule that" in pages.get(count_all(pages, "trigger"))
    address = pages.send("/bulk", action="trigger", all="yes", status="paused").headers["location"]
    pages.do(urlsplit(address).path, action="trigger")
    assert "1 triggered" in read_until(pages, address, "<strong>Done.</strong>")
    assert env.scheduler.get("job-001").run_count == 1


def test_reader_and_others_namespaces_are_refused(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    create(web.env, 1)
    operator, reader, tenant = (Pages(web).log_in(name) for name in ("operator", "reader", "tenant"))
    address = count_all(operator)
    assert "Pause: all 1 schedule that match?" in operator.get(address)
    reader.get(address, status=403)
    assert reader.send(address, action="begin").status_code == 403
    tenant.get(address, status=404)
    assert tenant.send(address, action="begin").status_code == 404
    assert operator.send("/bulk", action="delete", all="yes").status_code == 403
    assert operator.send("/bulk", action="backfill", all="yes").status_code == 422
    assert statuses(web.env) == {"active"}
    operator.do(urlsplit(address).path, action="pause")
    assert "Begun by <bdi>operator</bdi>" in read_until(reader, address, "<strong>Done.</strong>")
    assert reader.send(address, action="stop").status_code == 403


@pytest.mark.every_database
def test_hostile_fields_are_refused_before_anything_is_done_and_shown_as_text(any_pages: Pages) -> None:
    env = any_pages.env
    create(env, 1)
    hostile = '<script>"\u202e'
    env.scheduler.get("job-000").update(labels={"team": hostile})
    answer = any_pages.send("/bulk", action="pause", all="yes", label=f"team:{hostile}", q="JOB")
    address = answer.headers["location"]
    asked = any_pages.get(address)
    assert "<bdi>id contains JOB, label team:&lt;script&gt;&#34;\ufffd, status active</bdi>" in asked
    path = urlsplit(address).path
    for fields in ({"overlap": "maybe"}, {"catch_up": "never"}, {"reason": "x" * 5_000}):
        assert any_pages.send(path, action="pause", **fields).status_code == 422
        assert any_pages.send("/bulk", action="pause", id="job-000", confirmed="yes", **fields).status_code == 422
    assert any_pages.send(path, action="pause", csrf="0" * 64).status_code == 403
    for uid in ("x", "0" * 26, "%27%20OR%201=1"):
        any_pages.get(f"/bulk/{uid}", status=404)
    for field in ({"label": "team"}, {"outcome": "odd"}, {"problem": "odd"}, {"status": "odd"}):
        assert any_pages.send("/bulk", action="pause", all="yes", **field).status_code == 422
    assert env.scheduler.get("job-000").status == "active"


def test_backfill_that_is_counted_or_refused_keeps_its_form(pages: Pages) -> None:
    pages.env.create("daily")
    typed = {"start": "2026-01-01T02:00", "end": "2026-01-03T02:00", "reason": "the <rest>", "overlap": "allow_all"}
    for fields, status, said in (
        ({**typed, "dry_run": "yes"}, 200, "occurrence(s) lie in that range. Nothing was started."),
        ({**typed, "end": "2025-01-01T00:00"}, 422, "Not done: "),
        ({**typed, "start": "tomorrow"}, 422, "is not a time"),
    ):
        answer = pages.send("/schedules/daily/do", action="backfill", **fields)
        assert (answer.status_code, said in answer.text) == (status, True)
        assert f'name="start" required value="{fields["start"]}"' in answer.text
        assert f'name="end" required value="{fields["end"]}"' in answer.text
        assert 'value="the &lt;rest&gt;"' in answer.text
        assert "<option selected>allow_all</option>" in answer.text
