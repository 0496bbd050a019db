"""Notifications by real workers to a real receiver: they arrive, and a receiver that hangs holds nothing up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from rqsched import Every, Scheduler
from rqsched.kernel.decide.options import Options
from tests.support.env import ONCE
from tests.support.processes import rq_worker_command, rqsched_command, wait_until
from tests.support.receiver import HANG, Receiver
from tests.system.acceptance.chores import FAIL, HOLD, NOTE, TELL, TOLD
from tests.system.acceptance.live import LiveEnv

SECRET = "a key of this test"
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]


@pytest.fixture
def scheduler(any_live: LiveEnv) -> Iterator[Scheduler]:
    """A scheduler that may ask for webhooks, as the workers of the live environment may sign them."""
    any_live.environment |= {
        "RQSCHED_WEBHOOK_SECRET": SECRET,
        "RQSCHED_NOTIFICATION_TIMEOUT": "3",
        TOLD: str(any_live.folder / "told"),
    }
    database_url, redis_url = (any_live.environment[f"RQSCHED_{name}_URL"] for name in ("DATABASE", "REDIS"))
    with closing(Scheduler(database_url=database_url, redis_url=redis_url, webhook_secret=SECRET)) as scheduler:
        yield scheduler


def told(live: LiveEnv) -> list[str]:
    file = live.folder / "told"
    return file.read_text().splitlines() if file.exists() else []


def test_a_failed_and_a_killed_run_reach_a_workflow_and_a_webhook(
    any_live: LiveEnv, scheduler: Scheduler, hook: Receiver
) -> None:
    options: Options = {"retry": ONCE, "on_failure": TELL, "notifications": {"webhook": hook.url}}
    failing: Options = {**options, "kwargs": {"log": str(any_live.log)}}
    holding: Options = {**options, "kwargs": {"log": str(any_live.log), "gate": str(any_live.gate)}}
    fails = scheduler.create("fails", FAIL, Every("9h"), **failing).trigger().run
    killed = scheduler.create("killed", HOLD, Every("9h"), **holding).trigger().run
    assert fails is not None
    assert killed is not None
    any_live.start(rqsched_command("worker"))
    any_live.start(rq_worker_command(any_live.environment["RQSCHED_REDIS_URL"], "default"))

    any_live.wait_for_status(fails, "failed", timeout=90)
    os.kill(any_live.wait_for_execution(killed, timeout=90).pid, signal.SIGKILL)
    any_live.wait_for_status(killed, "lost", timeout=150)

    wanted = {f"RunFailed {fails.uid}", f"RunLost {killed.uid}"}
    wait_until(lambda: set(told(any_live)) == wanted, timeout=120, what=f"{wanted} told")
    wait_until(lambda: len(hook.got) == 2, timeout=120, what="two webhooks")
    assert sorted(request["headers"]["rqsched-event"] for request in hook.got) == ["RunFailed", "RunLost"]
    assert len(told(any_live)) == 2


def test_a_receiver_that_hangs_holds_neither_runs_nor_fires_up_and_gets_everything_later(
    any_live: LiveEnv, scheduler: Scheduler, hook: Receiver
) -> None:
    hook.answer(HANG)
    kwargs = {"log": str(any_live.log)}
    handles = [
        scheduler.create(
            f"fails-{number}", FAIL, Every("9h"), kwargs=kwargs, retry=ONCE, notifications={"webhook": hook.url}
        )
        for number in range(4)
    ]
    for handle in handles:
        handle.trigger()
    any_live.start(rqsched_command("worker"))
    wait_until(lambda: len(hook.got) >= 1, timeout=120, what="a webhook that hangs")

    spec = Every(timedelta(seconds=1))
    note = scheduler.create("note", NOTE, spec, kwargs=kwargs, overlap="allow_all", max_runs=5)
    wait_until(lambda: note.refresh().state.success_count == 5, timeout=120, what="five runs beside it")

    hook.answer("204")
    wait_until(
        lambda: {one.status for handle in handles for one in handle.deliveries().items} == {"succeeded"},
        timeout=150,
        interval=0.5,
        what="every webhook to arrive",
    )
    arrived = {request["headers"]["rqsched-delivery"] for request in hook.got}
    assert arrived == {one.uid for handle in handles for one in handle.deliveries().items}
    any_live.check()
