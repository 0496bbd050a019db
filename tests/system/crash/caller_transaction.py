"""The flows of an application that writes its schedules in its own transaction, and repeats it until it is through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from rqsched import Every
from rqsched.errors import BackendUnavailableError, TransactionConflictError
from tests.system.crash.env import CrashEnv
from tests.system.crash.flows import Flow, make, waiting

MOST_TRIES = 5
"""More faults than one process can meet: one thing."""


def write(env: CrashEnv, **transaction: Any) -> None:
    """Create a schedule, change another and start a run of it; repeated, it is the same request."""
    make(env, "order", idempotency_key="order", **transaction)
    report = env.scheduler.get("report", **transaction)
    report.update(spec=Every("7m"), overlap="allow_all", **transaction)
    report.trigger(idempotency_key="order", **transaction)


def of_connection(env: CrashEnv, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        write(env, connection=connection)


def of_session(env: CrashEnv, engine: sa.Engine) -> None:
    with orm.Session(engine) as session, session.begin():
        undone = session.begin_nested()
        make(env, "undone", session=session)
        env.scheduler.get("report", session=session).trigger("allow_all", session=session)
        undone.rollback()
        write(env, session=session)


def until_through(write: Callable[[CrashEnv, sa.Engine], None]) -> Callable[[CrashEnv], None]:
    """An application that follows the advice of the error: it repeats its transaction from the beginning."""

    def act(env: CrashEnv) -> None:
        with env.application() as engine:
            for _ in range(MOST_TRIES):
                try:
                    return write(env, engine)
                except (TransactionConflictError, BackendUnavailableError, sa.exc.DBAPIError):
                    continue
        raise AssertionError("the application's transaction never got through")

    return act


CALLER_TRANSACTION = [
    Flow("create, update and trigger in a caller's transaction", waiting(), until_through(of_connection)),
    Flow("create, update and trigger in a session, after a savepoint", waiting(), until_through(of_session)),
]
