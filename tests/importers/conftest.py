"""Another scheduler beside ours: rq-scheduler's own class writes the imported jobs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import rq_scheduler  # type: ignore[import-untyped]
from redis import Redis

from rqsched.importers.rq_scheduler import RqScheduler
from rqsched.importers.source import Reading


@pytest.fixture(autouse=True)
def _old_calls() -> Iterator[None]:
    """rq-scheduler asks for the time as Python does not like it any more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (DeprecationWarning, FutureWarning))
        yield


@pytest.fixture
def theirs(redis: Redis) -> rq_scheduler.Scheduler:
    """The scheduler of an application that uses rq-scheduler."""
    return rq_scheduler.Scheduler("low", connection=redis)


@pytest.fixture
def source(redis: Redis) -> RqScheduler:
    return RqScheduler(redis, Reading(is_trusted=True))
