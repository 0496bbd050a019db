"""A person on call answers each question by a few clicks from the overview, and SQL gives the same answer."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa
from rq import Worker

from rqsched import Cron, RetryPolicy
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import iso_utc
from rqsched.kernel.store.tables import audit_events, runs, schedules
from rqsched.kernel.transport.telemetry import DispatcherHeartbeat
from tests.dashboard.test_overview import follow, groups
from tests.dashboard.test_runs import fail
from tests.dashboard.test_statements import text_of
from tests.dashboard.test_system import cells
from tests.support.env import DAY, HOUR, MINUTE, SECOND, Env
from tests.support.narrow import present
from tests.support.pages import Pages

pytestmark = pytest.mark.every_database
YEARLY = Cron("0 2 1 1 *")


@dataclass
class Person:
    """Somebody on call, who begins on the overview and counts the clicks."""

    pages: Pages
    clicks: int = 0
    page: str = field(init=False)
    """The page before them."""

    def __post_init__(self) -> None:
        self.page = self.pages.get("/")

    @property
    def words(self) -> str:
        return text_of(self.page)

    def click(self, label: str) -> None:
        """Follow the link whose text begins with a label."""
        self.page = follow(self.pages, self.page, re.escape(label))
        self.clicks += 1

    def ask(self, path: str, **fields: str) -> None:
        """Fill in a form that only reads, and press its button."""
        assert not fields.keys() - {*re.findall(r'name="(\w+)"', self.page)}, "the form is on the page"
        path = f"{path}?{urlencode(fields)}"
        self.page = self.pages.get(self.pages.led_to(path) if path.startswith("/why") else path)
        self.clicks += 1


def answer(env: Env, *columns: Any, where: Any = True) -> list[Any]:
    """What SQL answers."""
    statement = sa.select(*columns).where(where)
    return env.runtime.database.read(lambda connection: [*connection.execute(statement)])


def serve(env: Env, *queues: str) -> None:
    """A worker of these queues and a dispatcher are alive."""
    Worker(list(queues), connection=env.redis, name=f"of-{queues[0]}").register_birth()
    env.recover()
    DispatcherHeartbeat(env.redis, env.transport.control.name, env.runtime.now).send()


def test_what_is_wrong_and_what_to_do_first(any_pages: Pages) -> None:
    env = any_pages.env
    for _ in range(4):
        fail(any_pages, "crm", "no customer")
    dying = env.create("ledger", workflow="fails", spec=YEARLY, retry=RetryPolicy(max_retries=0, then="dead"))
    dying.trigger()
    env.execute_pending()
    for number in range(2):
        env.create(f"drawing-{number}", spec=YEARLY, queue="gpu").trigger()
    env.advance(10 * MINUTE)
    serve(env, "default")
    person = Person(any_pages)
    ((dead,),) = answer(env, sa.func.count(), where=schedules.c.status == "dead")
    ((failing,),) = answer(env, sa.func.count(), where=schedules.c.consecutive_failures >= 3)
    ((waiting,),) = answer(env, sa.func.count(), where=(runs.c.status == "pending") & (runs.c.queue == "gpu"))
    first, second, third = map(text_of, re.findall(r'<article class="problem.*?</article>', person.page, re.DOTALL))
    assert first.startswith(f"{dead} schedule is dead"), "what starts no run comes first"
    assert "Fix the workflow and deploy it, then restart the schedule" in first
    assert second.startswith(f"{failing} schedule is failing repeatedly")
    assert (
        f"No worker listens for {waiting} run{'s' * (waiting > 1)} on &#39;gpu&#39;. Start rqsched worker gpu" in third
    )
    assert person.clicks == 0


def test_why_it_did_not_run_at_two(any_pages: Pages) -> None:
    env = any_pages.env
    nightly = env.create("nightly", spec=Cron("0 2 * * *"), timezone="Europe/Berlin")
    env.claim(env.fire_next(nightly, 14 * HOUR))
    env.advance(DAY)
    env.deliver(nightly.refresh())
    env.advance(2 * DAY)
    person = Person(any_pages)
    person.ask("/why", schedule="nightly")
    person.ask("/schedules/nightly", at="2026-01-17T02:00", zone="Europe/Berlin")
    is_skip = audit_events.c.event_type == "ScheduleTriggerSkipped"
    ((sequence, payload),) = answer(env, audit_events.c.sequence, audit_events.c.payload, where=is_skip)
    skip = json.loads(payload)
    ((number, status),) = answer(env, runs.c.number, runs.c.status, where=runs.c.uid == skip["blocking_run_id"])
    assert (skip["occurrence_time"], status) == ("2026-01-17T01:00:00Z", "running")
    told = f"It was skipped: an earlier run was unfinished, #{number}. run event {sequence}"
    assert f"Sat 17 Jan 2026 02:00 CET skipped \N{EN DASH} {told}" in person.words
    assert person.clicks == 2


def test_what_fails_most_and_since_when(any_pages: Pages) -> None:
    env = any_pages.env
    for schedule_id, error, times in (("crm", "no customer", 5), ("erp", "no order", 2)):
        env.run_next(env.create(schedule_id, spec=HOUR), HOUR)
        for _ in range(times):
            env.advance(MINUTE)
            fail(any_pages, schedule_id, error)
    env.advance(MINUTE)
    serve(env, "default")
    person = Person(any_pages)
    of = runs.c.schedule_uid == schedules.c.uid
    found = answer(env, schedules.c.schedule_id, runs.c.ended_at, where=of & (runs.c.status == "failed"))
    failures = Counter(name for name, _ in found).most_common()
    ((success,),) = answer(
        env,
        sa.func.max(runs.c.ended_at, type_=runs.c.ended_at.type),
        where=of & (runs.c.status == "succeeded") & (schedules.c.schedule_id == "crm"),
    )
    assert failures == [("crm", 5), ("erp", 2)]
    assert [(int(count), name) for count, name, _ in groups(person.page)] == [(5, "crm"), (2, "erp")]
    (streak,) = re.findall(r"5 failures in a row, the first .*?</span>", person.page)
    told = [iso_utc(at) for at in (min(at for name, at in found if name == "crm"), success)]
    assert re.findall(r'datetime="([^"]*)"', streak) == told
    assert person.clicks == 0


def test_failures_with_one_cause_are_named_by_the_schedule_that_has_the_most(any_pages: Pages) -> None:
    env = any_pages.env
    for schedule_id, times in (("crm", 3), ("erp", 1)):
        env.create(schedule_id, spec=HOUR)
        for _ in range(times):
            env.advance(MINUTE)
            fail(any_pages, schedule_id, "no customer")
    serve(env, "default")

    page = Person(any_pages).page

    assert [(int(count), name) for count, name, _ in groups(page)] == [(4, "crm")]


def test_what_fires_in_the_next_hour(any_pages: Pages) -> None:
    env = any_pages.env
    env.create("hourly", spec=Cron("30 * * * *"))
    env.create("quarterly", spec=Cron("*/15 * * * *"), overlap="allow_all")
    env.create("tomorrow", spec=Cron("0 2 * * *"))
    env.create("paused").pause()
    serve(env, "default")
    person, now = Person(any_pages), env.runtime.now()
    for label in ("Timeline", "Zoom in", "Zoom in"):
        person.click(label)
    rows = re.findall(r'<div class="lane"><span class="whose">.*?>(\w+)</a>(.*?)</div>', person.page, re.DOTALL)
    told = {(name, at) for name, row in rows for at in re.findall(r"fires Thu (\d\d:\d\d):00", row)}
    for _ in range(60):
        env.tick()
    fired = answer(env, schedules.c.schedule_id, runs.c.occurrence_at, where=schedules.c.uid == runs.c.schedule_uid)
    assert {one for one in told if one[1] <= "13:00"} == {(name, at.strftime("%H:%M")) for name, at in fired}
    assert len(fired) == 5
    assert now + HOUR == env.runtime.now()
    assert person.clicks == 3


def test_who_paused_it_and_why(any_pages: Pages) -> None:
    env = any_pages.env
    env.create("letters").pause(context=CommandContext(principal="ada", reason="the printer is away"))
    env.advance(HOUR)
    person = Person(any_pages)
    person.click("1</strong><span>paused")
    ((payload, at),) = answer(
        env, audit_events.c.payload, audit_events.c.recorded_at, where=audit_events.c.event_type == "SchedulePaused"
    )
    by = json.loads(payload)["command_context"]
    assert at == env.runtime.now() - HOUR
    assert f"letters note paused by {by['principal']} , 60 min ago : {by['reason']}" in person.words
    assert person.clicks == 1


def test_whether_there_are_enough_workers(any_pages: Pages) -> None:
    env = any_pages.env
    schedule = env.create("letters", spec=YEARLY, overlap="allow_all")
    for _ in range(3):
        run = present(schedule.trigger().run)
        env.claim(run)
        env.advance(24 * MINUTE)
        run.terminate()
    schedule.trigger()
    serve(env, "default")
    person = Person(any_pages)
    person.click("Workers")
    is_recent = runs.c.created_at >= env.runtime.now() - HOUR
    found = answer(env, runs.c.started_at, runs.c.ended_at, where=is_recent)
    took = [ended - started for started, ended in found if ended is not None]
    needed = sum(took, timedelta(0)) / len(took) * len(found) / HOUR / 0.8  # with a reserve of a fifth
    told = f"too few: {sum(took, timedelta(0)) / HOUR:.0%} busy, needs about {ceil(needed)}"
    assert cells(person.page, "default")[-2:] == [told, "1"]
    assert cells(person.page, "default")[1:5:2] == ["1", f"{len(found)} / h"]
    assert (len(found), len(took)) == (3, 2)
    assert person.clicks == 1


def test_which_runs_wait_for_a_limit(any_pages: Pages) -> None:
    env = any_pages.env
    for name in ("letters", "invoices"):
        schedule = env.create(name, spec=YEARLY, limit="vendor", limit_running=1, overlap="allow_all")
        for _ in range(2):
            env.advance(SECOND)
            schedule.trigger()
    env.create("other", spec=YEARLY).trigger()
    person = Person(any_pages)
    person.click("Workers")
    person.click("vendor")
    is_in_line = (
        (schedules.c.uid == runs.c.schedule_uid) & runs.c.limit_group.is_not(None) & runs.c.granted_at.is_(None)
    )
    found = answer(env, runs.c.limit_at, schedules.c.schedule_id, runs.c.number, where=is_in_line)
    line = [f"{place} #{number} of {name}" for place, (_, name, number) in enumerate(sorted(found), 1)]
    shown = text_of(re.findall(r'data-live="line".*?</section>', person.page, re.DOTALL)[0])
    assert re.findall(r"\d+ #\d+ of \w+", shown) == line
    assert len(line) == 3
    assert person.clicks == 2


def test_a_cron_is_changed_safely(any_pages: Pages) -> None:
    env = any_pages.env
    env.run_next(env.create("digest", spec=Cron("0 9 * * *")), 21 * HOUR)
    person = Person(any_pages)
    person.click("digest")
    person.click("Edit")
    fields = {"kind": "cron", "timing": "30 10 * * *", "timezone": "UTC"}
    preview = any_pages.get(f"/preview?schedule_id=digest&{urlencode(fields)}")
    (version,) = re.findall(r'name="version" value="(\d+)"', person.page)
    first, second, *_ = re.findall(r'datetime="([^"]*)"', preview)
    before = answer(env, runs.c.uid)
    assert "digest is saved." in any_pages.do("/schedules/digest/edit", workflow="note", version=version, **fields)
    person.clicks += 1
    assert answer(env, runs.c.uid) == before, "saving starts nothing"
    assert [iso_utc(at) for (at,) in answer(env, schedules.c.next_run_at)] == [first]
    env.advance(DAY)
    env.deliver(env.scheduler.get("digest"))
    assert first in [iso_utc(at) for (at,) in answer(env, runs.c.occurrence_at)]
    assert [iso_utc(at) for (at,) in answer(env, schedules.c.next_run_at)] == [second]
    assert person.clicks == 3


def test_the_run_of_yesterday_again(any_pages: Pages) -> None:
    env = any_pages.env
    schedule = env.create("letters", spec=DAY)
    for _ in range(2):
        env.run_next(schedule, DAY)
    person = Person(any_pages)
    person.click("letters")
    ((due, uid),) = answer(env, runs.c.occurrence_at, runs.c.uid, where=runs.c.number == 1)
    next_fire = answer(env, schedules.c.next_run_at)
    person.click("#1")
    person.click("Run again")
    assert "Run #2 of letters is pending." not in person.words
    (key,) = re.findall(r'name="key" value="(\w+)"', person.page)
    person.page = any_pages.do(f"/runs/{uid}/again", key=key, reason="the file was late")
    person.clicks += 1
    assert "Run #3 of letters is pending." in person.words
    copies = answer(env, runs.c.kind, runs.c.occurrence_at, runs.c.status, where=runs.c.number == 3)
    assert copies == [("manual", due, "pending")]
    assert answer(env, schedules.c.next_run_at) == next_fire
    assert person.clicks == 4


def test_a_tenant_is_stopped_now(any_pages: Pages) -> None:
    env = any_pages.env
    for name, namespace in (("letters", "default"), ("invoices", "default"), ("others", "other")):
        run = present(env.create(name, spec=YEARLY, namespace=namespace).trigger().run)
        if name != "letters":
            env.claim(run)
    person = Person(any_pages)
    person.click("Stop")
    person.ask("/namespace/stop", namespace="default")
    for fields in ({"step": "freeze"}, {"step": "cancel"}, {"step": "terminate", "confirm": "default"}):
        person.page = any_pages.send("/namespace/stop", reason="its data leaked", **fields).text
        person.clicks += 1
    assert "1 run terminated." in person.words
    found = answer(env, schedules.c.schedule_id, runs.c.status, where=schedules.c.uid == runs.c.schedule_uid)
    assert dict(found) == {"letters": "cancelled", "invoices": "terminated", "others": "running"}
    env.advance(366 * DAY)
    env.recover()
    assert len(answer(env, runs.c.uid)) == 3, "nothing of the frozen namespace begins"
    assert person.clicks == 5
