"""A state machine class: its declarations for rqsched, and its states in python-statemachine's form. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeAlias

from statemachine import State, StateChart
from statemachine.orderedset import OrderedSet

from rqsched.errors import InvalidInputError
from rqsched.when.duration import SpanLike, to_span
from rqsched.workflows import Step


@dataclass(frozen=True, slots=True)
class InState:
    """A resolver made by `in_state`."""

    states: tuple[str, ...]
    """The ids of the states."""
    span: timedelta
    """How long an instance must have been in its state at least."""


def in_state(*states: str, for_: SpanLike = timedelta()) -> InState:
    """Return a resolver that finds the instances that have been in one of these states for `for_` or longer.

    >>> in_state("pending", for_="P2D")
    InState(states=('pending',), span=datetime.timedelta(days=2))

    The resolver reads the states in `MachineStates` when the run executes. A compound state includes the states inside
    it. The time starts again whenever an active state of the instance changes, even for a move between states inside a
    compound state or in another region. A transition to the same state does not restart it. An instance that stays in
    the state gets the event at each occurrence: let the event move the instance, or guard the transition.

    Raises InvalidInputError if no state is given, or if the length is negative. `@machine` raises it if the class does
    not have a state.
    """
    if not states or not all(isinstance(state, str) and state for state in states):
        raise InvalidInputError("in_state", f"takes ids of states, such as in_state('pending'), not {states!r}")
    span = to_span(for_, "for_")
    if span < timedelta():
        raise InvalidInputError("for_", f"{for_!r} is negative; give how long an instance has been in the state")
    return InState(states, span)


MachineClass: TypeAlias = type[StateChart[Any]]
Resolve: TypeAlias = Callable[[], Iterable[Any]]
"""A function that returns the ids of the instances to which an event is sent."""
Resolver: TypeAlias = Resolve | type[Resolve] | InState
"""A function that returns ids, a class whose instances are such functions, or the result of `in_state`. A class may
take its dependencies as constructor arguments."""
Load: TypeAlias = Callable[[str], Any]
"""A function that takes an id, and returns the instance's model or the machine itself; None if it does not exist."""
Save: TypeAlias = Callable[[str, Any], None]
"""A function that stores an instance after the event. It takes the id and the value that `load` returned."""


@dataclass(frozen=True)
class Machine:
    """A state machine class that is registered with rqsched."""

    cls: MachineClass
    """The class."""
    name: str
    """The machine's name in SQL and in schedule ids: by default the class's name."""
    schedules: Mapping[str, Resolver | None]
    """The resolver of each event; None means every instance whose state accepts the event."""
    load: Load | None
    """The function that loads an instance; None if an instance consists of its state only."""
    save: Save | None
    """The function that stores an instance; None if and only if `load` is None."""
    make: Callable[[type], Any]
    """The function that creates an instance of a resolver class."""

    def workflow(self, event: str) -> str:
        """Return the name of the workflow of an event, which is also the id of its schedule."""
        return f"machine:{self.name}:{event}"

    def steps(self, sent: str) -> tuple[Step, ...]:
        """Return the transitions of each event, in order of definition. `sent` is the event of the workflow."""
        return tuple(
            Step(state.id, str(event), (transition.target or state).id, str(event) == sent)
            for state in self._states.values()
            for transition in state.transitions
            for event in transition.events
        )

    def takes(self, state: str, event: str) -> bool:
        """Return whether an instance in this state accepts the event.

        The event must have a transition from an active state, or from an ancestor of an active state.
        """
        return any(transition.match(event) for one in self._active(state) for transition in one.transitions)

    def is_in(self, state: str, names: Collection[str]) -> bool:
        """Return whether an instance in this state is in a named state, or in a state inside a named state."""
        return any(one.id in names for one in self._active(state))

    def value_of(self, state: str) -> Any:
        """Return a state in the form that python-statemachine stores on a model; raises LookupError if unknown."""
        unknown = set(state.split()) - set(self._states)
        if unknown or not state.strip():
            raise LookupError(f"{self.name} has no state {' '.join(sorted(unknown)) or state!r}")
        active = {one.id for one in self._active(state)}
        values = [one.value for id_, one in self._states.items() if id_ in active]
        return values[0] if len(values) == 1 else OrderedSet(values)

    def whole(self, state: str) -> str:
        """Return a state in its stored form: all active states, in the order of their definition.

        `state` may name some of the active states, in any order, because a transition may list them in another order.
        """
        active = {one.id for one in self._active(state)}
        return " ".join(id_ for id_ in self._states if id_ in active)

    @property
    def initial(self) -> str:
        """The state in which an instance begins. No instance is made for it, as that would execute callbacks."""
        first = self.cls.initial_state
        return "" if first is None else " ".join(state.id for state in _entered(first))

    @cached_property
    def _states(self) -> dict[str, State]:
        return {state.id: state for state in self.cls.states_map.values()}

    def _active(self, state: str) -> Iterable[State]:
        """Yield the named states and their ancestors. A name that the class does not have is left out."""
        for name in state.split():
            if name in self._states:
                yield self._states[name]
                yield from self._states[name].ancestors()


def _entered(state: State) -> Iterator[State]:
    """Yield a state and the states entered with it: its initial child, or every child of a parallel state."""
    yield state
    for child in state.states:
        if state.parallel or child.initial:
            yield from _entered(child)


def state_of(instance: StateChart[Any]) -> str:
    """Return the state of a live machine in its stored form: its active states, in the order of their definition."""
    active = {state.id for state in instance.configuration}
    return " ".join(state.id for state in type(instance).states_map.values() if state.id in active)


def check_schedules(cls: MachineClass) -> dict[str, Resolver | None]:
    """Return the resolvers in `schedules` of a class, by event; raises InvalidInputError for an unknown event."""
    declared = getattr(cls, "schedules", {})
    if not isinstance(declared, Mapping):
        raise InvalidInputError("schedules", f"of {cls.__name__} must be a dict from event to resolver")
    known = [str(event) for event in cls._events]
    found: dict[str, Resolver | None] = {}
    for key, resolver in declared.items():
        event = _event_of(key, known)
        if event is None:
            shown = repr(str(key)) if isinstance(key, str) else f"{key!r} (a key is an event, or its text)"
            raise InvalidInputError(
                "schedules", f"{cls.__name__} has no event {shown}; it has {', '.join(known) or 'none'}: name one"
            )
        if isinstance(resolver, InState):
            states = [state.id for state in cls.states_map.values()]
            if unknown := [name for name in resolver.states if name not in states]:
                text = f"in_state of {event}: {cls.__name__} has no state {unknown[0]!r}; it has {', '.join(states)}"
                raise InvalidInputError("schedules", text)
        elif resolver is not None and not callable(resolver):
            raise InvalidInputError(
                "schedules",
                f"the resolver of {event} must be a callable, a class, in_state(...) or None, not {resolver!r}",
            )
        found[event] = resolver
    return found


def _event_of(key: object, known: Sequence[str]) -> str | None:
    """Return the name of the event that a key of `schedules` means. The key is a text, or an object from the class
    body.

    In the class body, `CLOSE = a.to(b)` is a list of transitions, and `Event(a.to(b))` has no name yet. Both hold their
    transitions, and a transition has the name of its event once the class exists.
    """
    if isinstance(key, str) and key in known:
        return str(key)
    transitions: Any = getattr(getattr(key, "_transitions", None) or key, "transitions", ())
    named = [{str(event) for event in transition.events} & set(known) for transition in transitions]
    events = set.intersection(*named) if named else set()
    return events.pop() if len(events) == 1 else None
