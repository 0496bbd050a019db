"""The scheduler for async web apps: the same operations, awaited. Nothing is implemented twice.

Each runs the synchronous operation in a worker thread; cancelling the await does not stop it. In the transaction of an
AsyncSession or AsyncConnection it runs in the event loop, through `run_sync`, since that is where its driver lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rqsched.api.caller_transaction import is_async
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.api.schedule_view import ScheduleView
from rqsched.api.scheduler import Scheduler
from rqsched.chain.runtime import Runtime
from rqsched.core.audit import AuditRecord
from rqsched.core.model import Schedule
from rqsched.core.page import MAX_PAGE, Page

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Awaited = Coroutine[Any, Any, T]


async def run(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run any synchronous operation of a scheduler or handle without blocking the event loop.

    >>> schedule = await run(scheduler.create, "nightly", "sync", Cron("0 2 * * *"))  # doctest: +SKIP
    """
    return await asyncio.to_thread(partial(call, *args, **kwargs))


async def _run_in(runtime: Runtime, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an operation in a thread, or in the asynchronous transaction that it is given."""
    name = next((name for name in ("session", "connection") if is_async(kwargs.get(name))), None)
    if name is None:
        return await run(call, *args, **kwargs)
    await run(runtime.prepare)
    others: dict[str, Any] = {key: value for key, value in kwargs.items() if key != name}
    given: Any = kwargs[name]

    def operate(transaction: object) -> T:
        return cast("Callable[..., T]", call)(*args, **others, **{name: transaction})

    return cast("T", await given.run_sync(operate))


def _of_handle(
    call: Callable[Concatenate[ScheduleHandle, P], T],
) -> Callable[Concatenate[AsyncSchedule, P], Awaited[T]]:
    @wraps(call)
    async def method(self: AsyncSchedule, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _run_in(self.handle.runtime, call, self.handle, *args, **kwargs)

    return method


def _changing(
    call: Callable[Concatenate[ScheduleHandle, P], ScheduleHandle],
) -> Callable[Concatenate[AsyncSchedule, P], Awaited[AsyncSchedule]]:
    @wraps(call)
    async def method(self: AsyncSchedule, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSchedule:
        await _run_in(self.handle.runtime, call, self.handle, *args, **kwargs)
        return self

    return method


def _of_scheduler(
    call: Callable[Concatenate[Scheduler, P], T], convert: Callable[[T], R]
) -> Callable[Concatenate[AsyncScheduler, P], Awaited[R]]:
    @wraps(call)
    async def method(self: AsyncScheduler, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return convert(await _run_in(self.scheduler.runtime, call, self.scheduler, *args, **kwargs))

    return method


class AsyncSchedule(ScheduleView):
    """A ScheduleHandle whose operations are awaited; its fields are read without."""

    def __init__(self, handle: ScheduleHandle) -> None:
        self.handle = handle

    def __repr__(self) -> str:
        return f"<Async {self.handle!r}>"

    @property
    def state(self) -> Schedule:
        """The whole row as a frozen value."""
        return self.handle.state

    refresh = _changing(ScheduleHandle.refresh)
    pause = _changing(ScheduleHandle.pause)
    resume = _changing(ScheduleHandle.resume)
    restart = _changing(ScheduleHandle.restart)
    update = _changing(ScheduleHandle.update)
    delete = _changing(ScheduleHandle.delete)
    trigger = _of_handle(ScheduleHandle.trigger)
    backfill = _of_handle(ScheduleHandle.backfill)
    describe = _of_handle(ScheduleHandle.describe)
    history = _of_handle(ScheduleHandle.history)
    deliveries = _of_handle(ScheduleHandle.deliveries)
    runs = _of_handle(ScheduleHandle.runs)
    run = _of_handle(ScheduleHandle.run)
    upcoming = _of_handle(ScheduleHandle.upcoming)

    async def iter_history(self, after_sequence: int = 0) -> AsyncIterator[AuditRecord]:
        """Read all audit events from a sequence on, page by page."""
        while page := await self.history(limit=MAX_PAGE, after_sequence=after_sequence):
            for event in page:
                yield event
            after_sequence = page[-1].sequence


def _page(page: Page[ScheduleHandle]) -> Page[AsyncSchedule]:
    return Page([AsyncSchedule(handle) for handle in page.items], page.next_cursor)


def _same(value: T) -> T:
    return value


class AsyncScheduler:
    """A Scheduler whose operations are awaited.

    >>> schedules = AsyncScheduler(Scheduler.from_env())  # doctest: +SKIP
    >>> nightly = await schedules.create("nightly", "invoice-sync", Cron("0 2 * * *"))  # doctest: +SKIP
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    create = _of_scheduler(Scheduler.create, AsyncSchedule)
    upsert = _of_scheduler(Scheduler.upsert, lambda upserted: (AsyncSchedule(upserted[0]), upserted[1]))
    get = _of_scheduler(Scheduler.get, AsyncSchedule)
    newest = _of_scheduler(Scheduler.newest, AsyncSchedule)
    list = _of_scheduler(Scheduler.list, _page)
    sync = _of_scheduler(Scheduler.sync, _same)
    history = _of_scheduler(Scheduler.history, _same)
    run = _of_scheduler(Scheduler.run, _same)
    bulk = _of_scheduler(Scheduler.bulk, _same)
    retry_failed = _of_scheduler(Scheduler.retry_failed, _same)
    usage = _of_scheduler(Scheduler.usage, _same)
    usages = _of_scheduler(Scheduler.usages, _same)
    recover = _of_scheduler(Scheduler.recover, _same)
    tick = _of_scheduler(Scheduler.tick, _same)
    prune = _of_scheduler(Scheduler.prune, _same)
    prune_history = _of_scheduler(Scheduler.prune_history, _same)
    close = _of_scheduler(Scheduler.close, _same)
