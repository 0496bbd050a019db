"""`python -m tests.dashboard.screenshots FOLDER`: the pictures of the dashboard that README and docs show."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from playwright.sync_api import sync_playwright

from rqsched import Scheduler
from rqsched.http import create_app
from rqsched.testing import ManualClock
from rqsched.transport.telemetry import DispatcherHeartbeat
from tests.dashboard.showcase import BEGIN, Showcase
from tests.support.servers import free_port, valkey

PICTURES = (
    ("overview", "/", "light"),
    ("schedules", "/schedules", "dark"),
    ("schedule", "/schedules/crm-sync", "light"),
    ("timeline", "/timeline?hours=48", "dark"),
    ("phone", "/schedules/digests", "phone"),
)
"""The pictures: a name, what it shows, and how."""
MODES = {"light": (1280, 860), "dark": (1280, 860), "phone": (390, 844)}
"""Width and height in pixels."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Build the world and serve it; its clock stands still."""
    clock = ManualClock(BEGIN)
    with valkey(folder) as server:
        url = f"sqlite:///{folder / 'world.db'}"
        with Scheduler(database_url=url, redis_url=server.url, clock=clock) as scheduler:
            Showcase(scheduler, clock).build()
            port = free_port()
            config = uvicorn.Config(create_app(scheduler), port=port, log_level="warning")
            app = uvicorn.Server(config)
            threading.Thread(target=app.run, daemon=True).start()
            transport = scheduler.runtime.transport
            DispatcherHeartbeat(transport.redis, transport.control.name, scheduler.runtime.now).send()
            while not app.started:
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
            app.should_exit = True


def main(folder: Path) -> None:
    """Take every picture."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as data, served(Path(data)) as base, sync_playwright() as playwright:
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
            for address in ("/login", path):  # the first tells the browser's zone, which the second shows
                page.goto(address)
                page.wait_for_load_state("networkidle")
            page.screenshot(path=folder / f"{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
