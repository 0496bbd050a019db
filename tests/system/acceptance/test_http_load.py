"""A thousand callers at once through `rqsched web` as it is served: SQL, Redis and audit agree afterwards."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest
from rq.job import Job

from rqsched.kernel.decide import audit
from rqsched.kernel.decide.ids import LinkId
from rqsched.kernel.decide.model import RunStatus
from rqsched.kernel.transport.transport import job_id_of, link_of
from tests.support.invariants import check_invariants
from tests.support.processes import rqsched_command, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of
from tests.support.stories import Story
from tests.system.acceptance.chores import NOTE
from tests.system.acceptance.live import LiveEnv, MakeLive

CALLERS = 1_000
SCHEDULES = 900
"""Fewer than callers: some ids are wanted by two of them at once."""
PAUSED = 400
"""The schedules that somebody pauses, each by several callers at once."""


@dataclass(frozen=True)
class Call:
    """One request about one schedule."""

    operation: str
    schedule_id: str

    async def send(self, port: int) -> Answer:
        """Send it over a connection of its own; a client library would take more CPU than the server."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(self._request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status_line, _, headers = head.decode().partition("\r\n")
        return Answer(self, int(status_line.split()[1]), headers.lower(), body.decode())

    @property
    def _request(self) -> bytes:
        path = "" if self.operation == "create" else f"{self.schedule_id}/{self.operation}/"
        wanted = {"schedule_id": self.schedule_id, "workflow": NOTE, "interval": "1h", "kwargs": {"log": "unused"}}
        body = json.dumps(wanted if self.operation == "create" else {})
        head = [f"POST /api/v1/schedules/{path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", body]
        return "\r\n".join(head).encode()


@dataclass(frozen=True)
class Answer:
    """The answer to one call."""

    call: Call
    status: int
    headers: str
    body: str

    @property
    def kind(self) -> tuple[str, int]:
        return self.call.operation, self.status

    @property
    def is_refusal_in_good_order(self) -> bool:
        """A database that is away, or a fast machine that asks more often than one principal may."""
        return self.status in {429, 503} and "\r\nretry-after:" in self.headers


def calls_of(operation: str, schedules: int) -> list[Call]:
    """A thousand calls spread over so many schedules."""
    return [Call(operation, f"s{number % schedules}") for number in range(CALLERS)]


async def all_at_once(port: int, calls: Sequence[Call]) -> list[Answer]:
    """Send every call before any is answered."""
    return await asyncio.gather(*(call.send(port) for call in calls))


def counted(answers: Sequence[Answer], operation: str, status: int, outcome: str | None = None) -> Counter[str]:
    """How often each schedule was answered so."""
    wanted = (operation, status)
    return Counter(
        answer.call.schedule_id
        for answer in answers
        if answer.kind == wanted and outcome in (None, json.loads(answer.body).get("outcome"))
    )


@pytest.fixture
def live(make_live: MakeLive, postgres_url: str) -> LiveEnv:
    return make_live(postgres_url)


@pytest.fixture
def port(live: LiveEnv) -> int:
    """Where `rqsched web` serves the environment."""
    port = free_port()
    web = live.start(rqsched_command("web", "--port", str(port)))
    wait_until(
        lambda: status_of(f"http://127.0.0.1:{port}/readyz") == 200,
        timeout=30,
        what=lambda: f"rqsched web:\n{web.log()}",
    )
    return port


@pytest.mark.acceptance
@pytest.mark.nightly
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_a_thousand_creates_triggers_and_pauses_at_once_leave_sql_redis_and_audit_consistent(
    live: LiveEnv, port: int
) -> None:
    answers = asyncio.run(all_at_once(port, calls_of("create", SCHEDULES)))
    changes = [*calls_of("trigger", SCHEDULES), *calls_of("pause", PAUSED)]
    random.Random(7).shuffle(changes)
    answers += asyncio.run(all_at_once(port, changes))

    bad = [answer for answer in answers if answer.status >= 500 and not answer.is_refusal_in_good_order]
    assert bad == [], bad[0]
    assert {answer.kind for answer in answers if not answer.is_refusal_in_good_order} == EXPECTED
    check_invariants(live.scheduler.runtime)
    stories = live.stories()
    check_answers(answers, stories)
    check_links(live, stories)
    check_jobs(live, stories)


EXPECTED = {("create", 201), ("create", 409), ("trigger", 200), ("pause", 200), ("pause", 400)}
"""The refusals are a create with a taken id, and a pause of a paused schedule."""


def check_answers(answers: Sequence[Answer], stories: Sequence[Story]) -> None:
    """Check that each confirmed operation happened once. An operation answered with 503 may have happened."""
    unknown = {operation: counted(answers, operation, 503) for operation in ("create", "trigger", "pause")}
    events = {story.schedule.schedule_id: Counter(event.event_type for event in story.events) for story in stories}
    told = {
        "create": (counted(answers, "create", 201), audit.CREATED),
        "trigger": (counted(answers, "trigger", 200, "triggered"), audit.TRIGGERED),
        "pause": (counted(answers, "pause", 200), audit.PAUSED),
    }
    assert len(events) == len(stories) == SCHEDULES
    for operation, (counts, event_type) in told.items():
        for schedule_id, found in events.items():
            least, most = counts[schedule_id], counts[schedule_id] + unknown[operation][schedule_id]
            assert least <= found[event_type] <= most, f"{schedule_id}: {operation}: {found}"
    skipped = counted(answers, "trigger", 200, "skipped")
    assert skipped.total() <= sum(found[audit.SKIPPED] for found in events.values())


def check_links(live: LiveEnv, stories: Sequence[Story]) -> None:
    """Check that each active schedule's link waits until it is due. A paused schedule has only stale links."""
    transport = live.scheduler.runtime.transport
    entries = cast("list[tuple[bytes, float]]", transport.redis.zrange(transport.scheduled_key, 0, -1, withscores=True))
    waiting = {entry.decode(): score for entry, score in entries}
    for story in stories:
        for arm in link_of(story.schedule):
            assert waiting.pop(str(arm.id)) == pytest.approx(arm.due_at.timestamp(), abs=1e-3)
            assert transport.redis.exists(Job.key_for(str(arm.id)))
    stale = {str(LinkId(one.schedule.uid, n)) for one in stories for n in range(one.schedule.n)}
    assert set(waiting) <= stale
    assert transport.redis.llen(transport.list_key) == 0


def check_jobs(live: LiveEnv, stories: Sequence[Story]) -> None:
    """The job of each run that waits is on its queue, once."""
    waiting = [run for story in stories for run in story.runs if run.status is RunStatus.PENDING]
    redis = live.scheduler.runtime.transport.redis
    queued = cast("list[bytes]", redis.lrange("rq:queue:default", 0, -1))
    assert len(waiting) > CALLERS / 4, "hardly anything was triggered: this is no load"
    assert sorted(entry.decode() for entry in queued) == sorted(str(job_id_of(run)) for run in waiting)
