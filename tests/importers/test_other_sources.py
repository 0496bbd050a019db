"""Celery beat and APScheduler are handed over: whatever ends an import, nothing fires at both; another one ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from apscheduler.jobstores.redis import RedisJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from celery import Celery
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry

from rqsched.features.declarations.schedule_file import declaration_of
from rqsched.importers.apscheduler import RedisJobs, SqlJobs
from rqsched.importers.celery_beat import DjangoCeleryBeat, RedBeat
from rqsched.importers.handing_over import Fires, HandingOver, Outcome
from rqsched.importers.source import Reading, Source, SourceEntry
from tests.importers.django_beat import open_project
from tests.support.env import HOUR, MINUTE, NOON, Env, all_runs, occurrences
from tests.support.invariants import check_invariants

NAMES = ["a", "b", "c"]
FUNCTION = f"{__name__}.report"
FAR = datetime(2099, 1, 1, tzinfo=UTC)


def report(*args: Any) -> list[Any]:
    return [*args]


class There:
    """Another scheduler with hourly jobs `a`, `b` and `c`, whose next time is half an hour from noon."""

    def __init__(
        self, open_source: Callable[[], Source], fires: Callable[[], set[str]], disable: Callable[[str], object]
    ) -> None:
        self.open_source = open_source
        self.fires = fires
        """Return the jobs that it would fire, according to itself."""
        self.disable = disable
        """Disable a job there."""


@contextmanager
def django(env: Env, request: pytest.FixtureRequest) -> Iterator[There]:
    url: str = request.getfixturevalue("empty_sqlite_url")
    with open_project(url) as project:
        hourly = {"interval": {"every": 1, "period": "hours"}, "last_run_at": (NOON - HOUR / 2).isoformat()}
        project.create(*({"name": name, "task": FUNCTION, "args": f'["{name}"]', **hourly} for name in NAMES))
        yield There(
            lambda: DjangoCeleryBeat(url, Reading(), env.clock),
            lambda: {name for name, row in project.rows().items() if row["enabled"]},
            lambda name: project.save(name, enabled=False),
        )


@contextmanager
def redbeat(env: Env, request: pytest.FixtureRequest) -> Iterator[There]:
    celery = Celery("shop", broker="memory://", set_as_current=False)
    celery.conf.redbeat_redis_url = request.getfixturevalue("redis_url")
    for name in NAMES:
        hourly = schedule(3600, app=celery)
        entry = RedBeatSchedulerEntry(name, FUNCTION, hourly, args=[name], app=celery).save()
        entry.reschedule(NOON - HOUR / 2)

    def fires() -> set[str]:
        found = (RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=celery) for name in NAMES)
        return {entry.name for entry in found if entry.enabled}

    def disable(name: str) -> None:
        entry = RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=celery)
        entry.enabled = False
        entry.save()

    yield There(lambda: RedBeat(env.redis, Reading(), env.clock), fires, disable)


@contextmanager
def apscheduler(store: Any, open_source: Callable[[], Source]) -> Iterator[There]:
    scheduler = BackgroundScheduler(jobstores={"default": store}, timezone="UTC")
    scheduler.start(paused=True)
    for name in NAMES:
        first = NOON + HOUR / 2
        scheduler.add_job(f"{__name__}:report", "interval", hours=1, args=[name], id=name, next_run_time=first)
    yield There(open_source, lambda: {job.id for job in store.get_due_jobs(FAR)}, scheduler.pause_job)
    scheduler.remove_all_jobs()
    scheduler.shutdown(wait=False)


@contextmanager
def apscheduler_in_sql(env: Env, request: pytest.FixtureRequest) -> Iterator[There]:
    url: str = request.getfixturevalue("empty_sqlite_url")
    with apscheduler(SQLAlchemyJobStore(url), lambda: SqlJobs(url, Reading(is_trusted=True), env.clock)) as there:
        yield there


@contextmanager
def apscheduler_in_redis(env: Env, request: pytest.FixtureRequest) -> Iterator[There]:
    url: str = request.getfixturevalue("redis_url")
    store = RedisJobStore(host="127.0.0.1", port=int(url.rpartition(":")[2].partition("/")[0]))
    with apscheduler(store, lambda: RedisJobs(env.redis, Reading(is_trusted=True), env.clock)) as there:
        yield there


@pytest.fixture(params=[django, redbeat, apscheduler_in_sql, apscheduler_in_redis], ids=lambda kind: kind.__name__)
def there(request: pytest.FixtureRequest, env: Env) -> Iterator[There]:
    """Each other scheduler in turn."""
    with request.param(env, request) as there:
        yield there


class DiedError(Exception):
    """The import ended here."""


class Dying:
    """A source whose import ends at one of its calls: `at` counts them, and `part` of what is disabled is."""

    def __init__(self, source: Source, at: int, part: int = 0) -> None:
        self._source, self._left, self._part = source, at, part
        self.kind, self.cannot_disable = source.kind, source.cannot_disable

    @property
    def notes(self) -> Sequence[str]:
        return self._source.notes

    def entries(self) -> list[SourceEntry]:
        self._step()
        return self._source.entries()

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        if self._left == 0 and self._part:
            self._source.disable(entries[: self._part])
        self._step()
        return self._source.disable(entries)

    def close(self) -> None:
        self._source.close()

    def _step(self) -> None:
        if self._left == 0:
            raise DiedError
        self._left -= 1


def moving(env: Env, source: Source) -> HandingOver:
    return HandingOver(env.scheduler, source, declaration_of)


def active(env: Env) -> set[str]:
    return {one.schedule_id.rpartition(":")[2] for one in env.scheduler.iter(status="active")}


def test_handed_over_they_fire_here_when_they_would_there(env: Env, there: There) -> None:
    source = there.open_source()
    assert there.fires() == {*NAMES}
    found, _ = moving(env, source).hand_over()
    assert {(one.outcome, one.fires) for one in found} == {(Outcome.CREATED, Fires.HERE)}
    assert there.fires() == set()
    env.run_due(HOUR / 2)
    env.run_due(HOUR)
    at = NOON + HOUR / 2
    for one in env.scheduler.iter():
        name = one.schedule_id.rpartition(":")[2]
        assert (occurrences(one), [run.result for run in all_runs(one)]) == ([at, at + HOUR], [[name], [name]])
    again, _ = moving(env, source).hand_over()
    assert {(one.outcome, one.fires) for one in again} == {(Outcome.UNCHANGED, Fires.HERE)}
    source.close()
    check_invariants(env.runtime)


@pytest.mark.parametrize(("at", "part"), [(0, 0), (1, 0), (1, 1), (2, 0)])
def test_import_that_ends_between_its_steps_is_completed_by_another_one(
    env: Env, there: There, at: int, part: int
) -> None:
    """The import reads, disables and reads again. It is ended at each of these three steps."""
    source = there.open_source()
    with suppress(DiedError):
        moving(env, Dying(source, at, part)).hand_over()
    assert active(env) == set()
    assert len(there.fires()) == (0 if at == 2 else 3 - part)
    found, _ = moving(env, source).hand_over()
    assert {one.fires for one in found} == {Fires.HERE}
    assert (there.fires(), active(env)) == (set(), {*NAMES})
    assert {one.next_run_at for one in env.scheduler.iter()} == {NOON + HOUR / 2}
    source.close()
    check_invariants(env.runtime)


def test_what_somebody_disables_there_while_ours_waits_is_not_fired_here(env: Env, there: There) -> None:
    source = there.open_source()
    moving(env, source).write()
    there.disable("b")
    again = moving(env, source)
    for _ in range(2):
        found, _ = again.hand_over()
        assert {one.source.source_id: one.fires for one in found} == {
            "a": Fires.HERE,
            "b": Fires.NOWHERE,
            "c": Fires.HERE,
        }
        assert [(again.is_waiting(one), again.is_moving(one)) for one in found] == [
            (False, False),
            (True, False),
            (False, False),
        ]
    again.resume()
    assert active(env) == {*NAMES}, "who stopped the source by hand has disabled them all"
    source.close()


def test_what_is_owed_is_fired_once(env: Env, there: There) -> None:
    """APScheduler does not run jobs that are more than a second late, so its jobs do not fire."""
    source = there.open_source()
    env.advance(HOUR)
    moving(env, source).hand_over()
    moving(env, source).hand_over()
    owed = 0 if source.kind == "apscheduler" else 1
    assert [len(all_runs(one)) for one in env.scheduler.iter()] == [owed] * 3
    assert {one.next_run_at for one in env.scheduler.iter()} == {NOON + 3 * HOUR / 2}
    source.close()


def test_what_beat_may_have_run_a_moment_ago_is_not_fired_again(env: Env, there: There) -> None:
    source = there.open_source()
    env.advance(HOUR / 2 + MINUTE)
    moving(env, source).hand_over()
    assert [len(all_runs(one)) for one in env.scheduler.iter()] == [0] * 3
    assert {one.next_run_at for one in env.scheduler.iter()} == {NOON + 3 * HOUR / 2}
    source.close()
