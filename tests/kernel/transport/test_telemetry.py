"""Telemetry: what reconcile passes did is added up where metrics find it."""

from __future__ import annotations

from rqsched.kernel.transport import telemetry
from tests.support.env import Env


def test_every_pass_is_added_to_the_sums(env: Env) -> None:
    env.create()
    env.redis.flushall()
    env.recover()
    env.recover()
    found = telemetry.read_passes(env.redis, env.transport.control.name)
    assert (found["passes"], found["links"]) == (2, 1)
    assert found["seconds"] >= found["last_seconds"] > 0
    assert telemetry.read_passes(env.redis, "another queue") == {}
