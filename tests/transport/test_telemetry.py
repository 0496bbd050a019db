"""Telemetry: what reconcile passes did is added up where metrics find it."""

from __future__ import annotations

from rqsched.transport import telemetry
from tests.support.rig import Rig


def test_every_pass_is_added_to_the_sums(rig: Rig) -> None:
    rig.create()
    rig.redis.flushall()
    rig.recover()
    rig.recover()
    found = telemetry.read_passes(rig.redis, rig.transport.control.name)
    assert (found["passes"], found["links"]) == (2, 1)
    assert found["seconds"] >= found["last_seconds"] > 0
    assert telemetry.read_passes(rig.redis, "another queue") == {}
