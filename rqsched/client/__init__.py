"""A client of the HTTP API, with the words, results and errors of the in-process Scheduler.

>>> from rqsched.client import Client
>>> with Client("http://127.0.0.1:8000", token="...") as client:  # doctest: +SKIP
...     client.create("nightly", "invoice-sync", Cron("0 2 * * *"))
"""

from rqsched.client.aio import AsyncClient
from rqsched.client.errors import AnswerError
from rqsched.client.http import Retries
from rqsched.client.responses import BackfillProgress, RunFacts
from rqsched.client.sync import Client

__all__ = ["AnswerError", "AsyncClient", "BackfillProgress", "Client", "Retries", "RunFacts"]
