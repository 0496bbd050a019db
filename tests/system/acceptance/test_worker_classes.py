"""RQ's own worker classes and serializers: a schedule fires and its run succeeds under each of them."""

from __future__ import annotations

from datetime import timedelta

import psutil
import pytest

from rqsched import Every, RetryPolicy
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from tests.support.processes import Process, is_gone, rq_worker_command, wait_until
from tests.system.acceptance.conftest import MakeSite
from tests.system.acceptance.site import Site

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]
SECOND = timedelta(seconds=1)


def start_rq_worker(site: Site, *options: str) -> Process:
    """A plain worker on the control queue and the default one, with RQ's scheduler."""
    command = rq_worker_command(site.environment["RQSCHED_REDIS_URL"], "rqsched", "default", options=options)
    return site.start(command)


def wait_for_success(schedule: ScheduleHandle, *, count: int = 1) -> None:
    def succeeded() -> bool:
        return len(schedule.runs(statuses=("succeeded",)).items) >= count

    wait_until(succeeded, timeout=60, interval=0.1, what=f"{count} succeeded runs of {schedule}")


CLASSES = {"fork": "rq.worker.Worker", "simple": "rq.worker.SimpleWorker"}


@pytest.mark.parametrize("worker_class", CLASSES.values(), ids=CLASSES.keys())
@pytest.mark.parametrize("serializer", ["pickle", "json"])
def test_a_schedule_fires_and_its_runs_succeed(
    make_site: MakeSite, sqlite_url: str, worker_class: str, serializer: str
) -> None:
    site = make_site(sqlite_url, serializer=serializer)
    schedule = site.note_every("tick", Every(SECOND), overlap="allow_all")

    start_rq_worker(site, "--worker-class", worker_class, "--serializer", serializer)

    wait_for_success(schedule, count=2)
    schedule.pause()
    site.check()


def test_a_schedule_fires_under_a_spawning_worker(site: Site) -> None:
    """Each job is performed by a Python started anew, which imports the application for itself."""
    schedule = site.note_every("tick", Every(SECOND))

    start_rq_worker(site, "--worker-class", "rq.worker.SpawnWorker")

    wait_for_success(schedule)


@pytest.mark.postgres
def test_no_connection_to_postgres_is_shared_with_a_work_horse(make_site: MakeSite, postgres_url: str) -> None:
    site = make_site(postgres_url)
    schedule = site.note_every("tick", Every(SECOND), overlap="allow_all")

    start_rq_worker(site)

    wait_for_success(schedule, count=4)
    schedule.pause()
    site.check()


def test_terminating_a_run_kills_its_horse_and_the_worker_goes_on(site: Site) -> None:
    start_rq_worker(site)
    run = site.hold_now(retry=RetryPolicy(max_retries=0))
    horse = psutil.Process(site.wait_for_execution(run).pid)
    assert not is_gone(horse)

    run.terminate()

    wait_until(lambda: is_gone(horse), timeout=20, what=f"the end of {horse}")
    assert run.refresh().status == "terminated"
    after = site.note_every("after", Every(SECOND))
    wait_for_success(after)


def test_a_run_that_takes_too_long_ends_with_a_timeout(site: Site) -> None:
    start_rq_worker(site)

    run: RunHandle = site.hold_now(timeout=1, retry=RetryPolicy(max_retries=0, then="continue"))

    site.wait_for_status(run, "failed", timeout=60)
    assert run.error is not None
    assert run.error.startswith("timeout: Task exceeded maximum timeout value (1 seconds)")
