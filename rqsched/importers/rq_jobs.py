"""Reads a job of RQ: its function, its arguments, its timeout, and which of them a schedule can have.

The hash of a job is read as RQ's own releases write it, without RQ: its pickles are loaded by `unpickle`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rqsched.importers.source import AS_BEFORE, MOST_DESCRIBED
from rqsched.importers.unpickle import NotReadableError, loaded, what_is
from rqsched.kernel.decide.option_table import MAX_TIMEOUT
from rqsched.workflows import is_path

NO_TIMEOUT = "It has no timeout of its own: in place of its queue's (RQ's is 180 s) it has RQSCHED_RUN_TIMEOUT."
_MOST_BYTES = 1024 * 1024
"""How much one compressed field of a job may hold: four times as much as a schedule's arguments may have."""


class Call(NamedTuple):
    """The call that a job makes."""

    workflow: str
    """The dotted path of the function."""
    args: list[Any]
    """Its positional arguments, of JSON."""
    kwargs: dict[str, Any]
    """Its keyword arguments, of JSON."""
    lost: tuple[str, ...] = ()
    """A sentence for each thing that changes."""


def pickles_in(fields: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the pickles in a job's hash; there are none if RQ wrote it with its serializer of JSON."""
    for name in ("data", "meta"):
        try:
            data = _field(fields, name)
        except NotReadableError:  # `read_field` raises it again
            continue
        if data and not _is_json(data):
            yield data


def read_field(fields: Mapping[str, bytes], name: str, unpickled: Mapping[bytes, Any]) -> Any:
    """Return what one of RQ's serializers wrote into `data` or `meta`; raises NotReadableError.

    `unpickled` has the values of its pickles, see `pickles_in`.
    """
    data = _field(fields, name)
    if not data:
        raise NotReadableError(f"its {name} is empty")
    if not _is_json(data):
        return loaded(unpickled, data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise NotReadableError(f"its {name} is not whole JSON") from None


def _is_json(data: bytes) -> bool:
    return data[:1] in {b"[", b"{"}  # with which no pickle begins


def _field(fields: Mapping[str, bytes], name: str) -> bytes:
    """Return a field, decompressed if it is compressed; raises NotReadableError if it unpacks to too much."""
    data = fields.get(name, b"")
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, _MOST_BYTES)
    except zlib.error:  # it is not compressed
        return data
    if inflater.unconsumed_tail:
        raise NotReadableError(f"its {name} has more than {_MOST_BYTES} bytes, which is as much as is read")
    return found


def call_of(function: object, args: Any, kwargs: Any, instance: object = None) -> Call:
    """Check that a call can be that of a workflow; raises NotReadableError, which says why it cannot."""
    if instance is not None:
        raise NotReadableError(f"it calls a method of {what_is(instance)}, and a workflow is a function: write one")
    if not isinstance(function, str) or not is_path(function):
        raise NotReadableError(f"it calls {function!r}, and a workflow is a function in a module: move it into one")
    given = list(args or ()), dict(kwargs or {})
    named = _checked("an argument", given[0]), _checked("a keyword argument", given[1])
    lost = ["A tuple among its arguments becomes a list."] if named != given else []
    owner = function.split(".")[-2]
    if owner[:1].isupper():
        lost.append(
            f"{owner} of {function} looks like a class: a worker finds functions of modules only, so write one."
        )
    return Call(function, *named, tuple(lost))


def _checked(what: str, values: Any) -> Any:
    try:
        return _json(values)
    except RecursionError:
        reason = "is nested too deeply"
    except NotReadableError as error:
        reason = str(error)
    raise NotReadableError(f"{what} {reason}: docs/arguments.md says what to pass")


def _json(value: Any) -> Any:
    """Return a value as JSON has it, tuples as lists; raises NotReadableError for anything else."""
    kind = type(value)
    if kind in {str, int, float, bool, type(None)}:
        return value
    if kind in {list, tuple}:
        return [_json(item) for item in value]
    if kind is not dict:
        raise NotReadableError(f"holds {what_is(value)}, which is not JSON")
    if odd := [key for key in value if type(key) is not str]:
        raise NotReadableError(f"holds a dict with a key that is {what_is(odd[0])}, which is not JSON")
    return {key: _json(item) for key, item in value.items()}


def call_in(fields: Mapping[str, bytes], unpickled: Mapping[bytes, Any]) -> Call:
    """Return what the job of a hash calls; raises NotReadableError."""
    found = read_field(fields, "data", unpickled)
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
