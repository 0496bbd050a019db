"""The scheduler for async web apps: the same operations, awaited.

Each method runs the synchronous operation in a worker thread; cancelling the await does not stop the operation. In the
transaction of an AsyncSession or AsyncConnection the operation runs in the event loop, through `run_sync`, because the
driver needs the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from itertools import islice
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from rqsched.api.description import TriggerResult
from rqsched.api.groups import Grouped
from rqsched.api.run_handle import RunHandle, Runs, RunView
from rqsched.api.schedule_handle import ScheduleHandle, ScheduleView
from rqsched.api.scheduler import Scheduler
from rqsched.api.waiting import looks
from rqsched.features.backfill.api import Backfills
from rqsched.features.bulk.api import BulkOperations
from rqsched.features.calendars.api import Calendars
from rqsched.features.limits.api import Limits
from rqsched.features.namespaces.api import Namespaces
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.model import Run, Schedule
from rqsched.kernel.decide.results import Page
from rqsched.kernel.store.caller_transaction import is_async


class HasRuntime(Protocol):
    """A scheduler or one of its handles."""

    @property
    def runtime(self) -> Runtime:
        """The runtime of this process: settings, SQL, Redis."""
        ...


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S", bound=HasRuntime)
Awaited = Coroutine[Any, Any, T]


async def run(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run any synchronous operation of a scheduler or handle without blocking the event loop.

    >>> schedule = await run(scheduler.create, "nightly", "sync", Cron("0 2 * * *"))  # doctest: +SKIP
    """
    return await asyncio.to_thread(partial(call, *args, **kwargs))


async def _run_in(runtime: Runtime, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an operation in the asynchronous transaction that is among its arguments; without one, in a thread."""
    name = next((name for name in ("session", "connection") if is_async(kwargs.get(name))), None)
    if name is None:
        return await run(call, *args, **kwargs)
    await run(runtime.prepare)
    others: dict[str, Any] = {key: value for key, value in kwargs.items() if key != name}
    given: Any = kwargs[name]

    def operate(transaction: object) -> T:
        return cast("Callable[..., T]", call)(*args, **others, **{name: transaction})

    return cast("T", await given.run_sync(operate))


class _Async(Generic[S]):
    """The base of the classes that await the operations of a scheduler or handle."""

    def __init__(self, blocking: S) -> None:
        self._blocking = blocking


A = TypeVar("A", bound=_Async[Any])


def _awaited(
    call: Callable[Concatenate[S, P], T], convert: Callable[[T], R]
) -> Callable[Concatenate[_Async[S], P], Awaited[R]]:
    @wraps(call)
    async def method(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return convert(await _run_in(self._blocking.runtime, call, self._blocking, *args, **kwargs))

    return method


def _changing(call: Callable[Concatenate[S, P], S]) -> Callable[Concatenate[A, P], Awaited[A]]:
    """Make the awaited form of an operation that changes its handle and returns it."""

    @wraps(call)
    async def method(self: A, /, *args: P.args, **kwargs: P.kwargs) -> A:
        await _run_in(self._blocking.runtime, call, self._blocking, *args, **kwargs)
        return self

    return method


def _iterated(
    call: Callable[Concatenate[S, P], Iterator[T]], convert: Callable[[T], R], *, at_once: int = 100
) -> Callable[Concatenate[_Async[S], P], AsyncIterator[R]]:
    """Make the asynchronous form of an iterator, which a thread reads `at_once` items at a time."""

    @wraps(call)
    async def method(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
        left = await run(call, self._blocking, *args, **kwargs)
        while items := await run(list, islice(left, at_once)):
            for item in items:
                yield convert(item)

    return method


def _same(value: T) -> T:
    return value


def _run(run: RunHandle) -> AsyncRunHandle:
    return AsyncRunHandle(run)


class AsyncRunHandle(_Async[RunHandle], RunView):
    """A RunHandle whose operations are awaited; its fields are plain attributes."""

    def __repr__(self) -> str:
        return f"<Async {self._blocking!r}>"

    @property
    def state(self) -> Run:
        """The whole row as a frozen value."""
        return self._blocking.state

    async def wait(self, timeout: float | None = None) -> AsyncRunHandle:  # noqa: ASYNC109 - as in RunHandle
        """Wait until the run has ended; raises TimeoutError after `timeout` seconds (None waits without end)."""
        pauses = looks(timeout, time.monotonic)
        while not (await self.refresh()).has_ended:  # noqa: ASYNC110 - the end of a run is a change in a database
            await asyncio.sleep(next(pauses))
        return self

    refresh = _changing(RunHandle.refresh)
    retry = _changing(RunHandle.retry)
    run_again = _awaited(RunHandle.run_again, _run)
    cancel = _changing(RunHandle.cancel)
    terminate = _changing(RunHandle.terminate)
    progress = _awaited(RunHandle.progress, _same)
    targets = _awaited(RunHandle.targets, _same)


def _runs(page: Page[RunHandle]) -> Page[AsyncRunHandle]:
    return page.map(AsyncRunHandle)


def _found(page: Page[tuple[str, RunHandle]]) -> Page[tuple[str, AsyncRunHandle]]:
    return page.map(_found_one)


def _found_one(found: tuple[str, RunHandle]) -> tuple[str, AsyncRunHandle]:
    return found[0], AsyncRunHandle(found[1])


def _triggered(result: TriggerResult[RunHandle]) -> TriggerResult[AsyncRunHandle]:
    run = AsyncRunHandle(result.run) if result.run else None
    return TriggerResult(result.outcome, run, result.reason, result.buffer_depth)


class AsyncScheduleHandle(_Async[ScheduleHandle], ScheduleView):
    """A ScheduleHandle whose operations are awaited; its fields are plain attributes."""

    def __repr__(self) -> str:
        return f"<Async {self._blocking!r}>"

    @property
    def state(self) -> Schedule:
        """The whole row as a frozen value."""
        return self._blocking.state

    refresh = _changing(ScheduleHandle.refresh)
    pause = _changing(ScheduleHandle.pause)
    skip_next = _changing(ScheduleHandle.skip_next)
    resume = _changing(ScheduleHandle.resume)
    restart = _changing(ScheduleHandle.restart)
    update = _changing(ScheduleHandle.update)
    delete = _changing(ScheduleHandle.delete)
    trigger = _awaited(ScheduleHandle.trigger, _triggered)
    backfill = _awaited(ScheduleHandle.backfill, _same)
    backfill_in_chunks = _iterated(ScheduleHandle.backfill_in_chunks, _same, at_once=1)
    describe = _awaited(ScheduleHandle.describe, _same)
    history = _awaited(ScheduleHandle.history, _same)
    iter_history = _iterated(ScheduleHandle.iter_history, _same)
    deliveries = _awaited(ScheduleHandle.deliveries, _same)
    runs = _awaited(ScheduleHandle.runs, _runs)
    iter_runs = _iterated(ScheduleHandle.iter_runs, AsyncRunHandle)
    run = _awaited(ScheduleHandle.run, AsyncRunHandle)
    upcoming = _awaited(ScheduleHandle.upcoming, _same)
    why = _awaited(ScheduleHandle.why, _same)


def _page(page: Page[ScheduleHandle]) -> Page[AsyncScheduleHandle]:
    return page.map(AsyncScheduleHandle)


def _upserted(upserted: tuple[ScheduleHandle, str]) -> tuple[AsyncScheduleHandle, str]:
    return AsyncScheduleHandle(upserted[0]), upserted[1]


class AsyncRuns(_Async[Runs]):
    """Runs whose operations are awaited."""

    get = _awaited(Runs.get, AsyncRunHandle)
    list = _awaited(Runs.list, _found)
    iter = _iterated(Runs.iter, _found_one)
    retry_failed = _awaited(Runs.retry_failed, _same)


class AsyncBackfills(_Async[Backfills]):
    """Backfills whose operations are awaited."""

    get = _awaited(Backfills.get, _same)
    list = _awaited(Backfills.list, _same)
    iter = _iterated(Backfills.iter, _same)
    cancel = _awaited(Backfills.cancel, _same)


class AsyncBulkOperations(_Async[BulkOperations]):
    """BulkOperations whose chunks are awaited."""

    pause = _iterated(BulkOperations.pause, _same, at_once=1)
    resume = _iterated(BulkOperations.resume, _same, at_once=1)
    trigger = _iterated(BulkOperations.trigger, _same, at_once=1)
    skip_next = _iterated(BulkOperations.skip_next, _same, at_once=1)
    cancel_runs = _iterated(BulkOperations.cancel_runs, _same, at_once=1)
    retry_runs = _iterated(BulkOperations.retry_runs, _same, at_once=1)


class AsyncCalendars(_Async[Calendars]):
    """Calendars whose operations are awaited."""

    set = _awaited(Calendars.set, _same)
    get = _awaited(Calendars.get, _same)
    named = _awaited(Calendars.named, _same)
    list = _awaited(Calendars.list, _same)
    delete = _awaited(Calendars.delete, _same)
    used_by = _awaited(Calendars.used_by, _same)
    history = _awaited(Calendars.history, _same)


class AsyncLimits(_Async[Limits]):
    """Limits whose operations are awaited."""

    list = _awaited(Limits.list, _same)
    iter = _iterated(Limits.iter, _same)
    set = _awaited(Limits.set, _same)


class AsyncNamespaces(_Async[Namespaces]):
    """Namespaces whose operations are awaited."""

    usage = _awaited(Namespaces.usage, _same)
    usages = _awaited(Namespaces.usages, _same)
    preview_delete = _awaited(Namespaces.preview_delete, _same)
    delete = _awaited(Namespaces.delete, _same)


class AsyncScheduler(_Async[Scheduler]):
    """A Scheduler whose operations are awaited.

    >>> schedules = AsyncScheduler(Scheduler.from_env())  # doctest: +SKIP
    >>> nightly = await schedules.create("nightly", "invoice-sync", Cron("0 2 * * *"))  # doctest: +SKIP
    """

    runs = Grouped(AsyncRuns, attrgetter("scheduler.runs"))
    """The runs of all schedules."""
    backfills = Grouped(AsyncBackfills, attrgetter("scheduler.backfills"))
    """The backfills of all schedules."""
    bulk = Grouped(AsyncBulkOperations, attrgetter("scheduler.bulk"))
    """The operations on every schedule that matches filters."""
    calendars = Grouped(AsyncCalendars, attrgetter("scheduler.calendars"))
    """Named exclusions that many schedules use."""
    limits = Grouped(AsyncLimits, attrgetter("scheduler.limits"))
    """The groups whose runs are limited: how many run at once, or start within a length of time."""
    namespaces = Grouped(AsyncNamespaces, attrgetter("scheduler.namespaces"))
    """Whole namespaces: their usage, and their deletion."""

    @property
    def scheduler(self) -> Scheduler:
        """The synchronous scheduler, for calls that do not block: `on`, `keep_recovering` and the decorators."""
        return self._blocking

    async def __aenter__(self) -> AsyncScheduler:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    create = _awaited(Scheduler.create, AsyncScheduleHandle)
    upsert = _awaited(Scheduler.upsert, _upserted)
    get = _awaited(Scheduler.get, AsyncScheduleHandle)
    newest = _awaited(Scheduler.newest, AsyncScheduleHandle)
    list = _awaited(Scheduler.list, _page)
    iter = _iterated(Scheduler.iter, AsyncScheduleHandle)
    count = _awaited(Scheduler.count, _same)
    sync = _awaited(Scheduler.sync, _same)
    load = _awaited(Scheduler.load, _same)
    simulate = _awaited(Scheduler.simulate, _same)
    freeze = _awaited(Scheduler.freeze, _same)
    frozen = _awaited(Scheduler.frozen, _same)
    freezes = _awaited(Scheduler.freezes, _same)
    preview_thaw = _awaited(Scheduler.preview_thaw, _same)
    thaw = _awaited(Scheduler.thaw, _same)
    recover = _awaited(Scheduler.recover, _same)
    tick = _awaited(Scheduler.tick, _same)
    prune = _awaited(Scheduler.prune, _same)
    close = _awaited(Scheduler.close, _same)
