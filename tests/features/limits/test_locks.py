"""Groups of `limit` when another transaction locks the group's row or a waiting run, or when SQL refuses the grant."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.kernel.chain.settle import publish_end, write_end
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store.tables import limits, runs, schedules
from tests.support.env import HOUR, Env
from tests.support.narrow import present
from tests.support.sql import statements, wait_for_a_lock

pytestmark = pytest.mark.postgres
SUCCESS = AttemptResult(AttemptOutcome.SUCCEEDED)


def create(env: Env, schedule_id: str, limit: str = "shop", **options: Any) -> ScheduleHandle:
    return env.create(schedule_id, HOUR, limit=limit, **({"limit_running": 1} | options))


def has_place(run: RunHandle) -> bool:
    return run.refresh().state.granted_at is not None


@contextmanager
def held(env: Env, row: sa.Select[Any]) -> Iterator[None]:
    """Another process holds a row, and is frozen."""
    engine = sa.create_engine(env.runtime.database.url)
    with engine.connect() as connection:
        connection.execute(row.with_for_update(key_share=True))
        yield
        connection.rollback()
    engine.dispose()


def end_unseen(env: Env, *ended: RunHandle) -> None:
    """Runs end in processes that die before they give their places to others."""
    is_one = runs.c.uid.in_([run.uid for run in ended])
    end = sa.update(runs).where(is_one).values(status="succeeded", ended_at=env.clock.now())
    env.runtime.database.transact(lambda connection: connection.execute(end))


def test_pass_waits_for_no_group_that_another_process_holds(postgres_env: Env) -> None:
    env = postgres_env
    names = {"a": "shop", "b": "shop", "c": "other", "d": "other"}
    first, second, third, fourth = env.fire_all(*(create(env, *one) for one in names.items()))
    end_unseen(env, first, third)

    with held(env, sa.select(limits.c.number).where(limits.c.name == "shop")):
        assert env.recover().granted == 1
        assert [has_place(second), has_place(fourth)] == [False, True]

    assert env.recover().granted == 1
    assert has_place(second)


def test_pass_waits_for_no_empty_group_that_another_process_holds(postgres_env: Env) -> None:
    env = postgres_env
    create(env, "a").delete()
    create(env, "b", "other").delete()

    with held(env, sa.select(limits.c.number).where(limits.c.name == "shop")):
        env.recover()
        assert [one.name for one in env.scheduler.limits.iter()] == ["shop"]

    env.recover()
    assert not env.scheduler.limits.list().items


def test_schedule_of_a_callers_long_transaction_keeps_no_place_from_others(postgres_env: Env) -> None:
    env = postgres_env
    first, second = env.fire_all(create(env, "a"), create(env, "b"))
    engine = sa.create_engine(env.runtime.database.url)
    with engine.begin() as connection:
        create(env, "c", connection=connection)
        first.cancel()
        assert has_place(second)
        second.cancel()
    engine.dispose()


def test_group_that_a_callers_transaction_names_is_not_removed_before_its_commit(postgres_env: Env) -> None:
    env = postgres_env
    create(env, "a").delete()
    engine = sa.create_engine(env.runtime.database.url)
    with engine.begin() as connection:
        create(env, "b", connection=connection)
        env.recover()
    engine.dispose()
    assert [one.name for one in env.scheduler.limits.iter()] == ["shop"]


def test_group_that_is_removed_while_a_schedule_joins_it_is_made_again(postgres_env: Env) -> None:
    env = postgres_env
    create(env, "a").delete()
    words: list[str] = []

    def remove_meanwhile(word: str) -> None:
        if words[-1:] == ["INSERT"] and word == "SELECT":  # it has seen the row, and has not locked it
            words.clear()
            with other.begin() as connection:
                connection.execute(sa.delete(limits))
            words.append("removed")
        if words != ["removed"]:
            words.append(word)

    other = sa.create_engine(env.runtime.database.url)
    with statements(env.runtime, remove_meanwhile):
        create(env, "b")
    other.dispose()

    assert words == ["removed"]
    assert [(one.name, one.number) for one in env.scheduler.limits.iter()] == [("shop", 1)]


def test_next_in_line_follows_when_the_first_was_held_and_leaves_the_line(postgres_env: Env) -> None:
    """A cancel locks the first in line while a place becomes free, and cannot see that place."""
    env = postgres_env
    first, second, third = env.fire_all(*(create(env, name) for name in "abc"))
    with held(env, sa.select(runs.c.uid).where(runs.c.uid == second.uid)):
        first.cancel()
        assert [has_place(second), has_place(third)] == [False, False]

    second.cancel()

    assert has_place(third)


def test_end_leaves_the_line_to_who_gives_places_just_now_while_others_have_one_to_claim(
    postgres_env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    env = postgres_env
    first, second, third, fourth = env.fire_all(*(create(env, name, limit_running=2) for name in "abcd"))
    with held(env, sa.select(limits.c.number)):
        env.execute(first)
    assert (has_place(second), has_place(third)) == (True, False)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []

    env.execute(second)

    assert (has_place(third), has_place(fourth)) == (True, True)


def test_end_waits_for_who_gives_places_just_now_when_nobody_has_one_to_claim(postgres_env: Env) -> None:
    env = postgres_env
    first, second = env.fire_all(create(env, "a"), create(env, "b"))
    with ThreadPoolExecutor(1) as threads:
        with held(env, sa.select(limits.c.number)):
            ended = threads.submit(first.cancel)
            wait_for_a_lock(env.runtime.database)
        ended.result()

    assert has_place(second)


def test_end_looks_at_no_line_while_others_have_most_places_to_claim(postgres_env: Env) -> None:
    """There are eight places and four unclaimed grants. The second end makes a quarter of the places free."""
    env = postgres_env
    waiting = env.fire_all(*(create(env, str(at), limit_running=8) for at in range(11)))
    claims = [env.claim(run) for run in waiting[:4]]
    looks = []
    for claim in claims[:2]:
        with statements(env.runtime) as found:
            publish_end(env.runtime, write_end(env.runtime, claim, SUCCESS, patience=env.runtime.end_patience))
        looks.append(found[1:])

    assert (waiting[0].refresh().status, waiting[1].refresh().status) == ("succeeded", "succeeded")
    assert looks[0] == []
    assert "UPDATE" in looks[1]
    assert [has_place(run) for run in waiting[8:]] == [True, True, False]


def test_end_looks_at_no_line_where_it_saw_none_and_less_than_half_of_the_places_taken(postgres_env: Env) -> None:
    env = postgres_env
    claims = [env.claim(run) for run in env.fire_all(*(create(env, name, limit_running=5) for name in "abc"))]
    looks = []
    for claim in claims[:2]:
        with statements(env.runtime) as found:
            publish_end(env.runtime, write_end(env.runtime, claim, SUCCESS, patience=env.runtime.end_patience))
        looks.append(found[1:])

    assert looks[0] != [], "who joined meanwhile may have found the group full"
    assert looks[1] == []


def test_end_that_saw_nobody_in_line_lets_who_joined_meanwhile_follow(postgres_env: Env) -> None:
    """A run joins and finds its group full. The end is then written by a statement that began before the join."""
    env = postgres_env
    first_of, second_of = create(env, "a"), create(env, "b")
    (first,) = env.fire_all(first_of)
    claim = env.claim(first)
    with ThreadPoolExecutor(1) as threads:
        with held(env, sa.select(schedules.c.uid).where(schedules.c.uid == first_of.uid)):
            ended = threads.submit(write_end, env.runtime, claim, SUCCESS, patience=env.runtime.end_patience)
            wait_for_a_lock(env.runtime.database)
            second = present(second_of.trigger().run)
            assert not has_place(second)
        publish_end(env.runtime, ended.result())

    assert (first.refresh().status, has_place(second)) == ("succeeded", True)


STOPPED = """
CREATE FUNCTION stopped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '57014', MESSAGE = 'as the test wants it';
END $$;
CREATE TRIGGER stopped BEFORE UPDATE ON rqsched_runs FOR EACH ROW
    WHEN (OLD.granted_at IS NULL AND NEW.granted_at IS NOT NULL) EXECUTE FUNCTION stopped();
"""


def test_run_succeeds_where_the_server_stops_what_gives_its_place_to_the_next(postgres_env: Env) -> None:
    env = postgres_env
    first, second = env.fire_all(create(env, "a"), create(env, "b"))
    define(env, STOPPED)

    env.work()

    assert (first.refresh().status, has_place(second)) == ("succeeded", False)
    assert env.redis.zcard("rq:failed:default") == 0
    define(env, "DROP TRIGGER stopped ON rqsched_runs")
    env.recover()
    assert has_place(second)


def define(env: Env, text: str) -> None:
    env.runtime.database.transact(lambda connection: connection.exec_driver_sql(text))
