"""A resolver that ships: the instances that are in a state, and have been for some time. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from rqsched.errors import InvalidInputError
from rqsched.spec.duration import SpanLike, to_span


@dataclass(frozen=True, slots=True)
class InState:
    """What `in_state` returns."""

    states: tuple[str, ...]
    """The ids of states; an instance in one of them is meant."""
    span: timedelta
    """How long at least it has been in its state."""


def in_state(*states: str, for_: SpanLike = timedelta()) -> InState:
    """Name the instances that are in one of these states, for at least as long as `for_`, as an event's resolver.

    >>> in_state("pending", for_="P2D")
    InState(states=('pending',), span=datetime.timedelta(days=2))

    A state that holds others is meant with each of them. What counts is `MachineStates` at the time of the run, and
    since when all of an instance's active states together are as they are: one that moves between the states inside
    `shopping`, or in another region, begins anew, and one that takes a transition to the state it is in does not.
    An instance that stays gets the event at each occurrence: let the event move it, or guard it.

    Raises InvalidInputError for no state and a negative length; `@machine`, for a state the class does not have.
    """
    if not states or not all(isinstance(state, str) and state for state in states):
        raise InvalidInputError("in_state", f"takes ids of states, such as in_state('pending'), not {states!r}")
    span = to_span(for_, "for_")
    if span < timedelta():
        raise InvalidInputError("for_", f"{for_!r} is negative; give how long an instance has been in the state")
    return InState(states, span)
