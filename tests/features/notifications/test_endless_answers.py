"""A receiver whose answer has no end holds a delivery no longer than its time limit, and a process few threads."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from rqsched.api.description import DeliveryDescription
from rqsched.features.notifications import chain as delivering
from rqsched.features.notifications.decide import DeliveryStatus
from rqsched.features.notifications.outbox import Outbox
from rqsched.kernel.decide.ids import DeliveryJobId
from tests.support.env import ONCE, Env, MakeEnv
from tests.support.processes import wait_until
from tests.support.receiver import OK, Receiver, receiver
from tests.support.tls import make_certificate

SOON = 30.0
"""Seconds; a delivery here may take one."""


@pytest.fixture
def env(make_env: MakeEnv) -> Env:
    """An environment that gives a receiver one second."""
    return make_env(webhook_secret="a key of this test", notification_timeout=1)


def owe(env: Env, url: str) -> DeliveryDescription:
    """Return a webhook that is owed for a run that failed."""
    env.failing = True
    run = env.fire_next(env.create(retry=ONCE, notifications={"webhook": url}))
    with pytest.raises(RuntimeError):
        env.execute(run)
    [delivery] = env.scheduler.get("report").deliveries().items
    return delivery


def deliver(env: Env, delivery: DeliveryDescription) -> DeliveryDescription:
    """Deliver it in a thread, where no signal ends it, and return the recorded delivery."""
    job = DeliveryJobId(delivery.uid, delivery.attempt)
    thread = threading.Thread(target=lambda: delivering.execute(env.runtime, job, is_beside=True), daemon=True)
    thread.start()
    thread.join(SOON)
    assert not thread.is_alive(), "the delivery goes on"
    [recorded] = env.scheduler.get("report").deliveries().items
    return recorded


def test_an_answer_is_read_to_its_end_over_tls_too(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path, "receiver")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
    with receiver(tmp_path, certificate) as hook:
        assert deliver(env, owe(env, hook.url)).status == DeliveryStatus.SUCCEEDED
    assert len(hook.got) == 1


@pytest.mark.parametrize("how", ["drip", "drip-body", "continue"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_an_answer_that_drips_is_no_answer_after_the_time_limit(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, is_tls: bool
) -> None:
    certificate = make_certificate(tmp_path, "receiver") if is_tls else None
    if certificate is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
    with receiver(tmp_path, certificate) as hook:
        hook.answer(how)
        recorded = deliver(env, owe(env, hook.url))
    assert recorded.error == f"no answer: {hook.url}/...: no whole answer within 1 s"
    assert recorded.status == DeliveryStatus.PENDING


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_receiver_that_says_nothing_is_no_answer_after_the_time_limit(env: Env, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        recorded = deliver(env, owe(env, url))
    assert recorded.error == f"no answer: {url}/...: no whole answer within 1 s"


def test_what_follows_without_end_is_read_no_further_than_an_answer_is_long(env: Env, hook: Receiver) -> None:
    hook.answer("flood")
    recorded = deliver(env, owe(env, hook.url))
    assert recorded.error == f"no answer: {hook.url}/...: sent 65536 bytes and no whole answer"


def test_pings_beyond_the_threads_of_a_process_go_to_their_queue(make_env: MakeEnv, hook: Receiver) -> None:
    env = make_env(notification_timeout=60)
    hook.answer("drip")
    names = [str(number) for number in range(delivering.MOST_THREADS + 2)]
    watched = [env.create(name, notifications={"heartbeat": f"{hook.url}/{name}"}) for name in names]
    runs = [(one.state, env.fire_next(one).state) for one in watched]
    env.redis.delete("rq:queue:default")

    with ExitStack() as stack:
        for schedule, run in runs:
            write = partial(Outbox(env.runtime).write_start, schedule=schedule, run=run, now=env.clock.now())
            stack.enter_context(delivering.start_told(env.runtime, env.runtime.database.transact(write)))
        wait_until(lambda: len(hook.got) == delivering.MOST_THREADS, timeout=SOON, what="every ping that is told here")
        assert len(env.queued()) == 2
        hook.answer(OK)

    wait_until(lambda: delivering.count_start_threads() == 0, timeout=SOON, what="the threads to end")
    env.work()
    assert sorted(set(hook.paths)) == [f"/{name}/start" for name in names]
