"""A client of the HTTP API, with the names, results and errors of the in-process Scheduler.

It needs httpx only: importing it loads neither SQLAlchemy nor Redis, RQ or croniter.

>>> from rqsched.client import Client
>>> with Client("http://127.0.0.1:8000", token="...") as client:  # doctest: +SKIP
...     client.create("nightly", "invoice-sync", Cron("0 2 * * *"))
"""

from rqsched.api.description import RunDescription
from rqsched.client.aio import AsyncClient
from rqsched.client.http import ResponseError, Retries
from rqsched.client.responses import BackfillProgress, EventRecord, TriggerResult
from rqsched.client.sync import Client

__all__ = [
    "AsyncClient",
    "BackfillProgress",
    "Client",
    "EventRecord",
    "ResponseError",
    "Retries",
    "RunDescription",
    "TriggerResult",
]
