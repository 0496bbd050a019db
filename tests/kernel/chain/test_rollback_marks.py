"""Going back is noticed by the marks of passes: when it must be, and never when it must not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from redis.exceptions import ConnectionError as RedisConnectionError

from rqsched import Cron
from rqsched.kernel.chain import rollback_marks
from rqsched.kernel.chain.rollback_marks import Told
from rqsched.kernel.decide.rollback_marks import WentBack
from rqsched.kernel.store import metadata
from rqsched.kernel.transport import redis_keys
from tests.support.damage import forget, settled
from tests.support.env import DAY, MINUTE, SECOND, Env, MakeEnv, link_id
from tests.support.narrow import present
from tests.support.sql import statements

BETWEEN_PASSES = 16 * SECOND
MARK = metadata.of_queue(metadata.MARK, "rqsched")
FORGET: dict[str, Callable[[Env], object]] = {
    "FLUSHALL": lambda env: env.redis.flushall(),
    "nothing": lambda env: None,
}


def told(env: Env) -> list[Told]:
    return env.runtime.database.read(partial(rollback_marks.find_told, env.runtime, env.runtime.now()))


def noticed(env: Env) -> list[WentBack]:
    return [one.which for one in told(env)]


def mark(env: Env) -> str:
    found = partial(metadata.find_mark, control_queue=env.transport.control.name)
    return present(env.runtime.database.read(found)[0])


def in_redis(env: Env) -> list[str]:
    return env.transport.marks(env.runtime.ownership.database_id())


def passes(env: Env, count: int = 1) -> None:
    for _ in range(count):
        env.advance(BETWEEN_PASSES)
        env.recover()


def restore(env: Env, backup: str) -> None:
    """SQL gets the earlier mark. Its other rows do not matter here."""
    env.runtime.database.transact(lambda connection: metadata.set_value(connection, MARK, backup))


def test_each_pass_leaves_its_mark_in_sql_and_in_redis_with_its_predecessors(any_env: Env) -> None:
    passes(any_env, 3)

    first, second, third = reversed(in_redis(any_env))
    assert mark(any_env) == third
    assert third.split()[1] == second.split()[0]
    assert second.split()[1] == first
    assert noticed(any_env) == []


def test_redis_keeps_a_thousand_predecessors(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqsched.kernel.transport.transport.MARKS_KEPT", 3)
    passes(env, 5)

    assert len(in_redis(env)) == 3
    assert in_redis(env)[0] == mark(env)


def test_passes_of_many_processes_leave_one_mark_within_the_interval(make_env: MakeEnv, database_url: str) -> None:
    envs = [make_env(database_url=database_url) for _ in range(3)]
    for env in envs:
        env.runtime.ownership.known_database_id()
    with statements(envs[0].runtime) as sent:
        rollback_marks.leave_mark(envs[0].runtime)
    assert sent.count("INSERT") == 1
    for env in envs:
        env.advance(4 * SECOND)
        with statements(env.runtime) as sent:
            rollback_marks.leave_mark(env.runtime)
        assert sent.count("SELECT") == 1
        assert not {"INSERT", "UPDATE"} & {*sent}
    envs[0].advance(4 * SECOND)
    with statements(envs[0].runtime) as sent:
        rollback_marks.leave_mark(envs[0].runtime)
    assert [word for word in sent if word not in {"BEGIN"}] == ["SELECT", "UPDATE"]
    assert len(in_redis(envs[0])) == 2


@pytest.mark.parametrize("lose", FORGET)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_first_start_and_a_flush_tell_nothing(env: Env, lose: str, before: int) -> None:
    passes(env, before)
    FORGET[lose](env)
    passes(env, 3)

    assert noticed(env) == []
    assert in_redis(env)[0] == mark(env)


def test_an_outage_of_redis_tells_nothing(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Redis is away SQL gets no mark, so it is not ahead of Redis when that is back."""
    passes(env, 2)
    known = mark(env)

    with monkeypatch.context() as patch:
        for name in ("newest_mark", "database_id", "push_mark"):
            patch.setattr(env.transport, name, away)
        passes(env, 5)
    assert mark(env) == known

    passes(env, 2)
    assert noticed(env) == []


@pytest.mark.parametrize("times", [1, 4])
def test_marks_that_do_not_reach_redis_tell_nothing(env: Env, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    passes(env, 2)
    with monkeypatch.context() as patch:
        patch.setattr(env.transport, "push_mark", away)
        passes(env, times)

    passes(env, 3)

    assert noticed(env) == []
    assert in_redis(env)[0] == mark(env)


def away(*_: object, **__: object) -> None:
    raise RedisConnectionError("away, as the test wants it")


def test_a_sql_that_went_back_is_noticed_once_with_its_time_and_everything_is_compared(
    any_env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = any_env.create(spec=Cron("0 0 1 1 *"))
    passes(any_env, 2)
    backup, backed_up_at = mark(any_env), any_env.clock.now()
    passes(any_env, 4)
    restore(any_env, backup)
    forget(any_env, link_id(schedule))

    with caplog.at_level(logging.WARNING):
        passes(any_env, 3)

    (one,) = told(any_env)
    assert (one.which, one.is_compared) == (WentBack.SQL, True)
    assert abs(present(one.to) - backed_up_at) < SECOND
    assert one.noticed_at == backed_up_at + 5 * BETWEEN_PASSES
    assert link_id(schedule) in any_env.armed(), "an ordinary pass compares only what is due soon"
    assert [record.__dict__["action"] for record in caplog.records] == ["sql_went_back"]
    any_env.advance(DAY)
    assert told(any_env) == []


def test_a_pass_that_dies_before_everything_is_compared_is_followed_by_another_full_one(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = env.create(spec=Cron("0 0 1 1 *"))
    passes(env, 2)
    backup = mark(env)
    passes(env, 2)
    restore(env, backup)
    forget(env, link_id(schedule))
    with monkeypatch.context() as patch:
        patch.setattr(env.transport, "arm", dies)
        with pytest.raises(KeyboardInterrupt):
            passes(env)
    assert [one.is_compared for one in told(env)] == [False]

    passes(env)

    assert link_id(schedule) in env.armed()
    assert [one.is_compared for one in told(env)] == [True]


@pytest.mark.parametrize("which", [WentBack.SQL, WentBack.REDIS])
@pytest.mark.parametrize("fails", [False, True], ids=["dies", "fails"])
def test_a_pass_that_notices_and_does_not_reach_redis_is_told_once(
    env: Env, monkeypatch: pytest.MonkeyPatch, which: WentBack, fails: bool
) -> None:
    """Its mark then does not follow the newest mark in Redis. This alone is not reported again."""
    passes(env, 2)
    key = redis_keys.marks("rqsched", env.runtime.ownership.database_id())
    backup, snapshot = mark(env), present(env.redis.dump(key))
    passes(env, 4)
    if which is WentBack.SQL:
        restore(env, backup)
    else:
        env.redis.restore(key, 0, snapshot, replace=True)
    with monkeypatch.context() as patch:
        patch.setattr(env.transport, "push_mark", away if fails else dies)
        with nullcontext() if fails else pytest.raises(KeyboardInterrupt):
            passes(env)
    (first,) = told(env)

    passes(env, 3)

    assert told(env) == [first._replace(is_compared=True)]
    assert in_redis(env)[0] == mark(env)
    if which is WentBack.SQL:
        restore(env, in_redis(env)[4])
        passes(env)
        assert noticed(env) == [WentBack.SQL, WentBack.TWO_DATABASES], "the line that was left is still another one"


def dies(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_sql_without_any_mark_beside_a_redis_with_some_went_back(env: Env) -> None:
    passes(env, 2)
    env.runtime.database.transact(
        lambda connection: connection.execute(sa.text("DELETE FROM rqsched_facts WHERE name LIKE 'mark:%'"))
    )

    passes(env, 2)

    assert [(one.which, one.to) for one in told(env)] == [(WentBack.SQL, None)]


def test_a_redis_that_went_back_is_noticed_with_its_time(any_env: Env) -> None:
    schedule = any_env.create(spec=Cron("0 0 1 1 *"))
    passes(any_env, 2)
    key = redis_keys.marks("rqsched", any_env.runtime.ownership.database_id())
    snapshot, taken_at = present(any_env.redis.dump(key)), any_env.clock.now()
    passes(any_env, 3)
    any_env.redis.restore(key, 0, snapshot, replace=True)
    forget(any_env, link_id(schedule))

    passes(any_env, 3)

    (one,) = told(any_env)
    assert (one.which, one.is_compared) == (WentBack.REDIS, True)
    assert abs(present(one.to) - taken_at) < SECOND
    assert link_id(schedule) in any_env.armed()
    passes(any_env)
    restore(any_env, in_redis(any_env)[3])
    passes(any_env)
    assert noticed(any_env) == [WentBack.REDIS, WentBack.SQL], "not two databases, though the line has a gap"


def test_two_databases_that_write_are_noticed_by_both_as_long_as_they_do(
    make_env: MakeEnv, sqlite_url: str, tmp_path: Path
) -> None:
    ours = make_env()
    passes(ours, 2)
    copy = tmp_path / "copy.db"
    with ours.runtime.database.engine.connect() as connection:
        connection.connection.driver_connection.execute(f"VACUUM INTO '{copy}'")  # type: ignore[union-attr]
    theirs = make_env(database_url=f"sqlite:///{copy}")
    passes(ours)

    for env in (theirs, ours, theirs, ours):
        passes(env)

    assert noticed(theirs) == [WentBack.SQL, WentBack.TWO_DATABASES]
    assert noticed(ours) == [WentBack.TWO_DATABASES]
    (two,) = told(ours)
    assert two.noticed_at == ours.clock.now(), "noticed anew by each pass"
    passes(ours, 3)
    assert told(ours)[0].noticed_at == two.noticed_at, "and no more when one of them has stopped"


STEPS = [("as Redis has it", step) for step in range(4)] + [("one mark ahead", step) for step in range(6)]
"""How SQL is when a pass begins, and each step of SQL and Redis that leaving a mark then takes."""


@pytest.mark.parametrize("dies_then", [False, True], ids=["goes on", "dies"])
@pytest.mark.parametrize(("sql", "step"), STEPS, ids=[f"{sql}, step {step}" for sql, step in STEPS])
def test_passes_at_any_step_of_another_tell_nothing(make_env: MakeEnv, sql: str, step: int, dies_then: bool) -> None:
    """While one pass writes its mark, others write theirs and Redis is flushed. Then the pass continues or dies."""
    slow, other = make_env(), make_env()
    for others, flushes in product((1, 3), (False, True)):
        leave(other, 2)
        if sql == "one mark ahead":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(other.transport, "push_mark", dies)
                with pytest.raises(KeyboardInterrupt):
                    leave(other)
        slow.advance(BETWEEN_PASSES)
        with interrupted(slow, step, partial(pass_meanwhile, other, others, flushes, dies_then)) as left:
            try:
                rollback_marks.leave_mark(slow.runtime)
            except KeyboardInterrupt:
                assert dies_then
        assert left[0] < 0, "there is no such step"
        for env in (other, slow, other):
            leave(env, 2)

        assert noticed(slow) == []
        assert in_redis(slow)[0] == mark(slow)


def pass_meanwhile(env: Env, count: int, flushes: bool, dies_then: bool) -> None:
    leave(env, count)
    if flushes:
        env.redis.flushall()
        leave(env, count)
    if dies_then:
        raise KeyboardInterrupt


def leave(env: Env, count: int = 1) -> None:
    for _ in range(count):
        env.advance(BETWEEN_PASSES)
        rollback_marks.leave_mark(env.runtime)


@contextmanager
def interrupted(env: Env, step: int, meanwhile: Callable[[], object]) -> Iterator[list[int]]:
    """Before this step of SQL or Redis, something happens; each is counted."""
    env.runtime.ownership.known_database_id()
    left = [step]

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                meanwhile()
            return call(*args, **kwargs)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for place, name in (
            (env.transport, "newest_mark"),
            (env.transport, "marks"),
            (env.transport, "push_mark"),
            (env.runtime.database, "read"),
            (env.runtime.database, "transact_alone"),
        ):
            patch.setattr(place, name, before(getattr(place, name)))
        yield left


def test_a_database_that_takes_a_queue_over_has_marks_of_its_own(make_env: MakeEnv, tmp_path: Path) -> None:
    first, second = make_env(), make_env(database_url=f"sqlite:///{tmp_path / 'second.db'}")
    passes(first, 2)
    first.redis.delete(first.transport.database_id_key)

    passes(second, 2)

    assert noticed(second) == []
    settled(second)
    first.redis.set(first.transport.database_id_key, first.runtime.ownership.database_id())
    passes(first, 2)
    assert noticed(first) == []


def test_a_minute_of_passes_writes_four_marks(env: Env) -> None:
    began = len(in_redis(env))
    for _ in range(60):
        env.advance(SECOND)
        env.recover()
    assert len(in_redis(env)) - began == 4
    assert 4 * env.runtime.settings.reconcile_interval == MINUTE


@pytest.mark.parametrize("queue", ["other", "q" * 255], ids=["short", "longest"])
def test_passes_of_two_control_queues_of_one_database_tell_nothing(make_env: MakeEnv, queue: str) -> None:
    ours = make_env()
    url = str(ours.scheduler.settings.database_url)
    theirs = make_env(database_url=url, control_queue=queue)

    for env in (ours, theirs, ours, theirs, theirs, ours):
        leave(env)

    assert (noticed(ours), noticed(theirs)) == ([], [])
    assert mark(ours) != mark(theirs)
    restore(ours, in_redis(ours)[1])
    leave(ours)
    leave(theirs)
    assert (noticed(ours), noticed(theirs)) == ([WentBack.SQL], [])
