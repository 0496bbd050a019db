"""Each run that waits says for what in one line, and the list of runs is filtered by it."""

from __future__ import annotations

import re

import pytest
from rq import Worker

from rqsched import RetryPolicy
from rqsched.kernel.decide.audit import CommandContext
from tests.dashboard.test_statements import text_of
from tests.support.env import HOUR, all_runs, block
from tests.support.narrow import present
from tests.support.pages import Pages
from tests.support.servers import ValkeyServer
from tests.support.web import MakeWeb


def waits(page: str) -> dict[str, str]:
    """What the runs of a list wait for, by the id of their schedule."""
    rows = re.findall(r'<td class="of">(.*?)</td>.*?<td class="clip outcome">(.*?)</td>', page, re.DOTALL)
    return {text_of(of): text_of(outcome) for of, outcome in rows}


@pytest.mark.every_database
def test_each_run_that_waits_says_for_what(any_pages: Pages) -> None:
    env = any_pages.env
    Worker(["default"], connection=env.redis, name="host-1").register_birth()
    retrying = env.create("retrying", retry=RetryPolicy(base=HOUR, max_retries=3))
    env.fail_next(retrying)
    env.create("pending").trigger()
    env.create("deserted", queue="gpu").trigger()
    ahead = env.create("buffered", overlap="buffer_one")
    env.claim(present(ahead.trigger().run))
    ahead.trigger()
    limited = env.create("limited", limit="vendor", limit_running=1, overlap="allow_all")
    for _ in range(2):
        limited.trigger()
    block(env.runtime, present(env.create("blocked").trigger().run))
    told = waits(any_pages.get("/runs?status=in_line"))
    assert told == {"limited": "waits in line for limit vendor, number 1"}
    told = waits(any_pages.get("/runs?status=queued"))
    assert told["pending"] == "waits for a free worker on default"
    assert told["deserted"] == "waits for a worker: none is alive on gpu"
    assert "limited" in told, "the run that has the place waits for a worker"
    assert "blocked" not in told
    first = all_runs(ahead)[0].number
    assert waits(any_pages.get("/runs?status=buffered")) == {"buffered": f"waits behind run #{first}"}
    assert "waits for a worker that has its code: " in waits(any_pages.get("/runs?status=blocked"))["blocked"]
    assert waits(any_pages.get("/runs?status=retrying"))["retrying"].startswith("waits for its next attempt, in ")
    assert set(waits(any_pages.get("/runs?limit=vendor"))) == {"limited"}
    assert "waits for a free worker on default" in text_of(any_pages.get("/schedules/pending"))
    (run,) = env.scheduler.get("pending").runs().items
    assert "It waits for a free worker on default" in text_of(any_pages.get(f"/runs/{run.uid}"))


def test_run_of_a_frozen_namespace_waits_for_a_thaw_and_says_by_whom_it_is_frozen(pages: Pages) -> None:
    env = pages.env
    env.create("letters").trigger()
    env.scheduler.freeze("an audit", context=CommandContext(principal="ada"))
    told = waits(pages.get("/runs"))
    assert told == {"letters": "waits until the namespace is thawed; frozen by ada (an audit)"}


def test_whether_a_worker_is_alive_is_not_known_without_redis(make_web: MakeWeb, own_valkey: ValkeyServer) -> None:
    pages = Pages(make_web(redis_url=own_valkey.url))
    pages.env.create("letters").trigger()
    own_valkey.kill()
    assert waits(pages.get("/runs"))["letters"] == "waits for a worker on default; whether one is alive is not known"
