"""The picture of a simulation in a real Chromium: in light and dark, on a phone, and on paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from typer.testing import CliRunner

from rqsched.cli.app import app
from tests.system.acceptance.conftest import PATIENCE

pytestmark = pytest.mark.acceptance
FILE = """
[[schedules]]
schedule_id = "nightly-reports-of-all-customers-of-the-whole-company"
workflow = "app.nightly"
cron = "30 2 * * *"
timezone = "Europe/Berlin"
limit = "mail"

[[schedules]]
schedule_id = "poll"
workflow = "app.poll"
interval = "30m"
"""
LOOKS: dict[str, dict[str, object]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 375, "height": 812}},
    "paper": {},
}


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    file, picture = folder / "schedules.toml", folder / "year.html"
    file.write_text(FILE)
    words = ["forecast", "simulate", str(file), "--from", "2027-03-01T00:00:00Z", "--until", "60d"]
    more = ["--workers", "default=1", "--duration", "40m", "--html", str(picture)]
    done = CliRunner().invoke(app, [*words, *more])
    assert done.exit_code == 0, done.output
    return picture


@pytest.mark.parametrize("look", LOOKS)
def test_the_picture_of_a_simulation_can_be_read_wherever_it_is_opened(
    browser: Browser, picture: Path, look: str
) -> None:
    context = browser.new_context(**LOOKS[look])  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE)
    page, asked = context.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(picture.as_uri())
    if look == "paper":
        page.emulate_media(media="print")
    expect(page.get_by_role("heading", level=1)).to_have_text("Simulation: schedules.toml")
    expect(page.get_by_role("img", name="Fires of each of 60 days")).to_be_visible()
    expect(page.get_by_text("02:30 fires at 03:30")).to_be_visible()
    expect(page.get_by_text("its limit mail")).to_be_visible()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert asked == [picture.as_uri()]
    context.close()
