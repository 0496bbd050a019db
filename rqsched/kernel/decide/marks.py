"""Marks: a pass of reconcile writes a mark first to SQL and then to Redis, so that a server that goes back is noticed.

SQL has the newest mark; Redis has the newest mark and its predecessors. Redis never has a mark that SQL did not have
before. SQL is at most one mark ahead of Redis: the mark of a pass that has died, or that is between the two writes.
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
    """Its time and its random digits."""
    parent: str = ""
    """The mark that SQL had before; empty for the first mark of a database."""

    def __str__(self) -> str:
        return f"{self.uid} {self.parent}".rstrip()

    @property
    def at(self) -> datetime:
        """When it was made."""
        return drawn_at(self.uid)


class WentBack(StrEnum):
    """The side that went back, as marks show."""

    SQL = "sql"
    """SQL has an older mark than Redis: a restored backup, or a failover to a replica that lagged."""
    REDIS = "redis"
    """Redis has older marks than SQL: an old snapshot."""
    TWO_DATABASES = "two_databases"
    """SQL has a mark that is not among the predecessors of Redis's newest: two databases with one id write."""


def parse_mark(text: str) -> Mark:
    """Read the text of a mark."""
    uid, _, parent = text.partition(" ")
    return Mark(uid, parent)


def judge(mark: Mark | None, marks: Sequence[Mark]) -> WentBack | None:
    """Compare SQL's mark with the marks of Redis (the newest first), which were read later; None if all is well.

    Other processes may make passes between the two reads. So a finding is valid only if SQL still has the mark when the
    finding is recorded. A Redis without marks was flushed; a database without a mark is older than all marks.
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
    """Follow the parents of the newest mark: if this mark is not among them, another database made the newest mark.

    If a parent is missing, because Redis went back before, nothing can be said about databases: then SQL went back.
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
