"""Audit events as pages and as streams: each event arrives, in order, and many readers cost one poll."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa

from rqsched.http import Limits, event_feed
from rqsched.http.event_feed import EventFeed, Reader
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.queries import events as event_queries
from tests.support.env import MINUTE, Env
from tests.support.processes import wait_until
from tests.support.proxy import proxy_to
from tests.support.servers import ValkeyServer
from tests.support.serving import PATIENCE, QUICK, reading, served
from tests.support.web import MakeWeb, Web, at, problem

EVENTS, STREAM = "/api/v1/events/", "/api/v1/events/stream/"


@pytest.fixture
def quick(make_web: MakeWeb, database_url: str) -> Web:
    """An application over each database in turn that looks for events often."""
    return make_web(app={"limits": QUICK}, database_url=database_url)


@pytest.fixture
def url(quick: Web) -> Iterator[str]:
    with served(quick.app) as found:
        yield found


def types_of(data: list[str]) -> list[tuple[str, str]]:
    return [(event["schedule_id"], event["event_type"]) for event in map(json.loads, data)]


def test_pages_hold_the_events_of_all_schedules_in_the_order_they_were_recorded(any_web: Web) -> None:
    for name in ("a", "b", "c"):
        any_web.create(name)
        any_web.env.clock.advance(timedelta(seconds=1))
    any_web.post(at("a", "pause/"))
    first = any_web.get(EVENTS, params={"limit": 3}).json()
    second = any_web.get(EVENTS, params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [event["schedule_id"] for event in (*first["items"], *second["items"])] == ["a", "b", "c", "a"]
    assert second["next_cursor"] is None
    after = any_web.get(EVENTS, params={"after": first["items"][1]["id"]}).json()["items"]
    assert [event["schedule_id"] for event in after] == ["c", "a"]


def test_pages_are_filtered_by_type_and_time(any_web: Web) -> None:
    any_web.create("a")
    any_web.env.clock.advance(timedelta(seconds=1))
    middle = any_web.env.clock.now().isoformat()
    any_web.post(at("a", "pause/"))
    any_web.post(at("a", "resume/"))

    def found(**params: Any) -> list[str]:
        return [event["event_type"] for event in any_web.get(EVENTS, params=params).json()["items"]]

    assert found(event_type="SchedulePaused,ScheduleCreated") == ["ScheduleCreated", "SchedulePaused"]
    assert found(until=middle) == ["ScheduleCreated"]
    assert found(since=middle) == ["SchedulePaused", "ScheduleResumed"]


def ask_as(env: Env, name: str, principal: str | None) -> None:
    """Pause and resume a schedule as somebody."""
    handle, context = env.scheduler.get(name), CommandContext(source="test", principal=principal)
    handle.pause(context=context)
    handle.resume(context=context)


def test_pages_of_a_principal_hold_what_it_asked_for_and_end(any_web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_queries, "MOST_LOOKED_AT", 4)
    for name in ("a", "b"):
        any_web.env.create(name)
    for principal in ("Ada Lovelace", "bob", "bob", "bob", "ada", None):
        any_web.env.advance(timedelta(seconds=1))
        ask_as(any_web.env, "a" if principal == "bob" else "b", principal)
    found, cursor, pages = list[str](), None, 0
    while pages == 0 or cursor is not None:
        page = any_web.get(EVENTS, params={"principal": "ADA", **({"cursor": cursor} if cursor else {})}).json()
        found += [event["payload"]["command_context"]["principal"] for event in page["items"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert found == ["Ada Lovelace", "Ada Lovelace", "ada", "ada"]
    assert pages == 4, "ten events and two that nobody's name is in, four at a time"
    both = any_web.get(EVENTS, params={"principal": "bob", "event_type": "SchedulePaused", "limit": 2}).json()
    assert {(one["schedule_id"], one["event_type"]) for one in both["items"]} == {("a", "SchedulePaused")}


def test_a_stream_of_a_principal_holds_what_it_asks_for_alone(quick: Web, url: str) -> None:
    quick.env.create("a")
    with reading(url + STREAM, params={"principal": "ada"}) as lines:
        for principal in ("bob", "Ada", None):
            ask_as(quick.env, "a", principal)
        quick.env.create("b")
        ask_as(quick.env, "b", "ada")
        lines.wait_for(lambda those: len(those.data) >= 4, "what ada asked for")
    # All events have the same instant on this clock. At one instant, schedules come in the order of their uids.
    told = sorted(types_of(lines.data), key=lambda one: one[0])
    assert told == [(name, done) for name in "ab" for done in ("SchedulePaused", "ScheduleResumed")]


@pytest.mark.parametrize(
    ("params", "field"),
    [({"principal": ""}, "principal"),
     ({"event_type": "Nonsense"}, "event_type"), ({"after": "x"}, "after"), ({"cursor": "1.2.3"}, "cursor"),
     ({"since": "2026-01-15T12:00:00"}, "since"), ({"since": "0001-01-01T00:00:00+12:00"}, "since")],
)  # fmt: skip
def test_parameters_of_events_that_mean_nothing_are_refused_by_name(
    web: Web, params: dict[str, str], field: str
) -> None:
    assert problem(web.get(EVENTS, params=params), 422, "invalid_input")["errors"][0]["field"] == field
    if field not in {"cursor"}:
        assert problem(web.get(STREAM, params=params), 422, "invalid_input")["errors"][0]["field"] == field


def test_a_reader_gets_what_is_recorded_after_it_came_and_nothing_else(quick: Web, url: str) -> None:
    quick.create("before")
    with reading(url + STREAM) as lines:
        assert lines.headers["content-type"].startswith("text/event-stream")
        assert (lines.headers["cache-control"], lines.headers["x-accel-buffering"]) == ("no-store", "no")
        quick.create("after")
        quick.post(at("before", "pause/"))
        lines.wait_for(lambda those: len(those.data) >= 2, "two events")
        lines.wait_for(lambda those: those.heartbeats > 2, "signs of life")
        assert sorted(types_of(lines.data)) == [("after", "ScheduleCreated"), ("before", "SchedulePaused")]


def test_a_reader_that_comes_back_goes_on_where_it_was(quick: Web, url: str) -> None:
    with reading(url + STREAM) as lines:
        for name in ("a", "b"):
            quick.create(name, interval="1d")
            quick.env.clock.advance(MINUTE)
        lines.wait_for(lambda those: len(those.data) == 2, "two events")
    quick.create("c")
    for options in ({"headers": {"Last-Event-ID": lines.ids[-1]}}, {"params": {"after": lines.ids[-1]}}):
        with reading(url + STREAM, **options) as again:
            again.wait_for(lambda those: ("c", "ScheduleCreated") in types_of(those.data), "what was missed")
            assert ("a", "ScheduleCreated") not in types_of(again.data)


def test_an_event_that_appears_behind_newer_ones_is_not_lost(quick: Web, url: str) -> None:
    """A slow transaction becomes visible after others that read the clock later."""
    quick.create("slow", interval="1d")
    with reading(url + STREAM) as lines:
        quick.env.clock.advance(timedelta(seconds=10))
        quick.create("quick")
        lines.wait_for(lambda those: len(those.data) == 1, "the quick one")
        quick.env.clock.advance(timedelta(seconds=-9))
        quick.post(at("slow", "pause/"))
        quick.env.clock.advance(timedelta(seconds=9))
        lines.wait_for(lambda those: len(those.data) == 2, "the slow one")
    assert types_of(lines.data) == [("quick", "ScheduleCreated"), ("slow", "SchedulePaused")]
    with reading(url + STREAM, headers={"Last-Event-ID": lines.ids[0]}) as again:
        again.wait_for(lambda those: ("slow", "SchedulePaused") in types_of(those.data), "it, from a later place")


def test_one_schedule_is_followed_by_sequence_without_gap_or_repetition(quick: Web, url: str) -> None:
    quick.create("a")
    quick.create("b")
    path = url + at("a", "history/stream/")
    with reading(path, params={"after": "0"}) as lines:
        for operation in ("pause/", "resume/"):
            quick.post(at("a", operation))
            quick.post(at("b", operation))
        lines.wait_for(lambda those: len(those.data) == 3, "three events")
        assert [json.loads(text)["sequence"] for text in lines.data] == [1, 2, 3]
    quick.post(at("a", "pause/"))
    with reading(path, headers={"Last-Event-ID": lines.ids[-1]}) as again:
        again.wait_for(lambda those: those.data, "the next event")
        assert [json.loads(text)["sequence"] for text in again.data] == [4]


def test_a_new_incarnation_is_read_from_its_first_event(quick: Web, url: str) -> None:
    old = quick.create("a")
    quick("DELETE", at("a"))
    quick.create("a")
    with reading(url + at("a", "history/stream/"), headers={"Last-Event-ID": f"{old['uid']}.2"}) as lines:
        lines.wait_for(lambda those: those.data, "an event")
        assert [json.loads(text)["sequence"] for text in lines.data] == [1]


def test_a_stream_shows_the_types_that_are_asked_for(quick: Web, url: str) -> None:
    since = quick.env.clock.now().isoformat()
    quick.create("a")
    with reading(url + STREAM, params={"event_type": "SchedulePaused", "since": since}) as lines:
        quick.post(at("a", "pause/"))
        quick.post(at("a", "resume/"))
        quick.post(at("a", "pause/"))
        lines.wait_for(lambda those: len(those.data) == 2, "two events")
    assert {kind for _, kind in types_of(lines.data)} == {"SchedulePaused"}


def test_a_stream_is_not_silent_while_events_come_of_which_it_shows_none(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(rate=0, stream_poll=0.05, heartbeat=1.5)})
    web.create("a")
    with ExitStack() as stack:
        url = stack.enter_context(served(web.app))
        lines = stack.enter_context(reading(url + STREAM, params={"event_type": "RunFailed"}))
        done = threading.Event()
        stack.callback(done.set)

        def work() -> None:
            while not done.wait(0.02):
                web.post(at("a", "pause/"))
                web.post(at("a", "resume/"))

        busy = threading.Thread(target=work)
        busy.start()
        stack.callback(busy.join, PATIENCE)
        stack.callback(done.set)
        start = lines.heartbeats
        lines.wait_for(lambda found: found.heartbeats >= start + 3, "signs of life")
        assert busy.is_alive()
        assert lines.data == []


def test_a_tenant_sees_its_own_events_only(make_web: MakeWeb) -> None:
    tokens = [
        {"name": name, "role": "admin", "namespaces": [name], "token": f"secret-of-the-tenant-{name}"}
        for name in ("a", "b")
    ]
    web = make_web(app={"limits": QUICK}, tokens=json.dumps(tokens))
    with served(web.app) as url, ExitStack() as stack:
        headers = {name: {"authorization": f"Bearer secret-of-the-tenant-{name}"} for name in ("a", "b")}
        lines = {name: stack.enter_context(reading(url + STREAM, headers=headers[name])) for name in headers}
        for name in headers:
            web.acting_as(f"secret-of-the-tenant-{name}").create(f"of-{name}")
        for name, those in lines.items():
            those.wait_for(lambda found: found.data, "an event")
            first = types_of(those.data)
            those.found.clear()
            those.wait_for(lambda found: found.heartbeats > 2, "time for others")
            assert (first, those.data) == ([(f"of-{name}", "ScheduleCreated")], [])
        assert problem(web.get(STREAM), 401, "unauthorized")


def test_many_readers_cost_one_poll(quick: Web, url: str) -> None:
    statements = list[str]()

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    with ExitStack() as stack:
        lines = [stack.enter_context(reading(url + STREAM)) for _ in range(20)]
        for those in lines:
            those.wait_for(lambda found: found.heartbeats, "it follows")
        sa.event.listen(quick.env.runtime.database.engine, "before_cursor_execute", note)
        start = [those.heartbeats for those in lines]
        lines[0].wait_for(lambda found: found.heartbeats >= start[0] + 5, "a second of polls")
        sa.event.remove(quick.env.runtime.database.engine, "before_cursor_execute", note)
        polls = [text for text in statements if "rqsched_audit_events" in text]
        assert 0 < len(polls) < 20 * 5
        quick.create("a")
        for those in lines:
            those.wait_for(lambda found: found.data, "the event")
            assert types_of(those.data) == [("a", "ScheduleCreated")]
    wait_until(lambda: not any(t.name == "rqsched-events" for t in threading.enumerate()), timeout=PATIENCE,
               what="the poll ends with its last reader")  # fmt: skip


def test_a_reader_that_comes_as_the_last_one_goes_is_no_reason_to_poll_without_a_pause(web: Web) -> None:
    engine, polls = web.env.runtime.database.engine, list[str]()

    def note(*arguments: Any) -> None:
        polls.append(arguments[2])

    async def come_and_go() -> None:
        feed = EventFeed(web.env.runtime, Limits(stream_poll=PATIENCE))
        for _ in range(20):
            reader = Reader("default", web.env.runtime.now())
            feed.subscribe(reader)
            feed.unsubscribe(reader)
        feed.subscribe(Reader("default", web.env.runtime.now()))
        try:
            await asyncio.to_thread(wait_until, pauses, timeout=PATIENCE / 2, what="the poll waits for its turn")
        finally:
            feed.close()

    def pauses() -> bool:
        before = len(polls)
        time.sleep(0.5)
        return 0 < before == len(polls)

    sa.event.listen(engine, "before_cursor_execute", note)
    asyncio.run(come_and_go())
    sa.event.remove(engine, "before_cursor_execute", note)


@pytest.mark.broad
def test_a_reader_that_does_not_read_is_let_go_and_costs_the_others_nothing(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": QUICK})
    feed = web.app.state.rqsched.feed
    with served(web.app) as url, reading(url + STREAM) as lines:
        address = urlsplit(url)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.connect((address.hostname, address.port))
            deaf.sendall(f"GET {STREAM} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            wait_until(lambda: feed.readers == 2, timeout=PATIENCE, what="both read")
            web.create("a")
            number, expected = 0, [0]
            while feed.readers == 2:
                number += 1
                assert number < 1_000, "it is still held on to"
                answer = web("PATCH", at("a"), {"kwargs": {"text": "x" * 200_000, "number": number}})
                assert answer.status_code == 200
                expected.append(number)
                lines.wait_for(lambda those: len(those.data) == len(expected), "the other has them all")


def test_the_response_of_a_reader_with_a_full_buffer_is_complete(
    quick: Web, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An action on many runs records more events at once than a buffer holds. The reader then comes again."""
    monkeypatch.setattr(event_feed, "_MOST_EVENTS", 0)
    feed = quick.app.state.rqsched.feed
    with httpx.stream("GET", url + STREAM, timeout=PATIENCE) as response:
        lines = response.iter_lines()
        assert next(lines) == "retry: 3000"
        wait_until(lambda: feed.readers == 1, timeout=PATIENCE, what="it reads")
        quick.create("a")
        last = list(lines)[-1:]  # httpx raises if the response is not complete
    assert last in ([], [""]), "no event is cut"
    assert feed.readers == 0


def test_more_streams_than_allowed_are_refused_for_now(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(streams=1, heartbeat=0.1)})
    with served(web.app) as url, reading(url + STREAM) as lines:
        lines.wait_for(lambda those: those.heartbeats, "it follows")
        assert problem(web.get(STREAM), 503, "too_many_streams")
        assert web.get(STREAM).headers["retry-after"]


def test_a_stream_ends_after_its_time(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(stream_seconds=0.3)})
    assert web.get(STREAM).text.startswith("retry: 3000\n\n")


def test_streams_end_when_the_server_stops(quick: Web) -> None:
    with ExitStack() as stack:
        with served(quick.app) as url:
            lines = stack.enter_context(reading(url + STREAM))
            lines.wait_for(lambda those: those.heartbeats, "it follows")
        lines.wait_for(lambda those: those.is_over, "it has ended")


def test_a_redis_that_is_silent_holds_up_no_stream(make_web: MakeWeb, own_valkey: ValkeyServer) -> None:
    with proxy_to(own_valkey.url) as proxy:
        web = make_web(app={"limits": QUICK}, redis_url=proxy.url(own_valkey.url))
        web.create("a")
        with served(web.app) as url, reading(url + STREAM) as lines:
            proxy.is_silent = True
            proxy.swallow()
            web.post(at("a", "pause/"))
            lines.wait_for(lambda those: those.data, "the event")
