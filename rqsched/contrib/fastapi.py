"""rqsched in a FastAPI application: one scheduler from start-up to shutdown, and endpoint parameters that get it.

>>> app = FastAPI(lifespan=lifespan())  # doctest: +SKIP
>>> @app.put("/exports/{customer}")  # doctest: +SKIP
... def schedule_export(customer: str, scheduler: CurrentScheduler) -> None:
...     scheduler.upsert(f"export:{customer}", "export-orders", Every("24h"), args=[customer])
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection

from rqsched.api.async_scheduler import AsyncScheduler, run
from rqsched.api.background_reconcile import Recovering
from rqsched.api.scheduler import Scheduler
from rqsched.errors import ConfigError, RqschedError

__all__ = [
    "CurrentAsyncScheduler",
    "CurrentScheduler",
    "add_error_handlers",
    "get_async_scheduler",
    "get_scheduler",
    "lifespan",
]

_STATE = "rqsched_scheduler"


def lifespan(
    scheduler: Scheduler | None = None, *, sync: bool = False
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan with the given scheduler. By default, it opens one from `RQSCHED_*` and closes it at shutdown.

    From start-up on, a thread shares the reconcile passes with the workers. So losses of Redis are repaired even if all
    workers are plain `rq worker`s. With `sync`, the schedules that decorators declare are created and updated before
    the first request. Every process of a deployment may do this. If a module of RQSCHED_IMPORTS cannot be imported, the
    error is logged, and the declarations of other modules are synced.

    If an application has its own lifespan, enter this lifespan inside it: `async with lifespan()(app): ...`. Start-up
    raises ConfigError for wrong settings, and SchemaError if PostgreSQL's tables need `rqsched db upgrade`.
    """

    @asynccontextmanager
    async def opened(app: Any) -> AsyncIterator[None]:
        mine = await run(Scheduler.from_env) if scheduler is None else scheduler
        recovering = Recovering(lambda: mine.runtime)
        try:
            setattr(app.state, _STATE, mine)
            if sync:
                await run(_sync, mine)
            recovering.begin()
            yield
        finally:
            await run(recovering.end)
            if scheduler is None:
                await run(mine.close)

    return opened


def _sync(scheduler: Scheduler) -> None:
    scheduler.runtime.imports.attempt()
    scheduler.sync(scheduler.declarations.all())


def add_error_handlers(app: FastAPI) -> None:
    """Make the application answer rqsched's errors with the statuses and bodies of the HTTP API.

    The bodies are problem details (RFC 9457). The status is 422 for invalid input, 404 for a missing object, 409 for a
    conflict, and 503 with Retry-After for an unavailable backend; docs/http.md lists all. If you have your own handler
    for one of the error classes, it takes precedence. This function needs the `http` extra.
    """
    from rqsched.http.native.router import answer_error  # noqa: PLC0415 - an optional extra

    app.add_exception_handler(RqschedError, answer_error)


def get_scheduler(connection: HTTPConnection) -> Scheduler:
    """Return the application's scheduler; raises ConfigError if the application's lifespan has opened none."""
    found: Scheduler | None = getattr(connection.app.state, _STATE, None)
    if found is None:
        raise ConfigError(
            "this application has no scheduler: create it with FastAPI(lifespan=rqsched.contrib.fastapi.lifespan()), "
            "or enter that lifespan in its own."
        )
    return found


def get_async_scheduler(connection: HTTPConnection) -> AsyncScheduler:
    """Return the application's scheduler for `async def` endpoints; raises ConfigError when there is none."""
    return AsyncScheduler(get_scheduler(connection))


CurrentScheduler = Annotated[Scheduler, Depends(get_scheduler)]
"""The annotation of an endpoint's parameter that gets the scheduler."""
CurrentAsyncScheduler = Annotated[AsyncScheduler, Depends(get_async_scheduler)]
"""The annotation for a parameter of an `async def` endpoint. Every operation of this scheduler is awaited."""
