"""Connections to PostgreSQL that swallow all data: they are given up, and nothing is lost or done twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from rqsched import Every
from rqsched.errors import DatabaseUnavailableError
from rqsched.kernel.store import postgres
from rqsched.kernel.store.database import Database
from tests.support.env import ONCE
from tests.support.processes import Process, wait_until
from tests.support.proxy import Proxy, proxy_to
from tests.support.sql import backend
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.postgres, pytest.mark.timeout(300)]
SOON = 90.0
BOUND = 15.0
"""The promised seconds on an idle machine. The tests give up later, and print the measured time."""
SLACK = 3.0
"""Extra seconds for a busy machine, too few for two waits of 10 s in a row."""
PERIOD = timedelta(seconds=2)
"""The interval of a schedule whose runs end before the next fire, which is at most this much later."""
OPEN = ("pending", "running", "buffered")


@pytest.fixture
def live(make_live: MakeLive, postgres_url: str) -> LiveEnv:
    return make_live(postgres_url)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with proxy_to(postgres_url) as proxy:
        yield proxy


def start_worker(live: LiveEnv, proxy: Proxy, *words: str) -> Process:
    """A worker whose every connection to PostgreSQL goes through the proxy; the test's own do not."""
    live.environment |= {"RQSCHED_DATABASE_URL": proxy.url(live.environment["RQSCHED_DATABASE_URL"])}
    return live.start_worker(*words)


@pytest.mark.parametrize("words", [(), ("--concurrency", "1")], ids=["forks", "runners"])
def test_worker_behind_silent_connections_fires_and_executes_again_soon(
    live: LiveEnv, proxy: Proxy, words: tuple[str, ...]
) -> None:
    """No run executes when they fall silent: first the dispatcher has to notice it, and then a worker."""
    schedule = live.note_every("tick", Every(PERIOD), overlap="allow_all", missed="all")
    start_worker(live, proxy, *words)
    wait_until(lambda: schedule.refresh().state.success_count > 1, timeout=SOON, what="two runs")
    began = time.monotonic()
    live.wait_for_status(live.run_now("measured"), "succeeded")
    usual = min(time.monotonic() - began, BOUND / 2)  # what a run takes on this machine
    wait_until(lambda: not schedule.runs(statuses=OPEN).items, timeout=SOON, what="a moment without a run")

    silent_since = time.monotonic()
    proxy.swallow()

    fired, ran = schedule.refresh().run_count, len(live.executions())
    wait_until(
        lambda: len(live.executions()) > ran, timeout=BOUND + PERIOD.seconds + SLACK + usual, what="a further run"
    )
    print(f"executed again after {time.monotonic() - silent_since:.1f} s, the bound is {BOUND:.0f} s")
    wait_until(lambda: schedule.refresh().run_count > fired + 1, timeout=SOON, what="further fires")
    schedule.pause()
    wait_until(lambda: schedule.refresh().state.success_count == schedule.run_count, timeout=SOON, what="every end")
    live.check()


def test_worker_goes_on_after_new_connections_were_swallowed_too(live: LiveEnv, proxy: Proxy) -> None:
    schedule = live.note_every("tick", Every(timedelta(seconds=1)), overlap="allow_all", missed="all")
    start_worker(live, proxy)
    wait_until(live.executions, timeout=SOON, what="a first run")

    proxy.is_silent = True
    proxy.swallow()
    known = proxy.connections
    wait_until(lambda: proxy.connections > known + 1, timeout=SOON, what="further connections, which are swallowed")
    proxy.is_silent = False

    heard_since, fired, ran = time.monotonic(), schedule.refresh().run_count, len(live.executions())
    wait_until(lambda: schedule.refresh().run_count > fired + 1, timeout=SOON, what="further fires")
    wait_until(lambda: len(live.executions()) > ran + 2, timeout=SOON, what="further runs")
    print(f"fired and executed again after {time.monotonic() - heard_since:.1f} s, the bound is {BOUND:.0f} s")
    schedule.pause()
    wait_until(lambda: schedule.refresh().state.success_count == schedule.run_count, timeout=SOON, what="every end")
    live.check()


def test_run_whose_worker_is_behind_silent_connections_ends_once_with_its_result(live: LiveEnv, proxy: Proxy) -> None:
    start_worker(live, proxy)
    run = live.hold_now(retry=ONCE)
    live.wait_for_execution(run)

    proxy.swallow()
    live.open_gate()

    live.wait_for_status(run, "succeeded", timeout=SOON)
    assert run.refresh().result == "passed"
    live.check()


def test_call_behind_silent_connections_ends_and_says_so(proxy: Proxy, postgres_url: str) -> None:
    database = Database(proxy.url(postgres_url))
    database.ping()
    proxy.is_silent = True
    proxy.swallow()

    with pytest.raises(DatabaseUnavailableError, match="try again later"):
        database.ping()

    proxy.is_silent = False
    database.ping()
    database.close()


@pytest.mark.parametrize("way", ["read", "transact", "transact_alone", "kept"])
@pytest.mark.parametrize("end", ["swallow", "cut"])
def test_quiet_connection_that_is_lost_is_replaced_whatever_is_asked(
    proxy: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch, way: str, end: str
) -> None:
    monkeypatch.setattr(postgres.BoundedConnection, "quiet_seconds", 0.0)
    with closing(Database(proxy.url(postgres_url))) as database:
        if way == "kept":
            database.keep_connection()
        ask = getattr(database, "transact_alone" if way == "kept" else way)
        first = ask(backend)

        getattr(proxy, end)()

        assert ask(backend) != first


def test_quiet_connection_that_does_not_answer_is_given_up_before_it_has_a_statement(
    proxy: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes may wait for the same silence, one after the other, so each wait must be short."""
    monkeypatch.setattr(postgres.BoundedConnection, "quiet_seconds", 0.0)
    engine = postgres.make_engine(proxy.url(postgres_url))
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1
        connection.rollback()
        assert connection.execute(sa.text("SELECT 2")).scalar_one() == 2, "one that answers goes on"
        connection.rollback()
        proxy.swallow()

        with pytest.raises(OperationalError, match="no answer for 2 s"):
            connection.execute(sa.text("SELECT 3"))
    engine.dispose()
