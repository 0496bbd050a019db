"""A Redis that refuses, beside real processes: doctor names it and nothing else, and all goes on when it is mended."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from rqsched import Every
from tests.support.env import SECOND
from tests.support.processes import run_to_end, wait_until
from tests.support.refusals import refusing
from tests.support.servers import ValkeyServer
from tests.system.acceptance.live import LiveEnv, MakeLive
from tests.system.acceptance.runbooks import OFTEN


@pytest.fixture
def live(make_live: MakeLive, sqlite_url: str, own_valkey: ValkeyServer) -> LiveEnv:
    """An installation with a Redis of its own, and a worker."""
    live = make_live(sqlite_url, redis_url=own_valkey.url)
    live.environment |= OFTEN
    live.start_worker()
    return live


def problems(live: LiveEnv) -> dict[str, Any]:
    told = run_to_end([sys.executable, "-m", "rqsched", "doctor", "-o", "json"], live.environment)
    return {one["check"]: one for one in json.loads(told.stdout)["findings"] if one["level"] == "problem"}


def test_replica_is_refused_by_its_word_and_the_worker_goes_on(live: LiveEnv, own_valkey: ValkeyServer) -> None:
    nightly = live.note_every("nightly", Every(SECOND))
    live.wait_for_successes(nightly)
    with refusing(own_valkey, "READONLY"):
        wait_until(lambda: not live.redis.keys("rqsched:dispatcher:*"), what="heartbeats that expired")
        found = problems(live)
        assert set(found) == {"redis"}
        assert "READONLY" in found["redis"]["detail"]
    live.wait_for_successes(nightly)
    assert problems(live) == {}
    live.check()


def test_key_of_another_type_is_named_until_it_is_gone(live: LiveEnv) -> None:
    nightly = live.note_every("nightly", Every(SECOND))
    live.wait_for_successes(nightly)
    live.redis.set("rq:queue:default", "somebody's")
    wait_until(lambda: "publishing" in problems(live), what="a refusal that is kept")
    found = problems(live)
    assert set(found) == {"publishing"}
    assert "rq:queue:default is a string, not a list" in found["publishing"]["detail"]
    live.redis.delete("rq:queue:default")
    live.wait_for_successes(nightly, timeout=120)
    wait_until(lambda: problems(live) == {}, timeout=180, what="nothing to say")
    live.check()
