"""The form of a schedule: the fires before and after an edit, all problems at once, and edits of somebody else."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from rqsched import Every
from rqsched.api.values import iso_utc
from rqsched.dashboard.edits import merge, seen
from tests.support.narrow import present
from tests.support.pages import Pages, fields_of
from tests.support.web import MakeWeb

EDIT = "/schedules/report/edit"
NEW: dict[str, Any] = {
    "schedule_id": "report", "workflow": "note", "kind": "cron", "timing": "0 2 * * *", "timezone": "UTC",
}  # fmt: skip
GAP = "30 2 29 * *"
"""It names 02:30 on 2026-03-29, which the clocks of Berlin skip."""
FOLD = "30 2 25 10 *"
"""It names 02:30 on 2026-10-25, which the clocks of Berlin show twice."""


def asked(timing: str, **more: str) -> str:
    """Return the address of a preview in Berlin."""
    return "/preview?" + urlencode({"kind": "cron", "timing": timing, "timezone": "Europe/Berlin", **more})


def fires(page: str) -> list[list[str]]:
    """Return the instants in each list of a preview."""
    return [re.findall(r'datetime="([^"]*)"', part) for part in page.split('<ol class="fires">')[1:]]


def headings(page: str) -> list[str]:
    return re.findall("<h3>(.*?)</h3>", page.partition('id="preview-result"')[2].partition("</form>")[0])


def test_preview_of_an_edit_shows_the_fires_of_now_beside_those_after_it(pages: Pages) -> None:
    handle = pages.env.create("report", "0 2 * * *")
    page = pages.get("/preview?kind=cron&timing=0+4+*+*+*&timezone=UTC&schedule_id=report&edited=yes")
    assert headings(page) == ["Now", "After this edit"]
    now, then = fires(page)
    assert now[0] == iso_utc(present(handle.next_run_at))
    assert [one[11:16] for one in then] == ["04:00"] * 5

    unchanged = pages.get("/preview?kind=cron&timing=0+2+*+*+*&timezone=UTC&schedule_id=report&edited=yes")
    assert headings(unchanged) == ["As it is now"]
    assert fires(unchanged) == [now]


def test_preview_of_a_timing_that_the_form_keeps_is_that_of_the_schedule(pages: Pages) -> None:
    handle = pages.env.create("report", Every("7m"))
    pages.env.clock.advance(timedelta(seconds=90))
    page = pages.get("/preview?kind=keep&schedule_id=report&edited=yes")
    assert headings(page) == ["As it is now"]
    assert fires(page)[0][0] == iso_utc(present(handle.next_run_at))
    assert "After this edit" in pages.get("/preview?kind=keep&schedule_id=report&edited=yes&exclude=Fri")


def test_preview_marks_a_fire_that_a_change_of_clocks_moves_skips_or_repeats(pages: Pages) -> None:
    moved = pages.get(asked(GAP))
    assert re.search(
        r"Sun 29 Mar 2026 03:30 CEST</time> <span class=.note.>moved from 02:30, which the clocks skip", moved
    )
    skipped = pages.get(asked(GAP, dst_gap="skip"))
    assert "<s>Sun 29 Mar 2026 02:30</s>" in skipped
    assert "2026-03-29" not in fires(skipped)[0][1]
    assert "the first 02:30 of this night" in pages.get(asked(FOLD))
    assert "the second 02:30" not in pages.get(asked(FOLD))
    assert "the second 02:30 of this night" in pages.get(asked(FOLD, dst_fold="both"))


def test_preview_stands_between_the_timing_and_the_other_fields(pages: Pages) -> None:
    pages.env.create("report")
    for path in ("/schedules/new", EDIT):
        page = pages.get(path)
        assert page.index('name="timing"') < page.index('id="preview"') < page.index('name="timezone"')


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "edited"])
def test_without_a_script_the_button_previews_on_the_same_page_and_keeps_what_was_typed(
    pages: Pages, is_new: bool
) -> None:
    if not is_new:
        pages.env.create("report", "0 2 * * *")
    before = [one.state for one in pages.env.scheduler.iter()]
    typed = {**NEW, "timing": "0 4 * * *", "description": "typed", "dry_run": "yes"}

    answer = pages.send("/schedules" if is_new else EDIT, **typed)

    assert (answer.status_code, headings(answer.text)) == (200, [] if is_new else ["Now", "After this edit"])
    assert [one[11:16] for one in fires(answer.text)[-1]] == ["04:00"] * 5
    assert "Nothing is saved yet" in answer.text
    assert fields_of(answer.text, "/schedules" if is_new else EDIT)["description"] == "typed"
    assert [one.state for one in pages.env.scheduler.iter()] == before


WRONG = {
    "timing": "61 * * * *", "timezone": "Mars/Base", "exclude": "someday", "jitter": "soon", "kwargs": "[",
    "workflow": "nope", "priority": "high", "retry.factor": "0.5", "target_retry.base": "9000d", "labels": "none",
    "on_failure": "nope", "heartbeat": "https://elsewhere.example/x", "limit": "of:{labels.team}", "max_parallel": "0",
}  # fmt: skip
"""A value that is refused, for each of these fields. Some are refused when they are read, some by the whole."""


def refused_fields(page: str) -> set[str]:
    """Return the fields that are marked as refused; asserts that each has its message, and a link in the summary."""
    marked = set()
    for tag in re.findall(r"<(?:input|select|textarea) [^>]*aria-invalid[^>]*>", page):
        (name,) = re.findall(r'name="([^"]*)"', tag)
        (told,) = re.findall(r'aria-describedby="([^"]*)"', tag)
        assert told.split()[0] == f"{name}-error"
        assert f'id="{name}-error"' in page
        assert f'href="#field-{name}"' in page
        assert f'id="field-{name}"' in tag
        marked.add(name)
    return marked


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "edited"])
def test_every_refused_field_is_marked_in_one_answer_and_nothing_is_written(make_web: MakeWeb, is_new: bool) -> None:
    pages = Pages(make_web(notification_hosts=("*.example.com",)))
    if not is_new:
        pages.env.create("report")
    before = [one.state for one in pages.env.scheduler.iter()]
    typed = {**NEW, **WRONG, **({"schedule_id": "-"} if is_new else {})}

    answer = pages.send("/schedules" if is_new else EDIT, **typed)

    assert answer.status_code == 422
    assert refused_fields(answer.text) == {*WRONG, *(["schedule_id"] if is_new else [])}
    assert fields_of(answer.text, "/schedules" if is_new else EDIT).items() >= {**typed}.items() - {
        ("schedule_id", "report")
    }
    assert [one.state for one in pages.env.scheduler.iter()] == before


def test_fields_that_contradict_each_other_are_marked_and_the_others_are_not(pages: Pages) -> None:
    pages.env.create("report", jitter="30s")
    pages.env.create("upstream")
    typed = {**NEW, "kind": "after-success", "timing": "upstream", "jitter": "30s", "priority": "2"}
    answer = pages.send(EDIT, **typed | {"retry.base": "1h", "retry.cap": "1m"})
    assert refused_fields(answer.text) == {"jitter", "retry.cap"}


def test_id_that_is_taken_is_marked_at_its_field(pages: Pages) -> None:
    pages.env.create("report")
    answer = pages.send("/schedules", **NEW)
    assert refused_fields(answer.text) == {"schedule_id"}


def test_form_that_is_old_shows_what_others_changed_keeps_what_was_typed_and_can_be_sent_again(pages: Pages) -> None:
    handle = pages.env.create("report", "0 2 * * *", description="old", owner="bob")
    mine = {**fields_of(pages.get(EDIT), EDIT), "description": "mine", "queue": "high"}
    handle.update(spec="0 5 * * *", description="theirs", owner="ada")

    answer = pages.send(EDIT, **mine)

    assert answer.status_code == 409
    rows = re.findall(r"<tr><td class=.name.>(.*?)</tr>", answer.text)
    told = [re.sub("<[^>]*>", "|", row).replace("||", "|") for row in rows]
    assert [one.replace("||", "|").split("|")[1] for one in told] == ["Timing", "Description", "Owner"]
    assert "theirs" in rows[1]
    assert "what you typed" in rows[1]
    assert "0 5 * * *" in rows[0]
    assert "0 2 * * *" in rows[0]
    assert "the value of now" in rows[0]
    assert handle.refresh().state.definition.description == "theirs"
    again = fields_of(answer.text, EDIT)
    assert [again[name] for name in ("timing", "description", "owner", "queue")] == ["0 5 * * *", "mine", "ada", "high"]

    pages.do(EDIT, **{name: text for name, text in again.items() if name != "csrf"})

    found = handle.refresh().state
    assert (found.spec.primary_cron, found.definition.description) == ("0 5 * * *", "mine")
    assert (found.definition.owner, found.definition.queue) == ("ada", "high")


def test_form_is_saved_if_others_changed_nothing_that_it_shows(pages: Pages) -> None:
    handle = pages.env.create("report", "0 2 * * *")
    mine = {**fields_of(pages.get(EDIT), EDIT), "description": "mine"}
    handle.update(note="a note")
    pages.do(EDIT, **{name: text for name, text in mine.items() if name != "csrf"})
    assert (handle.refresh().state.definition.description, handle.state.note) == ("mine", "a note")


def test_fields_of_the_timing_are_merged_as_one() -> None:
    was = {"kind": "cron", "timing": "0 2 * * *", "timezone": "UTC", "owner": "bob"}
    stored = {**was, "kind": "every", "timing": "15m"}
    typed, together = {**was, "timing": "0 4 * * *"}, ("kind", "timing", "timezone")
    merged, changed = merge(typed, stored, seen(was), together=together)
    assert merged == typed
    assert [(one.name, one.is_edited) for one in changed] == [("kind", True), ("timing", True)]
    assert merge(was, stored, seen(was), together=together)[0] == stored


@pytest.mark.parametrize("was", ["", "0", "x.y", "x.y.z"])
def test_without_the_digests_of_a_form_everything_that_differs_counts_as_typed(was: str) -> None:
    merged, changed = merge({"owner": "bob"}, {"owner": "ada", "queue": "high"}, was)
    assert merged == {"owner": "bob"}
    assert [(one.name, one.is_edited) for one in changed] == [("owner", True)]


@pytest.mark.parametrize("version", ["9" * 5_000, "\N{SUPERSCRIPT TWO}", "-1", "x"])
def test_malformed_version_of_a_form_is_no_error_of_the_server(pages: Pages, version: str) -> None:
    pages.env.create("report")
    assert pages.send(EDIT, **NEW, version=version).status_code in {303, 409}
