"""The Redis options that a horse of RQ's SpawnWorker gets from its worker."""

from __future__ import annotations

from rqsched.kernel.transport.client import connect
from rqsched.run.spawned_horse import client_for_horse


def test_a_horse_is_not_told_the_library_whose_text_is_no_source(redis_url: str) -> None:
    """RQ 2 writes every option into the source of the horse as its `repr`."""
    with connect(redis_url) as redis:
        known = redis.connection_pool.connection_kwargs
        lent = client_for_horse(redis)

        assert lent.connection_pool.connection_kwargs == {name: known[name] for name in known if name != "driver_info"}
        assert lent.ping(), "a command may come while it is lent"
