"""Namespaces: the same id twice, and nothing of one seen or touched from the other."""

from __future__ import annotations

import pytest

from rqsched.errors import ScheduleNotFoundError
from rqsched.features.declarations.declarations import Declaration
from tests.support.env import MINUTE, NOON, Env, MakeEnv, statuses, types

pytestmark = pytest.mark.every_database


def test_one_id_in_two_namespaces_is_two_schedules(any_env: Env) -> None:
    here, there = any_env.create(), any_env.create(namespace="billing", spec=2 * MINUTE)

    any_env.run_due()
    there.pause()

    assert (here.uid, here.namespace) != (there.uid, there.namespace)
    assert any_env.scheduler.get("report").uid == here.uid
    assert any_env.scheduler.get("report", namespace="billing").uid == there.uid
    assert (statuses(here), statuses(there)) == (["succeeded"], [])
    assert (here.refresh().status, there.status) == ("active", "paused")
    assert (types(here), types(there)) == (["Created", "Triggered"], ["Created", "Paused"])
    assert any_env.seen[0].namespace == "default"


def test_every_lookup_stays_in_its_namespace(any_env: Env) -> None:
    scheduler = any_env.scheduler
    any_env.create("mine")
    any_env.create("theirs", namespace="billing")
    scheduler.sync([Declaration("synced", "note", MINUTE)], namespace="billing")

    assert [found.schedule_id for found in scheduler.iter()] == ["mine"]
    assert {found.schedule_id for found in scheduler.iter(namespace="billing")} == {"theirs", "synced"}
    assert scheduler.upsert("theirs", "note", MINUTE)[1] == "created"
    assert scheduler.upsert("theirs", "note", MINUTE, namespace="billing")[1] == "unchanged"
    assert scheduler.sync([], delete_removed=True, namespace="billing").removed == ["synced"]
    for read in (scheduler.get, scheduler.newest):
        with pytest.raises(ScheduleNotFoundError):
            read("mine", namespace="billing")


def test_the_default_namespace_is_that_of_the_settings(make_env: MakeEnv, database_url: str) -> None:
    billing = make_env(database_url=database_url, namespace="billing")
    default = make_env(database_url=database_url)

    schedule = billing.create()

    assert schedule.namespace == "billing"
    assert default.scheduler.get("report", namespace="billing").uid == schedule.uid
    assert default.scheduler.list().items == []
    default.advance()
    assert [row["schedule_id"] for row in default.scheduler.tick()] == ["report"], "who fires serves every namespace"


def test_history_is_pruned_in_one_namespace_or_all(any_env: Env) -> None:
    here, there = any_env.create(), any_env.create(namespace="billing")
    any_env.run_due()
    later = NOON + MINUTE

    assert any_env.scheduler.prune(events_before=later, namespace="billing").events == 1
    assert (types(here), types(there)) == (["Created", "Triggered"], ["Triggered"])
    assert any_env.scheduler.prune(events_before=later).events == 1
    assert types(here) == ["Triggered"]
