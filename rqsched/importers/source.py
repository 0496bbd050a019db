"""A source is another system with schedules. It gives them as entries in the form that `rqsched sync` reads.

With each entry, a source reports what is lost. Sources do not write schedules of rqsched; `handing_over` does this.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast

from redis import Redis

from rqsched.errors import ConflictError
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.decide.options import OPTIONS
from rqsched.kernel.decide.payload import dumps

_MOST_CHARACTERS = 200
"""The maximum number of characters of an entry's name in a schedule id. The whole id has at most 255 characters."""
_LOOKS, _LOOK_SECONDS = 8, 0.25
_REDIS = re.compile(r"(rediss?(\+sentinel)?|unix)://")
_MOVE = """
if KEYS[3] and redis.call('get', KEYS[3]) ~= ARGV[1] then return -1 end
local moved = 0
for at = 2, #ARGV do
  local score = redis.call('zscore', KEYS[1], ARGV[at])
  if score then
    redis.call('zadd', KEYS[2], score, ARGV[at])
    redis.call('zrem', KEYS[1], ARGV[at])
    moved = moved + 1
  end
end
return moved
"""
_REFUSED = re.compile(r"[^A-Za-z0-9._:-]+")
MOST_DESCRIBED = OPTIONS["description"].most_characters
"""The maximum number of characters of an entry's description that are imported."""
AS_BEFORE: Mapping[str, Any] = {"overlap": "allow_all", "retry": {"max_retries": 0}}
"""The options for a source that starts a job at each fire, even if the last job is running, and never retries a job."""


_TWIN = "The source has another entry that does the same: one of them may be a mistake."


class Reading(NamedTuple):
    """How a source is read."""

    is_trusted: bool = False
    """Whether code of the source may run here. Reading a source may import its classes or run its configuration."""
    timezone: str | None = None
    """The zone of expressions without a zone: the zone of the source's host. None means UTC."""


@dataclass(frozen=True)
class SourceEntry:
    """One schedule of the source."""

    source_id: str
    """Its id at the source. It is the same each time the source is read."""
    entry: Mapping[str, Any] | None
    """The entry in the form that `rqsched sync` reads, without `paused`; None if it cannot become a schedule."""
    lost: tuple[str, ...] = ()
    """A plain sentence for each thing that is lost or changes, or the reason why it cannot become a schedule."""
    enabled: bool = True
    """Whether the source fires it."""
    next_at: datetime | None = None
    """The next fire at the source, aware; None if unknown. If it has passed, our schedule fires once in its place."""
    is_taken: bool = False
    """Whether an import has disabled it at the source. If its schedule was deleted here, it is not written again."""
    function: str | None = None
    """The dotted path of the function that the workflow calls, if it differs from the workflow's name."""


class Source(Protocol):
    """The store of another system's schedules."""

    @property
    def kind(self) -> str:
        """The KIND that the user gives to the command, such as `rq-scheduler`."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """A plain sentence for each fact about all entries. They are complete after a call of `entries`."""
        ...

    @property
    def cannot_disable(self) -> str | None:
        """Why an import cannot disable the source, and what to do instead; None if it can."""
        ...

    def entries(self) -> list[SourceEntry]:
        """Read all entries of the source, including disabled entries, in a stable order."""
        ...

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        """Disable entries at the source. Return a sentence that says what was done, and how to undo it.

        If the source has fired an entry for the last time meanwhile, the entry is skipped. The call may be repeated.
        Afterwards, `entries` returns the disabled entries with `enabled=False`, in every process.
        """
        ...

    def close(self) -> None:
        """Close the connections of the source."""
        ...


def named_id(kind: str, name: str) -> str:
    """Return the schedule id of an entry with a name. If the name must be changed for an id, a digest is added."""
    plain = _REFUSED.sub("-", name).strip("-")
    if plain == name and len(name) <= _MOST_CHARACTERS:
        return f"{kind}:{name}"
    return f"{kind}:{plain[:_MOST_CHARACTERS]}-{_digest(name)}"


def derived_id(kind: str, workflow: str, *does: object) -> str:
    """Return the schedule id of an entry without a lasting name: its workflow, and a digest of workflow and `does`."""
    return named_id(kind, f"{workflow[: _MOST_CHARACTERS - 20]}-{_digest(dumps([workflow, *does]))}")


def not_before(first: datetime, now: datetime) -> dict[str, str]:
    """Return the key of an entry that prevents fires before `first`, which may be several intervals from now.

    If `first` has passed, return nothing: `handing_over` then fires the occurrence that the source has not fired.
    """
    return {"start_at": iso_utc(first)} if first > now else {}


def distinct(entries: Sequence[SourceEntry]) -> list[SourceEntry]:
    """Return entries with distinct schedule ids, ordered by their ids at the source.

    If several entries have the same id, each of them except the first gets a number. Enabled and disabled entries are
    numbered separately. Therefore an entry keeps its schedule id if an import has disabled it and the application then
    schedules it again.
    """
    found = {enabled: list(_numbered([one for one in entries if one.enabled is enabled])) for enabled in (True, False)}
    fired = {one.entry["schedule_id"] for one in found[True] if one.entry}
    rest = [one for one in found[False] if not one.entry or one.entry["schedule_id"] not in fired]
    return sorted([*found[True], *rest], key=attrgetter("source_id"))


def _numbered(entries: Sequence[SourceEntry]) -> Iterator[SourceEntry]:
    seen: Counter[str] = Counter()
    for one in sorted(entries, key=attrgetter("source_id")):
        if one.entry is None:
            yield one
            continue
        schedule_id = one.entry["schedule_id"]
        seen[schedule_id] += 1
        if (number := seen[schedule_id]) == 1:
            yield one
        else:
            entry = {**one.entry, "schedule_id": f"{schedule_id}-{number}"}
            yield replace(one, entry=entry, lost=(*one.lost, _TWIN))


def is_redis(address: str) -> bool:
    """Return whether an address is the URL of a Redis."""
    return _REDIS.match(address) is not None


def move_scored(
    redis: Redis, source: str, target: str, members: Sequence[Any], lock: tuple[str, str] = ("", "")
) -> int:
    """Move members of a sorted set, with their scores, into another set in one step. Return how many were moved.

    `lock` is the key of a lock and its expected value. If the lock has another value, move nothing and return -1.
    """
    key, token = lock
    keys = (source, target, key) if key else (source, target)
    return cast(int, redis.eval(_MOVE, len(keys), *keys, token, *members))


def until_quiet(disable: Callable[[], int]) -> int:
    """Repeat `disable` until it finds no enabled entry, because a running scheduler may write old entries back.

    `disable` returns how many entries it disabled. Raises ConflictError if entries are enabled again and again.
    """
    total = count = disable()
    for _ in range(_LOOKS):
        if count == 0:
            return total
        time.sleep(_LOOK_SECONDS)
        count = disable()
    raise ConflictError(f"the source enables {count} of them again each time: stop it, and run this again.")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
