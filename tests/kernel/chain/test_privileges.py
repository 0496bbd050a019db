"""A user of the database that loses a privilege while a run is executed: nothing is lost, and it is said."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rqsched.api import health
from rqsched.api.health import Level
from rqsched.errors import DatabasePrivilegeError
from rqsched.workflows import current_run, make_workflow
from tests.support.env import Env, MakeEnv, statuses
from tests.support.processes import wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture
def limited(make_env: MakeEnv, postgres_env: Env) -> Iterator[Env]:
    """An environment whose user owns nothing and may do everything with the tables."""
    url = str(postgres_env.runtime.settings.database_url)
    role = f"limited_{url[-8:]}"
    owner = postgres_env.runtime.database
    run(postgres_env, f"CREATE ROLE {role} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    env = make_env(database_url=url.replace("postgres@", f"{role}@"))
    yield env
    env.runtime.database.close()
    run(postgres_env, f"DROP OWNED BY {role}; DROP ROLE {role}")
    owner.close()


def run(owner: Env, statement: str) -> None:
    owner.runtime.database.transact(lambda connection: connection.exec_driver_sql(statement))


def role_of(env: Env) -> str:
    return str(env.runtime.database.engine.url.username)


@pytest.mark.parametrize("lost", ["UPDATE ON rqsched_runs", "ALL ON rqsched_schedules"])
def test_the_end_of_a_run_is_repeated_until_the_privilege_is_granted(
    limited: Env, postgres_env: Env, lost: str
) -> None:
    database = limited.runtime.database

    def loses() -> str:
        run(postgres_env, f"REVOKE {lost} FROM {role_of(limited)}")
        current_run().checkpoint()  # a checkpoint that is refused ends no run
        database.refuses_writes = False
        return "done"

    def help_it() -> None:
        wait_until(lambda: database.refuses_writes, what="a refusal")
        run(postgres_env, f"GRANT {lost} TO {role_of(limited)}")

    limited.runtime.workflows.add(make_workflow("loses", loses))
    pending = limited.fire_next(limited.create("loses", workflow="loses"))
    helper = threading.Thread(target=help_it)
    helper.start()
    limited.execute(pending)
    helper.join()

    assert pending.refresh().status == "succeeded"
    assert pending.refresh().attempt == 1


def test_an_operation_is_refused_at_once_and_doctor_says_what_to_grant(limited: Env, postgres_env: Env) -> None:
    schedule = limited.create()
    run(postgres_env, f"REVOKE INSERT, UPDATE ON rqsched_runs FROM {role_of(limited)}")
    grant = f"GRANT INSERT, UPDATE ON rqsched_runs TO {role_of(limited)};"

    with pytest.raises(DatabasePrivilegeError, match=grant):
        schedule.trigger()

    assert not limited.runtime.write_gate.is_open()
    (found,) = [one for one in health.examine(limited.runtime) if one.check == "writes"]
    assert found.level is Level.PROBLEM
    assert grant in str(found.advice)
    run(postgres_env, grant)
    limited.runtime.write_gate._ask_at = 0.0
    assert limited.runtime.write_gate.is_open()
    assert statuses(schedule) == []
    schedule.trigger()
