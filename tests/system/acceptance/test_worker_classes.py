"""RQ's own worker classes and serializers: a schedule fires and its run succeeds under each of them."""

from __future__ import annotations

import pytest

from rqsched import Every
from rqsched.api.schedule_handle import RunHandle
from tests.support.env import ONCE, SECOND
from tests.support.processes import is_gone, wait_until
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]


CLASSES = [
    pytest.param("rq.worker.Worker", id="fork", marks=pytest.mark.once),
    pytest.param("rq.worker.SimpleWorker", id="simple"),
]
PLAIN = ("worker", "-c", "rqsched.preload", "--with-scheduler")
# By their paths: RQ 2.6 knows no short names.
SERIALIZERS = {"pickle": "rq.serializers.DefaultSerializer", "json": "rq.serializers.JSONSerializer"}


@pytest.mark.parametrize("worker_class", CLASSES)
@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_schedule_fires_and_its_runs_succeed(
    make_live: MakeLive, sqlite_url: str, worker_class: str, serializer: str
) -> None:
    live = make_live(sqlite_url, serializer=serializer)
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    live.start_rq(*PLAIN, "--worker-class", worker_class, "--serializer", SERIALIZERS[serializer])

    live.wait_for_successes(schedule, more=2)
    schedule.pause()
    live.check()


def test_a_schedule_fires_under_a_spawning_worker(live: LiveEnv) -> None:
    """A new Python performs each job, and imports the application itself."""
    schedule = live.note_every("tick", Every(SECOND))

    live.start_rq(*PLAIN, "--worker-class", "rq.worker.SpawnWorker")

    live.wait_for_successes(schedule, more=1)


@pytest.mark.postgres
def test_no_connection_to_postgres_is_shared_with_a_work_horse(make_live: MakeLive, postgres_url: str) -> None:
    live = make_live(postgres_url)
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    live.start_rq(*PLAIN)

    live.wait_for_successes(schedule, more=4)
    schedule.pause()
    live.check()


def test_terminating_a_run_kills_its_horse_and_the_worker_goes_on(live: LiveEnv) -> None:
    live.start_rq(*PLAIN)
    run = live.hold_now(retry=ONCE)
    horse = live.executor_of(run)
    assert not is_gone(horse)

    run.terminate()

    wait_until(lambda: is_gone(horse), timeout=20, what=f"the end of {horse}")
    assert run.refresh().status == "terminated"
    after = live.note_every("after", Every(SECOND))
    live.wait_for_successes(after, more=1)


def test_a_run_that_takes_too_long_ends_with_a_timeout(live: LiveEnv) -> None:
    live.start_rq(*PLAIN)

    run: RunHandle = live.hold_now(timeout=1, retry=ONCE)

    live.wait_for_status(run, "failed")
    assert run.error is not None
    assert run.error.startswith("timeout: Task exceeded maximum timeout value (1 seconds)")
