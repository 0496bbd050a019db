"""A Redis that answers and refuses: every surface says so once, in Redis's own word, and advises nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rqsched.errors import RedisUnavailableError
from rqsched.kernel.transport.telemetry import DispatcherHeartbeat
from tests.support.cli import Cli
from tests.support.env import HOUR
from tests.support.pages import Pages
from tests.support.refusals import WAYS, refusing
from tests.support.servers import ValkeyServer
from tests.support.web import MakeWeb, one_token

SECRET = "tenant-secret-0123456789"
MISLEADING = (
    "Start `rqsched worker", "RQSCHED_ENVIRONMENT", "full disk", "does not answer", "No dispatcher", "None is alive"
)  # fmt: skip


@pytest.fixture
def pages(make_web: MakeWeb, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """The pages of an application with its own Redis. Doctor finds its dispatcher and settings."""
    pages = Pages(make_web(redis_url=own_valkey.url))
    env = pages.env
    monkeypatch.setenv("RQSCHED_DATABASE_URL", str(env.runtime.settings.database_url))
    monkeypatch.setenv("RQSCHED_REDIS_URL", own_valkey.url)
    env.create("nightly")
    env.recover()
    DispatcherHeartbeat(env.redis, env.transport.control.name, env.runtime.now).send()
    return pages


def doctor(pages: Pages, code: int) -> list[dict[str, Any]]:
    told = Cli(pages.env.scheduler)("doctor", "-o", "json", code=code).json["findings"]
    return [one for one in told if one["level"] == "problem"]


@pytest.mark.parametrize("way", WAYS)
def test_every_surface_says_once_that_redis_refuses(way: str, pages: Pages, own_valkey: ValkeyServer) -> None:
    pages.env.advance(HOUR)  # late schedules are no reason to start a worker
    with refusing(own_valkey, way) as word:
        (found,) = doctor(pages, 1)
        assert found["check"] == "redis"
        assert found["detail"].startswith("Redis refuses: ")
        assert word in found["detail"]
        assert found["advice"]
        overview, system = pages.get("/"), pages.get("/system")
        assert re.findall(r'<article class="problem.*?</article>', overview, re.DOTALL)[0].count(word) >= 1
        assert f"Redis refuses what it is asked ({word})" in system
        for text in MISLEADING:
            assert text not in found["detail"] + found["advice"] + overview + system, text
        assert "late" not in "".join(re.findall(r'<article class="problem.*?</article>', overview, re.DOTALL))
        pages.web.app.state.rqsched.meter.refresh(force=True)
        metrics = pages.web.get("/metrics").text
        assert 'rqsched_up{backend="redis"} 0.0' in metrics
        assert "\nrqsched_dispatchers " not in metrics, "none can show that it is alive"
        ready = pages.web.get("/readyz")
        assert (ready.status_code, ready.json()["redis"], ready.json()["database"]) == (503, False, True)


@pytest.mark.parametrize("way", ["READONLY", "NOREPLICAS", "MASTERDOWN"])
def test_operation_that_needs_redis_says_that_it_refuses(way: str, pages: Pages, own_valkey: ValkeyServer) -> None:
    pages.env.scheduler.freeze(everything=True)
    with refusing(own_valkey, way) as word, pytest.raises(RedisUnavailableError, match=word) as told:
        pages.env.scheduler.thaw(everything=True)
    assert "does not answer" not in str(told.value)


def test_a_redis_that_takes_writes_again_is_ready_and_its_probe_expires(pages: Pages, own_valkey: ValkeyServer) -> None:
    with refusing(own_valkey, "NOREPLICAS"):
        assert pages.web.get("/readyz").status_code == 503
    assert pages.web.get("/readyz").status_code == 200
    (probe,) = pages.env.redis.keys("rqsched:write-probe:*")
    assert 0 < pages.env.redis.pttl(probe) <= 60_000


def test_what_redis_refuses_for_good_is_a_problem_with_its_remedy(pages: Pages) -> None:
    pages.env.redis.set("rq:queue:default", "somebody's")
    pages.env.scheduler.get("nightly").trigger()
    shown = pages.get("/").replace("&#39;", "'")
    assert "Redis refuses new jobs" in shown
    assert "rq:queue:default is a string, not a list" in shown
    assert "Rename or delete that key" in shown


def test_tenant_is_told_that_redis_refuses_and_no_key_of_others(make_web: MakeWeb, own_valkey: ValkeyServer) -> None:
    pages = Pages(make_web(redis_url=own_valkey.url, tokens=one_token(SECRET, "read", namespaces=["tenant"])))
    pages.env.redis.set("rq:queue:payroll", "x")
    pages.env.create("theirs", queue="payroll").trigger()
    pages.web.headers["authorization"] = f"Bearer {SECRET}"
    shown = pages.get("/?namespace=tenant")
    assert "Redis refuses new jobs in 1 place, so nothing is executed there." in shown
    assert "payroll" not in shown
