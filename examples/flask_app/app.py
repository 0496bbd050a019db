"""The application: `flask --app examples.flask_app.app run`. Workers import it too, for the context of their runs."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from flask import Flask, request
from flask.typing import ResponseReturnValue

from rqsched import Scheduler
from rqsched.errors import InvalidInputError, ScheduleNotFoundError
from rqsched.workflows import around_runs

from .jobs import remind

app = Flask(__name__)
app.config["REMINDERS"] = "reminders.txt"
scheduler = Scheduler.from_env()
around_runs(app.app_context)


@app.post("/reminders")
def create() -> ResponseReturnValue:
    """Ask to be reminded in some seconds."""
    wanted = request.get_json()
    if not isinstance(wanted.get("seconds"), int):
        raise InvalidInputError("seconds", "say in how many seconds")
    at = datetime.now(UTC) + timedelta(seconds=wanted["seconds"])
    schedule = scheduler.create(f"reminder:{uuid.uuid4()}", remind, at, args=[wanted["text"]])
    path = f"/reminders/{schedule.schedule_id}"
    return {"path": path, "at": at.isoformat()}, 201, {"Location": path}


@app.get("/reminders/<schedule_id>")
def show(schedule_id: str) -> ResponseReturnValue:
    """Show what became of a reminder."""
    schedule = scheduler.get(schedule_id)
    runs = [{"status": run.status, "result": run.result} for run in schedule.runs().items]
    return {"status": schedule.status, "runs": runs}


@app.delete("/reminders/<schedule_id>")
def forget(schedule_id: str) -> ResponseReturnValue:
    """Forget a reminder."""
    scheduler.get(schedule_id).delete()
    return "", 204


@app.errorhandler(ScheduleNotFoundError)
def not_found(error: ScheduleNotFoundError) -> ResponseReturnValue:
    """Answer 404."""
    return {"error": str(error)}, 404


@app.errorhandler(InvalidInputError)
def refused(error: InvalidInputError) -> ResponseReturnValue:
    """Answer 422 with the field that is wrong, and how."""
    return {"error": str(error), "field": error.field}, 422
