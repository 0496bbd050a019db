"""`python -m tests.dashboard.screenshots FOLDER`: the pictures of the dashboard that README and docs show.

With `--all` every page is taken instead, in both modes and on a phone, for changes of their look.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from playwright.sync_api import sync_playwright

from rqsched import Scheduler
from rqsched.http import create_app
from rqsched.kernel.transport import redis_keys
from rqsched.kernel.transport.telemetry import DispatcherHeartbeat
from rqsched.testing import ManualClock
from tests.dashboard.showcase import BEGIN, LONG_ID, Showcase
from tests.support.servers import free_port, valkey

PICTURES = (
    ("overview", "/", "light"),
    ("overview-dark", "/", "dark"),
    ("schedules", "/schedules", "dark"),
    ("schedule", "/schedules/crm-sync", "light"),
    ("backfill", "/schedules/usage-rollup#backfills", "dark"),
    ("fan-out", "/runs/", "light"),
    ("timeline", "/timeline?hours=48", "dark"),
    ("phone", "/schedules/digests", "phone"),
)
"""The pictures: name, page and options. `/runs/` is the run that fans out."""
CHANGES = "/timeline?hours=336&at=2026-10-28T12:00Z"
"""Two weeks with the Sunday on which Berlin's clocks change and the one on which New York's do."""
PAGES = {
    "overview": "/",
    "schedules": "/schedules",
    "schedules-none": "/schedules?q=nothing",
    "schedule": "/schedules/crm-sync",
    "schedule-misses": "/schedules/database-backup",
    "schedule-dead": "/schedules/partner-import",
    "schedule-long": f"/schedules/{LONG_ID}",
    "schedule-skips": "/schedules/read-bounced-mail",
    "schedule-backfill": "/schedules/usage-rollup",
    "schedule-paused": "/schedules/vendor-import",
    "run": "/runs/",
    "runs": "/runs",
    "runs-failed": "/runs?status=failures&within=24h",
    "audit": "/audit",
    "timeline": "/timeline",
    "timeline-changes": CHANGES,
    "workers": "/system",
    "new": "/schedules/new",
    "edit": "/schedules/digests/edit",
    "confirm": "/schedules/usage-rollup/confirm?action=backfill",
    "pause": "/schedules/crm-sync/confirm?action=pause",
    "schedules-paused": "/schedules?status=paused",
    "retry-failed": "/retry-failed?schedule=crm-sync",
    "find": "/find?q=crm",
    "calendars": "/calendars",
    "calendar": "/calendars/holidays",
    "login": "/login",
    "error": "/schedules/unheard-of",
}
"""Every page, by the name of its picture."""
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


Shots = Iterable[tuple[str, str, str]]


def take(base: str, folder: Path, fanning: str, shots: Shots = PICTURES, *, is_whole: bool = False) -> None:
    """Take pictures of the window or the whole page. `fanning` is the uid of the run that fans out."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, path, mode in shots:
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
            page.screenshot(path=folder / f"{name}.png", full_page=is_whole)
            context.close()
        browser.close()


def main(folder: Path, *, is_all: bool) -> None:
    """Take the pictures of the docs, or those of every page."""
    folder.mkdir(parents=True, exist_ok=True)
    every = [(f"{name}-{mode}", path, mode) for name, path in PAGES.items() for mode in MODES]
    shots = every if is_all else PICTURES
    with TemporaryDirectory() as data:
        show(Path(data), lambda base, fanning: take(base, folder, fanning, shots, is_whole=is_all))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="every page, light, dark and on a phone")
    given = parser.parse_args()
    main(given.folder, is_all=given.all)
