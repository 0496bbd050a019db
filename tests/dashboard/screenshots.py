"""`python -m tests.dashboard.screenshots FOLDER`: the pictures of the dashboard that README and docs show."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from playwright.sync_api import sync_playwright

from rqsched import Scheduler
from rqsched.http import create_app
from rqsched.testing import ManualClock
from rqsched.transport import redis_keys
from rqsched.transport.telemetry import DispatcherHeartbeat
from tests.dashboard.showcase import BEGIN, Showcase
from tests.support.servers import free_port, valkey

PICTURES = (
    ("overview", "/", "light"),
    ("schedules", "/schedules", "dark"),
    ("schedule", "/schedules/crm-sync", "light"),
    ("backfill", "/schedules/usage-rollup", "dark"),
    ("fan-out", "/runs/", "light"),
    ("timeline", "/timeline?hours=48", "dark"),
    ("phone", "/schedules/digests", "phone"),
)
"""The pictures: a name, what it shows, and how; `/runs/` is the run that fans out."""
MODES = {"light": (1280, 860), "dark": (1280, 860), "phone": (390, 844)}
"""Width and height in pixels."""


def show(folder: Path, look: Callable[[str, str], object]) -> None:
    """Build the world, serve it, and call `look` with its address and the uid of the run that fans out.

    Its clock stands still.
    """
    clock = ManualClock(BEGIN)
    with valkey(folder) as server:
        url = f"sqlite:///{folder / 'world.db'}"
        once = timedelta(days=1)  # nobody continues the backfill by and by
        with Scheduler(database_url=url, redis_url=server.url, clock=clock, reconcile_interval=once) as scheduler:
            showcase = Showcase(scheduler, clock)
            showcase.build()
            port = free_port()
            config = uvicorn.Config(create_app(scheduler), port=port, log_level="warning", lifespan="off")
            app = uvicorn.Server(config)
            threading.Thread(target=app.run, daemon=True).start()
            transport = scheduler.runtime.transport
            DispatcherHeartbeat(transport.redis, transport.control.name, scheduler.runtime.now).send()
            for key in transport.redis.scan_iter(match=redis_keys.dispatcher(transport.control.name, "*")):
                transport.redis.expire(key, timedelta(hours=1))  # a heart that stands still with the clock
            while not app.started:
                time.sleep(0.05)
            fanning = scheduler.get("renewal-reminders").runs(1).items[0].uid
            showcase.show(lambda: look(f"http://127.0.0.1:{port}", fanning))
            app.should_exit = True


def take(base: str, folder: Path, fanning: str) -> None:
    """Take every picture; `fanning` is the uid of the run that fans out."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, path, mode in PICTURES:
            width, height = MODES[mode]
            context = browser.new_context(
                base_url=base,
                viewport={"width": width, "height": height},
                color_scheme="dark" if mode == "dark" else "light",
                timezone_id="Europe/Berlin",
            )
            page = context.new_page()
            for address in ("/system", path):  # the first tells the browser's zone, which the second shows
                page.goto(address + fanning if address == "/runs/" else address)
                page.wait_for_load_state("networkidle")
            page.screenshot(path=folder / f"{name}.png")
            context.close()
        browser.close()


def main(folder: Path) -> None:
    """Take every picture."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as data:
        show(Path(data), lambda base, fanning: take(base, folder, fanning))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
