"""A shop: an order is answered at once, its receipt is written by a job."""

from __future__ import annotations

import os
from pathlib import Path

from flask import Flask, request
from flask.typing import ResponseReturnValue
from redis import Redis
from rq import Queue

from rqsched import Scheduler
from rqsched.workflows import around_runs

from .jobs import print_report, write_receipt

app = Flask(__name__)
app.config["PAPERS"] = "papers"
queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))
scheduler = Scheduler.from_env()
around_runs(app.app_context)


@app.post("/orders")
def order() -> ResponseReturnValue:
    """Take an order."""
    job = queue.enqueue(write_receipt, request.get_json()["number"])
    return {"job": job.id}, 202


@app.get("/papers")
def papers() -> ResponseReturnValue:
    """List the written papers."""
    return sorted(path.name for path in Path(app.config["PAPERS"]).glob("*"))


@app.post("/reports")
def report() -> ResponseReturnValue:
    """Have a report printed from now on."""
    wanted = request.get_json()
    schedule, outcome = scheduler.upsert(wanted["name"], print_report, wanted["every"], args=[wanted["name"]])
    return {"outcome": outcome, "next_at": schedule.next_run_at}
