"""The application: endpoints that create and show schedules, and rqsched's own API mounted under /rqsched."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path
from pydantic import BaseModel

from rqsched import Every, ScheduleHandle, Scheduler
from rqsched.contrib.fastapi import CurrentScheduler, add_error_handlers, lifespan
from rqsched.http import create_app

from .jobs import export_orders

scheduler = Scheduler.from_env()
app = FastAPI(title="Exports", lifespan=lifespan(scheduler))
add_error_handlers(app)
app.mount("/rqsched", create_app(scheduler))

Customer = Annotated[str, Path(pattern="^[a-z0-9-]{1,40}$")]


class Wanted(BaseModel):
    """How often a customer wants exports."""

    every: str = "24h"
    """A length such as `10s`, `24h` or ISO 8601."""


@app.put("/exports/{customer}")
def schedule_export(customer: Customer, wanted: Wanted, scheduler: CurrentScheduler) -> dict[str, Any]:
    """Export this customer's orders at an interval; asking again changes the interval."""
    schedule, outcome = scheduler.upsert(f"export:{customer}", export_orders, Every(wanted.every), args=[customer])
    return {"outcome": outcome, **shown(schedule)}


@app.get("/exports/{customer}")
def show_export(customer: Customer, scheduler: CurrentScheduler) -> dict[str, Any]:
    """Show when the next export is due, and the latest ones."""
    return shown(scheduler.get(f"export:{customer}"))


@app.delete("/exports/{customer}", status_code=204, response_model=None)
def end_export(customer: Customer, scheduler: CurrentScheduler) -> None:
    """Stop exporting."""
    scheduler.get(f"export:{customer}").delete()


def shown(schedule: ScheduleHandle) -> dict[str, Any]:
    """Return the fields of a schedule that a customer may see."""
    latest = schedule.runs(limit=5).items
    return {"next_at": schedule.next_run_at, "runs": [{"status": one.status, "result": one.result} for one in latest]}
