"""Fixtures of the chain's tests: a rig over SQLite, and one over each database where SQL matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from rqsched.api.scheduler import Scheduler
from rqsched.chain.runtime import Runtime
from rqsched.config import Settings
from rqsched.testing import ManualClock
from rqsched.workflows import Registry
from tests.support.rig import Rig

MakeRig = Callable[..., Rig]


@contextmanager
def open_rig(clock: ManualClock, **settings: Any) -> Iterator[Rig]:
    """A rig of one process, with the workflow `note` that keeps what it is called with."""
    # Without a breaker: a rig is a dispatcher and a worker too, and Redis may be slow on a machine that is busy.
    scheduler = Scheduler(settings=Settings(**{"redis_breaker": 0, **settings}), clock=clock, workflows=Registry())
    rig = Rig(scheduler, clock)
    rig.register("note", lambda *args, **kwargs: rig.calls.append((args, kwargs)))
    try:
        yield rig
    finally:
        scheduler.close()


@pytest.fixture
def make_rig(clock: ManualClock, redis_url: str, sqlite_url: str) -> Iterator[MakeRig]:
    """Rigs with settings of their own; SQLite and the test process's Valkey unless others are named."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Rig:
            return stack.enter_context(
                open_rig(clock, **{"database_url": sqlite_url, "redis_url": redis_url, **settings})
            )

        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    """A rig over SQLite, for what SQL does not matter to."""
    return make_rig()


@pytest.fixture
def any_rig(make_rig: MakeRig, database_url: str) -> Rig:
    """A rig over each database in turn."""
    return make_rig(database_url=database_url)


@pytest.fixture
def scheduler(any_rig: Rig) -> Scheduler:
    """The scheduler of `any_rig`."""
    return any_rig.scheduler


@pytest.fixture
def runtime(any_rig: Rig) -> Runtime:
    """The runtime of `any_rig`."""
    return any_rig.runtime
