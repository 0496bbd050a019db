"""What a job of RQ says of itself: its function, its arguments, its timeout, and which of them a schedule can have.

The hash of a job is read as RQ's own releases write it, without RQ: a pickle in it is read by `unpickle`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rqsched.coming_over.source import AS_BEFORE, MOST_DESCRIBED
from rqsched.coming_over.unpickle import NotReadableError, decompress, plain, unpickle, what_is
from rqsched.core.option_table import MAX_TIMEOUT
from rqsched.workflows import is_path

NO_TIMEOUT = "It has no timeout of its own: in place of its queue's (RQ's is 180 s) it has RQSCHED_RUN_TIMEOUT."


class Call(NamedTuple):
    """What a job calls."""

    workflow: str
    """The dotted path of the function."""
    args: list[Any]
    """Its positional arguments, of JSON."""
    kwargs: dict[str, Any]
    """Its keyword arguments, of JSON."""
    lost: tuple[str, ...] = ()
    """What is not as it was."""


def loads(data: bytes, *, is_trusted: bool) -> Any:
    """Read what one of RQ's serializers wrote, pickle or JSON; raises NotReadableError."""
    if data[:1] in {b"[", b"{"}:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise NotReadableError("it is not whole JSON") from None
    found = unpickle(data, is_trusted=is_trusted)
    if found.unread:
        raise NotReadableError(
            f"it holds {', '.join(found.unread)}, which is only read with --trust-source, for that imports their code"
        )
    return found.value


def call_of(function: object, args: Any, kwargs: Any, instance: object = None) -> Call:
    """Check that a call can be that of a workflow; raises NotReadableError, which says why it cannot."""
    if instance is not None:
        raise NotReadableError(f"it calls a method of {what_is(instance)}, and a workflow is a function: write one")
    if not isinstance(function, str) or not is_path(function):
        raise NotReadableError(f"it calls {function!r}, and a workflow is a function in a module: move it into one")
    named = _checked("an argument", list(args or ())), _checked("a keyword argument", dict(kwargs or {}))
    lost = ["A tuple among its arguments becomes a list."] if any(one.had_tuples for one in named) else []
    owner = function.split(".")[-2]
    if owner[:1].isupper():
        lost.append(
            f"{owner} of {function} looks like a class: a worker finds functions of modules only, so write one."
        )
    return Call(function, named[0].value, named[1].value, tuple(lost))


def _checked(what: str, values: Any) -> Any:
    try:
        return plain(values)
    except NotReadableError as error:
        raise NotReadableError(f"{what} {error}: docs/arguments.md says what to pass") from error


def call_in(fields: Mapping[str, bytes], *, is_trusted: bool) -> Call:
    """Return what the job of a hash calls; raises NotReadableError."""
    found = loads(decompress(fields["data"]), is_trusted=is_trusted)
    if not isinstance(found, list | tuple) or len(found) != 4:
        raise NotReadableError("it does not say function, instance and arguments, as RQ's jobs do")
    function, instance, args, kwargs = found
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise NotReadableError("its arguments are not a list and a dict")
    return call_of(function, args, kwargs, instance)


def entry_of(call: Call, queue: str, timeout: int | None) -> dict[str, Any]:
    """Return an entry, without its id and when it happens: what is called, where and how long."""
    entry: dict[str, Any] = {"workflow": call.workflow, "queue": queue, **AS_BEFORE}
    if call.args:
        entry["args"] = call.args
    if call.kwargs:
        entry["kwargs"] = call.kwargs
    if timeout is not None:
        entry["timeout"] = timeout if 0 < timeout <= MAX_TIMEOUT else MAX_TIMEOUT
    return entry


def lost_timeout(timeout: int | None) -> Iterator[str]:
    """Yield what changes of a timeout."""
    if timeout is None:
        yield NO_TIMEOUT
    elif not 0 < timeout <= MAX_TIMEOUT:
        yield f"It may take for ever: here at most {MAX_TIMEOUT // 86_400} days."


def described(text: str | None, call: Call) -> dict[str, Any]:
    """Return a job's description as an option, unless it is the one that RQ makes of the call."""
    if not text or text.startswith(f"{call.workflow}("):
        return {}
    return {"description": text[:MOST_DESCRIBED]}
