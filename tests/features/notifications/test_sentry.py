"""Check-ins at Sentry, with the real SDK where it is installed, against a receiver that stands for Sentry."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from rqsched.config import Settings
from rqsched.errors import ConfigError, InvalidInputError
from rqsched.features.notifications.decide import Configured, deliveries_of_start
from rqsched.kernel.chain.option_checks import SENTRY_MISSING
from rqsched.run.worker import open_runtime
from tests.support.env import MINUTE, ONCE, Env, MakeEnv
from tests.support.narrow import present
from tests.support.receiver import Receiver

IS_HERE = find_spec("sentry_sdk") is not None


def check_ins(hook: Receiver) -> list[dict[str, Any]]:
    """The check-ins that arrived, out of the envelopes they came in."""
    lines = [line for request in hook.got for line in request["body"].splitlines()]
    return [found for line in lines if "monitor_slug" in (found := json.loads(line))]


@pytest.mark.skipif(not IS_HERE, reason="needs sentry-sdk")
def test_runs_check_in_at_the_monitor(make_env: MakeEnv, hook: Receiver) -> None:
    sdk = pytest.importorskip("sentry_sdk")
    dsn = hook.url.replace("http://", "http://key@") + "/1"
    sdk.init(dsn=dsn, default_integrations=False, _experiments={"transport_compression_level": 0})
    env = make_env()
    schedule = env.create(spec="*/5 * * * *", retry=ONCE, notifications={"sentry": "nightly"})

    env.run_next(schedule, 5 * MINUTE)
    env.failing = True
    env.run_next(schedule, 5 * MINUTE)

    found = check_ins(hook)
    assert {one["monitor_slug"] for one in found} == {"nightly"}
    assert [one["status"] for one in found] == ["in_progress", "ok", "in_progress", "error"]
    begun, ended, begun_again, failed = (one["check_in_id"] for one in found)
    assert (begun, begun_again) == (ended, failed), "the end of a run belongs to its start"
    assert begun != begun_again
    assert found[0]["monitor_config"]["schedule"] == {"type": "crontab", "value": "*/5 * * * *"}
    assert schedule.deliveries().items == []


MONITORS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "nothing is known": ({}, {}),
    "the longest delay": ({"jitter": "90s"}, {"checkin_margin": 3}),
    "the timeout": ({"timeout": "30m"}, {"max_runtime": 30}),
    "what is expected": ({"timeout": "30m", "expect_duration": "61s"}, {"max_runtime": 2}),
    "more than Sentry takes": ({"expect_duration": "90d"}, {"max_runtime": 40_320}),
    "targets have timeouts of their own": ({"timeout": "30m", "targets": "note"}, {}),
}
"""The options of a schedule, and the configuration of its monitor without the timing."""


@pytest.mark.parametrize(("options", "expected"), MONITORS.values(), ids=MONITORS)
def test_a_monitor_is_told_how_late_a_run_may_start_and_how_long_it_may_take(
    env: Env, options: dict[str, Any], expected: dict[str, int]
) -> None:
    schedule = env.create(spec="*/5 * * * *", **options)
    run = present(schedule.trigger().run).state
    [ping] = deliveries_of_start(schedule.refresh().state, run, Configured(sentry=True), env.clock.now())
    config = json.loads(ping.payload)["data"]["monitor"]
    assert {name: config[name] for name in config if name not in {"schedule", "timezone"}} == expected


@pytest.fixture
def no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Python find no sentry-sdk, wherever the tests run."""
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)


@pytest.mark.usefixtures("no_sdk")
def test_without_the_sdk_a_schedule_that_asks_for_check_ins_is_refused(env: Env) -> None:
    with pytest.raises(InvalidInputError, match="sentry-sdk is not installed"):
        env.create(notifications={"sentry": "nightly"})


@pytest.mark.usefixtures("no_sdk")
def test_without_the_sdk_a_worker_that_is_to_check_in_does_not_start(sqlite_url: str, redis_url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_runtime(Settings(database_url=sqlite_url, redis_url=redis_url, sentry_checkins=True))
    assert str(refused.value) == SENTRY_MISSING
