"""The steps of docs/planned.md, word for word while schedules fire each second: nothing is lost or doubled."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rq import Queue

from rqsched import Every, RetryPolicy
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from tests.support.env import SECOND
from tests.support.invariants import check_invariants
from tests.support.processes import SOON, Processes, wait_until
from tests.support.receiver import Receiver
from tests.support.servers import PostgresServer, ValkeyServer, postgres, standby_of
from tests.system.acceptance.chores import FAIL
from tests.system.acceptance.live import LiveEnv, MakeLive
from tests.system.acceptance.runbooks import OFTEN, PLANNED, Runbook, plain, sections, tools

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def test_each_section_is_followed_here() -> None:
    followed = re.findall(r'Runbook\(\w+, "([^"]+)"', Path(__file__).read_text())

    assert sorted(followed) == sorted(sections(PLANNED))


def test_nothing_is_wrong_before_one_begins(live: LiveEnv) -> None:
    live.start_worker()
    live.note_every("nightly", Every(SECOND))
    with Runbook(live, "Planned work") as book:
        book.step()


@pytest.fixture
def new_redis(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A second Valkey, to move to."""
    (tmp_path / "new").mkdir()
    server = ValkeyServer(tmp_path / "new", options=("--save", "", "--appendonly", "yes"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A second PostgreSQL, to move to."""
    with postgres() as server:
        yield server


@pytest.mark.postgres
def test_postgresql_is_moved_with_a_dump(
    make_live: MakeLive, own_postgres: PostgresServer, server: PostgresServer
) -> None:
    old, new = (plain(one.url("app")) for one in (own_postgres, server))
    with closing(Database(own_postgres.create_database("app"))) as database:
        schema_version.upgrade(database)
    live = make_live(old)
    live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools", server.binaries)}
    live.start_worker()
    live.wait_for_successes(live.note_every("nightly", Every(SECOND), retry=RetryPolicy(max_retries=0)))
    waits = live.run_now("waits", queue="reports")
    executing = live.hold_now()
    live.wait_for_execution(executing)

    with Runbook(live, "With a dump", {"NEW": new.removesuffix("/app")}) as book:
        live.open_gate()
        book.step()
        for worker in live.started:
            worker.terminate()
        live.scheduler.close()
        book.step(8)

    moved = make_live(new)
    moved.start_worker("reports")
    moved.wait_for_successes(moved.scheduler.get("nightly"))
    moved.wait_for_status(moved.scheduler.runs.get(waits.uid), "succeeded")
    moved.check_each_ran_once()


@pytest.mark.postgres
def test_postgresql_is_moved_with_a_standby(
    make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    """Asynchronous replication loses nothing: the old server is stopped in order."""
    live = make_live(plain(own_postgres_url))
    live.start_worker()
    live.wait_for_successes(live.note_every("nightly", Every(SECOND), retry=RetryPolicy(max_retries=0)))
    with standby_of(own_postgres) as standby:
        url = plain(standby.url(own_postgres_url.rpartition("/")[2]))
        live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools", standby.binaries)}
        live.environment["STANDBY"] = plain(standby.url("postgres"))
        moved = make_live(url)
        with Runbook(live, "With a standby") as book:
            book.step()
            own_postgres.stop()
            book.step()
            live.started[0].terminate()
            live.environment["RQSCHED_DATABASE_URL"] = url
            live.start_worker()
            book.step()

        moved.wait_for_successes(moved.scheduler.get("nightly"))
        moved.check_each_ran_once()


def test_redis_is_moved_to_an_empty_one(
    make_live: MakeLive, sqlite_url: str, own_valkey: ValkeyServer, new_redis: ValkeyServer
) -> None:
    """For a while processes use both, and no pass, fire or claim of one disturbs the other's."""
    live, moved = make_live(sqlite_url, redis_url=own_valkey.url), make_live(sqlite_url, redis_url=new_redis.url)
    live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools")}
    nightly = live.note_every("nightly", Every(SECOND), retry=RetryPolicy(max_retries=0))
    waits = live.run_now("waits", queue="reports")
    executing = live.hold_now(retry=RetryPolicy(max_retries=0))
    old = live.start_worker()
    live.wait_for_execution(executing)

    with Runbook(live, "To an empty Redis", {"RQSCHED_REDIS_URL": new_redis.url}) as book:
        book.step(2)
        live.wait_for_passes(4)
        moved.wait_for_passes(4)
        live.wait_for_successes(nightly, more=4)
        assert executing.refresh().status == "running"
        live.open_gate()
        live.wait_for_status(executing, "succeeded")
        assert old.terminate() == 0
        book.step()

    live.start_worker("reports")
    live.wait_for_status(waits, "succeeded")
    live.wait_for_successes(nightly)
    moved.check_each_ran_once()


def test_redis_is_moved_with_a_copy(
    make_live: MakeLive, sqlite_url: str, own_valkey: ValkeyServer, new_redis: ValkeyServer
) -> None:
    """The copied Redis also has jobs that are no runs of rqsched."""
    live = make_live(sqlite_url, redis_url=own_valkey.url)
    live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools"), "NEW": new_redis.url}
    nightly = live.note_every("nightly", Every(SECOND), retry=RetryPolicy(max_retries=0))
    waits = live.run_now("waits", queue="reports")
    Queue("mail", connection=live.redis).enqueue(print, "of the application's own")
    live.start_worker()
    live.wait_for_successes(nightly)

    source = {"OLD_HOST": "127.0.0.1", "OLD_PORT": str(own_valkey.port)}
    with Runbook(live, "With a copy of Redis", source) as book:
        book.step()
        live.started[0].terminate()
        book.step(4)

    moved = make_live(sqlite_url, redis_url=new_redis.url)
    assert Queue("mail", connection=moved.redis).count == 1
    moved.start_worker("reports")
    moved.wait_for_status(moved.scheduler.runs.get(waits.uid), "succeeded")
    moved.wait_for_successes(moved.scheduler.get("nightly"))
    moved.check_each_ran_once()


@pytest.mark.postgres
def test_a_clone_for_staging_fires_and_tells_nothing_by_itself(
    make_live: MakeLive,
    own_postgres_url: str,
    own_postgres: PostgresServer,
    new_redis: ValkeyServer,
    hook: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Production continues to fire. It alone sends notifications, including those that were waiting during the copy."""
    monkeypatch.setenv("RQSCHED_WEBHOOK_SECRET", "a key of this test")
    live = make_live(plain(own_postgres_url))
    live.environment |= {**OFTEN, "RQSCHED_ENVIRONMENT": "production"}
    live.environment["PATH"] = tools(live.folder / "tools", own_postgres.binaries)
    told: dict[str, Any] = {"retry": RetryPolicy(max_retries=0), "notifications": {"webhook": hook.url}}
    hook.answer("503")
    live.start_runners(2)
    nightly = live.scheduler.create("nightly", FAIL, Every(SECOND), kwargs={"log": str(live.log)}, **told)
    live.note_every("guarded", Every(SECOND), environments=["production"])
    live.run_now("waits", queue="reports")
    executing = live.hold_now(**told)
    live.wait_for_execution(executing)
    wait_until(lambda: nightly.deliveries(status="pending").items, timeout=SOON, what="a notification that waits")

    staging = make_live(plain(own_postgres_url), redis_url=new_redis.url)
    url = f"{plain(own_postgres_url).rpartition('/')[0]}/app"
    staging.environment |= live.environment
    values = {
        "RQSCHED_DATABASE_URL": url,
        "RQSCHED_REDIS_URL": new_redis.url,
        "STAGING": plain(own_postgres.url("postgres")),
        "RQSCHED_ENVIRONMENT": "staging",
        "RQSCHED_NOTIFY": "0",
    }
    with Runbook(staging, "Clone for staging", values) as book:
        book.step(5)
        copy = make_live(url, redis_url=new_redis.url).scheduler
        copied = max(run.number for run in copy.get("nightly").runs().items)
        assert {one.status for one in copy.iter()} == {"paused"}
        assert copy.runs.get(executing.uid).status == "lost"
        assert {run.status for run in copy.get("waits").runs().items} == {"cancelled"}
        book.step(2)
    copy.get("guarded").resume()
    wait_until(lambda: copy.get("guarded").skipped_count, timeout=SOON, what="an occurrence that is skipped in staging")
    wait_until(lambda: copy.get("nightly").runs().items[0].number >= copied + 3, timeout=SOON, what="runs in staging")
    hook.answer("200")
    live.open_gate()
    live.wait_for_status(executing, "succeeded")
    wait_until(lambda: nightly.deliveries(status="succeeded").items, timeout=SOON, what="what production has to tell")

    assert [one for schedule in copy.iter() for one in schedule.deliveries().items] == []
    known = {one.uid for one in nightly.deliveries(limit=500).items}
    assert {one["headers"]["rqsched-delivery"] for one in hook.got} <= known
    for one in (live.scheduler, copy):
        check_invariants(one.runtime, with_redis=False)
    executed = [(one.run_uid, one.attempt) for one in live.executions()]
    assert len(executed) == len({*executed})


def create_in_a_night(live: Processes, folder: Path, *, seconds: int) -> str:
    """Create schedules where the clocks change in so many seconds; returns the instant that they leave out."""
    live.environment["PYTHONTZPATH"] = str(folder)
    created = live.start([sys.executable, "-m", "tests.system.acceptance.clocks", folder, str(seconds)])
    assert created.wait() == 0, created.log()
    return created.log().split()[-1]


def test_clocks_change(make_live: MakeLive, sqlite_url: str, tmp_path: Path) -> None:
    """The first installation has the night ahead of it. The clocks of the second change now."""
    live = make_live(sqlite_url)
    other = {"RQSCHED_DATABASE_URL": f"sqlite:///{tmp_path / 'before.db'}", "RQSCHED_CONTROL_QUEUE": "before"}
    (tmp_path / "before").mkdir()
    before = Processes(tmp_path / "before", {**live.environment, **other})
    create_in_a_night(before, tmp_path / "before", seconds=7_200)
    with Runbook(before, "A night on which clocks change") as book:
        book.step()
        left_out = create_in_a_night(live, tmp_path / "after", seconds=10)
        live.start_worker()
        nightly = live.scheduler.get("nightly")
        wait_until(lambda: nightly.refresh().success_count, timeout=SOON, what="the first run after the change")
        book.live, book.values = live, {"LEFT_OUT": left_out}
        book.step(2)
