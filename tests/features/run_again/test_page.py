"""The page that runs a run again: its question, the field for arguments, and its refusals."""

from __future__ import annotations

import re

import pytest

from rqsched.kernel.decide import audit
from rqsched.when.spec import After
from tests.support.env import DAY, HOUR, ONCE, all_runs, events, newest
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb


def key_in(shown: str) -> str:
    """The idempotency key of the form."""
    return str(re.findall(r'name="key" value="(\w+)"', shown)[0])


def test_a_run_that_succeeded_is_run_again_from_its_page_after_a_question(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("nightly", DAY)
    run = env.run_next(schedule, DAY)
    assert f'data-dialog href="/runs/{run.uid}/again">Run again' in pages.get(f"/runs/{run.uid}")
    asked = pages.get(f"/runs/{run.uid}/again")
    assert "Run #1 of nightly again?" in asked
    assert "It starts now, or when the run ahead of it has ended." in asked
    assert "although" not in asked
    assert "run after this one" not in asked

    shown = pages.do(f"/runs/{run.uid}/again", key=key_in(asked), reason="the file was late")

    assert "Run #2 of nightly is pending." in shown
    copy = newest(schedule)
    assert (copy.copied_from, copy.occurrence_at) == (run.uid, run.occurrence_at)
    assert f'<dt>Repeats</dt><dd><a href="/runs/{run.uid}">#1</a></dd>' in pages.get(f"/runs/{copy.uid}")
    (event,) = events(schedule, audit.RUN_COPIED)
    assert event.payload["command_context"]["reason"] == "the file was late"
    assert "Run again" not in pages.get(f"/runs/{copy.uid}")
    pages.do(f"/runs/{run.uid}/again", key=key_in(asked), reason="the file was late")
    assert len(all_runs(schedule)) == 2


def test_the_page_says_when_it_starts_and_names_what_comes_after(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("nightly", HOUR, overlap="allow_all", retry=ONCE)
    env.create("letters", After("nightly"))
    run = env.fail_next(schedule, HOUR)
    schedule.pause()
    asked = pages.get(f"/runs/{run.uid}/again")
    assert "It starts now. It starts although the schedule is paused." in asked
    assert "Also start the schedules that run after this one: letters" in asked
    assert "use Retry on its page" in asked
    pages.do(f"/runs/{run.uid}/again", downstream="yes")
    env.work()
    assert newest(env.scheduler.get("letters")).upstream_run_uid == newest(schedule).uid


def test_an_admin_changes_the_arguments_with_a_reason(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("nightly", kwargs={"part": "<1>"})
    run = env.run_next(schedule)
    path, typed = f"/runs/{run.uid}/again", '{"args": [], "kwargs": {"part": 2}}'
    assert "&#34;part&#34;: &#34;&lt;1&gt;&#34;" in pages.get(path)
    for text, reason, said in (
        (typed, "", "is missing; say why the arguments are changed"),
        ('{"args": []', "x", "is not JSON"),
        ('{"part": 2}', "x", "must be an object with a list"),
        ('{"args": {}, "kwargs": {}}', "x", "must be a list"),
    ):
        answer = pages.send(path, arguments=text, reason=reason, key="k" * 32)
        assert (answer.status_code, said in answer.text) == (422, True), text
        assert 'value="' + "k" * 32 in answer.text
        assert text.replace('"', "&#34;") in answer.text
    assert len(all_runs(schedule)) == 1
    pages.do(path, arguments=typed, reason="part 2")
    assert newest(schedule).kwargs == {"part": 2}


@pytest.fixture
def guarded(make_web: MakeWeb) -> Pages:
    return Pages(make_web(tokens=TOKENS))


def test_a_viewer_who_may_only_operate_gets_no_field_for_arguments_and_may_not_send_one(guarded: Pages) -> None:
    env = guarded.env
    schedule = env.create("nightly", kwargs={"part": 1})
    run = env.run_next(schedule)
    path = f"/runs/{run.uid}/again"
    guarded.log_in("operator")
    assert 'name="arguments"' not in guarded.get(path)
    answer = guarded.send(path, arguments='{"args": [], "kwargs": {}}', reason="x")
    assert (answer.status_code, len(all_runs(schedule))) == (403, 1)
    guarded.do(path, arguments='{"kwargs": {"part": 1}, "args": []}')  # the same as before
    assert len(all_runs(schedule)) == 2
    guarded.log_in("reader")
    assert "Run again" not in guarded.get(f"/runs/{run.uid}")
    guarded.get(path, status=403)
    guarded.log_in("tenant")
    guarded.get(path, status=404)


def test_what_cannot_be_run_again_says_why_and_has_no_button(pages: Pages) -> None:
    env = pages.env
    env.register("other", lambda: None)
    schedule = env.create("nightly")
    run, open_run = env.run_next(schedule), env.fire_next(schedule)
    assert "It has not ended" in pages.get(f"/runs/{open_run.uid}/again")
    schedule.update(workflow="other")
    path = f"/runs/{run.uid}/again"
    asked = pages.get(path)
    assert "its schedule executes &#39;other&#39; now" in asked
    assert '<button class="primary" disabled>' in asked
    assert "Not done: " in pages.send(path).text
    env.scheduler.freeze("moving", namespace="default")
    assert "refused while the namespace is frozen" in pages.get(path)
    assert "Run again" not in pages.get(f"/runs/{run.uid}")
    assert len(all_runs(schedule)) == 2
