"""Tell a probe which backends respond. The answer comes in time even if a backend is silent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from rqsched.api.health import BACKEND_ERRORS, backend_questions
from rqsched.api.outages import explain
from rqsched.api.runtime import Runtime

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.5
"""Seconds after which a silent backend counts as not responding. Orchestrators wait only a little longer."""


class Readiness:
    """Asks each backend in a separate thread, one question at a time. Concurrent probes share the answer.

    Therefore a silent backend delays neither the probe nor the threads that serve requests.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._questions = backend_questions(runtime)
        self._asked: dict[str, Future[bool]] = {}

    async def backends(self) -> dict[str, bool]:
        """Return which backends respond, within `ANSWER_SECONDS`."""
        asked = {name: self._ask(name) for name in self._questions}
        answers = {name: asyncio.wrap_future(future) for name, future in asked.items()}
        await asyncio.wait(answers.values(), timeout=ANSWER_SECONDS)
        for name, answer in answers.items():
            if answer.cancel():  # the thread's question continues, but this probe stops waiting
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
    except BACKEND_ERRORS as error:
        _log.warning("not ready: %s", explain(error), extra={"action": "not_ready"})
        asked.set_result(False)
    except BaseException as error:  # noqa: BLE001 - the boundary of a thread
        asked.set_exception(error)
    else:
        asked.set_result(True)
