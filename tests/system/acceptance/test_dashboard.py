"""The dashboard in a real Chromium, over `rqsched web` and a real worker."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import psutil
import pytest
import sqlalchemy as sa
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Route, ViewportSize, expect

import rqsched
from rqsched import Every, RetryPolicy
from rqsched.api.schedule_handle import RunHandle
from rqsched.dashboard.schedules import PAGE
from rqsched.features.backfill.chain import BackfillRange
from rqsched.features.bulk.api import CHUNK
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import derived_uid
from rqsched.kernel.decide.model import OPEN, Change, Run, RunStatus
from rqsched.kernel.queries.schedules import MOST_LOOKED_AT
from rqsched.kernel.store import changes
from rqsched.kernel.store.tables import schedules
from tests.kernel.store.samples import run_of
from tests.support.crowd import copy_schedule
from tests.support.env import block
from tests.support.narrow import present
from tests.support.processes import Process, is_gone, rqsched_command, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of
from tests.support.web import one_token
from tests.system.acceptance.chores import FAIL, HOLD, NOTE
from tests.system.acceptance.conftest import PATIENCE
from tests.system.acceptance.live import LiveEnv, MakeLive

pytestmark = pytest.mark.acceptance
PHONE: ViewportSize = {"width": 375, "height": 812}
SCROLLS_SIDEWAYS = """[...document.querySelectorAll("main *")].filter((one) =>
  ["auto", "scroll"].includes(getComputedStyle(one).overflowX) && one.scrollWidth > one.clientWidth + 1
  && !one.matches(".from-end")).map((one) => one.className)"""
"""The elements that scroll sideways, except the calendar of a year. A phone must fit each page into its width."""
COLOURS: dict[str, object] = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
MODES: dict[str, dict[str, object]] = {"light": {}, "dark": COLOURS, "phone": {}}
"""How each page is looked at, and which rules of axe hold there: in the dark only the colours are others."""
DESKTOP: ViewportSize = {"width": 1280, "height": 900}


@dataclass
class LivePages:
    """The pages of one environment, and the complaints of a browser."""

    live: LiveEnv
    base: str
    server: Process

    @contextmanager
    def viewer(
        self, browser: Browser, *, is_complaint: Callable[[str], bool] = bool, **options: object
    ) -> Iterator[Page]:
        """A page of a new browser profile; asserts at the end that its console has no errors."""
        context: BrowserContext = browser.new_context(
            **{"base_url": self.base, "viewport": DESKTOP, "timezone_id": "Europe/Berlin", **options}  # type: ignore[arg-type]
        )
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        try:
            yield page
            assert [one for one in complaints if is_complaint(one)] == []
        finally:
            context.close()


@contextmanager
def pages_of(live: LiveEnv) -> Iterator[LivePages]:
    """Serve an environment's pages until the test ends."""
    port = free_port()
    server = live.start(rqsched_command("web", "--port", str(port)))
    base = f"http://127.0.0.1:{port}"

    wait_until(lambda: status_of(f"{base}/readyz") == 200, what="the web server")
    yield LivePages(live, base, server)


@pytest.fixture
def pages(live: LiveEnv) -> Iterator[LivePages]:
    with pages_of(live) as pages:
        yield pages


@pytest.fixture
def any_pages(make_live: MakeLive, database_url: str) -> Iterator[LivePages]:
    with pages_of(make_live(database_url)) as pages:
        yield pages


def confirm(page: Page, button: str, **fields: str) -> None:
    """Press a button, fill in its dialog, and confirm."""
    page.get_by_role("link", name=button, exact=True).first.click()
    dialog = page.locator("dialog")
    expect(dialog).to_be_visible()
    for name, value in fields.items():
        dialog.locator(f"[name={name}]").fill(value)
    dialog.get_by_role("button", name=button, exact=True).click()


def test_each_action_works_end_to_end_with_a_real_worker(browser: Browser, any_pages: LivePages) -> None:
    live = any_pages.live
    live.start_worker()
    with any_pages.viewer(browser) as page:
        page.goto("/schedules/new")
        page.locator("[name=schedule_id]").fill("letters")
        page.locator("[name=workflow]").fill(NOTE)
        page.locator("[name=kwargs]").fill(f'{{"log": "{live.folder}/later/log"}}')
        page.locator("[name=timing]").fill("0 25 * * *")
        expect(page.locator("#preview")).to_contain_text("is not a valid hour")
        page.locator("[name=timing]").fill("0 2 * * MON-FRI")
        expect(page.locator("#preview")).to_contain_text("At 02:00, Monday to Friday, Berlin time")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("status")).to_have_text("letters is created.")

        confirm(page, "Run now", reason="first letters")
        expect(page.get_by_role("status")).to_contain_text("Run #1 of letters is triggered.")
        schedule = live.scheduler.get("letters")
        run = schedule.run("1")
        schedule.update(retry=None)
        expect(page.locator("[data-live=runs]")).to_contain_text(re.compile("retrying|failed"))
        run.cancel()
        page.goto(f"/runs/{run.uid}")
        (live.folder / "later").mkdir()
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_placeholder("Reason").fill("the folder is there now")
        page.get_by_role("button", name="Retry").click()
        expect(page.locator("[data-live=head]")).to_contain_text("succeeded")

        page.goto("/schedules/letters")
        confirm(page, "Pause", reason="quiet")
        expect(page.locator("h1")).to_contain_text("paused")
        confirm(page, "Resume")
        expect(page.locator("h1")).to_contain_text("active")
        page.get_by_role("link", name="Edit").click()
        page.locator("[name=timing]").fill("0 3 * * *")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".lead")).to_contain_text("at 03:00, every day, Berlin time")

        held = live.hold_now()
        live.wait_for_execution(held)
        page.goto(f"/runs/{held.uid}")
        page.get_by_placeholder("Reason").fill("it hangs")
        page.get_by_role("button", name="Terminate").click()
        expect(page.locator("[data-live=head]")).to_contain_text("terminated")

        page.goto("/schedules")
        page.get_by_label("Choose letters").check()
        expect(page.locator("[data-chosen]")).to_have_text("1 chosen")
        page.get_by_role("button", name="Delete").click()
        expect(page.locator("#confirm")).to_contain_text("Delete: 1 schedule?")
        page.locator("#confirm").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("status")).to_contain_text("1 of 1 done")
        expect(page.locator("tbody")).not_to_contain_text("letters")
        page.goto("/system")
        expect(page.locator("[data-live=workers] tbody")).to_contain_text(f"{rqsched.__version__} RQ")
    sources = {e.payload.get("command_context", {}).get("source") for e in schedule.refresh().iter_history()}
    assert "dashboard" in sources
    assert told(held.schedule_uid, live)["RunTerminated"] == ("local", "it hangs")


def test_namespace_is_stopped_in_three_steps_and_thawed_again(browser: Browser, pages: LivePages) -> None:
    live = pages.live
    live.start_worker()
    held = live.hold_now(retry=RetryPolicy(max_retries=0))
    process = psutil.Process(live.wait_for_execution(held).pid)
    waits = live.run_now("waits")
    with pages.viewer(browser) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto("/schedules")
        page.get_by_role("link", name="Stop", exact=True).click()
        take_step(page, "Freeze")
        expect(page.locator(".flash")).to_have_text("The namespace default is frozen.")
        expect(page.locator("[data-live=waiting]")).to_contain_text("1 run waits to begin.")
        expect(page.locator("[data-live=running]")).to_contain_text("1 run has begun; without retries: 1.")
        assert (held.refresh().status, waits.refresh().status) == ("running", "pending")
        take_step(page, "Cancel what waits")
        expect(page.locator("[data-chunk=progress]")).to_contain_text("Done. 1 run cancelled.")
        assert (held.refresh().status, waits.refresh().status) == ("running", "cancelled")
        page.get_by_role("link", name="The three steps").click()
        page.locator("[name=confirm]").fill("default")
        take_step(page, "Terminate what runs")
        expect(page.locator("[data-chunk=progress]")).to_contain_text("Done. 1 run terminated.")
        wait_until(lambda: is_gone(process), what="the end of the killed process")
        page.get_by_role("link", name="The three steps").click()
        expect(page.locator("[data-live=running]")).to_contain_text("0 runs have begun.")
        confirm(page, "Thaw", reason="it is closed")
        expect(page.locator(".flash")).to_contain_text("is thawed")
    again = live.scheduler.create("again", NOTE, "0 5 * * *", kwargs={"log": str(live.log)})
    live.wait_for_status(present(again.trigger().run), "succeeded")
    assert told(held.schedule_uid, live)["RunTerminated"] == ("local", "a leak")


def take_step(page: Page, button: str) -> None:
    """Fill in the reason beside a button, and press the button."""
    step = page.locator("form", has=page.get_by_role("button", name=button, exact=True))
    step.locator("[name=reason]").fill("a leak")
    step.get_by_role("button").click()


def told(schedule_uid: str, live: LiveEnv) -> dict[str, tuple[str, str]]:
    """Return the principal and reason of the newest audit event of each type."""
    (schedule,) = [one for one in live.scheduler.list().items if one.uid == schedule_uid]
    contexts = {e.event_type: e.payload.get("command_context", {}) for e in schedule.iter_history()}
    return {name: (of["principal"], of.get("reason", "")) for name, of in contexts.items() if "principal" in of}


def test_failed_runs_are_retried_a_dead_schedule_restarted_and_a_run_cancelled(
    browser: Browser, any_pages: LivePages
) -> None:
    live = any_pages.live
    live.start_worker()
    log = f"{live.folder}/later/log"
    dies = RetryPolicy(max_retries=0, then="dead")
    fragile = live.scheduler.create("fragile", NOTE, "0 2 * * *", kwargs={"log": log}, retry=dies)
    fragile.trigger()
    wait_until(lambda: fragile.refresh().status == "dead", what="the end of the schedule")
    with any_pages.viewer(browser) as page:
        (live.folder / "later").mkdir()
        page.goto("/")
        page.get_by_role("link", name="Retry them").click()
        page.locator("dialog [name=reason]").fill("the folder is there now")
        page.locator("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_role("status")).to_have_text("1 run retried.")
        page.goto(f"/runs/{fragile.run('1').uid}")
        expect(page.locator("[data-live=head]")).to_contain_text("succeeded")
        page.goto("/schedules/fragile")
        confirm(page, "Restart", reason="it works again")
        expect(page.locator("h1")).to_contain_text("active")
        held = live.hold_now()
        live.wait_for_execution(held)
        page.goto(f"/runs/{held.uid}")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_placeholder("Reason").fill("not today")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("[data-live=head]")).to_contain_text("cancelled")
    assert told(fragile.uid, live)["RunRetryRequested"] == ("local", "the folder is there now")
    assert told(fragile.uid, live)["ScheduleResumed"] == ("local", "it works again")
    assert told(held.schedule_uid, live)["RunCancelled"] == ("local", "not today")


def test_a_backfill_is_counted_started_and_stopped_and_the_new_parts_are_accessible(
    browser: Browser, make_live: MakeLive, database_url: str
) -> None:
    live = make_live(database_url)
    live.environment["RQSCHED_REPAIR_GRACE"] = "3600"  # the server does not continue a backfill while one looks at it
    schedule = live.note_every("hourly", "0 * * * *", overlap="allow_all")
    end = datetime.now(UTC).replace(minute=30, second=0, microsecond=0) - timedelta(hours=1)
    span = {"start": end - timedelta(hours=700), "end": end}
    fields = {name: f"{at.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%dT%H:%M}" for name, at in span.items()}
    with pages_of(live) as pages, pages.viewer(browser) as page:
        page.goto("/schedules/hourly")
        page.get_by_role("link", name="Backfill", exact=True).click()
        for name, value in fields.items():
            page.locator(f"dialog [name={name}]").fill(value)
        page.locator("dialog").get_by_role("button", name="Count only").click()
        expect(page.get_by_role("status")).to_contain_text("already have a run. Nothing was started.")
        for name, value in fields.items():
            expect(page.locator(f"[name={name}]")).to_have_value(value)
        started = schedule.backfill_in_chunks(BackfillRange(span["start"], span["end"]))
        next(started)  # the process that did more of it is gone
        page.goto("/schedules/hourly")
        expect(page.get_by_label("Progress of the backfill")).to_be_visible()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.on("dialog", lambda dialog: dialog.accept())
        page.locator("[data-live=backfills]").get_by_role("link", name="Stop and cancel").click()
        expect(page.locator("dialog")).to_contain_text("It creates no more runs.")
        require_accessible(page, "the question before a stop")
        page.locator("dialog").get_by_role("button", name="Stop").click()
        expect(page.locator("[data-chunk=progress]")).to_contain_text("Done.")
        page.locator(".confirm").get_by_role("link", name="hourly").click()
        confirm(page, "Backfill", reason="the rest", **fields)
        expect(page.locator("[data-live=backfills]")).to_contain_text("already had a run")
        page.goto("/schedules?outcome=failed")
        expect(page.get_by_text("No schedule matches.")).to_be_visible()


def require_accessible(page: Page, what: str) -> None:
    """Look at a page in light, dark and at a phone's width: axe finds nothing, and all fits the screen."""
    for mode, rules in MODES.items():
        page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
        page.set_viewport_size(PHONE if mode == "phone" else DESKTOP)
        found = Axe().run(page, options=rules)
        assert found.violations_count == 0, f"{what}, {mode}: {found.generate_report()}"
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), f"{what}, {mode}, is too wide"
        assert mode != "phone" or page.evaluate(SCROLLS_SIDEWAYS) == [], what
    page.set_viewport_size(DESKTOP)


@pytest.mark.every_database
def test_when_it_does_not_fire_is_filled_in_previewed_refused_and_kept(browser: Browser, any_pages: LivePages) -> None:
    """The form's fields for exclusions, clock changes, spread and `start_within`."""
    scheduler = any_pages.live.scheduler
    with any_pages.viewer(browser, is_complaint=lambda text: "422" not in text) as page:  # what is refused
        page.goto("/schedules/new")
        page.locator("[name=schedule_id]").fill("nightly")
        page.locator("[name=workflow]").fill(NOTE)
        page.locator("[name=timing]").fill("30 2 * * *")
        page.locator("[name=timezone]").fill("America/New_York")
        preview = page.locator("#preview")
        expect(preview).to_contain_text("fires at 03:30 (dst_gap=shift)")
        page.get_by_label("Local times that the clock leaves out").select_option("skip")
        expect(preview).to_contain_text("does not fire (dst_gap=skip)")
        page.get_by_label("Local times that the clock shows twice").select_option("both")
        page.get_by_label("Not at these times").fill("Mon, Tue, Wed, Thu, Fri, Sat, Sun")
        expect(preview).not_to_contain_text("dst_gap=skip")
        page.get_by_label("Not at these times").fill("Sat, Sun\n2026-02-30")
        expect(preview).to_contain_text("2026-02-30")
        require_accessible(page, "a preview that refuses")
        page.get_by_role("button", name="Create").click()
        expect(page.locator("label.refused")).to_contain_text("Not at these times")
        expect(page.get_by_label("Local times that the clock leaves out")).to_have_value("skip")

        page.get_by_label("Not at these times").fill("Sat\n2026-12-25")
        page.get_by_label("Spread").fill("10m")
        page.get_by_text("More options").click()
        page.locator("[name=start_within]").fill("30m")
        require_accessible(page, "the form with every option open")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("status")).to_contain_text("nightly is created. 02:30 does not occur on")
        require_accessible(page, "the page of a schedule with exclusions")

        stored = scheduler.get("nightly")
        spec, policies = stored.state.spec, stored.state.policies
        assert (spec.dst_gap, spec.dst_fold, {*spec.exclude}) == ("skip", "both", {"Sat", "2026-12-25"})
        assert (policies.spread, policies.start_within) == (timedelta(minutes=10), timedelta(minutes=30))
        page.get_by_role("link", name="Edit").click()
        page.locator("[name=spread]").fill("20m")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_contain_text("nightly")
    stored = scheduler.get("nightly")
    assert stored.state.spec == spec
    assert stored.state.policies == replace(policies, spread=timedelta(minutes=20))


def test_an_edit_shows_its_fires_beside_the_old_ones_and_is_not_lost_by_a_click(
    browser: Browser, pages: LivePages
) -> None:
    pages.live.note_every("nightly", "0 2 * * *")
    with pages.viewer(browser) as page:
        asked = list[str]()
        stay = True

        def answer(dialog: Dialog) -> None:
            asked.append(dialog.type)
            if stay:
                dialog.dismiss()
            else:
                dialog.accept()

        page.on("dialog", answer)
        page.goto("/schedules/nightly/edit")
        preview, timing = page.locator("#preview"), page.get_by_label("Timing")
        expect(preview).to_contain_text("As it is now")
        timing.fill("0 4 * * *")
        then = preview.locator("section", has_text="After this edit")
        expect(then.locator("time").first).to_contain_text("04:00")
        expect(preview.locator("section", has_text="Now").locator("time").first).to_contain_text("02:00")
        beside, field = present(preview.bounding_box()), present(timing.bounding_box())
        assert beside["x"] > field["x"] + field["width"]
        assert beside["y"] < field["y"] + field["height"]
        assert beside["y"] + beside["height"] < DESKTOP["height"]
        require_accessible(page, "the form with the fires before and after an edit")

        page.set_viewport_size(PHONE)
        above, beside, below = (
            present(one.bounding_box()) for one in (timing, preview, page.locator("[name=timezone]"))
        )
        assert above["y"] < beside["y"] < below["y"]
        page.set_viewport_size(DESKTOP)

        page.get_by_role("link", name="Audit").click()
        expect(timing).to_have_value("0 4 * * *")
        assert asked == ["beforeunload"]
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_have_text("nightly is saved.")

        page.goto("/schedules/nightly/edit")
        page.get_by_role("link", name="Audit").click()
        expect(page.get_by_role("heading", name="Audit")).to_be_visible()
        page.goto("/schedules/nightly/edit")
        page.get_by_label("Owner").fill("ada")
        stay = False
        page.get_by_role("link", name="Audit").click()
        expect(page.get_by_role("heading", name="Audit")).to_be_visible()
        assert asked == ["beforeunload"] * 2


def test_all_that_match_are_paused_and_the_filters_survive(browser: Browser, any_pages: LivePages) -> None:
    live, many = any_pages.live, PAGE + 10
    model = live.note_every("model", "0 2 * * *", labels={"team": "billing"})
    copy_schedule(live.scheduler.runtime, model, many - 1)
    live.note_every("other", "0 2 * * *", labels={"team": "sales"})
    with any_pages.viewer(browser) as page:
        page.goto("/schedules?label=team:billing&sort=newest")
        expect(page.get_by_role("row")).to_have_count(PAGE + 1)
        page.get_by_label("all that match").check()
        expect(page.locator("[data-chosen]")).to_have_text("All that match")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#confirm")).to_contain_text(f"Pause: all {many} schedules that match?")
        require_accessible(page, "the question")
        page.get_by_label("Reason, for the history").fill("the bank is away")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("[data-chunk=progress]")).to_contain_text("Done.")
        expect(page.locator("[data-chunk=progress]")).to_contain_text(f"{many} paused.")
        require_accessible(page, "what was done")
        page.get_by_role("link", name="Schedules", exact=True).last.click()
        expect(page.locator("[name=label]").first).to_have_value("team:billing")
        page.get_by_label("Choose copy-").first.check()
        page.get_by_role("button", name="Resume").click()
        page.locator("#confirm").get_by_role("button", name="Resume").click()
        expect(page.get_by_role("status")).to_contain_text("1 of 1 done")
        expect(page.locator("[name=label]").first).to_have_value("team:billing")
        assert {"label=team%3Abilling", "sort=newest"} <= {*page.url.partition("?")[2].split("&")}
    statuses = Counter(one.status for one in live.scheduler.iter())
    assert statuses == {"paused": many - 1, "active": 2}
    assert told(model.uid, live)["SchedulePaused"] == ("local", "the bank is away")


def test_action_whose_web_process_is_killed_is_stopped_and_goes_on_in_another_one(
    browser: Browser, any_pages: LivePages
) -> None:
    live, many = any_pages.live, 12 * CHUNK
    copy_schedule(live.scheduler.runtime, live.note_every("model", "0 2 * * *"), many - 1)
    with any_pages.viewer(browser, is_complaint=lambda text: "ERR_" not in text) as page:
        page.goto("/schedules")
        page.get_by_label("all that match").check()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Pause").click()
        told, progress = page.locator("#chunks-told"), page.locator("[data-chunk=progress]")
        expect(told).to_have_text("It continues while this page is open.")
        require_accessible(page, "an action that goes on")
        any_pages.server.kill_tree()
        expect(told).to_contain_text("Interrupted: the server is away,")
        page.get_by_role("button", name="Continue").click()
        expect(told).to_contain_text("Interrupted: the server is away,")
        require_accessible(page, "an interrupted action")
        before = live.scheduler.count(status="paused")
        live.start(rqsched_command("web", "--port", any_pages.base.rpartition(":")[2]))
        wait_until(lambda: status_of(f"{any_pages.base}/readyz") == 200, what="the web server")
        page.get_by_role("button", name="Continue").click()
        page.get_by_role("button", name="Stop").click()
        expect(told).to_have_text("Stopped.")
        assert before < live.scheduler.count(status="paused") < many
        expect(page.get_by_role("button", name="Continue")).to_be_focused()
        page.get_by_role("button", name="Continue").click()
        expect(progress).to_contain_text("Done.")
        require_accessible(page, "a finished action")
    assert {one.status for one in live.scheduler.iter()} == {"paused"}


def test_action_whose_session_ends_goes_on_after_the_login(browser: Browser, live: LiveEnv) -> None:
    secret = "admin-secret-0123456789"
    live.environment["RQSCHED_TOKENS"] = one_token(secret)
    copy_schedule(live.scheduler.runtime, live.note_every("model", "0 2 * * *"), 6 * CHUNK)
    with pages_of(live) as pages, pages.viewer(browser, is_complaint=lambda text: "401" not in text) as page:

        def log_in() -> None:
            page.get_by_label("Token").fill(secret)
            page.get_by_role("button", name="Log in").click()

        page.goto("/schedules")
        log_in()
        page.get_by_label("all that match").check()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#chunks-told")).to_have_text("Stopped.")
        page.context.clear_cookies(name="rqsched_session")
        page.get_by_role("button", name="Continue").click()
        log_in()
        page.get_by_role("button", name="Send").click()
        expect(page.locator("[data-chunk=progress]")).to_contain_text("Done.")
    assert {one.status for one in live.scheduler.iter()} == {"paused"}


def test_all_runs_that_match_are_cancelled_in_parts_and_the_pages_are_accessible(
    browser: Browser, any_pages: LivePages
) -> None:
    live = any_pages.live
    handle = live.note_every("hourly", Every("1h"), overlap="allow_all", queue="nobody")  # fires after the test
    end = datetime.now(UTC).replace(minute=30, second=0, microsecond=0) - timedelta(hours=1)
    handle.backfill(end - timedelta(hours=250), end)
    failed = live.scheduler.create("fails", FAIL, Every(timedelta(days=1)), retry=RetryPolicy(max_retries=0))
    live.start_worker()
    failed.trigger()
    wait_until(lambda: failed.refresh().error_count == 1, what="the failure")
    failed.delete()
    with any_pages.viewer(browser) as page:
        page.goto("/runs?status=pending&schedule=hourly")
        page.get_by_role("button", name="Cancel all that match").click()
        expect(page.locator("h1")).to_have_text("Cancel 250 runs?")
        require_accessible(page, "the question about all runs that match")
        page.get_by_label("Reason").fill("the wrong month")
        page.get_by_role("button", name="Cancel 250 runs").click()
        expect(page.locator("[data-chunk=progress]")).to_contain_text("250 cancelled.")
        page.goto("/runs?status=failures")
        page.get_by_role("button", name="Retry all that match").click()
        page.get_by_role("button", name="Retry 1 run").click()
        expect(page.locator("[data-chunk=progress]")).to_contain_text("Its schedule is deleted")
        require_accessible(page, "what was not done")
    assert {run.status for run in handle.iter_runs()} == {"cancelled"}


def test_action_whose_server_does_not_answer_is_interrupted_after_a_minute_and_goes_on(
    browser: Browser, pages: LivePages
) -> None:
    copy_schedule(pages.live.scheduler.runtime, pages.live.note_every("model", "0 2 * * *"), 2 * CHUNK)
    with pages.viewer(browser) as page:
        page.add_init_script(  # the first wait of a page takes 600 ms
            """const wait = AbortSignal.timeout.bind(AbortSignal);
            AbortSignal.timeout = (ms) => { AbortSignal.timeout = wait; return wait(ms / 100); };"""
        )
        page.goto("/schedules")
        page.get_by_label("all that match").check()
        page.get_by_role("button", name="Pause").click()
        sent = list[str]()

        def keep_silent(route: Route) -> None:
            sent.append(route.request.url)
            if len(sent) == 1:
                route.continue_()  # the form; the next request is the script's

        page.route("**/bulk", keep_silent)
        told = page.locator("#chunks-told")
        page.get_by_role("button", name="Pause").click()
        expect(told).to_contain_text("Interrupted: the server has not answered for a minute.")
        page.unroute("**/bulk")
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("[data-chunk=progress]")).to_contain_text("Done.")


def test_dialog_shows_its_command_with_the_values_that_are_entered(browser: Browser, pages: LivePages) -> None:
    nightly = pages.live.note_every("nightly", "0 2 * * *")
    with pages.viewer(browser) as page:
        page.goto("/schedules/nightly")
        page.get_by_role("link", name="Pause").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_label("Reason").fill("it moves")
        dialog.get_by_text("The same as a command").click()
        command = dialog.locator("[data-as-text] pre").first
        expect(command).to_have_text("rqsched pause nightly --reason 'it moves'")
        dialog.get_by_label("Reason").fill("later")
        dialog.get_by_role("button", name="Show it with the values above").click()
        expect(command).to_have_text("rqsched pause nightly --reason later")
    assert nightly.refresh().status == "active"


def every_page(run: RunHandle) -> list[str]:
    """The paths of all pages, where there are the schedules `nightly` and `often` and a run."""
    return [
        "/",
        "/schedules",
        "/schedules/often",
        "/schedules/nightly",
        f"/runs/{run.uid}",
        f"/runs/{run.uid}/again",
        "/timeline",
        "/runs",
        "/audit",
        "/system",
        "/schedules/new",
        "/login",
        "/schedules/nightly/confirm?action=backfill",
        "/schedules/nightly/definition",
        "/retry-failed",
        "/namespace/stop",
        "/find?q=n",
    ]


@pytest.mark.once
def test_every_page_is_shown_and_its_scripts_raise_nothing(browser: Browser, pages: LivePages) -> None:
    pages.live.note_every("often", "0 2 * * *")
    run = pages.live.run_now("nightly")
    with pages.viewer(browser) as page:
        for path in every_page(run):
            assert present(page.goto(path)).ok, path
            expect(page.locator("main")).to_be_visible()


def test_every_page_is_accessible_in_light_and_dark_and_fits_its_screen(browser: Browser, pages: LivePages) -> None:
    live = pages.live
    nightly = live.note_every("nightly", "0 2 * * *", labels={"team": "billing"}, description="<b>letters</b>")
    assert [nightly.trigger().outcome for _ in range(2)] == ["triggered", "skipped"]
    live.note_every("often", Every(timedelta(seconds=2)), priority=1)
    live.scheduler.create("waits", HOLD, "0 5 * * *").pause(reason="later")
    live.start_worker()
    often = live.scheduler.get("often")
    wait_until(lambda: often.refresh().success_count > 2, what="three runs")
    often.update(spec=Every(timedelta(days=1)))  # no page changes while it is looked at
    run = often.runs(1).items[0]
    edit = next(one.sequence for one in often.iter_history() if one.event_type == "ScheduleUpdated")
    more = f"/schedules/often/undo/{edit}", "/schedules?q=nothing", "/runs?q=nothing"
    with pages.viewer(browser, color_scheme="light") as page:
        for path in [*every_page(run), *more]:
            page.goto(path)
            page.wait_for_load_state("networkidle")
            require_accessible(page, path)


def test_header_shows_every_page_beside_the_choice_of_a_namespace(browser: Browser, pages: LivePages) -> None:
    pages.live.note_every("nightly", "0 2 * * *")
    pages.live.scheduler.create("other", HOLD, "0 5 * * *", namespace="customer-4711")
    with pages.viewer(browser) as page:
        page.goto("/")
        expect(page.locator("#namespace option")).to_have_count(2)
        assert page.locator("nav[aria-label=Pages]").evaluate("one => one.scrollWidth <= one.clientWidth")


def test_spread_grid_and_picture_of_a_backfill_are_accessible_in_light_and_dark_and_fit_a_phone(
    browser: Browser, pages: LivePages
) -> None:
    live = pages.live
    handle = live.note_every("hourly", "0 * * * *", overlap="allow_all")
    state, statuses, runs = handle.state, [status for status in RunStatus if status not in OPEN], list[Run]()
    for number in range(1, 500):
        at = datetime.now(UTC) - timedelta(hours=1 + 1.5 * number)
        ended_at, status = at + timedelta(seconds=number % 90), statuses[number % len(statuses)]
        times = {"occurrence_at": at, "due_at": at, "started_at": at, "ended_at": ended_at}
        run = run_of(state, number, status, **times)
        runs.append(replace(run, uid=derived_uid(at, handle.uid, number), created_at=at))
    change = Change(state, replace(state, run_number=len(runs)), new_runs=tuple(runs))
    live.scheduler.runtime.database.transact(lambda connection: changes.write(connection, [change]))
    live.start_worker()
    end = datetime.now(UTC) - timedelta(days=40)
    handle.refresh().backfill(end - timedelta(days=1), end)
    wait_until(lambda: handle.refresh().success_count >= 24, what="the runs of the backfill")
    with pages.viewer(browser, color_scheme="light") as page:
        page.goto("/schedules/hourly")
        for label in (
            "How long runs took",
            "Runs by day and hour",
            "Runs of each day",
            "Its runs at their occurrences",
        ):
            expect(page.locator(f"svg[aria-label^='{label}']").locator("rect").nth(2)).to_be_attached()
        require_accessible(page, "a schedule with a long past")


def fire_an_hour_ago(live: LiveEnv, *schedule_ids: str) -> None:
    """Make daily schedules that seem a day old, and fire the occurrence of an hour ago."""
    at = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
    for schedule_id in schedule_ids:
        handle = live.note_every(schedule_id, f"{at.minute} {at.hour} * * *", queue="nobody", fire_within=None)
        past = {"created_at": at - timedelta(days=1), "timing_changed_at": at - timedelta(days=1)}
        due = {"evaluated_to": at - timedelta(hours=1), "next_run_at": at, "due_at": at}
        move = sa.update(schedules).where(schedules.c.uid == handle.uid).values(**past, **due)
        live.scheduler.runtime.database.transact(partial(sa.Connection.execute, statement=move))
    live.scheduler.tick()


@pytest.mark.every_database
def test_who_is_on_call_is_answered_in_one_click_from_the_overview(browser: Browser, any_pages: LivePages) -> None:
    live, scheduler = any_pages.live, any_pages.live.scheduler
    worker, log = live.start_worker(), {"log": str(live.log)}
    fragile = scheduler.create("fragile", FAIL, Every("24h"), kwargs=log, retry=RetryPolicy(0, then="dead"))
    fragile.trigger()
    for name, count in (("crm", 3), ("mail", 1)):
        handle = scheduler.create(name, FAIL, Every("24h"), kwargs=log, retry=RetryPolicy(0), overlap="buffer_all")
        for _ in range(count):
            handle.trigger()
    found = scheduler.runs.list
    wait_until(lambda: len(found(status="failed").items) == 5, what="the failures")
    worker.terminate()
    ada = CommandContext(principal="ada", source="cli", reason="the vendor moves")
    live.note_every("vendor", "0 5 * * *").pause(context=ada)
    fire_an_hour_ago(live, "blocked", "starved")
    (blocked_run,) = scheduler.get("blocked").runs().items
    block(scheduler.runtime, blocked_run)
    late = "idle", "late"
    for schedule_id in late:
        live.note_every(schedule_id, Every("1s"))  # which nothing fires
    answers = {
        "vendor": "by ada: the vendor moves",
        "fragile": "The error: ValueError: not today",
        "blocked": "no module named 'billing'",
        "starved": "waits for a worker of its queue",
        "idle": "nothing has fired it yet",
    }
    with any_pages.viewer(browser) as page:
        for schedule_id, answer in answers.items():  # why did it not run
            page.goto("/")
            page.get_by_label("Why did").fill(schedule_id)
            page.get_by_role("button", name="Ask").click()
            expect(page.locator(".answer")).to_contain_text(answer)
        page.goto("/")
        first = page.locator("[data-live=failed] .groups li").first
        expect(first).to_contain_text("crm")  # what fails most
        expect(first).to_contain_text("ValueError: not today")
        first.locator(".count").click()
        expect(page.locator("td.of")).to_have_text(["crm", "mail", "fragile"])
        page.goto("/")
        number = page.locator("a.number-card", has_text="late")
        expect(number.locator("strong")).to_have_text("2")  # is anything late
        number.click()
        expect(page.locator("tbody tr")).to_have_count(2)
        for schedule_id in late:
            expect(page.get_by_role("row").get_by_role("link", name=schedule_id, exact=True)).to_be_visible()
        page.goto("/")
        page.locator("a.number-card", has_text="paused").click()  # who paused this
        expect(page.get_by_role("row", name="vendor")).to_contain_text("by ada")
        expect(page.get_by_role("row", name="vendor")).to_contain_text("the vendor moves")
        page.goto("/")
        for title in ("No dispatcher is alive", "is dead", "is blocked", "are late"):  # what is wrong, each by its name
            expect(page.locator(".problem h3", has_text=title)).to_have_count(1)
        page.get_by_role("link", name="Audit").click()
        expect(page.get_by_role("row", name="vendor")).to_contain_text("the vendor moves")
        page.goto("/")
        blocked = page.locator(".problem", has=page.locator("h3", has_text="1 schedule is blocked"))
        blocked.get_by_role("link", name="See all").click()
        expect(page.locator("td.outcome")).to_contain_text("no module named 'billing'")
        for path in ("/", "/runs?status=failures", "/audit", "/system"):
            page.goto(path)
            found_by_axe = Axe().run(page)
            assert found_by_axe.violations_count == 0, f"{path}: {found_by_axe.generate_report()}"


def test_search_without_a_match_goes_on_by_itself_to_the_first_page_with_one(
    browser: Browser, pages: LivePages
) -> None:
    live = pages.live
    crowd = live.note_every("among-many", "0 2 * * *").pause()
    copy_schedule(live.scheduler.runtime, crowd, 2 * MOST_LOOKED_AT + 1)
    live.scheduler.create("rare", HOLD, "0 5 * * *", labels={"team": "rare"})
    rare = "/schedules/rare"
    for path, found in (("/schedules?sort=id", f"td.name a[href='{rare}']"), ("/timeline?", f"a[href='{rare}']")):
        with pages.viewer(browser) as page:
            page.goto("/system")
            page.goto(f"{path}&label=team:rare")
            expect(page.locator(found)).to_be_visible()
            assert "after=" in page.url
            assert "label=team%3Arare" in page.url or "label=team:rare" in page.url
            page.go_back()
            expect(page.locator("h1")).to_have_text("Workers and queues")
            page.goto(f"{path}&label=team:nobody")
            expect(page.get_by_text("No schedule matches.")).to_be_visible()
    with pages.viewer(browser, java_script_enabled=False) as page:
        page.goto("/schedules?sort=id&label=team:rare")
        for _ in range(2):
            expect(page.get_by_role("status")).to_contain_text(f"No match yet among {MOST_LOOKED_AT} schedules.")
            page.get_by_role("link", name="Search on").click()
        expect(page.get_by_role("link", name="rare", exact=True)).to_be_visible()


def test_search_whose_server_goes_away_keeps_its_link(browser: Browser, pages: LivePages) -> None:
    live = pages.live
    copy_schedule(live.scheduler.runtime, live.note_every("among-many", "0 2 * * *").pause(), MOST_LOOKED_AT)
    live.scheduler.create("rare", HOLD, "0 5 * * *", labels={"team": "rare"})
    with pages.viewer(browser, is_complaint=lambda text: "ERR_FAILED" not in text) as page:
        page.route("**/schedules?*after=*", lambda route: route.abort())
        page.goto("/schedules?sort=id&label=team:rare")
        page.wait_for_load_state("networkidle")
        expect(page.get_by_role("status")).to_contain_text(f"No match yet among {MOST_LOOKED_AT} schedules.")
        page.unroute("**/schedules?*after=*")
        page.get_by_role("link", name="Search on").click()
        expect(page.get_by_role("link", name="rare", exact=True)).to_be_visible()


def test_page_is_in_the_viewers_zone_from_the_first_paint_after_the_login_and_else_is_loaded_again(
    browser: Browser, pages: LivePages
) -> None:
    with pages.viewer(browser) as page:
        page.goto("/login")
        assert "times in Europe/Berlin" in present(page.goto("/")).text()
    with pages.viewer(browser) as page:
        page.goto("/")
        expect(page.locator("body")).to_have_attribute("data-zone", "Europe/Berlin")


def test_on_a_phone_filters_and_actions_fold_and_thirty_schedules_are_short(browser: Browser, pages: LivePages) -> None:
    model = pages.live.note_every("model", "0 2 * * *", labels={"team": "billing"})
    copy_schedule(pages.live.scheduler.runtime, model, 29)
    with pages.viewer(browser) as page:
        page.goto("/schedules?group=team")
        expect(page.get_by_label("Id contains")).to_be_visible()
        expect(page.get_by_text("Filters")).to_be_hidden()
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.scrollingElement.scrollHeight") < 2_700
        for summary, field in (("Filters", "Id contains"), ("Actions on several", "all that match")):
            expect(page.get_by_label(field)).to_be_hidden()
            page.get_by_text(summary).click()
            expect(page.get_by_label(field)).to_be_visible()
        require_accessible(page, "what was folded")


def test_marks_of_a_chart_show_their_values_when_they_have_the_focus(browser: Browser, pages: LivePages) -> None:
    live = pages.live
    live.start_worker()
    nightly = live.note_every("nightly", "0 2 * * *")
    for _ in range(2):
        live.wait_for_status(present(nightly.trigger().run), "succeeded")
    with pages.viewer(browser) as page:
        page.goto("/schedules/nightly")
        tip = page.get_by_role("tooltip")
        chart = page.locator("svg[aria-label^='How long the newest']")
        expect(chart.locator("[tabindex='0']")).to_have_count(1)
        chart.locator("[tabindex='0']").focus()
        expect(tip).to_contain_text("#2 succeeded")
        page.keyboard.press("ArrowLeft")
        expect(tip).to_contain_text("#1 succeeded")
        expect(chart.locator("[tabindex='0']")).to_have_count(1)
        require_accessible(page, "a chart of which a mark has the focus")
        page.keyboard.press("Tab")
        expect(tip).not_to_contain_text("#1 succeeded")


def test_without_scripts_everything_is_there(browser: Browser, pages: LivePages) -> None:
    pages.live.note_every("nightly", "0 2 * * *")
    with pages.viewer(browser, java_script_enabled=False) as page:
        page.goto("/schedules/nightly")
        page.get_by_role("link", name="Pause").click()
        page.get_by_label("Reason, for the history").fill("no scripts")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("status")).to_have_text("nightly is paused.")
    assert pages.live.scheduler.get("nightly").history()[-1].payload["reason"] == "no scripts"


def test_a_change_appears_without_a_reload_and_nothing_else_moves(browser: Browser, pages: LivePages) -> None:
    schedule = pages.live.note_every("nightly", "0 2 * * *")
    with pages.viewer(browser) as page:
        page.goto("/schedules")
        row = page.get_by_role("row", name="nightly")
        expect(row).to_contain_text("active")
        before = row.bounding_box()
        schedule.pause()
        expect(row).to_contain_text("paused")
        assert row.bounding_box() == before


NO_POLLING = "window.setInterval = () => 0"
"""A browser in which no page is read again by the clock: what changes was told by the stream."""


def test_the_stream_brings_a_change_without_a_reload_and_without_polling(browser: Browser, pages: LivePages) -> None:
    nightly = pages.live.note_every("nightly", "0 2 * * *")
    weekly = pages.live.note_every("weekly", "0 2 * * MON")
    with pages.viewer(browser) as page:
        page.add_init_script(NO_POLLING)
        page.goto("/schedules")
        expect(page.locator("#live")).to_have_attribute("data-by", "stream")
        for schedule in (nightly, weekly):
            schedule.pause()
            expect(page.get_by_role("row", name=schedule.schedule_id)).to_contain_text("paused")
        page.goto("/schedules/nightly")
        expect(page.locator("#live")).to_have_attribute("data-by", "stream")
        nightly.resume()
        expect(page.locator("[data-live=history]")).to_contain_text("Active again")


def test_a_page_whose_stream_is_refused_is_read_again_by_the_clock(browser: Browser, pages: LivePages) -> None:
    schedule = pages.live.note_every("nightly", "0 2 * * *")
    with pages.viewer(browser) as page:
        page.route("**/stream?*", lambda route: route.fulfill(status=204))
        page.goto("/schedules")
        expect(page.locator("#live")).to_have_attribute("data-by", "reading")
        schedule.pause()
        expect(page.get_by_role("row", name="nightly")).to_contain_text("paused")


def test_a_page_whose_server_is_away_says_since_when_and_updates_when_it_is_back(
    browser: Browser, pages: LivePages
) -> None:
    schedule = pages.live.note_every("nightly", "0 2 * * *")
    with pages.viewer(browser, is_complaint=lambda text: "ERR_" not in text) as page:
        page.goto("/schedules")
        stale = page.locator("#stale")
        expect(stale).to_be_hidden()
        pages.server.kill_tree()
        expect(stale).to_have_text(re.compile(r"Not updating since \d\d:\d\d\."))
        expect(stale).to_be_visible()

        schedule.pause()
        pages.live.start(rqsched_command("web", "--port", pages.base.rpartition(":")[2]))

        expect(page.get_by_role("row", name="nightly")).to_contain_text("paused")
        expect(stale).to_be_hidden()


def test_what_is_opened_stays_open_and_stops_no_update(browser: Browser, pages: LivePages) -> None:
    retry = RetryPolicy(max_retries=1, base=timedelta(seconds=5))
    schedule = pages.live.scheduler.create("fail", FAIL, Every("24h"), kwargs={"log": str(pages.live.log)}, retry=retry)
    run = present(schedule.trigger().run)
    pages.live.start_worker()
    with pages.viewer(browser) as page:
        page.goto(f"/runs/{run.uid}")
        attempts = page.locator("[data-live=attempts] details")
        attempts.first.locator("summary").click()
        assert present(attempts.first.locator("pre").bounding_box())["width"] > 600, "a traceback has room"

        expect(attempts).to_have_count(2)

        expect(attempts.first).to_have_attribute("open", "")


def test_a_page_that_is_told_to_stop_being_live_closes_its_stream(browser: Browser, pages: LivePages) -> None:
    with pages.viewer(browser) as page:
        page.goto("/")
        by = page.locator("#live")
        expect(by).to_have_attribute("data-by", "stream")
        page.get_by_role("button", name="live").click()
        expect(by).to_have_attribute("data-by", "reading")
        page.get_by_role("button", name="not live").click()
        expect(by).to_have_attribute("data-by", "stream")


def test_search_of_the_header_finds_schedules_pages_and_actions_by_keyboard_alone(
    browser: Browser, pages: LivePages
) -> None:
    for name in ("nightly", "nights", "weekly"):
        pages.live.note_every(name, "0 2 * * *")
    with pages.viewer(browser) as page:
        page.goto("/runs")
        field, options = page.get_by_role("combobox", name="Find"), page.locator("#find-list [role=option]")
        expect(page.locator("kbd").first).to_have_text("Ctrl K")
        page.keyboard.press("Control+k")
        expect(options.first).to_have_text("Overview")
        page.keyboard.type("night")
        expect(options.first).to_have_text("nightly")
        expect(field).to_have_attribute("aria-expanded", "true")
        for mode, rules in MODES.items():
            page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
            page.set_viewport_size(PHONE if mode == "phone" else DESKTOP)
            found = Axe().run(page, options=rules)
            assert found.violations_count == 0, f"{mode}: {found.generate_report()}"
            assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), mode
        page.set_viewport_size(DESKTOP)
        page.keyboard.press("ArrowUp")
        expect(options.last).to_have_attribute("aria-selected", "true")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        second = options.nth(1)
        expect(field).to_have_attribute("aria-activedescendant", second.get_attribute("id") or "")
        expect(second).to_have_text("Run now nightly")
        page.keyboard.press("Escape")
        expect(options).to_have_count(0)
        expect(field).to_have_attribute("aria-expanded", "false")
        field.fill("pause nightly")
        expect(options).to_have_text(["Pause nightly"])
        page.keyboard.press("Enter")
        expect(page.locator("dialog")).to_contain_text("Pause nightly?")
        page.keyboard.type("by hand")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("nightly paused")
        page.keyboard.press("Control+k")
        page.keyboard.type("timel")
        expect(options).to_have_text(["Timeline"])
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Timeline")
        page.keyboard.press("Control+k")
        page.keyboard.type("nothing-like-it")
        expect(page.locator("#find-told")).to_have_text("Nothing found")


def test_row_of_a_list_is_reached_and_paused_by_keys_that_can_be_turned_off(browser: Browser, pages: LivePages) -> None:
    for number in range(1, 13):
        pages.live.note_every(f"job-{number:02}", "0 2 * * *")
    with pages.viewer(browser) as page:
        page.goto("/schedules")
        row = page.get_by_role("link", name="job-12", exact=True)
        page.keyboard.type("12")
        expect(row).to_be_focused()
        page.keyboard.press("p")
        expect(page.locator("dialog")).to_contain_text("Pause job-12?")
        page.keyboard.press("Enter")  # the fourth key
        expect(page.locator("h1")).to_contain_text("job-12 paused")
        page.go_back()
        page.keyboard.type("12")
        page.keyboard.press("ArrowUp")
        expect(page.get_by_role("link", name="job-11", exact=True)).to_be_focused()
        page.keyboard.press("x")
        expect(page.locator("[data-chosen]")).to_have_text("1 chosen")
        page.keyboard.press("x")
        page.keyboard.press("/")
        page.keyboard.type("1?p/x")
        expect(page.get_by_label("Id contains")).to_have_value("1?p/x")
        expect(page.locator("dialog")).to_be_hidden()
        page.locator("h1").click()
        page.keyboard.press("?")
        expect(page.locator("#keys p")).to_be_visible()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.get_by_role("button", name="single keys are on").click()
        page.reload()
        page.keyboard.type("12")
        expect(page.locator("body")).not_to_have_class("has-keys")
        expect(row).not_to_be_focused()
        page.goto("/audit")  # of a row in a card, too, the number stands beside the name
        expect(page.locator("[data-rows] td.name")).to_have_css("padding-left", "34px")


def test_page_that_is_refreshed_says_as_of_when_and_keeps_the_focus_on_a_link(
    browser: Browser, pages: LivePages
) -> None:
    schedule = pages.live.note_every("nightly", "0 2 * * *")
    with pages.viewer(browser) as page:
        page.goto("/schedules")
        page.evaluate("document.getElementById('as-of').textContent = 'long ago'")
        link = page.get_by_role("link", name="nightly", exact=True)
        link.focus()
        schedule.pause()
        expect(page.get_by_role("row", name="nightly")).to_contain_text("paused")
        expect(page.locator("#as-of")).to_have_text(re.compile(r"^as of \d\d:\d\d · times in Europe/Berlin$"))
        expect(link).to_be_focused()
