"""Update a Redis that was away, in a process with a breaker (see `transport.breaker`).

Other processes leave this to reconcile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redis.exceptions import RedisError

from rqsched.errors import BackendUnavailableError
from rqsched.kernel.chain.fire import restate
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.model import Change
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Connection

_log = logging.getLogger(__name__)
_CHUNK = 200


def resync_redis(runtime: Runtime) -> None:
    """Make Redis follow the schedules in `out_of_sync`. For all other schedules, ask a worker for a pass of reconcile.

    If this fails, the rest is left to that pass, or to the next time that Redis comes back.
    """
    missed: list[str] = []
    try:
        runtime.transport.ask_for_pass()
        while missed := list(runtime.out_of_sync)[:_CHUNK]:
            runtime.out_of_sync.difference_update(missed)
            runtime.transport.follow(_as_they_are(runtime, missed), now=runtime.now())
    except (RedisError, BackendUnavailableError) as error:
        runtime.out_of_sync.update(missed)
        _log.warning("links and jobs are not in Redis yet: %s", error, extra={"action": "follow_failed"})


def _as_they_are(runtime: Runtime, uids: Sequence[str]) -> list[Change]:
    def read(connection: Connection) -> list[Change]:
        found = [changes.find(connection, uid) for uid in uids]
        return [restate(connection, schedule) for schedule in found if schedule is not None]

    return runtime.database.read(read)
