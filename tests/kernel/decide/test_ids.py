"""Uids are distinct, sort by their instant and are UUIDv7."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from ulid import ULID

from rqsched.kernel.decide.ids import derived_uid, first_uid_at, is_uid, new_uid, new_uids, uid_to_uuid

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
LAST = datetime(9999, 12, 31, tzinfo=UTC)


def test_uids_that_are_drawn_together_are_distinct_and_ascend() -> None:
    drawn = new_uids(NOW, 500)
    assert len(set(drawn)) == 500
    assert drawn == sorted(drawn)
    assert set(drawn).isdisjoint(new_uids(NOW, 500))


def test_drawn_uids_are_of_their_instant_and_valid_uuids_of_version_seven() -> None:
    drawn = [new_uid(NOW), *new_uids(NOW, 2)]
    assert all(is_uid(uid) for uid in drawn)
    assert all(first_uid_at(NOW) <= uid < first_uid_at(NOW + timedelta(milliseconds=1)) for uid in drawn)
    found = [uuid.UUID(uid_to_uuid(uid)) for uid in drawn]
    assert {(one.version, one.variant) for one in found} == {(7, uuid.RFC_4122)}


def test_uid_that_is_computed_is_the_same_in_every_release() -> None:
    found = [derived_uid(NOW, "report", 1), derived_uid(datetime(1970, 1, 1, tzinfo=UTC)), derived_uid(LAST, "ä")]
    assert found == ["01KF0RDQG0EHFAN0MEWP7JDYV6", "0000000000E84TG8T6JTCK2PP0", "76EZ6FK000F9VB7XDNWPE4KPV9"]


def test_uids_that_are_drawn_together_are_written_as_ulids_are() -> None:
    drawn = new_uids(NOW, 300)
    assert [str(ULID.from_bytes(ULID.from_str(uid).bytes)) for uid in drawn] == drawn
    assert {ULID.from_str(uid).timestamp for uid in drawn} == {NOW.timestamp()}


def test_no_uid_is_drawn_where_none_is_asked_for() -> None:
    assert new_uids(NOW, 0) == []
