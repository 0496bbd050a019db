"""Read a job of RQ from its hash in Redis: its function, arguments and timeout.

This does not use RQ's own code for jobs. The module `unpickle` loads the pickles in the hash.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rqsched.importers.source import AS_BEFORE, MOST_DESCRIBED
from rqsched.importers.unpickle import NotReadableError, loaded, what_is
from rqsched.kernel.decide.options import MAX_TIMEOUT
from rqsched.workflows import is_path

NO_TIMEOUT = "It has no timeout of its own: it gets RQSCHED_RUN_TIMEOUT instead of its queue's (RQ's default is 180 s)."
_MOST_BYTES = 1024 * 1024
"""The maximum size of a decompressed field of a job: four times the limit of a schedule's arguments."""


class Call(NamedTuple):
    """The call that a job makes."""

    workflow: str
    """The dotted path of the function."""
    args: list[Any]
    """Its positional arguments as JSON values."""
    kwargs: dict[str, Any]
    """Its keyword arguments as JSON values."""
    lost: tuple[str, ...] = ()
    """A sentence for each thing that is lost or changes."""


def pickles_in(fields: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the pickles in a job's hash. There are none if RQ wrote the hash with its JSON serializer."""
    for name in ("data", "meta"):
        try:
            data = _field(fields, name)
        except NotReadableError:  # `read_field` raises it again
            continue
        if data and not _is_json(data):
            yield data


def read_field(fields: Mapping[str, bytes], name: str, unpickled: Mapping[bytes, Any]) -> Any:
    """Return the value of the field `data` or `meta`, from any serializer of RQ; raises NotReadableError.

    `unpickled` holds the values of the pickles from `pickles_in`.
    """
    data = _field(fields, name)
    if not data:
        raise NotReadableError(f"its {name} is empty")
    if not _is_json(data):
        return loaded(unpickled, data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise NotReadableError(f"its {name} is not valid JSON") from None


def _is_json(data: bytes) -> bool:
    return data[:1] in {b"[", b"{"}  # no pickle begins with these


def _field(fields: Mapping[str, bytes], name: str) -> bytes:
    """Return a field, decompressed if needed; raises NotReadableError if the decompressed field is too large."""
    data = fields.get(name, b"")
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, _MOST_BYTES)
    except zlib.error:  # it is not compressed
        return data
    if inflater.unconsumed_tail:
        raise NotReadableError(f"its {name} has more than {_MOST_BYTES} bytes, which is the limit")
    return found


def call_of(function: object, args: Any, kwargs: Any, instance: object = None) -> Call:
    """Return a call as a schedule can make it; raises NotReadableError, with the reason, if no schedule can."""
    if instance is not None:
        raise NotReadableError(
            f"it calls a method of {what_is(instance)}, but a workflow must be a function: write one"
        )
    if not isinstance(function, str) or not is_path(function):
        raise NotReadableError(
            f"it calls {function!r}, but a workflow must be a function in a module: move it into one"
        )
    given = list(args or ()), dict(kwargs or {})
    named = _checked("an argument", given[0]), _checked("a keyword argument", given[1])
    lost = ["A tuple among its arguments becomes a list."] if named != given else []
    owner = function.split(".")[-2]
    if owner[:1].isupper():
        lost.append(
            f"{owner} of {function} looks like a class: a workflow must be a function in a module, so write one."
        )
    return Call(function, *named, tuple(lost))


def _checked(what: str, values: Any) -> Any:
    try:
        return _json(values)
    except RecursionError:
        reason = "is nested too deeply"
    except NotReadableError as error:
        reason = str(error)
    raise NotReadableError(f"{what} {reason}: see docs/concepts.md for allowed values")


def _json(value: Any) -> Any:
    """Return a value as a JSON value, with tuples as lists; raises NotReadableError for other Python values."""
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
    """Return the call of the job in a hash; raises NotReadableError."""
    found = read_field(fields, "data", unpickled)
    if not isinstance(found, list | tuple) or len(found) != 4:
        raise NotReadableError("it lacks the function, instance and arguments that RQ's jobs have")
    function, instance, args, kwargs = found
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise NotReadableError("its arguments are not a list and a dict")
    return call_of(function, args, kwargs, instance)


def entry_of(call: Call, queue: str, timeout: int | None) -> dict[str, Any]:
    """Return an entry without its id and timing: the call, its queue and its timeout."""
    entry: dict[str, Any] = {"workflow": call.workflow, "queue": queue, **AS_BEFORE}
    if call.args:
        entry["args"] = call.args
    if call.kwargs:
        entry["kwargs"] = call.kwargs
    if timeout is not None:
        entry["timeout"] = timeout if 0 < timeout <= MAX_TIMEOUT else MAX_TIMEOUT
    return entry


def lost_timeout(timeout: int | None) -> Iterator[str]:
    """Yield a sentence if the schedule gets another timeout."""
    if timeout is None:
        yield NO_TIMEOUT
    elif not 0 < timeout <= MAX_TIMEOUT:
        yield f"It has no timeout; in rqsched it may take at most {MAX_TIMEOUT // 86_400} days."


def described(text: str | None, call: Call) -> dict[str, Any]:
    """Return a job's description as an option. If RQ made the description from the call, return nothing."""
    if not text or text.startswith(f"{call.workflow}("):
        return {}
    return {"description": text[:MOST_DESCRIBED]}
