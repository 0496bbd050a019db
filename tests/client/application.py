"""An application that uses the operations written by a script, as a type checker and an editor see them.

mypy checks it, strictly, with the rest of the repository; nothing runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import assert_type

from rqsched import Calendar
from rqsched.client import AsyncClient, AsyncScheduleHandle, Client, RunHandle, ScheduleHandle
from rqsched.types import BackfillProgress, Freeze, LimitDescription, Load, Page, Thawed, ThawPreview, Usage, Why

LATER = datetime(2027, 1, 1, tzinfo=UTC)


def operate(client: Client) -> None:
    assert_type(client.limits.list(limit=10), Page[LimitDescription])
    assert_type([one.running for one in client.limits.iter()], list[int])
    assert_type(client.limits.set("tenant:42", 5, rate="100/min", reason="a sale"), LimitDescription)
    assert_type(client.backfills.list(status="running"), Page[BackfillProgress])
    assert_type(client.backfills.cancel("01KG8J6R00V4ZQ3N7M5T2X9C1B", "the wrong month"), BackfillProgress)
    assert_type(client.calendars.list(), Sequence[Calendar])
    assert_type(client.namespaces.usage(), Usage)
    assert_type(client.load(hours=48), Load)
    assert_type(client.freeze("a restore", everything=True), Freeze)
    assert_type(client.freezes(), Sequence[Freeze])
    assert_type(client.preview_thaw(missed="none", since=LATER), ThawPreview)
    assert_type(client.thaw(missed="one", cancel_pending=True), Thawed)
    client.thaw(missed="two")  # type: ignore[arg-type] # a value that the scheduler does not take
    client.limits.set(5)  # type: ignore[arg-type] # as above
    schedule = client.get("nightly")
    assert_type(schedule.pause("closed", until=LATER, if_version=3), ScheduleHandle)
    assert_type(schedule.resume("once").skip_next(2, reason="a holiday").restart(), ScheduleHandle)
    assert_type(schedule.upcoming(3), Sequence[datetime])
    assert_type(schedule.why(LATER), Why)
    assert_type(schedule.run("1").cancel("the wrong month").retry(failed_targets=True), RunHandle)
    assert_type(schedule.run("1").run_again("late", kwargs={"part": 2}, downstream=True), RunHandle)
    schedule.pause(until="tomorrow")  # type: ignore[arg-type] # as above


async def operate_later(client: AsyncClient) -> None:
    assert_type(await client.limits.set("tenant:42", 5), LimitDescription)
    assert_type([one.number async for one in client.limits.iter()], list[int | None])
    assert_type(await client.backfills.get("01KG8J6R00V4ZQ3N7M5T2X9C1B"), BackfillProgress)
    assert_type(await client.freeze("a restore"), Freeze)
    assert_type(await client.thaw(missed="none"), Thawed)
    schedule = await client.get("nightly")
    assert_type(await schedule.pause("closed"), AsyncScheduleHandle)
    await client.load("soon")  # type: ignore[arg-type] # as above
