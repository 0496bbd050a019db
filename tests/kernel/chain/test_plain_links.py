"""Links under a plain `rq worker`: RQ's handling of each result of a fire."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from rq.job import JobStatus

from tests.support.env import MINUTE, Env, MakeEnv, link_id, statuses


def test_a_link_performed_by_rq_fires_and_is_forgotten(env: Env) -> None:
    schedule = env.create()
    link = link_id(schedule)
    env.advance()
    env.recover()  # its first pass after a flush puts the due link on the list
    env.redis.zrem(env.transport.scheduled_key, link)
    env.recover(deep=True)
    assert env.queued("rqsched") == [link]

    env.work("rqsched")

    assert statuses(schedule) == ["pending"]
    assert not env.redis.exists(f"rq:job:{link}")


def write(env: Env, *statements: str) -> None:
    env.runtime.database.transact(lambda connection: [connection.execute(sa.text(text)) for text in statements])


def enqueue(env: Env, link: str) -> None:
    """RQ's scheduler has promoted the link."""
    env.redis.zrem(env.transport.scheduled_key, link)
    job = env.job(link)
    env.transport.control.enqueue_job(job)


def test_rq_performs_an_early_link_again_and_never_early(env: Env) -> None:
    """RQ truncates times to whole seconds, and its host's clock may be ahead."""
    schedule = env.create()
    link = link_id(schedule)
    env.advance(MINUTE - timedelta(seconds=1.5))
    enqueue(env, link)

    env.work("rqsched")

    assert statuses(schedule) == []
    job = env.job(link)
    assert job.get_status() is JobStatus.SCHEDULED
    assert link in env.armed(), "RQ has put it back for itself"
    env.advance(timedelta(seconds=1.5))
    enqueue(env, link)
    env.work("rqsched")
    assert statuses(schedule) == ["pending"]


def test_rq_leaves_a_link_of_another_database_for_its_owner(env: Env) -> None:
    schedule = env.create()
    link = link_id(schedule)
    write(env, "DELETE FROM rqsched_audit_events", "DELETE FROM rqsched_schedules")
    enqueue(env, link)

    env.work("rqsched")

    assert link in env.armed()


def test_a_link_whose_fire_meets_an_outage_of_sql_is_performed_again_by_rq(make_env: MakeEnv) -> None:
    env = make_env()
    schedule = env.create()
    link = link_id(schedule)
    env.advance()
    enqueue(env, link)
    write(env, "ALTER TABLE rqsched_schedules RENAME TO gone")

    env.work("rqsched")

    assert env.job(link).retries_left == 59
    assert link in env.armed()
