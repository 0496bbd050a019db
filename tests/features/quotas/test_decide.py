"""Quotas as they are written, and what grows."""

from __future__ import annotations

import pickle

import pytest

from rqsched.errors import QuotaExceededError
from rqsched.features.quotas.decide import Growth, Usage, require_room
from rqsched.kernel.decide.quota_options import Quota, parse_quotas

READ = {
    "a number of bytes": ({"a": {"bytes": 5}}, Quota(bytes=5)),
    "a size in binary units": ({"a": {"bytes": "3 KiB"}}, Quota(bytes=3072)),
    "a size in decimal units": ({"a": {"bytes": "2mb"}}, Quota(bytes=2_000_000)),
    "each field by itself over that of all": (
        {"*": {"schedules": 9, "bytes": 8}, "a": {"schedules": 3}},
        Quota(schedules=3, bytes=8),
    ),
    "null lifts the limit of all": ({"*": {"schedules": 9}, "a": {"schedules": None}}, Quota()),
}
REFUSED = {
    "no object": [],
    "no object inside": {"a": 3},
    "an unknown field": {"a": {"schedule": 3}},
    "a unit nobody knows": {"a": {"bytes": "1 TB"}},
    "a negative number": {"a": {"schedules": -1}},
    "a truth value": {"a": {"schedules": True}},
    "a text for schedules": {"a": {"schedules": "5"}},
    "more than a number holds": {"a": {"bytes": "9999999999 GiB"}},
}


@pytest.mark.parametrize(("given", "expected"), READ.values(), ids=READ.keys())
def test_a_quota_is_read_as_it_is_written(given: object, expected: Quota) -> None:
    assert parse_quotas(given)["a"] == expected


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED.keys())
def test_a_malformed_quota_is_refused_with_how_to_write_it(given: object) -> None:
    with pytest.raises(ValueError, match=r"quota|write \{"):
        parse_quotas(given)


def test_what_does_not_grow_has_room_even_beyond_the_quota() -> None:
    usage = Usage("a", schedules=12, bytes=50, limits=Quota(schedules=10, bytes=10))
    require_room(usage, Growth(0, -1))
    with pytest.raises(QuotaExceededError):
        require_room(usage, Growth(1, -1))


def test_the_last_place_is_taken_and_the_next_is_refused_with_its_figures() -> None:
    usage = Usage("a", schedules=9, bytes=0, limits=Quota(schedules=10))
    require_room(usage, Growth(1, 10**9))
    with pytest.raises(QuotaExceededError, match="holds 9 of at most 10 schedules, and 2 more") as refused:
        require_room(usage, Growth(2, 0))
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.namespace, again.resource, again.limit, again.used, again.wanted) == ("a", "schedules", 10, 9, 2)
