"""Each runbook of docs/runbooks.md, followed word for word during its fault, prints the output that the page shows."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rqsched import Every, RetryPolicy, Spec
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.kernel.decide.audit import MISSED, CommandContext
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from tests.support.disks import Disk, small_disk
from tests.support.env import SECOND
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.processes import rqsched_command, run_to_end, wait_until
from tests.support.servers import PostgresServer, ValkeyServer, standby_of, valkey
from tests.system.acceptance.chores import FAIL, HOLD, INVOICE_SYNC
from tests.system.acceptance.live import LiveEnv, MakeLive
from tests.system.acceptance.runbooks import OFTEN, RUNBOOKS, Runbook, plain, sections, tools

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


def test_each_runbook_is_followed_here() -> None:
    followed = re.findall(r'Runbook\(\w+, "([^"]+)"', Path(__file__).read_text())

    assert sorted({*followed, *ONE_SCHEDULE}) == sorted(sections(RUNBOOKS))


def test_doctor_is_asked_first(live: LiveEnv) -> None:
    live.environment["PATH"] = tools(live.folder / "tools")
    with Runbook(live, "Runbooks") as book:
        book.step()


@pytest.fixture
def redis_of_its_own(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A Valkey to lose; it writes a snapshot when it is told to."""
    folder = tmp_path / "valkey"
    folder.mkdir()
    with valkey(folder) as server:
        yield server


@pytest.fixture
def losing(make_live: MakeLive, sqlite_url: str, redis_of_its_own: ValkeyServer) -> LiveEnv:
    """An installation with a Redis of its own, a schedule that fires and a run that executes."""
    live = make_live(sqlite_url, redis_url=redis_of_its_own.url)
    live.environment |= OFTEN
    live.start_worker()
    live.wait_for_successes(live.note_every("nightly", Every(SECOND)))
    return live


def test_redis_is_lost(losing: LiveEnv, redis_of_its_own: ValkeyServer) -> None:
    executing = losing.hold_now()
    losing.wait_for_execution(executing)
    redis_of_its_own.kill()

    with Runbook(losing, "Redis is lost") as book:
        book.step()
        redis_of_its_own.start()
        book.step(2)

    losing.open_gate()
    losing.wait_for_status(executing, "succeeded")
    losing.wait_for_successes(losing.scheduler.get("nightly"))
    losing.check()


def test_redis_came_back_with_an_old_snapshot(losing: LiveEnv, redis_of_its_own: ValkeyServer) -> None:
    redis = losing.redis
    redis.save()
    snapshot = redis_of_its_own.folder / "dump.rdb"
    nightly = losing.scheduler.get("nightly")
    losing.wait_for_passes(2)
    losing.wait_for_successes(nightly)
    redis_of_its_own.kill()
    assert snapshot.exists()
    redis_of_its_own.start()

    with Runbook(losing, "Redis came back with an old snapshot") as book:
        book.step(2)

    losing.wait_for_successes(nightly)
    losing.check()


def executed_twice(live: LiveEnv) -> list[tuple[str, int]]:
    found = Counter((one.run_uid, one.attempt) for one in live.executions())
    return [run for run, count in found.items() if count > 1]


def fire(live: LiveEnv) -> None:
    """Have a schedule that fires, one that is paused, and a run that waits where no worker listens."""
    live.note_every("paused", Every(SECOND)).pause()
    live.run_now("waits", queue="nobody")
    live.start_worker()
    live.wait_for_successes(live.note_every("nightly", Every(SECOND)))


def freeze_and_stop(live: LiveEnv) -> None:
    with Runbook(live, "Restore from a backup") as book:
        book.step()
        for worker in live.started:
            worker.terminate()
        live.scheduler.close()
        book.step()


def look_and_release(live: LiveEnv, restored: LiveEnv) -> None:
    """To the end of the restore: nothing begins before its thaw, and nothing twice."""
    restored.environment |= live.environment
    ran = len(live.executions())
    with Runbook(restored, "Look, and thaw") as book:
        book.step(3)
        assert len(restored.executions()) == ran
        book.step(2)
    scheduler = restored.scheduler
    assert scheduler.get("paused").status == "paused"
    assert [run.status for run in scheduler.get("waits").runs().items] == ["cancelled"]
    assert MISSED in [event.event_type for event in scheduler.get("nightly").iter_history()]
    assert executed_twice(restored) == []
    assert "Traceback" not in restored.started[-1].log()


def redis_is(empty: str, *, nightly: bool) -> Any:
    """Whether Redis is empty after the restore; `nightly` leaves it to `make nightly`."""
    return pytest.param(empty == "empty", id=f"{empty} Redis", marks=[pytest.mark.nightly] if nightly else [])


@pytest.mark.parametrize("is_empty", [redis_is("the same", nightly=True), redis_is("empty", nightly=False)])
def test_sqlite_is_restored(make_live: MakeLive, sqlite_url: str, tmp_path: Path, is_empty: bool) -> None:
    database = tmp_path / ".rqsched" / "rqsched.db"
    database.parent.mkdir()
    shutil.copyfile(sqlite_url.partition("///")[2], database)
    live = make_live(f"sqlite:///{database}")
    live.environment["PATH"] = tools(live.folder / "tools")
    fire(live)
    at = iso_utc(live.scheduler.runtime.now())
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(tmp_path / "backup.db")) as copy:
        source.backup(copy)
    live.wait_for_successes(live.scheduler.get("nightly"))
    freeze_and_stop(live)

    with Runbook(live, "Put SQLite back", {"BACKUP_AT": at}) as book:
        book.step()
    if is_empty:
        with Runbook(live, "Empty Redis") as book:
            book.step()

    look_and_release(live, make_live(f"sqlite:///{database}"))


@pytest.mark.postgres
@pytest.mark.parametrize("is_empty", [redis_is("the same", nightly=False), redis_is("empty", nightly=True)])
def test_postgresql_is_restored(
    make_live: MakeLive, postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, is_empty: bool
) -> None:
    url = plain(postgres_url)
    live = make_live(url)
    live.environment["PATH"] = tools(live.folder / "tools", postgres_server.binaries)
    fire(live)
    at = iso_utc(live.scheduler.runtime.now())
    dump = ["pg_dump", "--format", "custom", "--file", str(tmp_path / "rqsched.dump"), url]
    subprocess.run([postgres_server.binaries / dump[0], *dump[1:]], check=True)
    live.wait_for_successes(live.scheduler.get("nightly"))
    freeze_and_stop(live)

    restored = f"{url.rpartition('/')[0]}/rqsched_restored"
    try:
        with Runbook(live, "Put PostgreSQL back", {"BACKUP_AT": at, "RQSCHED_DATABASE_URL": restored}) as book:
            book.step()
        if is_empty:
            with Runbook(live, "Empty Redis") as book:
                book.step()
        look_and_release(live, make_live(restored))
    finally:
        postgres_server.drop_database(restored)


def test_why_is_asked_of_one_schedule(live: LiveEnv) -> None:
    live.start_worker()
    nightly = live.note_every("nightly", Every(SECOND))
    live.wait_for_successes(nightly)
    with Runbook(live, "Nothing fires") as book:
        book.step()


@pytest.fixture
def silent(live: LiveEnv) -> LiveEnv:
    """An installation with a due schedule and no process that fires it."""
    live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools")}
    live.note_every("nightly", Every(SECOND))
    return live


def test_no_process_fires(silent: LiveEnv) -> None:
    with Runbook(silent, "No process fires") as book:
        book.step(3)


def test_a_worker_is_frozen_by_its_settings(silent: LiveEnv) -> None:
    silent.start_worker("--freeze")
    with Runbook(silent, "A worker is frozen by its settings") as book:
        book.step()


@pytest.mark.postgres
def test_the_database_takes_no_writes(make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str) -> None:
    live = make_live(plain(own_postgres_url))
    live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools", own_postgres.binaries)}
    live.note_every("nightly", Every(SECOND))
    own_postgres.demote()
    live.start_worker()
    with Runbook(live, "The database takes no writes") as book:
        book.step(3)
    live.wait_for_successes(live.scheduler.get("nightly"))


@pytest.mark.parametrize("link", ["none", "for another year"])
def test_links_are_missing_in_redis(live: LiveEnv, link: str) -> None:
    live.note_every("nightly", Every("10s"))
    if link == "none":
        live.redis.flushdb()
    else:  # as Redis has it when SQL has gone back to before an update
        armed: Any = live.redis.zrange("rq:scheduled:rqsched", 0, -1)
        live.redis.zadd("rq:scheduled:rqsched", dict.fromkeys(armed, time.time() + 31_536_000))
    with Runbook(live, "Links are missing in Redis") as book:
        book.step(3)


def test_everything_is_frozen(silent: LiveEnv) -> None:
    silent.start_worker()
    silent.scheduler.freeze("the mail server sends twice", everything=True, context=CommandContext(principal="ada"))
    with Runbook(silent, "Everything is frozen") as book:
        book.step(3)


def test_a_namespace_is_frozen(silent: LiveEnv) -> None:
    silent.start_worker()
    silent.scheduler.freeze("its database moves", context=CommandContext(principal="ada"))
    with Runbook(silent, "A namespace is frozen") as book:
        book.step(3)


def test_redis_is_full(losing: LiveEnv) -> None:
    losing.environment["PATH"] = tools(losing.folder / "tools")
    losing.redis.config_set("maxmemory", "1mb")
    with Runbook(losing, "Redis is full") as book:
        book.step(3)
    losing.wait_for_successes(losing.scheduler.get("nightly"))


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A file system of a few megabytes, to fill."""
    with small_disk() as disk:
        yield disk


def test_the_disk_of_sqlite_is_full(make_live: MakeLive, sqlite_url: str, disk: Disk) -> None:
    database = disk.folder / "rqsched.db"
    shutil.copyfile(sqlite_url.partition("///")[2], database)
    live = make_live(f"sqlite:///{database}")
    live.environment |= OFTEN
    worker = live.start_worker()
    nightly = live.note_every("nightly", Every(SECOND))
    live.wait_for_successes(nightly)
    executing = live.hold_now(retry=RetryPolicy(max_retries=0))
    live.wait_for_execution(executing)

    with Runbook(live, "The disk of the database is full") as book:
        live_through(book, live, disk)

    live.wait_for_status(executing, "succeeded")
    live.wait_for_successes(nightly)
    live.check()
    assert "Traceback" not in worker.log()


def live_through(book: Runbook, live: LiveEnv, disk: Disk) -> None:
    """Follow the runbook of a full disk; the run that executes ends while it is full."""
    disk.fill()
    book.step()
    live.open_gate()
    disk.make_room()
    book.step(len(sections()[book.title]) - 1)


@pytest.mark.postgres
def test_the_disk_of_postgresql_is_full(make_live: MakeLive, own_postgres: PostgresServer, disk: Disk) -> None:
    """Fill the disk of a tablespace. The server continues, because its WAL has room."""
    os.chown(disk.folder, own_postgres.user or -1, -1)
    own_postgres.execute(f"CREATE TABLESPACE small LOCATION '{disk.folder}'")
    own_postgres.execute("CREATE DATABASE app TABLESPACE small STRATEGY wal_log")
    with closing(Database(own_postgres.url("app"))) as database:
        schema_version.upgrade(database)
    live = make_live(plain(own_postgres.url("app")))
    live.environment |= OFTEN
    worker = live.start_worker()
    executing = live.hold_now(retry=RetryPolicy(max_retries=0))
    live.wait_for_execution(executing)
    nightly = live.note_every("nightly", Every(SECOND), memo={"filler": "x" * 4000})

    with Runbook(live, "The disk of the database is full") as book:
        live_through(book, live, disk)

    live.wait_for_status(executing, "succeeded")
    live.wait_for_successes(nightly)
    live.check()
    assert "Traceback" not in worker.log()


@pytest.mark.postgres
def test_a_postgresql_that_cannot_write_its_wal_stops_and_everything_goes_on_when_it_is_started_again(
    make_live: MakeLive, own_postgres: PostgresServer, disk: Disk
) -> None:
    folder = disk.folder / "data"
    folder.mkdir(mode=0o700)
    os.chown(folder, own_postgres.user or -1, -1)
    server = PostgresServer(folder, own_postgres.binaries, own_postgres.user, settings={"min_wal_size": "2MB"})
    server.initialise("--wal-segsize=1")
    server.start()
    try:
        with closing(Database(server.create_database("app"))) as database:
            schema_version.upgrade(database)
        live = make_live(plain(server.url("app")))
        live.environment |= OFTEN
        live.start_worker()
        nightly = live.note_every("nightly", Every(SECOND))
        live.wait_for_successes(nightly)
        executing = live.hold_now(retry=RetryPolicy(max_retries=0))
        live.wait_for_execution(executing)

        disk.fill()
        stopping = present(server.process)
        while stopping.is_running:  # other work of the server fills segments, too
            with suppress(psycopg.OperationalError):
                server.execute("SELECT pg_logical_emit_message(false, '', 'filler'), pg_switch_wal()")
        doctor = run_to_end(rqsched_command("doctor"), live.environment)
        assert re.search(r"^database +problem", doctor.stdout, re.MULTILINE), doctor.stdout
        live.open_gate()
        disk.make_room()
        server.start()

        live.wait_for_status(executing, "succeeded")
        live.wait_for_successes(nightly)
        live.check()
    finally:
        server.stop()


@pytest.mark.parametrize("keeps", ["an append-only file", "snapshots"])
def test_the_disk_of_redis_is_full(make_live: MakeLive, sqlite_url: str, disk: Disk, keeps: str) -> None:
    options = ("--save", "1 1") if keeps == "snapshots" else ("--save", "", "--appendonly", "yes")
    redis = ValkeyServer(disk.folder, options=options)
    redis.start()
    try:
        live = make_live(sqlite_url, redis_url=redis.url)
        live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools")}
        worker = live.start_worker()
        nightly = live.note_every("nightly", Every(SECOND))
        live.wait_for_successes(nightly)
        executing = live.hold_now(retry=RetryPolicy(max_retries=0))
        live.wait_for_execution(executing)

        with Runbook(live, "The disk of Redis is full") as book:
            live_through(book, live, disk)

        live.wait_for_status(executing, "succeeded")
        live.wait_for_successes(nightly)
        live.check()
        assert "runs ended" not in worker.log(), "it waits, and is not started again and again"
        assert "pubsub thread exiting" not in worker.log(), "it still hears that a run is to be terminated"
    finally:
        redis.kill()


def test_it_fires_and_nothing_runs(live: LiveEnv) -> None:
    live.environment |= OFTEN
    # Its second occurrence, which would be skipped behind the run that waits, is an hour away.
    an_hour_ago = live.scheduler.runtime.now() - timedelta(minutes=59, seconds=58)
    live.note_every("nightly", Every("1h", anchor=an_hour_ago), queue="reports")
    live.start_worker()
    with Runbook(live, "It fires, and nothing runs") as book:
        book.step(3)


def test_one_schedule_does_not_fire(live: LiveEnv) -> None:
    """Each cause in turn, with the same id."""
    live.environment["RQSCHED_ENVIRONMENT"] = "staging"
    live.start_worker()
    for title, make in ONE_SCHEDULE.items():
        nightly = make(live)
        with Runbook(live, title) as book:
            book.step(len(sections()[title]))
        nightly.refresh().delete()


def paused(live: LiveEnv) -> ScheduleHandle:
    nightly = live.note_every("nightly", Every(SECOND))
    nightly.pause(reason="the report is wrong", context=CommandContext(principal="ada"))
    return nightly


def dead(live: LiveEnv) -> ScheduleHandle:
    policy = RetryPolicy(max_retries=0, then="dead")
    nightly = live.scheduler.create("nightly", FAIL, Every(SECOND), kwargs={"log": str(live.log)}, retry=policy)
    wait_until(lambda: nightly.refresh().status == "dead", what="its end")
    return nightly


def over(live: LiveEnv) -> ScheduleHandle:
    nightly = live.note_every("nightly", Every(SECOND), max_runs=1)
    wait_until(lambda: nightly.refresh().status == "done", what="its end")
    return nightly


def skipped_here(live: LiveEnv) -> ScheduleHandle:
    return live.note_every("nightly", Every(SECOND), environments=["production"])


def skipped_behind_a_run(live: LiveEnv) -> ScheduleHandle:
    kwargs = {"log": str(live.log), "gate": str(live.gate)}
    return live.scheduler.create("nightly", HOLD, Every(SECOND), kwargs=kwargs)


ONE_SCHEDULE = {
    "It is paused": paused,
    "It is dead": dead,
    "It is over": over,
    "It is skipped here": skipped_here,
    "It is skipped behind a run": skipped_behind_a_run,
}


def test_it_is_outside_its_window(live: LiveEnv) -> None:
    now = live.scheduler.runtime.now()
    live.note_every("nightly", Spec(Every("1h"), start_at=now + timedelta(days=1)))
    with Runbook(live, "It is outside its window", {"MISSED": iso_utc(now + timedelta(hours=1))}) as book:
        book.step()


def test_a_run_was_tried_again(live: LiveEnv) -> None:
    live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools")}
    run = live.hold_now("nightly", retry=RetryPolicy(max_retries=1, base=SECOND))
    live.start_worker()
    live.executor_of(run).kill()
    live.open_gate()

    with Runbook(live, "A run was tried again", {"RUN": run.uid}) as book:
        book.step(2)

    assert [one.attempt for one in live.executions()] == [1, 2]
    assert present(live.scheduler.get("nightly").state.policies.retry).max_retries == 0


def test_somebody_started_it(live: LiveEnv) -> None:
    live.environment["PATH"] = tools(live.folder / "tools")
    live.start_worker()
    nightly = live.note_every("nightly", Every(SECOND))
    live.wait_for_successes(nightly)
    nightly.pause()
    nightly.trigger(force=True, context=CommandContext(principal="ada"))

    with Runbook(live, "Somebody started it") as book:
        book.step()


def test_two_schedules_do_the_same(live: LiveEnv) -> None:
    live.environment["PATH"] = tools(live.folder / "tools")
    for schedule_id in ("nightly", "nightly-2"):
        live.scheduler.create(schedule_id, INVOICE_SYNC, Every("1h"), context=CommandContext(principal="app"))

    with Runbook(live, "Two schedules do the same") as book:
        book.step(2)

    assert [one.schedule_id for one in live.scheduler.list().items] == ["nightly"]


def test_two_installations_on_one_redis(make_live: MakeLive, sqlite_url: str, tmp_path: Path) -> None:
    first = make_live(sqlite_url)
    first.start_worker()
    first.wait_for_successes(first.note_every("nightly", Every(SECOND)))
    run = first.scheduler.get("nightly").runs().items[0]
    second = make_live(f"sqlite:///{tmp_path / 'second.db'}")
    second.environment["PATH"] = tools(tmp_path / "tools")
    assert run_to_end(rqsched_command("db", "upgrade"), second.environment).returncode == 0

    with Runbook(second, "Another database fires it, too", {"RUN": run.uid}) as book:
        book.step()
    queues = {"RQSCHED_CONTROL_QUEUE": "rqsched-2", "RQSCHED_DEFAULT_QUEUE": "second"}
    with Runbook(second, "Two installations on one Redis", queues) as book:
        book.step(3)


def test_processes_of_one_database_with_two_control_queues_fire_nothing_twice(live: LiveEnv) -> None:
    nightly = live.note_every("nightly", Every(SECOND))
    workers = [live.start_worker(), live.start(rqsched_command("worker"), RQSCHED_CONTROL_QUEUE="rqsched-2")]
    for worker in workers:
        worker.wait_for_child("dispatcher")
    wait_until(lambda: live.redis.zcard("rq:scheduled:rqsched-2"), what="a link in the second queue")

    live.wait_for_successes(nightly, more=4)

    nightly.pause()
    live.check()


def test_two_installations_share_a_queue_of_runs(make_live: MakeLive, sqlite_url: str, tmp_path: Path) -> None:
    first, second = make_live(sqlite_url), make_live(f"sqlite:///{tmp_path / 'second.db'}")
    assert run_to_end(rqsched_command("db", "upgrade"), second.environment).returncode == 0
    second.environment["RQSCHED_CONTROL_QUEUE"] = "rqsched-2"
    second.start_worker()
    first.run_now("nightly")

    with Runbook(first, "Two installations share a queue of runs") as book:
        book.step()


@pytest.mark.postgres
def test_a_copy_beside_its_original(make_live: MakeLive, own_postgres: PostgresServer, own_postgres_url: str) -> None:
    live = make_live(own_postgres_url)
    live.note_every("nightly", Every(SECOND))
    live.scheduler.recover()
    live.scheduler.runtime.database.close()
    clone = own_postgres.create_database(template=own_postgres_url.rpartition("/")[2])
    live.start_worker()
    live.wait_for_successes(live.scheduler.get("nightly"))
    copy = make_live(clone)
    copy.environment["PATH"] = tools(copy.folder / "tools")

    queues = {"RQSCHED_CONTROL_QUEUE": "rqsched-copy", "RQSCHED_DEFAULT_QUEUE": "copy"}
    with Runbook(copy, "A copy beside its original", queues) as book:
        book.step(3)

    live.wait_for_successes(live.scheduler.get("nightly"))


@pytest.fixture
def standby(own_postgres: PostgresServer, own_postgres_url: str) -> Iterator[PostgresServer]:
    """A replica of `own_postgres`, with the tables of `own_postgres_url`."""
    with standby_of(own_postgres) as server:
        yield server


@pytest.fixture
def replicated(make_live: MakeLive, own_postgres_url: str, standby: PostgresServer) -> LiveEnv:
    """An installation with both servers in its URL, and a schedule that fires."""
    first, name = plain(own_postgres_url).rpartition("@")[2].split("/")
    live = make_live(f"postgresql://postgres@{first},127.0.0.1:{standby.port}/{name}?target_session_attrs=read-write")
    live.environment |= {**OFTEN, "PATH": tools(live.folder / "tools", standby.binaries)}
    live.environment["STANDBY"] = plain(standby.url("postgres"))
    live.start_worker()
    live.wait_for_successes(live.note_every("nightly", Every(SECOND), retry=RetryPolicy(max_retries=0)))
    return live


@pytest.mark.postgres
def test_postgresql_fails_over_with_a_synchronous_standby(replicated: LiveEnv, own_postgres: PostgresServer) -> None:
    own_postgres.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    own_postgres.execute("SELECT pg_reload_conf()")
    replicated.wait_for_successes(replicated.scheduler.get("nightly"))

    with Runbook(replicated, "PostgreSQL fails over") as book:
        book.step()
        own_postgres.kill()
        book.step(3)

    replicated.wait_for_successes(replicated.scheduler.get("nightly"))
    replicated.check()


@pytest.mark.postgres
def test_postgresql_fails_over_with_an_asynchronous_standby_and_comes_back(
    replicated: LiveEnv,
    make_live: MakeLive,
    own_postgres: PostgresServer,
    own_postgres_url: str,
    standby: PostgresServer,
) -> None:
    """The standby misses some passes. The runs that it lacks are executed again, and the old primary fires nothing."""
    nightly = replicated.scheduler.get("nightly")
    with Runbook(replicated, "PostgreSQL fails over") as book:
        book.step()
        standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        standby.execute("SELECT pg_reload_conf()")
        replicated.wait_for_passes(2)
        own_postgres.kill()
        book.step(3)

    replicated.wait_for_successes(nightly)
    with Runbook(replicated, "SQL went back") as book:
        book.step(2)
    replicated.started[-1].terminate()  # of two that take writes it would reach the first
    own_postgres.start()
    replicated.environment["RQSCHED_DATABASE_URL"] = plain(own_postgres_url)
    new = plain(standby.url(own_postgres_url.rpartition("/")[2]))
    with Runbook(replicated, "The old primary came back", {"RQSCHED_DATABASE_URL": new}) as book:
        book.step(2)
    check_invariants(make_live(new).scheduler.runtime)
