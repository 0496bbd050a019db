"""What one does to a run."""

from __future__ import annotations

import pytest

from rqsched import current_run
from rqsched.errors import RqschedError
from tests.support.desk import Desk, newest, statuses


def test_a_waiting_run_that_is_cancelled_never_starts(any_desk: Desk) -> None:
    schedule = any_desk.create()
    run = schedule.trigger().run
    assert run is not None

    assert run.cancel().status == "cancelled"

    assert (any_desk.queued(), any_desk.work(), any_desk.calls) == ([], 0, [])
    assert run.cancel().status == run.terminate().status == "cancelled", "what has ended stays as it is"
    assert schedule.trigger().outcome == "triggered", "and blocks nothing"


def test_a_running_run_sees_its_cancellation_at_its_next_checkpoint(any_desk: Desk) -> None:
    steps: list[str] = []

    def cancelled_on_the_way() -> None:
        current = any_desk.scheduler.get("report").runs().items[0]
        current.cancel()
        steps.append("before")
        current_run().checkpoint()
        steps.append("after")

    any_desk.register("slow", cancelled_on_the_way)
    schedule = any_desk.create(workflow="slow")

    any_desk.turn()

    assert (steps, statuses(schedule)) == (["before"], ["cancelled"])
    assert schedule.refresh().error_count == 0


def test_a_run_is_found_by_uid_number_and_instance_id(any_desk: Desk) -> None:
    schedule = any_desk.create()
    any_desk.turn()
    any_desk.turn()
    second = newest(schedule)

    for name in (second.uid, second.uid.lower(), "2", second.instance_id):
        assert schedule.run(name).uid == second.uid
    assert [run.number for run in schedule.runs(statuses=("succeeded",)).items] == [2, 1]
    page = schedule.runs(limit=1)
    assert [run.number for run in schedule.runs(cursor=page.next_cursor).items] == [1]
    with pytest.raises(RqschedError):
        schedule.run("nobody")
