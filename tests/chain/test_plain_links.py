"""Links under a plain `rq worker`: what RQ does with what a fire says."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from rq.job import JobStatus

from tests.chain.conftest import MakeRig
from tests.support.rig import MINUTE, Rig, link_id, statuses


def test_a_link_performed_by_rq_fires_and_is_forgotten(rig: Rig) -> None:
    schedule = rig.create()
    link = link_id(schedule)
    rig.advance()
    rig.recover()  # its first pass after a flush puts the due link on the list
    rig.redis.zrem(rig.transport.scheduled_key, link)
    rig.recover(deep=True)
    assert rig.queued("rqsched") == [link]

    rig.work("rqsched")

    assert statuses(schedule) == ["pending"]
    assert not rig.redis.exists(f"rq:job:{link}")


def write(rig: Rig, *statements: str) -> None:
    rig.runtime.database.transact(lambda connection: [connection.execute(sa.text(text)) for text in statements])


def enqueue(rig: Rig, link: str) -> None:
    """RQ's scheduler has promoted the link."""
    rig.redis.zrem(rig.transport.scheduled_key, link)
    job = rig.job(link)
    rig.transport.control.enqueue_job(job)


def test_rq_performs_an_early_link_again_and_never_early(rig: Rig) -> None:
    """RQ cuts times to whole seconds, and its host's clock may be ahead."""
    schedule = rig.create()
    link = link_id(schedule)
    rig.advance(MINUTE - timedelta(seconds=1.5))
    enqueue(rig, link)

    rig.work("rqsched")

    assert statuses(schedule) == []
    job = rig.job(link)
    assert job.get_status() is JobStatus.SCHEDULED
    assert link in rig.armed(), "RQ has put it back for itself"
    rig.advance(timedelta(seconds=1.5))
    enqueue(rig, link)
    rig.work("rqsched")
    assert statuses(schedule) == ["pending"]


def test_rq_leaves_a_link_of_another_database_for_its_owner(rig: Rig) -> None:
    schedule = rig.create()
    link = link_id(schedule)
    write(rig, "DELETE FROM rqsched_audit_events", "DELETE FROM rqsched_schedules")
    enqueue(rig, link)

    rig.work("rqsched")

    assert link in rig.armed()


def test_a_link_whose_fire_meets_an_outage_of_sql_is_performed_again_by_rq(make_rig: MakeRig) -> None:
    rig = make_rig()
    schedule = rig.create()
    link = link_id(schedule)
    rig.advance()
    enqueue(rig, link)
    write(rig, "ALTER TABLE rqsched_schedules RENAME TO gone")

    rig.work("rqsched")

    assert rig.job(link).retries_left == 59
    assert link in rig.armed()
