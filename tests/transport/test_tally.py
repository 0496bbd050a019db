"""The tally: what reconcile passes did is added up where metrics find it."""

from __future__ import annotations

from rqsched.transport import telemetry as tally
from tests.support.rig import Rig


def test_every_pass_is_added_to_the_tally(rig: Rig) -> None:
    rig.create()
    rig.redis.flushall()
    rig.recover()
    rig.recover()
    found = tally.read(rig.redis, rig.transport.control.name)
    assert (found["passes"], found["links"]) == (2, 1)
    assert found["seconds"] >= found["last_seconds"] > 0
    assert tally.read(rig.redis, "another queue") == {}
