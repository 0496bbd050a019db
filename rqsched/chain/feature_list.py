"""The features that are behind the points of `feature`: the only place where the kernel and these features meet."""

from __future__ import annotations

from typing import Protocol

from rqsched.chain import following, limits, quotas
from rqsched.chain.feature import Feature
from rqsched.chain.following import After
from rqsched.chain.limits import Limits
from rqsched.chain.notifications import delivering
from rqsched.chain.notifications.delivering import Notifications
from rqsched.chain.quotas import Quotas


class Parts(following.Parts, delivering.Parts, limits.Parts, quotas.Parts, Protocol):
    """The parts of a process's runtime that the features use."""


def features_of(parts: Parts) -> list[Feature]:
    """Return the features of a process, in the order in which they take part at each point."""
    return [Quotas(parts), Limits(parts), Notifications(parts), After(parts)]
