"""Pickles of others are read without running them, whatever they say."""

from __future__ import annotations

import builtins
import os
import pickle
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import dateutil.tz  # type: ignore[import-untyped]
import pytest

from rqsched.coming_over.unpickle import (
    MOST_BYTES,
    Name,
    NotReadableError,
    Object,
    decompress,
    plain,
    unpickle,
    what_is,
)

BERLIN = ZoneInfo("Europe/Berlin")
AT = datetime(2026, 1, 15, 12, tzinfo=UTC)
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
NATIVE = [
    None,
    True,
    -7,
    2**70,
    1.5,
    "text",
    b"bytes",
    [1, [2]],
    (1, (2,)),
    {"a": {"b": [None]}},
    AT,
    AT.replace(tzinfo=None),
    AT.astimezone(BERLIN),
    AT.astimezone(timezone(timedelta(hours=5, minutes=30))),
    AT.date(),
    time(8, 30),
    timedelta(days=1, microseconds=3),
    OrderedDict(b=1, a=2),
]


class Stranger:
    """A class that a reader does not know."""

    def __init__(self) -> None:
        self.name = "x"


class Calls:
    """Its pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", NATIVE, ids=repr)
def test_plain_values_and_times_are_read_as_they_were(value: object, protocol: int) -> None:
    found = unpickle(pickle.dumps(value, protocol))
    assert (found.value, found.unread) == (value, ())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "zone", [dateutil.tz.gettz("Europe/Berlin"), dateutil.tz.tzutc(), dateutil.tz.tzoffset("x", 3600)], ids=repr
)
def test_zones_of_dateutil_are_read_by_their_names(zone: Any, protocol: int) -> None:
    at = AT.astimezone(zone)
    found = unpickle(pickle.dumps(at, protocol))
    assert (found.value, found.value.utcoffset(), found.unread) == (at, at.utcoffset(), ())


@pytest.mark.parametrize(
    ("makes", "offset"),
    [
        (b"cpytz\n_UTC\n(tR.", timedelta(0)),
        (b"cpytz\n_p\n(VEurope/Berlin\nI3180\nI0\nVLMT\ntR.", timedelta(hours=1)),
        (b"cpytz\n_FixedOffset\n(I90\ntR.", timedelta(minutes=90)),
        (
            b"cpytz_deprecation_shim._impl\nwrap_zone\n(czoneinfo\nZoneInfo\n(VEurope/Berlin\ntRVx\ntR.",
            timedelta(hours=1),
        ),
    ],
    ids=["utc", "named", "fixed", "in a shim"],
)
def test_zones_of_pytz_are_read_without_pytz(makes: bytes, offset: timedelta) -> None:
    found = unpickle(makes)
    assert (AT.astimezone(found.value).utcoffset(), found.unread) == (offset, ())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_is_its_name_and_state(protocol: int) -> None:
    found = unpickle(pickle.dumps([1, Stranger()], protocol))
    made = found.value[1]
    assert (found.unread, found.value[0]) == ((f"{__name__}.Stranger",), 1)
    assert isinstance(made, Object)
    assert (made.name, made.state) == (f"{__name__}.Stranger", {"name": "x"})


def test_a_class_that_the_caller_expects_is_not_told() -> None:
    name = f"{__name__}.Stranger"
    found = unpickle(pickle.dumps(Stranger()), own={name})
    assert (found.value.name, found.unread) == (name, ())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [UUID(int=7), Decimal("1.5"), frozenset({1}), Path("x"), 1j, range(3), AT.astimezone(dateutil.tz.tzlocal())],
)
def test_other_values_are_never_json(value: object, protocol: int) -> None:
    with pytest.raises(NotReadableError, match="which is not JSON"):
        plain(unpickle(pickle.dumps(value, protocol)).value)


ATTACKS = {
    "os.system": Calls(os.system, "touch {}"),
    "eval": Calls(eval, "open('{}', 'w')"),
    "exec": Calls(exec, "open('{}', 'w')"),
    "open": Calls(open, "{}", "w"),
    "import": Calls(__import__, "tests.coming_over.bomb"),
    "a function as a value": [os.remove, "{}"],
    "a call in a call": Calls(builtins.map, Calls(os.system, "touch {}"), [1]),
    "pickle in a pickle": Calls(pickle.loads, pickle.dumps(Calls(open, "{}", "w"))),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_call_is_named_and_not_made(attack: Any, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    data = pickle.dumps(attack, protocol).replace(b"{}", b"xx")
    found = unpickle(data)
    assert found.unread
    assert not mark.exists()
    assert isinstance(found.value, Object | list)


def test_the_same_pickle_is_run_where_the_source_is_trusted(tmp_path: Path) -> None:
    data = pickle.dumps(Calls(open, str(tmp_path / "mark"), "w"))
    assert isinstance(unpickle(data).value, Object)
    assert not (tmp_path / "mark").exists()
    unpickle(data, is_trusted=True).value.close()
    assert (tmp_path / "mark").exists()


CHAINS = {
    "an attribute of a class that is known": b"cbuiltins\ngetattr\n(cdatetime\ndatetime\nV__class__\ntR.",
    "an attribute of an attribute": b"cbuiltins\ngetattr\n(cos\nsystem\nV__globals__\ntR.",
    "ZoneInfo's other attributes": b"cbuiltins\ngetattr\n(czoneinfo\nZoneInfo\nV__init__\ntR.",
    "a path of a file": b"czoneinfo\nZoneInfo\n(V../../../etc/passwd\ntR.",
    "a path of dateutil": b"cdateutil.tz.tz\ntzfile\n(NV/etc/passwd\ntR.",
    "a state for a class": b"cdatetime\ndatetime\n(dVx\nI1\nsb.",
    "a state for a function": b"ccopyreg\n_reconstructor\n(dVcall\nI1\nsb.",
    "a state for a value": b"(lV__class__\n(dVx\nI1\nsb.",
    "a value that is called": b"Vtext\n(tR.",
    "an object that is called": b"cos\nsystem\n(Vx\ntR(tR.",
    "another process's object": b"Pid\n.",
    "an extension": b"\x82\x01.",
    "an unknown code": b"\xff.",
    "what stops early": b"(lVa",
    "an empty one": b"",
    "too long a text to encode": b"c_codecs\nencode\n(V" + b"a" * 2000 + b"\nVlatin1\ntR.",
    "a number of very many digits": b"L" + b"9" * 100_000 + b"L\n.",
    "a text that is said to be longer": b"\x8d" + struct.pack("<Q", 1 << 60) + b"abc.",
    "bytes that are said to be longer": b"\x8e" + struct.pack("<Q", 1 << 60) + b"abc.",
}


@pytest.mark.parametrize("data", CHAINS.values(), ids=CHAINS.keys())
def test_what_is_not_a_plain_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(NotReadableError):
        unpickle(data)


def test_a_great_index_takes_no_memory() -> None:
    assert unpickle(b"I7\nr" + struct.pack("<I", 2**32 - 1) + b".").value == 7


def test_too_many_bytes_are_refused_before_they_are_read() -> None:
    with pytest.raises(NotReadableError, match="bytes"):
        unpickle(pickle.dumps("a" * MOST_BYTES))


def test_bytes_that_unpack_to_too_many_are_refused() -> None:
    packed = zlib.compress(bytes(MOST_BYTES * 50))
    assert len(packed) < MOST_BYTES
    with pytest.raises(NotReadableError, match="more than"):
        decompress(packed)
    assert decompress(zlib.compress(b"abc")) == decompress(b"abc") == b"abc"


def _laughs(kind: Callable[[Any], Any]) -> Any:
    """Return a value of 40 levels that is referred to 2**40 times."""
    found = "ha"
    for _ in range(40):
        found = kind((found, found))
    return found


@pytest.mark.parametrize(
    "data",
    [
        b"]" * 200_000 + b"a" * 199_999 + b".",
        b"(lp0\ng0\na.",  # a list that holds itself
        b"ca\nb\n" + b")" + b"\x85" * 100 + b"R.",  # in what an object would be made with
    ],
)
def test_nesting_without_end_is_refused(data: bytes) -> None:
    with pytest.raises(NotReadableError, match="nested too deeply"):
        unpickle(data)


@pytest.mark.parametrize("kind", [list, tuple, lambda parts: dict(enumerate(parts))], ids=["lists", "tuples", "dicts"])
def test_a_small_value_that_stands_for_very_many_is_refused(kind: Callable[[Any], Any]) -> None:
    """Else it is written out where it is told."""
    with pytest.raises(NotReadableError, match="too large"):
        unpickle(pickle.dumps(_laughs(kind)))
    with pytest.raises(NotReadableError, match="too large"):
        plain(_laughs(kind))


NAME, MANY = b"\x80\x04ca\nb\nq\x00", b"(" + b"N" * 100_000
BOMBS = {
    "arguments that are copied": NAME + b"]q\x01" + MANY + b"e0(" + b"h\x00h\x01R" * 150_000 + b"t.",
    "named arguments, too": NAME + MANY + b"tq\x010}q\x02(K\x01K\x01u0(" + b"h\x00h\x01h\x02\x92" * 100_000 + b"t.",
    "arguments of a zone": b"cpytz\n_UTC\nq\x000" + MANY + b"tq\x010(" + b"h\x00h\x01R" * 150_000 + b"t.",
    "a key that is hashed for ever": b"})" + b"2\x86" * 60 + b"Ns.",
    "members that are": b"\x8f()" + b"2\x86" * 60 + b"\x90.",
    "frozen ones": b"()" + b"2\x86" * 60 + b"\x91.",
    "keys that are, as before": b"()" + b"2\x86" * 60 + b"Nd.",
    "a zone that is": b"czoneinfo\nZoneInfo\n)" + b"2\x86" * 60 + b"\x85R.",
    "a zone of a file that is": b"cdateutil.tz._tzfile\n_unpickle\n(N)" + b"2\x86" * 60 + b"VxtR.",
    "keys of one hash": b"}("
    + b"".join(b"\x8a\x0a" + ((2**61 - 1) * n).to_bytes(10, "little") + b"N" for n in range(1, 70_000))
    + b"u.",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_what_takes_all_time_or_memory_is_refused(data: bytes) -> None:
    """A hash cannot be interrupted, so without the guards this would never end."""
    assert len(data) < MOST_BYTES
    with pytest.raises(NotReadableError):
        unpickle(data)


def test_a_bytearray_is_read_as_bytes() -> None:
    """Its own code sets aside as much memory as it names, before it reads any."""
    assert type(unpickle(pickle.dumps(bytearray(b"abc"), 5)).value) is bytes


def test_keys_that_are_short_tuples_are_read() -> None:
    value = {("a", 1): 1, 2: {(1, 2)}, AT: None}
    assert unpickle(pickle.dumps(value)).value == value


def test_json_is_copied_with_its_tuples_as_lists() -> None:
    assert plain({"a": [1, None, "x"]}) == ({"a": [1, None, "x"]}, False)
    assert plain({"a": (1, (2,))}) == ({"a": [1, [2]]}, True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([date(2026, 1, 1)], "holds a date, which"),
        ({"a": Name("app.User")}, "holds an app.User, which"),
        ({1: 2}, "a key that is an int"),
        ([b"x"], "holds a bytes"),
    ],
)
def test_what_is_not_json_is_named(value: object, reason: str) -> None:
    with pytest.raises(NotReadableError, match=reason):
        plain(value)


def test_a_kind_is_said_in_words() -> None:
    assert [what_is(one) for one in (1, AT, Object("app.User"))] == ["an int", "a datetime", "an app.User"]
