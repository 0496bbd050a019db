"""The assertions about a machine that the event-machine document writes as one chain."""

from __future__ import annotations

import pytest

from rqsched import Cron
from rqsched.testing import MachineTest
from tests.support.env import Env
from tests.support.machine_case import open_case


def test_assertions_about_a_machine_chain(any_env: Env) -> None:
    case = open_case(any_env, is_old=lambda instance_id: instance_id != "a-2")
    case.states.put_all(dict.fromkeys(["a-1", "a-2"], "waiting"))
    case.schedule()
    case.register(schedule_id="often").daily_at("01:00")
    any_env.scheduler.sync()

    test = MachineTest(any_env.scheduler, case.machine)
    chained = (
        test.assert_has_schedule("CHECK_EXPIRY", spec=Cron("10 0 * * *"), status="active")
        .assert_has_schedule("CHECK_EXPIRY", schedule_id="often")
        .assert_state("a-1", "waiting")
        .run_schedule("CHECK_EXPIRY")
        .assert_state("a-1", "expired")
        .assert_state("a-2", "waiting")
        .run_schedule("CHECK_EXPIRY", schedule_id="often")
    )

    assert chained is test
    assert test.run is not None
    assert test.run.instance_id.startswith("schedule:often:")
    MachineTest(any_env.scheduler, "ApplicationMachine").assert_has_schedule("CHECK_EXPIRY").assert_state(
        "a-1", "expired"
    )


def test_a_chain_ends_where_an_assertion_fails_or_a_run_does_not_succeed(any_env: Env) -> None:
    def fails(instance_id: str) -> None:
        raise ValueError("the ledger is closed")

    case = open_case(any_env, acts=fails)
    case.states.put("a-1", "waiting")
    case.schedule()
    any_env.create("other", workflow="note")
    test = MachineTest(any_env.scheduler, case.machine)

    with pytest.raises(AssertionError, match=r"machine:ApplicationMachine:SEND_REMINDER' does not exist"):
        test.assert_has_schedule("SEND_REMINDER")
    with pytest.raises(AssertionError, match=r"'other' runs 'note', not 'machine:ApplicationMachine:CHECK_EXPIRY'"):
        test.assert_has_schedule("CHECK_EXPIRY", schedule_id="other")
    with pytest.raises(AssertionError, match="is in 'waiting', not in 'expired'"):
        test.assert_state("a-1", "expired")
    with pytest.raises(AssertionError, match=r"(?s)is (failed|retrying): .*the ledger is closed"):
        test.run_schedule("CHECK_EXPIRY")
    assert test.run is not None, "it is there to be looked at"
