"""The features that are behind the points of `feature`: the only place where the kernel and these features meet."""

from __future__ import annotations

from rqsched.chain.feature import Feature
from rqsched.chain.following import After, Parts


def features_of(parts: Parts) -> list[Feature]:
    """Return the features of a process, in the order in which they take part at each point."""
    return [After(parts)]
