"""The audit page across schedules: who asked for which change, when and why, in text that nobody can forge."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest

from rqsched import Cron
from rqsched.kernel.decide.audit import CONTRACT, CommandContext
from rqsched.kernel.decide.reasons import ASKED, EVENTS
from rqsched.kernel.store.metadata import MOST_ALTERED, find_altered
from tests.support.env import DAY, MINUTE, Env
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb

HOSTILE = "<script>alert(1)</script>\u202e\x1b\"'&"


def rows(page: str) -> list[list[str]]:
    """The cells of the list: schedule, what, who, why."""
    found = re.findall(r"<tr>\s*<td class=\"name[^\"]*\">(.*?)</tr>", page, re.DOTALL)
    cells = [re.split(r"</td>", row)[:4] for row in found]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in row] for row in cells]


def said(name: str, source: str = "cli", reason: str | None = None) -> CommandContext:
    return CommandContext(principal=name, source=source, reason=reason)


def ask(env: Env) -> None:
    """Two people ask for several things, and a schedule fires by itself."""
    nightly = env.create("nightly", context=said("ada"))
    nightly.pause(context=said("ada", reason="the vendor moves"))
    env.advance(MINUTE)
    crm = env.create("crm")
    run = present(crm.trigger(context=said("grace", "python")).run)
    run.cancel("it hangs", context=said("ada"))
    env.advance(MINUTE)
    env.deliver(crm.refresh())


@pytest.mark.every_database
def test_what_was_asked_is_listed_by_each_filter_in_words(any_pages: Pages) -> None:
    ask(any_pages.env)
    listed = rows(any_pages.get("/audit"))
    assert {(*row,) for row in listed[:2]} == {
        ("crm", "cancelled a run", "ada cli", ""), ("crm", "started a run", "grace python", ""),
    }  # fmt: skip
    assert listed[2:] == [["nightly", "paused", "ada cli", "the vendor moves"], ["nightly", "created", "ada cli", ""]]
    found = {
        "who=GRA": ["started a run"],
        "who=nobody": [],
        "who=%25": [],
        "action=SchedulePaused": ["paused"],
        "schedule=crm&who=ada": ["cancelled a run"],
        "until=2026-01-15T12:01": ["paused", "created"],
        "since=2026-01-15T12:01&action=ScheduleTriggered": ["started a run"],
        "within=1h&schedule=nightly": ["paused", "created"],
    }
    assert {query: [row[1] for row in rows(any_pages.get(f"/audit?{query}"))] for query in found} == found
    assert "No operation matches." in any_pages.get("/audit?who=nobody")
    any_pages.env.advance(DAY)
    assert rows(any_pages.get("/audit?within=1h")) == []


@pytest.mark.every_database
@pytest.mark.parametrize("name", ['O"Neil', "back\\slash", "Ünal Ärzte", "100%", "a_b", "line\nbreak"])
def test_who_asked_is_found_by_a_part_of_the_name_however_it_is_written(any_pages: Pages, name: str) -> None:
    handle = any_pages.env.create("nightly")
    handle.pause(context=said(name))
    handle.resume(context=said("somebody else"))
    for part in (name, name[1:], name[:-1], name[-3:].upper()):
        assert [row[1] for row in rows(any_pages.get(f"/audit?who={quote(part)}"))] == ["paused"], part


@pytest.mark.every_database
def test_what_was_asked_of_an_id_is_that_of_all_who_had_it(any_pages: Pages) -> None:
    env = any_pages.env
    for who in ("ada", "grace"):
        handle = env.create("again")
        handle.pause(context=said(who))
        env.advance(MINUTE)
        handle.delete(context=said(who))
        env.advance(MINUTE)
    env.create("other").pause(context=said("ada"))
    of_id = rows(any_pages.get("/audit?schedule=again"))
    assert [(row[1], row[2]) for row in of_id if row[1] == "paused"] == [("paused", "grace cli"), ("paused", "ada cli")]
    assert {row[0] for row in of_id} == {"again"}


@pytest.mark.every_database
def test_arguments_that_an_event_repeats_are_not_taken_for_who_asked(any_pages: Pages) -> None:
    handle = any_pages.env.create("nightly", kwargs={"command_context": {"principal": "ada"}})
    handle.update(kwargs={"command_context": {"principal": "eve"}})
    recorded = [event for event in handle.history() if "command_context" in str(event.payload)]
    assert recorded, "an edit repeats the arguments"
    assert rows(any_pages.get("/audit")) == []
    assert rows(any_pages.get("/audit?who=eve")) == []
    assert rows(any_pages.get("/audit?schedule=nightly")) == []


def test_where_nobody_asked_for_anything_it_says_so(pages: Pages) -> None:
    env = pages.env
    env.run_next(env.create("nightly"))
    assert "No operation is recorded yet." in pages.get("/audit")
    pages.get("/audit?action=ScheduleMissed", status=422)
    pages.get("/audit?after=x", status=422)


def test_every_word_is_for_a_type_that_is_recorded() -> None:
    assert set(ASKED) <= set(CONTRACT)
    assert len({*ASKED.values()}) == len(ASKED)


def test_every_type_of_event_has_words_of_its_own() -> None:
    assert set(EVENTS) == set(CONTRACT)
    assert len({*EVENTS.values()}) == len(EVENTS)


def test_pages_show_each_event_once(pages: Pages) -> None:
    handle = pages.env.create("nightly")
    for _ in range(40):
        handle.pause(context=said("ada"))
        handle.resume(context=said("grace"))
    first = pages.get("/audit")
    (following,) = re.findall(r'rel="next" href="([^"]*)"', first)
    second = pages.get(html.unescape(following))
    whats = [row[1] for page in (first, second) for row in rows(page)]
    assert whats == ["resumed or restarted", "paused"] * 40


def test_what_one_operation_did_to_many_runs_is_one_line_with_their_number(pages: Pages) -> None:
    env = pages.env
    handle = env.create("hourly", spec=Cron("0 * * * *"), overlap="allow_all")
    end = env.clock.now()
    handle.pause(context=said("grace"))
    handle.resume(context=said("grace"))
    handle.backfill(end - 30 * DAY, end, context=said("ada", reason="counted twice"))
    first = pages.get("/audit")
    (following,) = re.findall(r'rel="next" href="([^"]*)"', first)
    assert rows(first) == [["hourly", "started a run 500 times", "ada cli", "counted twice"]]
    rest = rows(pages.get(html.unescape(following)))
    assert [row[1] for row in rest] == ["started a run 220 times", "resumed or restarted", "paused"]


def alter(env: Env) -> None:
    """A group and calendars are changed, a minute apart."""
    scheduler = env.scheduler
    env.create("crawl", limit="tenant:42", limit_running=5)
    calls: list[Callable[[], object]] = [
        lambda: scheduler.limits.set("tenant:42", 2, context=said("ana", "http", "their API is slow")),
        lambda: scheduler.limits.set("tenant:42", 2, rate="9/min"),
        lambda: scheduler.limits.set("tenant:42", 2, context=said("nobody changes anything")),
        lambda: scheduler.limits.set("tenant:42", rate="8/min", unset="number", context=said("ana")),
        lambda: scheduler.calendars.set("holidays", ["2026-12-25", "2026-12-26"], context=said("bob")),
        lambda: scheduler.calendars.set("holidays", ["2026-12-25", "2027-01-01"], context=said("bob", reason="moved")),
        lambda: scheduler.calendars.set("holidays", ["2026-12-25", "2027-01-01"], context=said("nobody")),
        lambda: scheduler.calendars.set("closed", ["Sun"], shared=True, context=said("ana")),
        lambda: scheduler.calendars.delete("holidays", context=said("bob", reason="not needed")),
    ]
    for call in calls:
        env.advance(MINUTE)
        call()


ALTERED = [
    ["calendar holidays: deleted", "bob cli", "not needed"],
    ["shared calendar closed: created, 1 added", "ana cli", ""],
    ["calendar holidays: revision 2, 1 added, 1 removed", "bob cli", "moved"],
    ["calendar holidays: created, 2 added", "bob cli", ""],
    ["limit tenant:42: 2 → any at once, 9/min → 8/min", "ana cli", ""],
    ["limit tenant:42: any rate → 9/min", "somebody python", ""],
    ["limit tenant:42: 5 → 2 at once", "ana http", "their API is slow"],
]


@pytest.mark.every_database
def test_changes_of_limits_and_calendars_stand_above_with_who_and_why(any_pages: Pages) -> None:
    pages = any_pages
    alter(pages.env)
    assert [row[:3] for row in rows(pages.get("/audit"))] == ALTERED
    pages.env.scheduler.get("crawl").delete()
    pages.env.recover()
    assert pages.env.scheduler.limits.list().items == [], "the group is gone, and what was changed of it is told still"
    assert [row[:3] for row in rows(pages.get("/audit"))] == ALTERED
    assert [row[0] for row in rows(pages.get("/audit?who=AN"))] == [ALTERED[at][0] for at in (1, 4, 6)]
    assert [row[0] for row in rows(pages.get("/audit?until=2026-01-15T12:02"))] == [ALTERED[-1][0]]
    assert [row[0] for row in rows(pages.get("/audit?since=2026-01-15T12:09"))] == [ALTERED[0][0]]
    assert rows(pages.get("/audit?action=ScheduleCreated")) == rows(pages.get("/audit?schedule=crawl")) == []


def test_as_many_changes_of_limits_are_kept_as_it_says(env: Env) -> None:
    env.create("crawl", limit="tenant:42", limit_running=1)
    for number in range(2, MOST_ALTERED + 5):
        env.scheduler.limits.set("tenant:42", number)
    found = env.runtime.database.read(lambda connection: find_altered(connection, "default"))
    assert [one.what for one in found[:1]] == [f"limit tenant:42: {MOST_ALTERED + 3} → {MOST_ALTERED + 4} at once"]
    assert len(found) == MOST_ALTERED


def test_names_and_reasons_cannot_forge_what_stands_beside_them(pages: Pages) -> None:
    handle = pages.env.create("nightly")
    handle.pause(context=CommandContext(principal=HOSTILE, source=HOSTILE, reason=HOSTILE))
    run = present(handle.trigger(force=True, context=said(HOSTILE)).run)
    run.cancel(HOSTILE, context=said(HOSTILE, reason=HOSTILE))
    pages.env.create("crawl", limit="shop:<b>", limit_running=5)
    pages.env.scheduler.limits.set("shop:<b>", 2, context=CommandContext(HOSTILE, reason=HOSTILE))
    for path in (
        "/",
        "/system",
        "/audit",
        "/schedules",
        "/schedules?status=paused",
        "/schedules/nightly",
        f"/runs/{run.uid}",
        "/runs",
    ):
        shown = pages.get(path)
        assert "<script>alert" not in shown, path
        assert not {"\u202e", "\x1b"} & {*shown}, path
    assert "<bdi>&lt;script&gt;" in pages.get("/audit")
    assert len(rows(pages.get("/audit?who=alert(1)"))) == 4


def test_viewer_of_one_namespace_sees_what_was_asked_there_alone(make_web: MakeWeb) -> None:
    pages = Pages(make_web(tokens=TOKENS)).log_in("tenant")
    env = pages.env
    env.create("secret-plan").pause(context=said("mallory", reason="a secret of others"))
    env.create("mine", namespace="tenant").pause(context=said("ada"))
    env.create("crawl", limit="shop", limit_running=5)
    env.scheduler.limits.set("shop", 2, context=said("mallory", reason="a secret of others"))
    for query in ("", "?who=mallory", "?schedule=secret-plan", "?action=SchedulePaused"):
        shown = pages.get(f"/audit{query}")
        assert {row[0] for row in rows(shown)} <= {"mine"}, query
        assert "secret of others" not in shown
    pages.get("/audit?namespace=default", status=404)
