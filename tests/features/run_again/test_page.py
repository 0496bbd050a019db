"""The page that runs a run again: its question, the field for arguments, and its refusals."""

from __future__ import annotations

import json
import re

import pytest

from rqsched.kernel.decide import audit
from rqsched.when.spec import After
from tests.support.env import DAY, HOUR, ONCE, all_runs, events, newest, statuses
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
    letter = newest(env.scheduler.get("letters"))
    assert letter.upstream_run_uid == newest(schedule).uid
    assert letter.run_again().upstream_schedule_id == "nightly"
    repeated = pages.get(f"/runs/{newest(env.scheduler.get('letters')).uid}")
    assert f'<dt>After</dt><dd><a href="/runs/{letter.upstream_run_uid}">#2 of nightly</a>' in repeated


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
    copy = newest(schedule)
    assert copy.kwargs == {"part": 2}
    shown = pages.get(f"/runs/{copy.uid}")
    assert f'They were changed. <a href="/runs/{run.uid}">Run #1</a> had:' in shown
    assert "&#34;part&#34;: 2" in shown.partition("They were changed.")[0]
    assert "&#34;part&#34;: &#34;&lt;1&gt;&#34;" in shown.partition("They were changed.")[2]
    pages.do(path)
    assert "They were changed." not in pages.get(f"/runs/{newest(schedule).uid}")


@pytest.mark.parametrize(("old", "typed"), [(1, "true"), (1, "1.0"), (True, "1"), (0, "false")])
def test_arguments_that_only_python_calls_equal_are_changed_arguments(pages: Pages, old: object, typed: str) -> None:
    schedule = pages.env.create("nightly", kwargs={"part": old})
    run = pages.env.run_next(schedule)
    text = '{"args": [], "kwargs": {"part": ' + typed + "}}"
    pages.do(f"/runs/{run.uid}/again", arguments=text, reason="another part")
    assert json.dumps(newest(schedule).kwargs["part"]) == typed


def test_a_number_that_json_does_not_have_is_refused(pages: Pages) -> None:
    run = pages.env.run_next(pages.env.create("nightly"))
    answer = pages.send(f"/runs/{run.uid}/again", arguments='{"args": [NaN], "kwargs": {}}', reason="x")
    assert (answer.status_code, "is not JSON" in answer.text) == (422, True)


def test_a_form_that_is_changed_and_sent_after_it_started_a_run_names_that_run_and_gets_a_new_key(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("nightly", kwargs={"part": 1})
    run = env.run_next(schedule)
    path = f"/runs/{run.uid}/again"
    key = key_in(pages.get(path))
    pages.do(path, key=key)
    first = newest(schedule)
    changed = {"arguments": '{"args": [], "kwargs": {"part": 2}}', "reason": "part 2"}

    answer = pages.send(path, key=key, **changed)

    assert (answer.status_code, len(all_runs(schedule))) == (409, 2)
    assert f'has already started <a href="/runs/{first.uid}">run #2</a>' in answer.text
    assert "&#34;part&#34;: 2" in answer.text
    pages.do(path, key=key_in(answer.text), **changed)
    assert newest(schedule).kwargs == {"part": 2}


_MEANWHILE = {
    "skip": ("the schedule skips its fires", "pending", ["succeeded", "pending"]),
    "buffer_one": ("it takes the only place", "buffered", ["succeeded", "pending", "buffered"]),
    "buffer_all": ("the fires of the schedule wait", "pending", ["succeeded", "pending", "buffered"]),
    "cancel_other": ("while it runs, it is cancelled", "pending", ["succeeded", "cancelled", "pending"]),
    "terminate_other": ("while it runs, it is terminated", "pending", ["succeeded", "terminated", "pending"]),
}
"""By overlap policy: what the page says, the status of the copy, and the runs after a fire beside the copy."""


@pytest.mark.parametrize("overlap", _MEANWHILE)
def test_the_page_says_what_the_copy_does_to_the_next_fire_and_that_is_so(pages: Pages, overlap: str) -> None:
    said, status, after = _MEANWHILE[overlap]
    schedule = pages.env.create("nightly", HOUR, overlap=overlap)
    run = pages.env.run_next(schedule, HOUR)
    if status == "buffered":
        pages.env.fire_next(schedule, HOUR)
    path = f"/runs/{run.uid}/again"
    assert said in pages.get(path)
    pages.do(path)
    assert newest(schedule).status == status
    pages.env.fire_next(schedule, HOUR)
    assert statuses(schedule) == after


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
