"""Since when an instance is in its state, and the resolver that finds those which are in one for long enough."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from statemachine import State, StateMachine

from rqsched.errors import InvalidInputError
from rqsched.machines import MachineScheduler, MachineStates, in_state, machine
from rqsched.testing import execute_pending
from rqsched.workflows import Registry
from tests.support.env import DAY, HOUR, NOON, Env, MakeEnv
from tests.support.lamp import lamp_of
from tests.support.machine_case import MachineCase, open_case

pytestmark = pytest.mark.every_database
"""Times are compared in SQL."""


def case_of(env: Env, resolver: Any, event: str = "SEND_REMINDER") -> MachineCase:
    return open_case(env, {event: resolver})


def found(case: MachineCase, event: str = "SEND_REMINDER") -> list[str]:
    """The instances that the event is dispatched to now."""
    sent = MachineScheduler.run(case.env.scheduler, case.machine, event)
    execute_pending(case.env.scheduler)
    return [row["target_id"] for row in MachineScheduler.targets(case.env.scheduler, sent.run_uid)]


def test_in_state_finds_the_instances_that_have_been_in_it_for_long_enough(any_env: Env) -> None:
    case = case_of(any_env, in_state("approved", for_="P2D"))
    case.states.put_all({"old": "approved", "waits": "waiting"})
    any_env.advance(HOUR)
    case.states.put_all({"new": "approved"})

    any_env.advance(2 * DAY - HOUR - timedelta(microseconds=1))
    assert found(case) == []
    any_env.advance(timedelta(microseconds=1))
    assert found(case) == ["old"]
    any_env.advance(HOUR)
    assert found(case) == ["new", "old"], "an instance that stays gets the event each time"
    assert case.log == ["reminded old", "reminded new", "reminded old"]


def test_in_state_without_a_length_finds_all_that_are_in_one_of_the_states(
    make_env: MakeEnv, database_url: str
) -> None:
    env = make_env(database_url=database_url, target_chunk=2)
    case = case_of(env, in_state("waiting", "approved"), "CHECK_EXPIRY")
    case.states.put_all({"a-1": "waiting", "a-2": "expired", "a-3": "approved", "a-4": "waiting", "a-5": "waiting"})
    assert found(case, "CHECK_EXPIRY") == ["a-1", "a-3", "a-4", "a-5"]


def test_an_instance_that_stays_in_its_state_has_entered_it_before_and_one_that_moves_enters_it_now(
    any_env: Env,
) -> None:
    case = case_of(any_env, None)
    case.states.put_all({"a-1": "approved", "a-2": "approved"})
    any_env.advance(DAY)

    assert found(case) == ["a-1", "a-2"], "a transition from the state to itself"
    case.states.put("a-1", "approved")
    case.states.put("a-2", "waiting")
    case.states.put("a-3")

    entered = {name: case.states.entered_at(name) for name in ("a-1", "a-2", "a-3", "a-4")}
    assert entered == {"a-1": NOON, "a-2": NOON + DAY, "a-3": NOON + DAY, "a-4": None}
    any_env.advance(DAY)
    case.states.put("a-2", "approved")
    assert case.states.entered_at("a-2") == NOON + 2 * DAY, "it came back"


def test_a_scheduled_event_records_when_it_moved_an_instance_that_is_its_state_alone(any_env: Env) -> None:
    lamp = lamp_of(any_env)
    states = MachineStates(any_env.scheduler, lamp)
    states.put_all({"hall": "off"})
    entered = []
    for event in ("SWITCH", "BLINK", "SWITCH"):
        any_env.advance(HOUR)
        MachineScheduler.run(any_env.scheduler, lamp, event)
        execute_pending(any_env.scheduler)
        entered.append((states.get("hall"), states.entered_at("hall")))
    assert entered == [("on", NOON + HOUR), ("on", NOON + HOUR), ("off", NOON + 3 * HOUR)]


def test_the_application_says_since_when_instances_it_had_before_are_in_their_state(any_env: Env) -> None:
    case = case_of(any_env, in_state("approved", for_="36h"))
    case.states.put("a-2", "approved")
    case.states.put_all({"a-1": "approved", "a-2": "approved"}, entered_at=NOON - 2 * DAY)
    case.states.put("a-3", "approved", entered_at=NOON - DAY)
    assert found(case) == ["a-1", "a-2"]
    with pytest.raises(InvalidInputError, match="entered_at"):
        case.states.put("a-4", entered_at=datetime(2026, 1, 1))  # noqa: DTZ001 - naive on purpose


def test_a_state_around_others_is_meant_with_each_of_them_from_when_the_instance_last_moved(any_env: Env) -> None:
    class Order(StateMachine):
        class shopping(State.Compound):  # noqa: N801 - a state
            cart = State(initial=True)
            payment = State()
            pay = cart.to(payment)

        abandoned = State(final=True)
        ABANDON = shopping.to(abandoned)
        schedules = {"ABANDON": in_state("shopping", for_="P1D")}  # noqa: RUF012 - as users write it

    order = machine(workflows=any_env.runtime.workflows)(Order)
    states = MachineStates(any_env.scheduler, order)
    states.put_all(dict.fromkeys(["o-1", "o-2"]))
    any_env.advance(HOUR)
    states.put("o-1", "shopping payment")
    any_env.advance(DAY - HOUR)

    MachineScheduler.run(any_env.scheduler, order, "ABANDON")
    execute_pending(any_env.scheduler)

    assert [states.get(name) for name in ("o-1", "o-2")] == ["shopping payment", "abandoned"]


def make_parallel(env: Env) -> Any:
    class Order(StateMachine):
        class shipping(State.Parallel):  # noqa: N801 - a state
            class parcel(State.Compound):  # noqa: N801 - a state
                packed = State(initial=True)
                sent = State()
                SEND = packed.to(sent)
                REMIND = packed.to.itself()

            class bill(State.Compound):  # noqa: N801 - a state
                unpaid = State(initial=True)
                paid = State()
                SEND = unpaid.to(paid)

        schedules = {"SEND": None, "REMIND": None}  # noqa: RUF012 - as users write it

    return machine(workflows=env.runtime.workflows)(Order)


def send(env: Env, cls: Any, event: str) -> None:
    MachineScheduler.run(env.scheduler, cls, event)
    execute_pending(env.scheduler)


def test_an_event_reaches_each_region_of_a_parallel_state_that_takes_it(any_env: Env) -> None:
    order = make_parallel(any_env)
    states = MachineStates(any_env.scheduler, order)
    states.put_all({"both": None, "one": "sent unpaid", "none": "sent paid"})

    send(any_env, order, "SEND")

    found = {name: states.get(name) for name in ("both", "one", "none")}
    assert found == dict.fromkeys(found, "shipping parcel sent bill paid"), "as the library sends it"


def test_a_parallel_machine_that_takes_a_transition_to_the_same_states_has_not_moved(any_env: Env) -> None:
    order = make_parallel(any_env)
    states = MachineStates(any_env.scheduler, order)
    states.put("o-1", "packed unpaid")
    assert states.get("o-1") == "shipping parcel packed bill unpaid", "whole, whatever part of it was put"
    any_env.advance(DAY)

    send(any_env, order, "REMIND")
    states.put("o-1", "unpaid packed")

    assert states.entered_at("o-1") == NOON
    assert states.get("o-1") == "shipping parcel packed bill unpaid", "in the order of the class"


def declare(resolver: Any) -> None:
    class Ticket(StateMachine):
        new = State(initial=True)
        closed = State(final=True)
        close = new.to(closed)
        schedules = {"close": resolver}  # noqa: RUF012 - as users write it

    machine(workflows=Registry())(Ticket)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a state the class does not have": (
        lambda: declare(in_state("new", "pending")),
        "in_state of close: Ticket has no state 'pending'; it has new, closed",
    ),
    "no state": (in_state, "takes ids of states"),
    "a negative length": (lambda: in_state("new", for_=-1), "is negative"),
    "a length that is none": (lambda: in_state("new", for_="soon"), "for_"),
}


@pytest.mark.parametrize(("define", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_in_state_is_refused_where_it_is_written(define: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        define()
