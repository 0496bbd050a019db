"""The options of `rqsched worker`, in RQ's words: each works in both models, and wrong ones are refused."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from rq import Queue, Worker
from rq.job import JobStatus

from rqsched import Every
from tests.support.env import SECOND
from tests.support.processes import SOON, Process, wait_until
from tests.system.acceptance.chores import FAIL
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]
MODELS = {"a fork per run": (), "runners": ("--concurrency", "2"), "isolated": ("--concurrency", "2", "--isolate")}
each_model = pytest.mark.parametrize("words", MODELS.values(), ids=MODELS.keys())


@each_model
def test_a_burst_makes_one_pass_executes_what_is_queued_and_ends(live: LiveEnv, words: Sequence[str]) -> None:
    schedules = [live.note_every(f"s{number}", Every(SECOND), overlap="allow_all") for number in range(3)]
    due_at = max(schedule.next_run_at for schedule in schedules if schedule.next_run_at is not None)
    wait_until(lambda: live.scheduler.runtime.now() > due_at, timeout=SOON, what="the first due times")

    worker = live.start_worker("--burst", *words)

    assert worker.wait() == 0, worker.log()
    assert all(schedule.refresh().run_count >= 1 for schedule in schedules)
    assert len(live.executions()) == sum(schedule.run_count for schedule in schedules)
    assert all(schedule.state.success_count == schedule.run_count for schedule in schedules)
    live.check()


@each_model
def test_a_worker_that_is_idle_for_so_long_ends(live: LiveEnv, words: Sequence[str]) -> None:
    run = live.run_now("now")

    worker = live.start_worker("--max-idle-time", "2", *words)

    assert worker.wait() == 0, worker.log()
    assert run.refresh().status == "succeeded"


@each_model
def test_a_burst_ends_after_so_many_jobs_of_each_process(live: LiveEnv, words: Sequence[str]) -> None:
    runs = [live.run_now(f"s{number}") for number in range(5)]

    worker = live.start_worker("--burst", "--max-jobs", "1", *words)

    assert worker.wait() == 0, worker.log()
    statuses = [run.refresh().status for run in runs]
    assert 1 <= statuses.count("succeeded") <= 2
    assert statuses.count("pending") == 5 - statuses.count("succeeded")


def test_a_process_that_forks_is_renewed_after_so_many_jobs_and_keeps_its_name(live: LiveEnv) -> None:
    schedule = live.note_every("tick", Every(SECOND), overlap="allow_all")

    worker = live.start_worker("--max-jobs", "1", "--name", "here")

    live.wait_for_successes(schedule, more=3)
    assert "runs is renewed" in worker.log()
    wait_until(lambda: [one.name for one in Worker.all(live.redis)] == ["here"], timeout=SOON, what="its name")
    assert worker.terminate(timeout=SOON) == 0


@each_model
def test_the_names_that_rq_shows_are_those_that_were_given(live: LiveEnv, words: Sequence[str]) -> None:
    live.start_worker("--name", "blue", *words)
    names = {"blue-1", "blue-2"} if words else {"blue"}

    wait_until(lambda: {worker.name for worker in Worker.all(live.redis)} == names, timeout=SOON, what=f"{names}")


def test_a_name_is_free_again_at_once_when_its_worker_was_killed_on_this_host(live: LiveEnv) -> None:
    killed = live.start_worker("--name", "blue")
    redis = live.redis
    wait_until(lambda: Worker.all(redis), timeout=SOON, what="its registration")
    pid = Worker.all(redis)[0].pid
    killed.kill_tree()

    live.start_worker("--name", "blue")

    wait_until(lambda: [one.pid for one in Worker.all(redis)] not in ([], [pid]), timeout=SOON, what="another")


def test_the_name_of_a_worker_that_lives_is_refused(live: LiveEnv) -> None:
    live.start_worker("--name", "blue")
    wait_until(lambda: Worker.all(live.redis), timeout=SOON, what="its registration")

    second = live.start_worker("--name", "blue")

    assert second.wait() == 2
    assert "a worker named 'blue' is alive" in second.log()


@each_model
def test_the_applications_worker_class_and_exception_handler_are_rqs(live: LiveEnv, words: Sequence[str]) -> None:
    own = "tests.system.acceptance.chores."
    live.environment["ACCEPTANCE_TOLD"] = str(live.folder / "told")
    live.start_worker("-w", f"{own}TellingWorker", "--exception-handler", f"{own}tell_failure", *words)

    job = Queue("default", connection=live.redis).enqueue(divmod, 1, 0)
    wait_until(lambda: job.get_status() is JobStatus.FAILED, timeout=SOON, what="its failure")
    live.run_now("fail", FAIL)

    def told() -> set[str]:
        path = live.folder / "told"
        return set(path.read_text().splitlines()) if path.exists() else set()

    wanted = {"performed by TellingWorker", "failed with ZeroDivisionError", "failed with ValueError"}
    wait_until(lambda: wanted <= told(), timeout=SOON, what=f"{wanted}")


@each_model
def test_jobs_that_rq_has_scheduled_are_enqueued(live: LiveEnv, words: Sequence[str]) -> None:
    live.start_worker(*words)

    job = Queue("default", connection=live.redis).enqueue_in(SECOND, time.time)
    wait_until(lambda: job.get_status() is JobStatus.FINISHED, timeout=SOON, what="its end")


REFUSED = {
    ("--concurrency", "0"): "--concurrency must be at least 1",
    ("--max-jobs", "0"): "--max-jobs must be at least 1",
    ("--max-memory", "200M"): "--max-memory bounds processes that execute run after run",
    ("--max-memory", "200M", "--concurrency", "2", "--isolate"): "--max-memory bounds processes",
    ("--max-memory", "much", "--concurrency", "2"): "'much' is not an amount of memory; write 200M or 1G",
    ("--burst", "--max-idle-time", "5"): "leave one out",
    ("--worker-class", "nowhere.Worker"): "--worker-class: 'nowhere.Worker' cannot be imported",
    ("--worker-class", "datetime.datetime"): "is not a class of RQ's workers",
    ("--worker-class", "rq.SimpleWorker"): "Give --concurrency 1",
    ("--worker-class", "rqsched.rq.Worker"): "brings a dispatcher of its own",
    ("--exception-handler", "nowhere"): "--exception-handler: 'nowhere' cannot be imported",
    ("--exception-handler", "sys.version"): "--exception-handler: sys.version cannot be called",
    ("--name", "a b"): "--name takes 1 to 200",
}


def test_options_that_cannot_be_or_do_not_go_together_are_refused_before_anything_is_started(live: LiveEnv) -> None:
    started: list[tuple[Process, tuple[str, ...], str]] = []
    for words, error in REFUSED.items():
        process = live.start_worker(*words)
        started.append((process, words, error))
        code = process.wait()
        assert (code, error in " ".join(process.log().split())) == (2, True), f"{words}: {process.log()}"
    assert Worker.count(live.redis) == 0
