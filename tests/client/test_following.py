"""Following audit events with our own client: none is lost or seen twice, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from datetime import datetime

import pytest

from rqsched.client import AsyncClient, Client, EventRecord, ResponseError, Retries
from rqsched.errors import BackendUnavailableError, InvalidInputError, ScheduleNotFoundError
from rqsched.http import Limits
from tests.support.env import SECOND
from tests.support.processes import wait_until
from tests.support.proxy import proxy_to
from tests.support.servers import free_port
from tests.support.serving import PATIENCE, QUICK, served
from tests.support.web import MakeWeb, Web, at, one_token

SOON = Retries(first=0.01, longest=0.1)


@pytest.fixture
def quick(make_web: MakeWeb) -> Web:
    return make_web(app={"limits": QUICK})


@pytest.fixture
def url(quick: Web) -> Iterator[str]:
    with served(quick.app) as found:
        yield found


class Follower:
    """A thread that collects the events of a client."""

    def __init__(self, events: Iterator[EventRecord]) -> None:
        self.found: list[EventRecord] = []
        self._events = events
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        for event in self._events:
            self.found.append(event)

    def wait_for(self, count: int) -> list[tuple[str, int]]:
        wait_until(lambda: len(self.found) >= count, timeout=PATIENCE, what=f"{count} events")
        return [(event.schedule_id, event.sequence) for event in self.found]


def test_events_of_all_schedules_are_read_page_by_page(quick: Web, url: str) -> None:
    start = quick.env.clock.now()
    for name in ("a", "b"):
        quick.create(name)
        quick.env.clock.advance(SECOND)
    quick.post(at("a", "pause/"))
    with Client(url) as client:
        found = list(client.events())
        assert [(event.schedule_id, event.event_type) for event in found] == [
            ("a", "ScheduleCreated"), ("b", "ScheduleCreated"), ("a", "SchedulePaused"),
        ]  # fmt: skip
        assert list(client.events(after=found[1].id)) == found[2:]
        assert list(client.events(event_types=["SchedulePaused"])) == found[2:]
        assert list(client.events(since=start)) == found
        assert list(client.events(principal="nobody")) == []
        with pytest.raises(InvalidInputError):
            list(client.events(since=datetime(2026, 1, 15)))  # noqa: DTZ001 - the refused value


def test_a_follower_gets_old_and_new_events_once_over_lost_connections(quick: Web, url: str) -> None:
    quick.create("a")
    with proxy_to(url) as proxy, Client(proxy.url(url), retries=SOON) as client:
        follower = Follower(client.events(follow=True, since=quick.env.clock.now()))
        assert follower.wait_for(1) == [("a", 1)]
        for number in (2, 4, 6):
            proxy.cut()
            quick.post(at("a", "pause/"))
            quick.post(at("a", "resume/"))
            assert follower.wait_for(number + 1) == [("a", n + 1) for n in range(number + 1)]


def test_the_history_of_a_schedule_is_followed(quick: Web, url: str) -> None:
    quick.create("a")
    with Client(url, retries=SOON) as client:
        follower = Follower(client.handle("a").iter_history(follow=True))  # type: ignore[arg-type]
        assert follower.wait_for(1) == [("a", 1)]
        quick.post(at("a", "pause/"))
        assert follower.wait_for(2) == [("a", 1), ("a", 2)]


def test_an_asynchronous_follower_gets_the_same(quick: Web, url: str) -> None:
    quick.create("a")

    async def follow() -> list[tuple[str, int]]:
        found = []
        async with AsyncClient(url, retries=SOON) as client:
            pages = [event.sequence async for event in client.events()]
            assert pages == [1]
            async with aclosing(client.events(follow=True, since=quick.env.clock.now())) as events:
                async for event in events:
                    found.append((event.schedule_id, event.sequence))
                    if len(found) == 1:
                        await asyncio.to_thread(quick.post, at("a", "pause/"))
                    else:
                        break
            async with aclosing(client.handle("a").iter_history(1, follow=True)) as history:
                async for record in history:
                    assert record.sequence == 2
                    break
        return found

    assert asyncio.run(follow()) == [("a", 1), ("a", 2)]


def test_what_will_not_pass_is_raised_at_once(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(streams=0)}, tokens=one_token("secret-of-a-token", "read"))
    with served(web.app) as url:
        with Client(url) as client, pytest.raises(ResponseError) as caught:
            next(client.events(follow=True))
        assert caught.value.http_status == 401
        with Client(url, token="secret-of-a-token", retries=SOON) as client:
            with pytest.raises(ScheduleNotFoundError):
                next(client.handle("unknown").iter_history(follow=True))
            with pytest.raises(BackendUnavailableError, match="streams"):
                next(client.events(follow=True))


def test_a_server_that_was_never_there_is_reported(quick: Web) -> None:
    del quick
    with Client(f"http://127.0.0.1:{free_port()}", retries=SOON) as client, pytest.raises(BackendUnavailableError):
        next(client.events(follow=True))
