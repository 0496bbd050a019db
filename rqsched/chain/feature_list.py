"""The features that are behind the points of `feature`: the only place where the kernel and these features meet."""

from __future__ import annotations

from typing import Protocol

from rqsched.chain import following
from rqsched.chain.feature import Feature
from rqsched.chain.following import After
from rqsched.chain.notifications import delivering
from rqsched.chain.notifications.delivering import Notifications


class Parts(following.Parts, delivering.Parts, Protocol):
    """The parts of a process's runtime that the features use."""


def features_of(parts: Parts) -> list[Feature]:
    """Return the features of a process, in the order in which they take part at each point."""
    return [Notifications(parts), After(parts)]
