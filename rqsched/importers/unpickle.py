"""Load pickles of trusted sources in a separate process, which answers in JSON.

Loading a pickle can run any code, so `unpickle` loads pickles only if the source is trusted. The process has limits, so
that endless loops, memory bombs and crashes do not stop the import. The process is not a sandbox: loaded code has the
rights of the command.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, tzinfo
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from rqsched.errors import ConfigError, InvalidInputError

_MOST_CHARACTERS = 1024 * 1024
"""The longest answer about one pickle: four times the limit of a schedule's arguments."""
_LOOK_SECONDS = 1
_TAG = "\0"
"""The key that marks a Python object in JSON. Arguments of a workflow cannot have it, because payloads refuse NUL."""


class NotReadableError(Exception):
    """Bytes that cannot be loaded, or a value that no schedule can have."""


class Object(NamedTuple):
    """A Python value that JSON cannot represent, as described by the process that loaded it."""

    name: str
    """The dotted name of its class. If the value is itself a class or function: `class` or `function`, and its name."""
    state: Any = None
    """The attributes, if the caller asked for those of this class. For a time zone, its name or offset."""


class Limits(NamedTuple):
    """The limits of the process."""

    cpu_seconds: int = 20
    """The processor time for one pickle, including the imports that it causes."""
    seconds: float = 60
    """The elapsed time for one pickle, and for the start of the process."""
    memory: int = 2 * 1024**3
    """The bytes of its address space."""


_LIMITS = Limits()


def unpickle(
    pickles: Iterable[bytes], own: Collection[str] = (), *, is_trusted: bool, limits: Limits = _LIMITS
) -> Mapping[bytes, Any]:
    """Load pickles. Return for each pickle its value, or a NotReadableError with the reason why it cannot be read.

    A value consists of JSON values, tuples, dates, times and spans. Any other Python value becomes an `Object`, which
    has attributes if the value's class is in `own`. One process loads all pickles. If a pickle ends the process,
    another process loads the pickles after it. Raises InvalidInputError if there are pickles and the source is not
    trusted.
    """
    left, found = [*dict.fromkeys(pickles)], dict[bytes, Any]()
    if left and not is_trusted:
        raise InvalidInputError(
            "--trust-source",
            "is missing: the source stores jobs as pickles, and loading a pickle can run any code. With this option a "
            "separate process loads them, with your rights and with limits of time and memory. Give it only if you "
            "trust everybody who can write to the source",
        )
    while left:
        answers, why_ended = _ask(left, own, limits)
        found.update(zip(left, answers, strict=False))
        if len(answers) < len(left):
            found[left[len(answers)]] = NotReadableError(why_ended)
        left = left[len(answers) + 1 :]
    return found


def loaded(found: Mapping[bytes, Any], data: bytes) -> Any:
    """Return the value of a pickle from the result of `unpickle`; raises its NotReadableError."""
    value = found[data]
    if isinstance(value, NotReadableError):
        raise value
    return value


def what_is(value: Any) -> str:
    """Return the type of a value with an article: `a datetime`, `an app.models.User`."""
    name = value.name if isinstance(value, Object) else type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _ask(pickles: Sequence[bytes], own: Collection[str], limits: Limits) -> tuple[list[Any], str]:
    """Return the answers of one process, and the reason if it ended early. Raises ConfigError if it does not start."""
    path = sys.path if "" in sys.path else ["", *sys.path]
    call = f"answer({sorted(own)!r}, Limits(*{tuple(limits)!r}))"
    code = f"import sys; sys.path[:] = {path!r}; from {__name__} import Limits, answer; {call}"
    # Use files, because pipes could block: each side may wait for the other, or a child process may keep one open.
    with TemporaryFile() as asked, TemporaryFile() as answered:
        asked.writelines(b64encode(data) + b"\n" for data in pickles)
        asked.seek(0)
        process = subprocess.Popen(  # noqa: S603 - this interpreter, with code of ours
            [sys.executable, "-c", code], stdin=asked, stdout=answered, start_new_session=True
        )
        try:
            why_ended = _wait(process, answered, limits, most=(len(pickles) + 1) * _MOST_CHARACTERS)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # kills its child processes too
            process.wait()
        answered.seek(0)
        if not answered.readline(_MOST_CHARACTERS).endswith(b"\n"):
            raise ConfigError(f"The process that loads pickles does not start: {why_ended}. See its output above.")
        answers = list[Any]()
        while len(answers) < len(pickles) and (line := answered.readline(_MOST_CHARACTERS)).endswith(b"\n"):
            try:
                answers.append(_read(line, len(answers)))
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
                return answers, "the process that loaded it wrote an invalid answer"
    return answers, why_ended


def _wait(process: subprocess.Popen[bytes], answered: IO[bytes], limits: Limits, most: int) -> str:
    """Wait until the process ends, stops answering or answers too much. Return a text that says which it was."""
    size, until = 0, time.monotonic() + limits.seconds
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(min(_LOOK_SECONDS, limits.seconds))
            if code == -signal.SIGXCPU:
                return f"loading it took more than {limits.cpu_seconds} s of processor time"
            return f"loading it ended the loading process ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
        last, size = size, os.fstat(answered.fileno()).st_size
        if size > most:
            return "the process that loaded it wrote too much"
        if size > last:
            until = time.monotonic() + limits.seconds
        elif time.monotonic() > until:
            return f"loading it took longer than {limits.seconds:g} s"


def _read(line: bytes, number: int) -> Any:
    """Return the value in an answer, or the NotReadableError that it reports. A wrong answer may raise any error."""
    answered, value, error = json.loads(line, object_hook=made)
    if answered != number:
        raise ValueError(answered)
    return value if error is None else NotReadableError(error)


_MAKERS: Mapping[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "datetime.datetime": datetime.fromisoformat,
    "datetime.date": date.fromisoformat,
    "datetime.timedelta": lambda parts: timedelta(*parts),
}


def made(found: dict[str, Any]) -> Any:
    """Return the Python value of a JSON object that `told` made. This is the object hook of a JSON decoder."""
    if _TAG not in found:
        return found
    name, state = found[_TAG], found["state"]
    return _MAKERS[name](state) if name in _MAKERS else Object(name, state)


def answer(own: Sequence[str], limits: Limits) -> None:
    """Run as the separate process: read one pickle from each line of stdin, and write a line of JSON about it."""
    pickles = [b64decode(line) for line in sys.stdin.buffer.read().splitlines()]
    answers, pid = os.fdopen(os.dup(1), "wb", buffering=0), os.getpid()
    os.dup2(2, 1)  # output of loaded code goes to stderr, so that it cannot be taken for an answer
    _limit(resource.RLIMIT_AS, limits.memory)
    _limit(resource.RLIMIT_CORE, 0)
    answers.write(b"\n")
    for number, data in enumerate(pickles):
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + limits.cpu_seconds)
        signal.alarm(math.ceil(2 * limits.seconds))  # ends a hang if the import was killed
        value, error = _answer(data, own, limits.memory)
        if os.getpid() != pid:  # this is a process that loading the pickle forked
            break
        answers.write(f"[{number}, {value}, {json.dumps(error)}]\n".encode())
    os._exit(0)  # do not wait for threads of loaded code


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    with suppress(ValueError):  # macOS refuses to limit memory
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _answer(data: bytes, own: Collection[str], memory: int) -> tuple[str, str | None]:
    """Return the value of a pickle as JSON, or `null` and the reason why it cannot be read."""
    try:
        text = json.dumps(told(pickle.loads(data), own))  # noqa: S301 - the user trusts the source
    except MemoryError:
        return "null", f"loading it takes more than {memory >> 20} MiB of memory"
    except BaseException as error:  # noqa: BLE001 - even SystemExit must not stop the next pickle
        why = traceback.format_exception_only(error)[-1].strip()
        return "null", f"loading it raised {why[:500]}"
    if len(text) > _MOST_CHARACTERS - 100:  # the rest of the line has fewer than 100 characters
        return "null", f"it has more than {_MOST_CHARACTERS} characters as JSON"
    return text, None


def told(value: Any, own: Collection[str] = ()) -> Any:
    """Return a value as a JSON value. If JSON lacks this value, return an object that names its class under a tag."""
    kind = type(value)
    if value is None or kind in {bool, int, float, str}:
        return value
    if kind is list:
        return [told(item, own) for item in value]
    if kind is not dict:
        return _tagged(value, own)
    if odd := [key for key in value if type(key) is not str or key == _TAG]:
        return {_TAG: f"dict with a key that is {what_is(odd[0])}", "state": None}
    return {key: told(item, own) for key, item in value.items()}


def _tagged(value: Any, own: Collection[str]) -> dict[str, Any]:
    kind, state = type(value), None
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        name = f"{'class' if isinstance(value, type) else 'function'} {value.__module__}.{value.__qualname__}"
    elif kind is tuple:
        state = [told(item, own) for item in value]
    elif kind in {date, datetime}:
        state = value.isoformat()
    elif kind is timedelta:
        state = [value.days, value.seconds, value.microseconds]
    elif isinstance(value, tzinfo):
        state = getattr(value, "key", None) or getattr(value, "zone", None) or told(value.utcoffset(None))
    elif name in own:
        state = told(value.__getstate__(), own)
    return {_TAG: name, "state": state}
