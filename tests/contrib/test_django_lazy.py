"""The scheduler of a Django project, opened at its first operation."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from rqsched import Scheduler
from rqsched.contrib.django.lazy import LazyScheduler
from tests.support.children import in_children
from tests.support.env import Env


def test_a_child_opens_it_although_a_thread_was_opening_it_at_the_fork(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()
    opening, go_on = threading.Event(), threading.Event()

    def open_slowly() -> Scheduler:
        if os.getpid() == parent:
            opening.set()
            assert go_on.wait(timeout=30)
        return env.scheduler

    monkeypatch.setattr(Scheduler, "from_env", open_slowly)
    lazy = LazyScheduler()
    thread = threading.Thread(target=lambda: lazy.settings)
    thread.start()
    assert opening.wait(timeout=30)

    def open_in_time() -> bool:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.alarm(10)  # interrupts a wait that would last for ever
        return lazy.settings is env.scheduler.settings

    try:
        assert in_children(1, open_in_time) == [True]
    finally:
        go_on.set()
        thread.join()
