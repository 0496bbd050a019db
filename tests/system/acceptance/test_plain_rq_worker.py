"""A plain `rq worker` is enough: slower, never wrong."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rqsched import Every
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.model import RunKind
from tests.support.processes import rq_worker_command, wait_until
from tests.support.stories import Story
from tests.system.acceptance.live import LiveEnv

OCCURRENCES = 60


@pytest.mark.acceptance
@pytest.mark.timeout(240)
def test_a_chain_on_a_grid_of_one_second_leaves_no_occurrence_out_under_a_plain_rq_worker(live: LiveEnv) -> None:
    schedule = live.note_every("tick", Every(timedelta(seconds=1), offset=timedelta(0)), overlap="allow_all")
    redis_url = live.environment["RQSCHED_REDIS_URL"]
    live.start(rq_worker_command(redis_url, "rqsched", "default"))

    wait_until(
        lambda: schedule.refresh().run_count + schedule.missed_count >= OCCURRENCES,
        timeout=180,
        interval=0.5,
        what=f"{OCCURRENCES} occurrences with an outcome",
    )
    schedule.pause()

    live.check()
    (story,) = live.stories()
    assert outcomes_besides(story) == set()
    assert fired_early(story) == []
    assert schedule.refresh().run_count > OCCURRENCES / 4, "nearly everything was missed: this is no chain"


def outcomes_besides(story: Story) -> set[str]:
    """The skip reasons that are neither `fired` nor `missed`, the pause of this test apart."""
    return {event.payload["reason"] for event in story.events if event.event_type == audit.SKIPPED} - {"disabled"}


def fired_early(story: Story) -> list[str]:
    runs = [run for run in story.runs if run.kind is RunKind.SCHEDULED]
    return [f"{run.occurrence_at} fired at {run.created_at}" for run in runs if run.created_at < run.occurrence_at]
