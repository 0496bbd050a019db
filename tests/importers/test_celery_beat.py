"""The source `celery-beat`, written by django-celery-beat, RedBeat and Celery themselves."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from celery import Celery
from celery.schedules import crontab
from celery.signals import after_task_publish
from redbeat import RedBeatSchedulerEntry
from redbeat.schedulers import RedBeatScheduler
from redbeat.schedules import rrule
from redis import Redis

from rqsched.errors import ConfigError, DatabaseUnavailableError, InvalidInputError
from rqsched.features.declarations.schedule_file import declaration_of
from rqsched.importers import foreign_tables
from rqsched.importers.celery_beat import CeleryApplication, DjangoCeleryBeat, RedBeat, open_source
from rqsched.importers.handing_over import HandingOver, Outcome
from rqsched.importers.source import Reading, SourceEntry
from rqsched.testing import ManualClock
from tests.importers.django_beat import DjangoBeat, open_project
from tests.support.env import NOON, Env
from tests.support.rows import every_row

HOURLY = {"every": 1, "period": "hours"}


@pytest.fixture
def foreign_url(request: pytest.FixtureRequest, database_kind: str) -> str:
    """An empty database of each kind."""
    url: str = request.getfixturevalue(f"empty_{database_kind}_url")
    return url


@pytest.fixture
def project(foreign_url: str) -> Iterator[DjangoBeat]:
    with open_project(foreign_url) as project:
        yield project


def by_name(source: DjangoCeleryBeat | RedBeat | CeleryApplication) -> dict[str, SourceEntry]:
    return {entry.source_id: entry for entry in source.entries()}


@pytest.mark.every_database
def test_tables_are_read_as_django_wrote_them(project: DjangoBeat, foreign_url: str) -> None:
    last = "2026-01-15T11:40:00.250000+00:00"
    project.create(
        {"name": "hourly", "task": "shop.tasks.sync", "interval": HOURLY, "last_run_at": last, "args": '["eu", 2]'},
        {
            "name": "Each morning",
            "task": "shop.tasks.report",
            "crontab": {"minute": "30", "hour": "7", "day_of_week": "mon-fri", "timezone": "Europe/Berlin"},
            "kwargs": '{"to": "all"}',
            "queue": "high",
            "expire_seconds": 60,
            "description": "the report",
        },
        {
            "name": "once",
            "task": "shop.tasks.go",
            "clocked": {"clocked_time": "2026-02-01T00:00:00+01:00"},
            "one_off": True,
        },
        {
            "name": "window",
            "task": "shop.tasks.go",
            "crontab": {"minute": "0", "timezone": "UTC"},
            "start_time": "2026-01-16T00:00:00+00:00",
            "expires": "2026-01-17T00:00:00+00:00",
            "enabled": False,
        },
        {"name": "sun", "task": "shop.tasks.go", "solar": {"event": "sunset", "latitude": "1.5", "longitude": "2"}},
        {"name": "nothing", "task": "shop.tasks.go", "interval": HOURLY, "args": '[{"__type__": "date"}]'},
        {"name": "broken", "task": "shop.tasks.go", "interval": HOURLY, "kwargs": "{not json"},
    )
    source = DjangoCeleryBeat(foreign_url, Reading(), ManualClock(NOON))
    found = by_name(source)
    source.close()

    as_before = {"overlap": "allow_all", "retry": {"max_retries": 0}}
    assert found["hourly"] == SourceEntry(
        "hourly",
        {
            "schedule_id": "celery-beat:hourly",
            "workflow": "shop.tasks.sync",
            **as_before,
            "spec": {
                "intervals": [{"every": "PT1H", "anchor": "2026-01-15T12:40:00.250000Z"}],
                "start_at": "2026-01-15T12:40:00.250000Z",
            },
            "args": ["eu", 2],
        },
        next_at=datetime(2026, 1, 15, 12, 40, 0, 250_000, UTC),
    )
    morning = found["Each morning"]
    assert {**(morning.entry or {}), "schedule_id": ""} == {
        "schedule_id": "",
        "workflow": "shop.tasks.report",
        **as_before,
        "cron": "30 7 * * mon-fri",
        "timezone": "Europe/Berlin",
        "dst_gap": "shift",
        "kwargs": {"to": "all"},
        "description": "the report",
        "queue": "high",
    }
    assert morning.lost == ("Its expires (60 s) is left out: a run that waits in its queue does not expire.",)
    assert (found["once"].entry or {})["once"] == "2026-01-31T23:00:00Z"
    window = found["window"]
    assert not window.enabled
    assert [(window.entry or {})[name] for name in ("cron", "start_at", "end_at")] == [
        "0 * * * *",
        "2026-01-16T00:00:00Z",
        "2026-01-17T00:00:00Z",
    ]
    refused = {name: found[name].lost[0] for name in ("sun", "nothing", "broken") if found[name].entry is None}
    assert refused == {
        "sun": "It cannot become a schedule: it follows the sun (sunset), which no schedule can do.",
        "nothing": "It cannot become a schedule: an argument is a date; pass text instead (docs/concepts.md).",
        "broken": "It cannot become a schedule: its arguments are not a list and an object.",
    }


@pytest.mark.every_database
def test_running_beat_sends_no_more_what_was_disabled(project: DjangoBeat, foreign_url: str) -> None:
    second = {"every": 1, "period": "seconds"}
    project.create(
        {"name": "ours", "task": "shop.tasks.go", "interval": second},
        {"name": "theirs", "task": "shop.tasks.go", "interval": second},
    )
    assert set(project.beat(30, until=3)) == {"ours", "theirs"}

    source = open_source(foreign_url, Reading())
    entries = [entry for entry in source.entries() if entry.source_id == "ours"]
    assert source.disable(entries).startswith("Disabled 1 periodic tasks")
    assert source.disable(entries).startswith("Disabled 0 periodic tasks"), "repeatable"
    after = project.beat(30, until=3)
    assert set(after) == {"theirs"}
    assert {name: row["enabled"] for name, row in project.rows().items()} == {"ours": False, "theirs": True}
    assert {entry.source_id: entry.enabled for entry in source.entries()} == {"ours": False, "theirs": True}
    source.close()

    project.save("ours", enabled=True)
    assert "ours" in project.beat(30, until=4), "the way back"


def test_disabled_tasks_continue_where_they_were(project: DjangoBeat, foreign_url: str) -> None:
    project.create(
        {"name": "a", "task": "shop.tasks.go", "interval": HOURLY, "last_run_at": "2026-01-15T11:40:00+00:00"}
    )
    source = DjangoCeleryBeat(foreign_url, Reading(), ManualClock(NOON))
    before = source.entries()
    source.disable(before)
    (after,) = source.entries()
    assert (after.entry, after.next_at, after.enabled) == (before[0].entry, before[0].next_at, False)


def test_beat_is_told_even_when_the_clocks_disagree(project: DjangoBeat, foreign_url: str) -> None:
    project.create({"name": "a", "task": "shop.tasks.go", "interval": {"every": 1, "period": "seconds"}})
    assert project.beat(30, until=1) == ["a"]
    source = DjangoCeleryBeat(foreign_url, Reading(), ManualClock(datetime(2001, 1, 1, tzinfo=UTC)))
    source.disable([SourceEntry("a", {})])
    source.close()
    assert project.beat(2.5) == []


def test_tables_that_are_not_there_are_said(empty_sqlite_url: str, sqlite_url: str, tmp_path: Path) -> None:
    with every_row() as row:
        for url, reason in {
            empty_sqlite_url: "which is not a file",
            sqlite_url: "has no table django_celery_beat_periodictask",
            "mysql+nothing://x/y": "is not the URL of a database",
            "://": "is not the URL of a database",
            "postgresql://u:p@x:y/z": "its port is not a number",
        }.items():
            with row(url), pytest.raises(InvalidInputError, match=reason):
                open_source(url, Reading())
    assert not (tmp_path / "empty.db").exists()
    with pytest.raises(DatabaseUnavailableError, match="SOURCE does not answer"):
        open_source("postgresql://127.0.0.1:1/nothing", Reading())


def test_times_that_a_project_without_zones_keeps_are_read_as_beat_reads_them(empty_sqlite_url: str) -> None:
    """Beat reads Django's naive times as UTC, whatever the project's TIME_ZONE is. The admin shows them so."""
    berlin = ZoneInfo("Europe/Berlin")
    with open_project(empty_sqlite_url, USE_TZ=False, DJANGO_CELERY_BEAT_TZ_AWARE=False) as project:
        now = datetime.now(UTC)
        clocks = {"in UTC": now, "in Berlin": now.astimezone(berlin)}
        project.create(
            *(
                {
                    "name": name,
                    "task": "shop.tasks.go",
                    "clocked": {"clocked_time": (at + timedelta(seconds=2)).replace(tzinfo=None).isoformat()},
                    "one_off": True,
                }
                for name, at in clocks.items()
            )
        )
        source = DjangoCeleryBeat(empty_sqlite_url, Reading(), ManualClock(now - timedelta(days=1)))
        read = {name: one.next_at for name, one in by_name(source).items()}
        source.close()
        assert project.beat(15, until=1) == ["in UTC"]
        assert project.beat(1) == []
    assert read["in UTC"] == now + timedelta(seconds=2)
    assert read["in Berlin"] == now + timedelta(seconds=2) + (now.astimezone(berlin).utcoffset() or timedelta())


@pytest.mark.every_database
def test_source_whose_rows_somebody_else_has_locked_is_an_outage(
    project: DjangoBeat, foreign_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.create({"name": "a", "task": "shop.tasks.go", "interval": HOURLY})
    monkeypatch.setitem(foreign_tables._TIMEOUTS, "pysqlite", {"timeout": 0.2})
    source = open_source(foreign_url, Reading())
    engine = sa.create_engine(foreign_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as somebody:
        somebody.exec_driver_sql("UPDATE django_celery_beat_periodictask SET queue = 'x'")
        with pytest.raises(DatabaseUnavailableError, match="SOURCE is locked by another session"):
            source.disable([SourceEntry("a", {})])
    engine.dispose()
    assert source.disable([SourceEntry("a", {})]).startswith("Disabled 1 ")
    source.close()


def test_source_whose_server_never_answers_is_an_outage_after_seconds() -> None:
    """The server accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://u:hunter2@127.0.0.1:{silent.getsockname()[1]}/shop"
        with pytest.raises(DatabaseUnavailableError, match="SOURCE does not answer") as caught:
            open_source(url, Reading())
    assert "hunter2" not in str(caught.value)


def test_option_of_a_url_that_no_connection_takes_is_said() -> None:
    with pytest.raises(ConfigError, match=r"SOURCE cannot be used: .*sslmod"):
        open_source("postgresql://u:hunter2@127.0.0.1:1/shop?sslmod=require", Reading())


@pytest.fixture
def celery(redis_url: str) -> Celery:
    """A Celery application of its own zone, with RedBeat."""
    celery = Celery("shop", broker="memory://", set_as_current=False)
    celery.conf.redbeat_redis_url = redis_url
    celery.conf.timezone = "America/New_York"
    celery.conf.redbeat_lock_key = None
    celery.conf.result_expires = None
    return celery


def put(celery: Celery, name: str, schedule: Any, **others: Any) -> RedBeatSchedulerEntry:
    """An entry as an application saves it; its task has its name."""
    schedule.app = celery
    return RedBeatSchedulerEntry(name, f"shop.tasks.{name}", schedule, app=celery, **others).save()


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """The names of the tasks that beat has sent."""
    sent: list[str] = []

    def on_sent(sender: str, **others: object) -> None:
        del others
        sent.append(sender.removeprefix("shop.tasks."))

    after_task_publish.connect(on_sent)
    yield sent
    after_task_publish.disconnect(on_sent)


def every(celery: Celery, span: timedelta, *, relative: bool = False) -> Any:
    from celery.schedules import schedule  # noqa: PLC0415 - the name is that of an argument

    return schedule(span, relative=relative, app=celery)


def test_entries_of_redbeat_are_read_as_redbeat_wrote_them(celery: Celery, redis: Redis) -> None:
    hourly = put(celery, "hourly", every(celery, timedelta(hours=1)), args=["eu"], options={"queue": "high"})
    hourly.reschedule(datetime(2026, 1, 15, 6, 40, tzinfo=ZoneInfo("America/New_York")))
    put(celery, "morning", crontab(minute="30", hour=[7, 8], app=celery), kwargs={"a": 1}, options={"priority": 2})
    put(celery, "off", every(celery, timedelta(minutes=5)), enabled=False)
    redis.hdel("redbeat:off", "meta")
    put(celery, "dated", every(celery, timedelta(minutes=5)), args=[datetime(2026, 1, 1, tzinfo=UTC)])
    put(celery, "rule", rrule("DAILY", dtstart=datetime(2026, 1, 1, tzinfo=UTC), app=celery))
    redis.hset("redbeat:odd", "definition", "[]")
    redis.zadd("redbeat::schedule", {"redbeat:odd": 1, "redbeat:gone": 2})

    source = RedBeat(redis, Reading(), ManualClock(NOON))
    found = by_name(source)
    assert source.notes == ()
    assert [*found] == ["dated", "hourly", "morning", "odd", "off", "rule"]
    assert (found["hourly"].entry or {})["spec"] == {
        "intervals": [{"every": "PT1H", "anchor": "2026-01-15T12:40:00Z"}],
        "start_at": "2026-01-15T12:40:00Z",
    }
    assert found["hourly"].next_at == datetime(2026, 1, 15, 12, 40, tzinfo=UTC)
    assert [(found["hourly"].entry or {})[name] for name in ("args", "queue")] == [["eu"], "high"]
    morning = found["morning"].entry or {}
    assert (morning["cron"], morning["timezone"]) == ("30 7-8 * * *", "America/New_York"), "the zone of the last run"
    assert (found["off"].enabled, (found["off"].entry or {})["interval"]) == (False, "PT5M")
    refused = {name: one.lost[0] for name, one in found.items() if one.entry is None}
    assert refused == {
        "dated": "It cannot become a schedule: an argument is a datetime; pass text instead (docs/concepts.md).",
        "odd": "It is not readable: RedBeat writes entries in another form.",
        "rule": "It cannot become a schedule: its schedule is a rrule: use a cron or an interval instead.",
    }


def test_hostile_entries_of_redbeat_are_not_imported_and_hide_no_other(celery: Celery, redis: Redis) -> None:
    interval = {"__type__": "interval", "every": 60.0, "relative": False}
    good = {"name": "x", "task": "shop.tasks.go", "schedule": interval, "args": [], "kwargs": {}, "options": {}}
    deep = "[" * 100_000 + "]" * 100_000
    table: dict[str, Any] = {
        "not JSON": "{",
        "too deep": deep,
        "a list": "[]",
        "no task": {**good, "task": None},
        "no schedule": {**good, "schedule": None},
        "not a number": {**good, "schedule": {**interval, "every": float("nan")}},
        "negative": {**good, "schedule": {**interval, "every": -60}},
        "too long": {**good, "schedule": {**interval, "every": 1e300}},
        "no length": {**good, "schedule": {"__type__": "interval"}},
        "of no crontab": {**good, "schedule": {"__type__": "crontab", "minute": {"a": 1}}},
        "a number of very many digits": {**good, "schedule": {"__type__": "crontab", "minute": "9" * 5_000}},
        "a step of very many": {**good, "schedule": {"__type__": "crontab", "minute": "*/" + "9" * 5_000}},
        "a class": {**good, "schedule": {"__type__": "os.system", "command": "touch /tmp/owned"}},
        "args of text": {**good, "args": "abc"},
        "kwargs of a list": {**good, "kwargs": [1]},
        "deep args": {**good, "args": json.loads("[" * 80 + "]" * 80)},
    }
    for name, definition in table.items():
        text = definition if isinstance(definition, str) else json.dumps(definition)
        redis.hset(f"redbeat:{name}", "definition", text)
        redis.zadd("redbeat::schedule", {f"redbeat:{name}": 1})
    redis.set("redbeat:text", "x")
    redis.zadd("redbeat::schedule", {"redbeat:text": 1})
    long_zone = {"__type__": "datetime", "year": 2026, "month": 1, "day": 1, "timezone": "x" * 5_000}
    odd_meta: tuple[Any, ...] = (
        None,
        [],
        {"last_run_at": {"__type__": "datetime", "year": 10**9}},
        {"last_run_at": 7},
        {"last_run_at": long_zone},
    )
    for number, meta in enumerate(odd_meta):
        redis.hset(f"redbeat:odd-{number}", mapping={"definition": json.dumps(good), "meta": json.dumps(meta)})
        redis.zadd("redbeat::schedule", {f"redbeat:odd-{number}": 1})
    put(celery, "good", every(celery, timedelta(hours=1)))
    found = by_name(RedBeat(redis, Reading(), ManualClock(NOON)))
    assert {name for name, one in found.items() if one.entry is not None} == {"good"} | {f"odd-{n}" for n in range(5)}
    assert {name for name, one in found.items() if one.entry is None} == {*table, "text"}
    assert all(one.lost for one in found.values() if one.entry is None)
    assert not Path("/tmp/owned").exists()


def test_zone_of_crontabs_is_asked_for_where_redbeat_kept_none(celery: Celery, redis: Redis) -> None:
    put(celery, "a", crontab(hour="7", app=celery))
    redis.hdel("redbeat:a", "meta")
    source = RedBeat(redis, Reading(), ManualClock(NOON))
    assert (source.entries()[0].entry or {})["timezone"] == "UTC"
    assert "--timezone" in source.notes[0]
    told = RedBeat(redis, Reading(timezone="Asia/Kolkata"), ManualClock(NOON))
    assert (told.entries()[0].entry or {})["timezone"] == "Asia/Kolkata"
    assert told.notes == ()


def test_running_redbeat_sends_no_more_what_was_disabled(celery: Celery, redis: Redis, sent: list[str]) -> None:
    for name in ("ours", "theirs"):
        put(celery, name, every(celery, timedelta(hours=1))).reschedule(datetime.now(UTC) - timedelta(hours=2))
    beat = RedBeatScheduler(celery)
    source = RedBeat(redis, Reading())
    entries = [entry for entry in source.entries() if entry.source_id == "ours"]
    assert source.disable(entries) == (
        "Disabled 1 entries of RedBeat; the hash rqsched:disabled:celery-beat:redbeat: has their previous definitions."
    )
    assert source.disable(entries).startswith("Disabled 0")
    beat.tick()
    assert sent == ["theirs"]
    found = by_name(source)
    assert [(name, one.enabled, one.is_taken) for name, one in found.items()] == [
        ("ours", False, True),
        ("theirs", True, False),
    ]

    kept = redis.hgetall("rqsched:disabled:celery-beat:redbeat:")
    assert [json.loads(definition)["enabled"] for definition in kept.values()] == [True]
    back = RedBeatSchedulerEntry.from_key("redbeat:ours", app=celery)
    assert back.enabled is False
    back.enabled = True
    back.save()
    beat.tick()
    assert sent == ["theirs", "ours"], "the way back"
    assert not by_name(source)["ours"].is_taken


def test_entry_that_the_application_declares_is_said_to_come_back(celery: Celery, redis: Redis) -> None:
    celery.conf.beat_schedule = {"declared": {"task": "shop.tasks.go", "schedule": 3600.0}}
    RedBeatScheduler(celery).setup_schedule()
    (entry,) = RedBeat(redis, Reading()).entries()
    assert entry.lost == (
        "It is declared in beat_schedule, so a restart of beat enables it again: remove it from there.",
    )


def test_prefix_of_redbeat_stands_behind_the_url(celery: Celery, redis_url: str) -> None:
    celery.conf.redbeat_key_prefix = "shop:"
    put(celery, "a", every(celery, timedelta(hours=1)))
    for address, names in ((redis_url, []), (f"{redis_url}#shop:", ["a"])):
        source = open_source(address, Reading())
        assert [entry.source_id for entry in source.entries()] == names
        source.close()


APPLICATION = """
from datetime import timedelta
from celery import Celery
from celery.schedules import crontab, schedule

app = Celery("declared", set_as_current=False)
app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "a": {"task": "shop.tasks.go", "schedule": 30.0, "args": (1,)},
    "b": {"task": "shop.tasks.go", "schedule": timedelta(hours=1), "kwargs": {"x": 1}, "options": {"queue": "high"}},
    "c": {"task": "shop.tasks.go", "schedule": crontab(minute=0, hour="*/6", day_of_week="mon-fri")},
    "d": {"task": "shop.tasks.go", "schedule": schedule(60, relative=True)},
    "e": {"task": "shop.tasks.go", "schedule": object()},
    "f": {"schedule": 30.0},
    "g": None,
}
"""


def test_application_is_read_where_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "declared_beat.py").write_text(APPLICATION)
    with pytest.raises(InvalidInputError, match="--trust-source: is missing"):
        open_source("declared_beat:app", Reading())
    assert "declared_beat" not in sys.modules
    source = open_source("declared_beat:app", Reading(is_trusted=True))
    found = by_name(source)
    when = {
        name: one.entry and [one.entry.get(key) for key in ("interval", "offset", "cron", "timezone")]
        for name, one in found.items()
    }
    assert when == {
        "a": ["PT30S", None, None, None],
        "b": ["PT1H", None, None, None],
        "c": [None, None, "0 */6 * * mon-fri", "Europe/Berlin"],
        "d": ["PT1M", "0s", None, None],
        "e": None,
        "f": None,
        "g": None,
    }
    assert [found[name].lost[0].partition(":")[0] for name in "fg"] == ["It is not readable"] * 2
    assert "--source-is-stopped" in (source.cannot_disable or "")
    with pytest.raises(InvalidInputError, match="run this with --source-is-stopped, and remove beat_schedule from it"):
        source.disable([])
    source.close()


def test_application_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_beat.py").write_text("app = 7\nraise RuntimeError('no settings')\n")
    (tmp_path / "other_beat.py").write_text("app = 7\n")
    with every_row() as row:
        for address, reason in {
            "shop": "is neither the URL",
            "broken_beat:app": "no settings",
            "other_beat:app": "is a int, not a Celery application",
            "other_beat:nothing": "cannot import",
        }.items():
            with row(address), pytest.raises(InvalidInputError, match=reason):
                open_source(address, Reading(is_trusted=True))


TASKS = """
from celery import Celery, Task
from celery.schedules import crontab

app = Celery("undotted", set_as_current=True)
app.conf.imports = ["undotted_more"]

@app.task(name="charge")
def bill(x): return x + 1

@app.task(name="mail", bind=True)
def post(self, x): return [self.name, x]

def plain(x): return x * 2
app.task(plain, name="double")

class Sweep(Task):
    name = "sweep"
    def run(self): ...
app.register_task(Sweep())

def made():
    def inner(): ...
    return inner
app.task(made(), name="anonymous")

class Odd(crontab):
    def is_due(self, last_run_at): return super().is_due(last_run_at)

app.conf.beat_schedule = {
    name: {"task": name, "schedule": 3600.0}
    for name in ("charge", "mail", "double", "shared", "sweep", "anonymous", "unknown")
}
app.conf.beat_schedule["odd"] = {"task": "charge", "schedule": Odd(minute=0)}
"""
MORE = """
from celery import shared_task

@shared_task(name="shared")
def give(): return "given"
"""


def test_application_says_which_function_has_the_name_of_a_task(env: Env, tmp_path: Path) -> None:
    (tmp_path / "undotted.py").write_text(TASKS)
    (tmp_path / "undotted_more.py").write_text(MORE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        env.register("anonymous", print)
        source = open_source("undotted:app", Reading(is_trusted=True))
        found = {one.source.source_id: one for one in HandingOver(env.scheduler, source, declaration_of).write()}
        workflows = {name: one.schedule.definition.workflow for name, one in found.items() if one.schedule is not None}
        assert workflows == {
            "charge": "undotted.bill",
            "mail": "undotted.post",
            "double": "undotted.plain",
            "shared": "undotted_more.give",
            "anonymous": "anonymous",
        }
        assert found["mail"].lost[0].startswith("Its task is bound")
        assert {name: one.outcome for name, one in found.items() if one.schedule is None} == dict.fromkeys(
            ("sweep", "unknown", "odd"), Outcome.NOT_IMPORTED
        )
        assert "code of the application computes when it is due" in found["odd"].lost[0]
        handle = env.create("bound", workflow="undotted.post", args=["x"])
        assert env.run_next(handle).result == ["mail", "x"]
