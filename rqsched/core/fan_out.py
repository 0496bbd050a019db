"""What the targets of a fan-out mean for its run, once the last of them has ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rqsched.core.model import TargetStatus
from rqsched.core.policy import FanOutPolicy

_FAILED = frozenset({TargetStatus.FAILED.value, TargetStatus.LOST.value})
_DONE = frozenset({TargetStatus.SUCCEEDED.value, TargetStatus.IGNORED.value})


def has_failed(counts: Mapping[str, int], policy: FanOutPolicy) -> bool:
    """Return whether a run has failed whose targets ended so; `counts` are by status."""
    failed = count_failed(counts)
    done = sum(counts.get(status, 0) for status in _DONE)
    if policy is FanOutPolicy.ANY_FAILED:
        return failed > 0
    return policy is FanOutPolicy.ALL_FAILED and failed > 0 and done == 0


def count_failed(counts: Mapping[str, int]) -> int:
    """Return how many targets failed or were lost."""
    return sum(counts.get(status, 0) for status in _FAILED)


def describe_failures(counts: Mapping[str, int], example: str | None) -> str:
    """Say how many targets failed, and the first line of one of their errors."""
    first = (example or "").partition("\n")[0]
    return f"{count_failed(counts)} of {sum(counts.values())} targets failed{f', such as: {first}' if first else ''}"
