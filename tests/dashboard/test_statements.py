"""Pages state only what is so: what is not known is called unknown, and what does not happen is not promised."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from rq import Worker
from rq.utils import now as now_of_rq
from rq.utils import utcformat

from rqsched import Cron, RetryPolicy
from rqsched.dashboard.recent import lateness
from rqsched.kernel.transport import telemetry
from tests.dashboard.test_system import busy_worker, cells
from tests.support.env import DAY, HOUR, ONCE, all_runs, run_job_id
from tests.support.narrow import present
from tests.support.pages import Pages
from tests.support.servers import ValkeyServer
from tests.support.web import MakeWeb

EMPTY = (
    "No queue exists yet", "No RQ worker is alive", "None is alive", "Nothing had to be repaired",
    "Everything is as it should be",
)  # fmt: skip
"""What pages state when there is nothing of a kind."""


@pytest.fixture
def pages_without_redis(make_web: MakeWeb, own_valkey: ValkeyServer) -> Pages:
    """The pages of an application whose Redis has died; it has fired a schedule and has a run."""
    pages = Pages(make_web(redis_url=own_valkey.url))
    env = pages.env
    env.run_next(env.create("nightly"))
    Worker(["default"], connection=env.redis, name="host-1").register_birth()
    own_valkey.kill()
    env.advance(timedelta(seconds=2))  # an answer of Redis counts for a second
    return pages


def text_of(page: str) -> str:
    """The words of a page, without its tags and without the banner about the whole namespace."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_no_page_states_that_there_is_nothing_while_redis_does_not_answer(pages_without_redis: Pages) -> None:
    pages = pages_without_redis
    (run,) = pages.env.scheduler.get("nightly").runs().items
    for path in ("/", "/system", "/schedules", "/schedules/nightly", "/runs", f"/runs/{run.uid}",
                 "/timeline", "/audit", "/calendars", "/find?q=n", "/schedules/nightly/edit"):  # fmt: skip
        shown = text_of(pages.get(path))
        assert "Redis does not answer" in shown, path
        assert not [one for one in EMPTY if one in shown], path
        assert not re.search(r"\bin \d+ (s|min|h|d)\b", shown), path
    shown = pages.get("/system")
    assert shown.count("Not known.") == 4, "queues, workers, dispatchers and repairs"


def test_nothing_is_announced_while_redis_does_not_answer(pages_without_redis: Pages) -> None:
    pages = pages_without_redis
    assert "None of it fires while Redis does not answer." in pages.get("/")
    assert "fires to come" not in re.sub(r"0 fires to come|</i>fires to come", "", pages.get("/timeline"))


def test_killed_worker_is_marked_and_not_counted(pages: Pages) -> None:
    redis: Any = pages.env.redis
    for name in ("ours", "theirs"):
        worker = Worker(["letters"], connection=redis, name=name)
        worker.register_birth()
        worker.set_state("idle")
    telemetry.show_worker_version(redis, "rq:worker:ours")
    assert cells(pages.get("/system"), "letters")[-1] == "2"

    def silence(name: str, seconds: int) -> None:
        at = now_of_rq() - timedelta(seconds=seconds)
        redis.hset(f"rq:worker:{name}", "last_heartbeat", utcformat(at))
        redis.expire(f"rq:worker:{name}", 480 - seconds)

    silence("ours", 25)
    silence("theirs", 400)
    assert cells(pages.get("/system"), "letters")[-1] == "2", "each may be between two signs of life"
    silence("ours", 60)
    shown = pages.get("/system")
    assert cells(shown, "ours")[1] == "silent was idle"
    assert cells(shown, "letters")[-1] == "1"
    silence("theirs", 440)
    shown = pages.get("/system")
    assert cells(shown, "theirs")[1] == "silent was idle"
    assert cells(shown, "letters")[-1] == "none"
    assert "No worker is alive" in pages.get("/")


def test_worker_of_ours_that_executes_a_job_is_not_silent_between_two_signs_of_life(pages: Pages) -> None:
    env = pages.env
    redis: Any = env.redis
    run = present(env.create("slow").trigger().run)
    busy_worker(pages, "host-1", ["default"], run_job_id(run))
    telemetry.show_worker_version(redis, "rq:worker:host-1")

    def silence(seconds: int, life: int) -> None:
        redis.hset("rq:worker:host-1", "last_heartbeat", utcformat(now_of_rq() - timedelta(seconds=seconds)))
        redis.expire("rq:worker:host-1", life - seconds)

    silence(115, 180)  # --job-monitoring-interval 120
    assert cells(pages.get("/system"), "host-1")[1] == "busy"
    silence(140, 180)
    assert cells(pages.get("/system"), "host-1")[1] == "silent was busy"


STOPS = {
    "namespace": ("the namespace is frozen", False),
    "everything": ("everything is frozen", True),
}


@pytest.mark.parametrize("how", STOPS)
def test_while_nothing_may_begin_no_page_says_when_it_fires_or_offers_to_start(how: str, pages: Pages) -> None:
    env, (clause, everything) = pages.env, STOPS[how]
    handle = env.create("hourly", spec=Cron("0 * * * *"), retry=ONCE)
    failed = env.fail_next(handle, HOUR)
    again = env.create("again", spec=Cron("0 * * * *"), retry=RetryPolicy(base=HOUR, max_retries=3))
    retrying = env.fail_next(again, HOUR)
    env.create("resting").pause(until=env.clock.now() + DAY)
    paths = {
        "/": ["Retry them", "Run now"],
        "/schedules": ["fires again by itself"],
        "/schedules/hourly": ["Run now", "Backfill", "Retry failed"],
        "/schedules/resting": ["Run now", "fires again by itself"],
        f"/runs/{failed.uid}": ['value="retry"'],
        f"/runs/{retrying.uid}": [],
        "/timeline": ["<title>fires ", 'class="ahead"', 'class="peak"'],
        "/find?q=run hourly": ["Run now"],
        "/find?q=retry": ["Retry failed runs"],
    }
    promise = re.compile(r">in \d+ (s|min|h|d)<")
    for path, offers in paths.items():
        shown = pages.get(path)
        assert [offer for offer in offers if offer not in shown and path != "/"] == [], path
    assert promise.search(pages.get("/"))
    env.scheduler.freeze("an audit", everything=everything)
    for path, offers in paths.items():
        shown = re.sub(r'<p class="legend.*?</p>', "", pages.get(path))
        assert [offer for offer in offers if offer in shown] == [], path
        if path != "/schedules/resting" and path != "/schedules":
            assert not promise.search(shown), path
    assert f"None of it fires while {clause}." in pages.get("/")
    assert f"None of it fires while {clause}." in pages.get("/schedules/hourly")
    assert '<span class="pill idle">active</span> <span class="pill warn">frozen</span>' in pages.get(
        "/schedules/hourly"
    )
    assert '<span class="pill warn">frozen</span>' in pages.get("/schedules")
    assert f"<title>{clause}</title>" in pages.get("/timeline")
    assert f"is refused while {clause}" in pages.get("/schedules/hourly/confirm?action=trigger")
    assert f"is refused while {clause}" in pages.do("/bulk", action="trigger", id=["hourly"])
    assert f"nothing fires while {clause}" in pages.do("/schedules/resting/do", action="resume", on_resume="next")


def test_run_that_never_started_has_no_start(pages: Pages) -> None:
    env = pages.env
    handle = env.create("letters", overlap="allow_all")
    waiting, cancelled = (present(handle.trigger().run) for _ in range(2))
    cancelled.cancel()
    env.advance(3 * DAY)
    for path in ("/runs", "/schedules/letters", "/"):
        rows = re.findall(r'<td class="started">(.*?)</td>', pages.get(path))
        assert {text_of(row) for row in rows} == {"never", "not yet; queued 3 d ago"}, path
    shown = pages.get("/schedules/letters")
    assert "started" not in re.findall(r'data-live="state">(.*?)</section>', shown, re.DOTALL)[0]
    assert f'href="/runs/{cancelled.uid}">queued</a>' in shown
    assert waiting.refresh().started_at is None


def test_backfill_is_over_when_its_runs_are_and_what_waits_can_be_cancelled(pages: Pages) -> None:
    env = pages.env
    handle = env.create("daily", spec=Cron("0 2 * * *"), overlap="skip")
    end = env.clock.now()
    assert "4 would start, 0 already have a run" in count(pages, "daily", end - 4 * DAY, end)
    handle.backfill(end - 4 * DAY, end)
    shown = pages.get("/schedules/daily")
    assert '<span class="pill info">running</span>' in shown
    assert "4 waiting" in shown
    assert "Cancel 4 runs that wait" in shown
    uid = re.findall(r"/backfills/(\w+)/cancel", shown)[0]
    env.claim(all_runs(handle)[0])
    shown = pages.do(f"/backfills/{uid}/cancel", reason="wrong range")
    assert "3 runs cancelled." in shown
    assert "1 running, 0 waiting" in shown
    assert '<span class="pill info">running</span>' in shown
    assert "Cancel 1 run that executes" in shown
    all_runs(handle)[0].terminate()
    shown = pages.get("/schedules/daily")
    assert '<span class="pill ok">done</span>' in shown
    assert f"/backfills/{uid}/cancel" not in shown
    assert "0 would start, 4 already have a run" in count(pages, "daily", end - 4 * DAY, end)


def count(pages: Pages, schedule_id: str, start: Any, end: Any) -> str:
    """What *Count only* says."""
    span = {"start": start.isoformat(), "end": end.isoformat()}
    return pages.send(f"/schedules/{schedule_id}/do", action="backfill", dry_run="yes", **span).text


def test_fan_out_has_no_result_before_its_targets_have_ended(pages: Pages) -> None:
    env = pages.env
    env.register("mail", lambda customer: customer)
    env.register("customers", lambda: ["ada@example.org"])
    run = present(env.create("letters", workflow="mail", targets="customers").trigger().run)
    env.perform(run_job_id(run))
    run.refresh()
    assert run.status == "running"
    for path in (f"/runs/{run.uid}", "/runs"):
        assert "<h2>Result</h2>" not in pages.get(path)
    assert text_of(re.findall(r'<td class="clip outcome">(.*?)</td>', pages.get("/runs"))[0]) == "started by hand"


def test_percentile_is_not_outside_of_what_was_measured() -> None:
    assert lateness([1_000_000, 3_000_000]) == (2.0, 2.9)
    median, most = lateness([0, 0, 1_000_000])
    assert (median, most) == (0.0, 0.9)


def test_rates_that_stand_side_by_side_have_one_unit(pages: Pages) -> None:
    env = pages.env
    handle = env.create("busy", overlap="allow_all")
    runs = [present(handle.trigger().run) for _ in range(61)]
    env.claim(runs[0])
    runs[0].terminate()
    shown = text_of(pages.get("/system"))
    assert "1.0 / min arrived, 0.02 / min ended" in shown
    assert cells(pages.get("/system"), "default")[3:5] == ["1.0 / min", "0.02 / min"]


def test_only_a_run_that_executes_is_offered_to_be_terminated(pages: Pages) -> None:
    env = pages.env
    run = present(env.create("slow").trigger().run)
    shown = pages.get(f"/runs/{run.uid}")
    assert 'value="terminate"' not in shown
    assert "It will not start." in shown
    env.claim(run)
    shown = pages.get(f"/runs/{run.uid}")
    assert 'value="terminate" class="danger" data-ask="Terminate this run? Its process is killed."' in shown
    assert "It stops when its workflow checks" in shown


def test_each_button_that_acts_at_once_asks_first(pages: Pages) -> None:
    env = pages.env
    run = env.fail_next(env.create("crm", retry=ONCE, limit="vendor", limit_running=1))
    env.scheduler.get("crm").trigger()
    for path, value in ((f"/runs/{run.uid}", "Retry"), ("/system", "Set")):
        buttons = re.findall(rf"<button([^>]*)>{value}</button>", pages.get(path))
        assert buttons, path
        assert all("data-ask=" in one for one in buttons), path


def test_runs_that_are_not_kept_are_not_said_never_to_have_been(pages: Pages) -> None:
    env = pages.env
    handle = env.create("daily", spec=Cron("0 2 * * *"), overlap="allow_all")
    assert "It has not run yet." in pages.get("/schedules/daily")
    handle.backfill(env.clock.now() - 2 * DAY, env.clock.now())
    env.work()
    shown = pages.get("/schedules/daily")
    assert "It has not run yet." not in shown
    assert "None of its runs is listed here" in shown
