"""Turn errors into text: the error in the first line, then where the application's code raised it."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from redis.exceptions import RedisError
from rq.timeouts import JobTimeoutException

from rqsched import workflows
from rqsched.kernel.decide.payload import storable
from rqsched.kernel.decide.policy import TIMEOUT, ErrorTypes, error_names
from rqsched.kernel.fork_guard import CALLERS
from rqsched.kernel.store.database import DatabaseError
from rqsched.kernel.transport import refusal

_PACKAGE = Path(workflows.__file__).parent


def describe_error(error: BaseException) -> str:
    """Return an error as text: the exception in the first line, then the traceback, from the workflow's own code on."""
    told = traceback.TracebackException(type(error), error, _from_workflow_on(error.__traceback__))
    what = "".join(told.format_exception_only()).strip() or type(error).__name__
    if isinstance(error, JobTimeoutException):
        what = f"timeout: {error}"
    text = f"{what}\n\n{''.join(told.format()).strip()}" if told.stack else what
    return storable(text)


def name_error(error: BaseException) -> str:
    """Return the class and the message of an error."""
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """Return an error's message in characters that every database can store, or its class if `str` fails."""
    try:
        return storable(str(error))
    except BaseException:  # noqa: BLE001 - the application's own code, which may also end the process
        return f"<{type(error).__name__}>"


def _from_workflow_on(trace: TracebackType | None) -> TracebackType | None:
    """Drop our own frames and the frames of the event loop; None if no code of the workflow ran."""
    found, step = trace, trace
    while step is not None:
        code = step.tb_frame.f_code
        is_ours_still = step is found and Path(code.co_filename).is_relative_to(_PACKAGE)
        if is_ours_still or code in CALLERS:
            found = step.tb_next
        step = step.tb_next
    return found


def explain(error: Exception) -> str:
    """Return an error as one line. From a database's error, leave out the SQL statement."""
    if isinstance(error, DatabaseError):
        text = f"the database returned an error: {getattr(error, 'orig', None) or error}"
    elif isinstance(error, RedisError):
        text = refusal.told(error)
    else:
        text = " ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])
    return " ".join(text.split())


def types_of(error: BaseException) -> ErrorTypes:
    """Return the names by which a retry policy may refer to an error."""
    if isinstance(error, JobTimeoutException):
        return TIMEOUT
    kind, *bases = type(error).__mro__[:-1]  # not `object`
    return ErrorTypes(error_names(kind), tuple(name for base in bases for name in error_names(base)))
