"""How our mixins for RQ's workers end one that is asked to, wherever the signal finds it."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from rq import Queue, Worker

from rqsched.kernel.chain.runtime import using
from rqsched.run.rq_worker import make_worker
from rqsched.run.runner import make_runner_class, prepare_runner
from rqsched.run.runner_slot import Slot
from rqsched.run.supervisor import FORK
from tests.support.env import Env

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
PATIENCE = 60.0
RUNNER = make_runner_class(Worker)


def ask_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class AskedAtTheEndOfAJob(RUNNER):  # type: ignore[valid-type, misc]
    """Is asked to end when its state is idle again and nothing of the job's end is written."""

    def cleanup_execution(self, *arguments: Any, **options: Any) -> None:
        super().cleanup_execution(*arguments, **options)
        ask_to_end()


class AskedBeforeItWaits(RUNNER):  # type: ignore[valid-type, misc]
    """Is asked to end after it has looked whether it was, and before it waits for the next job."""

    @property
    def dequeue_timeout(self) -> int:
        if self.jobs_done > 0 and not self._waits_for_job:
            ask_to_end()
        return int(super().dequeue_timeout)


class AskedWhileItWaits(RUNNER):  # type: ignore[valid-type, misc]
    """Is asked to end while it waits for the next job."""

    def dequeue_job_and_maintain_ttl(self, *arguments: Any, **options: Any) -> Any:
        if self.jobs_done > 0:
            signal.signal(signal.SIGALRM, lambda *_: ask_to_end())
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        return super().dequeue_job_and_maintain_ttl(*arguments, **options)


def be_runner(env: Env, kind: type[Any]) -> None:
    """Execute the jobs of the queue until the end."""
    worker = make_worker(kind, env.runtime, [env.runtime.settings.default_queue])
    prepare_runner(worker, Slot(worker.name), env.runtime)
    with using(env.runtime):
        worker.work(logging_level="CRITICAL")


@pytest.mark.parametrize("kind", [AskedAtTheEndOfAJob, AskedBeforeItWaits, AskedWhileItWaits])
def test_runner_that_is_asked_to_end_writes_the_end_of_its_job_and_takes_no_other(env: Env, kind: type[Any]) -> None:
    run = env.fire_next(env.create())

    process = FORK.Process(target=be_runner, args=(env, kind), daemon=True)
    process.start()
    process.join(PATIENCE)

    assert process.exitcode == 0
    assert run.refresh().status == "succeeded"
    queue = Queue(env.runtime.settings.default_queue, connection=env.redis)
    assert queue.failed_job_registry.get_job_ids() == []


class KeepsTheMask(RUNNER):  # type: ignore[valid-type, misc]
    """Executes a job that leaves signals masked, and checks the mask that the next job would find."""

    def cleanup_execution(self, *arguments: Any, **options: Any) -> None:
        super().cleanup_execution(*arguments, **options)
        signal.pthread_sigmask(signal.SIG_BLOCK, TIDIED)

    def dequeue_job_and_maintain_ttl(self, *arguments: Any, **options: Any) -> Any:
        if self.jobs_done > 0:
            os._exit(len(TIDIED & signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        return super().dequeue_job_and_maintain_ttl(*arguments, **options)


TIDIED = {signal.SIGALRM, signal.SIGTERM, signal.SIGINT}


def test_signals_that_a_run_leaves_masked_reach_the_next_one(env: Env) -> None:
    """With SIGALRM masked, blocking code of the next run would miss its timeout."""
    env.fire_next(env.create())

    process = FORK.Process(target=be_runner, args=(env, KeepsTheMask), daemon=True)
    process.start()
    process.join(PATIENCE)

    assert process.exitcode == 0
