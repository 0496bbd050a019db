"""A library: a loan is answered at once, its slip is printed by a job."""

from __future__ import annotations

import os
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel
from redis import Redis
from rq import Queue

from .jobs import print_slip

app = FastAPI()
queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))


class Loan(BaseModel):
    """The loan of a book to a reader."""

    book: str
    """The book."""


@app.post("/loans", status_code=202)
def lend(loan: Loan) -> str:
    """Lend a book."""
    return str(queue.enqueue(print_slip, loan.book).id)


@app.get("/papers")
def papers() -> list[str]:
    """List the printed papers."""
    return sorted(path.name for path in Path("papers").glob("*"))
