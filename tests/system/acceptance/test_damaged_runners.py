"""A run that damages its runner: the run counts, the runner is replaced, and the runs after it are executed once."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy.engine import Connection

from rqsched.api.health import examine
from tests.support.env import ONCE
from tests.system.acceptance.chores import DAMAGE
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]


@pytest.mark.parametrize("how", ["files", "recursion", "descriptors", "memory", "user"])
def test_run_that_damages_its_runner_counts_and_harms_no_other(any_live: LiveEnv, how: str) -> None:
    live = any_live
    runs = [live.run_now("damage", DAMAGE, kwargs={"how": how}, retry=ONCE)]
    runs += [live.run_now(f"after-{number}", retry=ONCE) for number in range(6)]

    live.start_runners(1)

    for run in runs:
        live.wait_for_status(run, "succeeded")
    # On a busy machine a pass may put the first run on the queue again, behind the others.
    runs.append(live.run_now("last", retry=ONCE))
    live.wait_for_status(runs[-1], "succeeded")
    assert [len([one for one in live.executions() if one.run_uid == run.uid]) for run in runs] == [1] * len(runs)
    assert len({one.pid for one in live.executions()}) == 2, "the runner was replaced once"
    (finding,) = [found for found in examine(live.scheduler.runtime) if found.check == "runners"]
    assert finding.level == "warning"
    live.check()


def test_run_that_deletes_its_working_directory_harms_no_other(live: LiveEnv) -> None:
    runs = [live.run_now("damage", DAMAGE, kwargs={"how": "folder"}, retry=ONCE), live.run_now("after", retry=ONCE)]

    live.start_runners(1)

    for run in runs:
        live.wait_for_status(run, "succeeded")
    assert len({one.pid for one in live.executions()}) == 1, "the runner goes on"


def test_runner_whose_claims_fail_one_after_the_other_is_replaced(live: LiveEnv) -> None:
    live.start_runners(1)
    live.wait_for_status(live.run_now("damage", DAMAGE, kwargs={"how": "claims"}, retry=ONCE), "succeeded")

    runs = [live.run_now(f"after-{number}", retry=ONCE) for number in range(5)]

    for run in runs[2:]:  # the jobs of the first two have failed, and reconcile delivers their runs again
        live.wait_for_status(run, "succeeded")
    assert len({one.pid for one in live.executions()}) == 2
    for run in runs:
        live.wait_for_status(run, "succeeded", timeout=100)
    live.check()


@pytest.mark.postgres
def test_runner_that_alone_reaches_no_server_is_replaced_and_its_job_is_the_next(
    make_live: MakeLive, postgres_url: str
) -> None:
    live = make_live(postgres_url)
    live.start_runners(1)
    live.wait_for_status(live.run_now("damage", DAMAGE, kwargs={"how": "driver"}, retry=ONCE), "succeeded")
    (runner,) = {one.pid for one in live.executions()}

    end_connections(live)
    runs = [live.run_now(f"after-{number}", retry=ONCE) for number in range(2)]

    for run in runs:
        live.wait_for_status(run, "succeeded")
    assert runner not in {one.pid for one in live.executions()[1:]}
    assert [one.run_uid for one in live.executions()[1:]] == [run.uid for run in runs]
    live.check()


def end_connections(live: LiveEnv) -> None:
    """Have the server end each connection of the worker to this database."""
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    end = partial(Connection.exec_driver_sql, statement=f"SELECT pg_terminate_backend(pid) {others}")
    live.scheduler.runtime.database.transact(end)
