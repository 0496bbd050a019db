"""The stream that tells pages of changes: for who may see the page, of its namespace only, quiet when there is none."""

from __future__ import annotations

import json
import re

import pytest

from rqsched.http import Limits, create_app
from rqsched.http.ended_sessions import FRESH
from tests.support.env import Env
from tests.support.pages import TOKENS, Pages
from tests.support.serving import reading, served
from tests.support.web import MakeWeb, Web

STREAM = "/stream"
QUICK = Limits(rate=0, stream_poll=0.05, heartbeat=0.2)


def outlines(data: list[str]) -> list[dict[str, str]]:
    return [json.loads(text) for text in data]


@pytest.mark.every_database
def test_a_page_is_told_which_schedule_changed_and_nothing_of_its_contents(
    make_web: MakeWeb, database_url: str
) -> None:
    web = make_web(app={"limits": QUICK}, database_url=database_url)
    web.create("before")
    with served(web.app) as url, reading(url + STREAM) as lines:
        assert lines.headers["content-type"].startswith("text/event-stream")
        web.create("nightly", kwargs={"secret": "x"})
        lines.wait_for(lambda those: any("nightly" in text for text in those.data), "the event")
        (told,) = [one for one in outlines(lines.data) if one["schedule_id"] == "nightly"]
    assert told == {"id": told["id"], "schedule_id": "nightly", "event_type": "ScheduleCreated"}


def test_what_changed_since_the_page_was_read_is_told_at_once(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": QUICK})
    since = web.env.clock.now().isoformat()
    web.create("nightly")
    with served(web.app) as url, reading(url + STREAM, params={"since": since}) as lines:
        lines.wait_for(lambda those: those.data, "what was recorded before the stream was opened")
        assert outlines(lines.data)[0]["schedule_id"] == "nightly"


def test_a_session_or_a_bearer_token_opens_the_stream_of_its_namespace_alone(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": QUICK}, tokens=TOKENS)
    env: Env = web.env
    tenant = Pages(web).log_in("tenant")
    bearer = {"authorization": "Bearer tenant-secret-0123456789"}
    with served(web.app) as url:
        for headers in (tenant._headers(), bearer):
            with reading(url + STREAM, headers=headers) as lines:
                env.create("foreign")
                env.create("own", namespace="tenant")
                lines.wait_for(lambda those: those.data, "the tenant's event")
                lines.wait_for(lambda those: those.heartbeats > 2, "time for others")
                assert {one["schedule_id"] for one in outlines(lines.data)} == {"own"}
            env.scheduler.get("foreign").delete()
            env.scheduler.get("own", namespace="tenant").delete()
        assert web.get(f"{STREAM}?namespace=default", headers=bearer).status_code == 404


def test_stream_of_a_session_that_is_logged_out_ends(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": QUICK}, tokens=TOKENS)
    elsewhere = Web(create_app(web.env.scheduler, limits=QUICK), web.env)
    reader = Pages(web).log_in("reader")
    with served(elsewhere.app) as url, reading(url + STREAM, headers=reader._headers()) as lines:
        lines.wait_for(lambda those: those.heartbeats, "the stream")
        reader.get("/")
        reader.send("/logout")
        web.env.clock.advance(FRESH)
        lines.wait_for(lambda those: those.is_over, "the end")


def test_a_browser_without_a_session_is_told_quietly_that_there_is_no_stream(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    answer = web.get(STREAM)
    assert (answer.status_code, answer.content) == (204, b"")


def test_a_process_without_streams_offers_none_and_the_page_is_read_again_instead(make_web: MakeWeb) -> None:
    pages = Pages(make_web(app={"limits": Limits(streams=0)}))
    assert 'data-stream=""' in pages.get("/")
    assert pages.web.get(STREAM).status_code == 204


def test_a_since_that_is_not_a_time_is_refused(pages: Pages) -> None:
    assert "is not a time" in pages.get(f"{STREAM}?since=yesterday", status=422)


def test_value_of_a_form_is_not_a_change_of_the_live_part_around_it(pages: Pages) -> None:
    pages.env.create("report")
    first = pages.get("/schedules")
    (ignored,) = re.findall(r'/(value="\[0-9a-f\][^/]*)/g', pages.web.get("/static/app.js").text)
    assert first != pages.get("/schedules")
    assert re.sub(ignored, "", first) == re.sub(ignored, "", pages.get("/schedules"))
