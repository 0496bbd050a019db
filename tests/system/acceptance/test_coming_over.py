"""Two hundred jobs of another scheduler come over while it fires them, and a worker executes each once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import rq_scheduler  # type: ignore[import-untyped]
from apscheduler.jobstores.redis import RedisJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from celery import Celery, schedules
from redbeat import RedBeatSchedulerEntry

from rqsched.importers.rq_scheduler import SCHEDULED
from tests.importers.django_beat import open_project
from tests.support.invariants import check_invariants
from tests.support.processes import BIN, rqsched_command, wait_until
from tests.system.acceptance.came_over import leave
from tests.system.acceptance.live import LiveEnv

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*utc.*:DeprecationWarning"),
]
COUNT = 200
FUNCTION = f"{leave.__module__}.{leave.__name__}"
NAMES = {f"job {number}" for number in range(COUNT)}


def executed(live: LiveEnv) -> Counter[str]:
    log = live.folder / "left"
    return Counter(log.read_text().splitlines() if log.exists() else [])


def imports(live: LiveEnv, *words: str) -> str:
    process = live.start(rqsched_command("import", *words))
    assert process.popen.wait(120) == 0, process.log()
    return process.log()


@pytest.mark.parametrize(
    "database_kind", ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.nightly])]
)
def test_jobs_of_rq_scheduler_are_executed_once_each_while_they_are_handed_over(any_live: LiveEnv) -> None:
    live = any_live
    url, redis = live.environment["RQSCHED_REDIS_URL"], live.scheduler.runtime.transport.redis
    theirs = rq_scheduler.Scheduler("default", connection=redis)
    log = str(live.folder / "left")
    there = live.start([BIN / "rqscheduler", "--url", url, "--interval", "1", "--verbose"])
    live.start_worker("default")
    start = datetime.now(UTC) + timedelta(seconds=1)
    for number in range(COUNT):  # ten a second
        at = start + timedelta(seconds=number // 10)
        theirs.enqueue_at(at, FUNCTION, log, f"job {number}", job_id=f"job-{number}", timeout=60)
    imports(live, "rq-scheduler", url, "--trust-source")
    wait_until(lambda: len(executed(live)) > 10, what="what rqscheduler fires")

    imports(live, "rq-scheduler", url, "--trust-source", "--disable-source")
    assert redis.zcard(SCHEDULED) == 0
    wait_until(lambda: {*executed(live)} == NAMES, timeout=200, interval=0.2, what=f"{COUNT} jobs")

    ours = Counter(one.status for one in live.scheduler.iter())
    assert {*executed(live).values()} == {1}
    assert ours["done"] > 10
    assert there.popen.poll() is None, "rqscheduler runs on"
    check_invariants(live.scheduler.runtime)


def test_jobs_of_a_configuration_file_of_rq_cron_fire_here(live: LiveEnv, tmp_path: Path) -> None:
    config, log = tmp_path / "cron_config.py", str(live.folder / "left")
    registers: list[dict[str, Any]] = [
        {"queue_name": "default", "args": (log, f"job {number}"), "interval": 5 + number % 5} for number in range(COUNT)
    ]
    config.write_text(
        f"from rq import cron\nfrom {leave.__module__} import leave\n"
        f"for one in {registers!r}:\n    cron.register(leave, **one)\n"
    )
    words = ("rq-cron", str(config), "--trust-source")
    imports(live, *words, "--dry-run")
    imports(live, *words, "--source-is-stopped")
    assert Counter(one.status for one in live.scheduler.iter()) == {"active": COUNT}
    live.start(rqsched_command("worker", "default", "--concurrency", "2"))
    wait_until(lambda: {*executed(live)} == NAMES, timeout=200, interval=0.2, what=f"{COUNT} jobs")


def hand_over_all(live: LiveEnv, *words: str) -> None:
    """Two hundred jobs that are due every ten seconds are handed over, and each is executed here."""
    imports(live, *words, "--dry-run")
    assert list(live.scheduler.iter()) == []
    imports(live, *words, "--disable-source")
    assert Counter(one.status for one in live.scheduler.iter()) == {"active": COUNT}
    live.start(rqsched_command("worker", "default", "--concurrency", "2"))
    wait_until(lambda: {*executed(live)} == NAMES, timeout=200, interval=0.2, what=f"{COUNT} jobs")


def test_periodic_tasks_of_django_celery_beat_fire_here(live: LiveEnv, tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path / 'django.db'}", str(live.folder / "left")
    every = {"interval": {"every": 10, "period": "seconds"}}
    with open_project(url) as project:
        project.create(
            *({"name": f"job {n}", "task": FUNCTION, "args": f'["{log}", "job {n}"]', **every} for n in range(COUNT))
        )
        hand_over_all(live, "celery-beat", url)
        assert project.beat(1) == []


def test_entries_of_redbeat_fire_here(live: LiveEnv) -> None:
    url, log = live.environment["RQSCHED_REDIS_URL"], str(live.folder / "left")
    celery = Celery("shop", broker="memory://", set_as_current=False)
    celery.conf.redbeat_redis_url = url
    for number in range(COUNT):
        every = schedules.schedule(10, app=celery)
        RedBeatSchedulerEntry(f"job {number}", FUNCTION, every, args=[log, f"job {number}"], app=celery).save()
    hand_over_all(live, "celery-beat", url)
    entries = (RedBeatSchedulerEntry.from_key(f"redbeat:job {number}", app=celery) for number in range(COUNT))
    assert {entry.enabled for entry in entries} == {False}


@pytest.mark.parametrize("kind", ["sql", "redis"])
def test_jobs_of_apscheduler_fire_here(live: LiveEnv, tmp_path: Path, kind: str) -> None:
    url, log = live.environment["RQSCHED_REDIS_URL"], str(live.folder / "left")
    place = live.scheduler.runtime.transport.redis.get_connection_kwargs()
    store = RedisJobStore(host="127.0.0.1", port=place["port"], db=place["db"])
    if kind == "sql":
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
        store = SQLAlchemyJobStore(url)
    theirs = BackgroundScheduler(jobstores={"default": store}, timezone="UTC")
    theirs.start(paused=True)
    function = f"{leave.__module__}:{leave.__name__}"
    for number in range(COUNT):
        theirs.add_job(function, "interval", seconds=10, args=[log, f"job {number}"], id=f"job {number}")
    hand_over_all(live, "apscheduler", url, "--trust-source")
    assert store.get_next_run_time() is None
    theirs.shutdown(wait=False)
