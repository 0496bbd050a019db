"""`machine_test`: a machine's test in one chain, from its registration to the final states of its instances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from statemachine import State, StateMachine

from rqsched import Cron, Every, Scheduler
from rqsched.errors import InvalidInputError
from rqsched.machines import MachineScheduler, in_state, machine
from rqsched.machines.testing import machine_test
from rqsched.testing import ManualClock
from rqsched.workflows import registry
from tests.support.env import DAY, Env
from tests.support.machine_case import EXPIRY, open_case


@pytest.fixture
def parcel() -> Iterator[Any]:
    """A machine as an application has it: in the registry of the process, on schedule."""

    @machine(name="TestedParcel")
    class Parcel(StateMachine):
        packed = State(initial=True)
        sent = State()
        lost = State(final=True)
        SEND = packed.to(sent)
        GIVE_UP = sent.to(lost)
        schedules = {"SEND": None, "GIVE_UP": in_state("sent", for_="P2D")}  # noqa: RUF012 - as users write it

    MachineScheduler.register(Parcel, "SEND").daily_at("08:00")
    MachineScheduler.register(Parcel, "GIVE_UP", schedule_id="give-up").every("1h")
    yield Parcel
    for event, id_ in (("SEND", "machine:TestedParcel:SEND"), ("GIVE_UP", "give-up")):
        registry.withdraw(id_)
        registry.remove(f"machine:TestedParcel:{event}")


def test_a_machine_is_tested_in_one_chain_with_the_fixtures_scheduler(
    rqsched_scheduler: Scheduler, rqsched_clock: ManualClock, parcel: Any
) -> None:
    (
        machine_test(parcel)
        .assert_has_schedule("SEND", spec=Cron("0 8 * * *"), status="active")
        .put({"p-1": None, "p-2": "lost"})
        .run_schedule("SEND")
        .assert_sent_to("p-1")
        .assert_state("p-1", "sent")
        .put({"p-3": "sent"}, entered_at=rqsched_clock.now() - 2 * DAY)
        .run_schedule("GIVE_UP", schedule_id="give-up")
        .assert_sent_to("p-3")
        .assert_state("p-3", "lost")
        .assert_state("p-1", "sent")
    )
    rqsched_clock.advance(2 * DAY)
    machine_test(parcel).run_schedule("GIVE_UP", schedule_id="give-up").assert_state("p-1", "lost")
    ids = {schedule.schedule_id for schedule in rqsched_scheduler.iter()}
    assert ids == {"machine:TestedParcel:SEND", "give-up"}


def test_machine_test_creates_the_schedules_of_its_machine_and_no_others(env: Env) -> None:
    case = open_case(env)
    case.register().daily_at("00:10")
    env.registry.declare("other", "note", Every("1h"))

    machine_test(case.machine, env.scheduler).assert_has_schedule("CHECK_EXPIRY", status="active")

    assert [schedule.schedule_id for schedule in env.scheduler.iter()] == [EXPIRY]


def test_a_chain_says_to_whom_the_event_was_sent_instead(env: Env) -> None:
    case = open_case(env)
    case.register().daily_at("00:10")
    test = machine_test(case.machine, env.scheduler).put(dict.fromkeys(["a-1", "a-2"]))
    with pytest.raises(InvalidInputError, match="call run_schedule first"):
        test.assert_sent_to("a-1")
    test.run_schedule("CHECK_EXPIRY").assert_sent_to("a-2", "a-1")
    with pytest.raises(AssertionError, match=r"was sent to a-1, a-2, not to a-1$"):
        test.assert_sent_to("a-1")
    with pytest.raises(AssertionError, match=r"not to no instance$"):
        test.assert_sent_to()


def test_machine_test_refuses_what_it_cannot_test(env: Env) -> None:
    case = open_case(env, {"CHECK_EXPIRY": None})
    with pytest.raises(InvalidInputError, match="use the fixture rqsched_scheduler"):
        machine_test(case.machine)
    with pytest.raises(InvalidInputError, match="decorate the class"):
        machine_test(StateMachine, env.scheduler)
    with pytest.raises(InvalidInputError, match="does not declare 'SEND_REMINDER'"):
        machine_test(case.machine, env.scheduler).run_schedule("SEND_REMINDER")
    with pytest.raises(AssertionError, match=f"'{EXPIRY}' does not exist"):
        machine_test(case.machine, env.scheduler).assert_has_schedule("CHECK_EXPIRY")
