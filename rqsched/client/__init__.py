"""A client of the HTTP API, with the names, results and errors of the in-process Scheduler.

The client sends requests with httpx. Its import loads neither SQLAlchemy, Redis, RQ nor croniter.

>>> from rqsched.client import Client
>>> with Client("http://127.0.0.1:8000", token="...") as client:  # doctest: +SKIP
...     client.create("nightly", "invoice-sync", Cron("0 2 * * *"))
"""

from rqsched.api.description import BackfillProgress, RunDescription, TriggerResult
from rqsched.client.aio import AsyncClient, AsyncRunHandle, AsyncScheduleHandle
from rqsched.client.http import ResponseError, Retries
from rqsched.client.responses import EventRecord
from rqsched.client.sync import Client, RunHandle, ScheduleHandle

__all__ = [
    "AsyncClient",
    "AsyncRunHandle",
    "AsyncScheduleHandle",
    "BackfillProgress",
    "Client",
    "EventRecord",
    "ResponseError",
    "Retries",
    "RunDescription",
    "RunHandle",
    "ScheduleHandle",
    "TriggerResult",
]
