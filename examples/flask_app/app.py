"""The application: `flask --app examples.flask_app.app run`. Workers import it too, for the context of their runs."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from flask import Flask, request
from flask.typing import ResponseReturnValue

from rqsched import Scheduler
from rqsched.errors import InvalidInputError, RqschedError
from rqsched.workflows import around_runs

from .jobs import remind

A_YEAR = 366 * 86_400
app = Flask(__name__)
app.config["REMINDERS"] = "reminders.txt"
scheduler = Scheduler.from_env()
around_runs(app.app_context)


@app.post("/reminders")
def create() -> ResponseReturnValue:
    """Ask to be reminded in some seconds."""
    wanted = request.get_json()
    seconds, text = (wanted.get(name) if isinstance(wanted, dict) else None for name in ("seconds", "text"))
    if not isinstance(seconds, int) or not 0 <= seconds <= A_YEAR:
        raise InvalidInputError("seconds", f"say in how many seconds, at most {A_YEAR}")
    if not isinstance(text, str):
        raise InvalidInputError("text", "say of what")
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    schedule = scheduler.create(f"reminder:{uuid.uuid4()}", remind, at, args=[text])
    path = f"/reminders/{schedule.schedule_id}"
    return {"path": path, "at": at.isoformat()}, 201, {"Location": path}


@app.get("/reminders/<schedule_id>")
def show(schedule_id: str) -> ResponseReturnValue:
    """Show the outcome of a reminder."""
    schedule = scheduler.get(schedule_id)
    runs = [{"status": run.status, "result": run.result} for run in schedule.runs().items]
    return {"status": schedule.status, "runs": runs}


@app.delete("/reminders/<schedule_id>")
def forget(schedule_id: str) -> ResponseReturnValue:
    """Forget a reminder."""
    scheduler.get(schedule_id).delete()
    return "", 204


@app.errorhandler(RqschedError)
def refused(error: RqschedError) -> ResponseReturnValue:
    """Answer with the status of the error: 422 for invalid input, 404, 409, or 503 while a backend is away."""
    return {"error": str(error)}, error.http_status
