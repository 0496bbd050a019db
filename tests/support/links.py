"""Links of some schedule, put into Redis by hand, and what becomes of their jobs there."""

from __future__ import annotations

from datetime import timedelta

from rqsched.kernel.decide.ids import LinkId, derived_uid
from rqsched.kernel.transport.transport import Arm
from tests.support.env import MINUTE, SECOND, Env

LIST = "rqsched"
"""The queue of links."""


def arm(env: Env, n: int = 1, *, after: timedelta = MINUTE) -> Arm:
    """A link of some schedule, due so long after now."""
    now = env.clock.now()
    return Arm(LinkId(derived_uid(now, "some schedule"), n), now + after)


def put(env: Env, *arms: Arm) -> int:
    return env.transport.arm(arms, now=env.clock.now())


def lease(env: Env, limit: int = 100) -> list[str]:
    """Lease the due links for two seconds, as a dispatcher does."""
    return env.transport.lease(now=env.clock.now(), lease=2 * SECOND, limit=limit)


def set_hash(env: Env, link: Arm, **fields: str) -> None:
    for name, value in fields.items():
        env.redis.hset(f"rq:job:{link.id}", name, value)
