"""The source `apscheduler`, written by the job stores of APScheduler 3 itself."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from apscheduler.jobstores.redis import RedisJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.interval import IntervalTrigger
from redis import Redis

from rqsched.errors import ConflictError, InvalidInputError
from rqsched.importers.apscheduler import RedisJobs, SqlJobs, open_source
from rqsched.importers.source import Reading, SourceEntry
from tests.importers import jobs
from tests.support.processes import wait_until
from tests.support.rows import every_row

FUNCTION = "tests.importers.jobs:note"
AT = datetime(2099, 1, 15, 12, tzinfo=UTC)
AS_BEFORE = {"overlap": "skip", "missed": "skip", "retry": {"max_retries": 0}}
LATENESS = "It fires if it is at most 60 s late; its misfire_grace_time was 1 s."


class Store:
    """A job store of APScheduler, and a scheduler over it."""

    def __init__(self, address: str, open_jobs: Callable[[], Any]) -> None:
        self.address = address
        self._open_jobs = open_jobs
        self.scheduler = self._open()

    def _open(self) -> BackgroundScheduler:
        scheduler = BackgroundScheduler(jobstores={"default": self._open_jobs()}, timezone="UTC")
        scheduler.start(paused=True)
        return scheduler

    def add(self, job_id: str, trigger: Any, **others: Any) -> None:
        self.scheduler.add_job(FUNCTION, trigger, id=job_id, **{"next_run_time": AT, **others})

    def source(self) -> SqlJobs | RedisJobs:
        return open_source(self.address, Reading(is_trusted=True))

    def entries(self) -> dict[str, SourceEntry]:
        with closing(self.source()) as source:
            return {entry.source_id: entry for entry in source.entries()}

    def disable(self, *job_ids: str) -> str:
        with closing(self.source()) as source:
            return source.disable([SourceEntry(job_id, {}) for job_id in job_ids])

    def close(self) -> None:
        self.scheduler.remove_all_jobs()  # it would run the due jobs before it ends
        self.scheduler.shutdown(wait=False)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each kind of store in turn, empty."""
    kind: str = request.param
    if kind == "redis":
        url: str = request.getfixturevalue("redis_url")
        port = int(url.rpartition(":")[2].partition("/")[0])
        opened = Store(url, lambda: RedisJobStore(host="127.0.0.1", port=port))
    else:
        url = request.getfixturevalue(f"empty_{kind}_url")
        opened = Store(url, lambda: SQLAlchemyJobStore(url))
    yield opened
    opened.close()


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which the jobs append a line per call."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("NOTES", str(path))
    return path


def test_jobs_are_read_as_apscheduler_wrote_them(store: Store) -> None:
    store.add("hourly", "interval", hours=1, args=["eu", 2], kwargs={"a": None}, max_instances=3, jitter=10)
    store.add("nightly", "cron", hour=3, day_of_week="mon-fri", timezone="Europe/Berlin", name="The report")
    store.add("once", "date", run_date=AT, misfire_grace_time=None, next_run_time=AT)
    store.add("patient", "interval", days=1, misfire_grace_time=3600, coalesce=False, executor="processes")
    store.add("paused", "interval", minutes=5, start_date=AT, next_run_time=None)
    store.add("a b", "cron", day="2nd fri", timezone="UTC")
    found = store.entries()

    workflow = "tests.importers.jobs.note"
    hourly = found["hourly"]
    assert hourly == SourceEntry(
        "hourly",
        {
            "schedule_id": "apscheduler:hourly",
            "workflow": workflow,
            "spec": {
                "intervals": [{"every": "PT1H", "anchor": "2099-01-15T12:00:00Z"}],
                "start_at": "2099-01-15T12:00:00Z",
            },
            "jitter": "PT10S",
            **AS_BEFORE,
            "overlap": "allow_all",
            "args": ["eu", 2],
            "kwargs": {"a": None},
        },
        ("Its max_instances of 3 becomes unlimited: overlap is allow_all.", LATENESS),
        next_at=AT,
    )
    nightly = found["nightly"].entry or {}
    assert [nightly[name] for name in ("cron", "timezone", "description", "overlap")] == [
        "0 3 * * mon-fri",
        "Europe/Berlin",
        "The report",
        "skip",
    ]
    assert found["once"].entry == {
        "schedule_id": "apscheduler:once",
        "workflow": workflow,
        "once": "2099-01-15T12:00:00Z",
        "overlap": "skip",
        "retry": {"max_retries": 0},
    }
    patient = found["patient"]
    assert [(patient.entry or {})[name] for name in ("missed", "fire_within")] == ["skip", 3600]
    assert patient.lost == (
        "Of several missed times one fires. With coalesce=False APScheduler runs each: see missed='all'.",
        "Its executor processes is lost: see queue.",
    )
    paused = found["paused"]
    assert (paused.enabled, paused.next_at) == (False, None)
    assert (paused.entry or {})["spec"]["start_at"] == "2099-01-15T12:00:00Z"
    assert (found["a b"].entry or {})["schedule_id"].startswith("apscheduler:a-b-")
    with closing(store.source()) as source:
        assert "replace_existing=True" in source.notes[0]


def test_scheduler_runs_no_more_what_was_disabled(store: Store, notes: Path) -> None:
    for name in ("ours", "theirs"):
        store.add(name, "interval", seconds=0.2, args=[name], next_run_time=datetime.now(UTC), max_instances=9)
    store.scheduler.resume()
    wait_until(lambda: all(f"({name!r},)" in notes.read_text() for name in ("ours", "theirs")))
    told = store.disable("ours")
    assert told.startswith(("Paused", "Moved"))
    after = len(notes.read_text().splitlines())
    wait_until(lambda: len(notes.read_text().splitlines()) > after + 4)
    assert set(notes.read_text().splitlines()[after + 1 :]) == {"('theirs',) {}"}
    assert " 0 " in store.disable("ours"), "repeatable"
    assert {name: entry.enabled for name, entry in store.entries().items()} == {"ours": False, "theirs": True}

    store.scheduler.resume_job("ours")
    before = notes.read_text().count("ours")
    wait_until(lambda: notes.read_text().count("ours") > before, what="the way back")


@pytest.mark.parametrize(("times", "stays_paused"), [(2, True), (1_000, False)])
def test_job_that_a_scheduler_writes_back_is_paused_again(
    empty_sqlite_url: str, times: int, stays_paused: bool
) -> None:
    """A scheduler may have read the job before, and write it back unchanged. Here a database trigger does that."""
    with closing(Store(empty_sqlite_url, lambda: SQLAlchemyJobStore(empty_sqlite_url))) as store:
        store.add("a", "interval", hours=1)
        _execute(
            empty_sqlite_url,
            "CREATE TABLE written (job_id)",
            f"""
            CREATE TRIGGER back AFTER UPDATE ON apscheduler_jobs
            WHEN NEW.next_run_time IS NULL AND (SELECT count(*) FROM written) < {times} BEGIN
                INSERT INTO written VALUES (NEW.id);
                UPDATE apscheduler_jobs SET next_run_time = OLD.next_run_time WHERE id = NEW.id;
            END
            """,
        )
        if stays_paused:
            store.disable("a")
        else:
            with pytest.raises(ConflictError, match="enables 1 of them again each time: stop it"):
                store.disable("a")
        assert store.entries()["a"].enabled is not stays_paused


def test_disabled_jobs_continue_where_they_were(store: Store) -> None:
    store.add("a", "interval", hours=1)
    store.add("b", "date", run_date=AT, next_run_time=AT)
    before = store.entries()
    store.disable("a", "b", "gone")
    after = store.entries()
    assert {name: (one.entry, one.next_at) for name, one in after.items()} == {
        name: (one.entry, one.next_at) for name, one in before.items()
    }
    assert [one.enabled for one in after.values()] == [False, False]


def test_what_was_to_run_and_may_not_be_so_late_is_not_owed(store: Store) -> None:
    late = datetime.now(UTC) - timedelta(minutes=10)
    store.add("strict", "interval", hours=1, next_run_time=late)
    store.add("patient", "interval", hours=1, next_run_time=late, misfire_grace_time=3600)
    store.add("any", "interval", hours=1, next_run_time=late, misfire_grace_time=None)
    store.add("once", "date", run_date=late, next_run_time=late)
    found = store.entries()
    assert {name: one.next_at for name, one in found.items() if one.entry} == {
        "strict": None,
        "patient": late,
        "any": late,
    }
    assert found["once"].lost == (
        "It cannot become a schedule: its time has passed, and APScheduler runs it at most 1 s late.",
    )


def test_calls_that_no_workflow_is_are_refused(store: Store) -> None:
    table: dict[str, dict[str, Any]] = {
        "an argument holds a tests.importers.jobs.Shop, which is not JSON": {"args": [jobs.Shop()]},
        "an argument holds a datetime, which is not JSON": {"args": [AT]},
        "a workflow must be a function in a module": {"func": "tests.importers.jobs:Shop.open", "args": [1]},
        "an interval among its triggers": {"trigger": OrTrigger([IntervalTrigger(hours=1)])},
    }
    for index, others in enumerate(table.values()):
        given = {"func": FUNCTION, "trigger": "interval", "id": f"job-{index}", "next_run_time": AT, **others}
        store.scheduler.add_job(**given)
    found = store.entries()
    with every_row() as row:
        for index, reason in enumerate(table):
            one = found[f"job-{index}"]
            with row(reason):
                assert one.entry is None
                assert reason in one.lost[0]


def test_argument_that_a_function_of_the_application_makes_is_read(store: Store) -> None:
    store.add("a", "interval", hours=1, args=[jobs.Plain()])
    assert (store.entries()["a"].entry or {})["args"] == [{"plain": True}]


def test_jobs_of_a_source_that_is_not_trusted_are_refused(store: Store) -> None:
    with closing(open_source(store.address, Reading())) as source:
        assert source.entries() == []
        store.add("a", "interval", hours=1)
        with pytest.raises(InvalidInputError, match="--trust-source: is missing"):
            source.entries()


def test_tables_and_keys_stand_behind_the_address(redis_url: str, empty_sqlite_url: str) -> None:
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    keys = {"jobs_key": "shop.jobs", "run_times_key": "shop.times"}
    opened = {
        f"{empty_sqlite_url}#shop_jobs": lambda: SQLAlchemyJobStore(empty_sqlite_url, tablename="shop_jobs"),
        f"{redis_url}#shop.jobs,shop.times": lambda: RedisJobStore(host="127.0.0.1", port=port, **keys),
    }
    for address, open_jobs in opened.items():
        with closing(Store(address, open_jobs)) as store:
            store.add("a", "interval", hours=1)
            assert [*store.entries()] == ["a"]
            assert " 1 " in store.disable("a")
    with every_row() as row:
        for address, reason in {
            f"{redis_url}#one": "names one key",
            empty_sqlite_url: "has no table apscheduler_jobs",
            "sqlite:////nowhere/at.all": "which is not a file",
        }.items():
            with row(address), pytest.raises(InvalidInputError, match=reason):
                open_source(address, Reading())


BOMB = b"tests.importers.bomb"
"""A module that raises when it is imported."""
UNREADABLE = {
    "calls a function": b"cposix\ngetpid\n(tR.",
    "imports a module": b"\x80\x04\x8c" + bytes([len(BOMB)]) + BOMB + b"\x8c\x01x\x93.",
    "is another value": pickle.dumps(["a job"]),
    "is not whole": pickle.dumps({"id": "a", "func": FUNCTION})[:-5],
    "lacks what a job has": pickle.dumps({"version": 1, "id": "a"}),
    "is no pickle": b"{}",
    "is empty": b"",
}


def test_pickles_of_no_job_are_not_readable(store: Store) -> None:
    assert find_spec(BOMB.decode())
    store.add("good", "interval", hours=1)
    state = store.scheduler.get_job("good").__getstate__()
    wrong: dict[str, Any] = {
        "next_run_time": "tomorrow",
        "trigger": None,
        "args": 7,
        "kwargs": [1],
        "func": None,
        "misfire_grace_time": "long",
        "max_instances": {},
    }
    odd = {name: pickle.dumps({**state, name: value}) for name, value in wrong.items()}
    for name, data in {**UNREADABLE, **odd}.items():
        _put(store.address, name, data)
    found = store.entries()
    assert found.pop("good").entry is not None
    assert len(found) == len(UNREADABLE) + len(odd)
    with every_row() as row:
        for name, one in found.items():
            with row(name):
                assert one.entry is None
                assert one.lost[0].startswith("It is not readable: ")


def test_state_that_is_no_bytes_is_not_readable(empty_sqlite_url: str) -> None:
    """SQLite allows any value in any column. `bytes(number)` could exhaust the memory."""
    engine = sa.create_engine(empty_sqlite_url)
    with (
        closing(Store(empty_sqlite_url, lambda: SQLAlchemyJobStore(empty_sqlite_url))) as store,
        engine.begin() as rows,
    ):
        for name, state in (("text", "'x'"), ("number", "9999999999999")):
            rows.exec_driver_sql(f"INSERT INTO apscheduler_jobs VALUES ('{name}', 1.5, {state})")
        rows.commit()
        found = store.entries()
    engine.dispose()
    assert {name: one.entry for name, one in found.items()} == {"text": None, "number": None}


def test_triggers_that_are_not_as_apscheduler_writes_them_are_not_readable(redis_url: str) -> None:
    """Each value of a trigger's pickle is replaced in turn."""
    port = int(redis_url.rpartition(":")[2].partition("/")[0])
    with closing(Store(redis_url, lambda: RedisJobStore(host="127.0.0.1", port=port))) as store:
        store.add("cron", "cron", day="2nd fri,1-9/2", year="2099", hour=3, timezone="UTC", start_date=AT)
        store.add("calendar", "calendarinterval", weeks=1, timezone="UTC", next_run_time=AT)
        for job in store.scheduler.get_jobs():
            data = pickle.dumps(job.__getstate__(), 2)
            codes = {"BININT1", "NONE"}
            values = [place for code, _, place in pickletools.genops(data) if code.name in codes and place is not None]
            for place in values:
                width = 2 if data[place : place + 1] == b"K" else 1
                for other in (b"N", b"]", b"K\xff"):
                    _put(redis_url, f"{job.id}-{place}-{other!r}", data[:place] + other + data[place + width :])
        found = store.entries()
    read = [one for one in found.values() if one.entry is not None]
    refused = [one.lost[0].partition(": ")[0] for one in found.values() if one.entry is None]
    assert len(refused) > len(read) > 0
    assert set(refused) == {"It is not readable", "It cannot become a schedule"}


def _put(address: str, job_id: str, data: bytes) -> None:
    """A row as somebody else may have written it, which is to run soon."""
    if address.startswith("redis"):
        with Redis.from_url(address) as redis:
            redis.hset("apscheduler.jobs", job_id, data)
            redis.zadd("apscheduler.run_times", {job_id: AT.timestamp()})
        return
    insert = "INSERT INTO apscheduler_jobs (id, next_run_time, job_state) VALUES (:id, :at, :state)"
    _execute(address, insert, id=job_id, at=AT.timestamp(), state=data)


def _execute(url: str, *statements: str, **values: Any) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement), values)
    engine.dispose()
