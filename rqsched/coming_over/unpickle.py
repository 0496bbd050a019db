"""Reads pickles of others without running their code: plain values, times, and objects by the names of their classes.

A pickle is a program: it may import anything and call it. This reader imports nothing. Of the names that it meets it
knows times and zones; every other one becomes an `Object`, which is its name and the values it would be made from.
`Unpickled.unread` lists those that the caller did not expect.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import partial
from io import BytesIO
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

MOST_BYTES = 1024 * 1024
"""The largest pickle that is read: four times as much as a schedule's arguments may have."""
_MOST_VALUES = 100_000
"""How many values are read: a small pickle that refers to its parts again and again stands for very many."""
_MOST_LEVELS = 64
_MOST_ENCODED = 1_000
_MOST_ARGS = 16
"""How many arguments a time or zone has at most, and a tuple that is a key how many parts."""
_GREAT = 2**61 - 1
"""Multiples of it have one hash, and a dict of them takes hours."""


class NotReadableError(Exception):
    """Bytes that are no pickle, are too many, or stand for what is not read."""


class Object:
    """An object whose class was not imported."""

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name = name
        """The module and name of its class, or of the function that would make it: `app.models.User`."""
        self.args = args
        """What it would be made with."""
        self.state: Any = None
        """What it was given afterwards: mostly a dict of its attributes."""
        self.items: list[Any] = []
        """What it holds, if it is a kind of list, set or dict."""

    def append(self, item: Any) -> None:
        """Hold what a list would."""
        self.items.append(item)

    add = append

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


class Name:
    """A class or function that was named and not imported."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The module and name: `os.system`."""


class Unpickled(NamedTuple):
    """What a pickle holds."""

    value: Any
    """The value, in which an `Object` or a `Name` stands for what was not imported."""
    unread: tuple[str, ...] = ()
    """The names of those that the caller did not expect, sorted."""


def unpickle(data: bytes, own: Collection[str] = (), *, is_trusted: bool = False) -> Unpickled:
    """Read a pickle of at most 1 MiB; raises NotReadableError, and runs no code of others unless it `is_trusted`.

    `own` are the classes that the caller expects, and reads as an `Object` of that name. A trusted pickle is loaded as
    Python does it, with whatever it imports and calls.
    """
    if len(data) > MOST_BYTES:
        raise NotReadableError(f"it has {len(data)} bytes, and at most {MOST_BYTES} are read")
    if is_trusted:
        return _loaded(data)
    reader = _Reader(data)
    try:
        value = reader.load()
    except Exception as error:
        raise NotReadableError(f"it is not a whole pickle ({type(error).__name__})") from error
    if _is_large(value):
        raise NotReadableError("it is too large, or nested too deeply")
    return Unpickled(value, tuple(sorted(reader.named - set(own))))


def _loaded(data: bytes) -> Unpickled:
    try:
        return Unpickled(pickle.loads(data))  # noqa: S301 - the user has said that the source is to be trusted
    except Exception as error:
        raise NotReadableError(f"loading it raised {type(error).__name__}: {error}") from error


def decompress(data: bytes) -> bytes:
    """Undo zlib; bytes that are not compressed stay what they are. Raises NotReadableError for too many."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, MOST_BYTES)
    except zlib.error:
        return data
    if inflater.unconsumed_tail:
        raise NotReadableError(f"it has more than {MOST_BYTES} bytes, which is as much as is read")
    return found


class _NamedZone(tzinfo):
    """A zone that knows its name, in place of one of dateutil's, whose state is its whole file."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._zone = _named_zone(key)

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        return self._zone.utcoffset(at)

    def dst(self, at: datetime | None) -> timedelta | None:
        return self._zone.dst(at)

    def tzname(self, at: datetime | None) -> str | None:
        return self._zone.tzname(at)


class _OffsetZone(tzinfo):
    """A zone of a fixed offset that its state says, in place of dateutil's `tzoffset` before its release 3."""

    offset: timedelta | None = None

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        del at
        return self.offset

    def dst(self, at: datetime | None) -> None:
        del at

    def tzname(self, at: datetime | None) -> None:
        del at


def _zone_of_file(_: object, path: str, *rest: object) -> tzinfo:
    """Return the zone of dateutil's `tzfile`, by the place of its file; the file itself is not opened."""
    del rest
    return _NamedZone(path.rpartition("zoneinfo/")[2])


def _keyed_zone(_: object, key: str | None, path: str, *rest: object) -> tzinfo:
    return _NamedZone(key) if key else _zone_of_file(None, path, *rest)


def _named_zone(key: object, *rest: object) -> tzinfo:
    del rest
    if not isinstance(key, str):
        raise NotReadableError("it names a zone by what is no text")
    return ZoneInfo(key)


def _wrapped(zone: tzinfo, *rest: object) -> tzinfo:
    """Return the zone that tzlocal before its release 5 has put into a shim."""
    del rest
    return zone


def _utc(*args: object) -> tzinfo:
    del args
    return UTC


def _fixed(_: object = None, offset: float | timedelta | None = None) -> tzinfo:
    if offset is None:
        return _OffsetZone()
    return timezone(offset if isinstance(offset, timedelta) else timedelta(seconds=offset))


def _ordered() -> dict[Any, Any]:
    return {}


def _moment(kind: Callable[..., Any], *args: Any) -> Any:
    """Make a time; with a zone that was not imported, an `Object`."""
    return Object(f"datetime.{kind.__name__}", args) if any(isinstance(one, Object) for one in args) else kind(*args)


def _encoded(text: str, encoding: str) -> bytes:
    """Make bytes as protocols before 3 have them."""
    if encoding != "latin1" or len(text) > _MOST_ENCODED:
        raise NotReadableError("it encodes a long text")
    return text.encode(encoding)


def _attribute(kind: object, name: object) -> _Maker:
    """Return the one attribute that is asked for by a pickle of ours: what makes a ZoneInfo."""
    if kind is not _ZONE_INFO or name != "_unpickle":
        raise NotReadableError("it asks for an attribute")
    return _ZONE_INFO


_OBJECT = Name("builtins.object")


def _rebuilt(kind: Any, base: object, state: object) -> Any:
    """Make what protocols 0 and 1, and classes that ask for it, are made with."""
    if isinstance(kind, Name):
        return Object(kind.name, (base, state))
    is_zone = isinstance(state, Object) and state.name == "datetime.tzinfo"
    if not is_zone and (base is not _OBJECT or state is not None):
        raise NotReadableError("it is made of another object")
    return kind()


class _Maker:
    """One of the functions that a pickle may call."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Any:
        """Make the value."""
        if len(args) > _MOST_ARGS:
            raise NotReadableError("it calls with very many arguments")
        return self.call(*args)


_ZONE_INFO = _Maker(_named_zone)
_MAKERS: Mapping[tuple[str, str], _Maker] = {
    ("builtins", "getattr"): _Maker(_attribute),
    ("_codecs", "encode"): _Maker(_encoded),
    ("datetime", "date"): _Maker(date),
    ("datetime", "datetime"): _Maker(partial(_moment, datetime)),
    ("datetime", "time"): _Maker(partial(_moment, time)),
    ("datetime", "timedelta"): _Maker(timedelta),
    ("datetime", "timezone"): _Maker(timezone),
    ("zoneinfo", "ZoneInfo._unpickle"): _ZONE_INFO,
    ("zoneinfo", "ZoneInfo"): _ZONE_INFO,
    ("pytz", "_p"): _Maker(_named_zone),
    ("pytz", "_UTC"): _Maker(_utc),
    ("pytz", "_FixedOffset"): _Maker(lambda minutes: timezone(timedelta(minutes=minutes))),
    ("pytz_deprecation_shim._impl", "wrap_zone"): _Maker(_wrapped),
    ("dateutil.tz.tz", "tzutc"): _Maker(_utc),
    ("dateutil.tz.tz", "tzoffset"): _Maker(_fixed),
    ("dateutil.tz.tz", "tzfile"): _Maker(_zone_of_file),
    ("dateutil.tz._tzfile", "tzfile"): _Maker(_zone_of_file),
    ("dateutil.tz._tzfile", "_unpickle"): _Maker(_keyed_zone),
    ("collections", "OrderedDict"): _Maker(_ordered),
    ("copyreg", "_reconstructor"): _Maker(_rebuilt),
}
"""What is called in place of what a pickle names. None of them opens, imports or copies anything large."""


_PARTS_OF_ZONES = {("dateutil.tz.tz", "_ttinfo"), ("datetime", "tzinfo")}
"""What a zone of dateutil before its release 3 is made of; it is read by its name or offset."""
_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""What protocols before 3 call modules."""


_HASHING: Mapping[int, slice] = {
    pickle.SETITEM[0]: slice(-2, -1),
    pickle.SETITEMS[0]: slice(None, None, 2),
    pickle.DICT[0]: slice(None, None, 2),
    pickle.ADDITEMS[0]: slice(None),
    pickle.FROZENSET[0]: slice(None),
}
"""The codes that hash what they hold, and where on the stack that is."""


def _with_quick_keys(load: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """Return a step that refuses keys that take for ever: their hash cannot be interrupted."""

    def checked(reader: Any) -> None:
        if not all(map(_is_quick, reader.stack[keys])):
            raise NotReadableError("it has keys that take very long")
        load(reader)

    return checked


def _is_quick(key: object) -> bool:
    if isinstance(key, tuple):
        return len(key) <= _MOST_ARGS and not any(isinstance(one, tuple) or not _is_quick(one) for one in key)
    return not isinstance(key, int) or abs(key) < _GREAT


class _Reader(pickle._Unpickler):
    """The unpickler of the standard library, in Python: the one in C sets aside memory for whatever index is named.

    Whatever can be called comes from `find_class`, so a call is one of _MAKERS or makes an `Object`.
    """

    stack: list[Any]
    append: Callable[[Any], None]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data))
        self.named: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        """Return what makes an object of this name; nothing is imported."""
        module = _PYTHON_2.get(module, module)
        if (module, name) == ("builtins", "object"):
            return _OBJECT
        known = _MAKERS.get((module, name))
        if known is not None:
            return known
        if (module, name) not in _PARTS_OF_ZONES:
            self.named.add(f"{module}.{name}")
        return Name(f"{module}.{name}")

    def get_extension(self, code: int) -> None:
        """Refuse the codes by which a process may abbreviate names."""
        raise NotReadableError(f"it uses the extension {code}")

    def _make(self, kind: Any, args: Any) -> None:
        if not isinstance(args, tuple):  # to copy a list that is named again and again takes any memory
            raise NotReadableError("it calls with what is no tuple")
        if isinstance(kind, Name):
            self.append(Object(kind.name, args))
        elif isinstance(kind, _Maker):
            self.append(kind(*args))
        else:
            raise NotReadableError("it calls what is not a class")

    def load_reduce(self) -> None:
        args, kind = self.stack.pop(), self.stack.pop()
        self._make(kind, args)

    def load_newobj_ex(self) -> None:
        kwargs, args, kind = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self._make(kind, (args, kwargs) if kwargs else args)

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, Object):
            made.state = state
        elif isinstance(made, _OffsetZone):
            made.offset = state["_offset"]
        elif not isinstance(made, _NamedZone):
            raise NotReadableError("it changes what is not an object")

    def _instantiate(self, kind: Any, args: Any) -> None:
        self._make(kind, tuple(args))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_reduce
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = dispatch[pickle.BINBYTES8[0]]  # its own sets aside as much as is named
    for _code, _keys in _HASHING.items():
        dispatch[_code] = _with_quick_keys(dispatch[_code], _keys)


class Plain(NamedTuple):
    """A value of JSON, and whether it was one."""

    value: Any
    """The value, without tuples."""
    had_tuples: bool = False
    """Whether a tuple became a list."""


def plain(value: Any) -> Plain:
    """Return a value as JSON has it, tuples as lists; raises NotReadableError for anything else, and for too much."""
    if _is_large(value):
        raise NotReadableError("is too large, or nested too deeply")
    copier = _Copier()
    return Plain(copier.copy(value), copier.had_tuples)


def _is_large(value: object) -> bool:
    """Return whether a value is nested too deeply, or too many, each counted as often as it is referred to."""
    left, found = _MOST_VALUES, [(value, 0)]
    while found:
        one, level = found.pop()
        parts = _parts(one)
        left -= len(parts)
        if left < 0 or level > _MOST_LEVELS:
            return True
        found.extend((part, level + 1) for part in parts)
    return False


def _parts(value: object) -> Collection[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, Object):
        return [value.args, value.state, value.items]
    return value if isinstance(value, list | tuple | set | frozenset) else ()


class _Copier:
    """Copies a value of JSON."""

    def __init__(self) -> None:
        self.had_tuples = False

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in {str, int, float, bool, type(None)}:
            return value
        if kind in {list, tuple}:
            self.had_tuples |= kind is tuple
            return [self.copy(item) for item in value]
        if kind is dict:
            return {self._key(key): self.copy(item) for key, item in value.items()}
        raise NotReadableError(f"holds {what_is(value)}, which is not JSON")

    def _key(self, key: Any) -> str:
        if type(key) is not str:
            raise NotReadableError(f"has a key that is {what_is(key)}, and in JSON keys are text")
        return key


def what_is(value: Any) -> str:
    """Return the kind of a value in words: `a datetime`, `an app.models.User`."""
    name = value.name if isinstance(value, Object | Name) else type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
