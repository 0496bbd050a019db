"""A web application repairs for the bare `rq worker` beside it: after a crash and a flush all schedules fire again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from rqsched import Every
from rqsched.api.schedule_handle import ScheduleHandle
from tests.support.processes import BIN, SOON, Process, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]
AGAIN, THEN = 30.0, 20.0
"""Seconds after which every schedule has fired again, and within which it fires from then on."""
SLACK = 10.0
"""Seconds more, on a machine that many share."""

FLASK = """
from flask import Flask
from rqsched import Scheduler

app = Flask(__name__)
scheduler = Scheduler.from_env()
{keep}

@app.get("/")
def index():
    return "here"
"""
FASTAPI = """
from fastapi import FastAPI
from rqsched.contrib.fastapi import lifespan

app = FastAPI(lifespan=lifespan())

@app.get("/")
def index():
    return "here"
"""
DJANGO = """
from pathlib import Path
from django.conf import settings
from django.http import HttpResponse
from django.urls import path

settings.configure(
    SECRET_KEY="only good for a test", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__,
    INSTALLED_APPS=["rqsched.contrib.django"],
)
urlpatterns = [path("", lambda request: HttpResponse("here"))]

from django.core.{kind} import get_{kind}_application
app = get_{kind}_application()
"""
IN_REQUESTS = "app.before_request(scheduler.keep_recovering)"
AT_IMPORT = "scheduler.keep_recovering()"


@dataclass(frozen=True)
class Served:
    """An application and what serves it."""

    module: str
    command: Callable[[int], list[str]]


def gunicorn(port: int, *options: str) -> list[str]:
    return [str(BIN / "gunicorn"), "served_of_test:app", "--workers", "2", "--bind", f"127.0.0.1:{port}", *options]


def uvicorn(port: int) -> list[str]:
    return [str(BIN / "uvicorn"), "served_of_test:app", "--port", str(port)]


def preloaded(port: int) -> list[str]:
    return gunicorn(port, "--preload")


SERVED = {
    "flask": Served(FLASK.format(keep=IN_REQUESTS), gunicorn),
    "flask-preloaded": Served(FLASK.format(keep=IN_REQUESTS), preloaded),
    "flask-preloaded-at-import": Served(FLASK.format(keep=AT_IMPORT), preloaded),
    "fastapi": Served(FASTAPI, uvicorn),
    "django": Served(DJANGO.format(kind="wsgi"), gunicorn),
    "django-preloaded": Served(DJANGO.format(kind="wsgi"), preloaded),
    "django-asgi": Served(DJANGO.format(kind="asgi"), uvicorn),
    "rqsched-web": Served("", lambda port: [str(BIN / "rqsched"), "web", "--port", str(port)]),
}
SOONER = {"RQSCHED_RECONCILE_INTERVAL": "3", "RQSCHED_HEARTBEAT_INTERVAL": "1", "RQSCHED_REPAIR_GRACE": "1"}


def serve(live: LiveEnv, application: Served) -> Process:
    """Start the application and send it a request."""
    (live.folder / "served_of_test.py").write_text(application.module)
    port = free_port()
    served = live.start(application.command(port), PYTHONPATH=str(live.folder), HOME=str(live.folder))

    wait_until(
        lambda: 0 < status_of(f"http://127.0.0.1:{port}/") < 500,
        timeout=SOON,
        what=lambda: f"an answer\n{served.log()}",
    )
    return served


def wait_until_all_fired(schedules: list[ScheduleHandle], *, within: float, served: Process) -> None:
    """Wait until each has fired once more than now."""
    counts = [(schedule, schedule.refresh().run_count) for schedule in schedules]
    wait_until(
        lambda: all(schedule.refresh().run_count > count for schedule, count in counts),
        timeout=within,
        interval=0.2,
        what=lambda: f"a fire of each of {counts}\n{served.log()}",
    )


def check_that_all_fire_again(live: LiveEnv, application: Served, spans: tuple[int, ...]) -> None:
    """Kill the worker, flush Redis, start another; kill that too: RQ does not take its scheduler's lock again."""
    schedules = [live.note_every(f"s{n}", Every(timedelta(seconds=n)), overlap="allow_all") for n in spans]
    worker = live.start_rq("worker", "--with-scheduler")
    served = serve(live, application)
    wait_until_all_fired(schedules, within=SOON, served=served)

    worker.kill_tree()
    live.redis.flushall()
    worker = live.start_rq("worker", "--with-scheduler")
    wait_until_all_fired(schedules, within=AGAIN + SLACK, served=served)

    worker.kill_tree()
    live.start_rq("worker", "--with-scheduler")
    wait_until_all_fired(schedules, within=AGAIN + SLACK, served=served)
    wait_until_all_fired(schedules, within=THEN + SLACK, served=served)
    live.check()


@pytest.mark.parametrize("name", SERVED)
def test_schedules_fire_again_beside_each_application(live: LiveEnv, name: str) -> None:
    live.environment |= SOONER
    check_that_all_fire_again(live, SERVED[name], (1, 3))


@pytest.mark.postgres
def test_schedules_fire_again_within_the_promised_time(make_live: MakeLive, postgres_url: str) -> None:
    check_that_all_fire_again(make_live(postgres_url), SERVED["fastapi"], (1, 2, 5))
