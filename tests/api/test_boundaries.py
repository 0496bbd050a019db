"""The exact boundaries that the pages on missed time and on freezing state."""

from __future__ import annotations

import pytest

from rqsched import Every, Once, Spec
from rqsched.errors import InvalidSpecError
from tests.support.env import HOUR, MINUTE, SECOND, Env, MakeEnv, newest


def test_start_at_may_be_an_occurrence_and_end_at_may_not(env: Env) -> None:
    now = env.clock.now()
    spec = Spec(Every("1h", anchor=now), start_at=now + HOUR, end_at=now + 3 * HOUR)
    assert [*spec.between(now, now + 9 * HOUR)] == [now + HOUR, now + 2 * HOUR]
    schedule = env.create(spec=spec)
    for hours in (1, 2):
        assert env.run_next(schedule, HOUR).occurrence_at == now + hours * HOUR
    assert schedule.refresh().status == "done"


def test_an_instant_of_this_very_moment_has_passed(env: Env) -> None:
    now = env.clock.now()
    with pytest.raises(InvalidSpecError, match="has no occurrence after"):
        env.create("once", Once(now))
    assert env.create("a-second-later", Once(now + SECOND)).next_run_at == now + SECOND
    assert env.create("from-now", Spec(Every("1h", anchor=now), start_at=now)).next_run_at == now + HOUR


def test_any_process_that_fires_uses_up_what_was_resumed_once_whatever_its_environment(make_env: MakeEnv) -> None:
    staging = make_env(environment="staging")
    production = make_env(environment="production", database_url=staging.runtime.database.url)
    began = staging.clock.now()
    schedule = staging.create(spec=Every("1h"), environments=["production"])
    schedule.pause()
    staging.advance(3 * HOUR + MINUTE)
    schedule.resume(on_resume="once")

    staging.run_due()
    production.run_due()

    assert schedule.runs().items == []
    assert schedule.refresh().next_run_at == began + 4 * HOUR


def test_start_within_counts_on_while_a_namespace_is_frozen(env: Env) -> None:
    schedule = env.create(start_within="10m")
    env.fire_next(schedule)
    env.scheduler.freeze()
    env.advance(11 * MINUTE)
    env.recover()
    assert newest(schedule).state.shown_status == "expired"
