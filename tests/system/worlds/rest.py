"""Conditions after the faults have ended and reconcile had its passes: nothing is stuck, no error was swallowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rqsched.kernel.chain import fire as firing
from rqsched.kernel.chain.fire import Fired
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.ids import LinkId, parse_link_id
from rqsched.kernel.decide.model import RunStatus
from rqsched.kernel.transport.transport import job_id_of, link_of, retry_of
from tests.support.stories import Story, read_stories
from tests.system.worlds.network import Network

SOON = timedelta(seconds=30)


def check_rest(runtime: Runtime, network: Network) -> None:
    """Assert that every schedule goes on: fired up to now, its links armed, its runs worked off."""
    stories = read_stories(runtime)
    checks = (_fires_on, _runs_go_on, _fire_never_failed)
    problems = [(story, text) for story in stories for check in checks for text in check(story, runtime, network)]
    if problems:
        texts = [f"{story.name}: {text}" for story, text in problems]
        concerned = {story.name: story.lines() for story, _ in problems}
        raise AssertionError("\n".join([*texts, *concerned.values()]))


def _fires_on(story: Story, runtime: Runtime, network: Network) -> Iterator[str]:
    now, due_at = runtime.now(), story.schedule.due_at
    before = now - runtime.settings.repair_grace
    if due_at is not None and due_at <= before:
        yield f"I3: due at {due_at}, and now is {now}"
    retries = [retry_of(run) for run in story.runs if run.status is RunStatus.RETRYING]
    for arm in [*link_of(story.schedule), *retries]:
        if arm.due_at <= before:
            yield f"I3: {arm.id} was due at {arm.due_at}, and now is {now}"
        elif now < arm.due_at <= now + SOON - timedelta(seconds=1) and not network.is_armed(str(arm.id)):
            yield f"I3: {arm.id} is due at {arm.due_at} and not armed"


def _runs_go_on(story: Story, runtime: Runtime, network: Network) -> Iterator[str]:
    retrying = [run for run in story.runs if run.status is RunStatus.RETRYING]
    for run in story.runs:
        if run.status in {RunStatus.PENDING, RunStatus.RUNNING}:
            yield f"I7: {job_id_of(run)} is {run.status.value} for ever"
        elif run.status is RunStatus.BUFFERED and story.schedule.is_active and not retrying:
            yield f"I7: run {run.number} waits for ever"


def _fire_never_failed(story: Story, runtime: Runtime, network: Network) -> Iterator[str]:
    for event in story.events:
        if event.event_type == audit.FIRE_FAILED:
            yield f"a fire failed: {event.payload}"


@contextmanager
def watched_links() -> Iterator[None]:
    """Assert of every link fired in the block that it was the schedule's current one (I4)."""
    original = firing.fire

    def fire(runtime: Runtime, ids: Sequence[str], **options: Any) -> list[Fired]:
        results = original(runtime, ids, **options)
        for result in results:
            link, before = parse_link_id(result.id), None if result.change is None else result.change.before
            if result.outcome == "fired" and isinstance(link, LinkId) and before is not None:
                assert link.n == before.n, f"I4: {link} fired at position {before.n}"
        return results

    firing.fire = fire
    try:
        yield
    finally:
        firing.fire = original
