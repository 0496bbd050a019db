"""The servers of the benchmark `http`: our application, and a bare FastAPI route that reads the same rows.

python -m benchmarks.http_servers ours|bare PORT DATABASE_URL REDIS_URL
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import sqlalchemy as sa
import uvicorn
from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from rqsched.config import Settings
from rqsched.http import Limits, create_app
from rqsched.kernel.store.rows import SCHEDULE_COLUMNS, SELECT_SCHEDULES, SELECT_SLIM_SCHEDULES
from rqsched.kernel.store.tables import audit_events, runs, schedules


class NewSchedule(BaseModel):
    """The body of the bare route."""

    schedule_id: str
    workflow: str
    cron: str


def plain(row: sa.RowMapping) -> dict[str, Any]:
    """Give a row as values that JSON has."""
    return {
        name: value.isoformat()
        if isinstance(value, datetime)
        else value.total_seconds()
        if isinstance(value, timedelta)
        else value
        for name, value in row.items()
    }


def connection_of(request: Request) -> Iterator[sa.Connection]:
    """Give a connection for one request."""
    with request.app.state.engine.connect() as opened:
        yield opened


Connected = Annotated[sa.Connection, Depends(connection_of)]


def with_latest(connection: sa.Connection, rows: Sequence[sa.RowMapping]) -> list[dict[str, Any]]:
    """Give schedules as JSON has them, each with its newest run."""
    wanted = [row["last_run_uid"] for row in rows if row["last_run_uid"]]
    shown = runs.c.uid, runs.c.schedule_uid, runs.c.status, runs.c.attempt, runs.c.blocked_at, runs.c.blocked_reason
    query = sa.select(*shown).where(runs.c.uid.in_(wanted))
    found = {run["uid"]: plain(run) for run in connection.execute(query).mappings()} if wanted else {}
    return [{**plain(row), "last_run": found.get(row["last_run_uid"])} for row in rows]


def bare(url: str) -> FastAPI:
    """Routes of plain SQLAlchemy and FastAPI, with nothing to check, authorize, hide or announce."""
    app = FastAPI()
    app.state.engine = sa.create_engine(url, pool_size=5, max_overflow=20)

    @app.get("/schedules/{schedule_id}")
    def read(schedule_id: str, connection: Connected) -> Response:
        query = SELECT_SCHEDULES.where(
            schedules.c.namespace == "default",
            schedules.c.schedule_id == schedule_id,
            schedules.c.status != "deleted",
        )
        return JSONResponse(with_latest(connection, [connection.execute(query).mappings().one()])[0])

    @app.get("/schedules")
    def read_all(connection: Connected, limit: int = 50) -> Response:
        query = SELECT_SLIM_SCHEDULES.where(schedules.c.namespace == "default", schedules.c.status != "deleted")
        query = query.order_by(schedules.c.created_at, schedules.c.uid).limit(limit)
        return JSONResponse(with_latest(connection, connection.execute(query).mappings().all()))

    @app.post("/schedules")
    def create(given: NewSchedule, connection: Connected) -> Response:
        model = connection.execute(sa.select(*SCHEDULE_COLUMNS).limit(1)).mappings().one()
        own = {"uid": f"{given.schedule_id:>026}", "schedule_id": given.schedule_id, "workflow": given.workflow}
        row = {**model, **own, "last_run_uid": None}
        connection.execute(schedules.insert().values(row))
        event = {"sequence": 1, "event_type": "created", "payload": "{}", "recorded_at": model["created_at"]}
        connection.execute(audit_events.insert().values(schedule_uid=row["uid"], **event))
        connection.commit()
        return JSONResponse(plain(row), 201)  # type: ignore[arg-type]

    return app


def main() -> None:
    kind, port, database_url, redis_url = sys.argv[1:]
    logging.getLogger("rqsched.http.access").disabled = True
    if kind == "bare":
        app = bare(database_url)
    else:
        settings = Settings(database_url=database_url, redis_url=redis_url, imports="benchmarks.flows")
        app = create_app(settings=settings, limits=Limits(rate=0), recover=False)
    uvicorn.run(app, port=int(port), access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
