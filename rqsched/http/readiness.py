"""Readiness: which backends respond, known in time for a probe, however long a backend that is silent keeps others."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial

from redis.exceptions import RedisError

from rqsched.chain.runtime import Runtime
from rqsched.errors import RqschedError
from rqsched.store import schema_version
from rqsched.store.database import DatabaseError, Patience

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.5
"""What has not answered after so long does not respond: orchestrators wait little longer themselves."""
_AT_ONCE = Patience(total=timedelta(0))


class Readiness:
    """Asks each backend in a thread of its own, one question at a time: who comes meanwhile waits for the same answer.

    So a silent backend holds up neither the probe nor the threads that serve requests.
    """

    def __init__(self, runtime: Runtime) -> None:
        database = runtime.database
        self._questions: dict[str, Callable[[], object]] = {
            "database": partial(database.ping, patience=_AT_ONCE),
            "schema": partial(schema_version.require_current, database, patience=_AT_ONCE),
            "redis": runtime.transport.redis.ping,
        }
        self._asked: dict[str, Future[bool]] = {}

    async def backends(self) -> dict[str, bool]:
        """Return which backends respond, within `ANSWER_SECONDS`."""
        asked = {name: self._ask(name) for name in self._questions}
        answers = {name: asyncio.wrap_future(future) for name, future in asked.items()}
        await asyncio.wait(answers.values(), timeout=ANSWER_SECONDS)
        for name, answer in answers.items():
            if answer.cancel():  # the question goes on; only nobody waits for it
                _log.warning(
                    "not ready: %s did not answer within %s s", name, ANSWER_SECONDS, extra={"action": "not_ready"}
                )
        return {name: not answer.cancelled() and answer.result() for name, answer in answers.items()}

    def _ask(self, name: str) -> Future[bool]:
        known = self._asked.get(name)
        if known is not None and not known.done():
            return known
        asked = self._asked[name] = Future[bool]()
        asked.set_running_or_notify_cancel()
        question = partial(_answer, asked, self._questions[name])
        threading.Thread(target=question, name=f"rqsched-ready-{name}", daemon=True).start()
        return asked


def _answer(asked: Future[bool], question: Callable[[], object]) -> None:
    try:
        question()
    except (RqschedError, RedisError, DatabaseError) as error:
        _log.warning("not ready: %s", error, extra={"action": "not_ready"})
        asked.set_result(False)
    except BaseException as error:  # noqa: BLE001 - the boundary of a thread
        asked.set_exception(error)
    else:
        asked.set_result(True)
