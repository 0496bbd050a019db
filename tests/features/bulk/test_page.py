"""Actions on several schedules: the chosen ones or all that match, with a question, progress, the filters."""

from __future__ import annotations

import asyncio
import re
from html import unescape

import httpx
import pytest
from anyio import to_thread

from rqsched import After
from rqsched.dashboard import frame
from rqsched.dashboard.schedules import PAGE
from rqsched.features.bulk import api as bulk
from tests.http.test_heavy_reads import Disconnectable
from tests.support.crowd import copy_schedule
from tests.support.env import HOUR, NOON, SECOND, Env, last
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb

FILTER = {"label": "team:billing", "sort": "next"}


def create(env: Env, count: int) -> None:
    for number in range(count):
        env.create(f"job-{number:03}", labels={"team": "billing"})
    env.create("other", labels={"team": "sales"})


def ask_about_all(pages: Pages, action: str = "pause", **filters: str) -> dict[str, str]:
    """Ask for all that match; returns the hidden fields of the question."""
    answer = pages.send("/bulk", action=action, all="yes", **(filters or FILTER))
    assert answer.status_code == 200, answer.text
    return hidden(answer.text)


def hidden(page: str) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)
    return {name: unescape(value) for name, value in found if name not in {"csrf", "namespace"}}


def do_all(pages: Pages, fields: dict[str, str], **choices: str) -> str:
    """Send the form of each page until the action is done, without a script; returns the last page."""
    fields |= choices
    while "cursor" in fields:
        answer = pages.send("/bulk", **fields)
        assert answer.status_code == 200, answer.text
        fields = hidden(answer.text)
    assert "<strong>Done.</strong>" in answer.text
    return answer.text


def statuses(env: Env) -> set[str]:
    return {one.status for one in env.scheduler.iter(labels={"team": "billing"})}


@pytest.mark.every_database
def test_all_that_match_are_counted_on_every_page_and_changed_after_a_question(any_pages: Pages) -> None:
    env, number = any_pages.env, PAGE + 5
    create(env, number)
    answer = any_pages.send("/bulk", action="pause", all="yes", **FILTER)
    assert f"Pause: all {number} schedules that match?" in answer.text
    assert "label team:billing, status active" in answer.text
    assert statuses(env) == {"active"}

    done = do_all(any_pages, hidden(answer.text), reason="the bank is away")

    assert f"Pause: {number} schedules</h1>" in done
    assert f"{number} paused" in done
    assert 'href="/schedules?label=team%3Abilling&amp;sort=next"' in done
    assert statuses(env) == {"paused"}
    assert env.scheduler.get("other").status == "active"
    event = env.scheduler.get("job-000").history()[-1]
    assert (event.payload["command_context"]["source"], event.payload["reason"]) == ("dashboard", "the bank is away")


def test_each_press_does_a_part_and_shows_how_far_it_is_and_what_was_skipped(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 2)
    env = pages.env
    for number in range(5):
        env.create(f"job-{number:03}", labels={"team": "billing"})
        env.clock.advance(SECOND)
    env.scheduler.get("job-001").trigger()
    asked = ask_about_all(pages, "trigger")
    first = pages.send("/bulk", **asked, reason="again").text
    assert "2 of 5 so far. If you stop, these stay done." in first
    assert '<progress max="5" value="2"' in first
    assert "1 triggered" in first
    assert 'href="/schedules/job-001"' in first
    again = pages.send("/bulk", **asked, reason="again").text
    assert "2 of 5 so far" in again, "the browser had no answer, and sends it again"
    assert sum(one.run_count for one in env.scheduler.iter()) == 2

    done = do_all(pages, hidden(first))

    assert "4 triggered" in done
    assert "1 skipped" in done
    assert 'href="/schedules/job-001"' in done
    assert "reason <bdi>again</bdi>" in done
    assert [one.run_count for one in env.scheduler.iter(labels={"team": "billing"})] == [1] * 5


def test_only_the_count_of_all_schedules_that_match_is_a_heavy_read(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "_PATIENCE", 0.0)
    create(pages.env, 2)
    fields = ask_about_all(pages)

    async def while_another_is_read(**fields: str) -> httpx.Response:
        async with pages.web.app.state.rqsched.heavy_reads.admit(Disconnectable().request, "local"):
            return await to_thread.run_sync(lambda: pages.send("/bulk", **fields))

    refused = asyncio.run(while_another_is_read(action="pause", all="yes", **FILTER))
    assert (refused.status_code, "refresh" in refused.headers) == (503, False), refused.text
    assert "2 paused" in asyncio.run(while_another_is_read(**fields)).text
    chosen = asyncio.run(while_another_is_read(action="resume", id="job-000", confirmed="yes"))
    assert chosen.status_code == 303, "an action on chosen schedules counts nothing, and goes on without its client"


def test_another_web_process_goes_on_and_records_who_asked_it(
    make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 2)
    web = make_web(tokens=TOKENS)
    create(web.env, 5)
    operator, reader, tenant = (Pages(web).log_in(name) for name in ("operator", "reader", "tenant"))
    fields = hidden(operator.send("/bulk", **ask_about_all(operator)).text)
    assert reader.send("/bulk", **fields).status_code == 403
    assert tenant.send("/bulk", **fields).status_code == 422, "the cursor is of another namespace"
    paused = [one.schedule_id for one in web.env.scheduler.iter(status="paused")]
    assert len(paused) == 2
    do_all(operator, fields)
    assert statuses(web.env) == {"paused"}
    payload = web.env.scheduler.get("job-004").history()[-1].payload
    assert payload["command_context"]["principal"] == "operator"


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
        [*env.scheduler.bulk.pause(labels={"team": "billing"})]
    if before == "done":
        for handle in env.scheduler.iter(labels={"team": "billing"}):
            handle.trigger()
            handle.update(max_runs=1)
    answer = pages.send("/bulk", action=action, all="yes", **FILTER)
    assert f"status {asked}</bdi>" in answer.text
    assert f"3 {outcome}" in do_all(pages, hidden(answer.text))


def test_so_many_of_the_next_are_skipped_of_chosen_ones_and_of_all(pages: Pages) -> None:
    env = pages.env
    create(env, 2)
    env.create("job-after", After("other"), labels={"team": "billing"})
    assert 'name="count"' in pages.send("/bulk", action="skip_next", id=["job-000", "job-after"], **FILTER).text
    said = pages.do("/bulk", action="skip_next", id=["job-000", "job-after"], confirmed="yes", count="2", **FILTER)
    assert "Skip next: 1 of 2 done. Not done: job-after" in said
    assert [len(env.scheduler.get(name).skips) for name in ("job-000", "job-001")] == [2, 0]

    answer = pages.send("/bulk", action="skip_next", all="yes", **FILTER)
    assert 'name="count"' in answer.text
    fields = hidden(answer.text)
    assert pages.send("/bulk", **fields, count="101").status_code == 422

    done = do_all(pages, fields, count="3", reason="the bank is away")

    assert "2 skips next" in done
    assert "1 skipped" in done
    assert "count <bdi>3</bdi> · reason <bdi>the bank is away</bdi>" in done
    assert [len(env.scheduler.get(name).skips) for name in ("job-000", "job-001")] == [3, 3]
    assert last(env.scheduler.get("job-001"), "SkipsSet")["reason"] == "the bank is away"


def test_pause_of_several_ends_by_itself_where_that_was_asked(pages: Pages) -> None:
    env = pages.env
    create(env, 2)
    until = {"until": "2026-01-16T12:00", "on_resume": "once"}
    pages.do("/bulk", action="pause", id=["other"], confirmed="yes", **until)
    fields = ask_about_all(pages)
    past = pages.send("/bulk", **fields, until="2020-01-01T00:00")
    assert (past.status_code, statuses(env)) == (422, {"active"})
    do_all(pages, fields, **until)
    found = {name: env.state(env.scheduler.get(name)) for name in ("other", "job-000", "job-001")}
    assert {(one.resume_at, one.resume_mode) for one in found.values()} == {(NOON + 24 * HOUR, "once")}


def test_paused_ones_run_only_where_the_list_shows_the_paused(pages: Pages) -> None:
    env = pages.env
    create(env, 2)
    env.scheduler.get("job-001").pause()
    assert "all 1 schedule that" in pages.send("/bulk", action="trigger", all="yes", **FILTER).text
    assert "1 triggered" in do_all(pages, ask_about_all(pages, "trigger", status="paused"))
    assert env.scheduler.get("job-001").run_count == 1


def test_an_action_on_the_late_goes_on_at_a_later_time_and_with_no_other_filter(pages: Pages) -> None:
    env = pages.env
    create(env, 2)
    env.clock.advance(48 * HOUR)
    fields = ask_about_all(pages, problem="late", label="team:billing")
    env.clock.advance(HOUR)
    for changed in ({"problem": ""}, {"label": ""}, {"label": "team:sales"}, {"status": "paused"}, {"q": "job"}):
        refused = pages.send("/bulk", **fields | changed)
        assert (refused.status_code, "of another bulk operation" in refused.text) == (422, True), changed
    assert {one.status for one in env.scheduler.iter()} == {"active"}
    assert "2 paused" in do_all(pages, fields)


def test_a_reader_and_an_operator_without_the_right_are_refused(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    create(web.env, 1)
    operator, reader = (Pages(web).log_in(name) for name in ("operator", "reader"))
    assert reader.send("/bulk", action="pause", all="yes").status_code == 403
    assert operator.send("/bulk", action="delete", all="yes").status_code == 403
    assert operator.send("/bulk", action="backfill", all="yes").status_code == 422
    fields = ask_about_all(operator)
    assert operator.send("/bulk", **fields | {"action": "delete"}).status_code == 403
    assert operator.send("/bulk", **fields | {"action": "trigger"}).status_code == 422, "the cursor is of a pause"
    assert statuses(web.env) == {"active"}


@pytest.mark.every_database
def test_hostile_fields_are_refused_before_anything_is_done_and_shown_as_text(any_pages: Pages) -> None:
    env = any_pages.env
    create(env, 1)
    hostile = '<script>"\u202e'
    env.scheduler.get("job-000").update(labels={"team": hostile})
    answer = any_pages.send("/bulk", action="pause", all="yes", label=f"team:{hostile}", q="JOB")
    assert "<bdi>id contains JOB, label team:&lt;script&gt;&#34;\ufffd, status active</bdi>" in answer.text
    fields = hidden(answer.text)
    assert fields["label"] == f"team:{hostile}"
    wrong: list[dict[str, str]] = [
        {"overlap": "maybe"}, {"on_resume": "never"}, {"reason": "x" * 5_000},
        {"cursor": ""}, {"cursor": "x~0123456789"},
        *({"so_far": text} for text in ("x", "3", "[1, 2]", "[{}, [1]]", '[{"a": "b"}, []]', "[{}]", "[" * 100_000)),
        {"so_far": '[{"a": Infinity}, []]'},
    ]  # fmt: skip
    for changed in wrong:
        assert any_pages.send("/bulk", **fields | changed).status_code == 422, changed
    for changed in wrong[:3]:
        chosen = any_pages.send("/bulk", action="pause", id="job-000", confirmed="yes", **changed)
        assert chosen.status_code == 422
    assert any_pages.send("/bulk", csrf="0" * 64, **fields).status_code == 403
    for field in ({"label": "team"}, {"outcome": "odd"}, {"problem": "odd"}, {"status": "odd"}):
        assert any_pages.send("/bulk", action="pause", all="yes", **field).status_code == 422
    assert env.scheduler.get("job-000").status == "active"


def test_several_schedules_are_changed_at_once_after_a_question_with_their_number(pages: Pages) -> None:
    env = pages.env
    handles = [env.create(f"job-{number}") for number in range(3)]
    asked = pages.send("/bulk", action="pause", id=["job-0", "job-1", "gone"])
    assert "Pause: 3 schedules?" in asked.text
    assert {handle.refresh().status for handle in handles} == {"active"}
    done = pages.do("/bulk", action="pause", id=["job-0", "job-1", "gone"], confirmed="yes", reason="quiet night")
    assert "Pause: 2 of 3 done." in done
    assert "gone" in done
    assert [handle.refresh().status for handle in handles] == ["paused", "paused", "active"]
    assert "Choose schedules first." in pages.do("/bulk", action="pause")


def test_more_than_a_thousand_that_match_are_counted_no_further(pages: Pages) -> None:
    create(pages.env, 1)
    copy_schedule(pages.env.runtime, pages.env.scheduler.get("job-000"), 1_049)
    asked = pages.send("/bulk", action="pause", all="yes", **FILTER)
    assert "Pause: all 1000+ schedules that match?" in asked.text
    begun = pages.send("/bulk", **hidden(asked.text))
    assert f"{bulk.CHUNK} of 1000+ so far." in begun.text
    (bar,) = re.findall("<progress[^>]*>", begun.text)
    assert "value" not in bar, "its end is not known"
