"""`rqsched web` below a path of a real proxy, which keeps the path in its requests or takes it away."""

from __future__ import annotations

import re
import sys
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.narrow import present
from tests.support.processes import rqsched_command, run_to_end, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of
from tests.support.web import one_token
from tests.system.acceptance.live import LiveEnv

pytestmark = pytest.mark.acceptance
SECRET = "admin-secret-0123456789"


def test_pages_forms_and_api_work_below_the_path_of_each_kind_of_proxy(live: LiveEnv) -> None:
    """One server has `--root-path`, and the proxies tell the path to the other."""
    live.note_every("nightly", "0 2 * * *")
    live.environment |= {"RQSCHED_TOKENS": one_token(SECRET), "RQSCHED_TRUSTED_PROXIES": "127.0.0.1"}
    proxies = list[str]()
    for options, flags in ((("--root-path", "/rqsched"), ()), ((), ("--says",))):
        upstream = str(free_port())
        live.start(rqsched_command("web", "--port", upstream, *options))
        for way in ("keeps", "takes"):
            port = str(free_port())
            live.start([sys.executable, "-m", "tests.support.path_proxy", port, upstream, "/rqsched", way, *flags])
            proxies.append(f"http://127.0.0.1:{port}/rqsched")
    for base in proxies:
        wait_until(lambda base=base: status_of(f"{base}/readyz") == 200, what=base)  # type: ignore[misc]
        act_as_a_browser(base)
        listed = httpx.get(f"{base}/api/v1/schedules/", headers={"authorization": f"Bearer {SECRET}"})
        assert [one["schedule_id"] for one in listed.json()["items"]] == ["nightly"]
    assert [event.event_type for event in live.scheduler.get("nightly").history()][-2:] == [
        "SchedulePaused", "ScheduleResumed"
    ]  # fmt: skip


def act_as_a_browser(base: str) -> None:
    """Follow redirects, links and forms as they are written, and expect none to lead out of the path."""
    with httpx.Client(follow_redirects=True) as browser:
        page = browser.get(f"{base}/schedules/nightly")
        assert urlsplit(str(page.url)).path == "/rqsched/login"
        page = browser.post(f"{base}/login", data={"csrf": csrf(page), "token": SECRET, "to": "/rqsched/"})
        for action in ("pause", "resume"):
            links = re.findall(r'(?:href|src|action)="([^"]*)"', page.text)
            assert all(link.startswith(("/rqsched", "#")) for link in links), links
            style = next(link for link in links if "app.css" in link)
            assert browser.get(httpx.URL(base).join(style)).headers["content-type"].startswith("text/css")
            asked = browser.get(f"{base}/schedules/nightly/confirm?action={action}")
            target = re.findall(r'<form method="post" action="([^"]*/do)"', asked.text)[0]
            page = browser.post(httpx.URL(base).join(target), data={"csrf": csrf(asked), "action": action})
            assert page.url.path == "/rqsched/schedules/nightly"


def csrf(page: httpx.Response) -> str:
    return present(re.search(r'name="csrf" value="([^"]+)"', page.text))[1]


def test_a_root_path_that_is_a_path_of_ours_is_refused_at_once(live: LiveEnv) -> None:
    done = run_to_end(rqsched_command("web", "--port", str(free_port()), "--root-path", "/api"), live.environment)
    assert done.returncode != 0
    assert "/api is a path of rqsched itself; serve it below another one" in done.stderr
