"""Identities: uids of rows, ids of RQ jobs and instance ids. Pure: nothing here reads a clock or a database.

Everything a link or a run job needs is in its id, so it works without its Redis hash. The formats are API:
they are stored in Redis and SQL, so a change means a migration and an ADR.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from ulid import ULID

_ENTROPY = 10
"""The random bytes of a uid, which follow its instant."""
_OF_ENTROPY = 16
"""The characters of a uid that these bytes make."""
_CROCKFORD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")
"""Maps the digits of RFC 4648 to the digits of a ULID."""
_UID = "[0-9A-HJKMNP-TV-Z]{26}"
_LINK = re.compile(rf"sched-(?P<uid>{_UID})-n(?P<n>\d{{1,18}})-rc0")
_RETRY = re.compile(rf"sched-(?P<uid>{_UID})-r(?P<number>\d{{1,18}})-rc(?P<attempt>\d{{1,9}})")
_RUN = re.compile(rf"run-(?P<uid>{_UID})-a(?P<attempt>\d{{1,9}})-d(?P<delivery>\d{{1,9}})")
_TARGET = re.compile(rf"target-(?P<uid>{_UID})(-d(?P<delivery>\d{{1,9}}))?")
_DELIVERY = re.compile(rf"delivery-(?P<uid>{_UID})-a(?P<attempt>\d{{1,9}})")
_BATCH = re.compile(rf"batch-(?P<uid>{_UID})-t(?P<number>\d{{1,18}})")


class LinkId(NamedTuple):
    """The main link of a schedule: position `n` of the chain of incarnation `uid`."""

    uid: str
    """The schedule's incarnation."""
    n: int
    """The position in the chain; any other than the row's is stale."""

    def __str__(self) -> str:
        """Render `sched-{uid}-n{n}-rc0`."""
        return f"sched-{self.uid}-n{self.n}-rc0"


class RetryLinkId(NamedTuple):
    """The retry link of the schedule's run `number` after its `attempt`-th attempt failed."""

    uid: str
    """The schedule's incarnation."""
    number: int
    """The run's number within the schedule."""
    attempt: int
    """The attempt that failed, from 1."""

    def __str__(self) -> str:
        """Render `sched-{uid}-r{number}-rc{attempt}`."""
        return f"sched-{self.uid}-r{self.number}-rc{self.attempt}"


class RunJobId(NamedTuple):
    """One delivery of one attempt of a run."""

    uid: str
    """The run's uid."""
    attempt: int
    """The attempt it carries, from 1."""
    delivery: int
    """The number of the job that carries that attempt, from 1."""

    def __str__(self) -> str:
        """Render `run-{uid}-a{attempt}-d{delivery}`."""
        return f"run-{self.uid}-a{self.attempt}-d{self.delivery}"


class TargetJobId(NamedTuple):
    """One delivery of one target of a fan-out; the target's uid is computed from run and target id."""

    uid: str
    """The target's uid."""
    delivery: int = 1
    """The number of the job that carries the target, from 1: a retry and an offer to other workers take the next
    number."""

    def __str__(self) -> str:
        """Render `target-{uid}`, from the second delivery on `target-{uid}-d{delivery}`."""
        return f"target-{self.uid}" if self.delivery == 1 else f"target-{self.uid}-d{self.delivery}"


class BatchJobId(NamedTuple):
    """The job that puts a run's next targets on their queue, from the `number`-th on."""

    run_uid: str
    """The run that fans out."""
    number: int
    """The number of the first target to put on the queue."""

    def __str__(self) -> str:
        """Render `batch-{run_uid}-t{number}`."""
        return f"batch-{self.run_uid}-t{self.number}"


class DeliveryJobId(NamedTuple):
    """One attempt to deliver a notification."""

    uid: str
    """The delivery's uid."""
    attempt: int
    """The attempt it carries, from 1."""

    def __str__(self) -> str:
        """Render `delivery-{uid}-a{attempt}`."""
        return f"delivery-{self.uid}-a{self.attempt}"


def parse_link_id(text: str) -> LinkId | RetryLinkId | None:
    """Read a link's id; None when it is not one of ours."""
    if match := _LINK.fullmatch(text):
        return LinkId(match["uid"], int(match["n"]))
    if match := _RETRY.fullmatch(text):
        return RetryLinkId(match["uid"], int(match["number"]), int(match["attempt"]))
    return None


def parse_run_job_id(text: str) -> RunJobId | None:
    """Read a run job's id; None when it is not one of ours."""
    match = _RUN.fullmatch(text)
    return RunJobId(match["uid"], int(match["attempt"]), int(match["delivery"])) if match else None


def parse_target_job_id(text: str) -> TargetJobId | BatchJobId | None:
    """Read the id of a target's job or of a job that enqueues targets; None when it is neither."""
    if match := _TARGET.fullmatch(text):
        return TargetJobId(match["uid"], int(match["delivery"] or 1))
    if match := _BATCH.fullmatch(text):
        return BatchJobId(match["uid"], int(match["number"]))
    return None


def parse_delivery_job_id(text: str) -> DeliveryJobId | None:
    """Read the id of a notification's job; None when it is not one of ours."""
    match = _DELIVERY.fullmatch(text)
    return DeliveryJobId(match["uid"], int(match["attempt"])) if match else None


def is_uid(text: str) -> bool:
    """Return whether `text` has the form of a uid."""
    return re.fullmatch(_UID, text) is not None


def new_uid(now: datetime) -> str:
    """Draw a fresh uid: a ULID whose bits are also a valid UUIDv7 (RFC 9562), sortable by `now`."""
    return derived_uid(now, secrets.token_bytes(_ENTROPY))


def new_uids(now: datetime, count: int) -> list[str]:
    """Draw fresh uids as `new_uid` does, in ascending order; many at a fifth of its cost for each."""
    drawn = bytearray(secrets.token_bytes(_ENTROPY * count))
    drawn[0::_ENTROPY] = bytes(byte & 0x0F | 0x70 for byte in drawn[0::_ENTROPY])
    drawn[2::_ENTROPY] = bytes(byte & 0x3F | 0x80 for byte in drawn[2::_ENTROPY])
    texts = base64.b32encode(drawn).translate(_CROCKFORD).decode()
    instant = first_uid_at(now)[:-_OF_ENTROPY]
    return sorted(instant + texts[at : at + _OF_ENTROPY] for at in range(0, len(texts), _OF_ENTROPY))


def derived_uid(now: datetime, *parts: object) -> str:
    """Compute the uid that belongs to `parts` at `now`: the same inputs give the same uid."""
    entropy = hashlib.blake2b(repr(parts).encode(), digest_size=_ENTROPY).digest()
    raw = bytearray(int(now.timestamp() * 1000).to_bytes(6, "big") + entropy)
    raw[6] = (raw[6] & 0x0F) | 0x70
    raw[8] = (raw[8] & 0x3F) | 0x80
    return str(ULID.from_bytes(bytes(raw)))


def first_uid_at(instant: datetime) -> str:
    """Return the lowest uid of an instant: every uid that is drawn from then on is equal or greater."""
    milliseconds = int(instant.timestamp() * 1000)
    return str(ULID.from_bytes(max(milliseconds, 0).to_bytes(6, "big") + bytes(10)))


def drawn_at(uid: str) -> datetime:
    """Return when a uid was drawn, in whole milliseconds."""
    return ULID.from_str(uid).datetime


def uid_to_uuid(uid: str) -> str:
    """Render a uid as a lowercase UUIDv7, as Open Job Spec wants job ids."""
    return str(ULID.from_str(uid).to_uuid())


def uuid_to_uid(text: str) -> str | None:
    """Read a UUID back into our uid; None when it is not a UUID."""
    try:
        return str(ULID.from_uuid(uuid.UUID(text)))
    except ValueError:
        return None


def iso_utc(instant: datetime) -> str:
    """Render an instant as ISO 8601 UTC with `Z`, microseconds only when they are not zero."""
    return _utc_text(instant.astimezone(UTC))


@lru_cache(maxsize=256)  # only of UTC: in a zone with clock changes two different instants may compare as equal
def _utc_text(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


def live_instance_id(schedule_id: str, occurrence_at: datetime) -> str:
    """Name the run of one live occurrence (durable-workflow document)."""
    return f"schedule:{schedule_id}:{iso_utc(occurrence_at)}"


def backfill_instance_id(schedule_id: str, occurrence_at: datetime) -> str:
    """Name the run of one backfilled occurrence (durable-workflow document)."""
    return f"schedule:{schedule_id}:backfill:{iso_utc(occurrence_at)}"


def after_instance_id(schedule_id: str, upstream_run_uid: str) -> str:
    """Name the run that the end of another schedule's run starts."""
    return f"schedule:{schedule_id}:after:{upstream_run_uid.lower()}"


def manual_instance_id(schedule_id: str, run_uid: str) -> str:
    """Name the run of one manual trigger."""
    return f"schedule:{schedule_id}:manual:{run_uid.lower()}"
