"""The application: `flask --app examples.flask_app.app run` finds `create_app`."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue

from rqsched import Once, Scheduler
from rqsched.errors import InvalidInputError, ScheduleNotFoundError

from .jobs import remind


def create_app(scheduler: Scheduler | None = None) -> Flask:
    """Return the application, on a scheduler from `RQSCHED_*` if none is given; repairs what Redis lost meanwhile."""
    scheduler = scheduler or Scheduler.from_env()
    scheduler.recover()
    app = Flask(__name__)

    @app.post("/reminders")
    def create() -> ResponseReturnValue:
        wanted = request.get_json()
        if not isinstance(wanted, dict) or not isinstance(wanted.get("seconds"), int):
            raise InvalidInputError("seconds", "say in how many seconds")
        at = datetime.now(UTC) + timedelta(seconds=wanted["seconds"])
        schedule = scheduler.create(f"reminder:{uuid.uuid4()}", remind, Once(at), args=[wanted.get("text", "")])
        path = f"/reminders/{schedule.schedule_id}"
        return jsonify(path=path, at=at.isoformat()), 201, {"Location": path}

    @app.get("/reminders/<schedule_id>")
    def show(schedule_id: str) -> ResponseReturnValue:
        schedule = scheduler.get(schedule_id)
        runs = [{"status": run.status, "result": run.result} for run in schedule.runs(limit=5).items]
        return jsonify(status=schedule.status, runs=runs)

    @app.delete("/reminders/<schedule_id>")
    def forget(schedule_id: str) -> ResponseReturnValue:
        scheduler.get(schedule_id).delete()
        return "", 204

    @app.errorhandler(ScheduleNotFoundError)
    def not_found(error: ScheduleNotFoundError) -> ResponseReturnValue:
        return jsonify(error=str(error)), 404

    @app.errorhandler(InvalidInputError)
    def refused(error: InvalidInputError) -> ResponseReturnValue:
        return jsonify(error=str(error), field=error.field), 422

    return app
