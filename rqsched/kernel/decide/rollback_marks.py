"""Marks show that a server went back to an earlier state, for example by a restored backup.

Each pass of reconcile writes a mark first to SQL and then to Redis. SQL stores only the newest mark. Redis stores the
newest mark and its predecessors. Redis never has a mark that SQL did not have before. If a pass died between the two
writes, or is between them now, SQL is one mark ahead of Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from rqsched.kernel.decide.ids import drawn_at


class Mark(NamedTuple):
    """One mark; its text is its uid and the uid of its parent."""

    uid: str
    """A uid, which contains the time of the mark and random digits."""
    parent: str = ""
    """The uid of the mark that SQL had before; empty for the first mark of a database."""

    def __str__(self) -> str:
        return f"{self.uid} {self.parent}".rstrip()

    @property
    def at(self) -> datetime:
        """When the mark was created."""
        return drawn_at(self.uid)


class WentBack(StrEnum):
    """The server that went back, or another reason why the marks disagree."""

    SQL = "sql"
    """SQL has an older mark than Redis: a restored backup, or a failover to a replica that lagged."""
    REDIS = "redis"
    """Redis has older marks than SQL: an old snapshot."""
    TWO_DATABASES = "two_databases"
    """SQL has a mark that is no predecessor of the newest mark in Redis: two databases with the same id are in use."""


def parse_mark(text: str) -> Mark:
    """Read the text of a mark."""
    uid, _, parent = text.partition(" ")
    return Mark(uid, parent)


def judge(mark: Mark | None, marks: Sequence[Mark]) -> WentBack | None:
    """Compare SQL's mark with the marks of Redis, the newest first. Return None if they agree.

    The caller reads SQL first. Other processes may make passes between the two reads, so a finding is valid only if SQL
    still has the mark when the finding is recorded. If Redis has no marks, it was flushed, and there is no finding. A
    database without a mark is older than all marks.
    """
    if not marks or mark == marks[0]:
        return None
    if mark is None:
        return WentBack.SQL
    if mark in marks:
        return _told_by_line(mark, marks)
    if mark.parent == marks[0].uid:
        return None
    if any(one.uid == mark.parent for one in marks):
        return WentBack.TWO_DATABASES
    if mark.at > marks[0].at:
        return WentBack.REDIS
    return WentBack.SQL if mark.at < marks[-1].at else WentBack.TWO_DATABASES


def _told_by_line(mark: Mark, marks: Sequence[Mark]) -> WentBack:
    """Search for SQL's mark among the predecessors of the newest mark in Redis, from parent to parent.

    If SQL's mark is not among them, another database wrote the newest mark. If a parent is missing, because Redis went
    back earlier, the search finds nothing. Then the answer is that SQL went back.
    """
    place, places = marks.index(mark), {one.uid: place for place, one in enumerate(marks)}
    places[""] = len(marks)
    at = 0
    while at < place:
        parent = places.get(marks[at].parent, at)
        if parent <= at:
            return WentBack.SQL
        at = parent
    return WentBack.SQL if at == place else WentBack.TWO_DATABASES
