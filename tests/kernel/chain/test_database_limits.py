"""PostgreSQL's errors in the middle of a fire or at the end of a run, by SQLSTATE."""

from __future__ import annotations

import pytest

from rqsched.kernel.decide import audit
from tests.support.env import Env, events, outcomes, statuses
from tests.support.sql import FAILURES_OF_THE_STATEMENT, OUTAGES

pytestmark = pytest.mark.postgres

# A sequence numbers the attempts, because a rollback would undo any other count.
STUMBLE = """
CREATE SEQUENCE attempts;
CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('attempts') < 3 THEN
        RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'as the test wants it';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER stumble BEFORE {event} ON rqsched_runs FOR EACH ROW {when} EXECUTE FUNCTION stumble();
"""
AT_MOST_ONE = """
CREATE FUNCTION at_most_one() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) FROM rqsched_runs WHERE xmin = pg_current_xact_id()::xid) > 1 THEN
        RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'as the test wants it';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER at_most_one AFTER INSERT ON rqsched_runs FOR EACH STATEMENT EXECUTE FUNCTION at_most_one();
"""


def define(env: Env, text: str) -> None:
    env.runtime.database.transact(lambda connection: connection.exec_driver_sql(text))


@pytest.mark.parametrize("state", FAILURES_OF_THE_STATEMENT.values(), ids=FAILURES_OF_THE_STATEMENT)
def test_a_batch_that_asks_too_much_of_the_database_is_split_and_fired(postgres_env: Env, state: str) -> None:
    schedules = [postgres_env.create(f"report-{number}") for number in range(4)]
    define(postgres_env, AT_MOST_ONE.format(state=state))
    postgres_env.advance()

    fired = postgres_env.deliver(*schedules)

    assert outcomes(fired) == ["fired"] * 4
    assert [statuses(schedule) for schedule in schedules] == [["pending"]] * 4
    assert not any(events(schedule, audit.FIRE_FAILED) for schedule in schedules)


@pytest.mark.parametrize("state", OUTAGES.values(), ids=OUTAGES)
def test_a_fire_that_meets_an_outage_is_waited_out_and_fires_once(postgres_env: Env, state: str) -> None:
    schedule = postgres_env.create()
    define(postgres_env, STUMBLE.format(state=state, event="INSERT", when=""))
    postgres_env.advance()

    assert outcomes(postgres_env.deliver(schedule)) == ["fired"]

    assert statuses(schedule) == ["pending"]
    assert events(schedule, audit.FIRE_FAILED) == [], "an outage is nobody's failure"


@pytest.mark.parametrize("state", OUTAGES.values(), ids=OUTAGES)
def test_the_end_of_a_run_that_meets_an_outage_is_recorded_once(postgres_env: Env, state: str) -> None:
    schedule = postgres_env.create()
    run = postgres_env.fire_next(schedule)
    define(postgres_env, STUMBLE.format(state=state, event="UPDATE", when="WHEN (NEW.status = 'succeeded')"))

    postgres_env.work()

    assert (run.refresh().status, run.attempt, run.result) == ("succeeded", 1, 1)
    assert len(postgres_env.calls) == 1
    assert schedule.refresh().success_count == 1
