"""The features that are behind the points of `feature`: the only place where the kernel and these features meet."""

from __future__ import annotations

from functools import partial

from rqsched.chain.feature import Feature
from rqsched.chain.following import After
from rqsched.chain.limits import Limits
from rqsched.chain.notifications.delivering import Notifications
from rqsched.chain.quotas import Quotas
from rqsched.chain.runtime import Runtime


def features_of(runtime: Runtime) -> list[Feature]:
    """Return the features of a process, in the order in which they take part at each point."""
    return [Quotas(runtime), Limits(runtime), Notifications(runtime), After(runtime)]


make_runtime = partial(Runtime, features=features_of)
"""Makes the runtime of a process, with all features; it takes what `Runtime` takes."""
